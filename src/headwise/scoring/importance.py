"""Which heads a task lives on: estimators by name.

Legend: B examples, T tokens, L layers, H heads, D head size; z are head outputs, ξ their gates (all 1).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from headwise.errors import HeadwiseError, HeadwiseWarning
from headwise.heads.gates import Heads, gated, touched
from headwise.heads.modules import evaluating
from headwise.io.display import heat_map
from headwise.measuring.evaluate import default_tokens, to_device
from headwise.models.batching import Encoded, Order
from headwise.models.subject import Subject
from headwise.registry import Registry
from headwise.scoring.stability import BLOCKS, TARGET, Blocks, agreement, stability

CHUNK = 4096  # examples sorted by length together


@dataclass(frozen=True)
class Importance:
    """A task's score for every head, with its standard error."""

    task: str
    by: str
    scores: torch.Tensor  # (L, H); NaN for heads that were cut away
    stderr: torch.Tensor  # (L, H); NaN where the estimator gives none
    examples: int
    blocks: Blocks = field(repr=False)  # the same from random parts of the examples

    def split_half(self, fraction: float = 0.3) -> float:
        """Agreement on the top heads between random halves of the examples, 0 to 1; NaN if there are no two halves."""
        blocks = len(self.blocks.filled)
        return agreement(self.blocks, fraction, blocks // 2) if blocks > 1 else math.nan

    def examples_needed(self, fraction: float = 0.3, target: float = TARGET) -> int | None:
        """Examples with which two samples would agree on this part of the top heads, extrapolated from subsamples.

        More than ``examples`` where there were too few; None where no number up to 20 times as many would do.
        """
        return stability(self.blocks, fraction, self.examples, target).needed

    def to_record(self) -> dict[str, Any]:
        return {
            "by": self.by,
            "examples": self.examples,
            "scores": self.scores.tolist(),
            "stderr": self.stderr.tolist(),
        }

    def __str__(self) -> str:
        order = self.scores.nan_to_num(-torch.inf).flatten().argsort(descending=True)[:5]
        order = order[~self.scores.flatten()[order].isnan()].tolist()  # heads that were cut are not listed
        best = ", ".join(f"{i // self.scores.shape[1]}.{i % self.scores.shape[1]}" for i in order)
        return f"{self.task}: top heads {best} by {self.by} over {self.examples} examples"

    def _repr_html_(self) -> str:
        return heat_map(self.scores, str(self), f"{self.examples} examples")


class Sample(NamedTuple):
    """What an estimator works on: a model, a task and tokenised training examples in random order."""

    model: Subject
    task: str
    data: Encoded
    items: np.ndarray
    heads: Heads
    tokens: int
    seed: int

    def batches(self) -> Iterator[tuple[int, dict[str, torch.Tensor]]]:
        """Batches of similar lengths, in random order, of a few thousand examples at a time: a part of them is fair."""
        for start in range(0, len(self.items), CHUNK):
            chunk = self.items[start : start + CHUNK]
            batches = Order(self.data.lengths[chunk], tokens=self.tokens).plain()
            for number in np.random.default_rng([self.seed, 5, start]).permutation(len(batches)):
                part = chunk[batches[number]]
                yield len(part), to_device(self.data.batch(part), self.model.device)

    def losses(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.model(self.task, batch).loss

    def losses_under(self, gates_BLH: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Each example's loss under gates of its own."""
        example = self.model.rows(batch)
        gates = gates_BLH if example is None else gates_BLH[example]
        with gated(self.model.backbone, gates, heads=self.heads):
            return self.losses(batch)

    def inputs(self, batch: dict[str, torch.Tensor]) -> Iterator[tuple[torch.Tensor, dict[str, torch.Tensor]]]:
        """The backbone's forwards for a batch, and which of their tokens are real, (B, T) or (B, 1)."""
        return self.model.inputs(self.task, batch)


class Moments:
    """Running sums of scores in random blocks: memory does not grow with the examples."""

    def __init__(self, shape: tuple[int, int]):
        self.sums = torch.zeros(BLOCKS, *shape, dtype=torch.float64)
        self.squares = torch.zeros(shape, dtype=torch.float64)
        self.weighted = torch.zeros(shape, dtype=torch.float64)  # scores times their weights
        self.weights = torch.zeros(BLOCKS, dtype=torch.float64)
        self.squared_weights = 0.0
        self.rows = 0
        self.generator = np.random.default_rng(0)

    def add(self, values_BLH: torch.Tensor, weights_B: torch.Tensor | None = None) -> None:
        """Scores of examples or batches; weights (tokens, say) take their number's place."""
        values_BLH = values_BLH.detach().double().cpu()
        weights_B = torch.ones(len(values_BLH)) if weights_B is None else weights_B.cpu()
        weights_B = weights_B.double()
        blocks_B = self._blocks(len(values_BLH))
        self.sums.index_add_(0, blocks_B, values_BLH)
        self.weights.index_add_(0, blocks_B, weights_B)
        self.squares += values_BLH.square().sum(0)
        self.weighted += torch.einsum("blh,b->lh", values_BLH, weights_B)
        self.squared_weights += float(weights_B.square().sum())
        self.rows += len(values_BLH)

    def _blocks(self, rows: int) -> torch.Tensor:
        """A block for each row: at random, as neighbours in a batch are of like length, but none stays empty."""
        numbers = np.arange(self.rows, self.rows + rows)
        drawn = self.generator.integers(BLOCKS, size=rows)
        return torch.from_numpy(np.where(numbers < BLOCKS, numbers, drawn))

    def scale(self, layer: int, factor: float) -> None:
        """Multiply a layer's scores, those of all examples before too."""
        self.sums[:, layer] *= factor
        self.weighted[layer] *= factor
        self.squares[layer] *= factor**2

    def result(self, task: str, by: str, examples: int) -> Importance:
        """The sum of scores over that of weights; its error is that of a ratio (with weights 1, of a mean)."""
        total = self.weights.sum()
        mean = self.sums.sum(0) / total
        apart = self.squares - 2 * mean * self.weighted + mean.square() * self.squared_weights
        whole = math.sqrt(self.rows / (self.rows - 1)) if self.rows > 1 else math.nan  # one value has no spread
        stderr = (whole * apart.clamp_min(0).sqrt() / total).float()
        return Importance(task, by, mean.float(), stderr, examples, Blocks(self.sums.numpy(), self.weights.numpy()))


Estimator = Callable[..., Importance]
estimators: Registry[Estimator] = Registry("importance")
for _home, _names in {
    "ablation": ("ablation", "all_but_one", "mean_ablation", "random", "magnitude", "confidence"),
    "captum": ("integrated_gradients", "attribution", "shapley"),
}.items():
    for _name in _names:
        estimators.add(_name, f"headwise.scoring.{_home}:{_name}")
estimators.add("l0", "headwise.training.methods.l0:l0_importance")


def importance(
    model: Subject,
    task: str,
    by: str = "gradient",
    *,
    examples: int = 10_000,
    split: str = "train",
    normalize: str = "none",
    seed: int = 0,
    data: Encoded | None = None,
    tokens: int | None = None,
    **options: Any,
) -> Importance:
    """Score every head for a task.

    Args:
        model: a model with this task.
        task: its name.
        by: the estimator. From one pass over activations and their gradients: gradient (Li et al. 2023, Eq. 4:
            E|∂L/∂ξ| per example), token (|·| per token, as Michel et al. and the released code), batch (|·| per batch),
            weight (|⟨W_O, ∂W_O⟩| per batch), fisher (squared), taylor (|mean|, signs cancel). From repeated forwards:
            ablation, mean_ablation, all_but_one. Learned: l0 (hard concrete gates on the frozen model; their chance
            to be open). Through captum: integrated_gradients, attribution, shapley. Controls: random, magnitude,
            confidence. `headwise.pruning.iterative` scores anew after every cut.
        examples: how many, drawn at random.
        split: of which split.
        normalize: "l2" scales every layer's scores to length 1.
        seed: of the draw.
        data: tokenised examples, where they are at hand.
        tokens: padded tokens in one forward.

    Example:
        >>> scores = importance(model, "sst2").scores
        >>> mask = top(scores, 0.3)
    """
    if task not in model.tasks:
        raise HeadwiseError(f"the model has no task {task!r}", f"one of: {', '.join(model.tasks)}")
    if normalize not in ("none", "l2"):
        raise HeadwiseError(f"normalize={normalize!r}", "none or l2")
    if examples < 1:
        raise HeadwiseError(f"examples={examples}", "1 or more")
    given = data is not None
    data, items = (data, _draw(len(data), examples, seed)) if given else _drawn(model, task, split, examples, seed)
    heads = model.attention
    sample = Sample(model, task, data, items, heads, tokens or default_tokens(model), seed)
    with evaluating(model), frozen(model):
        found = _fitting(estimators[by], sample, options)
    return _finished(found, heads, normalize)


def _drawn(model: Subject, task: str, split: str, examples: int, seed: int) -> tuple[Encoded, np.ndarray]:
    """Examples and their order; of a large task only they are tokenised, unless long rows make several each."""
    rows = len(model.tasks[task].rows(split))
    if examples < rows:
        data = model.encode(task, split, chosen=_draw(rows, examples, seed))
        if len(data) == examples:
            return data, np.arange(examples)
    data = model.encode(task, split)
    return data, _draw(len(data), examples, seed)


def _draw(count: int, examples: int, seed: int) -> np.ndarray:
    return np.random.default_rng([seed, 3]).permutation(count)[:examples]


def _fitting(estimator: Estimator, sample: Sample, options: dict[str, Any]) -> Importance:
    """The estimate; where the device's memory does not hold a batch, smaller ones, and a warning that says so."""
    while True:
        try:
            return estimator(sample, **options)
        except torch.OutOfMemoryError:
            if sample.tokens < 64:
                raise
            sample = sample._replace(tokens=sample.tokens // 2)
        torch.cuda.empty_cache()
        warnings.warn(
            f"the device is out of memory: going on with {sample.tokens} tokens in a batch",
            HeadwiseWarning,
            stacklevel=3,
        )


def _finished(found: Importance, heads: Heads, normalize: str) -> Importance:
    """Without scores for cut heads, and scaled as asked for; blocks alike."""

    def finished(scores: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        lengths = like.masked_fill(absent, 0).norm(dim=-1, keepdim=True).clamp_min(1e-20)
        return scores.masked_fill(absent, torch.nan) / (lengths if normalize == "l2" else 1)

    absent = ~heads.alive
    scores, stderr = (finished(one, found.scores) for one in (found.scores, found.stderr))
    sums = np.where(absent.numpy(), np.nan, found.blocks.sums)
    blocks = replace(found.blocks, sums=sums, normalized=normalize == "l2")
    return replace(found, scores=scores, stderr=stderr, blocks=blocks)


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """No parameter asks for a gradient inside: backward passes cost activations only and touch no .grad."""
    asked = [p for p in model.parameters() if p.requires_grad]
    for parameter in asked:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in asked:
            parameter.requires_grad_(True)


# -- one pass over z and ∂z


def head_gradients(sample: Sample, batch: dict[str, torch.Tensor], per_token: bool) -> torch.Tensor:
    """⟨z, ∂L/∂z⟩ of each head: ∂L/∂ξ per example (B, L, H), or per token (B, T, L, H)."""
    found: list[torch.Tensor | None] = [None] * sample.heads.num_layers
    example = sample.model.rows(batch)
    absent = {site.layer: site.kept for site in sample.heads.sites if len(site.kept) < sample.heads.num_heads}

    def touch(layer: int, z_BTHD: torch.Tensor) -> torch.Tensor:
        values_BTHD = z_BTHD.detach()  # a hook that holds z itself is a circle nothing ever frees, model and all

        def score(grad_BTHD: torch.Tensor) -> None:
            axes = (-1,) if per_token else (1, -1)
            product = (values_BTHD * grad_BTHD).sum(
                axes, dtype=torch.float32 if grad_BTHD.dtype != torch.float64 else None
            )
            product, before = _spread(product, absent.get(layer), sample.heads.num_heads), found[layer]
            product = product if example is None else _summed(product, example)
            if before is not None:  # a forward for each window of long rows
                product = torch.cat([before, product], 1) if per_token else before + product
            found[layer] = product

        z_BTHD = z_BTHD if z_BTHD.requires_grad else z_BTHD.detach().requires_grad_()
        z_BTHD.register_hook(score)
        return z_BTHD

    with touched(sample.model.backbone, touch, sample.heads):
        sample.losses(batch).sum().backward()
    empty = next(f for f in found if f is not None)
    return torch.stack([torch.zeros_like(empty) if f is None else f for f in found], -2)


def _summed(rows: torch.Tensor, example: torch.Tensor) -> torch.Tensor:
    """The sum of the rows of each example."""
    return rows.new_zeros(int(example.max()) + 1, *rows.shape[1:]).index_add_(0, example, rows)


def _spread(values: torch.Tensor, kept: tuple[int, ...] | None, num_heads: int) -> torch.Tensor:
    """The values of a layer's heads with zeros for those that were cut away."""
    if kept is None or len(kept) == num_heads:
        return values
    whole = values.new_zeros(*values.shape[:-1], num_heads)
    whole[..., list(kept)] = values
    return whole


def _per_example(name: str, take: Callable[[torch.Tensor], torch.Tensor]) -> None:
    @estimators(name)
    def estimate(sample: Sample, stable: float | None = None) -> Importance:
        """``stable=α`` stops when both halves of the examples agree on 95 % of the top α heads."""
        moments, seen = Moments(sample.heads.shape), 0
        for size, batch in sample.batches():
            moments.add(take(head_gradients(sample, batch, per_token=False)))
            seen += size
            if stable is not None and seen >= 512 and _unsigned(moments.result("", "", 0)).split_half(stable) >= 0.95:
                break
        return _unsigned(moments.result(sample.task, name, seen))


def _unsigned(found: Importance) -> Importance:
    return replace(found, scores=found.scores.abs(), blocks=replace(found.blocks, absolute=True))


_per_example("gradient", torch.abs)  # E |∂L/∂ξ|
_per_example("fisher", torch.square)  # E (∂L/∂ξ)²
_per_example("taylor", torch.Tensor.clone)  # |E ∂L/∂ξ|: signs may cancel between examples


@estimators("token")
def token(sample: Sample, last_layer: str = "tokens") -> Importance:
    """Σ_tokens |⟨z, ∂L/∂z⟩| over the number of tokens (Michel et al. 2019; the released code).

    ``last_layer`` divides the last layer by "tokens", by "examples" (Michel et al.) or by nothing, "none" (the
    released training script, which so puts every last-layer head on top).
    """
    if last_layer not in ("tokens", "examples", "none"):
        raise HeadwiseError(f"last_layer={last_layer!r}", "tokens, examples or none")
    moments, seen, tokens = Moments(sample.heads.shape), 0, 0
    for size, batch in sample.batches():
        found = head_gradients(sample, batch, per_token=True).abs()
        real = batch["attention_mask"].sum(1) if "attention_mask" in batch else torch.full((size,), found.shape[1])
        moments.add(found.sum(1), real)
        seen, tokens = seen + size, tokens + int(real.sum())
    moments.scale(-1, {"tokens": 1.0, "examples": tokens / seen, "none": float(tokens)}[last_layer])
    return moments.result(sample.task, "token", seen)


def _per_batch(name: str, divide: bool) -> None:
    @estimators(name)
    def estimate(sample: Sample, size: int = 32) -> Importance:
        moments, seen = Moments(sample.heads.shape), 0
        for start in range(0, len(sample.items), size):
            part = sample._replace(items=sample.items[start : start + size])
            total = torch.zeros(1, *sample.heads.shape)
            for _, batch in part.batches():
                total += head_gradients(sample, batch, per_token=False).sum(0).cpu().float()
            count = len(part.items)
            found, weight = (total.abs(), torch.tensor([count])) if divide else (total.abs() / count, None)
            moments.add(found, weight)
            seen += count
        return moments.result(sample.task, name, seen)


_per_batch("batch", divide=False)  # |∂ mean L/∂ξ| per batch, averaged over batches (run_bertology)
_per_batch("weight", divide=True)  # |⟨W_O, ∂W_O⟩| per batch over examples (TextPruner): equal gradient, other divisor
