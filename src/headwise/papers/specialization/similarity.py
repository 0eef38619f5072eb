"""Similarity of tasks by several measures against the dissociation of their heads (Figures 3 and 5 to 7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headwise.dissociation.similarity import Similarity, ahp, head_overlap, rank_correlation
from headwise.errors import HeadwiseError
from headwise.papers.specialization.records import Records
from headwise.papers.specialization.tables import Table, in_order, pairwise_d
from headwise.papers.summary import table


def similarities(records: Records, model: str) -> dict[str, Similarity]:
    """Every measure's matrix, averaged over seeds."""
    five, seen = records.five(model), {}
    for record in records.of("likeness"):
        if record.config["model"] == model:
            for by in ("dse", "cra"):
                one = record.result[by]
                seen.setdefault(by, []).append(Similarity(by, tuple(one["tasks"]), np.array(one["matrix"], float)))
    for one in five:
        tasks = one.trained.tasks
        seen.setdefault("overlap", []).append(head_overlap({t: one.top(t) for t in tasks}))
        seen.setdefault("rank", []).append(rank_correlation({t: one.scores(t) for t in tasks}))
    seen["ahp"] = _ahp(records, model)
    return {by: _averaged(by, ones) for by, ones in seen.items() if ones}


def _averaged(by: str, ones: Sequence[Similarity]) -> Similarity:
    tasks = tuple(in_order(ones[0].tasks))
    each = [s.matrix[np.ix_(*[[s.tasks.index(t) for t in tasks]] * 2)] for s in ones]
    return Similarity(by, tasks, np.mean(each, 0))


def _ahp(records: Records, model: str) -> list[Similarity]:
    """One for each seed whose transfers onto every task are there."""
    onto: dict[int, dict[str, Any]] = {}
    for record in records.of("onto"):
        if record.config["model"] == model:
            onto.setdefault(record.config["seed"], {})[record.result["target"]] = record
    made = []
    for by_target in onto.values():
        tasks = in_order(list(by_target))
        if len(tasks) < 3 or any(set(r.result["sources"]) != set(tasks) - {t} for t, r in by_target.items()):
            continue
        rows = {}
        for task in tasks:
            right, sources = by_target[task].arrays["right"], by_target[task].result["sources"]
            empty = np.full(right.shape[1], np.nan)
            rows[task] = [right[sources.index(s)] if s in sources else empty for s in tasks]
        made.append(ahp(rows))
    return made


def similarity_table(records: Records, model: str) -> Table | None:
    """Figures 3 and 5 to 7: does D fall where tasks are alike?"""
    five = records.five(model)
    if not five:
        return None
    scores = [pairwise_d(five, on) for on in ("accuracy", "")]
    measures = similarities(records, model).items()
    rows = [[by, *(value for d in scores for value in _fit(alike, d))] for by, alike in measures]
    note = (
        "Pearson correlation of similarity with D over pairs of tasks: with D on accuracy, which is defined for all "
        "tasks, and with D by each task's own metric (F1 for QQP); p by permuting tasks, as pairs that share a task "
        "are not independent. CNM needs brain data of your own: headwise.dissociation.similarity.cnm."
    )
    columns = ["measure", "r (accuracy)", "p (accuracy)", "r (own metric)", "p (own metric)"]
    return table(f"Similarity of tasks against D, {model}", columns, rows, note)


def _fit(alike: Similarity, d: Mapping[tuple[str, str], float]) -> tuple[float | None, float | None]:
    """Correlation with D and its p; None if a pair has no D."""
    try:
        one = alike.against(d)
    except HeadwiseError:
        return None, None
    return one.fit.r, one.p_mantel
