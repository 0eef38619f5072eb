"""A task's performance, intact or under many lesions: K lesions in one pass over the data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from headwise.errors import HeadwiseError, unknown
from headwise.heads.gates import Heads
from headwise.heads.modules import evaluating
from headwise.io.display import Shown, axes, table
from headwise.measuring.references import Reference, reference_for
from headwise.measuring.replay import Replay, in_order, worth
from headwise.measuring.stats import Estimate, bootstrap, change
from headwise.models.batching import Encoded, Order, batches
from headwise.models.device import Budget
from headwise.models.processes import ALONE, Team
from headwise.models.subject import Subject
from headwise.tasks.kinds.classify import encode_texts
from headwise.tasks.metrics import metrics

if TYPE_CHECKING:
    from headwise.models.multitask import MultiTaskModel

TOKENS = 2048  # padded tokens per forward on a CPU: larger tensors leave its caches


@dataclass(frozen=True)
class Score(Shown):
    """A task's performance, with the predictions and gold answers behind it."""

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
        """Whether all predictions are one class: the metric is that of a constant answer."""
        return all(isinstance(p, int) for p in self.predictions) and len(set(self.predictions)) == 1

    @property
    def answers(self) -> dict[int, tuple[int, int]]:
        """How often each class was predicted, and how often correctly; empty if predictions are not classes."""
        if not all(isinstance(p, int) for p in self.predictions):
            return {}
        answered, right = Counter(map(int, self.predictions)), Counter(self.golds)
        return {label: (answered[label], right[label]) for label in sorted(answered | right)}

    def interval(self, level: float = 0.95, resamples: int = 1000) -> tuple[float, float]:
        """Confidence interval over examples: exact for accuracies, by the bootstrap (BCa) for other metrics."""
        estimate = bootstrap(self.counts, metrics[self.metric].value, resamples, level=level)
        return float(estimate.low), float(estimate.high)

    def to_records(self) -> list[dict[str, Any]]:
        """One record per example: the prediction and the right answer."""
        pairs = zip(self.predictions, self.golds, strict=True)
        return [{"task": self.task, "prediction": answer, "gold": gold} for answer, gold in pairs]

    def _repr_html_(self) -> str:
        low, high = self.interval()
        row = [self.task, self.metric, 100 * self.value, 100 * low, 100 * high, self.examples]
        return table(["task", "metric", "%", "95 % CI, low", "high", "n"], [row])

    def plot(self, ax: Any = None) -> Any:
        """The score with its 95 % interval; returns matplotlib axes."""
        low, high = self.interval()
        ax = axes(ax, (2.0, 3.0))
        ax.errorbar([self.task], [self.value], [[self.value - low], [high - self.value]], fmt="o", capsize=4)
        ax.set(ylabel=self.metric)
        return ax

    def on(self, metric: str) -> Score:
        """The same predictions under another metric."""
        return Score(self.task, metric, metrics[metric](self.predictions, self.golds), self.predictions, self.golds)

    def __str__(self) -> str:
        return f"{self.task}: {self.metric} {100 * self.value:.2f} (n = {self.examples})"


def evaluate(
    model: Subject,
    task: str,
    gates: torch.Tensor | None = None,
    close: str | torch.Tensor = "zero",
    *,
    split: str = "dev",
    limit: int | None = None,
    data: Encoded | None = None,
    tokens: int | None = None,
    seed: int = 0,
) -> Any:
    """Score a task; with gates ``(L, H)`` under one lesion, with ``(K, L, H)`` under K in one pass over its data.

    Args:
        model: a model with this task.
        task: its name.
        gates: of the lesion, or of each; without them, the model as it is.
        close: what closed heads return: "zero"; their "mean" output; "resample", their output on another example;
            "optimal", the constant that costs the task least; or a constant ``(L, H, D)``. Means and optimal constants
            are fitted on training examples if the task has them.
        split: which split to score.
        limit: score a seeded sample of this many rows.
        data: the encoded split, if available.
        tokens: padded tokens per forward.
        seed: of the draw of other examples.

    Returns:
        A `Score`, or a list of K of them if gates have three dimensions.

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
    elif data.part and data.part != (task, split, limit):
        seen = "data encoded from {} ({}, limit {})".format(*data.part)
        raise HeadwiseError(seen, f"{task} ({split}, limit {limit})", "the same split and limit in both calls")
    golds = source.kind.gold(_rows(source, split, limit))
    single = gates is None or gates.ndim == 2
    lesions: Any = [None] if gates is None else gates[None] if single else gates
    budget = Budget(tokens or default_tokens(model), Team.of(model).reading(data.columns))
    reference = None if gates is None else reference_for(close, model, task, data, tokens=budget.tokens, seed=seed)
    predictions = budget.fit(lambda size: _predict(model, task, data, lesions, size, reference, budget.team))
    scores = []
    for items in predictions:
        answers = _merged(source.kind, items, data, source, split, limit)
        scores.append(Score(task, source.metric, metrics[source.metric](answers, golds), answers, golds))
    return scores[0] if single else scores


def _rows(task, split: str, limit: int | None) -> list:
    from headwise.models.batching import sample

    return sample(task.rows(split), limit)


def default_tokens(model: Subject) -> int:
    """Padded tokens in one forward on the model's device."""
    return TOKENS if model.device.type == "cpu" else 16 * TOKENS


def _merged(kind: Any, items: list, data: Encoded, task, split: str, limit: int | None) -> list:
    return kind.merge(items, _rows(task, split, limit), data.columns) if "row" in data.columns else items


@torch.no_grad()
def _predict(
    model: Subject,
    task: str,
    data: Encoded,
    lesions: Any,
    tokens: int,
    reference: Reference | None = None,
    team: Team = ALONE,
) -> list[list]:
    """Predictions (K, items), each batch decoded as it comes; every process has those of all."""
    kind = model.tasks[task].kind
    answers: dict[int, list] = {}
    with evaluating(model):
        replay = None if lesions[0] is None else Replay(model.backbone, model.attention)
        order = in_order(lesions) if replay and worth(lesions) else range(len(lesions))
        for items, counts in team.share(Order(data.lengths, tokens=tokens).plain()):
            batch = to_device(data.batch(items), model.device)
            answers |= {item: [None] * len(lesions) for item in items.tolist() if counts}
            values = None if reference is None else reference(items, batch)
            for lesion, scores in _forwards(model, task, batch, lesions, order, replay, values):
                _check_numbers(task, scores)
                for item, answer in zip(items.tolist() if counts else (), kind.decode(scores, batch)):
                    answers[item][lesion] = answer
    answers = team.gathered(answers)
    return [list(each) for each in zip(*(answers[item] for item in range(len(data))))] or [[] for _ in lesions]


class NotNumbers(HeadwiseError):
    """A model's scores are NaN."""


def _check_numbers(task: str, scores: Any) -> None:
    """Raise on NaN: argmax would silently return the first class."""
    for part in scores if isinstance(scores, tuple | list) else (scores,):
        if isinstance(part, torch.Tensor) and part.isnan().any():
            raise NotNumbers(f"scores of {task!r} that are NaN", "a model whose weights are all numbers")


def _forwards(model, task, batch, lesions, order, replay, reference) -> Iterator[tuple[int, Any]]:
    """One forward per lesion: gates for all examples alike keep the batch as small as it is."""
    if replay is None:
        yield 0, model(task, batch).scores
        return

    def run(gate: torch.Tensor, heads: Heads) -> Any:
        with model.gated(gate, reference, heads=heads):
            return model(task, batch).scores

    with replay.batch() if isinstance(order, list) else nullcontext():
        for number in order:
            yield number, replay.run(lesions[number], partial(run, lesions[number]))


def to_device(batch: dict[str, torch.Tensor], device: torch.device) -> dict[str, torch.Tensor]:
    return batch if device.type == "cpu" else {k: v.to(device, non_blocking=True) for k, v in batch.items()}


def difference(after: Score, before: Score) -> Estimate:
    """The difference of two models on the same examples, with its interval and two-sided p-value.

    Both come from `headwise.measuring.stats.change`. They cover other examples, not other trainings.
    """
    metric = metrics[before.metric]
    new, old = after.counts, before.counts
    if new.shape != old.shape:  # only one of them predicted some class: count both in one table
        new, old = np.split(metric.counts([*after.predictions, *before.predictions], [*after.golds, *before.golds]), 2)
    result = change(new, old, metric.value, resamples=10_000)
    return Estimate(*map(float, (result.value, result.low, result.high, result.p)))  # type: ignore[arg-type]


def chance(golds: Sequence) -> float:
    """Accuracy of always predicting the most frequent class."""
    if not len(golds):
        raise HeadwiseError("chance of no examples", "one or more")
    return float(np.unique(np.asarray(golds), return_counts=True)[1].max() / len(golds))


@torch.no_grad()
def sentence_vectors(model: MultiTaskModel, texts: Sequence[str]) -> np.ndarray:
    """The pooled vector of each text, (sentences, width), in the order of the texts.

    Example:
        >>> sentence_vectors(model, ["what a film", "what a day"]).shape
        (2, 384)
    """
    columns = encode_texts([{"text": text} for text in texts], model.tokenizer, model.max_length)
    data = Encoded(columns, pad=model.tokenizer.pad_token_id or 0, rows=len(texts))
    out = np.empty((len(texts), model.width), np.float32)
    with evaluating(model):
        for items, batch in batches(data, default_tokens(model), model.device):
            out[items] = model.hidden(batch).pooled.float().cpu().numpy()
    return out
