"""How likely a given continuation of a prompt is, and whether greedy decoding would say just that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from headwise.errors import HeadwiseError, unknown
from headwise.tasks.columns import Columns
from headwise.tasks.kinds.choice import Batch, Likelihoods, Prompted, check_prompt
from headwise.tasks.kinds.reading import Reading
from headwise.tasks.task import Row


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
