"""Several processes that measure together: each reads its part of the batches, and all end with the whole result.

Under torchrun or ``accelerate launch`` every process runs the same program with the same model, whole or in parts
(FSDP). Batches are dealt out in turns; sums are joined in float64, answers are gathered. When one process runs out of
memory, all begin again with smaller batches.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from headwise.errors import HeadwiseError

T = TypeVar("T")
_apart = 0  # blocks of `apart` around
_groups: dict[int, Any] = {}


class MemoryElsewhere(torch.OutOfMemoryError):
    """Another process ran out of memory."""


@dataclass(frozen=True)
class Team:
    """The processes among which examples are split, and this one's place among them.

    Example:
        >>> team = Team.of(model)
        >>> for batch, counts in team.share(batches):
        ...     total += measure(batch) * counts
        >>> (total,) = team.summed([total])
    """

    rank: int = 0
    size: int = 1
    speaks: bool = True  # one of the processes that hold parts of the same layers speaks for all
    bound: bool = False  # forwards wait for the other processes, so one that stops early stops all

    @classmethod
    def of(cls, model: nn.Module) -> Team:
        """The team that measures a model: all processes, but for those that hold parts of its layers together."""
        if _apart or not _in_group():
            return cls()
        import torch.distributed as dist

        rank, size = dist.get_rank(), dist.get_world_size()
        bound, together = _together(model)
        if together > 1:
            return cls(rank // together, size // together, rank % together == 0, True)
        return cls(rank, size, True, bound)

    def reading(self, columns: Collection[str] | None) -> Team:
        """The team for data with these columns, None for batches of one's own.

        Where forwards wait for those of other processes, all must make as many. Long rows in windows and choices after
        a prompt take several to a batch: then every process reads everything.
        """
        several = columns is None or "window" in columns or "part" in columns
        return ALONE if self.bound and several else self

    def share(self, parts: Iterable[T]) -> Iterator[tuple[T, bool]]:
        """This process's parts, and whether they count: a last one again where other processes have one more."""
        count, last = 0, None
        for count, part in enumerate(parts, 1):
            own = (count - 1) % self.size == self.rank
            last = part if own or last is None else last
            if own:
                yield part, True
        if last is not None and self.rank >= count % self.size > 0:
            yield last, False

    def agree(self, fits: bool = True) -> None:
        """Meet the others; raises on all where the memory of one did not suffice."""
        if self.size == 1:
            return
        flag = torch.tensor([0 if fits else 1])
        self._all_reduce(flag)
        if int(flag) and fits:
            raise MemoryElsewhere("another process is out of memory")

    def summed(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The sums of float64 tensors over all processes, in float64."""
        if self.size == 1:
            return list(tensors)
        self.agree()
        flat = torch.cat([tensor.detach().double().cpu().flatten() for tensor in tensors]) * self.speaks
        self._all_reduce(flat)
        sizes = [tensor.numel() for tensor in tensors]
        return [part.view(tensor.shape) for part, tensor in zip(flat.split(sizes), tensors)]

    def everywhere(self, holds: bool) -> bool:
        """Whether something holds for all processes."""
        (count,) = self.summed([torch.tensor([float(holds)])])
        return int(count) == self.size

    def gathered(self, items: dict[Any, Any]) -> dict[Any, Any]:
        """What all processes found, by key."""
        if self.size == 1:
            return items
        self.agree()
        import torch.distributed as dist

        parts: list[Any] = [None] * dist.get_world_size()
        with _company():
            dist.all_gather_object(parts, items if self.speaks else {}, group=_group())
        return {key: value for part in parts for key, value in part.items()}

    def completed(self, part: Tensor) -> Tensor:
        """A tensor of which each process filled some places, the others being zero."""
        if self.size == 1:
            return part
        self.agree()
        whole = part.cpu() if part.dtype in (torch.float32, torch.float64) else part.cpu().float()
        whole = whole if self.speaks else torch.zeros_like(whole)
        self._all_reduce(whole)
        return whole.to(part)

    def _all_reduce(self, tensor: Tensor) -> None:
        import torch.distributed as dist

        with _company():
            dist.all_reduce(tensor, group=_group())


ALONE = Team()


@contextmanager
def _company() -> Iterator[None]:
    """Another process that ended is one message and no traceback of the network's."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        import torch.distributed as dist

        seen = f"process {dist.get_rank()} of {dist.get_world_size()} lost another one, which ended or was killed"
        raise HeadwiseError(seen, "all processes until the end", "run the same command again") from error


@contextmanager
def apart() -> Iterator[None]:
    """Inside, this process measures alone, though others are there: they may do something else.

    Example:
        >>> with headwise.models.processes.apart():
        ...     importance(model, tasks[rank])
    """
    global _apart
    _apart += 1
    try:
        yield
    finally:
        _apart -= 1


def join() -> bool:
    """Meet the processes that a launcher started beside this one; whether this one reports.

    All but the first are silent from then on. Without a launcher nothing happens.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or "RANK" not in os.environ:
        return True
    import torch.distributed as dist

    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if not dist.is_initialized():
        dist.init_process_group("cuda:nccl,cpu:gloo" if torch.cuda.is_available() else "gloo")
        atexit.register(leave)
    if dist.get_rank():
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115  # until the process ends
    return first()


def first() -> bool:
    """Whether this process writes what several measured together."""
    return bool(_apart) or not _in_group() or torch.distributed.get_rank() == 0


def leave() -> None:
    """Part from the other processes, if there are any."""
    if _in_group():
        torch.distributed.destroy_process_group()
        _groups.clear()


def _in_group() -> bool:
    group = torch.distributed
    return group.is_available() and group.is_initialized() and group.get_world_size() > 1


def _group() -> Any:
    """Processes meet over the CPU: float64 sums and answers are small beside forwards."""
    import torch.distributed as dist

    world = dist.group.WORLD
    if id(world) not in _groups:
        _groups.clear()
        _groups[id(world)] = dist.new_group(backend="gloo")
    return _groups[id(world)]


def _together(model: nn.Module) -> tuple[bool, int]:
    """Whether forwards wait for other processes, and how many processes hold one layer's parts together."""
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

    wraps = (FSDPModule, FullyShardedDataParallel, nn.parallel.DistributedDataParallel)
    dealt = any(isinstance(module, wraps) for module in model.modules())
    meshes = {mesh for p in model.parameters() if (mesh := getattr(p, "device_mesh", None)) is not None}
    if not meshes:
        return dealt, 1
    mesh = max(meshes, key=lambda each: each.ndim)
    names = mesh.mesh_dim_names or ()
    if "tp" in names:
        return True, mesh.size(names.index("tp"))
    return True, 1 if dealt else mesh.size()
