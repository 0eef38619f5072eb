"""How certain a number is: bootstrap, paired tests, overlap, families of tests (no torch).

Metrics here are additive: every example brings a row of counts, and the metric is a function of their sums
(see ``headwise.tasks.metrics``). A bootstrap is then one matrix product of draws and counts, however many systems
share it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import stats as scipy_stats

from headwise.errors import HeadwiseError, unknown
from headwise.measuring import intervals
from headwise.measuring.intervals import interval

Value = Callable[[np.ndarray], np.ndarray]  # sums (..., s) -> metric (...)
CELLS = 4_000_000  # draws in memory at the same time
FEW = 20  # minimum number of rows or scores for a p-value: a bootstrap of three misses one time in four


@dataclass(frozen=True)
class Estimate:
    """A number with its interval and, if tested, its p-value; arrays if there are several systems."""

    value: float | np.ndarray
    low: float | np.ndarray
    high: float | np.ndarray
    p: float | np.ndarray | None = None

    def __str__(self) -> str:
        rows = np.stack(np.atleast_1d(self.value, self.low, self.high), -1)
        text = "\n".join(f"{value:.4g} [{low:.4g}, {high:.4g}]" for value, low, high in rows.reshape(-1, 3))
        return text if self.p is None or np.ndim(self.p) else f"{text}, p = {self.p:.3g}"


# bootstrap


def resample(counts: np.ndarray, resamples: int = 1000, seed: int | list[int] = 0) -> np.ndarray:
    """Sums of counts ``(n, ..., s)`` over bootstrap draws of the n examples: ``(resamples, ..., s)``.

    A draw is shared by all axes behind the first, so that systems stay paired.
    """
    counts = numbers(counts)
    flat = counts.reshape(len(counts), -1)
    generator = np.random.default_rng(seed)
    sums = np.empty((resamples, flat.shape[1]))
    for part in _parts(resamples, len(flat)):
        shape = (part.stop - part.start, len(flat))
        drawn = generator.integers(len(flat), size=shape) + np.arange(shape[0])[:, None] * len(flat)
        sums[part] = np.bincount(drawn.ravel(), minlength=math.prod(shape)).reshape(shape).astype(float) @ flat
    return sums.reshape(resamples, *counts.shape[1:])


def bootstrap(
    counts: np.ndarray,
    value: Value,
    resamples: int = 1000,
    seed: int | list[int] = 0,
    level: float = 0.95,
    how: str = "auto",
) -> Estimate:
    """A metric with its interval over examples; counts ``(n, s)``, or ``(n, systems, s)`` for paired systems.

    ``how`` is ``percentile``, ``bca`` (bias-corrected and accelerated, Efron 1987), ``share`` (mid-P Clopper-Pearson,
    for rows that are right or wrong), or ``auto``: ``share`` where it applies, otherwise ``bca``.

    Example:
        >>> right = np.repeat([[1.0, 1.0], [0.0, 1.0]], [80, 20], axis=0)  # (right, seen) of each example
        >>> print(bootstrap(right, lambda sums: sums[..., 0] / sums[..., 1]))
        0.8 [0.7131, 0.8698]
    """
    counts = numbers(counts)
    point = value(counts.sum(0))
    if how == "auto":
        how = "share" if right_or_wrong(value, counts) else "bca"
    if how == "share":
        return Estimate(point, *intervals.of_share(counts[..., 0].sum(0), len(counts), level))
    if how not in ("percentile", "bca"):
        raise unknown("interval", how, ("auto", "share", "percentile", "bca"))
    samples = value(resample(counts, resamples, seed))
    if how == "percentile":
        return Estimate(point, *interval(samples, level))
    return Estimate(point, *intervals.bca(point, samples, value(without_each(counts)), level, reach=_reach(counts)))


def _reach(counts: np.ndarray) -> float:
    """How far a share of the rows can move a metric, in its units: MCC, whose rows are cells of a table, goes to -1."""
    return 2.0 if counts.shape[-1] > 1 and (counts.sum(-1) == 1).all() else 1.0


def without_each(counts: np.ndarray) -> np.ndarray:
    """Sums of counts ``(n, ..., s)`` with one row left out, for every row; of a single row, its own."""
    return counts.sum(0) - counts if len(counts) > 1 else counts


def right_or_wrong(value: Value, *counts: np.ndarray) -> bool:
    """Whether a metric is the share of rows that are right, each row (0 or 1, 1)."""
    if any(c.shape[-1] != 2 or (c[..., 1] != 1).any() or not np.isin(c[..., 0], (0, 1)).all() for c in counts):
        return False
    return np.allclose(value(np.array([[0.0, 1.0], [1.0, 4.0], [3.0, 3.0]])), [0, 0.25, 1])


# tests


def p_value(observed: float | np.ndarray, null: np.ndarray) -> np.ndarray:
    """The fraction of draws of the null (first axis) that reach the observed value, which counts as one of them.

    NaN where there is no observed value or no draw.
    """
    defined = ~np.isnan(null)
    reached = (null >= observed - 1e-12) & defined  # equal sums can differ in the last bit
    p = (1 + reached.sum(0)) / (1 + defined.sum(0))
    return np.where(np.isnan(observed) | ~defined.any(0), np.nan, p)[()]


def above_zero(observed: float | np.ndarray, samples: np.ndarray) -> np.ndarray:
    """One-sided p-value of "not above zero" from bootstrap samples, moved so that their centre is zero."""
    return p_value(observed, samples - observed)


def paired_bootstrap(
    a: np.ndarray,
    b: np.ndarray,
    value: Value | None = None,
    resamples: int = 10_000,
    seed: int = 0,
    level: float = 0.95,
) -> Estimate:
    """Does A beat B? The difference, its interval and the one-sided p-value (Dror et al. 2018, paired bootstrap).

    Over examples: counts ``(n, s)`` of both systems on the same examples and the metric's ``value``.
    Over seeds: ``(n,)`` scores of both systems with the same seeds; below 20 of them by Student's t, as a bootstrap of
    three equal signs would call any difference certain.
    """
    scores, (both, value) = value is None, _paired(a, b, value)
    if scores and len(both) < FEW:
        return _one_sided(both[:, 0, 0], both[:, 1, 0], level)
    observed, samples = _gap(value(both.sum(0)[None]))[0], _gap(value(resample(both, resamples, seed)))
    if scores:
        ends = interval(samples, intervals.widened(level, len(both)))
    else:
        ends = _ends(both, value, observed, samples, level)
    return Estimate(observed, *ends, above_zero(observed, samples))


def change(
    new: np.ndarray,
    old: np.ndarray,
    value: Value,
    resamples: int = 1000,
    seed: int | list[int] = 0,
    level: float = 0.95,
) -> Estimate:
    """The change of a metric on the same rows, counts ``(n, ..., s)``: difference, interval and two-sided p.

    Of rows that are right or wrong by Tango's score interval and the exact sign test, otherwise by the bootstrap (BCa)
    and by exchanging new and old row by row. No p below 20 rows (NaN).
    """
    both, value = _paired(new, old, value)
    gap, exact = _gap(value(both.sum(0)[None]))[0], right_or_wrong(value, both)
    samples = np.empty(0) if exact else _gap(value(resample(both, resamples, seed)))
    ends = _ends(both, value, gap, samples, level)
    if len(both) < FEW:
        return Estimate(gap, *ends, np.full(np.shape(gap), np.nan)[()])
    return Estimate(gap, *ends, _signs(*_moved(both)) if exact else _exchanged(both, value, resamples, seed))


def _ends(both: np.ndarray, value: Value, estimate: np.ndarray, samples: np.ndarray, level: float) -> tuple[Any, Any]:
    """The interval of a paired difference, ``(n, 2, ..., s)``."""
    if right_or_wrong(value, both):
        return intervals.of_change(*_moved(both), len(both), level)
    return intervals.bca(estimate, samples, _gap(value(without_each(both))), level, reach=_reach(both), signed=True)


def _moved(both: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many rows the first of two systems alone has right, and how many the second alone."""
    a, b = both[:, 0, ..., 0] > 0, both[:, 1, ..., 0] > 0
    return (a & ~b).sum(0), (b & ~a).sum(0)


def _signs(gained: np.ndarray, lost: np.ndarray) -> np.ndarray:
    """The exact two-sided sign test."""
    return np.minimum(1, 2 * scipy_stats.binom.cdf(np.minimum(gained, lost), gained + lost, 0.5))[()]


def _one_sided(a: np.ndarray, b: np.ndarray, level: float) -> Estimate:
    if len(a) < 2:
        return Estimate(float(np.mean(a - b)), math.nan, math.nan, math.nan)
    both = paired_t(a, b, level)
    return replace(both, p=both.p / 2 if both.value > 0 else 1 - both.p / 2)  # type: ignore[operator]


def permutation_test(
    a: np.ndarray,
    b: np.ndarray,
    value: Value | None = None,
    resamples: int = 10_000,
    seed: int = 0,
) -> float:
    """Two-sided p-value of "A and B are exchangeable": they swap at random, example by example or seed by seed."""
    return float(_exchanged(*_paired(a, b, value), resamples, seed))


def _exchanged(both: np.ndarray, value: Value, resamples: int, seed: int | list[int]) -> np.ndarray:
    """The same of counts ``(n, 2, ..., s)``, a p-value for each of the axes between."""
    total, moved = both.sum(0), both[:, 1] - both[:, 0]
    generator, null = np.random.default_rng(seed), []
    for part in _parts(resamples, len(both)):
        swap = generator.integers(2, size=(part.stop - part.start, len(both))).astype(float)
        swapped = (swap @ moved.reshape(len(both), -1)).reshape(-1, *moved.shape[1:])
        null.append(_gap(value(np.stack([total[0] + swapped, total[1] - swapped], 1))))
    return p_value(np.abs(_gap(value(total[None]))[0]), np.abs(np.concatenate(null)))


def _gap(pair: np.ndarray) -> np.ndarray:
    """First less second of values ``(draws, 2, ...)``."""
    return pair[:, 0] - pair[:, 1]


def _paired(a: np.ndarray, b: np.ndarray, value: Value | None) -> tuple[np.ndarray, Value]:
    """Both systems as (n, 2, s); plain scores become counts whose value is their mean."""
    a, b = numbers(a), numbers(b)
    if a.shape != b.shape:
        raise HeadwiseError(f"systems of shapes {a.shape} and {b.shape}", "the same examples for both")
    if value is None:
        if a.ndim != 1:
            raise HeadwiseError(f"counts of shape {a.shape} without their metric", "value=metric.value")
        a, b, n = a[:, None], b[:, None], len(a)
        return np.stack([a, b], 1), lambda sums: sums[..., 0] / n
    return np.stack([a, b], 1), value


def paired_t(a: np.ndarray, b: np.ndarray, level: float = 0.95) -> Estimate:
    """Mean difference of two systems over few seeds, with Student's interval and two-sided p-value.

    Differences that are all the same have no spread to judge by: no interval, and no p-value unless all are zero.
    """
    a, b = numbers(a), numbers(b)
    if a.shape != b.shape or a.ndim != 1 or len(a) < 2:
        raise HeadwiseError(f"scores of shapes {a.shape} and {b.shape}", "the same two seeds or more for both")
    gap = a - b
    if np.ptp(gap) <= 1e-12 * max(np.abs(a).max(), np.abs(b).max()):  # two scores of few rows often differ by the same
        nothing = abs(gap[0]) <= 1e-12
        return Estimate(gap.mean(), math.nan, math.nan, 1.0 if nothing else math.nan)
    test = scipy_stats.ttest_rel(a, b)
    ends = test.confidence_interval(level)
    return Estimate(gap.mean(), ends.low, ends.high, float(test.pvalue))


def over_trainings(values: np.ndarray, level: float = 0.95) -> Estimate:
    """Is a number above zero over repeated trainings? Mean, Student's interval and one-sided p-value of one per seed.

    A single training, or trainings that all give the same number, have no spread: NaN for interval and p-value.

    Example:
        >>> print(over_trainings([0.08, 0.11, 0.07]))
        0.08667 [0.03496, 0.1384], p = 0.00935
    """
    values = numbers(values)
    estimate = _one_sided(values, np.zeros_like(values), level)
    return replace(estimate, p=math.nan) if np.ptp(values) == 0 else estimate


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over seeds."""

    mean: float
    sd: float
    n: int

    @classmethod
    def of(cls, values: np.ndarray) -> Spread:
        values = numbers(values)
        return cls(float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else math.nan, len(values))

    def __str__(self) -> str:
        return f"{self.mean:.4g} ± {self.sd:.2g} (n = {self.n})"


@dataclass(frozen=True)
class Overlap:
    """Heads two masks share, how many chance would give, and the p-values of so many and of so few."""

    shared: int
    expected: float
    p_more: float
    p_fewer: float


def overlap_test(mask_a: np.ndarray, mask_b: np.ndarray, alive: np.ndarray | None = None) -> Overlap:
    """Hypergeometric test of the overlap of two head sets against sets drawn evenly from the living heads.

    Heads of some layers score high for every task, so chance here is a weak null: compare tasks with each other too.
    """
    a, b = np.asarray(mask_a, bool), np.asarray(mask_b, bool)
    alive = np.ones(a.shape, bool) if alive is None else np.asarray(alive, bool)
    if not a.shape == b.shape == alive.shape:
        raise HeadwiseError(f"masks of shapes {a.shape}, {b.shape}, {alive.shape}", "one shape for all")
    if ((a | b) & ~alive).any():
        raise HeadwiseError("masks that select cut heads", "selections among the living heads")
    shared, living = int((a & b).sum()), max(int(alive.sum()), 1)
    chance = scipy_stats.hypergeom(living, int(a.sum()), int(b.sum()))
    return Overlap(shared, float(a.sum() * b.sum() / living), float(chance.sf(shared - 1)), float(chance.cdf(shared)))


def adjust(p: np.ndarray, how: str = "holm") -> np.ndarray:
    """P-values of a family of tests, adjusted: ``holm`` bounds the chance of any error, ``bh`` and ``by`` the false
    discovery rate (``by`` under any dependence). NaN stays NaN and is no member of the family.
    """
    p = np.asarray(p, float)
    kept = ~np.isnan(p)
    family = p[kept]
    if ((family < 0) | (family > 1)).any():
        raise HeadwiseError(f"p-values from {family.min():.3g} to {family.max():.3g}", "numbers from 0 to 1")
    if how not in ("holm", "bh", "by"):
        raise unknown("adjustment", how, ("holm", "bh", "by"))
    out = p.copy()
    if family.size:
        out[kept] = _holm(family) if how == "holm" else scipy_stats.false_discovery_control(family, method=how)
    return out


def _holm(p: np.ndarray) -> np.ndarray:
    order = np.argsort(p)
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)).clip(max=1)
    out = np.empty_like(p)
    out[order] = stepped
    return out


# what every function checks


def numbers(array: np.ndarray) -> np.ndarray:
    array = np.asarray(array, float)
    if array.ndim == 0 or len(array) == 0:
        raise HeadwiseError(f"numbers of shape {array.shape}", "at least one example")
    if not np.isfinite(array).all():
        raise HeadwiseError("numbers that are NaN or infinite", "finite ones")
    return array


def _parts(rows: int, width: int) -> Iterator[slice]:
    step = max(1, CELLS // width)
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))
