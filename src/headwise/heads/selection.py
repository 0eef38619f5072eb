"""From scores to masks: the top fraction, floors per layer, key-value groups, random controls, overlap.

Scores are ``(layers, heads)`` tensors, NaN for absent heads; masks are bool, True = selected. Fractions always refer to
all original heads of the model: 0.3 of a 12 x 12 model is 43 heads before and after a cut. Ties go to the lower layer,
then to the lower head.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from headwise.errors import HeadwiseError


def budget(fraction: float, heads: int) -> int:
    """The number of heads of a fraction, rounded down; 0.29 of 100 is 29 although 0.29 * 100 = 28.999999999999996."""
    if not 0 <= fraction <= 1:
        hint = f"{fraction / 100:g} for {fraction:g} %" if fraction > 1 else ""
        raise HeadwiseError(f"fraction {fraction}", "a number from 0 to 1", hint)
    return math.floor(fraction * heads + 1e-6)


def require_share(fraction: float, alive: torch.Tensor) -> None:
    """Raise if a fraction of all heads is less than one head or more than the existing ones, ``(L, H)``."""
    count, living = alive.numel(), int(alive.sum())
    asked = budget(fraction, count)
    if not 1 <= asked <= living:
        fitting = math.floor(100 * living / count) if asked else math.ceil(100 / count)
        there = f", of which {living} exist" if living < count else ""
        seen = f"alpha={fraction} is {asked or 'none'} of {count} heads{there}"
        raise HeadwiseError(
            seen, "a fraction of at least one head and at most the existing ones", f"--alpha {fitting / 100}"
        )


def top(scores: torch.Tensor, fraction: float, *, keep_per_layer: int = 0) -> torch.Tensor:
    """The highest-scoring fraction of all heads, ranked over all layers together.

    Args:
        scores: ``(L, H)``; NaN is never selected.
        fraction: fraction of all L * H heads, rounded down.
        keep_per_layer: this many existing heads of every layer are not selected.

    Example:
        >>> top(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), 0.5)
        tensor([[False,  True],
                [ True, False]])
    """
    return _first(_ranked(scores), fraction, keep_per_layer)


def bottom(scores: torch.Tensor, fraction: float, *, keep_per_layer: int = 0) -> torch.Tensor:
    """The lowest-scoring fraction of all heads, in the reverse order of ``top``."""
    living, order = _ranked(scores)
    return _first((living, order.flip(0)), fraction, keep_per_layer)


def random_heads(
    shape: tuple[int, int],
    fraction: float,
    seed: int,
    keep_per_layer: int = 0,
    alive: torch.Tensor | None = None,
) -> torch.Tensor:
    """A random control of the same size as ``top``; with the same seed, larger fractions contain smaller ones.

    Example:
        >>> int(random_heads((12, 12), 0.3, seed=1, keep_per_layer=1).sum())
        43
    """
    scores = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    if alive is not None:
        if tuple(alive.shape) != tuple(shape):
            raise HeadwiseError(f"alive of shape {tuple(alive.shape)}", f"{tuple(shape)}")
        scores = scores.masked_fill(~alive.cpu().bool(), math.nan)
    return top(scores, fraction, keep_per_layer=keep_per_layer)


def matched_heads(mask: torch.Tensor, seed: int, alive: torch.Tensor | None = None) -> torch.Tensor:
    """A random control with as many heads in every layer as a mask has.

    Example:
        >>> mask = torch.tensor([[True, True, False], [False, False, False]])
        >>> matched_heads(mask, seed=0).sum(1).tolist()
        [2, 0]
    """
    drawn = torch.rand(mask.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    if alive is not None:
        drawn = drawn.masked_fill(~alive.cpu().bool(), -1.0)
    ranks = drawn.argsort(1, descending=True).argsort(1)
    return (ranks < mask.cpu().sum(1, keepdim=True)).to(mask.device)


def ties(scores: torch.Tensor, fraction: float) -> int:
    """The number of heads that tie at the cut, where ``top`` selects some of equal scores; 0 for a clean cut.

    Example:
        >>> ties(torch.tensor([[0.9, 0.5], [0.5, 0.1]]), 0.5), ties(torch.zeros(2, 2), 0.5)
        (2, 4)
    """
    mask, alive = top(scores, fraction), ~scores.isnan()
    if not mask.any() or not (alive & ~mask).any():
        return 0
    last = scores[mask].min()
    return int((scores == last).sum()) if (scores[alive & ~mask] == last).any() else 0


def relabelled(masks: torch.Tensor, seed: int) -> torch.Tensor:
    """Tasks' masks ``(T, L, H)`` with heads reassigned at random, the null of a permutation test for D.

    Each task keeps its number of heads and each head its number of tasks: pairs of tasks pool the heads that only one
    of them has and redistribute them (the curveball algorithm).
    """
    if masks.ndim != 3 or len(masks) < 2:
        raise HeadwiseError(f"masks of shape {tuple(masks.shape)}", "(tasks, layers, heads) of two tasks or more")
    flat, generator = masks.bool().cpu().flatten(1).clone(), torch.Generator().manual_seed(seed)
    for _ in range(20 * len(flat)):
        a, b = torch.randperm(len(flat), generator=generator)[:2]
        apart = (flat[a] ^ flat[b]).nonzero()[:, 0]
        mine = apart[torch.randperm(len(apart), generator=generator)[: int((flat[a] & ~flat[b]).sum())]]
        flat[a, apart], flat[b, apart] = False, True
        flat[a, mine], flat[b, mine] = True, False
    return flat.view(masks.shape).to(masks.device)


def close_groups(mask: torch.Tensor, kv_heads: int, how: str = "all") -> tuple[torch.Tensor, torch.Tensor]:
    """The mask in whole key-value groups, and the heads that differ from the original mask.

    ``all`` selects a group only if all of its heads are selected; ``any`` if one of them is.

    Example:
        >>> closed, difference = close_groups(torch.tensor([[True, True, True, False]]), kv_heads=2)
        >>> closed.tolist(), difference.tolist()
        ([[True, True, False, False]], [[False, False, True, False]])
    """
    layers, heads = _checked(mask).shape
    if kv_heads < 1 or heads % kv_heads:
        raise HeadwiseError(f"{kv_heads} key-value heads for {heads} query heads", f"a divisor of {heads}")
    if how not in ("all", "any"):
        raise HeadwiseError(f"how={how!r}", "'all' or 'any'")
    groups = mask.bool().view(layers, kv_heads, heads // kv_heads)
    whole = groups.all(-1) if how == "all" else groups.any(-1)
    closed = whole.repeat_interleave(heads // kv_heads, dim=1)
    return closed, closed ^ mask.bool()


def overlap(masks: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The fraction of heads that tasks share, ``|A ∩ B| / k`` (Li et al. 2023, Table 11), in their order.

    For sets of unequal size, k is their mean size, so the matrix is symmetric; two empty sets share nothing.
    """
    shapes = {name: tuple(mask.shape) for name, mask in masks.items()}
    if len(set(shapes.values())) != 1:
        raise HeadwiseError(f"masks of shapes {shapes}", "one shape for all")
    flat = torch.stack([mask.bool().flatten() for mask in masks.values()]).double()
    sizes = flat.sum(1)
    return flat @ flat.T / ((sizes[:, None] + sizes) / 2).clamp(min=1)


def per_layer(mask: torch.Tensor) -> torch.Tensor:
    """Selected heads of each layer, ``(..., L)`` for ``(..., L, H)`` (Li et al. 2023, Figure 4)."""
    return mask.bool().sum(-1)


def _checked(scores: torch.Tensor) -> torch.Tensor:
    if not isinstance(scores, torch.Tensor):
        hint = "its .scores" if hasattr(scores, "scores") else "torch.as_tensor(...)"
        raise HeadwiseError(f"a {type(scores).__name__}", "a tensor of scores (layers, heads)", hint)
    if scores.ndim != 2 or 0 in scores.shape:
        raise HeadwiseError(f"scores of shape {tuple(scores.shape)}", "(layers, heads)")
    return scores


def _ranked(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Which heads exist (L, H), and their flat indices, best first."""
    living = ~_checked(scores).isnan()
    if not living.any():
        raise HeadwiseError("scores that are all NaN", "a score for at least one head")
    order = scores.detach().double().nan_to_num(nan=0.0, posinf=math.inf, neginf=-math.inf).flatten()
    order = order.argsort(descending=True, stable=True)
    return living, order[living.flatten()[order]]


def _first(ranked: tuple[torch.Tensor, torch.Tensor], fraction: float, keep_per_layer: int) -> torch.Tensor:
    """The first heads of a ranking, skipping layers at their minimum."""
    living, order = ranked
    layers, heads = living.shape
    if not 0 <= keep_per_layer <= heads:
        raise HeadwiseError(f"keep_per_layer={keep_per_layer}", f"0 to {heads}")
    layer = order // heads
    turn = (layer[:, None] == torch.arange(layers, device=layer.device)).cumsum(0).gather(1, layer[:, None])[:, 0]
    order = order[turn <= (living.sum(1) - keep_per_layer)[layer]]
    count = budget(fraction, layers * heads)
    if count > len(order):
        most = len(order) / (layers * heads)
        raise HeadwiseError(
            f"fraction {fraction} is {count} heads", f"at most the {len(order)} free ones", f"{most:.4g}"
        )
    mask = torch.zeros(layers * heads, dtype=torch.bool, device=living.device)
    mask[order[:count]] = True
    return mask.view(layers, heads)
