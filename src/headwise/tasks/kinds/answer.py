"""Answer a question with a span of a text; long texts are read in overlapping windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from headwise.errors import HeadwiseError
from headwise.tasks.columns import Columns, Ragged
from headwise.tasks.kinds.wordlevel import cross_entropy
from headwise.tasks.predictions import Answered
from headwise.tasks.task import Hidden, Row

Batch = dict[str, Tensor]


class Found(NamedTuple):
    """The best answer of one window: its row, its score, and its character range in the row's context."""

    row: int
    score: float
    start: int
    end: int


class Ends(NamedTuple):
    start: Tensor  # (B, T)
    end: Tensor  # (B, T)


class AnswerHead(nn.Module):
    """One linear layer that scores each sub-word as the start and the end of the answer."""

    def __init__(self, hidden: int, dropout: float):
        super().__init__()
        self.dropout, self.out = nn.Dropout(dropout), nn.Linear(hidden, 2)

    def forward(self, hidden: Hidden, batch: Batch) -> Ends:
        scores = self.out(self.dropout(hidden.states)).float()
        real = batch["attention_mask"].bool()[..., None]
        return Ends(*scores.masked_fill(~real, -1e9).unbind(-1))


@dataclass(frozen=True)
class Answer:
    """Extractive question answering; rows are ``{"question", "context", "answers": [text], "starts": [letter]}``.

    Each window of a row is an item (column ``row``); the target of a window without the answer is its first sub-word.
    Training uses the first answer. `decode` gives the best span of each window, `merge` the best of each row.
    """

    stride: int = 128  # sub-words that neighbouring windows share
    longest_question: int = 64
    longest_answer: int = 30
    dropout: float = 0.1
    labels: tuple[str, ...] = ("start", "end")
    asks: ClassVar[tuple[str, ...]] = ("question", "context")

    def ready(self, rows: Sequence[Row]) -> Answer:
        return self

    def check(self, row: Row) -> None:
        for name in ("question", "context"):
            if not isinstance(row.get(name), str):
                raise HeadwiseError(f"{name} is {row.get(name)!r}", "a text")
        answers, starts = row.get("answers") or [], row.get("starts") or []
        if not answers or len(answers) != len(starts) or not all(answers):
            raise HeadwiseError(f"answers {answers!r} at {starts!r}", "one or more answers, each with its start")
        for answer, start in zip(answers, starts):
            there = row["context"][max(start, 0) : start + len(answer)]
            if start < 0 or there != answer:
                raise HeadwiseError(f"answer {answer!r}, but the context has {there!r} at {start}", "the same text")

    def encode(self, rows: Sequence[Row], tokenizer: Any, max_length: int) -> Columns:
        question_room = max(1, min(self.longest_question, max_length // 3))
        room = max_length - question_room - tokenizer.num_special_tokens_to_add(pair=True)
        if room < 2:
            raise HeadwiseError(f"max_length {max_length}", "room for a question and some context")
        questions, cut = _shortened([row["question"] for row in rows], tokenizer, question_room)
        coded = tokenizer(questions, [row["context"] for row in rows], return_offsets_mapping=True, verbose=False)
        letters = [_context_letters(coded, row) for row in range(len(rows))]
        # Windows are cut here, not by the tokenizer: tokenizers 0.23.1 and 0.23.2 lose most of what they truncate.
        stride = min(self.stride, room // 2)
        cuts = [(row, kept) for row, places in enumerate(letters) for kept in _windows(places, max_length, stride)]

        def windows(column: Sequence[Any]) -> list[Any]:
            return [[column[row][i] for i in kept] for row, kept in cuts]

        offsets, row_of = windows(letters), np.array([row for row, _ in cuts], np.int64)
        ends = [_target(rows[row], places) for (row, _), places in zip(cuts, offsets)]
        columns: Columns = {"input_ids": Ragged.of(windows(coded["input_ids"])), "offsets": Ragged.of(offsets, 2)}
        if "token_type_ids" in coded:
            columns["token_type_ids"] = Ragged.of(windows(coded["token_type_ids"]), dtype=np.int8)
        start, end = np.array(ends, np.int64).reshape(-1, 2).T
        return {**columns, "row": row_of, "start": start.copy(), "end": end.copy(), "cut": cut[row_of]}

    def head(self, hidden: int) -> nn.Module:
        return AnswerHead(hidden, self.dropout)

    def loss(self, scores: Ends, batch: Batch) -> Tensor:
        return (cross_entropy(scores.start, batch["start"]) + cross_entropy(scores.end, batch["end"])) / 2

    def spans(self, scores: Ends, batch: Batch) -> tuple[Tensor, Tensor]:
        """The score of every span as the answer, (B, T, A), -inf for what is none; and its last sub-word, (T, A)."""
        size = scores.start.shape[1]
        context = batch["offsets"][..., 0] >= 0
        first = torch.arange(size, device=context.device)[:, None]
        last = first + torch.arange(min(self.longest_answer, size), device=context.device)  # (T, longest answer)
        inside, last = last < size, last.clamp(max=size - 1)
        worth = scores.start[:, :, None] + scores.end[:, last]
        allowed = context[:, :, None] & context[:, last] & inside
        return worth.masked_fill(~allowed, -torch.inf), last

    def decode(self, scores: Ends, batch: Batch) -> list[Found]:
        worth, last = self.spans(scores, batch)
        score, at = worth.flatten(1).max(1)
        row = torch.arange(len(at), device=at.device)
        start = batch["offsets"][row, at // last.shape[1], 0]
        end = batch["offsets"][row, last.flatten()[at], 1]
        return [Found(*item) for item in zip(batch["row"].tolist(), score.tolist(), start.tolist(), end.tolist())]

    def merge(self, predictions: Sequence[Found], rows: Sequence[Row], columns: Columns | None = None) -> list[str]:
        """The best window's answer for each row, as text; "" for a row no window could answer.

        Predictions know their row, so ``columns`` is not needed.
        """
        best: dict[int, Found] = {}
        for prediction in predictions:
            if prediction.score > best.get(prediction.row, (0, -np.inf))[1]:
                best[prediction.row] = prediction
        return [row["context"][best[i].start : best[i].end] if i in best else "" for i, row in enumerate(rows)]

    def gold(self, rows: Sequence[Row]) -> list[list[str]]:
        return [list(row["answers"]) for row in rows]

    def unanswered(self, row: Row) -> Row:
        return {**row, "answers": [row["context"][:1]], "starts": [0]}

    def predictions(self, scores: Ends, batch: Batch, rows: Sequence[Row]) -> list[Answered]:
        decoded = ((row["context"], *window[1:]) for row, window in zip(rows, self.decode(scores, batch)))
        return [Answered(context[start:end], start, end, score) for context, score, start, end in decoded]


def _shortened(questions: list[str], tokenizer: Any, room: int) -> tuple[list[str], np.ndarray]:
    """Questions truncated to ``room`` sub-words, and how many sub-words each lost."""
    if not getattr(tokenizer, "is_fast", False):
        raise HeadwiseError(
            f"{type(tokenizer).__name__} does not return the positions of sub-words", "a fast tokenizer"
        )
    coded = tokenizer(questions, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    spans = coded["offset_mapping"]
    short = [q[: s[room - 1][1]] if len(s) > room else q for q, s in zip(questions, spans)]
    return short, np.array([max(0, len(s) - room) for s in spans], np.int64)


def _context_letters(coded: Any, item: int) -> list[tuple[int, int]]:
    """The character range of each sub-word in the context; (-1, -1) for the question and special tokens."""
    spans = zip(coded["offset_mapping"][item], coded.sequence_ids(item))
    return [tuple(span) if side == 1 else (-1, -1) for span, side in spans]


def _windows(letters: list[tuple[int, int]], max_length: int, stride: int) -> list[list[int]]:
    """The positions of each window: the question, special tokens, and as much of the context as fits."""
    if len(letters) <= max_length:
        return [list(range(len(letters)))]
    context = [i for i, (start, _) in enumerate(letters) if start >= 0]
    room = max_length - (len(letters) - len(context))
    if room < 1:
        raise HeadwiseError(
            f"{max_length - room} sub-words of question, max_length {max_length}", "room for some context"
        )
    before, after = range(context[0]), range(context[-1] + 1, len(letters))
    starts = range(0, max(1, len(context) - stride), max(1, room - stride))
    return [[*before, *context[start : start + room], *after] for start in starts]


def _target(row: Row, letters: list[tuple[int, int]]) -> tuple[int, int]:
    """First and last sub-word of the answer in this window; the window's first sub-word if it is not fully inside."""
    start, end = row["starts"][0], row["starts"][0] + len(row["answers"][0])
    inside = [i for i, (a, b) in enumerate(letters) if a < end and start < b]
    if not inside or letters[inside[0]][0] > start or letters[inside[-1]][1] < end:
        return 0, 0
    return inside[0], inside[-1]
