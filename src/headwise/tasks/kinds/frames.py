"""Predicates and their argument spans, found together by ranking spans (He et al. 2018)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headwise.errors import HeadwiseError
from headwise.tasks.columns import Columns, Ragged
from headwise.tasks.kinds.tag import flat
from headwise.tasks.kinds.wordlevel import (
    Batch,
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
from headwise.tasks.predictions import Framed
from headwise.tasks.task import Hidden, Row, label_set

VERB = "V"  # the predicate itself: says where the frame is, never predicted, never scored
Frame = tuple[int, int, int, str]  # predicate, start, end, role


class Roles(NamedTuple):
    """Role scores for the selected predicates and argument spans, and the scores that selected them."""

    roles: Tensor  # (B, P, A, 1 + labels): the first is no role, with score 0
    predicate: Tensor  # (B, P): a word, -1 where absent
    start: Tensor  # (B, A): first word of a span, -1 where absent
    end: Tensor  # (B, A): end exclusive, -1 where absent
    span_rank: Tensor  # (B, W, width - 1)
    word_rank: Tensor | None = None  # (B, W); None where predicates are given

    @property
    def valid(self) -> Tensor:
        return (self.predicate >= 0)[:, :, None] & (self.start >= 0)[:, None]


class SpanLinear(nn.Module):
    """A linear layer on ``[first word; last word; width; sum of words / widest]`` of spans.

    Words are projected before spans are formed, and sums are differences of cumulative sums, so no tensor has the size
    of spans times the encoder's width.
    """

    def __init__(self, hidden: int, size: int, widest: int, width_size: int):
        super().__init__()
        self.first = nn.Linear(hidden, size)
        self.last, self.whole = (nn.Linear(hidden, size, bias=False) for _ in range(2))
        self.width = nn.Sequential(nn.Embedding(widest, width_size), nn.Linear(width_size, size, bias=False))
        self.widest = widest

    def forward(self, states_BWE: Tensor, start_BS: Tensor, end_BS: Tensor) -> Tensor:
        running = F.pad(self.whole(states_BWE).float().cumsum(1) / self.widest, (0, 0, 1, 0))
        ends = _pick(self.first(states_BWE), start_BS) + _pick(self.last(states_BWE), end_BS - 1)
        return ends + _pick(running, end_BS) - _pick(running, start_BS) + self.width(end_BS - start_BS - 1)


def _pick(states_BWE: Tensor, places_BS: Tensor) -> Tensor:
    return states_BWE.gather(1, places_BS[:, :, None].expand(-1, -1, states_BWE.shape[2]))


def _deep(size: int, outputs: int, dropout: float) -> nn.Sequential:
    """The rest of a network with two hidden layers after its first linear layer."""
    return nn.Sequential(
        nn.ReLU(), nn.Dropout(dropout), nn.Linear(size, size), nn.ReLU(), nn.Dropout(dropout), nn.Linear(size, outputs)
    )


class FrameHead(nn.Module):
    """Rank spans and words by separate scores, keep the best, and score a role for every pair."""

    def __init__(self, hidden: int, outputs: int, kind: Frames):
        super().__init__()
        self.kind, size = kind, kind.size
        self.dropout = nn.Dropout(kind.dropout)
        self.span, self.argument = (SpanLinear(hidden, size, kind.widest, kind.width_size) for _ in range(2))
        self.word, self.predicate = nn.Linear(hidden, size), nn.Linear(hidden, size)
        self.rank_span, self.rank_word = _deep(size, 1, kind.dropout), _deep(size, 1, kind.dropout)
        self.role = _deep(size, outputs, kind.dropout)

    def forward(self, hidden: Hidden, batch: Batch) -> Roles:
        states, counts = self.dropout(words(hidden.states, batch, self.kind.pool)), word_counts(batch)
        start, end, span_score, span_rank = self._spans(states, counts)
        if self.kind.given:
            predicate, word_rank = batch["predicates"], None
            word_score = torch.zeros_like(predicate, dtype=torch.float)
        else:
            word_rank = self.rank_word(self.word(states))[..., 0].float()
            present = torch.arange(states.shape[1], device=counts.device) < counts[:, None]
            predicate, word_score = _top(word_rank, present, counts, self.kind.predicate_ratio, states.shape[1])
        spans = self.argument(states, start.clamp(min=0), end.clamp(min=1))
        pairs = self.predicate(_pick(states, predicate.clamp(min=0)))[:, :, None] + spans[:, None]
        roles = self.role(pairs).float() + word_score[:, :, None, None] + span_score[:, None, :, None]
        return Roles(F.pad(roles, (1, 0)), predicate, start, end, span_rank, word_rank)

    def _spans(self, states: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        size = states.shape[1]
        widest = min(self.kind.widest, size)
        place = torch.arange(size * widest, device=states.device).expand(len(states), -1)
        start, end = place // widest, place // widest + place % widest + 1
        rank = self.rank_span(self.span(states, start, end.clamp(max=size)))[..., 0].float()
        at, score = _top(rank, end <= counts[:, None], counts, self.kind.argument_ratio, size)
        start, end = (side.gather(1, at.clamp(min=0)).masked_fill(at < 0, -1) for side in (start, end))
        return start, end, score, rank.view(-1, size, widest)


def _top(score_BS: Tensor, valid_BS: Tensor, counts_B: Tensor, share: float, words: int) -> tuple[Tensor, Tensor]:
    """The best positions of each sentence, a fraction of its number of words; -1 where none are left."""
    quota = (counts_B * share).ceil()
    most = min(math.ceil(np.float32(words) * np.float32(share)), score_BS.shape[1])  # rounded as torch does
    score, at = score_BS.masked_fill(~valid_BS, -1e9).topk(most, 1)
    absent = ~valid_BS.gather(1, at) | (torch.arange(most, device=at.device) >= quota[:, None])
    return at.masked_fill(absent, -1), score.masked_fill(absent, 0)


def _rank_loss(rank: Tensor, valid: Tensor, gold_BG: Tensor) -> Tensor:
    """The ranking loss of positions against gold positions (flat indices, negative for none)."""
    target = marked(gold_BG, torch.ones_like(gold_BG, dtype=rank.dtype), rank[0].numel()).view_as(rank)
    return masked_mean(F.binary_cross_entropy_with_logits(rank, target, reduction="none"), valid)


@dataclass(frozen=True)
class Frames:
    """Semantic roles; rows are ``{"words", "frames": [{"predicate": word, "arguments": [[start, end, role], ...]}]}``.

    Predicates are predicted, or ``given`` with the words. Roles V and C-V are the predicate itself and are not learned.
    Arguments of one predicate do not overlap and have at most ``widest`` words.
    """

    labels: tuple[str, ...] = ()
    given: bool = False
    size: int = 150
    widest: int = 30
    width_size: int = 20
    argument_ratio: float = 0.8
    predicate_ratio: float = 0.4
    dropout: float = 0.2
    pool: str = "mean"
    learnt: bool = False
    asks: ClassVar[tuple[str, ...]] = ("words", "predicates")

    def __post_init__(self) -> None:
        check_pool(self.pool)

    def ready(self, rows: Sequence[Row]) -> Frames:
        labels = label_set((role for *_, role in _arguments(row)) for row in rows)
        if not labels:
            raise HeadwiseError("training rows without arguments", "frames with arguments")
        return replace(self, labels=labels, learnt=True)

    def check(self, row: Row) -> None:
        check_words(row)
        if not isinstance(row.get("frames"), list):
            raise HeadwiseError(f"frames {row.get('frames')!r}", "a list (empty without predicates)")
        size = len(row["words"])
        for frame in row["frames"]:
            if not isinstance(frame, dict) or not {"predicate", "arguments"} <= set(frame):
                raise HeadwiseError(f"frame {frame!r}"[:80], "predicate and arguments")
            if not isinstance(frame["predicate"], int) or not 0 <= frame["predicate"] < size:
                raise HeadwiseError(f"predicate {frame['predicate']}", f"a word from 0 to {size - 1}")
            for argument in frame["arguments"]:
                _check_argument(argument, size)
        check_known((role for *_, role in _arguments(row)), self)

    def encode(self, rows: Sequence[Row], tokenizer: Any, max_length: int) -> Columns:
        columns = encode_words(rows, tokenizer, max_length)
        given = [sorted({f["predicate"] for f in row["frames"]}) for row in rows]
        pairs = [_arguments(row) for row in rows]
        roles = numbered(([role for *_, role in row] for row in pairs), self.labels)
        coded = [[(p, s, e, role) for (p, s, e, _), role in zip(*row)] for row in zip(pairs, roles)]
        return {**columns, "predicates": Ragged.of(given), "arguments": Ragged.of(coded, 4)}

    def head(self, hidden: int) -> nn.Module:
        return FrameHead(hidden, len(self.labels), self)

    def loss(self, scores: Roles, batch: Batch) -> Tensor:
        """Cross-entropy of roles over the selected pairs, and of the selection over all spans and words.

        He et al. train the ranking through the roles alone; a gold span that is not selected then gets no gradient.
        """
        predicate, start, end, role = batch["arguments"].unbind(-1)
        hangs = (scores.predicate[:, None] == predicate[:, :, None]) & (predicate >= 0)[:, :, None]  # (B, G, P)
        spans = (scores.start[:, None] == start[:, :, None]) & (scores.end[:, None] == end[:, :, None])  # (B, G, A)
        number = (role + 1).masked_fill(role < 0, -1)  # an unseen role makes its pair -1: ignored
        target = torch.einsum("bgp,bga,bg->bpa", hangs.float(), spans.float(), number.float()).long()
        role_loss = masked_mean(cross_entropy(scores.roles, target), scores.valid & (target >= 0))
        return role_loss + self._keeping_loss(scores, batch)

    def _keeping_loss(self, scores: Roles, batch: Batch) -> Tensor:
        _, start, end, _ = batch["arguments"].unbind(-1)
        _, size, widest = scores.span_rank.shape
        counts, place = word_counts(batch), torch.arange(size, device=start.device)
        valid = place[:, None] + place[:widest] < counts[:, None, None]
        gold = (start * widest + end - start - 1).masked_fill(end - start > widest, -1)
        loss = _rank_loss(scores.span_rank, valid, gold)
        if scores.word_rank is not None:
            loss = loss + _rank_loss(scores.word_rank, place < counts[:, None], batch["predicates"])
        return loss

    def decode(self, scores: Roles, batch: Batch) -> list[list[Frame]]:
        gain, role = scores.roles[..., 1:].max(-1)
        gain = gain.masked_fill(~scores.valid, 0)
        each = (scores.start[:, None].expand_as(gain), scores.end[:, None].expand_as(gain))
        taken = flat(gain.flatten(0, 1), each[0].flatten(0, 1), each[1].flatten(0, 1)).view_as(gain)
        b, p, a = taken.nonzero(as_tuple=True)
        indices = torch.stack([b, scores.predicate[b, p], scores.start[b, a], scores.end[b, a], role[b, p, a]], -1)
        out: list[set[Frame]] = [set() for _ in range(len(gain))]
        for example, predicate, start, end, label in indices.tolist():
            out[example] |= {(predicate, start, end, self.labels[label]), (predicate, predicate, predicate + 1, VERB)}
        return [sorted(frames) for frames in out]

    def gold(self, rows: Sequence[Row]) -> list[list[Frame]]:
        verbs = [{(f["predicate"], f["predicate"], f["predicate"] + 1, VERB) for f in row["frames"]} for row in rows]
        return [sorted({*_arguments(row), *own}) for row, own in zip(rows, verbs)]

    def unanswered(self, row: Row) -> Row:
        if self.given and "predicates" not in row:
            raise HeadwiseError("words without their predicates", 'rows {"words": [...], "predicates": [1]}')
        return {**row, "frames": [{"predicate": int(at), "arguments": []} for at in row.get("predicates", ())]}

    def predictions(self, scores: Roles, batch: Batch, rows: Sequence[Row]) -> list[Framed]:
        return [Framed(row["words"], _by_predicate(decoded)) for row, decoded in zip(rows, self.decode(scores, batch))]


def _check_argument(argument: Any, size: int) -> None:
    if not isinstance(argument, list | tuple) or [type(part) for part in argument] != [int, int, str]:
        raise HeadwiseError(f"argument {argument!r}"[:80], "first word, end and role")
    start, end, role = argument
    if not 0 <= start < end <= size:
        raise HeadwiseError(f"argument {role} over {start} to {end}", f"a span inside {size} words")


def _by_predicate(decoded: Sequence[Frame]) -> list[dict[str, Any]]:
    """Predicted arguments in the form of a row's frames."""
    frames: dict[int, list] = {}
    for predicate, start, end, role in decoded:
        arguments = frames.setdefault(predicate, [])
        if role != VERB:
            arguments.append([start, end, role])
    return [{"predicate": predicate, "arguments": arguments} for predicate, arguments in sorted(frames.items())]


def _arguments(row: Row) -> list[Frame]:
    """The arguments of all frames, one role per span and predicate."""
    roles = {
        (frame["predicate"], start, end): role
        for frame in row["frames"]
        for start, end, role in frame["arguments"]
        if role.removeprefix("C-") != VERB
    }
    return [(*span, role) for span, role in roles.items()]
