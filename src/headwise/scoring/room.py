"""Whether an estimate fits into memory: measured on a row or two of its largest batch, said before it starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from headwise.errors import HeadwiseError
from headwise.measuring.replay import checkpoints
from headwise.models.device import free_bytes, in_words, of_rows, weight_bytes
from headwise.scoring.gradient import head_gradients
from headwise.scoring.sample import Sample

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
