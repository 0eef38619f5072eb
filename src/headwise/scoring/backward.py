"""Parts of a frozen model whose backward pass is one kernel: RMS norms, gated products, rotated queries and keys.

In Llama and its relatives these are chains of some five operations each, and autograd's backward pass of them reads and
writes as much as a fifth of a forward. Their forward pass stays as it is, bit for bit; the gradient comes from the
inputs alone. A part is replaced only if both gradients agreed on random numbers. Products and rotations are compiled
first, which takes seconds, so they are replaced in large models alone.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from headwise.heads.gates import unwrap
from headwise.models.device import weight_bytes

DEVICES = {"cuda"}  # where one kernel is faster than several
PARTS = {"norms", "products", "rotations"}
COMPILED = {"cuda"}  # where the formulas of products and rotations are compiled to one kernel
LARGE = 1e9  # bytes of weights from which on compiling pays
EPSILONS = ("variance_epsilon", "eps")
ROTATION = "apply_rotary_pos_emb"
_proofs: dict[tuple[Any, ...], bool] = {}


@contextmanager
def fused(model: nn.Module) -> Iterator[None]:
    """Inside the block, gradients pass through the parts named in `PARTS` in one kernel each."""
    parts = PARTS if weight_bytes(model) >= LARGE else PARTS & {"norms"}
    with ExitStack() as stack:
        for module in unwrap(model).modules():
            forward = _forward_of(module, parts)
            if forward is not None:
                module.forward = forward
                stack.callback(module.__dict__.pop, "forward")
        if "rotations" in parts:
            for place in _rotating(model):
                stack.callback(setattr, place, ROTATION, getattr(place, ROTATION))
                setattr(place, ROTATION, partial(_rotate, getattr(place, ROTATION)))
        yield


def _forward_of(module: nn.Module, parts: set[str]) -> Callable | None:
    if "forward" in module.__dict__:
        return None
    if "norms" in parts and _is_norm(module):
        return partial(_normed, module.forward, module)
    if "products" in parts and _is_gated_product(module):
        return partial(_multiplied, module.forward, module)
    return None


class _Part(torch.autograd.Function):
    """A function of tensors that keeps them alone, and the gradient it is given."""

    @staticmethod
    def forward(ctx: Any, gradient: Callable, own: Callable, kept: tuple[Tensor, ...], *inputs: Tensor) -> Any:
        ctx.save_for_backward(*kept)
        ctx.gradient = gradient
        return own(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return None, None, None, *ctx.gradient(*ctx.saved_tensors, *gradients)


def _learns(*inputs: Tensor) -> bool:
    return torch.is_grad_enabled() and any(x.requires_grad for x in inputs)


@cache
def _compiled(function: Callable) -> Callable:
    return torch.compile(function, dynamic=True)


def _run(function: Callable, *inputs: Any) -> Any:
    return (_compiled(function) if inputs[0].device.type in COMPILED else function)(*inputs)


# Norms


def _normed(own: Callable, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    weight: Any = module.weight
    if len(args) != 1 or kwargs or not _learns(args[0]) or weight.requires_grad:
        return own(*args, **kwargs)
    return _Part.apply(partial(_norm_gradient, _epsilon(module)), own, (args[0], weight), args[0])


def _norm_gradient(epsilon: float, x: Tensor, weight: Tensor, gradient: Tensor) -> tuple[Tensor, ...]:
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        y = nn.functional.rms_norm(x, weight.shape, weight, epsilon)
    return torch.autograd.grad(y, x, gradient)


def _epsilon(module: nn.Module) -> Any:
    return next((getattr(module, name) for name in EPSILONS if hasattr(module, name)), None)


def _is_norm(module: nn.Module) -> bool:
    weight = module._parameters.get("weight")
    if weight is None or len(module._parameters) > 1 or module._modules:
        return False
    epsilon = _epsilon(module)
    if not isinstance(epsilon, float) or weight.ndim != 1 or not _plain(weight):
        return False
    what = type(module), epsilon, weight.dtype, weight.device.type
    if what not in _proofs:
        _proofs[what] = _norm_proven(module, weight, epsilon)
    return _proofs[what]


def _plain(weight: Tensor) -> bool:
    kinds = torch.float32, torch.bfloat16, torch.float16
    return weight.device.type in DEVICES and weight.dtype in kinds and not hasattr(weight, "placements")


def _norm_proven(module: nn.Module, weight: Tensor, epsilon: float) -> bool:
    """Whether both gradients agree up to rounding, with random weights, on small numbers and on large ones."""
    draw = _draws(weight)
    twin = copy.deepcopy(module).requires_grad_(False)
    twin.weight.data = draw(*weight.shape)
    replaced = partial(_normed, twin.forward, twin)
    return all(
        _agree(twin.forward, replaced, size * draw(3, *weight.shape), draw(3, *weight.shape))
        for size in (epsilon**0.5, 1.0)
    )


def _draws(like: Tensor) -> Callable[..., Tensor]:
    generator = torch.Generator().manual_seed(0)
    return lambda *shape: torch.randn(*shape, generator=generator).to(like)


def _agree(own: Callable, replaced: Callable, x: Tensor, gradient: Tensor) -> bool:
    x = x.requires_grad_()
    try:
        with torch.enable_grad():
            outputs = own(x), replaced(x)
            first, second = (torch.autograd.grad(each, x, gradient)[0] for each in outputs)
    except (TypeError, RuntimeError, AttributeError, ValueError):  # it takes something else
        return False
    close = float((first - second).norm()) <= 4 * torch.finfo(x.dtype).eps * float(first.norm())
    return close and torch.equal(*outputs)


# Gated products, act(gate(x)) * up(x)


def _multiplied(own: Callable, module: Any, *args: Any, **kwargs: Any) -> Any:
    if len(args) != 1 or kwargs or not _learns(args[0]):
        return own(*args, **kwargs)
    gate, up = module.gate_proj(args[0]), module.up_proj(args[0])
    act = module.act_fn
    product = _Part.apply(_product_gradient, lambda gate, up: act(gate) * up, (gate, up), gate, up)
    return module.down_proj(product)


def _product_gradient(gate: Tensor, up: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    return _run(_product_formula, gate, up, gradient)


def _product_formula(gate: Tensor, up: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    wide, g = gate.float(), gradient.float()
    sigmoid = torch.sigmoid(wide)
    silu = wide * sigmoid
    of_gate = g * up.float() * (sigmoid * (1 + wide - silu))
    return of_gate.to(gate.dtype), (g * silu).to(up.dtype)


def _is_gated_product(module: nn.Module) -> bool:
    parts: list[Any] = [module._modules.get(name) for name in ("gate_proj", "up_proj", "down_proj", "act_fn")]
    gate: Any = parts[0]
    if any(part is None for part in parts) or module._parameters or not isinstance(gate, nn.Linear):
        return False
    if not _plain(gate.weight) or any(p.requires_grad for p in module.parameters()):
        return False
    what = type(module), type(parts[-1]), gate.weight.dtype, gate.weight.device.type
    if what not in _proofs:
        draw = _draws(gate.weight)
        x, gradient = draw(3, gate.in_features), draw(3, parts[2].out_features)
        _proofs[what] = _agree(module.forward, partial(_multiplied, module.forward, module), x, gradient)
    return _proofs[what]


# Rotations of queries and keys


def _rotate(own: Callable, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *args: Any, **kwargs: Any) -> Any:
    if args or kwargs or not _learns(q, k) or cos.requires_grad:
        return own(q, k, cos, sin, *args, **kwargs)
    return _Part.apply(_rotation_gradient, lambda q, k: own(q, k, cos, sin), (cos, sin), q, k)


def _rotation_gradient(cos: Tensor, sin: Tensor, of_q: Tensor, of_k: Tensor) -> tuple[Tensor, Tensor]:
    return _run(_rotation_formula, of_q, cos, sin), _run(_rotation_formula, of_k, cos, sin)


def _rotation_formula(gradient: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    wide = gradient.float()
    turned = wide * sin.unsqueeze(1).float()
    half = turned.shape[-1] // 2
    back = torch.cat([turned[..., half:], -turned[..., :half]], -1)
    return (wide * cos.unsqueeze(1).float() + back).to(gradient.dtype)


def _rotating(model: nn.Module) -> list[Any]:
    """The modules of Python in which layers of a model find the function that rotates queries and keys."""
    names = sorted({type(module).__module__ for module in unwrap(model).modules()})
    places = [sys.modules[name] for name in names if hasattr(sys.modules.get(name), ROTATION)]
    weight = next((p for p in model.parameters() if p.is_floating_point()), None)
    return [place for place in places if weight is not None and _plain(weight) and _rotates(place, weight)]


def _rotates(place: Any, weight: Tensor) -> bool:
    own = getattr(place, ROTATION)
    what = own, weight.dtype, weight.device.type
    if what not in _proofs:
        draw = _draws(weight)
        cos, sin = draw(2, 5, 8), draw(2, 5, 8)
        both = lambda rotate: lambda x: torch.cat(rotate(x, 2 * x[:, :1], cos, sin), 1)  # noqa: E731
        _proofs[what] = _agree(both(own), both(partial(_rotate, own)), draw(2, 3, 5, 8), draw(2, 4, 5, 8))
    return _proofs[what]
