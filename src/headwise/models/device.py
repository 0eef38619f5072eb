"""The device to run on, its memory, and smaller batches after memory ran out, in all processes."""

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
    """Have the other processes begin again too; not possible while they wait inside a forward of this one."""
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
    return type(value) in (torch.Tensor, nn.Parameter) and value.device.type != "meta"


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
