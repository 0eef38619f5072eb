"""The answers of all tasks to a text, with all heads open and under gates, and what closed heads return there.

Legend: B examples, T tokens, L layers, H heads, D head size.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from headwise.errors import HeadwiseError
from headwise.lab.questions import NEXT, Ask, Asked, Question, next_logits, question, scores_of
from headwise.measuring.evaluate import Score
from headwise.measuring.references import head_outputs, matched_tokens, mean_of, resample
from headwise.measuring.stats import bootstrap, change
from headwise.models.batching import Encoded, batches
from headwise.models.language import LanguageModel
from headwise.models.subject import Batch, Subject
from headwise.tasks.kinds.choice import Choice, Grade
from headwise.tasks.kinds.generation import Continuation, Generation
from headwise.tasks.metrics import metrics
from headwise.tasks.task import Row

SHOWN = 12  # likeliest next words, and choices of many
TOKENS = 2048  # padded tokens in one forward
MEANS = 64  # development rows of each task behind a mean
Value = TypeVar("Value")


class Kept(Generic[Value]):
    """A small cache of recent results, so memory stays constant however many texts are asked."""

    def __init__(self, size: int):
        self.size = size
        self.values: OrderedDict[Hashable, Value] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        if key not in self.values:
            self.values[key] = make()
            while len(self.values) > self.size:
                self.values.popitem(last=False)
        self.values.move_to_end(key)
        return self.values[key]


class Answers:
    """Answers of a subject to one text at a time.

    Example:
        >>> answers = Answers(model)
        >>> answers.under(Ask(("a fine film", ""), (), gates, "zero", 0))["sst2"]["label"]
        'positive'
    """

    def __init__(self, subject: Subject):
        self.subject = subject.eval()
        self.heads = subject.attention
        self.gone = ~self.heads.alive
        self._questions = Kept[Question](16)
        self._before = Kept[dict[str, Any]](64)
        self._means = Kept[torch.Tensor](1)
        self._donated = Kept[torch.Tensor | None](4)
        self._rows: dict[str, list[Row]] = {}

    def question(self, ask: Ask) -> Question:
        """The text as every task reads it, tokenized once."""
        make = lambda: question(self.subject, ask.texts, ask.choices)  # noqa: E731
        return self._questions.get(ask.question, make)

    def gates(self, ask: Ask) -> torch.Tensor:
        """The gates as a tensor, (L, H)."""
        return torch.tensor(ask.gates, device=self.subject.device)

    def both(self, ask: Ask) -> dict[str, dict[str, Any]]:
        """The answers with all heads open and under the gates."""
        intact = Ask(ask.texts, ask.choices, ((1.0,) * self.heads.num_heads,) * self.heads.num_layers, "zero", 0)
        before = self._before.get(ask.question, lambda: self.under(intact))
        return {"before": before, "after": self.under(ask) if ask.closed else before}

    @torch.no_grad()
    def under(self, ask: Ask) -> dict[str, Any]:
        """Every task's answer under the gates, or why it cannot answer this text."""
        asked, answers = self.question(ask), {}
        for group in asked.groups:
            with self.subject.gated(self.gates(ask), self.reference(ask, group), heads=self.heads):
                for one, batch, scores in scores_of(self.subject, group):
                    answers[one.task] = answer(one, batch, scores)
        if asked.ids is not None:
            answers[NEXT] = self._next(ask, asked.ids)
        problems = {name: {"problem": problem} for name, problem in asked.problems.items()}
        return {name: answers.get(name) or problems[name] for name in self.subject.tasks} | {
            name: value for name, value in answers.items() if name == NEXT
        }

    def _next(self, ask: Ask, ids: Sequence[int]) -> dict[str, Any]:
        try:
            with self.subject.gated(self.gates(ask), self.reference(ask, None), heads=self.heads):
                logits = next_logits(self.subject, ids)[0]
        except HeadwiseError as error:
            if "mask" not in error.seen:
                raise
            return {"problem": str(error)}
        chances = logits.softmax(-1).topk(min(SHOWN, len(logits)))
        tokenizer: Any = self.subject.tokenizer
        words = [tokenizer.decode([token]) for token in chances.indices.tolist()]
        return {"form": "next", "label": words[0], "words": list(zip(words, chances.values.tolist()))}

    # -- what closed heads return

    def reference(self, ask: Ask, group: Sequence[Asked] | None) -> torch.Tensor | None:
        """The reference for one group's forward pass; None means zero."""
        if ask.close == "zero" or not ask.closed:
            return None
        if ask.close == "mean":
            return self.mean()
        if group is None or isinstance(self.subject, LanguageModel):
            return self._donated.get(ask.seed, lambda: self._drawn(ask.seed))
        key = ask.question, group[0].task, ask.seed
        return self._donated.get(key, lambda: self._other(group[0], ask.seed))

    def mean(self) -> torch.Tensor:
        """Each head's mean output over development examples, with equal weight for each task, (L, H, D)."""
        return self._means.get("mean", self._mean)

    def _mean(self) -> torch.Tensor:
        means = []
        for name in self.with_rows():
            batches = (batch for _, batch in self.batches(self.encoded(name, self.rows(name)[:MEANS])))
            means.append(mean_of(batches, self.subject, name, self.heads))
        return torch.stack(means).mean(0).nan_to_num(0).to(next(self.subject.parameters()).dtype)

    def _other(self, asked: Asked, seed: int) -> torch.Tensor:
        """Head outputs on a development example, (1, T, L, H, D)."""
        batch = asked.batch(self.subject)
        if "window" in batch or len(asked.data) > 1:
            raise HeadwiseError("a text longer than one window", "a shorter text to resample for", "zero or mean")
        real_BT, z_BTLHD = self._donor(seed, asked.task)
        own = next(real for real, _ in self.subject.inputs(asked.task, batch))
        own = own.expand(-1, batch["input_ids"].shape[1])
        return z_BTLHD.take_along_dim(matched_tokens(own, real_BT)[:, :, None, None, None], 1).nan_to_num(0)

    def _drawn(self, seed: int) -> torch.Tensor:
        """Head outputs at one token of a development example, (L, H, D), for prompts of any length."""
        real_BT, z_BTLHD = self._donor(seed, self.with_rows()[0])
        places = real_BT[0].nonzero().flatten()
        at = int(places[np.random.default_rng([seed, 12]).integers(len(places))])
        return z_BTLHD[0, at].nan_to_num(0)

    def _donor(self, seed: int, task: str) -> tuple[torch.Tensor, torch.Tensor]:
        name = task if self.rows(task) else self.with_rows()[0]
        rows = self.rows(name)
        row = rows[int(np.random.default_rng([seed, 11]).integers(len(rows)))]
        _, batch = next(self.batches(self.encoded(name, [row])))
        with torch.no_grad():
            return head_outputs(self.subject, name, batch)

    # -- development rows

    def rows(self, task: str) -> list[Row]:
        """A task's development rows, or none if its data is not available."""
        if task not in self._rows:
            try:
                self._rows[task] = self.subject.tasks[task].rows("dev")
            except (HeadwiseError, OSError):
                self._rows[task] = []
        return self._rows[task]

    def with_rows(self) -> list[str]:
        """The tasks with development rows; an error if there are none."""
        names = [name for name in self.subject.tasks if self.rows(name)]
        if not names:
            raise HeadwiseError("no development rows of any task", "the data of one task", "--data FOLDER, or zero")
        return names

    def encoded(self, task: str, rows: Sequence[Row]) -> Encoded:
        """Encode rows of a task; unlike `Subject.encode`, nothing is cached on disk."""
        tokenizer: Any = self.subject.tokenizer
        columns = self.subject.tasks[task].kind.encode(rows, tokenizer, self.subject.max_length)
        return Encoded(columns, getattr(tokenizer, "pad_token_id", None) or 0, len(rows))

    def batches(self, data: Encoded) -> Iterator[tuple[np.ndarray, Batch]]:
        """Batches of bounded size."""
        return batches(data, TOKENS, self.subject.device)


def answer(asked: Asked, batch: Batch, scores: Any) -> dict[str, Any]:
    """A task's answer as plain data; ``form`` says how to display it."""
    kind = asked.kind
    if isinstance(kind, Choice):
        return _chosen(asked, kind.scores_of(scores, batch)[0])
    if isinstance(kind, Continuation):
        prediction = kind.decode(scores, batch)[0]
        return {"form": "continuation", "label": asked.row["target"], **prediction._asdict()}
    if isinstance(kind, Generation):
        return {"form": "text", "label": kind.decode(scores, batch)[0]}
    owner = asked.data.columns.get("row")
    prediction = kind.predictions(scores, batch, [asked.row] * len(asked.data))
    best = prediction[0] if owner is None else max(prediction, key=lambda record: record.score)
    return {"form": type(best).__name__.lower(), **best._asdict()}


def _chosen(asked: Asked, scores: torch.Tensor) -> dict[str, Any]:
    """The chosen answer with the probability of each."""
    kind, chances = asked.kind, scores.double().softmax(-1)
    names = list(kind.labels) if len(kind.labels) == len(chances) else list(asked.row["choices"])
    if isinstance(kind, Grade):
        return {"form": "graded", "value": float(chances @ chances.new_tensor(kind.values))}
    probabilities = [(name, chance) for name, chance in zip(names, chances.tolist())]
    return {"form": "labelled", "label": names[int(chances.argmax())], "probabilities": probabilities[:SHOWN]}


PART = 16  # rows between two progress reports
RESAMPLES = 400
FLIPPED = 5  # examples whose answer the mask changes, for each task


class DevelopmentScores:
    """Every task's score with all heads and under gates on the same rows."""

    def __init__(self, answers: Answers, limit: int = 240):
        self.answers, self.subject, self.limit = answers, answers.subject, limit
        self._orders: dict[str, list[int]] = {}
        self._intact: dict[tuple[str, int], list[Any]] = {}

    def under(self, ask: Ask, only: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
        """Yield reports, tasks in turn: the score so far, its interval and the change."""
        names = [name for name in (only or self.subject.tasks) if self.answers.rows(name)]
        rows_of: dict[str, tuple[list, list, list]] = {name: ([], [], []) for name in names}
        flips: dict[str, list[int]] = {name: [] for name in names}
        parts = max((len(self._order(name)) for name in names), default=0)
        for start in range(0, parts, PART):
            for name in names:
                if places := self._order(name)[start : start + PART]:
                    try:
                        self._add(ask, name, start, places, rows_of[name], flips[name])
                        yield self._report(name, rows_of[name], flips[name])
                    except HeadwiseError as error:
                        yield {"task": name, "problem": str(error)}

    def _order(self, name: str) -> list[int]:
        if name not in self._orders:
            count = len(self.answers.rows(name))
            self._orders[name] = np.random.default_rng(0).permutation(count)[: self.limit].tolist()
        return self._orders[name]

    def _add(self, ask: Ask, name: str, start: int, places: list[int], rows_of: tuple, flips: list[int]) -> None:
        rows = [self.answers.rows(name)[place] for place in places]
        if (name, start) not in self._intact:
            self._intact[name, start] = self._predicted(name, rows, None)
        intact = self._intact[name, start]
        changed = self._predicted(name, rows, ask) if ask.closed else intact
        for column, values in zip(rows_of, (changed, intact, self.subject.tasks[name].kind.gold(rows))):
            column.extend(values)
        flips += [place for place, new, old in zip(places, changed, intact) if new != old]

    @torch.no_grad()
    def _predicted(self, name: str, rows: Sequence[Row], ask: Ask | None) -> list[Any]:
        kind: Any = self.subject.tasks[name].kind
        data = self.answers.encoded(name, rows)
        reference = self._reference(ask, name, data)
        items: list[Any] = [None] * len(data)
        for numbers, batch in self.answers.batches(data):
            if ask is None:
                scores = self.subject(name, batch).scores
            else:
                gates, values = self.answers.gates(ask), reference(numbers, batch)
                with self.subject.gated(gates, values, heads=self.answers.heads):
                    scores = self.subject(name, batch).scores
            for item, answer in zip(numbers, kind.decode(scores, batch)):
                items[item] = answer
        return kind.merge(items, rows, data.columns) if "row" in data.columns else items

    def _reference(self, ask: Ask | None, name: str, data: Encoded) -> Any:
        if ask is None or ask.close == "zero":
            return lambda items, batch: None
        if ask.close == "mean" or isinstance(self.subject, LanguageModel):
            value = self.answers.reference(ask, None)
            return lambda items, batch: value
        if len(data) < 2:
            raise HeadwiseError("one development row", "two or more to resample from")
        return resample(self.subject, name, data, seed=ask.seed)

    def _report(self, name: str, rows_of: tuple[list, list, list], flips: list[int]) -> dict[str, Any]:
        changed, intact, golds = rows_of
        metric = metrics[self.subject.tasks[name].metric]
        score, base = (Score(name, "", metric(each, golds), each, golds) for each in (changed, intact))
        counts = [metric.counts(each, golds) for each in (changed, intact)]
        if counts[0].shape != counts[1].shape:
            counts = np.split(metric.counts([*changed, *intact], [*golds, *golds]), 2)
        apart = change(counts[0], counts[1], metric.value, resamples=RESAMPLES)
        low, high = _interval(counts[0], metric.value)
        report = {"task": name, "metric": self.subject.tasks[name].metric, "value": score.value, "intact": base.value}
        report |= {"low": low, "high": high, "change": [float(apart.value), float(apart.low), float(apart.high)]}
        rows = self.answers.rows(name)
        report |= {"n": len(golds), "of": len(self._order(name)), "flipped": len(flips)}
        return report | {"examples": [{"at": place, **texts_of(rows[place])} for place in flips[:FLIPPED]]}


def _interval(counts: np.ndarray, value: Any) -> tuple[float, float]:
    estimate = bootstrap(counts, value, RESAMPLES)
    return float(estimate.low), float(estimate.high)


def texts_of(row: Row) -> dict[str, Any]:
    """The fields of a row for the page: one or two texts, choices and the gold answer."""
    words = row.get("words")
    text = row.get("text") or row.get("question") or (" ".join(words) if words else row.get("prompt", ""))
    text = text if isinstance(text, str) else ""
    other = row.get("text_b") or row.get("context") or ""
    label = row.get("label", "")
    choices = [choice for choice in row.get("choices") or [row.get("target", "")] if choice]
    if choices and isinstance(label, int) and label < len(choices):
        label = choices[label]
    shown = label if isinstance(label, str) else f"{label:g}" if isinstance(label, int | float) else ""
    return {"text": text, "other": other if isinstance(other, str) else "", "choices": choices, "label": shown}
