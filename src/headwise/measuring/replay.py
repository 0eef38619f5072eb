"""Forwards that start at the first layer whose gates differ from those of the forward before.

A head closed in layer l leaves the layers below l as they are, so their outputs are kept and returned again. Lesions
ordered so that neighbours share their first layers then run each different beginning once: closing every head alone
takes (L + 1) / 2L of the layers' work. The first replay of every use is compared with a whole forward; a model for
which the two differ is run as a whole.

Legend: K lesions, L layers, H heads.
"""

from __future__ import annotations

import copy
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from headwise.errors import HeadwiseError
from headwise.heads.gates import Heads, NotReached, unwrap
from headwise.heads.sites import Site
from headwise.models.likelihood import BRANCHING, branch, branches

WORTH = 0.05  # fraction of the layers' work from which on keeping their outputs pays
T = TypeVar("T")


class _Call(NamedTuple):
    """One call of a block: what went in and came out, and the keys and values it left in a cache."""

    block: int
    given: torch.Tensor | None
    output: Any
    cached: Any


class _Stale(Exception):
    """A block met another input than the one its kept output belongs to."""


class Replay:
    """Runs a model under one set of gates after the other, each time from the first layer that changes.

    Example:
        >>> replay = Replay(subject.backbone, subject.attention)
        >>> with torch.no_grad(), replay.batch():
        ...     for gates in lesions[in_order(lesions)]:
        ...         losses = replay.run(gates, lambda heads: losses_under(gates, heads))
    """

    def __init__(self, model: nn.Module, heads: Heads):
        self.heads = heads
        self.blocks, self.places, self.block_of = _blocks(unwrap(model), heads)
        self.usable = bool(self.blocks)
        self._proofs, self._proven, self._on, self._running = 0, 0, False, False
        self._forget()

    def _forget(self) -> None:
        self._kept: list[_Call] = []
        self._last: torch.Tensor | None = None

    @contextmanager
    def batch(self) -> Iterator[None]:
        """All runs inside are of one batch, without gradients; what is kept of it goes with the block."""
        if not self.usable or torch.is_grad_enabled():
            yield
            return
        self._thread = threading.get_ident()
        with ExitStack() as stack:
            for number, block in enumerate(self.blocks):
                stack.callback(_put_back_forward, block, block.__dict__.get("forward"))
                block.forward = self._forward(number, block.forward)
            self._on = True
            try:
                yield
            finally:
                self._on = False
                self._forget()

    def run(self, gates: torch.Tensor | None, work: Callable[[Heads], T]) -> T:
        """What ``work`` returns, which runs the model under these gates at the heads it is given; None is all open."""
        if not self._on or not self.usable:
            return work(self.heads)
        gates = torch.ones(self.heads.shape) if gates is None else gates.detach().cpu()
        start = self._start(gates)
        if start == 0:
            return self._recorded(0, gates, work)
        half = len(self.blocks) // 2
        proven = self._proofs > 1 or (self._proofs == 1 and (self._proven >= half or start < half))
        try:
            result = self._recorded(start, gates, work)
            if proven:
                return result
        except (_Stale, NotReached):  # what a forward reads depends on gates, or every layer has to be reached
            self.usable = False
        self._forget()
        whole = self._recorded(0, gates, work)
        if self.usable:
            self._proofs, self._proven = self._proofs + 1, start
            self.usable = _alike(result, whole)
        return whole

    def _recorded(self, start: int, gates: torch.Tensor, work: Callable[[Heads], T]) -> T:
        """Run the blocks from ``start`` on, and keep what they return."""
        self._begin, self._count, self._last = start, 0, None
        sites = tuple(
            Site(site.layer, "", None, None, (), {}) if self.block_of[site.layer] < start else site
            for site in self.heads.sites
        )
        self._running = True
        try:
            result = work(replace(self.heads, sites=sites) if start else self.heads)
        finally:
            self._running = False
        del self._kept[self._count :]
        self._last = gates
        return result

    def _start(self, gates: torch.Tensor) -> int:
        """The first block whose gates are not those of the last run."""
        last = self._last
        if last is None or (last.ndim == gates.ndim == 3 and len(last) != len(gates)):
            return 0
        changed = (gates != last).reshape(-1, *self.heads.shape).any(2).any(0).nonzero()
        return self.block_of[int(changed[0])] if len(changed) else len(self.blocks)

    def _forward(self, number: int, original: Callable) -> Callable:
        def forward(*args: Any, **kwargs: Any) -> Any:
            if not self._running or threading.get_ident() != self._thread:
                return original(*args, **kwargs)
            values = (*args, *kwargs.values())
            given = next((value for value in values if isinstance(value, torch.Tensor)), None)
            cache = next(filter(_is_cache, values), None)
            turn, self._count = self._count, self._count + 1
            if number < self._begin:
                call = self._kept[turn] if turn < len(self._kept) else None
                if call is None or call.block != number or not _same(call.given, given):
                    raise _Stale
                _fill(cache, self.places[number], call.cached)
                return call.output
            output = original(*args, **kwargs)
            self._kept[turn : turn + 1] = [_Call(number, given, output, _filled(cache, self.places[number]))]
            return output

        return forward


@contextmanager
def checkpointed(model: nn.Module, heads: Heads) -> Iterator[None]:
    """Layers keep their inputs alone and run again in the backward pass, in evaluation mode too.

    Gates and captures belong to modules, so a layer that runs again is gated as it was the first time.
    """
    with ExitStack() as stack:
        for block in _blocks(unwrap(model), heads)[0]:
            before = block.__dict__.get("forward")
            stack.callback(_put_back_forward, block, before)
            block.forward = partial(_run_twice, block.forward)
        yield


def _run_twice(forward: Callable, *args: Any, **kwargs: Any) -> Any:
    """A layer that runs again in the backward pass, and finds every cache there as it was before it first ran."""
    inputs = dict(enumerate(args)) | kwargs
    caches = {name: value for name, value in inputs.items() if _is_cache(value)}
    if not all(map(branches, caches.values())):
        seen = f"layers that run again in the backward pass, with a {type(next(iter(caches.values()))).__name__}"
        raise HeadwiseError(f"{seen} that changes in place", "a forward without a cache", "use_cache=False in batches")
    before, times = {name: branch(cache) for name, cache in caches.items()}, itertools.count()

    def run(*args: Any, **kwargs: Any) -> Any:
        if next(times) > 0:  # each of these runs grows a branch of its own
            args = tuple(branch(before[i]) if i in before else value for i, value in enumerate(args))
            kwargs |= {name: branch(cache) for name, cache in before.items() if name in kwargs}
        return forward(*args, **kwargs)

    return checkpoint(run, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)


def checkpoints(model: nn.Module) -> bool:
    """Whether layers have to run again in a backward pass.

    A model was asked for checkpointing (transformers heeds it in training mode alone), or its weights lie on disk: what
    a backward pass keeps of them would be all of them.
    """
    on_disk = "disk" in getattr(unwrap(model), "hf_device_map", {}).values()
    return on_disk or any(getattr(module, "gradient_checkpointing", False) for module in model.modules())


def _blocks(model: nn.Module, heads: Heads) -> tuple[list[nn.Module], list[int], list[int]]:
    """The layers in the order of a forward, their numbers in their own lists, and the layer of every row of gates.

    Empty where heads do not lie in lists of layers, one after the other.
    """
    lists: dict[str, nn.ModuleList] = {}
    owners: dict[int, tuple[str, int]] = {}
    for site in heads.sites:
        if site.module is None:
            continue
        parts = site.name.split(".")
        ends = [i for i, part in enumerate(parts) if part.isdigit()]
        owner = next((".".join(parts[:i]) for i in ends[::-1] if _is_list(model, parts[:i])), None)
        if owner is None or heads.shared:
            return [], [], []
        lists.setdefault(owner, model.get_submodule(owner))  # type: ignore[arg-type]
        owners[site.layer] = owner, int(parts[len(owner.split("."))])
    first = dict(zip(lists, np.cumsum([0, *map(len, lists.values())]).tolist()))
    blocks = [block for blocks in lists.values() for block in blocks]
    block_of, before = [], 0
    for layer in range(heads.num_layers):  # a layer without heads belongs to the next that has some
        later = next((owners[each] for each in range(layer, heads.num_layers) if each in owners), None)
        block_of.append(len(blocks) - 1 if later is None else first[later[0]] + later[1])
        if block_of[-1] < before:
            return [], [], []
        before = block_of[-1]
    return blocks, [number for each in lists.values() for number in range(len(each))], block_of


def _is_list(model: nn.Module, path: list[str]) -> bool:
    return bool(path) and isinstance(model.get_submodule(".".join(path)), nn.ModuleList)


def _put_back_forward(block: nn.Module, forward: Callable | None) -> None:
    block.__dict__.pop("forward", None)
    if forward is not None:  # a library had put its own there
        block.forward = forward


def _is_cache(value: Any) -> bool:
    return hasattr(value, "get_seq_length")


def _filled(cache: Any, place: int) -> Any:
    """What a layer left in a cache; None for one that changes in place, which cannot be kept."""
    layer = cache.layers[place] if place < len(getattr(cache, "layers", ())) else None
    return copy.copy(layer) if type(layer).__name__ in BRANCHING else None


def _fill(cache: Any, place: int, layer: Any) -> None:
    if cache is None:
        return
    if layer is None:
        raise _Stale
    cache.layers.extend(copy.copy(layer) for _ in range(place + 1 - len(cache.layers)))
    cache.layers[place] = copy.copy(layer)


def _same(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None:
        return False
    return one is other or (one.shape == other.shape and one.dtype == other.dtype and bool(torch.equal(one, other)))


def _alike(one: Any, other: Any) -> bool:
    """Whether two results are the same up to rounding."""
    if isinstance(one, torch.Tensor):
        size = float(other.abs().max()) if other.is_floating_point() and other.numel() else 0.0
        return one.shape == other.shape and bool(torch.allclose(one, other, rtol=1e-5, atol=1e-6 * size))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_alike, one, other))
    return bool(one == other)


def in_order(gates_KLH: torch.Tensor) -> list[int]:
    """An order of lesions in which those that begin alike are neighbours."""
    rows = gates_KLH.flatten(1).cpu().numpy()
    return np.lexsort(rows.T[::-1]).tolist()


def worth(gates_KLH: torch.Tensor) -> bool:
    """Whether lesions in order share enough of their first layers for these to be kept."""
    if gates_KLH.ndim != 3 or len(gates_KLH) < 2:
        return False
    ordered = gates_KLH[in_order(gates_KLH)]
    same = (ordered[1:] == ordered[:-1]).all(2).int().cumprod(1)  # (K - 1, L)
    return float(same.sum()) > WORTH * ordered[..., 0].numel()
