"""Correlation with its interval and p-value (no torch)."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from scipy import special
from scipy import stats as scipy_stats

from headwise.errors import HeadwiseError, unknown
from headwise.measuring.intervals import check_level, interval
from headwise.measuring.stats import numbers


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
    x, y = numbers(x), numbers(y)
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
    check_level(level)
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
