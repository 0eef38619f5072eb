"""Heads of one layer that lie on several processes (tensor parallelism): each gates and reads those it has.

Activations stay where they are. What is measured of them, a number or a vector for each head, is summed over processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headwise.errors import HeadwiseError


@dataclass(frozen=True)
class Share:
    """Which part of a layer's heads this process has."""

    rank: int
    size: int
    group: Any

    def of(self, heads: Sequence[int]) -> tuple[int, ...]:
        """This process's heads among a layer's."""
        each = len(heads) // self.size
        return tuple(heads[self.rank * each : (self.rank + 1) * each])


def share_of(module: nn.Module | None, heads: int) -> Share | None:
    """The part of the heads before a projection that this process has; None where it has all of them."""
    weight = getattr(module, "weight", None)
    for axis, placement in enumerate(getattr(weight, "placements", ())):
        if placement.is_shard(1):  # of the projection's input, which holds the heads
            mesh = weight.device_mesh  # type: ignore[union-attr]
            if heads % mesh.size(axis):
                seen = f"{heads} heads of a layer on {mesh.size(axis)} processes"
                raise HeadwiseError(seen, "as many on each", "a number of processes that divides the heads")
            return Share(mesh.get_local_rank(axis), mesh.size(axis), mesh.get_group(axis))
    return None


def summed(values: Tensor, share: Share | None) -> Tensor:
    """The sum over the processes that hold a layer's heads; each has zeros for the heads of the others."""
    if share is None:
        return values
    whole = values.detach().clone()
    torch.distributed.all_reduce(whole, group=share.group)
    return whole


def joined(values: Tensor, share: Share | None) -> Tensor:
    """Values of all heads out of each process's own, which has NaN for those of the others."""
    if share is None:
        return values
    if values.requires_grad:
        seen = "a gradient of heads' outputs that lie on several processes"
        raise HeadwiseError(seen, "outputs without gradients: captured(..., lambda z: z.detach())")
    missing = values.isnan()
    nowhere = summed(missing.float(), share) == share.size
    return summed(values.nan_to_num(0), share).masked_fill(nowhere, torch.nan)


def shared(values: Tensor | None, share: Share | None) -> Tensor | None:
    """Gates or references, whose gradients are summed over the processes that use some of them each."""
    if values is None or share is None or not values.requires_grad:
        return values
    return _Shared.apply(values, share)


class _Shared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, share: Share) -> Tensor:
        ctx.share = share
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return summed(gradients[0].contiguous(), ctx.share), None
