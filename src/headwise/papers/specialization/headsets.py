"""Do a task's own heads matter more than other sets of as many heads? Tests over random head sets (no torch)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headwise.measuring.stats import adjust
from headwise.papers.specialization.records import Lesioned, Records, label
from headwise.papers.summary import table

LEVEL = 0.05


def head_set_table(records: Records) -> dict[str, Any] | None:
    """Each task's D with its tests over random sets of as many heads, and over sets with as many of each layer."""
    found = {model: records.head_sets(model) for model in records.models()}
    rows = [row for model, lesioned in found.items() if lesioned for row in _rows(model, lesioned)]
    if not rows:
        return None
    drawn = sorted({str(one.result["dissociation"]["random"]) for lesioned in found.values() for one in lesioned})
    note = (
        f"In percent, α = 0.3, by the tasks' own metrics; {', '.join(drawn)} random sets. P, one-sided: how often "
        "random sets of as many heads, dealt to the tasks, give such a D; by layer: sets with as many heads of each "
        "layer, so whether more than the layer matters. Medians over trainings; below: in how many p is under "
        f"{LEVEL}, for tasks after Holm. These are trainings of their own, with the seeds of the other tables."
    )
    columns = ["model", "task", "D", "p", "below", "p by layer", "below by layer", "trainings"]
    return table("D against random head sets", columns, rows, note)


def _rows(model: str, lesioned: list[Lesioned]) -> list[list[Any]]:
    """A row for each task, and one for the mean of all, which is one test a training."""
    entries, tasks = [one.entry() for one in lesioned], lesioned[0].trained.tasks
    tests = [np.array([_cells(entry, tasks, name) for entry in entries]) for name in ("p", "p_layers")]
    holm = [np.array([adjust(p) for p in test]) for test in tests]
    d = np.array([_cells(entry, tasks, "value") for entry in entries])
    rows = []
    for i, task in enumerate(tasks):
        counts = [
            (float(np.median(test[:, i])), int((corrected[:, i] < LEVEL).sum())) for test, corrected in zip(tests, holm)
        ]
        rows.append([model, label(task), 100 * float(d[:, i].mean()), *counts[0], *counts[1], len(lesioned)])
    means = [np.array([_number(entry["mean"][name]) for entry in entries]) for name in ("value", "p", "p_layers")]
    counts = [(float(np.median(p)), int((p < LEVEL).sum())) for p in means[1:]]
    return [*rows, [model, "mean", 100 * float(means[0].mean()), *counts[0], *counts[1], len(lesioned)]]


def _cells(entry: Mapping[str, Any], tasks: Sequence[str], name: str) -> list[float]:
    return [_number(entry["tasks"][task][name]) for task in tasks]


def _number(value: float | None) -> float:
    return np.nan if value is None else value
