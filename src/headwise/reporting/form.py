"""The form of a study: what the page, the tables and the figures take, checked and made plain.

A study is one dict of plain values. Matrices are lists of layers, each a list of heads; a head that is already cut is
NaN or None. Shares, relative performances and D are fractions (0.1 is ten percent); performances are in the unit of the
metric. An interval ``low``/``high`` in ``iat`` is that of the difference ``iat - plain`` and ``p`` the difference's
two-sided p-value, both of one task alone; ``trust.random_band`` is the relative performance under random lesions,
``trust.stability`` and ``trust.seeds`` are overlaps of head sets. ``dissociation`` is what `Dissociation.to_record`
gives: its ``null`` says what p is over, and without one the page calls nothing significant. ``scores`` are the intact
scores with their baselines, ``withheld`` the tasks of which nothing is claimed, with the reason, and ``failed`` the
stages that failed, with their messages. ``similarity`` is what `Against.to_record` of
``headwise.dissociation.similarity`` gives; of its p-values the page shows ``p_mantel``, that by exchanged tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from headwise.errors import HeadwiseError, unknown
from headwise.io.files import finite

REQUIRED = ("model", "tasks", "importance")
PARTS = (
    *("title", "created", *REQUIRED, "dissociation", "probes", "gates", "attention", "examples", "compare"),
    *("training", "iat", "prune", "similarity", "tables", "trust", "verdict", "reproduce"),
    *("scores", "withheld", "failed"),
)


def checked(study: Mapping) -> dict[str, Any]:
    """The study as plain data with None for NaN; raises where a part is unknown, missing or of another shape."""
    for part in REQUIRED:
        if part not in study:
            raise HeadwiseError(f"a study without {part!r}", "at least " + ", ".join(REQUIRED))
    for part in study:
        if part not in PARTS:
            raise unknown("part of a study", part, PARTS)
    data = finite({part: value for part, value in study.items() if value is not None})
    _check_names(data)
    for where, matrix in _matrices(data):
        _check_shape(where, matrix, data["model"]["layers"], data["model"]["heads"])
    if data.get("dissociation"):
        _check_dissociation(data)
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


def _check_dissociation(data: dict[str, Any]) -> None:
    part = data["dissociation"]
    part.setdefault("tasks", [task["name"] for task in data["tasks"]])
    part.setdefault("default", part["fractions"][0])
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
    found: dict[str, list[int]] = {}
    for position, lesion in enumerate(part["lesions"]):
        random = lesion.startswith("random ") and lesion not in part["tasks"]
        found.setdefault("random" if random else lesion, []).append(position)
    return found


def relative(part: dict[str, Any], fraction: int, field: str = "performance") -> list[list[float | None]]:
    """Relative performance RP_i(H_j) = P_i(H_j) / P_i(none) of each task under each lesion (Li et al. 2023, Eq. 5).

    None where the intact model is not above 0: a share of nothing, or of less, says nothing.
    """
    intact = part["lesions"].index("none")
    bases = [row[intact] for row in part["performance"][fraction]]
    return [
        [value / base if value is not None and (base or 0) > 0 else None for value in row]
        for base, row in zip(bases, part[field][fraction])
    ]
