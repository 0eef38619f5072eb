"""Importance through captum: its estimators run unchanged on a (batch, layers · heads) gate input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from headwise.errors import missing_extra
from headwise.scoring.importance import Importance, Moments, Sample
from headwise.scoring.stability import Blocks


def _captum() -> Any:
    try:
        import captum.attr
    except ImportError:
        raise missing_extra("captum", "captum", "this importance estimator") from None
    return captum.attr


def _losses_of_gates(sample: Sample, batch: dict[str, torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Gates ``(n · B, L·H)`` to losses ``(n · B,)``: captum repeats the batch as often as it needs."""
    size = len(next(iter(batch.values())))

    def forward(flat: torch.Tensor) -> torch.Tensor:
        times = len(flat) // size
        repeated = {k: v.repeat(times, *[1] * (v.ndim - 1)) for k, v in batch.items()}
        return sample.losses_under(flat.view(-1, *sample.heads.shape), repeated)

    return forward


def _gates(sample: Sample, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    size = len(next(iter(batch.values())))
    return torch.ones(size, sample.heads.num_layers * sample.heads.num_heads, device=sample.model.device)


def _gathered(sample: Sample, name: str, attribute: Callable[[dict[str, torch.Tensor]], torch.Tensor]) -> Importance:
    moments = Moments(sample.heads.shape)
    for _, batch in sample.batches():
        moments.add(attribute(batch).view(-1, *sample.heads.shape).abs())
    return moments.result(sample.task, name, len(sample.items))


def integrated_gradients(sample: Sample, steps: int = 20) -> Importance:
    """E |IG|: the gradient of the loss along the line from all heads closed to all open (Sundararajan et al. 2017)."""
    captum = _captum()

    def attribute(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        method = captum.IntegratedGradients(_losses_of_gates(sample, batch))
        gates = _gates(sample, batch)
        return method.attribute(gates, baselines=torch.zeros_like(gates), n_steps=steps, internal_batch_size=len(gates))

    return _gathered(sample, "integrated_gradients", attribute)


def attribution(sample: Sample, steps: int = 20) -> Importance:
    """E |IG| with one layer's heads opened at a time, the others open (after Hao et al. 2021).

    Scaling a layer's attention is scaling its gates, so a head's attribution summed over its attention map is the
    integrated gradient of its gate.
    """
    captum = _captum()

    def attribute(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        method, gates = captum.IntegratedGradients(_losses_of_gates(sample, batch)), _gates(sample, batch)
        found = torch.zeros_like(gates)
        for layer in range(sample.heads.num_layers):
            here = slice(layer * sample.heads.num_heads, (layer + 1) * sample.heads.num_heads)
            start = torch.ones_like(gates)
            start[:, here] = 0
            part = method.attribute(gates, baselines=start, n_steps=steps, internal_batch_size=len(gates))
            found[:, here] = part[:, here]
        return found

    return _gathered(sample, "attribution", attribute)


def shapley(sample: Sample, permutations: int = 8) -> Importance:
    """E |Shapley value| of each head, by sampled orders of closing heads.

    All examples have the same orders, so that batches make no difference; how far scores hang on the orders is no
    error over examples, and none is given.
    """
    captum = _captum()

    @torch.no_grad()
    def attribute(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        method, gates = captum.ShapleyValueSampling(_losses_of_gates(sample, batch)), _gates(sample, batch)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(sample.seed)
            return method.attribute(gates, baselines=torch.zeros_like(gates), n_samples=permutations)

    found = _gathered(sample, "shapley", attribute)
    return replace(found, stderr=torch.full_like(found.stderr, torch.nan), blocks=Blocks.none(sample.heads.shape))
