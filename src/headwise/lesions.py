"""Lesion each task's heads and measure every task: the passes behind a dissociation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from headwise.dissociation import Counts, Dissociation
from headwise.errors import HeadwiseError
from headwise.evaluate import Score, chance, evaluate
from headwise.heads import Heads
from headwise.importance import Importance
from headwise.metrics import metrics
from headwise.model import MultiTaskModel
from headwise.selection import random_heads, relabelled, top

GRID = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
ScoreMaps = Mapping[str, torch.Tensor | Importance]


def dissociate(
    model: MultiTaskModel,
    scores: ScoreMaps,
    fractions: float | Sequence[float] = 0.3,
    *,
    random: int = 3,
    keep_per_layer: int = 0,
    split: str = "dev",
    limit: int | None = None,
    resamples: int | None = None,
    seed: int = 0,
    undefined: str = "refuse",
    told: Callable[[str], None] = lambda line: None,
) -> Dissociation:
    """Measure every task while each task's top heads, or random ones, are closed; one pass over each task's data.

    Args:
        model: trained on the tasks.
        scores: each task's importance, ``{task: (L, H)}``; two tasks or more.
        fractions: shares of the heads to close; several give D(α) and lesion curves from the same pass.
        random: random controls per fraction.
        keep_per_layer: heads per layer that random controls leave (the released code leaves one).
        split: measured on this split.
        limit: on a seeded sample of this many rows.
        resamples: bootstrap draws over examples, for intervals and p-values; without it enough for so many tasks.
        seed: of the random controls and the bootstrap.
        undefined: what to do with a task that scores 0 without a lesion: "refuse", or "leave" it without D.
        told: called with a line for every task measured.

    Example:
        >>> scores = {task: importance(model, task) for task in model.tasks}
        >>> print(dissociate(model, scores, fractions=(0.1, 0.3, 0.5)))
    """
    grid = [float(f) for f in ([fractions] if isinstance(fractions, (int, float)) else fractions)]
    tasks, maps = list(scores), [score.scores if isinstance(score, Importance) else score for score in scores.values()]
    if len(tasks) < 2:
        raise HeadwiseError(f"one task, {tasks}", "two tasks or more: heads come apart between tasks")
    if not grid or random < 0:
        raise HeadwiseError(f"fractions={grid}, random={random}", "a fraction or more, and random=0 or more")
    shape = Heads.of(model.encoder).shape
    for task, scoring in zip(tasks, maps):
        if tuple(scoring.shape) != shape:
            raise HeadwiseError(f"scores of {task!r} have shape {tuple(scoring.shape)}", f"{shape}, the model's heads")
    masks = lesion_masks(maps, grid, random, keep_per_layer, seed)  # (F, K-1, L, H)
    gates = torch.cat([torch.ones(1, *shape), (~masks.flatten(0, 1)).float()])
    found = {}
    for task in tasks:
        found[task] = evaluate(model, task, gates, split=split, limit=limit)
        told(f"{found[task][0]}; {len(gates) - 1} lesions")
    return _assembled(tasks, found, grid, resamples, seed, undefined)


def lesion_masks(maps: list[torch.Tensor], grid: list[float], random: int, keep: int, seed: int) -> torch.Tensor:
    """Each map's top heads and random controls at every fraction, (F, maps + random, L, H)."""
    alive = ~maps[0].isnan()
    rows = []
    for fraction in grid:
        drawn = [random_heads(maps[0].shape, fraction, 1000 * seed + i, keep, alive) for i in range(random)]  # type: ignore[arg-type]
        rows.append(torch.stack([top(scores.cpu(), fraction) for scores in maps] + drawn))
    return torch.stack(rows)


def _assembled(
    tasks: list[str], found: dict[str, list[Score]], grid: list[float], resamples: int | None, seed: int, undefined: str
) -> Dissociation:
    counts = [lesion_counts(found[task], len(grid)) for task in tasks]
    collapsed = np.stack([_laid([s.collapsed for s in found[task]], len(grid)) for task in tasks], 1)
    how = {"collapsed": collapsed, "resamples": resamples, "seed": seed, "undefined": undefined}
    result = Dissociation.of(tasks, fractions=grid, counts=counts, **how)
    classes = [all(isinstance(p, int) for p in found[task][0].predictions) for task in tasks]
    if not any(classes):
        return result
    accuracy = [lesion_counts(found[t], len(grid), "accuracy") if ok else None for t, ok in zip(tasks, classes)]
    floors = [chance(found[t][0].golds) if ok else np.nan for t, ok in zip(tasks, classes)]
    floors = [floor if floor < 1 else np.nan for floor in floors]  # answers of one class leave no room above chance
    return result.beside(counts=accuracy, chance=floors, resamples=resamples, seed=seed)


def _laid(values: list, fractions: int) -> np.ndarray:
    """One value for no lesion and one per fraction and lesion, as (F, K): no lesion stands first in every row."""
    rest = np.asarray(values[1:]).reshape(fractions, -1, *np.shape(values[0]))
    first = np.broadcast_to(np.asarray(values[0]), (fractions, 1, *np.shape(values[0])))
    return np.concatenate([first, rest], 1)


def lesion_counts(scores: list[Score], fractions: int, name: str | None = None) -> Counts:
    """A task's counts under every lesion, (n, F, K, s)."""
    metric = metrics[name or scores[0].metric]
    each = [metric.counts(score.predictions, score.golds) for score in scores]
    if len({count.shape[-1] for count in each}) > 1:  # a lesion named a class nobody else did: count all in one table
        golds = scores[0].golds
        every = metric.counts([p for score in scores for p in score.predictions], golds * len(scores))
        each = list(every.reshape(len(scores), len(golds), -1))
    return Counts(np.moveaxis(_laid(each, fractions), 2, 0), metric.value)


def null_matrices(
    model: MultiTaskModel,
    scores: ScoreMaps,
    fraction: float = 0.3,
    draws: int = 99,
    *,
    split: str = "dev",
    limit: int | None = None,
    seed: int = 0,
) -> np.ndarray:
    """Performances ``(draws, T, T)`` with the tasks' heads dealt anew: the null of `Dissociation.permutation_test`."""
    maps = [score.scores if isinstance(score, Importance) else score for score in scores.values()]
    masks = torch.stack([top(scores, fraction) for scores in maps])
    dealt = torch.stack([relabelled(masks, 1000 * seed + i) for i in range(draws)])  # (draws, T, L, H)
    gates = (~dealt.flatten(0, 1)).float()
    rows = [[s.value for s in evaluate(model, task, gates, split=split, limit=limit)] for task in scores]
    return np.asarray(rows).reshape(len(maps), draws, len(maps)).transpose(1, 0, 2)
