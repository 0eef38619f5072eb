"""Which of several continuations of a prompt a language model finds likeliest: no training, no output head.

Legend: B rows, C choices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headwise.errors import HeadwiseError, unknown
from headwise.tasks.columns import Columns, Ragged
from headwise.tasks.kinds.reading import Reading
from headwise.tasks.predictions import Graded, Labelled
from headwise.tasks.task import Row

Batch = dict[str, Tensor]
COUNTS = ("sum", "token", "char")
LOSSES = ("margin", "nll", "choices")


class Likelihoods(NamedTuple):
    """What a language model says of a batch of rows."""

    total: Tensor  # (B, C): log-likelihood of each choice, the sum over its tokens; 0 where a row has no such choice
    greedy: Tensor | None = None  # (B, C): whether every token is the likeliest


class Pick(int):
    """The number of the choice that was picked; it knows the score of every choice, for margins."""

    scores: tuple[float, ...]

    @classmethod
    def of(cls, scores: Sequence[float]) -> Pick:
        pick = cls(int(np.argmax(scores)))
        pick.scores = tuple(scores)
        return pick

    def margin(self, gold: int) -> float:
        """By how much the right choice is ahead of the best wrong one, in nats."""
        return self.scores[gold] - max(score for i, score in enumerate(self.scores) if i != gold)


class Prompted:
    """What all kinds for language models share: they need one, and no output head."""

    reading: Reading

    def head(self, hidden: int) -> nn.Module:
        hint = "LanguageModel.from_pretrained(name, tasks), or tasks that an output head can be trained for"
        raise HeadwiseError(f"{type(self).__name__} is answered by a language model, without an output head", "", hint)


def check_prompt(row: Row, name: str = "prompt") -> None:
    value = row.get(name)
    if not isinstance(value, str):
        raise HeadwiseError(f"{name} is {value!r}", "a text, which may be empty")


@dataclass(frozen=True)
class Choice(Prompted):
    """Rows are ``{"prompt": text, "choices": [text, …], "label": number or name}``; ``prompt`` may be one per choice.

    Example:
        >>> Choice(score="token").check({"prompt": "The sky is", "choices": ["blue", "loud"], "label": 0})
    """

    labels: tuple[str, ...] = ("choice",)
    """Names of the choices, where all rows have the same ones."""
    choices: tuple[str, ...] = ()
    """The choices of rows that bring none of their own."""
    score: str = "sum"
    """How tokens add up: their sum, their mean ("token"), or the sum over the choice's characters ("char")."""
    loss_of: str = "margin"
    """The loss of a row: "margin" (the best wrong choice over the right one), "nll" (of the right one), "choices"
    (cross-entropy between the choices)."""
    neutral: tuple[str, ...] = ()
    """Prompts without content, for contextual calibration: `LanguageModel` fills in ``bias`` with them."""
    bias: tuple[float, ...] = ()
    """What is subtracted from the score of each choice."""
    reading: Reading = field(default_factory=Reading)
    asks: ClassVar[tuple[str, ...]] = ("prompt", "choices")

    def __post_init__(self) -> None:
        for name, value, allowed in (("score", self.score, COUNTS), ("loss_of", self.loss_of, LOSSES)):
            if value not in allowed:
                raise unknown(name, value, allowed)

    def ready(self, rows: Sequence[Row]) -> Choice:
        return self

    def check(self, row: Row) -> None:
        choices = self._choices(row)
        if not isinstance(choices, list | tuple) or len(choices) < 2 or not all(isinstance(c, str) for c in choices):
            raise HeadwiseError(f"choices {choices!r}"[:120], "two texts or more")
        prompts = row.get("prompt")
        if isinstance(prompts, list | tuple):
            if len(prompts) != len(choices) or not all(isinstance(prompt, str) for prompt in prompts):
                raise HeadwiseError(
                    f"{len(prompts)} prompts for {len(choices)} choices", "one text for each, or for all"
                )
        else:
            check_prompt(row)
        if not 0 <= self._number(row) < len(choices):
            raise HeadwiseError(f"label {row['label']!r} of {len(choices)} choices", f"0 to {len(choices) - 1}")

    def _number(self, row: Row) -> int:
        label = row.get("label")
        if isinstance(label, str):
            if label not in self.labels:
                raise unknown("label", label, self.labels)
            return self.labels.index(label)
        if isinstance(label, bool) or not isinstance(label, int | np.integer):
            raise HeadwiseError(f"label {label!r}", "the number of the right choice, from 0")
        return int(label)

    def _choices(self, row: Row) -> Sequence[str]:
        return row.get("choices") or self.choices

    def _pairs(self, row: Row) -> tuple[list[str], list[str]]:
        """Prompts and choices, one prompt for each choice."""
        prompt, choices = row["prompt"], list(self._choices(row))
        return ([prompt] * len(choices) if isinstance(prompt, str) else list(prompt)), choices

    def encode(self, rows: Sequence[Row], tokenizer: Any, max_length: int) -> Columns:
        pairs = [self._pairs(row) for row in rows]
        columns, cut = self.reading.encode(pairs, tokenizer, max_length)
        letters = Ragged.of([len(choice) for choice in choices] for _, choices in pairs)
        return {
            **columns,
            "chars": letters,
            "label": np.array([self._number(row) for row in rows], np.int64),
            "cut": cut,
        }

    def scores_of(self, likelihoods: Likelihoods, batch: Batch) -> Tensor:
        """The score of each choice, (B, C); minus infinity where a row has no such choice."""
        there = batch["tokens"] > 0
        scores = likelihoods.total
        if self.score != "sum":
            scores = scores / batch["tokens" if self.score == "token" else "chars"].clamp_min(1)
        if self.bias:
            scores = scores - scores.new_tensor(self.bias)
        return scores.masked_fill(~there, -torch.inf)

    def loss(self, scores: Likelihoods, batch: Batch) -> Tensor:
        values, label = self.scores_of(scores, batch), batch["label"]
        right = values.gather(1, label[:, None])[:, 0]
        if self.loss_of == "nll":
            return -right
        if self.loss_of == "choices":
            return F.cross_entropy(values, label, reduction="none")
        wrong = values.scatter(1, label[:, None], -torch.inf)
        return wrong.amax(1) - right

    def decode(self, scores: Likelihoods, batch: Batch) -> list:
        values, counts = self.scores_of(scores, batch).tolist(), (batch["tokens"] > 0).sum(1).tolist()
        return [Pick.of(row[:count]) for row, count in zip(values, counts)]

    def gold(self, rows: Sequence[Row]) -> list:
        return [self._number(row) for row in rows]

    def unanswered(self, row: Row) -> Row:
        if not self._choices(row):
            raise HeadwiseError("a prompt without choices", "a row with choices", '{"prompt": ..., "choices": [...]}')
        return {**row, "label": 0}

    def predictions(self, scores: Likelihoods, batch: Batch, rows: Sequence[Row]) -> list[Any]:
        """The likeliest choice by the name of its label where all rows have the same ones, else as it is written."""
        predictions = []
        for chances, row in zip(self.scores_of(scores, batch).double().softmax(-1).tolist(), rows):
            own = [str(choice).strip() for choice in self._choices(row)]
            names = self.labels if len(self.labels) == len(own) and not row.get("choices") else own
            predictions.append(Labelled(names[int(np.argmax(chances[: len(own)]))], dict(zip(names, chances))))
        return predictions

    def with_bias(self, scores_NC: Tensor) -> Choice:
        """The kind with the bias that prompts without content show: the log of the mean probability of each choice."""
        bias = scores_NC.double().log_softmax(-1).logsumexp(0) - np.log(len(scores_NC))
        return replace(self, bias=tuple(round(value, 6) for value in bias.tolist()))


@dataclass(frozen=True)
class Grade(Choice):
    """A grade: the mean of choices that are numbers, weighted with their probabilities (STS-B and its kin)."""

    values: tuple[float, ...] = ()

    def check(self, row: Row) -> None:
        check_prompt(row)
        label = row.get("label")
        if not isinstance(label, int | float) or not min(self.values) <= label <= max(self.values):
            raise HeadwiseError(f"label {label!r}", f"a number from {min(self.values)} to {max(self.values)}")

    def encode(self, rows: Sequence[Row], tokenizer: Any, max_length: int) -> Columns:
        nearest = [int(np.argmin([abs(row["label"] - value) for value in self.values])) for row in rows]
        rows = [{**row, "label": near} for row, near in zip(rows, nearest)]
        return super().encode(rows, tokenizer, max_length)

    def decode(self, scores: Likelihoods, batch: Batch) -> list:
        values = self.scores_of(scores, batch).double().softmax(-1)
        return (values @ values.new_tensor(self.values)).tolist()

    def gold(self, rows: Sequence[Row]) -> list:
        return [float(row["label"]) for row in rows]

    def unanswered(self, row: Row) -> Row:
        return {**row, "label": self.values[0]}

    def predictions(self, scores: Likelihoods, batch: Batch, rows: Sequence[Row]) -> list[Any]:
        return [Graded(value) for value in self.decode(scores, batch)]
