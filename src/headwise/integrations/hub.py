"""Models and results on the Hugging Face Hub: pushed with a card, opened by name.

Only plain data is exchanged: safetensors and JSON, no local paths, no code.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from headwise.errors import HeadwiseError, first_line
from headwise.heads.gates import Heads
from headwise.io.files import digest, read_json, write, write_json
from headwise.io.records import Results
from headwise.models.loading import ABOUT, at_root, trained_folder
from headwise.models.multitask import MultiTaskModel

NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")


def push_to_hub(
    model: MultiTaskModel,
    repo: str,
    *,
    scores: Mapping[str, Any] | None = None,
    plan: Any = None,
    base: str = "",
    private: bool = False,
    token: str | None = None,
    endpoint: str | None = None,
) -> str:
    """Write a model and its card to a repository on the Hub; returns the address of the commit.

    Args:
        model: a model with output heads.
        repo: ``user/name``; created if it does not exist.
        scores: results of `headwise.evaluate` by task, for the card.
        plan: the training plan, for the card.
        base: the checkpoint that training started from, for the card.
        private: whether a new repository is private.
        token: of the Hub (default: the one of ``hf auth login``).
        endpoint: another Hub (default: ``HF_ENDPOINT``).

    Example:
        >>> push_to_hub(model, "me/reviews", scores={"reviews": evaluate(model, "reviews")})
        'https://huggingface.co/me/reviews/commit/...'
    """
    _require_name(repo)
    with tempfile.TemporaryDirectory() as scratch:
        folder = model.save_pretrained(Path(scratch) / "model")
        at_root(folder)
        about = without_places(read_json(folder / ABOUT))
        write_json(folder / ABOUT, about)
        opens = f'headwise.MultiTaskModel.from_pretrained("{repo}")'
        heads = Heads.of(model.encoder).alive
        counted = {"all": heads.numel(), "cut": int((~heads).sum())}
        settings: Any = asdict(plan) if is_dataclass(plan) and not isinstance(plan, type) else plan
        card = model_card(about, repo, base, _scores(scores), counted, settings, opens)
        write(folder / "README.md", card)
        return _upload(folder, repo, "model", private, token, endpoint)


def push_results(
    results: Results, repo: str, *, private: bool = False, token: str | None = None, endpoint: str | None = None
) -> str:
    """Write records to a data set on the Hub as one parquet file with a card; returns the address of the commit."""
    _require_name(repo)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "results"
        folder.mkdir()
        results.pack(folder / "results.parquet")
        write(folder / "README.md", results_card(repo, results))
        return _upload(folder, repo, "dataset", private, token, endpoint)


def from_pretrained(
    repo: str, *, revision: str | None = None, token: str | None = None, endpoint: str | None = None
) -> MultiTaskModel:
    """Open a model that headwise pushed to the Hub, ready to predict; `add_data` adds rows.

    Example:
        >>> from_pretrained("me/reviews").predict("reviews", ["what a film"])[0].label
        'good'
    """
    _require_name(repo)
    return MultiTaskModel.load(trained_folder(repo, revision, token, endpoint))


def _upload(folder: Path, repo: str, kind: str, private: bool, token: str | None, endpoint: str | None) -> str:
    from huggingface_hub import HfApi

    api = HfApi(endpoint=endpoint, token=token)
    try:
        api.create_repo(repo, repo_type=kind, private=private or None, exist_ok=True)
        done = api.upload_folder(
            repo_id=repo, repo_type=kind, folder_path=folder, commit_message="Write with headwise", delete_patterns="*"
        )
    except Exception as error:  # huggingface_hub has many errors; a user needs one line
        hint = "hf auth login, or token=..."
        raise HeadwiseError(
            f"cannot write {repo!r} to the Hub: {first_line(error)}", "a token with write access", hint
        ) from error
    return str(done.commit_url)


def _require_name(repo: str) -> None:
    if not NAME.fullmatch(repo):
        raise HeadwiseError(f"a repository named {repo!r}", "user/name", "me/reviews")


def _scores(scores: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    rows = {}
    for task, score in (scores or {}).items():
        low, high = score.interval()
        rows[task] = {"metric": score.metric, "value": score.value, "low": low, "high": high, "n": score.examples}
    return rows


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
