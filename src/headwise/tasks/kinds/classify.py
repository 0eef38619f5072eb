"""Classify or grade one text or a pair of texts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from headwise.errors import HeadwiseError, unknown
from headwise.tasks.columns import Columns, Ragged
from headwise.tasks.labels import label_text, row_labels
from headwise.tasks.predictions import Graded, Labelled
from headwise.tasks.task import Hidden, Row, label_set


def encode_texts(rows: Sequence[Row], tokenizer, max_length: int) -> Columns:
    """Sub-words of ``text`` (and ``text_b``), truncated at ``max_length``; ``cut`` is how many sub-words a row lost."""
    pairs = any(row.get("text_b") is not None for row in rows)
    texts = [row["text"] for row in rows]
    others = [row.get("text_b") or "" for row in rows] if pairs else None
    if others and tokenizer.num_special_tokens_to_add(True) == tokenizer.num_special_tokens_to_add(False):
        others = [other and f"\n{other}" for other in others]  # decoders put nothing between two texts
    coded = tokenizer(texts, others, truncation=True, max_length=max_length, verbose=False)
    ids = Ragged.of(coded["input_ids"])
    cut = np.zeros(len(rows), np.int64)
    for i in np.flatnonzero(ids.lengths >= max_length):  # only full rows can have lost something
        whole = tokenizer(texts[i], others[i] if others else None, verbose=False)["input_ids"]
        cut[i] = len(whole) - ids.lengths[i]
    columns: Columns = {"input_ids": ids, "cut": cut}
    if "token_type_ids" in coded and pairs:
        columns["token_type_ids"] = Ragged.of(coded["token_type_ids"], dtype=np.int8)
    return columns


def check_texts(row: Row) -> None:
    for name in ("text", "text_b"):
        value = row.get(name)
        if not isinstance(value, str) and (name == "text" or value is not None):
            raise HeadwiseError(f"{name} is {value!r}", "a text")


class SentenceHead(nn.Module):
    """Dropout and one linear layer on the pooled vector; ``inner`` puts a tanh layer before it."""

    def __init__(self, hidden: int, outputs: int, dropout: float = 0.1, inner: bool = False):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(hidden, hidden), nn.Tanh()) if inner else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(hidden, outputs)

    def forward(self, hidden: Hidden, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.out(self.dropout(self.inner(hidden.pooled)))


@dataclass(frozen=True)
class Classify:
    """One label for a text or a pair; rows are ``{"text", "text_b"?, "label"}``, labels by name."""

    labels: tuple[str, ...] = ()
    dropout: float = 0.1
    inner: bool = False
    asks: ClassVar[tuple[str, ...]] = ("text", "text_b")

    def ready(self, rows: Sequence[Row]) -> Classify:
        labels = label_set([label_text(row["label"])] for row in rows)
        if len(labels) < 2:
            raise HeadwiseError(f"only one label, {labels}, in the training rows", "two labels or more")
        return replace(self, labels=labels)

    def check(self, row: Row) -> None:
        check_texts(row)
        self.check_label(row)

    def check_label(self, row: Row) -> None:
        if row.get("label") is None:
            raise HeadwiseError("a row without a label", "a class name")
        (label,) = row_labels([row["label"]], self.labels)
        if self.labels and label not in self.labels:
            raise unknown("label", row["label"], self.labels)

    def encode(self, rows: Sequence[Row], tokenizer, max_length: int) -> Columns:
        return {**encode_texts(rows, tokenizer, max_length), "label": np.array(self.gold(rows), np.int64)}

    def head(self, hidden: int) -> nn.Module:
        return SentenceHead(hidden, len(self.labels), self.dropout, self.inner)

    def loss(self, scores: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return F.cross_entropy(scores, batch["label"], reduction="none")

    def decode(self, scores: torch.Tensor, batch: dict[str, torch.Tensor]) -> list:
        return scores.argmax(-1).tolist()

    def gold(self, rows: Sequence[Row]) -> list:
        index = {label: i for i, label in enumerate(self.labels)}
        return [index[label] for label in row_labels((row["label"] for row in rows), self.labels)]

    def unanswered(self, row: Row) -> Row:
        return {**row, "label": self.labels[0]}

    def predictions(self, scores: torch.Tensor, batch: dict[str, torch.Tensor], rows: Sequence[Row]) -> list[Labelled]:
        chances = scores.float().softmax(-1)
        best = chances.argmax(-1).tolist()
        return [Labelled(self.labels[i], dict(zip(self.labels, row))) for i, row in zip(best, chances.tolist())]


@dataclass(frozen=True)
class Regress:
    """A grade for a text or a pair; rows are ``{"text", "text_b"?, "label": number}``, scaled to 0-1 internally."""

    low: float = 0.0
    high: float = 5.0
    dropout: float = 0.1
    inner: bool = False
    labels: tuple[str, ...] = ("grade",)
    asks: ClassVar[tuple[str, ...]] = ("text", "text_b")

    def ready(self, rows: Sequence[Row]) -> Regress:
        return self

    def check(self, row: Row) -> None:
        check_texts(row)
        label = row.get("label")
        if not isinstance(label, (int, float)) or math.isnan(label) or not self.low <= label <= self.high:
            raise HeadwiseError(f"label {label!r}", f"a number from {self.low} to {self.high}")

    def encode(self, rows: Sequence[Row], tokenizer, max_length: int) -> Columns:
        target = np.array([row["label"] for row in rows], np.float32)
        return {**encode_texts(rows, tokenizer, max_length), "label": (target - self.low) / (self.high - self.low)}

    def head(self, hidden: int) -> nn.Module:
        return SentenceHead(hidden, 1, self.dropout, self.inner)

    def loss(self, scores: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return (scores.squeeze(-1) - batch["label"]).square()

    def decode(self, scores: torch.Tensor, batch: dict[str, torch.Tensor]) -> list:
        return (scores.squeeze(-1) * (self.high - self.low) + self.low).tolist()

    def gold(self, rows: Sequence[Row]) -> list:
        return [float(row["label"]) for row in rows]

    def unanswered(self, row: Row) -> Row:
        return {**row, "label": self.low}

    def predictions(self, scores: torch.Tensor, batch: dict[str, torch.Tensor], rows: Sequence[Row]) -> list[Graded]:
        return [Graded(value) for value in self.decode(scores.float(), batch)]
