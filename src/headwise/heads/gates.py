"""Find, gate and capture the attention heads of a Hugging Face model.

Every head is changed in one place: the input of its layer's attention output projection, where the outputs of all heads
are concatenated. Scaling a head's slice there is equivalent to masking its attention probabilities, for every attention
kernel.

Legend: B examples, T tokens, L layers, H query heads, G key-value groups, D head size.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from headwise.errors import HeadwiseError
from headwise.heads.equation import check_gates, check_reference, mixed, whole
from headwise.heads.finding import Site, find, stacks_of, unwrap
from headwise.heads.inside import reached_inside
from headwise.heads.modules import forget, remembered, sound_norms
from headwise.heads.sites import Share, joined, share_of, shared

__all__ = ["Heads", "Site", "captured", "gated", "stacks_of", "touched", "unwrap"]
OLD_MASKS = ("head_mask", "decoder_head_mask", "cross_attn_head_mask")
_BACKWARD = torch.autograd.graph._engine_run_backward.__code__
Touch = Callable[[int, torch.Tensor], torch.Tensor | None]


class NotReached(HeadwiseError):
    """Some heads were not reached by any forward inside a block."""


@dataclass(frozen=True)
class Heads:
    """The attention heads of a model.

    Example:
        >>> heads = Heads.of(model)
        >>> heads.shape, heads.head_dim, heads.num_kv_heads
        ((12, 12), 64, 12)
    """

    num_layers: int
    num_heads: int
    head_dim: int
    num_kv_heads: int
    stack: str
    family: str
    exact: bool  # slices of q, k, v and o are known: training masks and cuts are possible
    shared: bool  # layers share weights (ALBERT)
    sites: tuple[Site, ...] = field(repr=False)
    uncovered: tuple[str, ...] = field(default=(), repr=False)  # module names of attention outside all stacks
    verified: bool = False  # proven: closing each head changed one slice of one input and nothing else

    @property
    def shape(self) -> tuple[int, int]:
        return self.num_layers, self.num_heads

    @property
    def alive(self) -> torch.Tensor:
        """Bool (L, H): the heads that exist, neither cut nor absent (as in layers without attention)."""
        mask = torch.zeros(self.shape, dtype=torch.bool)
        for site in self.sites:
            mask[site.layer, list(site.kept)] = True
        return mask

    @classmethod
    def of(
        cls,
        model: nn.Module,
        sample: dict[str, Any] | None = None,
        pattern: str | None = None,
        stack: str | None = None,
    ) -> Heads:
        """Find every head of a model by closing heads in forwards of one short input, or raise with the reason.

        Args:
            model: any Hugging Face model, also wrapped in DDP, PEFT or torch.compile.
            sample: inputs of the model (default: derived from its configuration).
            pattern: a glob for the names of the output projections; they must pass the proof.
            stack: the attention stack, if the model has several: encoder, decoder, cross, text, vision, ...
        """
        if sample is not None:
            forget(unwrap(model))
            return cls(**find(model, pattern, stack, sample))
        what = "heads", pattern, stack
        heads = remembered(unwrap(model), what, lambda: cls(**find(model, pattern, stack, None)), lambda h: h.verified)
        shares = [share_of(site.module, len(site.kept)) for site in heads.sites]
        sites = tuple(replace(site, share=share) for site, share in zip(heads.sites, shares))
        return replace(heads, sites=sites) if any(shares) else heads

    @property
    def share(self) -> Share | None:
        """This process's part of every layer's heads, where they lie on several (tensor parallelism)."""
        return next((site.share for site in self.sites if site.share is not None), None)

    @property
    def cuttable(self) -> bool:
        """Whether `headwise.prune` cuts these heads: their slices are exact, and they are one stack's."""
        return self.exact and "+" not in self.stack

    def require_exact(self, purpose: str) -> None:
        """Raise unless the parameters of single heads are known."""
        if self.shared:
            raise HeadwiseError(
                f"{purpose} is not possible for {self.family}: its {self.num_layers} layers share one set of weights, "
                "so a head cannot be changed in one layer alone",
                hint="use gates (headwise.gated), which work per layer",
            )
        if not self.exact:
            raise HeadwiseError(
                f"{purpose} needs rows of q, k, v and o that belong to one head each, and {self.family} has none",
                "heads whose rows are known by gradients (not after a norm over all heads) or by name",
                "use gates (headwise.gated), which work here",
            )


@contextmanager
def gated(
    model: nn.Module,
    gates: torch.Tensor,
    reference: torch.Tensor | None = None,
    *,
    segments: torch.Tensor | None = None,
    heads: Heads | None = None,
) -> Iterator[Heads]:
    """Replace every head's output z by z' = r + g · (z - r) inside the block: a gate g and a reference r.

    A gate of 1 gives exactly z, a gate of 0 exactly r. Gates and references may require gradients; call backward inside
    the block. Only forwards of the thread that opened the block are gated.

    Args:
        model: any model that `Heads.of` supports.
        gates: ``(L, H)`` for all examples, or ``(B, L, H)`` per example.
        reference: the output of closed heads: ``(L, H, D)``, ``(B, L, H, D)`` per example, or ``(B, T, L, H, D)`` per
            token; B may be 1. Default: zero; `headwise.measuring.references` computes others.
        segments: ``(rows, T)`` for packed rows: the number of the example each token belongs to, -1 for none; gates
            are then ``(examples, L, H)``, and a reference of four dimensions is ``(examples, L, H, D)``.
        heads: the result of ``Heads.of(model, ...)``, if the model has several stacks.

    Example:
        >>> lesion = torch.ones(12, 12)
        >>> lesion[5, 7] = 0
        >>> with gated(model, lesion):
        ...     logits = model(**batch).logits
    """
    heads = heads or Heads.of(model)
    check_gates(gates, heads, segments)
    check_reference(reference, heads)

    gates, reference = shared(gates, heads.share), shared(reference, heads.share)  # type: ignore[assignment]

    def touch(layer: int, z_BTHD: torch.Tensor) -> torch.Tensor:
        return mixed(z_BTHD, heads.sites[layer], gates, reference, segments)

    with touched(model, touch, heads, whole=reference is not None):
        yield heads


@contextmanager
def captured(
    model: nn.Module, reduce: Callable[[torch.Tensor], torch.Tensor], *, heads: Heads | None = None
) -> Iterator[list[torch.Tensor]]:
    """Collect ``reduce(out_BTHD)`` of every layer inside the block, without storing whole outputs.

    The list has one entry per layer and forward, in order. Absent heads are NaN; if head sizes differ between layers,
    smaller heads are padded with zeros.

    Example:
        >>> with captured(model, lambda out_BTHD: out_BTHD[:, 0].detach()) as first_token:
        ...     model(**batch)
        >>> torch.stack(first_token, 1).shape  # (B, L, H, D)
        torch.Size([8, 12, 12, 64])
    """
    heads = heads or Heads.of(model)
    kept: list[torch.Tensor] = []
    there = [site.layer for site in heads.sites if site.module is not None]
    absent = {layer: layer - before - 1 for before, layer in zip([-1, *there], there)}  # layers skipped before each

    def touch(layer: int, out_BTHD: torch.Tensor) -> None:
        narrow = heads.head_dim - out_BTHD.shape[-1]
        if narrow and heads.sites[layer].kept:
            out_BTHD = torch.nn.functional.pad(out_BTHD, (0, narrow))
        one = joined(reduce(whole(out_BTHD, heads.sites[layer], heads.num_heads)), heads.sites[layer].share)
        kept.extend(torch.full_like(one, float("nan")) for _ in range(absent[layer]))
        kept.append(one)
        if layer == there[-1]:
            kept.extend(torch.full_like(one, float("nan")) for _ in range(heads.num_layers - 1 - layer))

    with touched(model, touch, heads):
        yield kept


@contextmanager
def touched(model: nn.Module, touch: Touch, heads: Heads | None = None, whole: bool = True) -> Iterator[Heads]:
    """Call ``touch(layer, out_BTHD)`` on each layer's head outputs; a returned tensor replaces them.

    Outputs that come out in pieces, of several attention calls with the same maps, are refused if they are to be whole.
    On a pruned model ``H`` counts the remaining heads. If no forward of this thread reached a layer, the end of the
    block raises, because results would silently ignore the hook.
    """
    heads = heads or Heads.of(model)
    if whole and any(site.inside > 1 for site in heads.sites):
        raise HeadwiseError(
            f"a head of {heads.family} comes out of several attention calls, in pieces",
            "heads whose whole output is in one place, to be collected or replaced by anything but zero",
            "gates without a reference (headwise.gated), and importance with them, which work here",
        )
    hits = [0] * heads.num_layers
    calls = _Calls(heads)

    def hook_for(site: Site) -> Callable:
        def hook(module: nn.Module, args: tuple) -> tuple | None:
            layer = calls.layer(site)
            hits[layer] += 1
            out = touch(layer, site.heads_of(args[0]))
            return None if out is None else (site.with_heads(args[0], out), *args[1:])

        return hook

    def inside(site: Site) -> Callable:
        def start() -> Callable:
            layer = calls.layer(site)
            hits[layer] += 1
            return lambda z_BTHD: touch(layer, z_BTHD)

        return start

    with _uncompiled(model), sound_norms(model), ExitStack() as stack:
        inner = unwrap(model)
        stack.callback(inner.register_forward_pre_hook(Lent(_refuse_old_masks), with_kwargs=True).remove)
        stack.callback(inner.register_forward_pre_hook(Lent(calls.restart)).remove)
        for site in {id(site.module): site for site in heads.sites if site.module is not None}.values():
            if site.inside:
                stack.enter_context(reached_inside(site.module, inside(site), len(site.kept), Lent))
            else:
                stack.callback(site.module.register_forward_pre_hook(Lent(hook_for(site))).remove)
        yield heads
        unreached = [site.layer for site in heads.sites if site.module is not None and not hits[site.layer]]
        if unreached:
            raise NotReached(
                f"no forward reached the heads of layers {unreached} of the {heads.stack} stack",
                "a forward of this model inside the block",
                "call model(...) inside the with-block, in the same thread, and not through a function compiled before",
            )


class Lent:
    """A temporary hook that acts on forwards of the thread that opened the block; copies of the model drop it."""

    lent = True

    def __init__(self, hook: Callable):
        self.hook, self.thread = hook, threading.get_ident()
        self.others: set[int] = set()  # other threads that used the module

    def __call__(self, *args: Any) -> Any:
        return self.hook(*args) if self._is_mine() else None

    def _is_mine(self) -> bool:
        """Also true in a backward of the block's thread, which runs checkpointed layers again.

        On accelerators this happens in threads of autograd, which do not identify the backward.
        """
        if threading.get_ident() == self.thread:
            return True
        if torch._C._current_graph_task_id() == -1 or not isinstance(
            threading.current_thread(), threading._DummyThread
        ):
            self.others.add(threading.get_ident())
            return False
        if not _waits_for_backward(self.thread):
            return False
        if any(map(_waits_for_backward, self.others)):
            raise HeadwiseError(
                "two threads run backward passes of one model at the same time, one of them inside gated",
                "one at a time with activation checkpointing",
                "a copy of the model for each thread",
            )
        return True

    def __deepcopy__(self, memo: dict) -> Callable:
        return _nothing  # torch copies the list of hooks, so an entry must remain


def _waits_for_backward(thread: int) -> bool:
    frame = sys._current_frames().get(thread)
    while frame and frame.f_code is not _BACKWARD:
        frame = frame.f_back
    return frame is not None


def _nothing(*_: Any) -> None:
    pass


def inside_block(model: nn.Module) -> bool:
    """Whether the model is inside `gated`, `captured` or learned gates."""
    return any(isinstance(hook, Lent) for module in model.modules() for hook in module._forward_pre_hooks.values())


class _Calls:
    """The layer that a call belongs to: fixed by the module, unless layers share it (ALBERT)."""

    def __init__(self, heads: Heads):
        self.layers: dict[int, list[int]] = {}
        for site in heads.sites:
            if site.module is not None:
                self.layers.setdefault(id(site.module), []).append(site.layer)
        self.count = dict.fromkeys(self.layers, 0)

    def restart(self, *_: object) -> None:
        self.count = dict.fromkeys(self.count, 0)

    def layer(self, site: Site) -> int:
        layers = self.layers[id(site.module)]
        if len(layers) == 1:
            return layers[0]
        number = self.count[id(site.module)]
        self.count[id(site.module)] = number + 1
        return layers[number % len(layers)]


def _refuse_old_masks(module: nn.Module, args: tuple, kwargs: dict) -> None:
    given = [name for name in OLD_MASKS if kwargs.get(name) is not None]
    if given:
        raise HeadwiseError(
            f"{given[0]}= was passed to the model, which transformers 5 silently ignores",
            "gates",
            "with headwise.gated(model, mask): model(...)",
        )


def _uncompiled(model: nn.Module):
    """Compiled code ignores later hooks: run the original forward while they are active."""
    compiled = hasattr(model, "_orig_mod") or any(
        hasattr(m, "_orig_mod") or getattr(m, "_compiled_call_impl", None) for m in unwrap(model).modules()
    )
    return torch.compiler.set_stance("force_eager") if compiled else nullcontext()
