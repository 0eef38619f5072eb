"""The dissociation scores of Li et al. 2023, Eq. 5-7, and whether they are significant (no torch).

Over head sets, tests are exact: under the null hypothesis a task's own heads are a set like any other, so relative
performances under own and random sets are exchangeable. Ties count against the claim. Over rows: intervals of cells,
changes with p-values, draws of D.

Arrays: n rows, F fractions, T tasks (rows), T own sets then random ones (columns; in lesions after the intact model), K
such columns in all, M sets for each task with its own heads per layer, R draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations, product
from typing import Any, NamedTuple

import numpy as np

from headwise.measuring.intervals import interval, of_alike, widened
from headwise.measuring.stats import FEW, Estimate, Value, above_zero, bootstrap, change, resample


def relative(performance: np.ndarray) -> np.ndarray:
    """RP (Eq. 5): performance ``(..., T, K)`` over the unlesioned model's; NaN where that is not above zero."""
    base = performance[..., :1]
    return performance / np.where(base > 0, base, np.nan)


def pairwise(performance: np.ndarray) -> np.ndarray:
    """D_A(B) (Eq. 6) as ``(..., T, T)``, row A and column B: RP_A(H_B) - RP_A(H_A)."""
    return gaps(relative(performance)[..., 1 : performance.shape[-2] + 1])


def gaps(rp: np.ndarray) -> np.ndarray:
    """The same from relative performances under the tasks' own heads, ``(..., T, T)``."""
    return rp - np.diagonal(rp, axis1=-2, axis2=-1)[..., None]


def per_task(pairs: np.ndarray) -> np.ndarray:
    """D_i (Eq. 7) as ``(..., T)``: the mean of D_i(j) over the other tasks j."""
    return pairs.sum(-1) / (pairs.shape[-1] - 1)


def mean_defined(d: np.ndarray) -> np.ndarray:
    """D (Eq. 7): the mean over the tasks whose D_i is defined."""
    defined = ~np.isnan(d)
    total = np.where(defined, d, 0.0).sum(-1)
    return np.divide(total, defined.sum(-1), out=np.full(total.shape, np.nan), where=defined.any(-1))


ALL_WAYS = 20_000  # up to this number, all assignments are enumerated
DRAWS = 9_999  # otherwise this many are drawn
CELLS = 4_000_000
FEWEST, MOST = 20, 100  # default number of sets in a test
NEEDED = 10  # minimum number of sets for a test


class HeadTests(NamedTuple):
    """One-sided p-values over head sets: of every D_A(B), of every task's D, of mean D."""

    pairs: np.ndarray  # (T, T)
    tasks: np.ndarray  # (T,)
    mean: float


def random_sets(tasks: int) -> int:
    """Random sets with which a pair's p-value stays below 0.05 after Holm, even ten times the smallest; 100 at most.

    The smallest is 1 / ((R + 2)(R + 1)). Past 20 tasks or so the cap no longer gives that margin.

    Example:
        >>> [random_sets(tasks) for tasks in (2, 3, 5, 8, 20)]
        [20, 24, 44, 74, 100]
    """
    return min(MOST, max(FEWEST, math.ceil(math.sqrt(200 * math.comb(tasks, 2))) - 1))


def layer_sets(tasks: int) -> int:
    """Sets matched by layer for each task: twice the smallest p-value, 1 / (M + 1)², survives Holm; 100 at most."""
    return min(MOST, max(FEWEST, math.ceil(math.sqrt(40 * math.comb(tasks, 2)))))


def over_random(rp: np.ndarray) -> HeadTests:
    """Tests against random sets of the same size, from relative performances ``(T, T + R)``.

    For a pair: among the R + 2 scores of A, the fraction of ordered pairs that differ by D_A(B) or more. For a task and
    the mean: the fraction of assignments of the T + R sets to tasks that give this D or more.
    """
    tasks, sets = rp.shape
    if sets - tasks < NEEDED:
        return _unknown(tasks)
    deals = _deals(tasks, sets)
    drawn = np.concatenate([_drawn(rp[:, part].swapaxes(0, 1)) for part in _blocks(deals, tasks**2)])
    pairs = np.full((tasks, tasks), np.nan)
    for a in range(tasks):
        others = np.flatnonzero(np.arange(tasks) != a)
        for part in _blocks(others, (sets - tasks + 2) ** 2):
            beside = np.broadcast_to(rp[a, [a, *range(tasks, sets)]], (len(part), 1 + sets - tasks))
            scores = np.concatenate([rp[a, part][:, None], beside], 1)
            apart = scores[:, :, None] - scores[:, None]
            apart = apart[:, ~np.eye(apart.shape[-1], dtype=bool)]
            pairs[a, part] = _all_reached(scores[:, 0] - scores[:, 1], apart)
    return _tested(rp[:, :tasks], drawn, pairs)


def over_layers(rp: np.ndarray, matched: np.ndarray) -> HeadTests:
    """Tests against sets with as many heads per layer, from ``(T, T)`` and ``(T, T, M)``: task, whose layers, draw.

    Each own set is exchanged with its matched sets, independently of the others.
    """
    tasks, sets = len(rp), matched.shape[-1]
    if sets < NEEDED:
        return _unknown(tasks)
    scores = np.concatenate([rp[..., None], matched], -1)  # (T, T, 1 + M)
    chosen = _choices(tasks, 1 + sets)  # (N, T)
    parts = _blocks(chosen, tasks**2)
    drawn = np.concatenate([_drawn(scores[:, np.arange(tasks), part].swapaxes(0, 1)) for part in parts])
    pairs = np.full((tasks, tasks), np.nan)
    for a in range(tasks):
        others = np.flatnonzero(np.arange(tasks) != a)
        for part in _blocks(others, (1 + sets) ** 2):
            apart = (scores[a, part][:, :, None] - scores[a, a]).reshape(len(part), -1)
            pairs[a, part] = _all_reached(rp[a, part] - rp[a, a], apart)
    return _tested(rp, drawn, pairs)


def _blocks(rows: np.ndarray, each: int) -> list[np.ndarray]:
    """Rows in parts, so that ``each`` numbers for every row of a part fit into a few dozen megabytes."""
    size = max(1, CELLS // each)
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def _drawn(rp: np.ndarray) -> np.ndarray:
    """Every task's D_i of assignments ``(N, T, T)``, as (N, T)."""
    return per_task(gaps(rp))


def _tested(rp: np.ndarray, drawn_own: np.ndarray, pairs: np.ndarray) -> HeadTests:
    own = per_task(gaps(rp))
    each = np.array([_reached(d, null) for d, null in zip(own, drawn_own.T)])
    return HeadTests(pairs, each, float(_reached(mean_defined(own), mean_defined(drawn_own))))


def _reached(observed: np.ndarray, null: np.ndarray) -> float:
    """The fraction of assignments, including the observed one, that give at least as much."""
    if np.isnan(observed) or np.isnan(null).any():
        return math.nan
    return float((null >= observed - 1e-12).mean())


def _all_reached(observed: np.ndarray, null: np.ndarray) -> np.ndarray:
    """The same of many observations ``(N,)``, each with its own assignments ``(N, M)``."""
    missing = np.isnan(observed) | np.isnan(null).any(1)
    return np.where(missing, np.nan, (null >= observed[:, None] - 1e-12).mean(1))


def _unknown(tasks: int) -> HeadTests:
    return HeadTests(np.full((tasks, tasks), np.nan), np.full(tasks, np.nan), math.nan)


@lru_cache(maxsize=8)
def _deals(tasks: int, sets: int) -> np.ndarray:
    """Assignments of sets to tasks, (N, T): all of them, or the observed one and random draws."""
    if math.perm(sets, tasks) <= ALL_WAYS:
        return np.array(list(permutations(range(sets), tasks)))
    drawn = np.random.default_rng(0).random((_draws(tasks), sets)).argsort(1)[:, :tasks]
    return np.concatenate([np.arange(tasks)[None], drawn])


@lru_cache(maxsize=8)
def _choices(tasks: int, sets: int) -> np.ndarray:
    """Choices of one set per task, (N, T): all of them, or the observed one and random draws."""
    if sets**tasks <= ALL_WAYS:
        return np.array(list(product(range(sets), repeat=tasks)))
    drawn = np.random.default_rng(0).integers(sets, size=(_draws(tasks), tasks))
    return np.concatenate([np.zeros((1, tasks), int), drawn])


def _draws(tasks: int) -> int:
    return min(DRAWS, max(999, CELLS // tasks**2))


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
    whole: np.ndarray  # (R, F, T): performance without a lesion, over bootstrap draws
    drawn: np.ndarray  # (R, F, T): D_i over the same draws
    above: np.ndarray  # (F, T, T): one-sided p of every D_A(B)
    change: np.ndarray  # (4, F, T, T): by a lesion: value, low, high, two-sided p

    @classmethod
    def unknown(cls, performance: np.ndarray) -> RowTests:
        """For performances ``(F, T, K)`` without rows."""
        fractions, tasks, _ = performance.shape
        blank = np.full(performance.shape, np.nan)
        none, unknown = np.empty((0, fractions, tasks)), np.full((fractions, tasks, tasks), np.nan)
        moved = performance[..., 1 : 1 + tasks] - performance[..., :1]
        changes = np.stack([moved, *np.full((3, *moved.shape), np.nan)])
        return cls(np.zeros(tasks, int), blank, blank, none, none, unknown, changes)

    @classmethod
    def of(
        cls, counts: Sequence[Counts | None], resamples: int, seed: int, level: float
    ) -> tuple[np.ndarray, RowTests]:
        """Performances ``(F, T, K)`` and their uncertainty; a task without counts (None) is NaN."""
        known = [task for task in counts if task is not None]
        blank = [np.full(shape, np.nan) for shape in _shapes(known[0].counts.shape[1:3], len(counts), resamples)]
        parts = [
            blank if task is None else _of_task(task, i, len(counts), resamples, [seed, i], level)
            for i, task in enumerate(counts)
        ]
        values, low, high, changes, above = (np.stack(grid, -2) for grid in list(zip(*parts))[:5])
        whole, drawn = (np.stack(grid, -1) for grid in list(zip(*parts))[5:])
        n = np.array([0 if task is None else len(task.counts) for task in counts])
        return values, cls(n, low, high, whole, drawn, above, changes)

    def tasks(self, d: np.ndarray, base: np.ndarray, at: int, level: float) -> Estimate:
        """Every D_i ``(T,)`` at a fraction, with its interval and the one-sided p-value of the bootstrap."""
        draws = self.drawn[:, at]
        if not len(draws):
            return Estimate(d, *np.full((3, len(d)), np.nan))
        n, reach = np.maximum(self.n, 1), 1 / np.where(base > 0, base, np.nan)
        ends = np.transpose([interval(each, widened(level, rows)) for each, rows in zip(draws.T, n)])
        ends = of_alike(d, (ends[0], ends[1]), n, level, reach=reach, signed=True)
        return Estimate(d, *ends, np.where(self.few, np.nan, above_zero(d, draws)))

    def mean(self, d: np.ndarray, base: np.ndarray, at: int, level: float) -> Estimate:
        """Mean D over the tasks that have one, as `tasks`."""
        known, value = ~np.isnan(d), float(mean_defined(d))
        if not known.any() or not len(self.drawn):
            return Estimate(value, math.nan, math.nan, math.nan)
        draws = self.drawn[:, at][:, known].mean(-1)
        few, reach = int(self.n[known].min()), 1 / base[known].min() / math.sqrt(known.sum())
        ends = interval(draws, widened(level, few * int(known.sum())))
        low, high = of_alike(np.array(value), ends, few, level, reach=reach, signed=True)
        p = math.nan if self.few[known].any() else float(above_zero(value, draws))
        return Estimate(value, float(low), float(high), p)

    def pairs(self, at: int) -> np.ndarray:
        """The one-sided p-value of every D_A(B), ``(T, T)``."""
        return np.where(self.few[:, None] | self.few, np.nan, self.above[at])

    @property
    def few(self) -> np.ndarray:
        """Tasks with too few rows for a p-value."""
        return (self.n > 0) & (self.n < FEW)


def _shapes(cells: tuple[int, int], tasks: int, resamples: int) -> list[tuple[int, ...]]:
    """From the results of `_of_task`."""
    fractions = cells[0]
    return [cells, cells, cells, (4, fractions, tasks), (fractions, tasks), *[(resamples, fractions)] * 2]


def _of_task(task: Counts, own: int, tasks: int, resamples: int, seed: list[int], level: float) -> list[Any]:
    """One task, number ``own``: values, low, high (F, K), changes (4, F, T), p of its D (F, T), draws (R, F) twice.

    What a task's draws are of is its own performance alone, so they go when it is done.
    """
    counts, value = np.asarray(task.counts, float), task.value
    cells = bootstrap(counts, value, resamples, seed, level)
    named = counts[:, :, : 1 + tasks]
    before = np.broadcast_to(named[:, :, :1], named[:, :, 1:].shape)
    moved = change(named[:, :, 1:], before, value, _exchanges(tasks), seed, level)
    changes = np.array([moved.value, moved.low, moved.high, moved.p], float)
    samples = value(resample(named, resamples, seed))  # (R, F, 1 + T)
    observed, drawn = (_apart(each, own) for each in (np.asarray(cells.value)[:, : 1 + tasks], samples))
    above = above_zero(observed, drawn)
    return [cells.value, cells.low, cells.high, changes, above, samples[..., 0], per_task(drawn)]


def _apart(performance: np.ndarray, own: int) -> np.ndarray:
    """D_A(B) of task A, number ``own``, over all B, from its performance whole and under every lesion."""
    rp = relative(performance)[..., 1:]
    return rp - rp[..., own : own + 1]


def _exchanges(tasks: int) -> int:
    """The number of draws with which a cell's p-value can fall well below 0.05 after Holm over all cells."""
    return min(10_000, max(2_000, 100 * tasks**2))


DISTINCT = 0.10  # D from which a dissociation is called distinct, after Shallice 1988


def draws_for(tasks: int) -> int:
    """Bootstrap draws with which a pair's p-value can fall below 0.05 after Holm; past 22 tasks memory forbids it."""
    needed = 21 * math.comb(tasks, 2)
    return needed if 1000 < needed <= 5000 else 1000


def verdict(d_a: float, d_b: float) -> str:
    """``distinct`` or ``double``, ``single``, ``both negative`` or ``none`` (Li et al. 2023, Section 4.1).

    Example:
        >>> verdict(0.09, 0.12), verdict(0.05, 0.02), verdict(0.2, -0.01), verdict(0.05, -0.01)
        ('distinct', 'double', 'single', 'none')
    """
    if np.isnan(d_a + d_b):
        return "undefined"
    if min(d_a, d_b) > 0:
        return "distinct" if (d_a + d_b) / 2 >= DISTINCT else "double"
    if max(d_a, d_b) < 0:
        return "both negative"
    return "single" if max(d_a, d_b) > DISTINCT and min(d_a, d_b) < 0 else "none"
