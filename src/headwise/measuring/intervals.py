"""Confidence intervals over rows that keep their coverage near 0 and 1 and with few rows (no torch)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special

from headwise.errors import HeadwiseError

STEPS = 40  # of a bisection: to twelve digits


def check_level(level: float) -> None:
    if not 0 < level < 1:
        raise HeadwiseError(f"level {level}", "between 0 and 1", "0.95")


def interval(samples: np.ndarray, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """The percentile interval of resampled values along the first axis, ignoring undefined draws (NaN).

    NaN where no draw has a value.
    """
    check_level(level)
    tail = (1 - level) / 2
    missing = np.isnan(samples)
    undefined = missing.all(0)
    if undefined.all():
        return np.full(undefined.shape, np.nan)[()], np.full(undefined.shape, np.nan)[()]
    quantile = np.nanquantile if missing.any() else np.quantile
    low, high = quantile(np.where(undefined, 0.0, samples), (tail, 1 - tail), axis=0)
    return np.where(undefined, np.nan, low)[()], np.where(undefined, np.nan, high)[()]


def widened(level: float, n: int | np.ndarray) -> Any:
    """The level at which quantiles of draws of few rows cover as often as asked: Student's t with n - 1 degrees of
    freedom in place of the normal's, and n / (n - 1) for the variance that resampling loses (Hesterberg 2015).

    Example:
        >>> widened(0.95, np.array([20, 1000])).round(3).tolist()
        [0.968, 0.95]
    """
    check_level(level)
    n = np.maximum(n, 2)
    tail = special.ndtr(special.stdtrit(n - 1, (1 - level) / 2) * np.sqrt(n / (n - 1)))
    return 1 - 2 * np.maximum(tail, 1e-9)


def of_share(right: np.ndarray, n: int, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """The mid-P Clopper-Pearson interval of ``right`` of ``n`` rows.

    Example:
        >>> low, high = of_share(np.array(50), 50)
        >>> round(float(low), 3), float(high)
        (0.942, 1.0)
    """
    check_level(level)
    tail, right = (1 - level) / 2, np.asarray(right, float)

    def above(p: np.ndarray) -> np.ndarray:
        """P(more than this many right) and half of P(exactly this many): grows with p."""
        more = np.where(right < n, special.betainc(right + 1, np.maximum(n - right, 1), p), 0.0)
        as_many = np.where(right > 0, special.betainc(np.maximum(right, 1), n - right + 1, p), 1.0)
        return (more + as_many) / 2

    zero, one = np.zeros_like(right), np.ones_like(right)
    low = np.where(right > 0, _crossing(lambda p: above(p) - tail, zero, one), 0.0)
    high = np.where(right < n, _crossing(lambda p: above(p) - (1 - tail), zero, one), 1.0)
    return low[()], high[()]


def of_change(gained: np.ndarray, lost: np.ndarray, n: int, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Tango's score interval of a paired difference of shares: of ``n`` rows some are gained and some are lost.

    Example:
        >>> low, high = of_change(np.array(0), np.array(0), 50)  # no row changed: the true change may still be small
        >>> round(float(low), 3), round(float(high), 3)
        (-0.071, 0.071)
    """
    check_level(level)
    gained, lost = np.broadcast_arrays(np.asarray(gained, float), np.asarray(lost, float))
    reach, seen = special.ndtri((1 + level) / 2), (gained - lost) / n

    def score(change: np.ndarray) -> np.ndarray:
        """How many standard errors the seen change lies above this one: falls with it."""
        linear = (2 * n - gained + lost) * change - gained - lost
        root = np.sqrt(np.maximum(linear**2 + 8 * n * lost * change * (1 - change), 0))
        spread = n * ((root - linear) / (2 * n) + change * (1 - change))
        return (gained - lost - n * change) / np.sqrt(np.maximum(spread, 1e-300))

    low = _crossing(lambda change: reach - score(change), np.full(seen.shape, -1.0), seen)
    high = _crossing(lambda change: -reach - score(change), seen, np.ones(seen.shape))
    return low[()], high[()]


def _crossing(rising: Callable[[np.ndarray], np.ndarray], low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Where a rising function passes zero between two ends, by bisection."""
    for _ in range(STEPS):
        middle = (low + high) / 2
        below = rising(middle) < 0
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return (low + high) / 2


def bca(
    point: np.ndarray,
    samples: np.ndarray,
    left_out: np.ndarray,
    level: float = 0.95,
    *,
    reach: float | np.ndarray = 1.0,
    signed: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """The bias-corrected and accelerated interval (Efron 1987) from draws and the n values with one row left out.

    Rows that all behave alike leave nothing to resample: see `of_alike`.
    """
    gap = left_out.mean(0) - left_out
    ends = _accelerated(point, samples, np.square(gap).sum(0), (gap**3).sum(0), len(left_out), level)
    return of_alike(point, ends, len(left_out), level, reach=reach, signed=signed)


def _accelerated(
    point: np.ndarray, samples: np.ndarray, squares: np.ndarray, cubes: np.ndarray, n: int, level: float
) -> tuple[np.ndarray, np.ndarray]:
    """Quantiles of the samples at levels moved by their bias and by the skewness of the jackknife's gaps."""
    point = np.asarray(point, float)
    slack = 1e-12 * np.maximum(np.abs(point), 1)
    below = (samples < point - slack).mean(0) + (np.abs(samples - point) <= slack).mean(0) / 2
    bias = special.ndtri(np.clip(below, 1 / (len(samples) + 1), 1 - 1 / (len(samples) + 1)))
    spread = 6 * np.asarray(squares, float) ** 1.5
    skew = np.divide(cubes, spread, out=np.zeros_like(spread), where=spread > 0)
    columns, ends, tail = samples.reshape(len(samples), -1).T, [], (1 - widened(level, n)) / 2
    for quantile in (tail, 1 - tail):
        shifted = bias + special.ndtri(quantile)
        place = np.atleast_1d(special.ndtr(bias + shifted / (1 - skew * shifted)))
        ends.append(np.array([_quantile(c, q) for c, q in zip(columns, place.ravel())]).reshape(point.shape)[()])
    return ends[0], ends[1]


def _quantile(column: np.ndarray, place: float) -> float:
    known = column[~np.isnan(column)]
    return float(np.quantile(known, place)) if len(known) and not np.isnan(place) else np.nan


def of_alike(
    point: np.ndarray,
    ends: tuple[np.ndarray, np.ndarray],
    n: int | np.ndarray,
    level: float = 0.95,
    *,
    reach: float | np.ndarray = 1.0,
    signed: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """The interval, made wider where too few rows behaved differently to resample.

    Rows of a kind that none of n rows showed may still be a share of about 3 / n, and each moves the value by ``reach``
    at most. A score gets so much room where all rows behaved alike (no width), within 0 and 1; a ``signed`` difference,
    to which a few rows decide both size and direction, always has it on both sides.
    """
    point, (low, high) = np.asarray(point, float), ends
    unseen = (1 - (1 - level) ** (1 / n)) * np.asarray(reach)
    if signed:
        return np.minimum(low, point - unseen)[()], np.maximum(high, point + unseen)[()]
    flat = np.asarray(high) - np.asarray(low) <= 1e-12
    below = np.where((point >= 0) & (point <= 1), np.maximum(point - unseen, 0), point - unseen)
    beyond = np.where(np.abs(point) <= 1, np.minimum(point + unseen, 1), point + unseen)
    return np.where(flat, below, low)[()], np.where(flat, beyond, high)[()]
