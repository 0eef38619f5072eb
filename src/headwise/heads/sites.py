"""One layer's attention: the module that reads its heads, and where each head lies in it and in q, k and v.

Legend: B examples, T tokens, H heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from headwise.heads.families import Part


@dataclass(frozen=True)
class Site:
    """One layer's attention: its output projection, and where each head lies in q, k, v and o."""

    layer: int
    name: str
    module: Any
    attention: Any
    kept: tuple[int, ...]  # original numbers of the heads still there; none in a layer without attention
    parts: dict[str, Part] = field(repr=False)
    head_dim: int = 0
    start: int = 0  # of the first head's slice in the module's input
    group: int = 1  # heads that share one key and value, before any cut
    inside: bool = (
        False  # the module makes the attention call, and its heads are reached there (`headwise.heads.inside`)
    )

    def owners(self, part: Part) -> list[tuple[int, ...]]:
        """For every row of a part the heads it belongs to, by their original numbers: one head, or those of a group."""
        if len(part.rows) == len(self.kept):
            return [(head,) for head in self.kept]
        groups = sorted({head // self.group for head in self.kept})
        return [tuple(head for head in self.kept if head // self.group == group) for group in groups]

    def heads_of(self, given: torch.Tensor) -> torch.Tensor:
        """The outputs of the heads, (B, T, H, D), out of what the module is given."""
        size = len(self.kept) * self.head_dim
        own = given if given.shape[-1] == size else given.narrow(-1, self.start, size)
        return own.unflatten(-1, (len(self.kept), self.head_dim))

    def with_heads(self, given: torch.Tensor, own_BTHD: torch.Tensor) -> torch.Tensor:
        """What the module is given, with other outputs of the heads; a convolution's beside them stay."""
        own = own_BTHD.flatten(-2)
        if given.shape[-1] == own.shape[-1]:
            return own
        return torch.cat([given[..., : self.start], own, given[..., self.start + own.shape[-1] :]], -1)
