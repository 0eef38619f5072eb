"""RMS norms of a frozen model whose backward pass is one kernel.

The norms of Llama and its relatives are six operations in 32 bits, and autograd's backward pass of them is some ten
more. Their forward pass stays as it is, bit for bit; the gradient is that of torch's fused norm, which needs the input
alone. A norm is replaced only if both gradients agreed on a copy of it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from headwise.heads.gates import unwrap

DEVICES = {"cuda"}  # where the fused kernel exists
EPSILONS = ("variance_epsilon", "eps")
_proofs: dict[tuple[Any, ...], bool] = {}


@contextmanager
def fused(model: nn.Module) -> Iterator[None]:
    """Inside the block, gradients pass through RMS norms in one kernel each."""
    with ExitStack() as stack:
        for module in unwrap(model).modules():
            if _replaceable(module):
                module.forward = partial(_forward, module.forward, module)
                stack.callback(module.__dict__.pop, "forward")
        yield


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float, own: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.epsilon = epsilon
        return own(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return _gradient(x, weight, ctx.epsilon, gradients[0]), None, None, None


def _forward(own: Callable, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    weight, x = module.weight, args[0] if args else None
    if len(args) != 1 or kwargs or not (x.requires_grad and torch.is_grad_enabled()) or weight.requires_grad:
        return own(*args, **kwargs)
    return _Norm.apply(x, weight, _epsilon(module), own)


def _gradient(x: Tensor, weight: Tensor, epsilon: float, gradient: Tensor) -> Tensor:
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        y = nn.functional.rms_norm(x, weight.shape, weight, epsilon)
    return torch.autograd.grad(y, x, gradient)[0]


def _epsilon(module: nn.Module) -> Any:
    return next((getattr(module, name) for name in EPSILONS if hasattr(module, name)), None)


def _replaceable(module: nn.Module) -> bool:
    weight = module._parameters.get("weight")
    if weight is None or len(module._parameters) > 1 or module._modules or "forward" in module.__dict__:
        return False
    epsilon = _epsilon(module)
    if not isinstance(epsilon, float) or weight.ndim != 1 or weight.device.type not in DEVICES:
        return False
    if hasattr(weight, "placements") or weight.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return False
    what = type(module), epsilon, weight.dtype, weight.device.type
    if what not in _proofs:
        _proofs[what] = _proven(module, weight, epsilon)
    return _proofs[what]


def _proven(module: nn.Module, weight: Tensor, epsilon: float) -> bool:
    """Whether both gradients agree up to rounding, with random weights, on small numbers and on large ones."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=generator).to(weight)  # noqa: E731
    twin = copy.deepcopy(module).requires_grad_(False)
    twin.weight.data = draw(*weight.shape)
    for size in (epsilon**0.5, 1.0):
        x, gradient = (size * draw(3, *weight.shape)).requires_grad_(), draw(3, *weight.shape)
        try:
            with torch.enable_grad():
                (own,) = torch.autograd.grad(twin.forward(x), x, gradient)
        except (TypeError, RuntimeError):  # it takes something else
            return False
        other = _gradient(x, twin.weight, epsilon, gradient)
        if float((own - other).norm()) > 4 * torch.finfo(weight.dtype).eps * float(own.norm()):
            return False
    return True
