"""Development scores under a mask, as they come in: rows in random order, so that what is there so far is unbiased."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from headwise.errors import HeadwiseError
from headwise.lab.answers import Answers
from headwise.lab.asks import Ask
from headwise.measuring.evaluate import Score
from headwise.measuring.references import resample
from headwise.measuring.stats import bootstrap, change
from headwise.models.batching import Encoded
from headwise.models.language import LanguageModel
from headwise.tasks.metrics import metrics
from headwise.tasks.task import Row

PART = 16  # rows between two reports
RESAMPLES = 400
FLIPPED = 5  # examples whose answer the mask changes, for each task


class DevelopmentScores:
    """Every task's score with all heads and under gates, on the same rows."""

    def __init__(self, answers: Answers, limit: int = 240):
        self.answers, self.subject, self.limit = answers, answers.subject, limit
        self._orders: dict[str, list[int]] = {}
        self._intact: dict[tuple[str, int], list[Any]] = {}

    def under(self, ask: Ask, only: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
        """One report after another, task by task in turns: the score so far, its interval, and the change."""
        names = [name for name in (only or self.subject.tasks) if self.answers.rows(name)]
        found: dict[str, tuple[list, list, list]] = {name: ([], [], []) for name in names}
        flips: dict[str, list[int]] = {name: [] for name in names}
        parts = max((len(self._order(name)) for name in names), default=0)
        for start in range(0, parts, PART):
            for name in names:
                if places := self._order(name)[start : start + PART]:
                    try:
                        self._add(ask, name, start, places, found[name], flips[name])
                        yield self._report(name, found[name], flips[name])
                    except HeadwiseError as error:
                        yield {"task": name, "problem": str(error)}

    def _order(self, name: str) -> list[int]:
        if name not in self._orders:
            count = len(self.answers.rows(name))
            self._orders[name] = np.random.default_rng(0).permutation(count)[: self.limit].tolist()
        return self._orders[name]

    def _add(self, ask: Ask, name: str, start: int, places: list[int], found: tuple, flips: list[int]) -> None:
        rows = [self.answers.rows(name)[place] for place in places]
        if (name, start) not in self._intact:
            self._intact[name, start] = self._predicted(name, rows, None)
        intact = self._intact[name, start]
        changed = self._predicted(name, rows, ask) if ask.closed else intact
        for column, values in zip(found, (changed, intact, self.subject.tasks[name].kind.gold(rows))):
            column.extend(values)
        flips += [place for place, new, old in zip(places, changed, intact) if new != old]

    @torch.no_grad()
    def _predicted(self, name: str, rows: Sequence[Row], ask: Ask | None) -> list[Any]:
        kind = self.subject.tasks[name].kind
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

    def _report(self, name: str, found: tuple[list, list, list], flips: list[int]) -> dict[str, Any]:
        changed, intact, golds = found
        metric = metrics[self.subject.tasks[name].metric]
        score, base = (Score(name, "", metric(each, golds), each, golds) for each in (changed, intact))
        counts = [metric.counts(each, golds) for each in (changed, intact)]
        if counts[0].shape != counts[1].shape:
            counts = np.split(metric.counts([*changed, *intact], [*golds, *golds]), 2)
        apart = change(*counts, metric.value, resamples=RESAMPLES)
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
    """A row as the page's fields: a text or two, choices, and the right answer."""
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
