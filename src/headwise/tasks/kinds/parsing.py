"""The best tree and the sum over all trees, for a batch at once: Eisner, Chu-Liu/Edmonds, CKY, inside.

Legend: B batch, W words, P fence posts between words (W + 1). Charts are stored twice, by span start and by span end,
the latter with decreasing widths, so that all splits of all spans of one width are two slices and one sum. The best
tree is read back from the best splits, and span probabilities are the gradient of the log-partition.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

Combine = Callable[[Tensor], Tensor]


class Best:
    """The maximum over the last axis; records the arg-max of each call."""

    def __init__(self) -> None:
        self.at: list[Tensor] = []

    def __call__(self, scores: Tensor) -> Tensor:
        value, at = scores.max(-1)
        self.at.append(at)
        return value


def total(scores: Tensor) -> Tensor:
    return torch.logsumexp(scores, -1)


# -- constituents: scores_BPP[b, i, j] is worth a bracket over words i to j (end exclusive)


def inside(scores_BPP: Tensor, lengths_B: Tensor, combine: Combine = total) -> Tensor:
    """All binary trees of each sentence, combined: ``total`` gives the log-partition, `Best` the best score."""
    batch, posts, _ = scores_BPP.shape
    words = posts - 1
    by_start = scores_BPP.new_zeros(batch, posts, posts)  # [b, start, width]
    by_end = scores_BPP.new_zeros(batch, posts, posts)  # [b, end, posts - width]
    for width in range(1, words + 1):
        value = scores_BPP.diagonal(width, 1, 2)
        if width > 1:
            left = by_start[:, : posts - width, 1:width]
            right = by_end[:, width:, posts - width + 1 :]
            value = value + combine(left + right)
        by_start[:, : posts - width, width] = value
        by_end[:, width:, posts - width] = value
    return by_start[torch.arange(batch, device=lengths_B.device), 0, lengths_B]


def marginals(scores_BPP: Tensor, lengths_B: Tensor) -> Tensor:
    """The probability of every bracket under the tree CRF; works with gradients disabled."""
    with torch.inference_mode(False), torch.enable_grad():
        leaf = scores_BPP.float().clone().detach().requires_grad_()
        return torch.autograd.grad(inside(leaf, lengths_B.clone()).sum(), leaf)[0]


@torch.no_grad()
def cky(scores_BPP: Tensor, lengths_B: Tensor) -> Tensor:
    """The brackets of the best binary tree, as a bool mask like ``scores_BPP``.

    Example:
        >>> scores = torch.zeros(1, 4, 4)
        >>> scores[0, 1, 3] = 1
        >>> cky(scores, torch.tensor([3])).nonzero()[:, 1:].tolist()
        [[0, 1], [0, 3], [1, 2], [1, 3], [2, 3]]
    """
    splits, words = Best(), scores_BPP.shape[1] - 1
    inside(scores_BPP.float(), lengths_B, splits)
    brackets = torch.zeros_like(scores_BPP, dtype=torch.bool)
    brackets[torch.arange(len(brackets), device=brackets.device), 0, lengths_B] = True
    for width in range(words, 1, -1):
        b, start = brackets.diagonal(width, 1, 2).nonzero(as_tuple=True)
        middle = start + 1 + splits.at[width - 2][b, start]
        brackets[b, start, middle] = brackets[b, middle, start + width] = True
    return brackets


# -- dependencies: scores_BWH[b, d, h] is worth word d hanging on head h; h = 0 is the root, h = w + 1 is word w


@torch.no_grad()
def eisner(scores_BWH: Tensor, lengths_B: Tensor) -> Tensor:
    """Heads of the best projective tree with one root word; 0 for absent words (Eisner 1996).

    Example:
        >>> eisner(torch.tensor([[[9.0, 0, 1], [5, 8, 0]]]), torch.tensor([2])).tolist()
        [[0, 1]]
    """
    splits, words = Best(), scores_BWH.shape[1]
    _projective(scores_BWH.float(), lengths_B, splits)
    spans = {name: scores_BWH.new_zeros(len(lengths_B), words, words, dtype=torch.bool) for name in _SPANS}
    heads = torch.zeros_like(scores_BWH[..., 0], dtype=torch.long)
    every, root = torch.arange(len(heads), device=heads.device), splits.at[-1]
    spans["left"][every, 0, root] = spans["right"][every, root, lengths_B - 1] = True
    for gap in range(words - 1, 0, -1):
        _read_back(spans, heads, gap, *splits.at[3 * gap - 3 : 3 * gap])
    return heads


# Spans of words from first to last; right: complete, hanging on its first word; left: on its last; open: with an arc
# over the whole. Charts by where a span begins (from) and where it ends (to).
_SPANS = ("right", "left", "open_right", "open_left")
_CHARTS = ("right_from", "right_to", "left_from", "left_to", "open_right_from", "open_left_to")


def _projective(scores_BWH: Tensor, lengths_B: Tensor, combine: Combine) -> Tensor:
    batch, words, _ = scores_BWH.shape
    arcs = scores_BWH[:, :, 1:]
    # last axis: the gap from first to last word, rising in "from" and falling in "to"
    chart = {name: scores_BWH.new_zeros(batch, words, words) for name in _CHARTS}
    for gap in range(1, words):
        _widen(chart, arcs, gap, combine)
    left = chart["left_from"][:, 0]  # words 0 to r, hanging on r
    last, word = (lengths_B - 1)[:, None], torch.arange(words, device=scores_BWH.device)
    right = chart["right_to"].gather(1, last[:, :, None].expand(-1, 1, words))[:, 0]
    right = right.gather(1, words - 1 - (last - word).clamp(min=0))  # words r to the last, hanging on r
    every = left + right + scores_BWH[:, :, 0]
    return combine(every.masked_fill(word > last, -1e30))


def _widen(chart: dict[str, Tensor], arcs: Tensor, gap: int, combine: Combine) -> None:
    """Fill in all spans whose last word is ``gap`` after their first."""
    words = arcs.shape[1]
    spans = words - gap

    def split(first: str, second: str, skip: int, reach: int) -> Tensor:
        """Gaps from ``skip`` on in the first part, down to ``reach`` in the second."""
        head = chart[first][:, :spans, skip : gap + skip]
        tail = chart[second][:, gap:, spans - reach : words - reach]
        return combine(head + tail)

    joined = split("right_from", "left_to", 0, 0)
    chart["open_right_from"][:, :spans, gap] = joined + arcs.diagonal(-gap, 1, 2)
    chart["open_left_to"][:, gap:, spans - 1] = joined + arcs.diagonal(gap, 1, 2)
    right = split("open_right_from", "right_to", 1, 0)
    left = split("left_from", "open_left_to", 0, 1)
    chart["right_from"][:, :spans, gap] = chart["right_to"][:, gap:, spans - 1] = right
    chart["left_from"][:, :spans, gap] = chart["left_to"][:, gap:, spans - 1] = left


def _read_back(spans: dict[str, Tensor], heads: Tensor, gap: int, joined: Tensor, right: Tensor, left: Tensor) -> None:
    """Expand the spans of one gap that are part of the best tree into their sub-spans and arcs."""

    def here(name: str, splits: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        b, first = spans[name].diagonal(gap, 1, 2).nonzero(as_tuple=True)
        return b, first, first + splits[b, first], first + gap

    b, first, middle, last = here("right", right)
    spans["open_right"][b, first, middle + 1] = spans["right"][b, middle + 1, last] = True
    b, first, middle, last = here("left", left)
    spans["left"][b, first, middle] = spans["open_left"][b, middle, last] = True
    for name in ("open_right", "open_left"):
        b, first, middle, last = here(name, joined)
        spans["right"][b, first, middle] = spans["left"][b, middle + 1, last] = True
        child, parent = (last, first) if name == "open_right" else (first, last)
        heads[b, child] = parent + 1


class Contraction(NamedTuple):
    """A cycle contracted to one node, and what is needed to expand it."""

    cycle_BN: Tensor  # the nodes of the cycle
    node_B: Tensor  # the node that stands for them (-1: this sentence had no cycle)
    heads_BN: Tensor  # heads before
    enter_BN: Tensor  # where an arc from each node enters the cycle
    leave_BN: Tensor  # which node of the cycle each node depends on


def chu_liu_edmonds(scores_BWH: Tensor, lengths_B: Tensor) -> Tensor:
    """Heads of the best tree with one root word, crossing arcs allowed; 0 for absent words.

    Arcs from the root get a penalty so large that the best tree has one of them (Zmigrod et al. 2020).

    Example:
        >>> chu_liu_edmonds(torch.tensor([[[2.0, 0, 9], [3, 9, 0]]]), torch.tensor([2])).tolist()
        [[2, 0]]
    """
    scores = _graph(scores_BWH.detach().double(), lengths_B)
    contractions: list[Contraction] = []
    while True:
        heads = scores.argmax(-1)
        cycle = _one_cycle(heads)
        if not cycle.any():
            break
        scores, contraction = _contract(scores, heads, cycle)
        contractions.append(contraction)
    for contraction in reversed(contractions):
        heads = _expand(heads, contraction)
    return heads[:, 1:]


def _graph(scores_BWH: Tensor, lengths_B: Tensor) -> Tensor:
    """Square scores over root and words: no loops, absent words attach to the root, root arcs are penalized."""
    batch, words, nodes = scores_BWH.shape
    node = torch.arange(nodes, device=scores_BWH.device)
    absent = node > lengths_B[:, None]
    graph = scores_BWH.new_full((batch, nodes, nodes), -math.inf)
    graph[:, 1:] = scores_BWH.masked_fill(absent[:, None] | absent[:, 1:, None] | (node[1:, None] == node), -math.inf)
    finite = graph.masked_fill(graph.isinf(), 0)
    dear = 1 + 2 * (words + 1) * finite.abs().amax((1, 2))
    graph[:, 1:, 0] -= dear[:, None]
    graph[:, :, 0] = graph[:, :, 0].masked_fill(absent, 0)
    graph[:, 0, 0] = 0
    return graph


def _one_cycle(heads_BN: Tensor) -> Tensor:
    """The nodes of one cycle in each sentence; none if it is a tree."""
    nodes = heads_BN.shape[1]
    far, top = heads_BN, torch.arange(nodes, device=heads_BN.device).expand_as(heads_BN)
    for _ in range(nodes.bit_length()):  # after 2^k steps every walk is on a cycle; top: the largest node met
        top = torch.maximum(top, top.gather(1, far))
        far = far.gather(1, far)
    cyclic = torch.zeros_like(heads_BN, dtype=torch.bool).scatter(1, far, True)
    cyclic[:, 0] = False  # the root's own loop
    name = top.masked_fill(~cyclic, -1)
    return cyclic & (name == name.amax(1, keepdim=True))


def _contract(scores: Tensor, heads: Tensor, cycle: Tensor) -> tuple[Tensor, Contraction]:
    inner, has_cycle = cycle[:, :, None], cycle.any(1)
    kept = scores.gather(2, heads[:, :, None])  # what a node of the cycle gives up when an arc enters there
    enter, enter_at = (scores - kept).masked_fill(~inner, -math.inf).max(1)  # by head
    leave, leave_from = scores.masked_fill(~cycle[:, None], -math.inf).max(2)  # by dependent
    node = cycle.int().argmax(1)
    stands = torch.nn.functional.one_hot(node, cycle.shape[1]).bool()
    new = scores.masked_fill(inner | cycle[:, None], -math.inf)
    new = torch.where(stands[:, None] & ~inner, leave[:, :, None], new)
    new = torch.where(stands[:, :, None] & ~cycle[:, None], enter[:, None], new)
    new[:, :, 0] = new[:, :, 0].masked_fill(cycle & ~stands, 0)  # nodes inside wait on the root
    new = torch.where(has_cycle[:, None, None], new, scores)
    return new, Contraction(cycle, torch.where(has_cycle, node, -1), heads, enter_at, leave_from)


def _expand(heads: Tensor, step: Contraction) -> Tensor:
    node = step.node_B.clamp(min=0)[:, None]
    outer = heads.gather(1, node)  # the head of the whole cycle
    broken = step.enter_BN.gather(1, outer)  # the node whose arc inside the cycle gives way
    opened = torch.where(heads == step.node_B[:, None], step.leave_BN, heads)
    opened = torch.where(step.cycle_BN, step.heads_BN, opened)
    return torch.where((step.node_B >= 0)[:, None], opened.scatter(1, broken, outer), heads)
