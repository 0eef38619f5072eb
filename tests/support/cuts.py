"""What the tests of cutting and exporting share: every family and stack, masks of several kinds, outputs."""

from __future__ import annotations

import torch
from torch import nn

from headwise.heads.families import EXACT
from headwise.heads.gates import Heads

SEVERAL = ("t5", "bart")
CASES = [(f, stack) for f in sorted(EXACT) for stack in (("encoder", "decoder", "cross") if f in SEVERAL else (None,))]
KINDS = ("uneven", "first layer empty", "all")


def mask_of(heads: Heads, kind: str) -> torch.Tensor:
    """A mask of whole key-value groups, but for the kind ``single``."""
    groups = torch.zeros(heads.num_layers, heads.num_kv_heads, dtype=torch.bool)
    if kind == "uneven":  # different heads, and different numbers of them where there are enough
        groups[0, 1] = groups[1, 0] = True
        groups[1, 2:3] = True
    elif kind == "first layer empty":
        groups[0], groups[1, -1] = True, True
    elif kind == "even":
        groups[:, 1] = True
    elif kind == "single":  # also of heads that share keys and values
        mask = torch.zeros(heads.shape, dtype=torch.bool)
        mask[0, 0] = mask[1, 3] = True
        return mask
    elif kind == "all":
        groups[:] = True
    return groups.repeat_interleave(heads.num_heads // heads.num_kv_heads, dim=1)


def answers(model: nn.Module, batch: dict) -> torch.Tensor:
    """All tensors of a model's output, as one vector."""
    with torch.no_grad():
        out = model(**batch)
    return torch.cat([t.flatten() for t in out.to_tuple() if isinstance(t, torch.Tensor)])


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return (found - expected).abs().max().item()
