"""When the device's memory does not hold a batch: a smaller one, and a word about it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TypeVar

import torch

from headwise.errors import HeadwiseWarning

LEAST = 64  # a budget of fewer tokens holds one short sentence: halving it would not help
T = TypeVar("T")


class Budget:
    """Padded tokens in one forward; halved each time the device's memory does not hold them.

    Example:
        >>> budget = Budget(8192)
        >>> budget.fit(lambda tokens: [forward(batch) for batch in batches(data, tokens)])
    """

    def __init__(self, tokens: int):
        self.tokens = tokens

    def fit(self, work: Callable[[int], T]) -> T:
        """Do some work under the budget, from its beginning again under half of it where memory ends."""
        while True:
            try:
                return work(self.tokens)
            except torch.OutOfMemoryError:
                if self.tokens < LEAST or _in_company():
                    raise
            self.tokens //= 2  # outside of the handler, which holds on to the tensors of the failed forward
            make_room(f"{self.tokens} tokens in a batch")


def _in_company() -> bool:
    """Whether other processes take part: those that a model lies on would wait for one that cut its batches alone."""
    group = torch.distributed
    return group.is_available() and group.is_initialized() and group.get_world_size() > 1


def make_room(what: str) -> None:
    """Give back what the device's allocator keeps, and say how work goes on."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    warnings.warn(f"the device is out of memory: going on with {what}", HeadwiseWarning, stacklevel=4)
