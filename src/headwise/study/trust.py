"""What speaks for and against a study's findings: stable head sets, random lesions, collapse, leakage, ties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headwise.scoring.importance import Importance
from headwise.scoring.stability import Blocks, stability, top_probability
from headwise.study.verdict import tied
from headwise.tasks.leakage import leakage
from headwise.tasks.task import Task


def trust_of(study: Mapping[str, Any], tasks: Sequence[Task]) -> dict[str, Any]:
    """What a reader should know before believing the rest, beside how stable head sets are."""
    found, part = leakage(list(tasks)).to_trust(), study.get("dissociation")
    return found | _lesions(part, [task.name for task in tasks]) if part else found


def stability_of(found: Importance, alpha: float) -> dict[str, Any]:
    """How stable a task's head set is over examples, as a study keeps it."""
    known = stability(found.blocks, alpha, found.examples)
    record = {"split_half": known.split_half, "expected": known.expected, "needed": known.needed}
    return record | {"enough": known.enough, "used": found.examples}


def chances_of(blocks: Blocks, alpha: float) -> list[list[float]] | None:
    """Each head's probability to be among the top heads, over samples of the examples."""
    found = top_probability(blocks, alpha)
    return None if found is None else found.round(3).tolist()


def withheld_of(study: Mapping[str, Any], alpha: float) -> dict[str, str]:
    """Tasks of which nothing is claimed although they may be learned, and why."""
    reasons = dict((study.get("dissociation") or {}).get("withheld") or {})
    for task, entry in study.get("importance", {}).items():
        if tied(entry["scores"], alpha):
            reasons[task] = "importance scores tie at the cut, so its top heads are undefined"
    return reasons


def _lesions(part: Mapping[str, Any], tasks: Sequence[str]) -> dict[str, Any]:
    """What random lesions leave of each task, and where predictions fall into one class."""
    at, first = part["fractions"].index(part["default"]), 1 + len(tasks)
    closed = ["as it is", *(f"when the heads of {task} are ablated" for task in tasks)]
    closed += ["when random heads are ablated"] * (len(part["lesions"]) - first)
    bands, fallen = {}, []
    for task, row, marks in zip(tasks, part["performance"][at], part["collapsed"][at]):
        if row[first:] and row[0] > 0:
            bands[task] = [min(row[first:]) / row[0], max(row[first:]) / row[0]]
        fallen += [f"{task} {how}" for how, mark in zip(closed, marks) if mark]
    found = {"collapsed": list(dict.fromkeys(fallen))}  # several random lesions are one line
    return found | ({"random_band": bands} if bands else {})
