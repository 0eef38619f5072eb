"""The cost and benefit of pruning the least needed heads: scores, measured speed, and the maximum speed-up."""

from __future__ import annotations

import copy
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headwise.heads.cutting import prune
from headwise.heads.gates import Heads
from headwise.heads.modules import evaluating, positions
from headwise.heads.selection import bottom
from headwise.measuring.evaluate import Score, difference, evaluate
from headwise.models.multitask import MultiTaskModel
from headwise.models.subject import Subject
from headwise.pruning.export import export
from headwise.tasks.metrics import metrics

BATCH, LENGTH = 16, 64  # tokens of the inputs for measuring speed, at most the positions of the encoder
POINT = 0.01  # a loss up to this counts as cheap
FOLDS = 5
INNER = ("intermediate_size", "hidden_dim", "n_inner", "ffn_dim", "d_ff")  # the width of feed-forward layers


def least_needed(scores: Mapping[str, torch.Tensor], fraction: float, kv_heads: int) -> torch.Tensor:
    """The heads with the lowest importance over all tasks, in whole groups; each task's absolute scores sum to 1.

    Absolute, because scores may be negative (closing a head can help) and a negative sum would reverse the order.
    Groups are ranked by the sum of their heads; ranked alone, whole groups are rarely among the lowest.
    """
    total = torch.stack([each / (each.abs().nansum() or 1) for each in scores.values()]).sum(0)
    groups = total.unflatten(1, (kv_heads, -1))
    return bottom(groups.sum(-1), fraction).repeat_interleave(groups.shape[-1], 1)


def _cuttable(model: Subject, scores: Mapping[str, torch.Tensor], fraction: float, kv_heads: int) -> torch.Tensor:
    """The least needed heads, except groups with a head that output heads read directly."""
    mask = least_needed(scores, fraction, kv_heads)
    used: Any = getattr(model, "use_heads", None)
    if used is None:
        return mask
    read = used.cpu().unflatten(1, (kv_heads, -1)).any(-1)
    return mask & ~read.repeat_interleave(mask.shape[1] // kv_heads, 1)


def trials(
    model: Subject,
    scores: Mapping[str, torch.Tensor],
    fractions: Sequence[float],
    limit: int | None = None,
    tasks: Sequence[str] | None = None,
) -> dict[str, Any]:
    """The cost and benefit of pruning: a row per fraction, the chosen fraction, and its cost on held-out rows.

    Args:
        model: trained on the tasks.
        scores: each task's importance.
        fractions: fractions of heads to cut, least important first.
        limit: maximum number of rows per task.
        tasks: tasks that decide the choice (default: all).
    """
    heads = model.attention
    fractions = (0.0, *fractions)
    masks = [_cuttable(model, scores, fraction, heads.num_kv_heads) for fraction in fractions]
    gates = torch.stack([(~mask).float() for mask in masks])
    results = {task: evaluate(model, task, gates, limit=limit) for task in scores}
    kept = [int((heads.alive & ~mask).sum()) for mask in masks]
    rows = _rows(results, fractions, kept)
    for row, mask in zip(rows, masks):
        row |= _speed(model, heads, mask, row["fraction"] > 0) if heads.cuttable else {}
    number = cheapest(rows, tasks)
    if not number:
        return {"rows": rows, "chosen": None, "held out": {}}
    held_out = _nested(results, fractions, kept, tasks)
    for task in (task for task in scores if {"dev", "test"} <= set(model.tasks[task].splits)):
        whole, cut = evaluate(model, task, gates[[0, number]], split="test", limit=limit)
        held_out[task] = _change(cut, whole) | {"split": "test"}
    return {"rows": rows, "chosen": fractions[number], "held out": held_out}


def cheapest(rows: Sequence[Mapping[str, Any]], tasks: Sequence[str] | None = None) -> int:
    """The index of the largest cut that costs no task more than a point; 0 (no cut) if there is none."""
    base = rows[0]["task scores"]
    losses = [max((base[t] - row["task scores"][t] for t in tasks or base), default=0.0) for row in rows]
    cuts = [i for i, row in enumerate(rows) if 0 < row["kept"] < rows[0]["kept"] and losses[i] <= POINT]
    return max(cuts, key=lambda i: rows[i]["fraction"], default=0)


def _rows(results: Mapping[str, list[Score]], fractions: Sequence[float], kept: Sequence[int]) -> list[dict[str, Any]]:
    return [
        {
            "fraction": fraction,
            "kept": count,
            "task scores": {task: scores[i].value for task, scores in results.items()},
        }
        for i, (fraction, count) in enumerate(zip(fractions, kept))
    ]


def _speed(model: Subject, heads: Heads, mask: torch.Tensor, cut: bool) -> dict[str, float]:
    """With nothing cut, the model is compared with itself, which shows the noise of the measurement."""
    smaller = prune(copy.deepcopy(model.backbone), mask) if cut else model.backbone
    before, after = seconds(model.backbone, smaller)
    return {"speedup": before / after, "ceiling": ceiling(model.backbone, mask, tokens(model.backbone))}


def _nested(
    results: Mapping[str, list[Score]], fractions: Sequence[float], kept: Sequence[int], tasks: Sequence[str] | None
) -> dict[str, Any]:
    """Each task's change under nested folds: every fifth of its rows is cut as the other rows choose."""
    folds = {task: _folds(scores[0].examples) for task, scores in results.items() if scores[0].examples > 1}
    answers = {task: list(results[task][0].predictions) for task in folds}
    for fold in range(FOLDS):
        others = {t: [_part(s, folds[t] != fold) for s in results[t]] if t in folds else results[t] for t in results}
        rows = _rows(others, fractions, kept)
        chosen = cheapest(rows, tasks)
        for task, numbers in folds.items():
            for row in np.flatnonzero(numbers == fold):
                answers[task][row] = results[task][chosen].predictions[row]
    cut = {task: replace(results[task][0], predictions=answers[task]) for task in folds}
    return {task: _change(cut[task], results[task][0]) | {"split": "dev"} for task in folds}


def _folds(rows: int) -> np.ndarray:
    return np.random.default_rng(0).permutation(np.arange(rows) % FOLDS)


def _part(score: Score, rows: np.ndarray) -> Score:
    predictions, golds = ([side[i] for i in np.flatnonzero(rows)] for side in (score.predictions, score.golds))
    return Score(score.task, score.metric, metrics[score.metric](predictions, golds), predictions, golds)


def _change(after: Score, before: Score) -> dict[str, Any]:
    gap = difference(after, before)
    return {"value": gap.value, "low": gap.low, "high": gap.high, "n": before.examples}


def export_small(model: Subject, scores: Mapping[str, torch.Tensor], fraction: float, path: Path) -> Path:
    """Save the model without its least needed heads, replacing an earlier one."""
    mask = _cuttable(model, scores, fraction, model.attention.num_kv_heads)
    real = path.resolve()
    if real.exists():
        shutil.rmtree(real)
    export(model if isinstance(model, MultiTaskModel) else model.backbone, mask, real, "sliced", model.tokenizer)
    return path


def ceiling(encoder: Any, mask: torch.Tensor, length: int = LENGTH) -> float:
    """The speed-up by operation count: multiplications per token before the cut divided by those after it."""
    heads, width = Heads.of(encoder), encoder.config.hidden_size
    groups = heads.num_heads // heads.num_kv_heads
    per_head = (2 * width + 2 * length + 2 * width / groups) * heads.head_dim  # q, o; scores, their use; k, v
    rest = _feed_forward(encoder, heads.num_layers)
    count = int(heads.alive.sum())
    return (count * per_head + rest) / ((count - int((mask & heads.alive).sum())) * per_head + rest)


def _feed_forward(encoder: Any, layers: int) -> int:
    """The number of feed-forward weights: two matrices per layer, or three (or a double one) if gated."""
    width = encoder.config.hidden_size
    inner = next((n for name in INNER if (n := getattr(encoder.config, name, None))), 4 * width)
    others = (module for module in encoder.modules() if not isinstance(module, torch.nn.Embedding))
    weights = [module.weight for module in others if isinstance(getattr(module, "weight", None), torch.Tensor)]
    shapes = [sorted(weight.shape) for weight in weights if weight.ndim == 2]
    sizes = [low * high for low, high in shapes if low == min(width, inner) and high in (max(width, inner), 2 * inner)]
    seen = width != inner and sizes  # equal sizes are ambiguous
    return sum(sizes) if seen else 2 * layers * width * inner


@torch.no_grad()
def seconds(*encoders: Any, repeats: int = 5) -> list[float]:
    """Each encoder's best forward time over a fixed batch; alternating, so that a busy machine slows all equally."""
    batch = _batch(encoders[0])
    rounds = [[_forward(encoder, batch) for encoder in encoders] for _ in range(repeats + 1)]  # the first warms up
    return [min(times) for times in zip(*rounds)]


def _forward(encoder: Any, batch: dict[str, torch.Tensor]) -> float:
    with evaluating(encoder):
        start = time.perf_counter()
        encoder(**batch)
        if encoder.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start


@torch.no_grad()
def tokens(encoder: Any) -> int:
    """The number of tokens or patches per example of that batch."""
    with evaluating(encoder):
        output = encoder(**_batch(encoder))
        return getattr(output, "last_hidden_state", output[0]).shape[1]


def _batch(encoder: Any) -> dict[str, torch.Tensor]:
    """Fixed texts, no longer than the encoder accepts, or images of its size."""
    generator = torch.Generator().manual_seed(0)
    if encoder.main_input_name == "pixel_values":
        size = encoder.config.image_size
        sides = (size, size) if isinstance(size, int) else tuple(size)
        pictures = torch.rand(BATCH, encoder.config.num_channels, *sides, generator=generator)
        return {"pixel_values": pictures.to(encoder.device, encoder.dtype)}
    known = min(50, encoder.get_input_embeddings().weight.shape[0])
    length = min(LENGTH, positions(encoder))
    ids = torch.randint(min(5, known - 1), known, (BATCH, length), generator=generator).to(encoder.device)
    decoded = {"decoder_input_ids": ids} if getattr(encoder.config, "is_encoder_decoder", False) else {}
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **decoded}
