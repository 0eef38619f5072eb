"""The maximum input length of a module, and its training mode."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


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
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
