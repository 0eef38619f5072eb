"""What a batch takes of the device's memory; where that does not hold it, a smaller one, and a word about it."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import psutil
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from headwise.errors import HeadwiseError, HeadwiseWarning
from headwise.io.system import memory_limits
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
    if isinstance(error, MemoryElsewhere) or (team.size == 1 and not team.bound):
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


class Live(TorchDispatchMode):
    """The most bytes that tensors made inside took at one time, on any device.

    Example:
        >>> with Live() as live:
        ...     model(**batch).loss.backward()
        >>> live.peak
        48234496
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {_storage(each)._cdata for each in tree_leaves((args, kwargs)) if _plain(each)}
        out = func(*args, **(kwargs or {}))
        for each in filter(_plain, tree_leaves(out)):
            storage = _storage(each)
            if storage._cdata in before or storage._cdata in self._known:
                continue
            self._known.add(storage._cdata)
            self.now += storage.nbytes()
            weakref.finalize(storage, self._freed, storage._cdata, storage.nbytes())
        self.peak = max(self.peak, self.now)
        return out

    def _freed(self, place: int, size: int) -> None:
        self._known.discard(place)
        self.now -= size


def _plain(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor) and value.device.type != "meta" and type(value) in (torch.Tensor, nn.Parameter)
    )


def _storage(tensor: torch.Tensor) -> Any:
    return tensor.untyped_storage()


def weight_bytes(model: nn.Module) -> int:
    """What a model's parameters take, wherever they are."""
    return sum(p.numel() * p.element_size() for p in model.parameters())


def free_bytes(device: torch.device) -> int:
    """What is left on a device; of the machine's memory also as far as a limit on this process or container allows."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept
    return min([psutil.virtual_memory().available, *memory_limits()])


def peak_of(run: Callable[[], Any], device: torch.device) -> int:
    """The most bytes that a piece of work took at one time beside what was there before."""
    if device.type != "cuda":
        with Live() as live:
            run()
        return live.peak
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    run()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def of_rows(run: Callable[[int], Any], device: torch.device) -> Callable[[int], int]:
    """How many bytes a batch of so many rows takes, from what ``run`` takes for one row and for two."""
    one, two = (peak_of(partial(run, rows), device) for rows in (1, 2))
    return lambda rows: one + (rows - 1) * max(0, two - one)


def in_words(size: float) -> str:
    """Bytes as people say them.

    Example:
        >>> in_words(16_060_522_496)
        '16.1 GB'
    """
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.0f} MB"
