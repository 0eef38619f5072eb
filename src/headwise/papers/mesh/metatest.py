"""Meta-test: adapt a trained model to a task-language pair from a few examples, and measure (MESH, Algorithm 3).

Legend: S seeds (support sets), n examples measured on, R bootstrap draws.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from headwise.errors import HeadwiseError, HeadwiseWarning, unknown
from headwise.heads.gates import Heads, gated
from headwise.heads.modules import evaluating
from headwise.heads.selection import bottom
from headwise.io.files import plain
from headwise.measuring.evaluate import NotNumbers, Score, evaluate, to_device
from headwise.measuring.intervals import interval
from headwise.measuring.stats import Estimate, above_zero, resample
from headwise.models.batching import Encoded, encode
from headwise.models.multitask import MultiTaskModel
from headwise.papers.mesh.episodes import Draw
from headwise.papers.mesh.inner import Learner, Rates
from headwise.papers.mesh.meta import GROUPS, Meta
from headwise.tasks.languages import base
from headwise.tasks.metrics import metrics
from headwise.tasks.readers.sources import halves
from headwise.tasks.task import Rows, Task

SHOTS = (4, 8, 16, 32)
RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)


@dataclass(frozen=True)
class MetaTest:
    """A pair's scores after adaptation, by number of examples and seed, and without any."""

    pair: str
    language: str
    metric: str
    seen: bool  # the model was trained on this pair
    scores: Mapping[int, Sequence[Score]] = field(repr=False)  # shots -> one for each seed
    zero_shot: Score | None = field(repr=False)  # by the output head other languages trained; None for a new task
    resamples: int = 2000

    def values(self, shots: int) -> np.ndarray:
        """The score of each seed, (S,)."""
        if shots not in self.scores:
            raise unknown("number of shots", shots, map(str, self.scores))
        return np.array([score.value for score in self.scores[shots]])

    def samples(self, shots: int) -> np.ndarray:
        """Mean scores (R,) over draws of both the examples and the seeds; drawn alike for every model."""
        return drawn_means(self.counts(shots), self.metric, self.resamples)

    def counts(self, shots: int) -> np.ndarray:
        """Additive counts of the metric, (n, S, s); 0 shots are the zero-shot baseline."""
        scores = self.scores[shots] if shots else [self.zero_shot] if self.zero_shot else []
        each = [score.counts for score in scores]
        if len({count.shape[-1] for count in each}) > 1:  # one seed named a class no other did: count all in one table
            named = [p for score in scores for p in score.predictions]
            every = metrics[self.metric].counts(named, scores[0].golds * len(scores))
            each = list(every.reshape(len(scores), len(scores[0].golds), -1))
        return np.stack(each, 1)

    def estimate(self, shots: int) -> Estimate:
        """The mean over seeds with its interval; 0 shots are the zero-shot baseline."""
        value = self.values(shots).mean() if shots else self.zero_shot.value if self.zero_shot else np.nan
        if not shots and self.zero_shot is None:
            return Estimate(np.nan, np.nan, np.nan)
        return Estimate(float(value), *map(float, interval(self.samples(shots))))

    def beats(self, other: MetaTest, shots: int) -> Estimate:
        """Compare two starting points on the same examples and support sets: difference and one-sided p."""
        if self.pair != other.pair or len(self.values(shots)) != len(other.values(shots)):
            raise HeadwiseError(f"meta-tests of {self.pair!r} and {other.pair!r}", "the same pair and seeds")
        gap = float(self.values(shots).mean() - other.values(shots).mean())
        samples = self.samples(shots) - other.samples(shots)
        low, high = interval(samples)
        return Estimate(gap, float(low), float(high), float(above_zero(gap, samples)))

    def to_record(self) -> dict[str, Any]:
        rows = [self._row(shots) for shots in (0, *self.scores)]
        about = {"pair": self.pair, "language": self.language, "metric": self.metric, "seen": self.seen}
        return {**about, "n": len(next(iter(self.scores.values()))[0].golds), "shots": rows}

    def _row(self, shots: int) -> dict[str, Any]:
        estimate = self.estimate(shots)
        numbers = {"value": estimate.value, "low": estimate.low, "high": estimate.high}
        each = self.values(shots).tolist() if shots else []
        return {"shots": shots, **{k: None if v != v else v for k, v in numbers.items()}, "seeds": each}

    def __str__(self) -> str:
        rows = [self.estimate(shots) for shots in (0, *self.scores)]
        cells = [
            f"{shots} shots {100 * e.value:.1f} [{100 * e.low:.1f}, {100 * e.high:.1f}]"
            for shots, e in zip((0, *self.scores), rows)
            if e.value == e.value
        ]
        return f"{self.pair} ({self.metric}): " + ", ".join(cells)


def drawn_means(counts: np.ndarray, metric: str, resamples: int = 2000) -> np.ndarray:
    """Mean scores (R,) over draws of the examples and the seeds of ``counts`` (n, S, s), the same draws every time."""
    drawn = metrics[metric].value(resample(counts, resamples))  # (R, S)
    seeds = np.random.default_rng(1).integers(drawn.shape[1], size=drawn.shape)
    return np.take_along_axis(drawn, seeds, 1).mean(1)


def meta_test(
    model: MultiTaskModel,
    method: Meta,
    task: Task,
    shots: Sequence[int] = SHOTS,
    seeds: int = 5,
    *,
    steps: int | None = None,
    rates: float | Mapping[str, float] | None = None,
    split: str = "dev",
    limit: int | None = None,
    prune: float = 0.0,
) -> MetaTest:
    """Adapt to a pair from a few of its training rows and score it; the model is left as it was.

    A new language of a task the model knows starts from that task's output head, a new task from a fresh one. The
    support sets of a seed are the same for every model. Adaptation is without dropout.

    Args:
        model: after meta-training, or any other.
        method: what it was trained with: its gates, masks, inner loop. Any other model, also a copy, has the gates and
            rates that training starts from.
        task: the pair.
        shots: sizes of the support set.
        seeds: support sets of each size.
        steps: of the adaptation; the method's inner steps where not given.
        rates: of the adaptation; the method's (maybe learned) ones where not given.
        split: measured on this split.
        limit: on a seeded sample of this many rows.
        prune: fraction of heads to close, those that matter least to the pair's own support set.

    Example:
        >>> result = meta_test(model, method, tasks.get("corpus.entailment.es"), shots=(8, 32), steps=10)
        >>> print(result)
    """
    if seeds < 1 or not shots or min(shots) < 1 or (steps is not None and steps < 0):
        raise HeadwiseError(
            f"shots={tuple(shots)}, seeds={seeds}, steps={steps}", "numbers of 1 or more, steps of 0 or more"
        )
    if isinstance(rates, Mapping) and set(rates) != set(GROUPS):
        raise HeadwiseError(f"rates for {', '.join(rates)}", f"a number, or one for each of: {', '.join(GROUPS)}")
    own, start_rates = _start(model, method)
    task = with_support(task)
    by_group = {group: float(rates) for group in GROUPS} if isinstance(rates, int | float) else rates or start_rates
    with _joined(own, task) as (learner, zero), evaluating(learner):
        train = encode(model.tasks[task.name], "train", model.tokenizer, model.max_length)
        dev = encode(model.tasks[task.name], split, model.tokenizer, model.max_length, limit)
        draw = Draw(task.name, train)
        how = {"split": split, "limit": limit, "data": dev}
        scores: dict[int, list[Score]] = {}
        for count in shots:
            scores[count] = [
                _adapted(learner, method, task.name, train, draw.few(count, seed), steps, by_group, how, prune)
                for seed in range(seeds)
            ]
        start = _zero_shot(learner, task.name, how) if zero else None
    return MetaTest(task.name, task.language, task.metric, task.name in model.tasks, scores, start)


def with_support(task: Task) -> Task:
    """A pair without training rows gets its support from half of its development rows; the other half measures."""
    if "train" in task.splits:
        return task
    parts = halves(task.rows("dev" if "dev" in task.splits else "test"))
    note = f"{task.note}; " if task.note else ""
    return replace(
        task, source=Rows(**parts), sizes={}, note=f"{note}support is half of the rows that measure", _read={}
    )


def _zero_shot(learner: Learner, task: str, how: dict[str, Any]) -> Score:
    with learner.gated():
        return evaluate(learner.model, task, **how)


def _adapted(
    learner: Learner,
    method: Meta,
    task: str,
    data: Encoded,
    items: np.ndarray,
    steps: int | None,
    rates: Rates,
    how: dict[str, Any],
    prune: float = 0.0,
) -> Score:
    batch = to_device(data.batch(items), learner.model.device)
    closed = _by_support(learner, task, batch, prune) if prune else None
    with learner.gated(), gated(learner.model.encoder, closed) if closed is not None else nullcontext():
        fast = method.adapt(learner, task, batch, steps, rates).parameters
        with learner.wearing(fast):
            return evaluate(learner.model, task, **how)


def _by_support(learner: Learner, task: str, batch: dict[str, torch.Tensor], prune: float) -> torch.Tensor:
    """Gates (L, H) that close the heads with the least effect on the support set's loss, as Eq. 4 measures it."""
    heads = Heads.of(learner.model.encoder)
    gates = torch.ones(len(batch["input_ids"]), *heads.shape, device=learner.model.device, requires_grad=True)
    with torch.enable_grad(), learner.gated(), gated(learner.model.encoder, gates):
        (gradient,) = torch.autograd.grad(learner.model.losses(task, batch).sum(), gates)
    scores = gradient.abs().mean(0).masked_fill(~heads.alive.to(gradient.device), float("nan"))
    return (~bottom(scores.cpu(), prune)).float().to(gradient.device)


def _start(model: MultiTaskModel, method: Meta) -> tuple[Learner, Rates]:
    """The gates and rates trained with the model; any other model has fresh ones, and the method keeps its own."""
    own: Learner | None = getattr(method, "learner", None)
    if own is not None and own.model is model:
        return own, method.current_rates()
    if own is not None and method.state():
        text = "the method's gates and rates were trained with another model; this one gets fresh ones"
        warnings.warn(f"{text}; Meta(...).ready(model, file) loads those of a file", HeadwiseWarning, stacklevel=3)
    return method.fresh(model), method.rates


@contextmanager
def _joined(learner: Learner, task: Task) -> Iterator[tuple[Learner, bool]]:
    """Add the pair to the model inside the block; yields whether its output head was trained, in any language."""
    model = learner.model
    if task.name in model.tasks:
        yield learner, True
        return
    task = task.ready()
    kin = [n for n, own in model.tasks.items() if base(own) == base(task) and plain(own.kind) == plain(task.kind)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model.add(task, kin[0] if kin else None)
    model.to(model.device)
    gates = learner.gates.newcomer(task) if learner.gates is not None else None
    try:
        yield Learner(model, gates), bool(kin)
    finally:
        del model.tasks[task.name]
        if kin:
            del model.shared[task.name]
        else:
            del model.heads[model.head_key(task.name)]


def best_rate(
    model: MultiTaskModel,
    method: Meta,
    shots: int = 16,
    seeds: int = 2,
    *,
    rates: Sequence[float] = RATES,
    steps: int | None = None,
    limit: int | None = 200,
) -> float:
    """The best adaptation rate on the training pairs; test pairs stay unseen."""
    tried: dict[float, float] = {}
    for rate in rates:
        options = {"steps": steps, "rates": rate, "limit": limit}
        try:
            tasks = list(model.tasks.values())
            results = [meta_test(model, method, task, (shots,), seeds, **options) for task in tasks]
        except NotNumbers:  # the rate was so large that the model diverged
            continue
        tried[rate] = float(np.mean([one.values(shots).mean() for one in results]))
    if not tried:
        raise HeadwiseError(f"rates {tuple(rates)}, all of which break the model", "smaller ones")
    return max(tried, key=lambda rate: tried[rate])
