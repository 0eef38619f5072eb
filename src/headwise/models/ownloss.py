"""The loss of a transformers model per example, verified against the model's own loss.

Legend: B examples, T tokens, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from headwise.errors import HeadwiseError

LABELS = ("labels", "label", "label_ids", "start_positions", "end_positions")
Way = Callable[[Any, Mapping[str, Tensor]], Tensor]  # from a model's output and batch to losses (B,)


def _classes(output: Any, batch: Mapping[str, Tensor]) -> Tensor:
    return F.cross_entropy(output.logits, _labels(batch).view(-1), reduction="none")


def _grades(output: Any, batch: Mapping[str, Tensor]) -> Tensor:
    logits = output.logits
    return (logits - _labels(batch).view_as(logits).to(logits)).square().flatten(1).mean(1)


def _several_labels(output: Any, batch: Mapping[str, Tensor]) -> Tensor:
    logits = output.logits
    return F.binary_cross_entropy_with_logits(logits, _labels(batch).to(logits), reduction="none").flatten(1).mean(1)


def _tokens(output: Any, batch: Mapping[str, Tensor]) -> Tensor:
    return token_losses(output.logits, _labels(batch))


def _next_tokens(output: Any, batch: Mapping[str, Tensor]) -> Tensor:
    return token_losses(output.logits[:, :-1], _labels(batch)[:, 1:])


def _spans(output: Any, batch: Mapping[str, Tensor]) -> Tensor:
    size = output.start_logits.shape[1]
    ends = zip((output.start_logits, output.end_logits), (batch["start_positions"], batch["end_positions"]))
    losses = [F.cross_entropy(x, y.clamp(0, size), reduction="none", ignore_index=size) for x, y in ends]
    return (losses[0] + losses[1]) / 2


WAYS: tuple[Way, ...] = (_classes, _grades, _several_labels, _tokens, _next_tokens, _spans)


def token_losses(logits_BTC: Tensor, labels_BT: Tensor) -> Tensor:
    """Mean cross-entropy over each example's labelled tokens (not -100), ``(B,)``; 0 if there are none."""
    losses = F.cross_entropy(logits_BTC.transpose(1, 2).float(), labels_BT, reduction="none", ignore_index=-100)
    return losses.sum(1) / (labels_BT != -100).sum(1).clamp_min(1)


def _labels(batch: Mapping[str, Tensor]) -> Tensor:
    return next(batch[name] for name in LABELS[:3] if name in batch)


@torch.no_grad()
def own_loss(model: Any, call: Callable[[Any], Any], batch: Any) -> Way:
    """The formula of a model's own loss, identified by comparison on single examples in evaluation mode."""
    name = type(model).__name__
    hint = "importance(model, batches, loss=lambda model, batch: ...) with one loss per example, (B,)"
    if not isinstance(batch, Mapping) or not any(label in batch for label in LABELS):
        seen = f"batches of {name} without labels" if isinstance(batch, Mapping) else f"a batch that is a {type(batch)}"
        raise HeadwiseError(seen, f"one of {', '.join(LABELS)} in each, or loss=", hint)
    size = max(len(value) for value in batch.values() if isinstance(value, Tensor) and value.ndim)
    ways: list[Way] = list(WAYS)
    compared = 0
    for number in range(min(size, 4)):
        single = {k: v[number : number + 1] if isinstance(v, Tensor) and v.ndim else v for k, v in batch.items()}
        output = call(single)
        own = getattr(output, "loss", None)
        if own is None:
            raise HeadwiseError(f"{name}, which computes no loss", "loss=", hint)
        if own.isfinite():  # no label at all gives NaN
            ways, compared = [way for way in ways if _agrees(way, output, single, own)], compared + 1
    if not ways or not compared:
        raise HeadwiseError(f"a loss of {name} that cannot be computed per example", "loss=", hint)
    return ways[0]


def _agrees(way: Way, output: Any, batch: Mapping[str, Tensor], own: Tensor) -> bool:
    try:
        losses = way(output, batch)
    except (RuntimeError, ValueError, IndexError, AttributeError, KeyError, StopIteration):
        return False
    return losses.shape == (1,) and torch.allclose(losses[0].float(), own.float(), rtol=1e-3, atol=1e-5)
