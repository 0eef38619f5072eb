"""Do a task's own heads matter more than other sets of the same size? Exact tests over head sets (no torch).

Under the null hypothesis a task's own heads are a set like any other, so relative performances under own and random
sets are exchangeable. Ties count against the claim.

Arrays: T tasks (rows), T own sets then R random ones (columns), M sets for each task with its own heads per layer.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import permutations, product
from typing import NamedTuple

import numpy as np

from headwise.dissociation.equations import gaps, mean_defined, per_task

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
    drawn = gaps(rp[:, _deals(tasks, sets)].swapaxes(0, 1))
    pairs = np.full((tasks, tasks), np.nan)
    for a, b in permutations(range(tasks), 2):
        scores = rp[a, [b, a, *range(tasks, sets)]]
        apart = scores[:, None] - scores
        pairs[a, b] = _reached(scores[0] - scores[1], apart[~np.eye(len(apart), dtype=bool)])
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
    drawn = gaps(scores[:, np.arange(tasks), chosen].swapaxes(0, 1))
    pairs = np.full((tasks, tasks), np.nan)
    for a, b in permutations(range(tasks), 2):
        apart = scores[a, b][:, None] - scores[a, a]
        pairs[a, b] = _reached(rp[a, b] - rp[a, a], apart.ravel())
    return _tested(rp, drawn, pairs)


def _tested(rp: np.ndarray, drawn: np.ndarray, pairs: np.ndarray) -> HeadTests:
    own, drawn_own = per_task(gaps(rp)), per_task(drawn)
    each = np.array([_reached(d, null) for d, null in zip(own, drawn_own.T)])
    return HeadTests(pairs, each, float(_reached(mean_defined(own), mean_defined(drawn_own))))


def _reached(observed: np.ndarray, null: np.ndarray) -> float:
    """The fraction of assignments, including the observed one, that give at least as much."""
    if np.isnan(observed) or np.isnan(null).any():
        return math.nan
    return float((null >= observed - 1e-12).mean())


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
