"""The schema of study.json: what a study stores, and what the verdict, the page, the tables and the figures read.

All values are plain. Head matrices are lists of layers, each a list of heads; a head that was pruned is None (NaN is
accepted and becomes None). Fractions, relative performances and D are fractions of 1; performances are in the unit of
the metric. Every part but ``model``, ``tasks`` and ``importance`` is optional: the report shows what is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NotRequired, TypedDict, get_type_hints

from headwise.errors import HeadwiseError, unknown
from headwise.io.files import finite, read_json

VERSION = 2
HeadMatrix = list[list[float | None]]  # (layers, heads)


class ModelInfo(TypedDict):
    name: str
    layers: int
    heads: int
    family: NotRequired[str]
    kv_heads: NotRequired[int]
    stacks: NotRequired[dict[str, list[int]]]  # of an encoder with a decoder: the layers of each
    head_dim: NotRequired[int]
    parameters: NotRequired[int]
    verified: NotRequired[bool]  # False: heads were found by name, because no forward could be run


class TaskInfo(TypedDict):
    name: str
    kind: NotRequired[str]
    metric: NotRequired[str]
    language: NotRequired[str]
    train: NotRequired[int | None]  # rows used
    dev: NotRequired[int | None]
    origin: NotRequired[str]


class HeadScores(TypedDict):
    """One task's importance."""

    scores: HeadMatrix
    stderr: NotRequired[HeadMatrix]
    signed: NotRequired[HeadMatrix]  # the loss that closing a head adds: below 0 it harms the task
    signed_stderr: NotRequired[HeadMatrix]
    top_probability: NotRequired[HeadMatrix | None]  # of being among the top α heads, over samples of the examples
    by: NotRequired[str]
    examples: NotRequired[int]


class IntactScore(TypedDict):
    """One task's score with all heads, beside the best constant answer."""

    metric: str
    value: float
    low: float
    high: float
    n: int
    baseline: float
    learned: bool
    answers: NotRequired[dict[str, list[int]]]  # by class: how often it was answered, and how often it was right to


class Dissociation(TypedDict):
    """The output of `Dissociation.to_record`; without a ``null`` no pair is called significant."""

    fractions: list[float]
    lesions: list[str]  # "none", one per task, "random 1", …
    performance: list[list[list[float | None]]]  # (fractions, tasks, lesions)
    tasks: NotRequired[list[str]]
    default: NotRequired[float]  # the fraction that the verdict and the page start from
    D: NotRequired[list[dict[str, Any]]]  # an entry per fraction: tasks, mean, pairs
    on: NotRequired[dict[str, list[dict[str, Any]]]]  # D on other scores
    cells: NotRequired[list[dict[str, Any]]]
    null: NotRequired[str | None]  # what p is over
    n: NotRequired[dict[str, int | None]]
    withheld: NotRequired[dict[str, str]]


class IATRow(TypedDict):
    """One task; ``low``, ``high`` and ``p`` are those of the difference iat - plain."""

    task: str
    metric: str
    plain: float
    iat: float
    low: NotRequired[float | None]
    high: NotRequired[float | None]
    p: NotRequired[float | None]


class IAT(TypedDict):
    rows: list[IATRow]
    settings: NotRequired[str]


Pruning = TypedDict(
    "Pruning", {"rows": list[dict[str, Any]], "chosen": NotRequired[float | None], "held out": NotRequired[dict]}
)


class Trust(TypedDict, total=False):
    """What supports or weakens the findings."""

    stability: dict[str, dict[str, Any]]  # of head sets, over halves of the examples
    seeds: dict[str, float]  # overlap of head sets over seeds
    random_band: dict[str, list[float]]  # relative performance under random lesions: lowest, highest
    collapsed: list[str]
    leakage: list[str]
    shared: list[str]
    unused: list[str]
    worst_overlap: dict[str, dict[str, Any]]


class StudyData(TypedDict):
    """One study."""

    model: ModelInfo
    tasks: list[TaskInfo]
    importance: dict[str, HeadScores]
    version: NotRequired[int]
    title: NotRequired[str]
    created: NotRequired[str]
    scores: NotRequired[dict[str, IntactScore]]
    training: NotRequired[dict[str, Any]]
    dissociation: NotRequired[Dissociation]
    curves: NotRequired[dict[str, dict[str, Any]]]  # of a single task: its lesion curve, by what ablated heads return
    attention: NotRequired[dict[str, dict[str, float]]]  # "layer.head": where it attends
    examples: NotRequired[list[dict[str, Any]]]  # tokens and whole attention maps
    probes: NotRequired[dict[str, dict[str, Any]]]
    gates: NotRequired[dict[str, HeadMatrix]]
    roles: NotRequired[
        dict[str, Any]
    ]  # `headwise.atlas.result.Roles.held`: what roles are about, roles by "layer.head"
    compare: NotRequired[dict[str, Any]]  # importance of a second checkpoint
    iat: NotRequired[IAT]
    prune: NotRequired[Pruning]
    similarity: NotRequired[dict[str, Any]]  # D against task similarity
    tables: NotRequired[list[dict[str, Any]]]
    trust: NotRequired[Trust]
    withheld: NotRequired[dict[str, str]]  # tasks without claims, with the reason
    failed: NotRequired[dict[str, str]]  # stages that failed, with their messages
    verdict: NotRequired[list[str]]
    reproduce: NotRequired[dict[str, Any]]


REQUIRED = ("model", "tasks", "importance")
PARTS = tuple(get_type_hints(StudyData))


def migrated(study: Mapping[str, Any]) -> dict[str, Any]:
    """The study in the present version of the schema.

    Version 1, that of studies without a version, kept agreement of halves in ``trust.split_half`` and might leave out
    the tasks and the default fraction of a dissociation.
    """
    version = study.get("version", 1)
    if not isinstance(version, int) or version > VERSION:
        raise HeadwiseError(f"a study of version {version!r}", f"version {VERSION} or older", "a newer headwise")
    data = {part: value for part, value in study.items() if value is not None}
    if version == 1:
        _from_first(data)
    return data | {"version": VERSION}


def _from_first(data: dict[str, Any]) -> None:
    if isinstance(part := data.get("dissociation"), Mapping) and part:
        names = [task["name"] for task in data["tasks"]]
        data["dissociation"] = {"tasks": names, "default": part["fractions"][0], **part}
    if isinstance(trust := data.get("trust"), Mapping) and "split_half" in trust:
        rest = {name: value for name, value in trust.items() if name != "split_half"}
        halves = {task: {"split_half": value} for task, value in trust["split_half"].items()}
        data["trust"] = rest | {"stability": {**halves, **trust.get("stability", {})}}


def read_study(path: str | Path) -> dict[str, Any]:
    """The study in a folder that ``headwise study`` or ``demo`` wrote, or in its ``study.json``."""
    path = Path(path)
    file = path / "study.json" if path.is_dir() else path
    if not file.is_file():
        raise HeadwiseError(f"no study at {path}", "a folder of headwise study or demo", "headwise demo")
    study = read_json(file)
    if not isinstance(study, dict):
        raise HeadwiseError(f"{file} holds a {type(study).__name__}", "a study, one JSON object")
    return study


def checked(study: Mapping) -> dict[str, Any]:
    """The study in the present version, as plain data with None for NaN; raises where it does not fit the schema."""
    for part in REQUIRED:
        if part not in study:
            raise HeadwiseError(f"a study without {part!r}", "at least " + ", ".join(REQUIRED))
    for part in study:
        if part not in PARTS:
            raise unknown("part of a study", part, PARTS)
    data = finite(migrated(study))
    _check_names(data)
    for where, matrix in _matrices(data):
        _check_shape(where, matrix, data["model"]["layers"], data["model"]["heads"])
    if data.get("dissociation"):
        _check_dissociation(data["dissociation"])
    return data


def _check_names(data: dict[str, Any]) -> None:
    names = [task["name"] for task in data["tasks"]]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise HeadwiseError(f"two tasks are named {twice[0]!r}", "a name of its own for each task")
    for name in data["importance"]:
        if name not in names:
            raise unknown("task in importance", name, names)
    if not data["importance"] and not data.get("probes"):
        raise HeadwiseError("a study without importance scores or probes", "those of at least one task")


def _matrices(data: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every (layers, heads) matrix of a study with its place."""
    for task, entry in data["importance"].items():
        yield f"importance of {task!r}", entry["scores"]
        if entry.get("stderr") is not None:
            yield f"standard errors of {task!r}", entry["stderr"]
        if entry.get("top_probability") is not None:
            yield f"top probabilities of {task!r}", entry["top_probability"]
    for name, entry in (data.get("probes") or {}).items():
        yield f"probe {name!r}", entry["accuracy"]
    for task, matrix in (data.get("gates") or {}).items():
        yield f"gates of {task!r}", matrix
    for task, matrix in (data.get("compare") or {}).get("importance", {}).items():
        yield f"compared importance of {task!r}", matrix


def _check_shape(where: str, matrix: list, *shape: int) -> None:
    seen = _shape(matrix)
    if seen != shape:
        raise HeadwiseError(f"{where} of shape {seen}", f"{shape} as the model says")


def _shape(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        return ()
    inner = {_shape(part) for part in value}
    if len(inner) > 1:
        raise HeadwiseError(f"rows of unequal shape {sorted(inner)}", "a full matrix")
    return (len(value), *(inner.pop() if inner else ()))


def _check_dissociation(part: dict[str, Any]) -> None:
    shape = (len(part["fractions"]), len(part["tasks"]), len(part["lesions"]))
    for name in ("performance", "low", "high", "collapsed"):
        if part.get(name) is not None:
            _check_shape(f"dissociation {name!r}", part[name], *shape)
    if "none" not in part["lesions"]:
        raise HeadwiseError(f"lesions {part['lesions']}", "'none' among them, the intact model")


def nearest(fractions: list[float], wanted: float) -> int:
    """The position of the stored fraction nearest to the wanted one, the smaller of two equally near."""
    return min(range(len(fractions)), key=lambda i: (abs(fractions[i] - wanted), i))


def lesion_columns(part: dict[str, Any]) -> dict[str, list[int]]:
    """The lesions by name with their positions; random lesions are one column."""
    columns: dict[str, list[int]] = {}
    for position, lesion in enumerate(part["lesions"]):
        random = lesion.startswith("random ") and lesion not in part["tasks"]
        columns.setdefault("random" if random else lesion, []).append(position)
    return columns


def relative(part: dict[str, Any], fraction: int, field: str = "performance") -> list[list[float | None]]:
    """Relative performance RP_i(H_j) = P_i(H_j) / P_i(none) of each task under each lesion (Li et al. 2023, Eq. 5).

    None where the intact model is not above 0: a fraction of zero or less is meaningless.
    """
    intact = part["lesions"].index("none")
    bases = [row[intact] for row in part["performance"][fraction]]
    return [
        [value / base if value is not None and (base or 0) > 0 else None for value in row]
        for base, row in zip(bases, part[field][fraction])
    ]
