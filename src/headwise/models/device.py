"""The device to run on, and smaller batches after its memory ran out, in all processes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TypeVar

import torch

from headwise.errors import HeadwiseError, HeadwiseWarning
from headwise.models.processes import ALONE, MemoryElsewhere, Team

LEAST = 64  # with fewer tokens a batch is one short sentence: halving would not help
T = TypeVar("T")


def default_device(name: str | None = None) -> torch.device:
    """The device of this name, or the accelerator if there is one, or the CPU."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    numbered = [f"{accelerator.type}:{i}" for i in range(torch.accelerator.device_count())] if accelerator else []
    available = ["cpu", *([accelerator.type] if accelerator else []), *numbered]
    if name and str(name) not in available:
        raise HeadwiseError(f"no device {str(name)!r} here", f"one of: {', '.join(available)}", "--device cpu")
    return torch.device(name) if name else accelerator or torch.device("cpu")


class Budget:
    """The number of padded tokens in one forward pass; halved after each out-of-memory error.

    Example:
        >>> budget = Budget(8192)
        >>> budget.fit(lambda tokens: [forward(batch) for batch in batches(data, tokens)])
    """

    def __init__(self, tokens: int, team: Team = ALONE):
        self.tokens, self.team = tokens, team

    def fit(self, work: Callable[[int], T]) -> T:
        """Call ``work(tokens)``; after an out-of-memory error, start again with half the tokens."""
        while True:
            try:
                return work(self.tokens)
            except torch.OutOfMemoryError as error:
                _tell(error, self.team)
                if self.tokens < LEAST:
                    raise
            self.tokens //= 2  # outside the handler, which keeps the tensors of the failed forward alive
            make_room(f"{self.tokens} tokens in a batch")


def _tell(error: torch.OutOfMemoryError, team: Team) -> None:
    """Have the other processes begin again too; where they wait inside a forward of this one, they cannot be told."""
    if team.bound:
        seen = f"process {team.rank} of {team.size} ran out of memory in a forward that the others take part in"
        raise HeadwiseError(seen, "batches that fit", "tokens=1024, or half of what it was") from error
    if not isinstance(error, MemoryElsewhere):
        team.agree(False)


def make_room(what: str) -> None:
    """Release cached device memory and warn that work continues with ``what``."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    warnings.warn(f"out of device memory: continuing with {what}", HeadwiseWarning, stacklevel=4)
