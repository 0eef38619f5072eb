"""Which heads are closed, and which may still move, from a point of training on (MESH, Table I)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from headwise.errors import unknown
from headwise.heads.selection import bottom, random_heads, top
from headwise.tasks.languages import SETS
from headwise.training.methods.iat import check_share

THIRDS = ("all", "bottom", "middle", "top")
PRUNE = ("least", "most", "gates", "random")
TRAIN = ("most", "random")
Maps = Mapping[str, torch.Tensor]  # each pair's scores (L, H)


@dataclass(frozen=True)
class Trim:
    """Close a fraction of the heads, train a fraction of the rest; the paper's combination: ``Trim(0.3, train=0.3)``.

    Example:
        >>> Trim(prune=0.3, prune_by="random", where="top").third(12)
        slice(8, 12, None)
    """

    prune: float = 0.0
    """Fraction of all heads to close."""
    prune_by: str = "least"
    """The least or the most important, those with the lowest gates, or random ones."""
    each: str = "shared"
    """Whose importance decides: of all pairs together, or of each task, language or pair."""
    where: str = "all"
    """Close heads of all layers, or of the bottom, middle or top third alone."""
    train: float = 1.0
    """Fraction of all heads that a pair's batches may update from then on, among the open ones (IAT)."""
    train_by: str = "most"
    """The most important ones for the pair, or random ones."""
    delta: float = 0.5
    """Final fraction of training in which this applies; 1 starts at the first step."""
    by: str = "gradient"
    """The importance estimator."""
    examples: int = 10_000
    """For each pair's importance."""

    def __post_init__(self) -> None:
        for name in ("prune", "train", "delta"):
            check_share(name, getattr(self, name))
        for name, known in {"prune_by": PRUNE, "each": SETS, "where": THIRDS, "train_by": TRAIN}.items():
            if getattr(self, name) not in known:
                raise unknown(f"{name} of a trim", getattr(self, name), known)

    @property
    def needs_importance(self) -> bool:
        return (self.prune > 0 and self.prune_by in ("least", "most")) or (self.train < 1 and self.train_by == "most")

    def third(self, layers: int) -> slice:
        """The layers heads may be closed in; thirds of a number that is no multiple of three are rounded."""
        if self.where == "all":
            return slice(0, layers)
        number = THIRDS.index(self.where) - 1
        return slice(round(number * layers / 3), round((number + 1) * layers / 3))

    def closed(self, scores: Maps, keys: Mapping[str, str], seed: int) -> dict[str, torch.Tensor]:
        """Each pair's closed heads; ``scores`` are importances or gates, ``keys`` group the pairs that share a mask."""
        masks = {}
        for number, name in enumerate(dict.fromkeys(keys.values())):
            joint = together([scores[pair] for pair, own in keys.items() if own == name])
            masks[name] = self._mask(joint, 1000 * seed + number)
        return {pair: masks[own] for pair, own in keys.items()}

    def _mask(self, scores: torch.Tensor, seed: int) -> torch.Tensor:
        allowed = torch.full_like(scores, math.nan)
        allowed[self.third(len(scores))] = scores[self.third(len(scores))]
        if self.prune_by == "random":
            return random_heads(tuple(scores.shape), self.prune, seed, alive=~allowed.isnan())  # type: ignore[arg-type]
        return (top if self.prune_by == "most" else bottom)(allowed, self.prune)

    def movable(self, scores: Maps, closed: Maps, seed: int) -> dict[str, torch.Tensor]:
        """The heads that each pair's batches may update."""
        masks = {}
        for number, (pair, own) in enumerate(scores.items()):
            living = own.cpu().masked_fill(closed[pair].cpu(), math.nan)
            drawn = random_heads(tuple(own.shape), self.train, 1000 * seed + number, alive=~living.isnan())  # type: ignore[arg-type]
            masks[pair] = drawn if self.train_by == "random" else top(living, self.train)
        return masks


def together(scores: list[torch.Tensor]) -> torch.Tensor:
    """The mean of pairs' scores, each as a fraction of its sum, so that no pair dominates by the size of its loss."""
    return torch.stack([own.cpu() / own.abs().nansum().clamp_min(1e-20).cpu() for own in scores]).mean(0)
