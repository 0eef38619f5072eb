"""What any module with attention can be asked: how long its inputs may be, what it answers; and its mode, kept."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


def positions(encoder: nn.Module) -> int:
    """How many sub-words an encoder can take."""
    most: Any = getattr(encoder.config, "max_position_embeddings", None)
    for name, module in encoder.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding) and module.padding_idx is not None:
            return module.num_embeddings - module.padding_idx - 1  # RoBERTa and its kin count from behind the padding
    return most if isinstance(most, int) and most > 0 else sys.maxsize


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Evaluation mode inside; every module's own mode comes back after."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def answers(runner: nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
    """All numbers that a model answers with, as one vector."""
    devices = {t.device for t in inputs.values() if isinstance(t, torch.Tensor) and t.device.type == "cuda"}
    with evaluating(runner), torch.no_grad(), torch.random.fork_rng(devices=list(devices)):
        torch.manual_seed(0)
        found = list(_tensors(runner(**inputs)))
    kind = min((each.dtype for each in found), key=lambda dtype: dtype.itemsize, default=torch.float32)
    return torch.cat([torch.empty(0, dtype=kind), *(each.flatten().cpu().to(kind) for each in found)])


def _tensors(answer: Any) -> Iterator[torch.Tensor]:
    if isinstance(answer, torch.Tensor):
        yield from [answer] if answer.is_floating_point() else []
    elif isinstance(answer, dict | list | tuple):
        for part in answer.values() if isinstance(answer, dict) else answer:
            yield from _tensors(part)
