"""Choose settings on a slice of the training rows by successive halving (Jamieson and Talwalkar 2016)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from headwise.errors import HeadwiseError
from headwise.experiments.jobs import Place, grid
from headwise.experiments.works import RUNGS, method_of, opened, scored, short
from headwise.io.files import digest, plain, read_json, write_json
from headwise.tasks.task import Rows, Task
from headwise.training.loop import fit
from headwise.training.plan import Plan

SLICE = 0.1  # of the training rows, which judge instead of training
ROWS = 1000  # of a slice, at most


def held_out(task: Task, fraction: float = SLICE, seed: int = 0) -> Task:
    """The task with a random slice of its training rows as development rows; its own development rows are not read.

    Example:
        >>> task = held_out(known("sst2"))
        >>> len(task.rows("dev"))
        1000
    """
    rows = task.rows("train")
    count = min(round(fraction * len(rows)), ROWS)
    if not 0 < count < len(rows):
        raise HeadwiseError(f"{fraction:g} of {len(rows)} training rows of {task.name}", "some rows, but not all")
    order = np.random.default_rng([seed, 11]).permutation(len(rows))
    parts = Rows(train=[rows[i] for i in order[count:]], dev=[rows[i] for i in order[:count]])
    return replace(task, source=parts, sizes={})


def rungs_of(number: int, rungs: Sequence[float] = RUNGS) -> list[int]:
    """How many candidates each rung trains, so that rungs cost about the same; the best of the last is chosen.

    Example:
        >>> rungs_of(24)
        [24, 8, 3]
    """
    return [max(1, math.ceil(number * rungs[0] / rung)) if i else number for i, rung in enumerate(rungs)]


def tune(place: Place) -> dict[str, Any]:
    """Train all candidates on a part of the rows, the better ones on more, and name the best on all.

    The config is that of a training with ``axes``: values by field, as in a sweep. Every training of a rung starts from
    the same weights and seed, and is judged on held-out training rows by the mean score over tasks.
    """
    c = place.config
    base = {name: c[name] for name in ("plan", "pooling", "method")}
    alive = grid(base, c["axes"])
    steps, history = 0, []
    for rung, count in zip(c["rungs"], rungs_of(len(alive), c["rungs"])):
        tried = []
        for candidate in alive[:count]:
            scores, took = judged(place, candidate, rung)
            steps += took
            tried.append(
                {**changes(candidate, c["axes"]), "scores": scores, "mean": float(np.mean([*scores.values()]))}
            )
            place.log(f"{rung:g} of the rows, {len(tried)} of {count}: {tried[-1]['mean']:.4f}")
        order = sorted(range(len(tried)), key=lambda i: -tried[i]["mean"])
        alive = [alive[i] for i in order]
        history.append({"fraction": rung, "candidates": [tried[i] for i in order]})
    return short({"chosen": plain(alive[0]), "changes": changes(alive[0], c["axes"]), "rungs": history, "steps": steps})


def changes(candidate: Mapping[str, Any], axes: Mapping[str, Any]) -> dict[str, Any]:
    """A candidate's own values, by axis."""
    values = {}
    for axis in axes:
        value: Any = candidate
        for name in axis.split("."):
            value = value[name]
        values[axis] = value
    return values


def judged(place: Place, candidate: Mapping[str, Any], rung: float) -> tuple[dict[str, float], int]:
    """The held-out scores of one candidate and its steps; kept in the job's folder, so that a stopped job resumes."""
    path = place.folder / "tried" / f"{digest([plain(dict(candidate)), rung])[:16]}.json"
    if not path.exists():
        scores, steps = _trained(place, candidate, rung)
        write_json(path, {"scores": scores, "steps": steps})
    record = read_json(path)
    return record["scores"], record["steps"]


def _trained(place: Place, candidate: Mapping[str, Any], rung: float) -> tuple[dict[str, float], int]:
    c = place.config
    made = opened(place, {**c, **candidate})
    made.tasks.update({name: held_out(task, seed=c["seed"]) for name, task in made.tasks.items()})
    plan = Plan(**candidate["plan"])
    largest = max(len(task.rows("train")) for task in made.tasks.values())
    rows = math.ceil(rung * min(plan.max_examples or largest, largest))
    history = fit(made, plan.with_(max_examples=rows), method_of(candidate["method"]), device=place.device)
    return {name: scored(made, name)["value"] for name in made.tasks}, history.steps
