"""A task's score for every head, with its uncertainty."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from headwise.io.display import Shown, heat_map, map_records, plot_map
from headwise.scoring.stability import TARGET, Blocks, agreement, stability


@dataclass(frozen=True)
class Importance(Shown):
    """A task's score for every head, with its standard error.

    ``scores`` rank heads; most estimators take absolute values, so a head that harms the task ranks high too.
    ``signed`` separates the two: the loss that closing the head adds, exactly or to first order. Heads above zero help,
    heads below zero harm.
    """

    task: str
    by: str
    scores: torch.Tensor  # (L, H); NaN for heads that were cut
    stderr: torch.Tensor  # (L, H); NaN if the estimator has none
    examples: int
    blocks: Blocks = field(repr=False)  # scores of random parts of the examples
    signed: torch.Tensor | None = None  # (L, H); None if the estimator has no sign
    signed_stderr: torch.Tensor | None = field(default=None, repr=False)

    @property
    def harmful(self) -> torch.Tensor:
        """Bool (L, H): heads whose closing lowers the loss by more than two standard errors."""
        if self.signed is None or self.signed_stderr is None:
            return torch.zeros(self.scores.shape, dtype=torch.bool)
        return self.signed + 2 * self.signed_stderr < 0

    def split_half(self, fraction: float = 0.3) -> float:
        """Agreement on the top heads between random halves of the examples, 0 to 1; NaN if there are no two halves."""
        blocks = len(self.blocks.filled)
        return agreement(self.blocks, fraction, blocks // 2) if blocks > 1 else math.nan

    def examples_needed(self, fraction: float = 0.3, target: float = TARGET) -> int | None:
        """Number of examples with which two samples would agree on this fraction of top heads, extrapolated.

        More than ``examples`` if there were too few; None if even 20 times as many would not suffice.
        """
        return stability(self.blocks, fraction, self.examples, target).needed

    def to_record(self) -> dict[str, Any]:
        """Plain values; signed scores only if the estimator has them."""
        record = {"by": self.by, "examples": self.examples}
        record |= {"scores": self.scores.tolist(), "stderr": self.stderr.tolist()}
        signed = {"signed": self.signed, "signed_stderr": self.signed_stderr}
        return record | {name: value.tolist() for name, value in signed.items() if value is not None}

    def finished(self, alive: torch.Tensor, normalize: str) -> Importance:
        """Set absent heads to NaN and normalize, also in the blocks."""

        def finish(values: torch.Tensor | None) -> torch.Tensor | None:
            return None if values is None else values.masked_fill(~alive, torch.nan) / lengths

        lengths: Any = 1
        if normalize == "l2":
            lengths = self.scores.masked_fill(~alive, 0).norm(dim=-1, keepdim=True).clamp_min(1e-20)
        names = ("scores", "stderr", "signed", "signed_stderr")
        sums = np.where(alive.numpy(), self.blocks.sums, np.nan)
        blocks = replace(self.blocks, sums=sums, normalized=normalize == "l2")
        return replace(self, blocks=blocks, **{name: finish(getattr(self, name)) for name in names})

    def __str__(self) -> str:
        top, harmful = _names(self.scores, 5), self.harmful
        text = f"{self.task}: top heads {top} by {self.by} over {self.examples} examples"
        if count := int(harmful.sum()):
            worst = _names((-self.signed).masked_fill(~harmful, torch.nan), 3)  # type: ignore[operator]
            text += f"; {count} harmful, first {worst}"
        return text

    def to_records(self) -> list[dict[str, Any]]:
        """One record per head: its score, standard error, and signed score where there is one."""
        maps = {"score": self.scores, "stderr": self.stderr, "signed": self.signed}
        return [{"task": self.task, **record} for record in map_records(**maps)]

    def plot(self, ax: Any = None) -> Any:
        """The scores as a heat map; returns matplotlib axes."""
        return plot_map(self.scores, self.task, ax, f"importance ({self.by})")

    def _repr_html_(self) -> str:
        return heat_map(self.scores, str(self), f"{self.examples} examples")


def _names(scores: torch.Tensor, count: int) -> str:
    """The best heads by name; heads that were cut are not listed."""
    order = scores.nan_to_num(-torch.inf).flatten().argsort(descending=True)[:count]
    order = order[~scores.flatten()[order].isnan()].tolist()
    return ", ".join(f"{i // scores.shape[1]}.{i % scores.shape[1]}" for i in order)
