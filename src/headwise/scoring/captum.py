"""Importance through captum: its estimators run unchanged on a (batch, layers · heads) gate input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from headwise.errors import HeadwiseError, missing_extra
from headwise.models.plain import examples_of
from headwise.scoring.result import Importance
from headwise.scoring.sample import Sample, averaged
from headwise.scoring.stability import Blocks


def _captum() -> Any:
    try:
        import captum.attr
    except ImportError:
        raise missing_extra("captum", "captum", "this importance estimator") from None
    return captum.attr


Measure = Callable[[Any, "torch.Tensor | None"], torch.Tensor]


def _losses_of_gates(sample: Sample, batch: Any, reference: torch.Tensor | None) -> Callable[..., torch.Tensor]:
    """From gates ``(n · B, L·H)`` to losses ``(n · B,)``; captum repeats the batch n times."""
    if not isinstance(batch, dict):
        raise HeadwiseError(f"a batch that is a {type(batch).__name__}", "a dictionary of tensors")
    size = examples_of(batch)

    def forward(flat: torch.Tensor) -> torch.Tensor:
        times = len(flat) // size
        repeated = {k: v.repeat(times, *[1] * (v.ndim - 1)) for k, v in batch.items()}
        if times > 1 and reference is not None and reference.ndim > 3:
            raise HeadwiseError("references of examples, which captum repeats", "reference='zero' or 'mean'")
        return sample.losses(repeated, flat.view(-1, *sample.heads.shape), reference)

    return forward


def _gates(sample: Sample, batch: Any) -> torch.Tensor:
    count = sample.heads.num_layers * sample.heads.num_heads
    return torch.ones(examples_of(batch), count, device=sample.model.device)


def _averaged(sample: Sample, by: str, attribute: Measure) -> Importance:
    """The mean absolute value over examples; the signed attribution is the loss that closing a head removes."""

    def measure(batch: Any, reference: torch.Tensor | None) -> torch.Tensor:
        return -attribute(batch, reference).view(-1, *sample.heads.shape)

    return averaged(sample, by, measure, torch.abs)


def integrated_gradients(sample: Sample, steps: int = 20) -> Importance:
    """E |IG|: the gradient of the loss along the line from all heads closed to all open (Sundararajan et al. 2017)."""
    captum = _captum()
    sample.announce("integrated_gradients", 3 * steps)  # a backward costs about two forwards

    def attribute(batch: Any, reference: torch.Tensor | None) -> torch.Tensor:
        method = captum.IntegratedGradients(_losses_of_gates(sample, batch, reference))
        gates = _gates(sample, batch)
        return method.attribute(gates, baselines=torch.zeros_like(gates), n_steps=steps, internal_batch_size=len(gates))

    return _averaged(sample, "integrated_gradients", attribute)


def attribution(sample: Sample, steps: int = 20) -> Importance:
    """E |IG| with one layer's heads opened at a time, the others open (after Hao et al. 2021).

    Scaling a layer's attention is scaling its gates, so a head's attribution summed over its attention map is the
    integrated gradient of its gate.
    """
    captum = _captum()
    sample.announce("attribution", 3 * steps * sample.heads.num_layers)

    def attribute(batch: Any, reference: torch.Tensor | None) -> torch.Tensor:
        method = captum.IntegratedGradients(_losses_of_gates(sample, batch, reference))
        gates = _gates(sample, batch)
        attributed = torch.zeros_like(gates)
        for layer in range(sample.heads.num_layers):
            here = slice(layer * sample.heads.num_heads, (layer + 1) * sample.heads.num_heads)
            start = torch.ones_like(gates)
            start[:, here] = 0
            part = method.attribute(gates, baselines=start, n_steps=steps, internal_batch_size=len(gates))
            attributed[:, here] = part[:, here]
        return attributed

    return _averaged(sample, "attribution", attribute)


def shapley(sample: Sample, permutations: int = 8) -> Importance:
    """E |Shapley value| of each head, by sampled orders of closing heads.

    All examples use the same orders, so results do not depend on batches. There are no standard errors, because the
    dependence on orders is not an error over examples.
    """
    captum = _captum()
    with torch.no_grad():
        sample.announce("shapley", 1 + permutations * sample.heads.alive.numel())
    sample = sample.replaying()

    @torch.no_grad()
    def attribute(batch: Any, reference: torch.Tensor | None) -> torch.Tensor:
        method, gates = captum.ShapleyValueSampling(_losses_of_gates(sample, batch, reference)), _gates(sample, batch)
        with torch.random.fork_rng(devices=[]), sample.replay.batch():  # type: ignore[union-attr]
            torch.manual_seed(sample.seed)
            return method.attribute(gates, baselines=torch.zeros_like(gates), n_samples=permutations)

    result = _averaged(sample, "shapley", attribute)
    unknown = torch.full_like(result.stderr, torch.nan)
    return replace(result, stderr=unknown, signed_stderr=unknown, blocks=Blocks.none(sample.heads.shape))
