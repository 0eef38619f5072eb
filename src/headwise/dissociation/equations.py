"""The dissociation scores of Li et al. 2023, Eq. 5-7, of arrays of performances (no torch)."""

from __future__ import annotations

import numpy as np


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
