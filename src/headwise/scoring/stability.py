"""How much a head set depends on the examples: agreement of subsamples, extrapolated to more examples.

Two disjoint samples of m examples agree on a fraction of their top heads. The fraction is converted to the correlation
r of two normal variables with the same agreement. By Spearman and Brown the odds r / (1 - r) grow with m: a line
through the log odds of several m (slope between 0.7 and 1) predicts the agreement for any number of examples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from headwise.heads.selection import budget

BLOCKS = 20
TARGET = 0.9  # agreement between two samples that counts as enough
REACH = 20  # largest extrapolation, in multiples of the available examples
PAIRS = 60  # random pairs of subsamples per agreement
SLOPES = 0.7, 1.0


@dataclass(frozen=True)
class Blocks:
    """Sums of scores over random blocks of the examples, ``(B, L, H)``, and of their weights, ``(B,)``."""

    sums: np.ndarray
    weights: np.ndarray
    absolute: bool = False
    """Scores are absolute values of means."""
    normalized: bool = False
    """Every layer of a score map is scaled to length 1."""

    @classmethod
    def none(cls, shape: tuple[int, int]) -> Blocks:
        """For estimators without scores for parts of the examples."""
        return cls(np.empty((0, *shape)), np.empty(0))

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Blocks:
        """From the record of `to_record`."""
        arrays = [np.array(record[name], float) for name in ("sums", "weights")]
        return cls(
            arrays[0].reshape(len(arrays[1]), *record["shape"]), arrays[1], record["absolute"], record["normalized"]
        )

    def to_record(self) -> dict[str, Any]:
        return {
            "sums": self.sums.tolist(),
            "weights": self.weights.tolist(),
            "shape": list(self.sums.shape[1:]),
            "absolute": self.absolute,
            "normalized": self.normalized,
        }

    @property
    def filled(self) -> np.ndarray:
        """The indices of blocks with examples."""
        return np.flatnonzero(self.weights > 0)

    def scores(self, counts: np.ndarray) -> np.ndarray:
        """Score maps ``(..., L, H)`` of blocks weighted by ``(..., B)``."""
        maps = np.tensordot(counts, self.sums, 1) / (counts @ self.weights)[..., None, None]
        maps = np.abs(maps) if self.absolute else maps
        if self.normalized:
            lengths = np.sqrt(np.square(np.nan_to_num(maps)).sum(-1, keepdims=True))
            maps = maps / np.maximum(lengths, 1e-20)
        return maps


@dataclass(frozen=True)
class Stability:
    """The stability of a head set under subsampling; None if there are too few blocks."""

    split_half: float | None
    """Agreement of two halves of the examples."""
    expected: float | None
    """Expected agreement of two samples, each as large as all examples."""
    needed: int | None
    """Number of examples with which two samples would agree on `TARGET`; None if out of reach."""

    @property
    def enough(self) -> bool | None:
        return None if self.expected is None else self.expected >= TARGET


def stability(blocks: Blocks, fraction: float, examples: int, target: float = TARGET) -> Stability:
    """Measure the agreement of subsamples and extrapolate it to all examples and to more of them."""
    filled = len(blocks.filled)
    if filled < 2:
        return Stability(None, None, None)
    if filled < 8:
        return Stability(agreement(blocks, fraction, filled // 2), None, None)
    sizes = np.unique(np.geomspace(1, filled // 2, 6).round().astype(int))
    measured = np.array([agreement(blocks, fraction, int(size)) for size in sizes])
    expected, times = _extrapolated(sizes / filled, measured, _top_share(blocks, fraction), target)
    needed = None if times is None else _rounded_up(times * examples)
    if needed is not None and expected >= target:
        needed = min(needed, examples)
    return Stability(float(measured[-1]), expected, needed)


def agreement(blocks: Blocks, fraction: float, size: int, pairs: int = PAIRS) -> float:
    """The mean fraction of top heads shared by two disjoint samples of ``size`` blocks."""
    filled = blocks.filled
    order = np.random.default_rng(size).permuted(np.tile(filled, (pairs, 1)), axis=1)
    one, other = (_tops(blocks.scores(_taken(part, blocks)), fraction) for part in (order[:, :size], order[:, -size:]))
    return float((one & other).sum() / max(1, one.sum()))


def top_probability(blocks: Blocks, fraction: float, draws: int = 1000) -> np.ndarray | None:
    """How often each head is among the top heads when blocks are drawn with replacement, ``(L, H)``."""
    filled = blocks.filled
    if len(filled) < 8:
        return None
    drawn = np.random.default_rng(0).choice(filled, (draws, len(filled)))
    return _tops(blocks.scores(_taken(drawn, blocks)), fraction).mean(0)


def _taken(chosen: np.ndarray, blocks: Blocks) -> np.ndarray:
    """How often each block occurs in each row of block numbers ``(N, m)``, ``(N, B)``."""
    return (chosen[..., None] == np.arange(len(blocks.weights))).sum(1).astype(float)


def _tops(maps: np.ndarray, fraction: float) -> np.ndarray:
    """The top heads of maps ``(N, L, H)``, as in `headwise.heads.selection.top`."""
    flat = maps.reshape(len(maps), -1)
    order = np.argsort(np.where(np.isnan(flat), np.inf, -flat), axis=1, kind="stable")
    masks = np.zeros(flat.shape, bool)
    np.put_along_axis(masks, order[:, : budget(fraction, flat.shape[1])], True, axis=1)
    return masks.reshape(maps.shape)


def _top_share(blocks: Blocks, fraction: float) -> float:
    living = ~np.isnan(blocks.sums[blocks.filled]).any(0)
    return budget(fraction, living.size) / max(1, int(living.sum()))


def _extrapolated(parts: np.ndarray, measured: np.ndarray, share: float, target: float) -> tuple[float, float | None]:
    """The expected agreement of all examples, and how many times more would reach the target."""
    if not 0 < share < 1:
        return 1.0, float(parts[0])  # all heads are top heads
    correlations, agreements = _agreements(round(share, 4))
    odds = _odds(np.interp(measured, agreements, correlations))
    usable = odds > -4  # agreement at chance level has no odds
    if not usable[-1]:
        return float(measured[-1]), None
    size, weight = np.log(parts[usable]), np.sqrt(parts[usable])
    slope = np.polyfit(size, odds[usable], 1, w=weight)[0] if usable.sum() > 2 else 1.0
    slope = float(np.clip(slope, *SLOPES))
    start = float(np.average(odds[usable] - slope * size, weights=weight**2))
    expected = float(np.interp(1 / (1 + math.exp(-start)), correlations, agreements))
    wanted = float(_odds(np.interp(target, agreements, correlations)))
    times = math.exp(min((wanted - start) / slope, 50.0))
    below = parts[measured < target].max(initial=parts[0])  # the answer must exceed the numbers that were tried
    times = min(times, 1.0) if expected >= target else times
    return expected, max(times, below) if times <= REACH else None


def _odds(correlation: np.ndarray | float) -> np.ndarray:
    clipped = np.clip(correlation, 1e-6, 1 - 1e-6)
    return np.log(clipped / (1 - clipped))


@lru_cache
def _agreements(share: float) -> tuple[np.ndarray, np.ndarray]:
    """For correlations from 0 to nearly 1: the fraction of top values shared by two normal variables."""
    cut = ndtri(1 - share)
    correlations = np.concatenate([np.linspace(0, 0.9, 46), 1 - np.logspace(-1, -6, 60)[1:]])
    x = np.linspace(cut, cut + 8, 4001)
    density = np.exp(-(x**2) / 2)
    given = ndtr((correlations[:, None] * x - cut) / np.sqrt(1 - correlations[:, None] ** 2))
    return correlations, (given * density).sum(1) / density.sum()


def _rounded_up(examples: float) -> int:
    """Round to two digits, the precision of an extrapolation."""
    unit = 10 ** max(0, math.floor(math.log10(max(examples, 1))) - 1)
    return math.ceil(examples / unit - 1e-9) * unit
