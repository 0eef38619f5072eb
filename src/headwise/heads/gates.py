"""Find, gate and capture the attention heads of a Hugging Face model.

Every head is touched in one place: the input of its layer's attention output projection, where the outputs of all heads
lie side by side. Scaling a head's slice there is the same mathematics as masking its attention probabilities, and holds
for every attention kernel.

Legend: B examples, T tokens, L layers, H query heads, G key-value groups, D head size.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from headwise.errors import HeadwiseError
from headwise.heads.equation import check_gates, check_reference, mixed, whole
from headwise.heads.finding import Site, find, stacks_of, unwrap
from headwise.heads.inside import reached_inside
from headwise.heads.modules import forget, remembered

__all__ = ["Heads", "Site", "captured", "gated", "stacks_of", "touched", "unwrap"]
OLD_MASKS = ("head_mask", "decoder_head_mask", "cross_attn_head_mask")
_BACKWARD = torch.autograd.graph._engine_run_backward.__code__
Touch = Callable[[int, torch.Tensor], torch.Tensor | None]


class NotReached(HeadwiseError):
    """No forward inside a block reached some heads."""


@dataclass(frozen=True)
class Heads:
    """Where the heads of a model are.

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
    exact: bool  # q, k, v and o slices are known: training masks and cuts are possible
    shared: bool  # several layers use one set of weights (ALBERT)
    sites: tuple[Site, ...] = field(repr=False)
    uncovered: tuple[str, ...] = field(default=(), repr=False)  # attention that no stack covers, by module names
    verified: bool = False  # closing each head changed one slice of one input and nothing beside it, in a forward

    @property
    def shape(self) -> tuple[int, int]:
        return self.num_layers, self.num_heads

    @property
    def alive(self) -> torch.Tensor:
        """Bool (L, H): the heads that exist: neither cut nor absent, as in layers without attention."""
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
        """Find every head of a model by closing heads in a forward of one short input, or raise with the reason.

        Args:
            model: any Hugging Face model, also wrapped in DDP, PEFT or torch.compile.
            sample: inputs of the model, where none can be made from its configuration.
            pattern: a glob for the names of the modules that read the heads' outputs; they must be proven ones.
            stack: which attention of a model that has several: encoder, decoder, cross, text, vision, ...
        """
        if sample is not None:
            forget(unwrap(model))
            return cls(**find(model, pattern, stack, sample))
        what = "heads", pattern, stack
        return remembered(unwrap(model), what, lambda: cls(**find(model, pattern, stack, None)), lambda h: h.verified)

    def require_exact(self, purpose: str) -> None:
        """Raise unless single heads' parameters can be told apart."""
        if self.shared:
            raise HeadwiseError(
                f"{purpose} is not possible for {self.family}: its {self.num_layers} layers share one set of weights, "
                "so a head cannot be changed in one layer alone",
                hint="use gates (headwise.gated), which work per layer",
            )
        if not self.exact:
            raise HeadwiseError(
                f"{purpose} needs rows of q, k, v and o that belong to one head each, and {self.family} has none",
                "heads whose rows were told apart by gradients (not so after a norm over all heads) or by name",
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

    A gate of 1 leaves z as it is, whatever r; a gate of 0 puts r in its place; both exactly. Gates and references may
    require gradients, and backward belongs inside. Only forwards of the thread that opened the block are gated.

    Args:
        model: any model `Heads.of` knows.
        gates: ``(L, H)`` for all examples alike, or ``(B, L, H)``: one set of gates per example.
        reference: what closed heads return: ``(L, H, D)``, or ``(B, L, H, D)`` for each example, or
            ``(B, T, L, H, D)`` for each token; B may be 1. The default is zero; `headwise.references` has others.
        segments: ``(rows, T)`` for packed rows: the number of the example each token belongs to, -1 for none; gates
            are then ``(examples, L, H)``, and a reference of four dimensions is ``(examples, L, H, D)``.
        heads: the result of ``Heads.of(model, ...)`` where the model has several stacks.

    Example:
        >>> lesion = torch.ones(12, 12)
        >>> lesion[5, 7] = 0
        >>> with gated(model, lesion):
        ...     logits = model(**batch).logits
    """
    heads = heads or Heads.of(model)
    check_gates(gates, heads, segments)
    check_reference(reference, heads)

    def touch(layer: int, z_BTHD: torch.Tensor) -> torch.Tensor:
        return mixed(z_BTHD, heads.sites[layer], gates, reference, segments)

    with touched(model, touch, heads):
        yield heads


@contextmanager
def captured(
    model: nn.Module, reduce: Callable[[torch.Tensor], torch.Tensor], *, heads: Heads | None = None
) -> Iterator[list[torch.Tensor]]:
    """Collect ``reduce(out_BTHD)`` of every layer inside the block, so that nothing large is kept.

    The list holds, per forward, one entry per layer in order. Heads that were cut away or never were are NaN; where
    head sizes differ between layers, smaller heads end in zeros.

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
        one = reduce(whole(out_BTHD, heads.sites[layer], heads.num_heads))
        kept.extend(torch.full_like(one, float("nan")) for _ in range(absent[layer]))
        kept.append(one)
        if layer == there[-1]:
            kept.extend(torch.full_like(one, float("nan")) for _ in range(heads.num_layers - 1 - layer))

    with touched(model, touch, heads):
        yield kept


@contextmanager
def touched(model: nn.Module, touch: Touch, heads: Heads | None = None) -> Iterator[Heads]:
    """Call ``touch(layer, out_BTHD)`` on each layer's head outputs; what it returns, if anything, takes their place.

    On a cut model ``H`` counts the heads that are left. A layer that no forward of this thread reached is an error when
    the block ends: an unreached hook means results that silently ignore it.
    """
    heads = heads or Heads.of(model)
    hits = [0] * heads.num_layers
    calls = _Calls(heads)

    def hook_for(site: Site) -> Callable:
        def hook(module: nn.Module, args: tuple) -> tuple | None:
            layer = calls.layer(site)
            hits[layer] += 1
            _refuse_split(args[0])
            out = touch(layer, site.heads_of(args[0]))
            return None if out is None else (site.with_heads(args[0], out), *args[1:])

        return hook

    def inside(site: Site) -> Callable:
        def start() -> Callable:
            layer = calls.layer(site)
            hits[layer] += 1
            return lambda z_BTHD: touch(layer, z_BTHD)

        return start

    with ExitStack() as stack:
        stack.enter_context(_uncompiled(model))
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
                "run model(...) inside the with-block, in its thread, and not through a function compiled before it",
            )


class Lent:
    """A hook for the time of a block: it acts on forwards of the thread that opened the block, and no copy keeps it."""

    lent = True

    def __init__(self, hook: Callable):
        self.hook, self.thread = hook, threading.get_ident()
        self.others: set[int] = set()  # threads that used the module too

    def __call__(self, *args: Any) -> Any:
        return self.hook(*args) if self._is_mine() else None

    def _is_mine(self) -> bool:
        """Also in a backward that the block's thread waits for, where checkpointed layers run again.

        On accelerators they do so on threads of autograd, which do not say whose backward it is.
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
                "two threads run backwards of one model at once, one of them in a block of gates",
                "one of them, where layers run again in the backward (checkpointing)",
                "a copy of the model for each thread",
            )
        return True

    def __deepcopy__(self, memo: dict) -> Callable:
        return _nothing  # torch copies the list of hooks, and something must stand there


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


def _refuse_split(outputs: torch.Tensor) -> None:
    if hasattr(outputs, "placements"):  # a DTensor
        raise HeadwiseError(
            "the heads of a layer are split over processes (tensor parallel attention)",
            "all heads of a layer on every process",
            "fully_shard (FSDP), or tensor parallelism for the feed-forward part alone",
        )


class _Calls:
    """Which layer a call belongs to: fixed by the module, except where layers share one (ALBERT)."""

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
            f"{given[0]}= was passed to the model, which transformers 5 swallows without effect",
            "gates",
            "with headwise.gated(model, mask): model(...)",
        )


def _uncompiled(model: nn.Module):
    """Compiled code does not see hooks that came after it: run the original while they are in place."""
    compiled = hasattr(model, "_orig_mod") or any(
        hasattr(m, "_orig_mod") or getattr(m, "_compiled_call_impl", None) for m in unwrap(model).modules()
    )
    return torch.compiler.set_stance("force_eager") if compiled else nullcontext()
