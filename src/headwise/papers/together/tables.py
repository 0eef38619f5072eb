"""Tables and figures: what tasks gain from each other, and how well that was predicted."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from headwise.io.records import Record, Results
from headwise.measuring.stats import adjust
from headwise.papers.summary import mean_sd, table
from headwise.papers.together.prediction import (
    BASELINES,
    OURS,
    Model,
    ceiling,
    correlated,
    held_out,
    predicted,
    signals_of,
)
from headwise.reporting.figures import INK, RAMP, house_style


@dataclass
class Trained:
    """What was run with one model: scores by seed and set of tasks, and signals by seed."""

    scores: dict[tuple[int, frozenset[str]], dict[str, float]]
    signals: dict[int, Record]


class Records:
    """All records of a folder that are this recipe's, read once."""

    def __init__(self, results: Results):
        self.by_model: dict[str, Trained] = {}
        for record in results:
            if record.work.startswith("together."):
                c = record.config
                own, seed = self.by_model.setdefault(c["model"], Trained({}, {})), c["plan"]["seed"]
                if record.work == "together.signals":
                    own.signals[seed] = record
                else:
                    values = {task: score["value"] for task, score in record.result["scores"].items()}
                    own.scores[seed, frozenset(values)] = values

    @cached_property
    def models(self) -> list[Model]:
        """Models with at least a third of the pairs: missing gains are NaN, and no test counts them."""
        return [made for name in self.by_model if (made := self._model(name))]

    def gains(self, name: str) -> tuple[tuple[str, ...], dict[int, np.ndarray]]:
        """The tasks, and for each seed the gains (T, T) in points; NaN where a training is missing."""
        own = self.by_model[name]
        if not own.signals:
            return (), {}
        tasks = tuple(next(iter(own.signals.values())).result["tasks"])
        seeds = sorted({seed for seed, _ in own.scores})
        return tasks, {seed: self._gain(own, tasks, seed) for seed in seeds}

    @staticmethod
    def _gain(own: Trained, tasks: tuple[str, ...], seed: int) -> np.ndarray:
        gain = np.full((len(tasks), len(tasks)), np.nan)
        for i, task in enumerate(tasks):
            alone = own.scores.get((seed, frozenset([task])))
            for j, other in enumerate(tasks):
                both = own.scores.get((seed, frozenset([task, other])))
                if i != j and alone and both:
                    gain[i, j] = 100 * (both[task] - alone[task])
        return gain

    def _model(self, name: str) -> Model | None:
        tasks, gains = self.gains(name)
        apart = ~np.eye(len(tasks), dtype=bool)
        every = np.stack([*gains.values(), np.full(apart.shape, np.nan)])[:-1]
        there = (~np.isnan(every)).sum(0)
        if len(tasks) < 3 or (there[apart] > 0).mean() < LEAST:
            return None
        signals = [signals_of(r.arrays, r.result) for r in self.by_model[name].signals.values()]
        mean = {key: np.mean([each[key] for each in signals], 0) for key in signals[0]}
        middle = np.divide(np.nansum(every, 0), there, out=np.full(apart.shape, np.nan), where=there > 0)
        square = np.nansum(np.square(every - middle), 0)
        noise = np.sqrt(np.divide(square, there - 1, out=np.full(apart.shape, np.nan), where=there > 1))
        return Model(name, tasks, middle, noise, mean)


Table = dict[str, Any]
LEAST = 1 / 3  # of the pairs
SETS = {"head maps (ours)": OURS, "baselines": BASELINES, "both": (*OURS, *BASELINES)}
LEAVES = {"model": "unseen models", "task": "unseen tasks"}


def gains_table(records: Records, model: Model) -> Table:
    """Every task's gain from every other, the mean over seeds."""
    rows = []
    for i, task in enumerate(model.tasks):
        rows.append([task, *model.gain[i], mean_sd(model.gain[i])[0]])
    columns = ["task", *(f"with {task}" for task in model.tasks), "mean"]
    _, gains = records.gains(model.name)
    seeds = np.stack([gain[tuple(model.apart)] for gain in gains.values() if not np.isnan(gain).all()])
    common = seeds[:, ~np.isnan(seeds).any(0)]
    note = (
        "Points that the row's task gains on development data when trained with the column's task, with the same "
        f"number of its own updates; {measured(model)}, {len(seeds)} seed{'s' * (len(seeds) > 1)}"
    )
    if len(seeds) > 1 and common.shape[1] > 2:
        spread = np.nanmean(model.noise[tuple(model.apart)])
        note += (
            f"; over the {common.shape[1]} gains that all seeds have, their sd over seeds is {spread:.1f} points; "
            f"split-half reliability for all seeds (Spearman-Brown): {ceiling(common):.2f}"
        )
    return table(f"What tasks gain from each other: {model.name}", columns, rows, f"{note}.")


def measured(model: Model) -> str:
    """How many pairs of tasks were trained together."""
    number = len(model.tasks)
    return f"{model.apart.shape[1] // 2} of {number * (number - 1) // 2} pairs of tasks"


def signals_table(records: Records) -> Table | None:
    """Each signal alone against the gains, in each model."""
    rows = []
    for name in (*OURS, *BASELINES):
        pairs = [correlated(model, name) for model in records.models]
        rows.append([name, "ours" if name in OURS else "baseline", *(x for pair in pairs for x in pair)])
    if not records.models:
        return None
    level = adjust(np.array([row[3::2] for row in rows]).flatten()).reshape(len(rows), -1)
    sure = int((level < 0.05).sum())
    columns = ["signal", "kind", *(f"{what} {m.name}" for m in records.models for what in ("r", "p"))]
    note = "Spearman's r with the gains over ordered pairs; p by relabelling tasks (two-sided). After Holm over all "
    note += f"{level.size} cells {sure} are below 0.05."
    return table("Single signals against gains", columns, rows, note)


def held_out_table(records: Records) -> Table | None:
    """Predicted gains of models and tasks that were not seen."""
    models = records.models
    if not models:
        return None
    rows = []
    for leave in LEAVES if len(models) > 1 else ("task",):
        for name, signals in SETS.items():
            result = held_out(models, signals, leave)
            rows.append([LEAVES[leave], name, result["r"], result["low"], result["high"], *result["models"].values()])
    columns = ["held out", "signals", "r", "low", "high", *(f"r {m.name}" for m in models)]
    note = (
        "Spearman's r between measured gains and those predicted by ridge regression, mean over models; 95 % "
        "intervals over resampled tasks. An interval that contains 0 is a null result. "
        f"{'; '.join(f'{each.name}: {measured(each)}' for each in models)}."
    )
    return table("Predicted gains of unseen models and tasks", columns, rows, note)


def drawn(records: Records) -> Any:
    """Measured gains against those predicted by head maps alone: of unseen models, or of tasks with one model."""
    models = records.models
    leave = "model" if len(models) > 1 else "task"
    with house_style() as plots:
        figure = plots.figure.Figure(figsize=(3.2 * len(models), 3.0), layout="constrained")
        axes = figure.subplots(1, len(models), squeeze=False)[0]
    r = held_out(models, OURS, leave)["models"]
    for axis, model, gains in zip(axes, models, predicted(models, OURS, leave)):
        axis.axhline(0, linewidth=0.6, color=INK)
        axis.plot(gains, model.gain[tuple(model.apart)], "o", color=RAMP[3], markersize=3, alpha=0.5)
        axis.set_title(f"{model.name}, r = {r[model.name]:.2f}")
        axis.set_xlabel(f"predicted gain, unseen {leave} (standard deviations)")
    axes[0].set_ylabel("measured gain, points")
    return figure
