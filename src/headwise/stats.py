"""How sure a number is: bootstrap, paired tests, overlap, correlation, families of tests (no torch).

Metrics here are additive: every example brings a row of counts, and the metric is a function of their sums
(see ``headwise.metrics``). A bootstrap is then one matrix product of draws and counts, however many systems share it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from scipy import special
from scipy import stats as scipy_stats

from headwise.errors import HeadwiseError, unknown

Value = Callable[[np.ndarray], np.ndarray]  # sums (..., s) -> metric (...)
CELLS = 4_000_000  # draws held in memory at once
FEW = 20  # scores below which a bootstrap is too sure: from three of them its interval misses one time in four


@dataclass(frozen=True)
class Estimate:
    """A number with its interval, and a p-value where a test was made; arrays when there are several systems."""

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
    counts = _numbers(counts)
    flat = counts.reshape(len(counts), -1)
    generator = np.random.default_rng(seed)
    sums = np.empty((resamples, flat.shape[1]))
    for part in _parts(resamples, len(flat)):
        shape = (part.stop - part.start, len(flat))
        drawn = generator.integers(len(flat), size=shape) + np.arange(shape[0])[:, None] * len(flat)
        sums[part] = np.bincount(drawn.ravel(), minlength=math.prod(shape)).reshape(shape).astype(float) @ flat
    return sums.reshape(resamples, *counts.shape[1:])


def interval(samples: np.ndarray, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """The percentile interval of resampled values along the first axis; draws with no value (NaN) are left out.

    NaN where no draw has a value.
    """
    _check_level(level)
    tail = (1 - level) / 2
    missing = np.isnan(samples)
    undefined = missing.all(0)
    if undefined.all():
        return np.full(undefined.shape, np.nan)[()], np.full(undefined.shape, np.nan)[()]
    quantile = np.nanquantile if missing.any() else np.quantile
    low, high = quantile(np.where(undefined, 0.0, samples), (tail, 1 - tail), axis=0)
    return np.where(undefined, np.nan, low)[()], np.where(undefined, np.nan, high)[()]


def bootstrap(
    counts: np.ndarray,
    value: Value,
    resamples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
    how: str = "percentile",
) -> Estimate:
    """A metric with its interval over examples; counts ``(n, s)``, or ``(n, systems, s)`` for paired systems.

    ``how`` is ``percentile`` or ``bca`` (bias-corrected and accelerated, Efron 1987).

    Example:
        >>> right = np.repeat([[1.0, 1.0], [0.0, 1.0]], [80, 20], axis=0)  # (right, seen) of each example
        >>> print(bootstrap(right, lambda sums: sums[..., 0] / sums[..., 1]))
        0.8 [0.72, 0.88]
    """
    counts = _numbers(counts)
    point, samples = value(counts.sum(0)), value(resample(counts, resamples, seed))
    if how == "percentile":
        return Estimate(point, *interval(samples, level))
    if how == "bca":
        return Estimate(point, *_bca(point, samples, value(counts.sum(0) - counts), level))
    raise unknown("interval", how, ("percentile", "bca"))


def _bca(point: np.ndarray, samples: np.ndarray, left_out: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Quantiles of the samples at levels moved by their bias and by the jackknife's skewness."""
    _check_level(level)
    below = (samples < point).mean(0) + (samples == point).mean(0) / 2
    bias = special.ndtri(np.clip(below, 1 / (len(samples) + 1), 1 - 1 / (len(samples) + 1)))
    gap = left_out.mean(0) - left_out
    spread = 6 * np.square(gap).sum(0) ** 1.5
    skew = np.divide((gap**3).sum(0), spread, out=np.zeros_like(spread), where=spread > 0)
    ends = []
    for tail in ((1 - level) / 2, (1 + level) / 2):
        shifted = bias + special.ndtri(tail)
        place = np.atleast_1d(special.ndtr(bias + shifted / (1 - skew * shifted)))
        columns = samples.reshape(len(samples), -1).T
        ends.append(np.array([np.nanquantile(c, q) for c, q in zip(columns, place.ravel())]).reshape(point.shape)[()])
    return ends[0], ends[1]


# tests


def p_value(observed: float | np.ndarray, null: np.ndarray) -> np.ndarray:
    """How often draws of the null (first axis) reach the observed value, the observed one counted among them.

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
    difference = _difference(value(both.sum(0)))
    samples = _difference(value(resample(both, resamples, seed)))
    return Estimate(difference, *interval(samples, level), above_zero(difference, samples))


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
    both, value = _paired(a, b, value)
    total, moved = both.sum(0), both[:, 1] - both[:, 0]
    generator = np.random.default_rng(seed)
    null = []
    for part in _parts(resamples, len(both)):
        swap = generator.integers(2, size=(part.stop - part.start, len(both))).astype(float) @ moved
        null.append(_difference(value(np.stack([total[0] + swap, total[1] - swap], 1))))
    return float(p_value(np.abs(_difference(value(total))), np.abs(np.concatenate(null))))


def _difference(pair: np.ndarray) -> np.ndarray:
    return pair[..., 0] - pair[..., 1]


def _paired(a: np.ndarray, b: np.ndarray, value: Value | None) -> tuple[np.ndarray, Value]:
    """Both systems as (n, 2, s); plain scores become counts whose value is their mean."""
    a, b = _numbers(a), _numbers(b)
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

    Differences that are all the same have no spread to judge by: no interval and no p-value, but for none at all.
    """
    a, b = _numbers(a), _numbers(b)
    if a.shape != b.shape or a.ndim != 1 or len(a) < 2:
        raise HeadwiseError(f"scores of shapes {a.shape} and {b.shape}", "the same two seeds or more for both")
    gap = a - b
    if np.ptp(gap) <= 1e-12 * max(np.abs(a).max(), np.abs(b).max()):  # two scores of few rows often differ by the same
        nothing = abs(gap[0]) <= 1e-12
        return Estimate(gap.mean(), *([0.0, 0.0, 1.0] if nothing else [math.nan] * 3))
    test = scipy_stats.ttest_rel(a, b)
    ends = test.confidence_interval(level)
    return Estimate(gap.mean(), ends.low, ends.high, float(test.pvalue))


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over seeds."""

    mean: float
    sd: float
    n: int

    @classmethod
    def of(cls, values: np.ndarray) -> Spread:
        values = _numbers(values)
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


# correlation


@dataclass(frozen=True)
class Correlation:
    """A correlation with its interval, p-value and the straight line through the points."""

    r: float
    low: float
    high: float
    p: float
    slope: float
    intercept: float
    n: int
    how: str

    def __str__(self) -> str:
        return f"{self.how} r = {self.r:.3f} [{self.low:.3f}, {self.high:.3f}], p = {self.p:.3g}, n = {self.n}"


def correlation(
    x: np.ndarray,
    y: np.ndarray,
    how: str = "pearson",
    *,
    by: str = "fisher",
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Correlation:
    """Correlation of two lists, ``pearson`` or ``spearman``, with an interval ``by`` ``fisher`` or ``bootstrap``.

    All its numbers are NaN where a list is constant.

    Example:
        >>> print(correlation([1, 2, 3, 4, 5, 6], [1, 3, 2, 5, 4, 6]))
        pearson r = 0.886 [0.264, 0.987], p = 0.0188, n = 6
    """
    x, y = _numbers(x), _numbers(y)
    if x.shape != y.shape or x.ndim != 1 or len(x) < 3:
        raise HeadwiseError(f"lists of shapes {x.shape} and {y.shape}", "two lists as long, of three or more")
    if how not in ("pearson", "spearman"):
        raise unknown("correlation", how, ("pearson", "spearman"))
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        nan = math.nan
        return Correlation(nan, nan, nan, nan, nan, nan, len(x), how)
    r, p = map(float, scipy_stats.pearsonr(x, y) if how == "pearson" else scipy_stats.spearmanr(x, y))
    if how == "spearman" and len(x) <= 8:  # where Student's t is far off, all orders can be tried
        orders = np.array(list(itertools.permutations(scipy_stats.rankdata(y))))
        p = float((np.abs(_row_correlations(np.tile(x, (len(orders), 1)), orders, how)) >= abs(r) - 1e-12).mean())
    if by == "fisher":
        low, high = _fisher(r, len(x), how, level)
    elif by == "bootstrap":
        drawn = np.random.default_rng(seed).integers(len(x), size=(resamples, len(x)))
        low, high = interval(_row_correlations(x[drawn], y[drawn], how), level)
    else:
        raise unknown("interval", by, ("fisher", "bootstrap"))
    slope, intercept = np.polyfit(x, y, 1)
    return Correlation(r, float(low), float(high), p, float(slope), float(intercept), len(x), how)


def _fisher(r: float, n: int, how: str, level: float) -> tuple[float, float]:
    """Interval on Fisher's z; for ranks with the wider error of Bonett and Wright 2000."""
    _check_level(level)
    if n < 4 or abs(r) >= 1:
        return (-1.0, 1.0) if n < 4 else (r, r)
    error = math.sqrt((1 + r * r / 2 if how == "spearman" else 1) / (n - 3))
    reach = special.ndtri((1 + level) / 2) * error
    return math.tanh(math.atanh(r) - reach), math.tanh(math.atanh(r) + reach)


def _row_correlations(x: np.ndarray, y: np.ndarray, how: str) -> np.ndarray:
    """The correlation of every row of x with that row of y; NaN where a row is constant."""
    if how == "spearman":
        x, y = scipy_stats.rankdata(x, axis=1), scipy_stats.rankdata(y, axis=1)
    x, y = x - x.mean(1, keepdims=True), y - y.mean(1, keepdims=True)
    norm = np.sqrt(np.square(x).sum(1) * np.square(y).sum(1))
    return np.divide((x * y).sum(1), norm, out=np.full(len(x), np.nan), where=norm > 1e-300)


# what every function checks


def _numbers(array: np.ndarray) -> np.ndarray:
    array = np.asarray(array, float)
    if array.ndim == 0 or len(array) == 0:
        raise HeadwiseError(f"numbers of shape {array.shape}", "at least one example")
    if not np.isfinite(array).all():
        raise HeadwiseError("numbers that are NaN or infinite", "finite ones")
    return array


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise HeadwiseError(f"level {level}", "between 0 and 1", "0.95")


def _parts(rows: int, width: int) -> Iterator[slice]:
    step = max(1, CELLS // width)
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))
