"""One layer's attention: the module that reads its heads, and the slice of each head in o, q, k and v.

Legend: B examples, T tokens, H heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from headwise.heads.families import Part
from headwise.heads.splitting import Share


@dataclass(frozen=True)
class Site:
    """One layer's attention: its output projection, and the slice of each head in q, k, v and o."""

    layer: int
    name: str
    module: Any
    attention: Any
    kept: tuple[int, ...]  # original numbers of the existing heads; empty in a layer without attention
    parts: dict[str, Part] = field(repr=False)
    head_dim: int = 0
    start: int = 0  # of the first head's slice in the module's input
    group: int = 1  # heads that share one key and value, before any cut
    inside: bool = False  # heads are reached in the attention call that the module makes (`headwise.heads.inside`)
    share: Share | None = None  # this process's part of the heads, where they lie on several

    @property
    def here(self) -> tuple[int, ...]:
        """The heads whose outputs this process has."""
        return self.kept if self.share is None else self.share.of(self.kept)

    def owners(self, part: Part) -> list[tuple[int, ...]]:
        """The heads of every row of a part, by original number: one head, or those of a group."""
        if len(part.rows) == len(self.kept):
            return [(head,) for head in self.kept]
        groups = sorted({head // self.group for head in self.kept})
        return [tuple(head for head in self.kept if head // self.group == group) for group in groups]

    def heads_of(self, given: torch.Tensor) -> torch.Tensor:
        """The outputs of the heads, (B, T, H, D), from the input of the module."""
        given = given.to_local() if hasattr(given, "placements") else given  # type: ignore[operator]
        size = len(self.here) * self.head_dim
        own = given if given.shape[-1] == size else given.narrow(-1, self.start, size)
        return own.unflatten(-1, (len(self.here), self.head_dim))

    def with_heads(self, given: torch.Tensor, own_BTHD: torch.Tensor) -> torch.Tensor:
        """The input of the module with other head outputs; additional columns, of a convolution, are unchanged."""
        own = own_BTHD.flatten(-2)
        if hasattr(given, "placements"):
            from torch.distributed.tensor import DTensor

            return DTensor.from_local(own, given.device_mesh, given.placements, run_check=False)
        if given.shape[-1] == own.shape[-1]:
            return own
        return torch.cat([given[..., : self.start], own, given[..., self.start + own.shape[-1] :]], -1)
