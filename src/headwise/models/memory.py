"""When the device's memory does not hold a batch: a smaller one, in all processes, and a word about it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TypeVar

import torch

from headwise.errors import HeadwiseError, HeadwiseWarning
from headwise.models.processes import MemoryElsewhere, Team

LEAST = 64  # a budget of fewer tokens holds one short sentence: halving it would not help
T = TypeVar("T")


class Budget:
    """Padded tokens in one forward; halved each time the device's memory does not hold them.

    Example:
        >>> budget = Budget(8192)
        >>> budget.fit(lambda tokens: [forward(batch) for batch in batches(data, tokens)])
    """

    def __init__(self, tokens: int, team: Team = Team()):
        self.tokens, self.team = tokens, team

    def fit(self, work: Callable[[int], T]) -> T:
        """Do some work under the budget, from its beginning again under half of it where memory ends."""
        while True:
            try:
                return work(self.tokens)
            except torch.OutOfMemoryError as error:
                if not agreed(error, self.team) or self.tokens < LEAST:
                    raise
            self.tokens //= 2  # outside of the handler, which holds on to the tensors of the failed forward
            make_room(f"{self.tokens} tokens in a batch")


def agreed(error: torch.OutOfMemoryError, team: Team) -> bool:
    """Tell the other processes, which begin again too; an error where they wait inside a forward of this one."""
    if isinstance(error, MemoryElsewhere) or team.size == 1 and not team.bound:
        return True
    if team.bound:
        seen = f"process {team.rank} of {team.size} is out of memory in a forward that the others take part in"
        raise HeadwiseError(seen, "batches that fit", "tokens=1024, or half of what it was") from error
    team.agree(False)
    return True


def make_room(what: str) -> None:
    """Give back what the device's allocator keeps, and say how work goes on."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    warnings.warn(f"the device is out of memory: going on with {what}", HeadwiseWarning, stacklevel=4)
