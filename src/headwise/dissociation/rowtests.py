"""Uncertainty of lesions over rows: intervals of cells, changes with p-values, draws of D (no torch).

Arrays: n rows, F fractions, T tasks (rows), K lesions (columns: none, each task's heads, random controls), R draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from headwise.dissociation.equations import mean_defined, pairwise, per_task
from headwise.measuring.intervals import interval, of_alike, widened
from headwise.measuring.stats import FEW, Estimate, Value, above_zero, bootstrap, change, resample


class Counts(NamedTuple):
    """One task's additive statistics under every lesion, ``(n, F, K, s)``, and the metric's value function."""

    counts: np.ndarray
    value: Value


@dataclass(frozen=True)
class RowTests:
    """Uncertainty over rows; a task without rows has 0 of them and is NaN throughout."""

    n: np.ndarray  # (T,)
    low: np.ndarray  # (F, T, K): of performance
    high: np.ndarray
    samples: np.ndarray  # (R, F, T, 1 + T): performance whole and under every task's lesion, over bootstrap draws
    change: np.ndarray  # (4, F, T, T): by a lesion: value, low, high, two-sided p

    @classmethod
    def unknown(cls, performance: np.ndarray) -> RowTests:
        """For performances ``(F, T, K)`` without rows."""
        fractions, tasks, _ = performance.shape
        blank = np.full(performance.shape, np.nan)
        samples = np.empty((0, fractions, tasks, 1 + tasks))
        moved = performance[..., 1 : 1 + tasks] - performance[..., :1]
        changes = np.stack([moved, *np.full((3, *moved.shape), np.nan)])
        return cls(np.zeros(tasks, int), blank, blank, samples, changes)

    @classmethod
    def of(
        cls, counts: Sequence[Counts | None], resamples: int, seed: int, level: float
    ) -> tuple[np.ndarray, RowTests]:
        """Performances ``(F, T, K)`` and their uncertainty; a task without counts (None) is NaN."""
        known = [task for task in counts if task is not None]
        blank = [np.full(shape, np.nan) for shape in _shapes(known[0].counts.shape[1:3], len(counts), resamples)]
        parts = [
            blank if task is None else _of_task(task, len(counts), resamples, [seed, i], level)
            for i, task in enumerate(counts)
        ]
        values, low, high, samples, changes = (np.stack(grid, -2) for grid in zip(*parts))
        n = np.array([0 if task is None else len(task.counts) for task in counts])
        return values, cls(n, low, high, samples, changes)

    def tasks(self, d: np.ndarray, base: np.ndarray, at: int, level: float) -> Estimate:
        """Every D_i ``(T,)`` at a fraction, with its interval and the one-sided p-value of the bootstrap."""
        draws = per_task(pairwise(self.samples[:, at]))
        if not len(draws):
            return Estimate(d, *np.full((3, len(d)), np.nan))
        n, reach = np.maximum(self.n, 1), 1 / np.where(base > 0, base, np.nan)
        ends = np.transpose([interval(each, widened(level, rows)) for each, rows in zip(draws.T, n)])
        ends = of_alike(d, (ends[0], ends[1]), n, level, reach=reach, signed=True)
        return Estimate(d, *ends, np.where(self.few, np.nan, above_zero(d, draws)))

    def mean(self, d: np.ndarray, base: np.ndarray, at: int, level: float) -> Estimate:
        """Mean D over the tasks that have one, as `tasks`."""
        known, value = ~np.isnan(d), float(mean_defined(d))
        if not known.any() or not len(self.samples):
            return Estimate(value, math.nan, math.nan, math.nan)
        draws = per_task(pairwise(self.samples[:, at]))[:, known].mean(-1)
        few, reach = int(self.n[known].min()), 1 / base[known].min() / math.sqrt(known.sum())
        ends = interval(draws, widened(level, few * int(known.sum())))
        low, high = of_alike(np.array(value), ends, few, level, reach=reach, signed=True)
        p = math.nan if self.few[known].any() else float(above_zero(value, draws))
        return Estimate(value, float(low), float(high), p)

    def pairs(self, d: np.ndarray, at: int) -> np.ndarray:
        """The one-sided p-value of every D_A(B), ``(T, T)``."""
        p = above_zero(d, pairwise(self.samples[:, at]))
        return np.where(self.few[:, None] | self.few, np.nan, p)

    @property
    def few(self) -> np.ndarray:
        """Tasks with too few rows for a p-value."""
        return (self.n > 0) & (self.n < FEW)


def _shapes(cells: tuple[int, int], tasks: int, resamples: int) -> list[tuple[int, ...]]:
    """From the results of `_of_task`."""
    fractions = cells[0]
    return [cells, cells, cells, (resamples, fractions, 1 + tasks), (4, fractions, tasks)]


def _of_task(task: Counts, tasks: int, resamples: int, seed: list[int], level: float) -> list[Any]:
    """One task: values, low, high (F, K), samples (R, F, 1 + T), changes (4, F, T)."""
    counts, value = np.asarray(task.counts, float), task.value
    cells = bootstrap(counts, value, resamples, seed, level)
    named = counts[:, :, : 1 + tasks]
    whole = np.broadcast_to(named[:, :, :1], named[:, :, 1:].shape)
    moved = change(named[:, :, 1:], whole, value, _exchanges(tasks), seed, level)
    changes = np.array([moved.value, moved.low, moved.high, moved.p], float)
    return [cells.value, cells.low, cells.high, value(resample(named, resamples, seed)), changes]


def _exchanges(tasks: int) -> int:
    """The number of draws with which a cell's p-value can fall well below 0.05 after Holm over all cells."""
    return min(10_000, max(2_000, 100 * tasks**2))
