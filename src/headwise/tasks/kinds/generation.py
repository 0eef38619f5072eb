"""An answer in the model's own words: greedy decoding, cut at a stop text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from headwise.errors import HeadwiseError, unknown
from headwise.tasks.columns import Columns
from headwise.tasks.kinds.choice import Batch, Likelihoods, Prompted, check_prompt
from headwise.tasks.kinds.reading import Reading
from headwise.tasks.predictions import Written
from headwise.tasks.task import Row


class Generated(NamedTuple):
    """The likelihood of the right answer, and what the model says."""

    likelihoods: Likelihoods
    texts: list[str] | None  # None where only losses are asked for


@dataclass(frozen=True)
class Generation(Prompted):
    """Rows are ``{"prompt": text, "answers": [text, …]}``: what is generated is compared with the nearest answer.

    The loss is minus the log-likelihood of the first answer.

    Example:
        >>> Generation(stop=("\\n", ".")).check({"prompt": "The capital of Peru is", "answers": ["Lima"]})
    """

    longest: int = 16
    """Tokens to generate at most."""
    stop: tuple[str, ...] = ("\n",)
    """Texts that end an answer."""
    reading: Reading = field(default_factory=Reading)
    labels: tuple[str, ...] = ("answer",)
    asks: ClassVar[tuple[str, ...]] = ("prompt",)

    def ready(self, rows: Sequence[Row]) -> Generation:
        return self

    def check(self, row: Row) -> None:
        check_prompt(row)
        answers = row.get("answers")
        if not isinstance(answers, list | tuple) or not answers or not all(isinstance(a, str) and a for a in answers):
            raise HeadwiseError(f"answers {answers!r}"[:80], "one text or more")

    def encode(self, rows: Sequence[Row], tokenizer: Any, max_length: int) -> Columns:
        pairs = [([row["prompt"]], [row["answers"][0]]) for row in rows]
        columns, cut = self.reading.encode(pairs, tokenizer, max_length)
        return {**columns, "cut": cut}

    def loss(self, scores: Generated, batch: Batch) -> Tensor:
        return -scores.likelihoods.total[:, 0]

    def ended(self, text: str) -> bool:
        """Whether an answer is complete: a stop text follows it."""
        return any(stop in text.lstrip() for stop in self.stop)

    def decode(self, scores: Generated, batch: Batch) -> list:
        return [self._cut(text.lstrip()) for text in scores.texts or ()]

    def _cut(self, text: str) -> str:
        places = [place for stop in self.stop if (place := text.find(stop)) >= 0]
        return text[: min(places, default=len(text))].strip()

    def gold(self, rows: Sequence[Row]) -> list:
        return [list(row["answers"]) for row in rows]

    def unanswered(self, row: Row) -> Row:
        return {**row, "answers": ["?"]}

    def predictions(self, scores: Generated, batch: Batch, rows: Sequence[Row]) -> list[Written]:
        return [Written(text) for text in self.decode(scores, batch)]


class Reached(NamedTuple):
    """What became of a continuation."""

    exact: bool  # every token is the likeliest
    total: float  # log-likelihood
    tokens: int


@dataclass(frozen=True)
class Continuation(Prompted):
    """Rows are ``{"prompt": text, "target": text}``; metrics: continuation_match and token_probability.

    Example:
        >>> Continuation().check({"prompt": "red green red", "target": "green"})
    """

    score: str = "sum"
    """The loss of a row: minus the log-likelihood of all tokens ("sum"), or its mean ("token")."""
    reading: Reading = field(default_factory=Reading)
    labels: tuple[str, ...] = ("continuation",)

    def __post_init__(self) -> None:
        if self.score not in ("sum", "token"):
            raise unknown("score", self.score, ("sum", "token"))

    def ready(self, rows: Sequence[Row]) -> Continuation:
        return self

    def check(self, row: Row) -> None:
        check_prompt(row)
        check_prompt(row, "target")
        if not row["target"].strip():
            raise HeadwiseError(f"target {row['target']!r}", "a text")

    def encode(self, rows: Sequence[Row], tokenizer: Any, max_length: int) -> Columns:
        pairs = [([row["prompt"]], [row["target"]]) for row in rows]
        columns, cut = self.reading.encode(pairs, tokenizer, max_length)
        return {**columns, "cut": cut}

    def loss(self, scores: Likelihoods, batch: Batch) -> Tensor:
        total = -scores.total[:, 0]
        return total / batch["tokens"][:, 0] if self.score == "token" else total

    def decode(self, scores: Likelihoods, batch: Batch) -> list:
        assert scores.greedy is not None
        columns = (scores.greedy[:, 0], scores.total[:, 0], batch["tokens"][:, 0])
        return [Reached(*row) for row in zip(*(column.tolist() for column in columns))]

    def gold(self, rows: Sequence[Row]) -> list:
        return [row["target"] for row in rows]
