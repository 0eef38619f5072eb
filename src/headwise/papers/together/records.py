"""Records of the recipe as models with gains and signals."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from headwise.io.records import Record, Results
from headwise.papers.together.foretelling import Model, signals_of


@dataclass
class Found:
    """What was run with one model: scores by seed and set of tasks, and signals by seed."""

    scores: dict[tuple[int, frozenset[str]], dict[str, float]]
    signals: dict[int, Record]


class Records:
    """All records of a folder that are this recipe's, read once."""

    def __init__(self, results: Results):
        self.found: dict[str, Found] = {}
        for record in results:
            if record.work.startswith("together."):
                c = record.config
                found, seed = self.found.setdefault(c["model"], Found({}, {})), c["plan"]["seed"]
                if record.work == "together.signals":
                    found.signals[seed] = record
                else:
                    values = {task: score["value"] for task, score in record.result["scores"].items()}
                    found.scores[seed, frozenset(values)] = values

    @cached_property
    def models(self) -> list[Model]:
        """Models with every pair in at least one seed."""
        return [made for name in self.found if (made := self._model(name))]

    def gains(self, name: str) -> tuple[tuple[str, ...], dict[int, np.ndarray]]:
        """The tasks, and for each seed the gains (T, T) in points; NaN where a training is missing."""
        found = self.found[name]
        if not found.signals:
            return (), {}
        tasks = tuple(next(iter(found.signals.values())).result["tasks"])
        seeds = sorted({seed for seed, _ in found.scores})
        return tasks, {seed: self._gain(found, tasks, seed) for seed in seeds}

    @staticmethod
    def _gain(found: Found, tasks: tuple[str, ...], seed: int) -> np.ndarray:
        gain = np.full((len(tasks), len(tasks)), np.nan)
        for i, task in enumerate(tasks):
            alone = found.scores.get((seed, frozenset([task])))
            for j, other in enumerate(tasks):
                both = found.scores.get((seed, frozenset([task, other])))
                if i != j and alone and both:
                    gain[i, j] = 100 * (both[task] - alone[task])
        return gain

    def _model(self, name: str) -> Model | None:
        tasks, gains = self.gains(name)
        apart = ~np.eye(len(tasks), dtype=bool)
        whole = [gain for gain in gains.values() if not np.isnan(gain[apart]).any()]
        if len(tasks) < 3 or not whole:
            return None
        every = np.stack(whole)
        signals = [signals_of(r.arrays, r.result) for r in self.found[name].signals.values()]
        mean = {key: np.mean([each[key] for each in signals], 0) for key in signals[0]}
        noise = every.std(0, ddof=1) if len(every) > 1 else np.full(every.shape[1:], np.nan)
        return Model(name, tasks, every.mean(0), noise, mean)
