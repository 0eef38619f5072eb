"""The page of a recipe, written from its records: words, tables beside the published ones, figures."""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.errors import HeadwiseError
from headwise.io.files import digest, write
from headwise.io.records import Record, Results
from headwise.papers.recipe import PaperRecipe, Part
from headwise.papers.summary import sentence, table
from headwise.reporting import tables
from headwise.reporting.page import render_recipe
from headwise.training.plan import Plan

if TYPE_CHECKING:
    from headwise.papers.recipe import Recipe

UNKNOWN = "unknown copy"
TEXT = """Data and weights are identified by their hashes; other copies, such as official ones, are not described here.
Samples replace official files that were not available; scores on them are not comparable with published ones.

Contamination: encoders tuned for sentence similarity have seen public pairs such as MultiNLI's, Quora's and SQuAD's,
and pretraining data of decoders may hold any public test set. Comparisons on this page are within one model, where this
is the same on both sides; levels are not to be compared between models."""


@cache
def known() -> dict[str, Any]:
    """Known data and weights by name: hashes, source and a description."""
    return json.loads(Path(__file__).with_name("provenance.json").read_text("utf-8"))


def provenance(records: Iterable[Record]) -> Part:
    """Tables of the data and weights that these records were made with."""
    data: dict[tuple[str, str], None] = {}
    weights: dict[tuple[str, str], None] = {}
    for record in records:
        data |= dict.fromkeys(_data(record.config))
        weights |= dict.fromkeys(_weights(record.config))
    rows = [[name, *_said("data", name, digest, ("source", "rows"))] for name, digest in sorted(data)]
    models = [[name, *_said("weights", name, digest, ("source", "note"))] for name, digest in sorted(weights)]
    tables = [table("Data", ["task", "source", "rows"], _once(rows))] if rows else []
    tables += [table("Weights", ["model", "source", "what they are"], _once(models))] if models else []
    return Part("Data and weights", TEXT, tables)


def _said(what: str, name: str, digest: str, fields: tuple[str, str]) -> list[str]:
    entry = known()[what].get(name, {})
    return [entry[field] if digest in entry.get("hashes", ()) else UNKNOWN for field in fields]


def _once(rows: list[list[str]]) -> list[list[str]]:
    return [list(row) for row in dict.fromkeys(map(tuple, rows))]


def _data(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Names and hashes of tasks anywhere in a config."""
    for field in ("tasks", "pairs", "held", "data"):
        if isinstance(config.get(field), Mapping):
            yield from ((name, digest) for name, digest in config[field].items() if isinstance(digest, str))
    if isinstance(config.get("task"), str) and isinstance(config.get("data"), str):
        yield config["task"], config["data"]
    for inner in config.values():
        if isinstance(inner, Mapping):
            yield from _data(inner)


def _weights(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Names and hashes of models: of their files, or of the model as it was in memory."""
    of = config.get("of")
    digest = of.get("model") if isinstance(of, Mapping) else config.get("weights")
    if isinstance(config.get("model"), str) and isinstance(digest, str):
        yield config["model"], digest
    for inner in config.values():
        if isinstance(inner, Mapping):
            yield from _weights(inner)


FOLDED = 12  # longer tables are collapsed
LONGEST = 100  # characters of a file name
GREEK = {"α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "σ": "sigma"}


def pages(
    recipe: Recipe, results: Results, folder: str | Path, command: str = "", tables_out: str | Path | None = None
) -> Path:
    """Write a recipe's page in HTML and markdown with figures as svg; return the path of the HTML.

    Only records are read: the page of finished runs can be written again at any time, on any machine.

    Args:
        recipe: whose page.
        results: the records to show.
        folder: receives ``<name>.html``, ``<name>.md`` and the figures in ``<name>/``.
        command: shown on the page as the command that writes it.
        tables_out: also write every table as csv and LaTeX to this folder.
    """
    records, folder = list(results), Path(folder)
    if not records:
        raise HeadwiseError(f"no records under {results.root}", "a folder in which the recipe was run")
    parts, models = recipe.parts(results), _models(records)
    if isinstance(recipe, PaperRecipe) and recipe.published:  # only papers have differences
        parts = [*parts, differences(recipe)]
    described = provenance(records)
    parts = [*parts, described] if described.tables else parts
    tables_of = [(file_name(table["title"], models), table) for part in parts for table in part.tables]
    _require_distinct(tables_of)
    _require_distinct([(file_name(name, models), {"title": name}) for part in parts for name in part.figures])
    tag_of = getattr(recipe, "tag_of", lambda title: "")
    sections = [_drawn(part, folder / recipe.name, models, tag_of) for part in parts]
    for name, each in tables_of if tables_out else ():
        write(Path(tables_out or "") / f"{name}.csv", tables.comma_separated(each))
        write(Path(tables_out or "") / f"{name}.tex", tables.latex(each))
    again = _reproduce(records)
    lines = [f"# {recipe.title}", "", recipe.paper, "", " · ".join(_link(each["title"]) for each in sections), ""]
    for section in sections:
        lines += [f"## {section['title']}", "", *(line for text in section["paragraphs"] for line in (text, ""))]
        lines += [line for each in section["tables"] for line in _markdown(each)]
        for i, (name, caption, path) in enumerate(section["figures"]):
            lines += [f"**{name}**", "", caption, "", f"![{name}]({recipe.name}/{path.name})", ""]
            section["figures"][i] = (name, caption, path.read_bytes())
    lines += ["## How to reproduce this page", "", *(["```sh", command, "```", ""] if command else []), again]
    write(folder / f"{recipe.name}.md", "\n".join(lines) + "\n")
    return write(folder / f"{recipe.name}.html", render_recipe(recipe.title, recipe.paper, sections, again, command))


def _models(records: Sequence[Any]) -> list[str]:
    """The models that records are of, longest name first."""
    configs = [record.config for record in records]
    names = {(c.get("training") or c).get("model") or c.get("model") for c in configs}
    return sorted((name for name in names if isinstance(name, str)), key=lambda name: (-len(name), name))


def _require_distinct(files: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """Raise an error if two tables, or two figures, would be written to one file."""
    taken: dict[str, str] = {}
    for file, titled in files:
        if file in taken:
            seen = f"{titled['title']!r} and {taken[file]!r} would be one file, {file}"
            raise HeadwiseError(seen, "titles that differ")
        taken[file] = titled["title"]


def _drawn(part: Part, folder: Path, models: Sequence[str], tag_of: Callable[[str], str]) -> dict[str, Any]:
    """A part with its figures drawn, and titles that end in the tags of what they show."""
    from headwise.reporting.figures import house_style, save

    def tagged(title: str, name: str) -> str:
        return f"{title} [{tag}]" if (tag := tag_of(name)) else title

    figures = []
    for name, draw in part.figures.items():
        with house_style():
            path = save(draw(), folder / f"{file_name(name, models)}.svg")
        figures.append((tagged(sentence(name), name), _caption(draw), path))
    paragraphs = [text.strip() for text in part.text.split("\n\n") if text.strip()]
    shown = [{**table, "title": tagged(table["title"], table["title"])} for table in part.tables]
    return {"title": part.title, "paragraphs": paragraphs, "tables": shown, "figures": figures}


def _caption(draw: Callable[[], Any]) -> str:
    return (getattr(draw, "func", draw).__doc__ or "").partition("\n")[0]


def _link(title: str) -> str:
    """To a section of the same page, by the name that markdown gives it."""
    name = re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
    return f"[{title}](#{name})"


def _markdown(table: Mapping[str, Any]) -> list[str]:
    beside = " Published numbers in brackets." if table.get("published") else ""
    note = f"{table.get('note', '')}{beside}".strip()
    shown, rows = tables.markdown(table), len(table["rows"])
    if rows > FOLDED:
        shown = f"<details><summary>{rows} rows</summary>\n\n{shown}\n</details>\n"
    return [f"**{table['title']}**", "", shown, *([note, ""] if note else [])]


def differences(recipe: PaperRecipe) -> Part:
    """Differences from the paper: settings of each size next to the published ones, and other departures."""
    sizes = {name: _settings(size) for name, size in recipe.sizes.items() if name != "smoke"}
    rows = [
        [name, _plain(value), *(_plain(settings.get(name)) for settings in sizes.values())]
        for name, value in recipe.published.items()
        if any(_plain(settings.get(name)) != _plain(value) for settings in sizes.values())
    ]
    tables = [table("Settings that differ", ["setting", "paper", *sizes], rows, _same(recipe, sizes))] if rows else []
    others = [[each.what, each.paper, each.here, each.row] for each in recipe.differences]
    tables += [table("Other differences", ["what", "paper", "here", "see"], others)] if others else []
    text = "Settings and procedures in which this recipe differs from the paper. No other difference is known."
    return Part("What differs from the paper", text, tables)


def _same(recipe: PaperRecipe, sizes: Mapping[str, Mapping[str, Any]]) -> str:
    same = [n for n, v in recipe.published.items() if all(_plain(s.get(n)) == _plain(v) for s in sizes.values())]
    return f"As published: {', '.join(same)}." if same else ""


def _settings(size: Any) -> dict[str, Any]:
    """A size's own fields and those of its plan."""
    own = {f.name: getattr(size, f.name) for f in fields(size)}
    plan = own.get("plan")
    return ({f.name: getattr(plan, f.name) for f in fields(plan)} if isinstance(plan, Plan) else {}) | own


def _plain(value: Any) -> str:
    if value is None or value == {} or value == ():
        return "–"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {each}" for name, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _reproduce(records: list[Any]) -> str:
    """The amount of work and the versions used; records may come from several machines."""
    each = [", ".join(f"{name} {v}" for name, v in r.about.get("versions", {}).items()) for r in records]
    versions = Counter(one or "versions unknown" for one in each)
    spent = sum(record.about.get("seconds", 0.0) for record in records)
    named = "; ".join(f"{number} by {each}" for each, number in versions.most_common())
    words = f"{len(records)} records, {spent / 60:.1f} minutes of computation in total: {named}."
    return f"{words} Each record holds its plan, the hashes of its data and weights, and its seed."


def file_name(title: str, models: Sequence[str] = ()) -> str:
    """The title as an ASCII file name, its model first; a long one is cut and ends in a hash of the whole title.

    Example:
        >>> file_name("Top heads per layer, MiniLM", ["MiniLM"])
        'minilm-top-heads-per-layer'
    """
    words = title
    for model in models:
        if (match := re.search(rf"(?<![\w-]){re.escape(model)}(?![\w-])", title)) is not None:
            words = f"{model} {title[: match.start()].rstrip(', ')} {title[match.end() :].lstrip(', ')}"
            break
    plain = "".join(GREEK.get(c, c) for c in unicodedata.normalize("NFKD", words.lower()))
    plain = "".join(c if c.isascii() and c.isalnum() else "-" for c in plain if not unicodedata.combining(c))
    name = re.sub("-+", "-", plain).strip("-")
    return name if 0 < len(name) <= LONGEST else f"{name[: LONGEST - 9]}-{digest(title, length=8)}".strip("-")
