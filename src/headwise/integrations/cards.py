"""Model cards and dataset cards, written from a model and its records (no torch).

A card lists tasks and their data, scores with intervals, pruned heads, the training plan and citations. Unknown fields
are omitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headwise.io.files import digest

PAPERS = {  # method of training to the paper it is from
    "iat": "Chong Li, Shaonan Wang, Yunhao Zhang, Jiajun Zhang, Chengqing Zong. *Interpreting and Exploiting "
    "Functional Specialization in Multi-Head Attention under Multi-task Learning.* EMNLP 2023.",
}
PIPELINES = {
    "Classify": "text-classification",
    "Regress": "text-classification",
    "Tag": "token-classification",
    "Spans": "token-classification",
    "Answer": "question-answering",
    "Picture": "image-classification",
}


def model_card(
    about: Mapping[str, Any],
    name: str,
    base: str = "",
    scores: Mapping[str, Any] | None = None,
    heads: Mapping[str, int] | None = None,
    plan: Mapping[str, Any] | None = None,
    opens: str = "headwise",
) -> str:
    """The README of a model.

    Args:
        about: the result of ``MultiTaskModel.describe()``.
        name: the repository.
        base: the checkpoint that training started from.
        scores: task to ``{"metric", "value", "low", "high", "n"}``.
        heads: ``{"all", "cut"}``.
        plan: fields of the training plan.
        opens: a line of Python that opens the model.

    Example:
        >>> print(model_card({"tasks": {}}, "me/model")[:3])
        ---
    """
    tasks, scores = about["tasks"], scores or {}
    lines = ["---", *_front_matter(tasks, base, scores, name), "---", "", f"# {name.rpartition('/')[2]}", ""]
    lines += [f"A multi-task Transformer for {_listed(tasks)}, written by headwise.", "", "```python", opens, "```"]
    rows = [_task_row(task, entry, scores.get(task)) for task, entry in tasks.items()]
    lines += ["", "## Tasks", "", *_table(("task", "kind", "language", "data", "score (95 % CI)", "n"), rows)]
    lines += _about_heads(heads) + _about_plan(plan)
    return "\n".join([*lines, *_citation(str((plan or {}).get("method", "")))]) + "\n"


def results_card(name: str, records: Iterable[Any]) -> str:
    """The README of a data set of results: works, number of records, and how to read them."""
    counts: dict[str, int] = {}
    for record in records:
        counts[record.work] = counts.get(record.work, 0) + 1
    lines = [
        "---",
        "tags:",
        "- headwise",
        "configs:",
        "- config_name: default",
        "  data_files: results.parquet",
        "---",
        "",
    ]
    lines += [f"# {name.rpartition('/')[2]}", "", f"{sum(counts.values())} records of headwise.", "", "```python"]
    lines += [
        "from headwise.io.records import Results",
        'Results("results.parquet").to_frame()',
        "```",
        "",
        "## Works",
        "",
    ]
    return "\n".join([*lines, *_table(("work", "records"), sorted(counts.items()))]) + "\n"


def without_places(about: Mapping[str, Any]) -> dict[str, Any]:
    """A description without local folders; names, columns and hashes remain."""
    tasks = {}
    for task, entry in about["tasks"].items():
        files = {key: value for key, value in (entry.get("files") or {}).items() if key != "root"}
        origin = f"{', '.join(files['sha256'])} (own file)" if files else entry["origin"]
        tasks[task] = {**entry, "origin": origin, **({"files": files} if files else {})}
    return {**about, "tasks": tasks}


def _front_matter(tasks: Mapping[str, Any], base: str, scores: Mapping[str, Any], name: str) -> list[str]:
    """The metadata for the Hub; values are quoted if YAML could misread them."""
    languages = sorted({entry["language"] for entry in tasks.values()})
    kinds = sorted({PIPELINES[e["kind"]["type"]] for e in tasks.values() if e["kind"]["type"] in PIPELINES})
    lines = ["library_name: headwise", "tags:", "- headwise", "- multi-task", "- attention-heads"]
    lines += (
        [f"base_model: {_quoted(base)}"] if base.count("/") <= 1 and base and not base.startswith((".", "/")) else []
    )
    lines += ["language:", *(f"- {_quoted(code)}" for code in languages)] if languages else []
    lines += [f"pipeline_tag: {kinds[0]}"] if len(kinds) == 1 else []
    if scores:
        lines += ["model-index:", f"- name: {_quoted(name.rpartition('/')[2])}", "  results:"]
    for task, score in scores.items():
        kind = PIPELINES.get(tasks[task]["kind"]["type"], "other")
        lines += ["  - task:", f"      type: {kind}", "    dataset:", f"      name: {_quoted(task)}"]
        lines += [f"      type: {_quoted(task)}", "    metrics:", f"    - type: {score['metric']}"]
        lines += [f"      value: {score['value']:.4f}"]
    return lines


def _task_row(task: str, entry: Mapping[str, Any], score: Mapping[str, Any] | None) -> tuple[str, ...]:
    shown, count = "", ""
    if score:
        interval = f" ({100 * score['low']:.1f} to {100 * score['high']:.1f})" if score.get("low") is not None else ""
        shown, count = f"{score['metric']} {100 * score['value']:.1f}{interval}", str(score.get("n", ""))
    hashes = [f"{name}, sha256 {value[:12]}" for name, value in (entry.get("files") or {}).get("sha256", {}).items()]
    return task, entry["kind"]["type"].lower(), entry["language"], "; ".join(hashes) or entry["origin"], shown, count


def _about_heads(heads: Mapping[str, int] | None) -> list[str]:
    if not heads:
        return []
    return ["", "## Heads", "", f"{heads['cut']} of {heads['all']} attention heads were cut."]


def _about_plan(plan: Mapping[str, Any] | None) -> list[str]:
    if not plan:
        return []
    rows = [(name, str(value)) for name, value in plan.items() if value is not None]
    note = f"Identity of the plan: `{digest(dict(plan))[:12]}`."
    return ["", "## Training", "", *_table(("setting", "value"), rows), "", note]


def _citation(method: str) -> list[str]:
    cited = [PAPERS[name] for name in PAPERS if method.startswith(name)]
    return ["", "## Citation", "", *cited] if cited else []


def _table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    return lines + [f"| {' | '.join(_cell(value) for value in row)} |" for row in rows]


def _cell(value: Any) -> str:
    return " ".join(str(value).split()).replace("|", "\\|").replace("<", "&lt;")


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ") + '"'


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:-1]) + f" and {names[-1]}" if len(names) > 1 else "".join(names)
