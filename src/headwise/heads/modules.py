"""The maximum input length of a module, its training mode, its outputs, and cached results about it."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, ref

import torch
from torch import nn

T = TypeVar("T")
_remembered: WeakKeyDictionary[nn.Module, dict[Hashable, tuple[int, Any]]] = WeakKeyDictionary()
_serials: dict[int, tuple[Callable[[], Any], int]] = {}
_count = itertools.count()


def positions(encoder: nn.Module) -> int:
    """The maximum number of tokens of an encoder."""
    most: Any = getattr(encoder.config, "max_position_embeddings", None)
    for name, module in encoder.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding) and module.padding_idx is not None:
            return (
                module.num_embeddings - module.padding_idx - 1
            )  # RoBERTa models count positions after the padding index
    return most if isinstance(most, int) and most > 0 else sys.maxsize


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Evaluation mode inside the block; the mode of every module is restored."""
    training = [module for module in model.modules() if module.training]
    if training:  # large models have thousands of modules
        model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def sound_norms(model: nn.Module) -> Iterator[None]:
    """Inside the block, batch norms get gradients in memory order.

    Of a transposed map of one example, torch 2.13 gets the gradient through a batch norm in evaluation wrong on a CPU.
    """
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    hooks = [norm.register_forward_hook(_in_order) for norm in norms]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _in_order(_: nn.Module, args: tuple, output: torch.Tensor) -> None:
    if output.requires_grad:
        output.register_hook(torch.Tensor.contiguous)


_in_order.lent = True  # type: ignore[attr-defined]  # changes nothing that a trace would see


def answers(runner: nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
    """All numbers that a model answers with, as one vector."""
    devices = {t.device for t in inputs.values() if isinstance(t, torch.Tensor) and t.device.type == "cuda"}
    with evaluating(runner), torch.no_grad(), torch.random.fork_rng(devices=list(devices)):
        torch.manual_seed(0)
        outputs = list(_tensors(runner(**inputs)))
    kind = min((each.dtype for each in outputs), key=lambda dtype: dtype.itemsize, default=torch.float32)
    return torch.cat([torch.empty(0, dtype=kind), *(each.flatten().cpu().to(kind) for each in outputs)])


def _tensors(answer: Any) -> Iterator[torch.Tensor]:
    if isinstance(answer, torch.Tensor):
        yield from [answer] if answer.is_floating_point() else []
    elif isinstance(answer, dict | list | tuple):
        for part in answer.values() if isinstance(answer, dict) else answer:
            yield from _tensors(part)


def remembered(model: nn.Module, what: Hashable, find: Callable[[], T], certain: Callable[[T], bool]) -> T:
    """What was found in a model, found anew after its modules changed: heads were cut, adapters put in.

    Only what is ``certain`` is remembered.
    """
    state, known = _state(model), _remembered.setdefault(model, {})
    if known.get(what, (None,))[0] != state:
        result = find()
        if not certain(result):
            return result
        known[what] = _state(model), result
    return known[what][1]


def forget(model: nn.Module) -> None:
    """Find anew whatever is asked next."""
    _remembered.pop(model, None)


def code_of(module: nn.Module) -> tuple[int, int]:
    """The code that a module runs: the forward of its class, and one set on it alone."""
    # No hooks: they come and go around forwards, and heads found anew would run them.
    return serial(type(module).forward), serial(vars(module).get("forward"))


def serial(thing: Any) -> int:
    """A number for an object that no later one gets, as its id may once it is gone."""
    known = _serials.get(id(thing))
    if known is None or known[0]() is not thing:
        try:
            seen: Callable[[], Any] = ref(thing)
        except TypeError:  # without weak references, such as None: it stays
            seen = partial(_itself, thing)
        known = _serials[id(thing)] = seen, next(_count)
    return known[1]


def _itself(thing: T) -> T:
    return thing


def _state(model: nn.Module) -> int:
    """A hash of a model's modules, their code and the shapes of their weights."""
    parts, rest = [], [model]
    while rest:
        module = rest.pop()
        weight = module._parameters.get("weight")
        kept = getattr(module, "headwise_kept", None) if "headwise_kept" in module.__dict__ else None
        parts.append((serial(module), None if weight is None else (weight.shape, weight.device), kept, code_of(module)))
        rest += [child for child in module._modules.values() if child is not None]
    return hash(tuple(parts))
