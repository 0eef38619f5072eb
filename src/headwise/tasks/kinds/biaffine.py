"""Scores for pairs of positions: a projection for each end, a bilinear form between (Dozat and Manning 2017)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Projection(nn.Module):
    """A linear layer, LeakyReLU, and dropout of the same units at all positions of a sentence."""

    def __init__(self, hidden: int, size: int, dropout: float):
        super().__init__()
        self.linear = nn.Linear(hidden, size)
        self.dropout = dropout

    def forward(self, states: Tensor) -> Tensor:
        out = F.leaky_relu(self.linear(states), 0.1)
        return out * F.dropout(torch.ones_like(out[:, :1]), self.dropout, self.training)


class Biaffine(nn.Module):
    """``x^T U y + a^T x + b^T y + c`` for every pair and output; initialized to zero, which prefers no pair."""

    def __init__(self, left: int, right: int, outputs: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(outputs, left + 1, right + 1))

    def forward(self, left_BXI: Tensor, right_BYJ: Tensor) -> Tensor:
        """Scores ``(B, X, Y, outputs)``, in full precision."""
        left, right = F.pad(left_BXI, (0, 1), value=1.0), F.pad(right_BYJ, (0, 1), value=1.0)
        half = torch.einsum("bxi,oij->bxoj", left, self.weight)
        return torch.einsum("bxoj,byj->bxyo", half, right).float()


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """The mean of each example over its valid positions, 0 if it has none: ``(B, ...) -> (B,)``."""
    places = tuple(range(1, values.dim()))
    return (values * mask).sum(places) / mask.sum(places).clamp(min=1)


def marked(place_BG: Tensor, value_BG: Tensor, size: int) -> Tensor:
    """Write values to their positions in a row of ``size`` zeros; negative positions are ignored.

    Example:
        >>> marked(torch.tensor([[2, -1]]), torch.tensor([[7, 9]]), 4).tolist()
        [[0, 0, 7, 0]]
    """
    row = value_BG.new_zeros(len(place_BG), size + 1)  # the last takes what has no place
    return row.scatter(1, place_BG.masked_fill(place_BG < 0, size), value_BG)[:, :size]


def cross_entropy(scores: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy at every position; 0 where the target is -1."""
    flat = F.cross_entropy(scores.flatten(0, -2), target.flatten().long(), ignore_index=-1, reduction="none")
    return flat.view(target.shape)
