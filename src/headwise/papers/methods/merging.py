"""Merge encoders that were trained on one task each from the same start: means, TIES, and heads by Fisher.

TIES: Yadav et al. 2023. Fisher merging: Matena and Raffel 2022, with one weight for every parameter; here also with one
weight for every head and task, which leaves a head to the tasks that need it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from headwise.heads.gates import Heads

Tensors = dict[str, torch.Tensor]
KEPT = 0.2  # of each task's changes, which TIES keeps


def changes(encoder: Mapping[str, torch.Tensor], start: Mapping[str, torch.Tensor]) -> Tensors:
    """What training changed: a task vector."""
    return {name: encoder[name].float() - value.float() for name, value in start.items() if value.is_floating_point()}


def mean(vectors: Sequence[Tensors]) -> Tensors:
    """The mean of the task vectors."""
    return {name: torch.stack([one[name] for one in vectors]).mean(0) for name in vectors[0]}


def ties(vectors: Sequence[Tensors], kept: float = KEPT) -> Tensors:
    """Trim each vector to its largest changes, elect a sign for every parameter, average what agrees with it."""
    trimmed = [_trimmed(one, kept) for one in vectors]
    merged: Tensors = {}
    for name in vectors[0]:
        stack = torch.stack([one[name] for one in trimmed])
        agreed = stack * (stack.sign() == stack.sum(0).sign())
        merged[name] = agreed.sum(0) / (agreed != 0).sum(0).clamp_min(1)
    return merged


def _trimmed(vector: Tensors, kept: float) -> Tensors:
    sizes = torch.cat([value.abs().flatten() for value in vector.values()])
    least = sizes.kthvalue(max(1, round((1 - kept) * len(sizes)))).values
    return {name: value * (value.abs() > least) for name, value in vector.items()}


def weighted(vectors: Sequence[Tensors], weights: Sequence[Tensors]) -> Tensors:
    """The mean with a weight for every parameter and task, such as its Fisher information."""
    merged: Tensors = {}
    for name in vectors[0]:
        weight = torch.stack([one[name] for one in weights]) + 1e-12
        merged[name] = (torch.stack([one[name] for one in vectors]) * weight).sum(0) / weight.sum(0)
    return merged


def by_heads(vectors: Sequence[Tensors], needed: Sequence[torch.Tensor], encoder: nn.Module) -> Tensors:
    """The mean, but each head's rows weighted by how much each task needs the head.

    Args:
        vectors: of the tasks.
        needed: for each task how much it needs each head, (L, H); scaled to the same mean for every task.
        encoder: whose heads.
    """
    scaled = [one.float() / one[~one.isnan()].mean() for one in needed]
    names = {id(parameter): name for name, parameter in encoder.named_parameters()}
    ones = {name: torch.ones_like(value) for name, value in vectors[0].items()}
    weights = [{name: one.clone() for name, one in ones.items()} for _ in vectors]
    for site in Heads.of(encoder).sites:
        for part in (site.parts[name] for name in "qkvo" if name in site.parts):
            for group, rows in zip(site.owners(part), part.rows):
                tensors = [(part.module.weight, part.axis)]
                tensors += [(part.module.bias, 0)] if part.biased and part is not site.parts.get("o") else []
                for tensor, axis in tensors:
                    for weight, need in zip(weights, scaled):
                        own = weight[names[id(tensor)]]
                        own.index_fill_(axis, rows.to(own.device), float(need[site.layer, list(group)].mean()))
    return weighted(vectors, weights)


def applied(start: Mapping[str, torch.Tensor], change: Tensors, scale: float = 1.0) -> dict[str, Any]:
    """The start with a merged change."""
    return {n: (v.float() + scale * change[n]).to(v.dtype) if n in change else v for n, v in start.items()}
