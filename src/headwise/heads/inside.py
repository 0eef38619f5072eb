"""Heads reached inside the attention call, where no module's input holds them side by side.

So it is where heads are subtracted from each other (DiffLlama), go to different experts (JetMoE), or are projected by a
bare parameter (XLNet, torch's own multi-head attention). While the module that makes the call runs, the output of the
attention kernel, or the product of an attention map with values, is what `gated` and `captured` see as the heads.

Legend: B examples, T tokens, H heads, D head size.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear, multi_head_attention_forward
from torch.overrides import TorchFunctionMode

from headwise.heads.modules import answers
from headwise.heads.slices import common
from headwise.heads.tracing import Proof, Trace, _Attention, _is_map, _plain

PRODUCTS = ("matmul", "bmm", "baddbmm", "einsum", "__matmul__")
SHAPING = ("view", "reshape", "flatten", "unflatten", "contiguous")
Touch = Callable[[torch.Tensor], torch.Tensor | None]


class Inside(TorchFunctionMode):
    """Gives the outputs of heads, (B, T, H, D), to a function that may return others, as attention computes them."""

    def __init__(self, touch: Touch, heads: int | None = None):
        super().__init__()
        self.touch, self.heads = touch, heads
        self.maps: list[torch.Tensor] = []  # attention maps, and what dropout and casts made of them

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "multi_head_attention_forward":
            return self._native(inspect.signature(func).bind(*args, **kwargs))
        out = func(*args, **kwargs)
        if name == "scaled_dot_product_attention":
            return self._touched(out, "bhtd")
        if name == "softmax" and _is_map(out, kwargs.get("dim", args[1] if len(args) > 1 else -1)):
            self._mapped(out)
        elif isinstance(out, torch.Tensor) and (given := self._map_in(args)) is not None:
            if out.shape == given.shape or (name in SHAPING and out.shape[-1] == given.shape[-1]):
                self.maps.append(out)
            elif name in PRODUCTS:
                return self._touched(out, _letters(args[0], given) if name == "einsum" else "bhtd")
        return out

    def _mapped(self, out: torch.Tensor) -> None:
        self.maps.append(out)

    def _map_in(self, args: Any) -> torch.Tensor | None:
        given = [part for each in args for part in (each if isinstance(each, list | tuple) else (each,))]
        return next((each for each in given if any(each is known for known in self.maps)), None)

    def _touched(self, out: torch.Tensor, letters: str) -> torch.Tensor:
        flat = out.ndim == 3 and letters == "bhtd"
        if flat:  # examples and heads on one axis
            out = out.unflatten(0, (-1, self.heads or len(out)))
        if out.ndim != 4 or sorted(letters) != ["b", "d", "h", "t"]:
            return out
        order = [letters.index(letter) for letter in "bthd"]
        new = self.touch(out.permute(order))
        if new is not None:
            out = new.permute([order.index(axis) for axis in range(4)])
        return out.flatten(0, 1) if flat else out

    def _native(self, call: inspect.BoundArguments) -> Any:
        """With the identity for the projection, which leaves the outputs of heads as they are; then the projection."""
        given = call.arguments
        weight, bias, heads = given["out_proj_weight"], given["out_proj_bias"], given["num_heads"]
        given |= {"out_proj_weight": torch.eye(weight.shape[1]).to(weight), "out_proj_bias": None}
        z, weights = multi_head_attention_forward(*call.args, **call.kwargs)
        single = z.ndim == 2
        z_TBHD = (z[:, None] if single else z).unflatten(-1, (heads, -1))
        z_TBHD = self._touched(z_TBHD, "tbhd")
        out = linear(z_TBHD.flatten(2).flatten(0, 1), weight, bias).view(*z_TBHD.shape[:2], -1)
        return out[:, 0] if single else out, weights


def _letters(equation: str, given: torch.Tensor) -> str:
    """The axes of an einsum's result, by the axes of the map, (B, H, T, S), that is its first operand."""
    inputs, _, result = equation.replace(" ", "").partition("->")
    first = inputs.partition(",")[0]
    if len(first) != 4 or given.ndim != 4:
        return ""
    names = dict(zip(first, "bht"))
    return "".join(names.get(letter, "d") for letter in result)


@dataclass
class _Found:
    """Where one attention call's heads come out: the module that makes it, their number and size."""

    name: str
    heads: int
    head_dim: int


@dataclass
class _Searching:
    """The modules that a forward is in, and what attention calls it made."""

    inside: list[str] = field(default_factory=lambda: [""])
    made_in: list[str] = field(default_factory=list)  # by the number of an attention call
    made_of: list[tuple[torch.Tensor, ...]] = field(default_factory=list)  # its queries and keys, or its map
    found: dict[int, _Found] = field(default_factory=dict)

    def made(self, *of: torch.Tensor) -> None:
        self.made_in.append(self.inside[-1])
        self.made_of.append(of)

    def layers(self, left: set[int]) -> list[list[int]]:
        """The attention calls of every module that makes one, or several with the same maps."""
        by_name: dict[str, list[int]] = {}
        for number, each in self.found.items():
            by_name.setdefault(each.name, []).append(number)
        return [calls for calls in by_name.values() if left.issuperset(calls) and self._is_layer(calls)]

    def _is_layer(self, calls: list[int]) -> bool:
        """Whether it is one of several layers, and has several heads."""
        one = self.found[calls[0]]
        alike = all(self.found[call] == one and _same(self.made_of[call], self.made_of[calls[0]]) for call in calls)
        return alike and one.heads > 1 and any(part.isdigit() for part in one.name.split("."))


def _same(some: tuple[torch.Tensor, ...], others: tuple[torch.Tensor, ...]) -> bool:
    return len(some) == len(others) and all(map(torch.equal, some, others))


class _Search(Inside):
    """Notes which module makes every attention call."""

    def __init__(self, searching: _Searching):
        super().__init__(self._note)
        self.searching = searching

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in ("scaled_dot_product_attention", "multi_head_attention_forward"):
            self.searching.made(*args[:2])
        return super().__torch_function__(func, types, args, kwargs)

    def _mapped(self, out: torch.Tensor) -> None:
        super()._mapped(out)
        self.searching.made(out)

    def _note(self, z_BTHD: torch.Tensor) -> None:
        number = len(self.searching.made_in) - 1
        name = common([self.searching.made_in[number], self.searching.inside[-1]])
        repeated = number in self.searching.found
        self.searching.found[number] = _Found("" if repeated else name, *z_BTHD.shape[2:])


def found_inside(model: nn.Module, inputs: dict[str, Any], trace: Trace) -> None:
    """Add sites inside attention calls to a trace, for calls whose heads no module's input holds."""
    if not trace.left or not trace.refused:
        return
    with _plain(model):
        searching = _searched(model, inputs)
        if len(searching.made_in) != trace.calls:
            return
        layers = searching.layers(trace.left)
        chosen = [searching.found[calls[0]] for calls in layers]
        closed = {call for calls in layers for call in calls}
        if not chosen or not _closes(model, inputs, chosen, closed):
            return
    trace.proofs += [
        Proof(each.name, 0, each.heads, each.head_dim, 0, False, len(calls)) for each, calls in zip(chosen, layers)
    ]
    trace.left -= closed
    trace.refused = {name: why for name, why in trace.refused.items() if trace.behind.get(name, {-1}) & trace.left}


def _searched(model: nn.Module, inputs: dict[str, Any]) -> _Searching:
    searching = _Searching()
    with ExitStack() as stack:
        for name, module in model.named_modules():
            enter = lambda *_, name=name: searching.inside.append(name)  # noqa: E731
            stack.callback(module.register_forward_pre_hook(enter).remove)
            leave = lambda *_: searching.inside.pop() and None  # noqa: E731
            stack.callback(module.register_forward_hook(leave, always_call=True).remove)
        with _Search(searching):
            answers(model, inputs)
    return searching


def _closes(model: nn.Module, inputs: dict[str, Any], chosen: list[_Found], calls: set[int]) -> bool:
    """Whether closing every other head where it comes out is closing it inside these attention calls."""
    number = -1

    def closed(out: torch.Tensor) -> torch.Tensor:
        nonlocal number
        number += 1
        if number not in calls:
            return out
        axis = 0 if out.ndim == 3 else 1
        return out * _every_other(out.shape[axis]).view([-1 if i == axis else 1 for i in range(out.ndim)]).to(out)

    with _Attention(closed):
        there = answers(model, inputs)
    with ExitStack() as stack:
        for each in chosen:
            touch = lambda z: z * _every_other(z.shape[2])[:, None].to(z)  # noqa: E731
            stack.enter_context(reached_inside(model.get_submodule(each.name), lambda t=touch: t, each.heads))
        here = answers(model, inputs)
    whole = answers(model, inputs)
    moved = (there - whole).abs().nan_to_num().max()
    return bool(moved > 0) and bool((there - here).abs().nan_to_num().max() <= 1e-3 * moved)


def _every_other(heads: int) -> torch.Tensor:
    return (torch.arange(heads) % 2).float()


@contextmanager
def reached_inside(
    module: nn.Module, start: Callable[[], Touch], heads: int, lent: Callable[[Callable], Callable] = lambda hook: hook
) -> Iterator[None]:
    """Inside the block, while the module runs, its heads' outputs go through the function that ``start`` returns."""
    running: list[Inside] = []

    def enter(*_: Any) -> None:
        running.append(Inside(start(), heads))
        running[-1].__enter__()

    def leave(*_: Any) -> None:
        if running:
            running.pop().__exit__(None, None, None)

    with ExitStack() as stack:
        stack.callback(module.register_forward_pre_hook(lent(enter)).remove)
        stack.callback(module.register_forward_hook(lent(leave), always_call=True).remove)
        yield
