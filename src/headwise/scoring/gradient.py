"""Importance from one pass over activations and their gradients.

Legend: B examples, T tokens, L layers, H heads, D head size; z are head outputs, g their gates (all 1), r references.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch

from headwise.errors import HeadwiseError
from headwise.heads.equation import reference_of
from headwise.heads.gates import touched
from headwise.heads.sites import summed
from headwise.measuring.replay import checkpointed, checkpoints
from headwise.models.device import free_bytes, in_words, of_rows, weight_bytes
from headwise.scoring.result import Importance, Moments
from headwise.scoring.sample import Sample, averaged


def head_gradients(sample: Sample, batch: Any, per_token: bool, reference: torch.Tensor | None = None) -> torch.Tensor:
    """⟨z - r, ∂L/∂z⟩ of each head: ∂L/∂g per example (B, L, H), or per token (B, T, L, H).

    With the outputs on a twin as r this is attribution patching.
    """
    products: list[torch.Tensor | None] = [None] * sample.heads.num_layers
    sites = sample.heads.sites
    example = sample.model.rows(batch)
    if reference is not None and example is not None and reference.ndim == 4:
        reference = reference[example]

    def touch(layer: int, z_BTHD: torch.Tensor) -> torch.Tensor:
        values_BTHD = z_BTHD.detach()  # a hook that holds z itself creates a reference cycle that is never freed
        if reference is not None:
            own: Any = sample.model.fitted(reference, values_BTHD.shape[1])
            values_BTHD = values_BTHD - reference_of(own, sites[layer], values_BTHD)

        def score(grad_BTHD: torch.Tensor) -> None:
            axes = (-1,) if per_token else (1, -1)
            dtype = torch.float32 if grad_BTHD.dtype != torch.float64 else None
            product = _spread((values_BTHD * grad_BTHD).sum(axes, dtype=dtype), sites[layer].here, sample)
            product = product if example is None else _summed(product, example)
            before = products[layer]
            if before is not None:  # long rows have one forward per window
                product = torch.cat([before, product], 1) if per_token else before + product
            products[layer] = product

        z_BTHD = z_BTHD if z_BTHD.requires_grad else z_BTHD.detach().requires_grad_()
        z_BTHD.register_hook(score)
        return z_BTHD

    by_token = sample.model.by_token() if reference is not None and reference.ndim == 5 else nullcontext()
    backbone = sample.model.backbone
    keep_little = checkpointed(backbone, sample.heads) if sample.again or checkpoints(backbone) else nullcontext()
    entire = reference is not None or per_token
    with torch.enable_grad(), by_token, touched(backbone, touch, sample.heads, entire), keep_little:
        sample.losses(batch).sum().backward()
    some = next(p for p in products if p is not None)
    whole = torch.stack([torch.zeros_like(some) if p is None else p for p in products], -2)
    return summed(whole, sample.heads.share)


def _summed(rows: torch.Tensor, example: torch.Tensor) -> torch.Tensor:
    """The sum of the rows of each example."""
    return rows.new_zeros(int(example.max()) + 1, *rows.shape[1:]).index_add_(0, example, rows)


def _spread(values: torch.Tensor, kept: tuple[int, ...], sample: Sample) -> torch.Tensor:
    """The values of a layer's heads, with zeros for those that were cut."""
    if len(kept) == sample.heads.num_heads:
        return values
    whole = values.new_zeros(*values.shape[:-1], sample.heads.num_heads)
    whole[..., list(kept)] = values
    return whole


def _per_example(sample: Sample, by: str, score: Callable[[torch.Tensor], torch.Tensor], stable: float | None):
    def enough(moments: Moments, seen: int) -> bool:
        return seen >= 512 and _absolute(moments.result("", "", 0)).split_half(stable or 0) >= 0.95

    def measure(batch: Any, reference: torch.Tensor | None) -> torch.Tensor:
        return -head_gradients(sample, batch, False, reference)  # to first order, the loss that closing the head adds

    return _absolute(averaged(sample, by, measure, score, None if stable is None else enough))


def _absolute(result: Importance) -> Importance:
    return replace(result, scores=result.scores.abs(), blocks=replace(result.blocks, absolute=True))


def gradient(sample: Sample, stable: float | None = None) -> Importance:
    """E |∂L/∂g|. ``stable=α`` stops when both halves of the examples agree on 95 % of the top α heads."""
    return _per_example(sample, "gradient", torch.abs, stable)


def fisher(sample: Sample, stable: float | None = None) -> Importance:
    """E (∂L/∂g)²; ``stable`` as in `gradient`."""
    return _per_example(sample, "fisher", torch.square, stable)


def taylor(sample: Sample, stable: float | None = None) -> Importance:
    """|E ∂L/∂g|: signs may cancel between examples; ``stable`` as in `gradient`."""
    return _per_example(sample, "taylor", torch.Tensor.clone, stable)


def token(sample: Sample, last_layer: str = "tokens") -> Importance:
    """Σ_tokens |⟨z, ∂L/∂z⟩| over the number of tokens (Michel et al. 2019; the released code).

    ``last_layer`` divides the last layer by "tokens", by "examples" (Michel et al.) or not at all, "none" (the
    released training script, which ranks every last-layer head on top).
    """
    if last_layer not in ("tokens", "examples", "none"):
        raise HeadwiseError(f"last_layer={last_layer!r}", "tokens, examples or none")
    moments, signed = Moments(sample.heads.shape), Moments(sample.heads.shape)
    for size, batch, reference, first, counts in sample.batches():
        gradients = head_gradients(sample, batch, per_token=True, reference=reference)
        mask = batch.get("attention_mask") if isinstance(batch, dict) else None
        real = torch.full((size,), gradients.shape[1]) if mask is None else mask.sum(1)
        if counts:
            moments.add(gradients.abs().sum(1), real, first)
            signed.add(-gradients.sum(1), real, first)
    moments, signed = moments.joined(sample.team), signed.joined(sample.team)
    seen, tokens = moments.rows, int(moments.weights.sum())
    factor = {"tokens": 1.0, "examples": tokens / seen, "none": float(tokens)}[last_layer]
    moments.scale(-1, factor)
    signed.scale(-1, factor)
    return moments.result(sample.task, "token", seen, signed)


def batch(sample: Sample, size: int = 32) -> Importance:
    """|∂ mean L/∂g| per batch of ``size``, averaged over batches (run_bertology)."""
    return _per_batch(sample, "batch", size, divide=False)


def weight(sample: Sample, size: int = 32) -> Importance:
    """|⟨W_O, ∂W_O⟩| per batch of ``size`` over examples (TextPruner): the gradient of `batch` with another divisor."""
    return _per_batch(sample, "weight", size, divide=True)


def _per_batch(sample: Sample, by: str, size: int, divide: bool) -> Importance:
    moments, signed, seen = Moments(sample.heads.shape), Moments(sample.heads.shape), 0
    sample = sample.alone if sample.team.bound else sample  # parts of so many examples take unlike numbers of forwards
    for place, group, counts in sample.groups(size):
        total, count = torch.zeros(1, *sample.heads.shape), 0
        for part in group.batches():
            total += head_gradients(sample, part.batch, False, part.reference).sum(0).cpu().float()
            count += part.size
        divisor, weights = (1, torch.tensor([count])) if divide else (count, None)
        if counts:
            moments.add(total.abs() / divisor, weights, place)
            signed.add(-total / divisor, weights, place)
            seen += count
    moments, signed = moments.joined(sample.team), signed.joined(sample.team)
    (examples,) = sample.team.summed([torch.tensor([seen])])
    return moments.result(sample.task, by, int(examples), signed)


LARGE = 1e9  # bytes of weights from which on an estimate is made: small models fit, and two more batches cost time
SPARE = 0.9  # of what is free
BACKWARD = ("gradient", "token", "batch", "weight", "fisher", "taylor")


def sized(sample: Sample, by: str) -> Sample:
    """The sample in batches that fit beside a large model, or an error that says what would fit."""
    if by not in BACKWARD or weight_bytes(sample.model) < LARGE:
        return sample
    widest = max(sample.alone.batches(), key=_places, default=None)
    if widest is None:
        return sample
    device = sample.model.device
    free, rows = free_bytes(device), widest.size
    fits = free * SPARE
    needed = _needed(sample, widest.batch, device)
    _log(sample, by, needed(rows), free, _places(widest))
    if needed(rows) > fits and not (sample.again or checkpoints(sample.model.backbone)):
        sample = replace(sample, again=True)
        needed = _needed(sample, widest.batch, device)
        sample.meter.log(f"{by}: layers run again in the backward pass, which takes {in_words(needed(rows))}")
    if needed(rows) <= fits:
        return sample
    if needed(1) > fits or not sample.tokens:
        raise _refused(sample, needed(1 if sample.tokens else rows), free)
    each = (needed(rows) - needed(1)) / max(1, rows - 1)
    most = 1 + int((fits - needed(1)) / each)
    smaller = replace(sample, tokens=max(1, _places(widest) * most // rows))
    sample.meter.log(f"{by}: in batches of {smaller.tokens} tokens, of which {in_words(needed(most))} fit")
    return smaller


def _needed(sample: Sample, batch: Any, device: torch.device) -> Callable[[int], int]:
    return of_rows(lambda rows: head_gradients(sample, first(batch, rows), per_token=False), device)


def _log(sample: Sample, by: str, needed: int, free: int, places: int) -> None:
    weights = in_words(weight_bytes(sample.model))
    sample.meter.log(
        f"{by}: {in_words(needed)} beside {weights} of weights, for {places} tokens at once; {in_words(free)} are free"
    )


def _refused(sample: Sample, needed: int, free: int) -> HeadwiseError:
    ways = ["shorter rows (max_length=)" if sample.tokens else "fewer rows in a batch", "more devices (fully_shard)"]
    seen = f"importance needs {in_words(needed)} for one row, and {in_words(free)} are free"
    return HeadwiseError(seen, "a row that fits", ", ".join(ways))


def _places(part: Any) -> int:
    """Padded tokens of a batch."""
    ids = part.batch.get("input_ids") if isinstance(part.batch, dict) else None
    return part.size if ids is None else ids.numel()


def first(batch: Any, rows: int) -> Any:
    """The first rows of a batch; the only one again where it has fewer."""
    if isinstance(batch, dict):
        return {name: first(value, rows) for name, value in batch.items()}
    if isinstance(batch, list | tuple):
        return type(batch)(first(value, rows) for value in batch)
    if not isinstance(batch, torch.Tensor) or not batch.ndim:
        return batch
    return torch.cat([batch] * rows)[:rows] if len(batch) < rows else batch[:rows]
