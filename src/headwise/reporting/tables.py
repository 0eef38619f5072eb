"""Tables for papers: the numbers of a study as markdown, LaTeX (booktabs) and csv.

A table is a dict: ``title``, ``note``, ``columns``, ``rows`` and, where there is one, ``published`` of the same shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headwise.errors import HeadwiseError
from headwise.io.text import csv_text
from headwise.reporting.words import fixed
from headwise.study.schema import checked, lesion_columns, nearest, relative

Table = Mapping[str, Any]
TESTS = {"p": "p", "p_layers": "p (layers matched)", "p_rows": "p (rows)"}
NULLS = {
    "p": "p against random head sets of the same size",
    "p_layers": "p (layers matched) against sets with as many heads in every layer",
    "p_rows": "p (rows) over development rows",
}
_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "[": "{[}",  # bare, at the start of a row, it would be an option of the line before, as a star would
    "]": "{]}",
    "*": "{*}",
    **dict.fromkeys("\n\r\t\v\f\x85\u2028\u2029", " "),
    "α": r"$\alpha$",
    "δ": r"$\delta$",
    "σ": r"$\sigma$",
    "−": "$-$",
    "–": "--",
    "≥": r"$\geq$",
    "±": r"$\pm$",
    "\u2009": r"\,",
}


def markdown(table: Table) -> str:
    """The table in markdown; published numbers stand in brackets behind ours.

    Example:
        >>> print(markdown({"columns": ["task", "D"], "rows": [["sst2", 0.0724]]}))
        | task | D |
        |---|---:|
        | sst2 | 0.072 |
        <BLANKLINE>
    """
    rows = [[_markdown_cell(cell) for cell in row] for row in cells(table)]
    rule = "|".join("---:" if right else "---" for right in numeric(table))
    lines = [" | ".join(map(_markdown_cell, table["columns"])), *(" | ".join(row) for row in rows)]
    lines = [f"| {line} |" for line in lines]
    return "\n".join([lines[0], f"|{rule}|", *lines[1:]]) + "\n"


def latex(table: Table) -> str:
    """The table as a booktabs tabular with its title as caption."""
    align = "".join("r" if right else "l" for right in numeric(table))
    head = " & ".join(map(_latex_text, table["columns"]))
    body = "\n".join("    " + " & ".join(map(_latex_text, row)) + r" \\" for row in cells(table))
    caption = ". ".join(_latex_text(str(table[part]).rstrip(".")) for part in ("title", "note") if table.get(part))
    return (
        "\\begin{table}[t]\n  \\centering\n"
        + (f"  \\caption{{{caption}.}}\n" if caption else "")
        + f"  \\begin{{tabular}}{{{align}}}\n    \\toprule\n    {head} \\\\\n    \\midrule\n{body}\n    \\bottomrule\n"
        + "  \\end{tabular}\n\\end{table}\n"
    )


def comma_separated(table: Table) -> str:
    """The table as csv, its numbers as they are; published numbers in columns of their own.

    Text that a spreadsheet would run as a formula has an apostrophe before it; `headwise.io.text.read_cell`
    takes it off.
    """
    published = table.get("published")
    columns = [*table["columns"]]
    rows = [[*row] for row in table["rows"]]
    if published:
        compared = [i for i in range(len(columns)) if any(row[i] is not None for row in published)]
        compared = [i for i in compared if numeric(table)[i]]
        columns += [f"{columns[i]} (published)" for i in compared]
        rows = [row + [other[i] for i in compared] for row, other in zip(rows, published)]
    return csv_text([columns, *rows])


FORMS: dict[str, Callable[[Table], str]] = {"Markdown": markdown, "LaTeX": latex, "CSV": comma_separated}


def cells(table: Table) -> list[list[str]]:
    """The rows as text, with the published number of a cell in brackets where there is one."""
    rows, published = table["rows"], table.get("published")
    if any(len(row) != len(table["columns"]) for row in [*rows, *(published or [])]):
        raise HeadwiseError(f"a row of another length in table {table.get('title', '')!r}", f"{table['columns']}")
    places, names = decimals(table), table["columns"]
    others = published or [[None] * len(places)] * len(rows)
    return [[_beside(*cell) for cell in zip(row, other, places, names)] for row, other in zip(rows, others)]


def shown(value: Any, digits: int, column: str) -> str:
    """A value as its column shows it; a p-value is never shown as zero."""
    chance = column.split()[:1] == ["p"] and isinstance(value, float)
    return "< 0.001" if chance and 0 <= value < 0.001 else fixed(value, digits)


def decimals(table: Table) -> list[int]:
    """Decimals of each column: two where it runs in percent, three where it runs from 0 to 1."""
    columns = range(len(table["columns"]))
    values = [[abs(row[i]) for row in table["rows"] if isinstance(row[i], (int, float))] for i in columns]
    return [2 if max(column, default=0) >= 2 else 3 for column in values]


def numeric(table: Table) -> list[bool]:
    """Which columns hold numbers (and stand to the right)."""
    columns = range(len(table["columns"]))
    values = [[row[i] for row in table["rows"] if row[i] is not None] for i in columns]
    return [bool(v) and all(isinstance(x, (int, float)) for x in v) for v in values]


def _beside(value: Any, published: Any, digits: int, column: str) -> str:
    ours = shown(value, digits, column)
    return ours if published is None or isinstance(published, str) else f"{ours} ({shown(published, digits, column)})"


def _markdown_cell(value: Any) -> str:
    text = " ".join(str(value).splitlines())
    return text.replace("|", "\\|").replace("<", "&lt;").replace("](", "]\\(")  # SMILES read as links


def _latex_text(value: Any) -> str:
    return "".join(_LATEX.get(character, character) for character in str(value))


def of(study: Mapping, fraction: float | None = None) -> list[dict[str, Any]]:
    """Every table a study holds: lesions, D per task and pair, IAT, pruning, and those it brings along.

    Example::

        for table in of(study):
            print(table["title"], markdown(table), sep="\\n")
    """
    data = checked(study)
    made = []
    if data.get("dissociation"):
        made += _dissociation(data["dissociation"], fraction)
    if data.get("iat"):
        rows = [[row.get(k) for k in ("task", "metric", "plain", "iat", "low", "high")] for row in data["iat"]["rows"]]
        made.append(_table("IAT against plain training", ["task", "metric", "plain", "IAT", "low", "high"], rows))
    if data.get("prune"):
        made += _prune(data["prune"])
    return made + list(data.get("tables") or [])


def _table(title: str, columns: list[str], rows: list[list], note: str = "") -> dict[str, Any]:
    return {"title": title, "note": note, "columns": columns, "rows": rows, "published": None}


def _dissociation(part: dict[str, Any], fraction: float | None) -> list[dict[str, Any]]:
    wanted = part["default"] if fraction is None else fraction
    at = nearest(part["fractions"], wanted)
    label = f"α = {part['fractions'][at]:g}"
    places = lesion_columns(part)
    note = f"Random is the mean of {len(places['random'])} random head sets." if "random" in places else ""
    made = []
    for title, values in (("Performance", part["performance"][at]), ("Relative performance", relative(part, at))):
        rows = [[_mean([row[i] for i in lesions]) for lesions in places.values()] for row in values]
        rows = [[name, *row] for name, row in zip(part["tasks"], rows)]
        made.append(_table(f"{title} under lesions, {label}", ["task", *places], rows, note))
    if part.get("cells"):
        made.append(_changes(part["cells"][at], label))
    for entry in part.get("D") or []:
        if entry["fraction"] == part["fractions"][at]:
            made += _scores(entry, label, bool(part.get("null")))
    return made


def _mean(values: list[float | None]) -> float | None:
    return None if None in values else sum(values) / len(values)  # type: ignore[arg-type]


def _changes(cells: dict[str, dict[str, Any]], label: str) -> dict[str, Any]:
    fields = ("change", "low", "high", "p", "p_holm")
    rows = [[task, lesion, *map(cell.get, fields)] for task, row in cells.items() for lesion, cell in row.items()]
    names = ["task", "heads ablated", "change", "low", "high", "p", "p (Holm)"]
    return _table(f"Change under lesions, {label}", names, rows, "Paired over development rows.")


def _scores(entry: dict[str, Any], label: str, tested: bool) -> list[dict[str, Any]]:
    """Tables of D; without a null of head sets, as in older studies, p is over development rows only."""
    tests = TESTS if tested else {"p": "p (rows)"}
    note = f"One-sided p: {'; '.join(NULLS[name] for name in (TESTS if tested else ['p_rows']))}."
    named = {**entry["tasks"], **({"mean": entry["mean"]} if entry.get("mean") else {})}
    rows = [[name, *map(score.get, ("value", "low", "high", *tests))] for name, score in named.items()]
    made = [_table(f"Dissociation per task, {label}", ["task", "D", "low", "high", *tests.values()], rows, note)]
    if entry.get("pairs"):
        rows = [[*map(pair.get, ("a", "b", "d_a", "d_b", "d", "verdict", *tests))] for pair in entry["pairs"]]
        names = ["A", "B", "D_A", "D_B", "D", "verdict", *tests.values()]
        made.append(_table(f"Dissociation per pair, {label}", names, rows, note))
    return made


def _prune(part: dict[str, Any]) -> list[dict[str, Any]]:
    rows = part["rows"]
    tasks = list(rows[0].get("task scores") or {}) if rows else []
    lines = []
    for row in rows:
        scores = row.get("task scores") or {}
        middle = [scores.get(task) for task in tasks]
        lines.append([row.get("fraction"), row.get("kept"), *middle, row.get("speedup"), row.get("ceiling")])
    made = [_table("Pruning heads", ["fraction cut", "heads kept", *tasks, "speed-up", "ceiling"], lines)]
    if part.get("held out"):
        fields = ("value", "low", "high", "n", "split")
        rows = [[task, *map(change.get, fields)] for task, change in part["held out"].items()]
        names = ["task", "change", "low", "high", "rows", "split"]
        made.append(_table(f"Pruning {part['chosen']:.0%} of heads, measured on held-out rows", names, rows))
    return made
