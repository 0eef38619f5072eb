"""How well a task does, whole or under many lesions at once: K lesions in one pass over the data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from headwise.errors import HeadwiseError, unknown
from headwise.heads.gates import gated
from headwise.heads.modules import evaluating
from headwise.measuring.stats import Estimate, bootstrap, change
from headwise.models.batching import Encoded, Order
from headwise.models.memory import Budget
from headwise.models.subject import Subject
from headwise.tasks.metrics import metrics

TOKENS = 2048  # padded tokens in one forward: tensors of more leave the caches, and their memory is asked for anew


@dataclass(frozen=True)
class Score:
    """A task's performance, with what is needed for its uncertainty."""

    task: str
    metric: str
    value: float
    predictions: list = field(repr=False)
    golds: list = field(repr=False)

    @property
    def counts(self) -> np.ndarray:
        """Additive counts per example, (n, s): resampling rows resamples examples."""
        return metrics[self.metric].counts(self.predictions, self.golds)

    @property
    def examples(self) -> int:
        return len(self.golds)

    @property
    def collapsed(self) -> bool:
        """Whether every prediction fell into one class, so that the metric is that of a constant."""
        return all(isinstance(p, int) for p in self.predictions) and len(set(self.predictions)) == 1

    def interval(self, level: float = 0.95, resamples: int = 1000) -> tuple[float, float]:
        """Its interval over examples: exact for shares of right answers, otherwise by the bootstrap (BCa)."""
        estimate = bootstrap(self.counts, metrics[self.metric].value, resamples, level=level)
        return float(estimate.low), float(estimate.high)

    def on(self, metric: str) -> Score:
        """The same predictions under another metric."""
        return Score(self.task, metric, metrics[metric](self.predictions, self.golds), self.predictions, self.golds)

    def __str__(self) -> str:
        return f"{self.task}: {self.metric} {100 * self.value:.2f} (n = {self.examples})"


def evaluate(
    model: Subject,
    task: str,
    gates: torch.Tensor | None = None,
    *,
    split: str = "dev",
    limit: int | None = None,
    data: Encoded | None = None,
    tokens: int | None = None,
) -> Any:
    """Score a task; with gates ``(K, L, H)``, under K lesions in one pass over its data.

    Returns:
        A `Score`, or a list of K of them.

    Example:
        >>> whole = evaluate(model, "sst2")
        >>> lesions = torch.stack([torch.ones(12, 12), (~top(scores, 0.3)).float()])
        >>> base, cut = evaluate(model, "sst2", lesions)
    """
    if task not in model.tasks:
        raise unknown("task of this model", task, model.tasks)
    source = model.tasks[task]
    if data is None:
        data = model.encode(task, split, limit)
    golds = source.kind.gold(_rows(source, split, limit))
    lesions = [None] if gates is None else gates
    budget, kept = Budget(tokens or default_tokens(model)), data
    predictions = budget.fit(lambda size: _predict(model, task, kept, lesions, size))
    scores = [
        Score(task, source.metric, metrics[source.metric](found, golds), found, golds)
        for found in (_merged(source.kind, items, data, source, split, limit) for items in predictions)
    ]
    return scores[0] if gates is None else scores


def _rows(task, split: str, limit: int | None) -> list:
    from headwise.models.batching import sample

    return sample(task.rows(split), limit)


def default_tokens(model: Subject) -> int:
    """Padded tokens in one forward on the model's device."""
    return TOKENS if model.device.type == "cpu" else 16 * TOKENS


def _merged(kind: Any, items: list, data: Encoded, task, split: str, limit: int | None) -> list:
    return kind.merge(items, _rows(task, split, limit), data.columns) if "row" in data.columns else items


@torch.no_grad()
def _predict(model: Subject, task: str, data: Encoded, lesions: Any, tokens: int) -> list[list]:
    """Predictions (K, items), each batch decoded as it comes."""
    kind = model.tasks[task].kind
    number = len(lesions)
    found: list[list] = [[None] * len(data) for _ in range(number)]
    with evaluating(model):
        heads = None if lesions[0] is None else model.attention
        for items in Order(data.lengths, tokens=tokens).plain():
            batch = to_device(data.batch(items), model.device)
            for lesion, scores, part in _forwards(model, task, batch, lesions, heads, tokens):
                _check_numbers(task, scores)
                for item, answer in zip(items, kind.decode(scores, part)):
                    found[lesion][item] = answer
    return found


class NotNumbers(HeadwiseError):
    """A model's scores are NaN."""


def _check_numbers(task: str, scores: Any) -> None:
    """The largest of scores that are no numbers is the first class, and would pass for an answer."""
    for part in scores if isinstance(scores, tuple | list) else (scores,):
        if isinstance(part, torch.Tensor) and part.isnan().any():
            raise NotNumbers(f"scores of {task!r} that are NaN", "a model whose weights are all numbers")


def _forwards(model, task, batch, lesions, heads, tokens) -> Iterator[tuple[int, Any, dict]]:
    """One forward per lesion: gates for all examples alike keep the batch as small as it is."""
    for number, gate in enumerate(lesions):
        if gate is None:
            yield number, model(task, batch).scores, batch
        else:
            with gated(model.backbone, gate, heads=heads):
                scores = model(task, batch).scores
            yield number, scores, batch


def to_device(batch: dict[str, torch.Tensor], device: torch.device) -> dict[str, torch.Tensor]:
    return batch if device.type == "cpu" else {k: v.to(device, non_blocking=True) for k, v in batch.items()}


def difference(after: Score, before: Score) -> Estimate:
    """How much better one model does than another on the same examples, with its interval and two-sided p-value.

    Both are those of `headwise.measuring.stats.change`. They speak of other examples, not of other trainings.
    """
    metric = metrics[before.metric]
    new, old = after.counts, before.counts
    if new.shape != old.shape:  # one of them named a class that the other never did: count both in one table
        new, old = np.split(metric.counts([*after.predictions, *before.predictions], [*after.golds, *before.golds]), 2)
    found = change(new, old, metric.value, resamples=10_000)
    return Estimate(*map(float, (found.value, found.low, found.high, found.p)))  # type: ignore[arg-type]


def chance(golds: Sequence) -> float:
    """Accuracy of always naming the most frequent class."""
    if not len(golds):
        raise HeadwiseError("chance of no examples", "one or more")
    return float(np.unique(np.asarray(golds), return_counts=True)[1].max() / len(golds))
