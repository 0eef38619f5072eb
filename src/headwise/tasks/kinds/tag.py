"""One label for each word (parts of speech, BIO), and labelled spans of words (entities)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from headwise.errors import HeadwiseError
from headwise.tasks.columns import Columns, Ragged
from headwise.tasks.kinds.wordlevel import (
    Batch,
    Biaffine,
    check_known,
    check_pool,
    check_words,
    cross_entropy,
    encode_words,
    marked,
    masked_mean,
    numbered,
    word_counts,
    words,
)
from headwise.tasks.labels import row_labels
from headwise.tasks.metrics import Span, bio_spans
from headwise.tasks.predictions import Spanned, Tagged
from headwise.tasks.task import Hidden, Row, label_set

# -- one label per word


class TagHead(nn.Module):
    """Dropout and one linear layer on every word."""

    def __init__(self, hidden: int, outputs: int, dropout: float, pool: str):
        super().__init__()
        self.dropout, self.out, self.pool = nn.Dropout(dropout), nn.Linear(hidden, outputs), pool

    def forward(self, hidden: Hidden, batch: Batch) -> Tensor:
        return self.out(self.dropout(words(hidden.states, batch, self.pool))).float()


@dataclass(frozen=True)
class Tag:
    """One label per word; rows are ``{"words", "labels"}``.

    Example:
        >>> Tag(("NOUN", "VERB")).check({"words": ["dogs", "bark"], "labels": ["NOUN", "VERB"]})
    """

    labels: tuple[str, ...] = ()
    dropout: float = 0.1
    pool: str = "mean"
    learnt: bool = False  # labels were read from training rows: others may turn up later
    asks: ClassVar[tuple[str, ...]] = ("words",)

    def __post_init__(self) -> None:
        check_pool(self.pool)

    def ready(self, rows: Sequence[Row]) -> Tag:
        return replace(self, labels=label_set(row_labels(row["labels"]) for row in rows), learnt=True)

    def check(self, row: Row) -> None:
        check_words(row, "labels")
        check_known(row_labels(row["labels"], self.labels), self)

    def encode(self, rows: Sequence[Row], tokenizer: Any, max_length: int) -> Columns:
        labels = numbered((row_labels(row["labels"], self.labels) for row in rows), self.labels)
        return {**encode_words(rows, tokenizer, max_length), "labels": Ragged.of(labels)}

    def head(self, hidden: int) -> nn.Module:
        return TagHead(hidden, len(self.labels), self.dropout, self.pool)

    def loss(self, scores: Tensor, batch: Batch) -> Tensor:
        return masked_mean(cross_entropy(scores, batch["labels"]), batch["labels"] >= 0)

    def decode(self, scores: Tensor, batch: Batch) -> list[list[str]]:
        counted = zip(scores.argmax(-1).tolist(), word_counts(batch).tolist())
        return [[self.labels[i] for i in row[:count]] for row, count in counted]

    def gold(self, rows: Sequence[Row]) -> list[list[str]]:
        return [row_labels(row["labels"], self.labels) for row in rows]

    def unanswered(self, row: Row) -> Row:
        return {**row, "labels": [self.labels[0]] * len(row["words"])}

    def predictions(self, scores: Tensor, batch: Batch, rows: Sequence[Row]) -> list[Tagged]:
        chances, tags = scores.softmax(-1).amax(-1).tolist(), self.decode(scores, batch)
        return [Tagged(row["words"], named, sure[: len(named)]) for row, named, sure in zip(rows, tags, chances)]


# -- labelled spans


def flat(gain_BS: Tensor, start_BS: Tensor, end_BS: Tensor) -> Tensor:
    """Non-overlapping spans, chosen greedily by gain; spans with no gain (<= 0) are never chosen.

    Example:
        >>> flat(torch.tensor([[1.0, 3, 2]]), torch.tensor([[0, 1, 3]]), torch.tensor([[2, 3, 4]])).tolist()
        [[False, True, True]]
    """
    free, taken = gain_BS.clone(), torch.zeros_like(gain_BS, dtype=torch.bool)
    while free.numel() and (free > 0).any():
        gain, at = free.max(1, keepdim=True)
        live = gain > 0
        taken |= torch.zeros_like(taken).scatter(1, at, True) & live
        clash = (start_BS < end_BS.gather(1, at)) & (start_BS.gather(1, at) < end_BS)
        free = free.masked_fill(clash & live, 0)
    return taken


class SpanHead(nn.Module):
    """A biaffine score of every label, and of none, for every first and last word (Yu et al. 2020)."""

    def __init__(self, hidden: int, outputs: int, size: int, dropout: float, pool: str):
        super().__init__()
        self.dropout, self.pool = nn.Dropout(dropout), pool
        self.start, self.end = nn.Linear(hidden, size), nn.Linear(hidden, size)
        self.score = Biaffine(size, size, outputs + 1)

    def forward(self, hidden: Hidden, batch: Batch) -> Tensor:
        states = self.dropout(words(hidden.states, batch, self.pool))
        return self.score(self.start(states), self.end(states))


@dataclass(frozen=True)
class Spans:
    """Non-overlapping labelled spans; rows are ``{"words", "labels"}`` with BIO labels.

    Scores are ``(B, first word, last word, 1 + labels)``, none first.
    """

    labels: tuple[str, ...] = ()
    size: int = 150
    dropout: float = 0.1
    pool: str = "mean"
    learnt: bool = False
    asks: ClassVar[tuple[str, ...]] = ("words",)

    def __post_init__(self) -> None:
        check_pool(self.pool)

    def ready(self, rows: Sequence[Row]) -> Spans:
        labels = label_set((label for _, _, label in bio_spans(row["labels"])) for row in rows)
        if not labels:
            raise HeadwiseError("training rows without spans", "labels such as B-PER, I-PER and O")
        return replace(self, labels=labels, learnt=True)

    def check(self, row: Row) -> None:
        check_words(row, "labels")
        for tag in row["labels"]:
            if tag != "O" and str(tag)[:2] not in ("B-", "I-", "E-", "S-"):
                raise HeadwiseError(f"label {tag!r}", "O, or B- or I- and a type")
        check_known((label for _, _, label in bio_spans(row["labels"])), self)

    def encode(self, rows: Sequence[Row], tokenizer: Any, max_length: int) -> Columns:
        spans = [bio_spans(row["labels"]) for row in rows]
        names = numbered(([label for _, _, label in row] for row in spans), self.labels)
        coded = [[(s, e - 1, label) for (s, e, _), label in zip(*row)] for row in zip(spans, names)]
        return {**encode_words(rows, tokenizer, max_length), "spans": Ragged.of(coded, 3)}

    def head(self, hidden: int) -> nn.Module:
        return SpanHead(hidden, len(self.labels), self.size, self.dropout, self.pool)

    def loss(self, scores: Tensor, batch: Batch) -> Tensor:
        first, last, label = batch["spans"].unbind(-1)
        size, number = scores.shape[1], (label + 1).masked_fill(label < 0, -1)
        target = marked(first * size + last, number, size * size).view(scores.shape[:3])
        valid = _whole(scores, batch) & (target >= 0)
        return masked_mean(cross_entropy(scores, target), valid)

    def decode(self, scores: Tensor, batch: Batch) -> list[list[Span]]:
        best, label = (scores[..., 1:] - scores[..., :1]).max(-1)
        gain = best.masked_fill(~_whole(scores, batch), 0).flatten(1)
        place = torch.arange(gain.shape[1], device=gain.device).expand_as(gain)
        first, last = place // scores.shape[2], place % scores.shape[2]
        out: list[list[Span]] = [[] for _ in range(len(scores))]
        for example, at in flat(gain, first, last + 1).nonzero().tolist():
            start, end = divmod(at, scores.shape[2])
            out[example].append((start, end + 1, self.labels[int(label[example, start, end])]))
        return out

    def gold(self, rows: Sequence[Row]) -> list[list[Span]]:
        return [bio_spans(row["labels"]) for row in rows]

    def unanswered(self, row: Row) -> Row:
        return {**row, "labels": ["O"] * len(row["words"])}

    def predictions(self, scores: Tensor, batch: Batch, rows: Sequence[Row]) -> list[Spanned]:
        return [Spanned(row["words"], sorted(spans)) for row, spans in zip(rows, self.decode(scores, batch))]


def _whole(scores: Tensor, batch: Batch) -> Tensor:
    """Which pairs of first and last word are valid spans."""
    word = torch.arange(scores.shape[1], device=scores.device)
    return (word[:, None] <= word) & (word < word_counts(batch)[:, None, None])
