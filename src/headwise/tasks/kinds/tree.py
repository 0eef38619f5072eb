"""Trees over words: dependencies with biaffine arcs, constituents with a tree CRF or a span scorer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from headwise.errors import HeadwiseError, unknown
from headwise.tasks.columns import Columns, Ragged
from headwise.tasks.kinds.bracketing import CHAIN, Tree, written
from headwise.tasks.kinds.parsing import chu_liu_edmonds, cky, eisner, inside, marginals
from headwise.tasks.kinds.wordlevel import (
    Batch,
    Biaffine,
    Projection,
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
from headwise.tasks.metrics import Span
from headwise.tasks.predictions import Bracketed, Parsed
from headwise.tasks.readers.shape import check_heads
from headwise.tasks.task import Hidden, Row, label_set

# -- dependencies


class Arcs(NamedTuple):
    """Scores of every head for every word, and of every label on that arc; head 0 is the root."""

    heads: Tensor  # (B, W, 1 + W)
    labels: Tensor  # (B, W, 1 + W, labels)


class ArcHead(nn.Module):
    """Deep biaffine attention over words (Dozat and Manning 2017); the root is the example's pooled vector."""

    def __init__(self, hidden: int, outputs: int, kind: Dependencies):
        super().__init__()
        self.pool = kind.pool
        self.child, self.parent = (Projection(hidden, kind.arc_size, kind.dropout) for _ in range(2))
        self.label_child, self.label_parent = (Projection(hidden, kind.label_size, kind.dropout) for _ in range(2))
        self.arc = Biaffine(kind.arc_size, kind.arc_size, 1)
        self.label = Biaffine(kind.label_size, kind.label_size, outputs)

    def forward(self, hidden: Hidden, batch: Batch) -> Arcs:
        states = words(hidden.states, batch, self.pool)
        nodes = torch.cat([hidden.pooled[:, None], states], 1)
        heads = self.arc(self.child(states), self.parent(nodes))[..., 0]
        absent = torch.arange(nodes.shape[1], device=nodes.device) > word_counts(batch)[:, None]
        labels = self.label(self.label_child(states), self.label_parent(nodes))
        return Arcs(heads.masked_fill(absent[:, None], -1e9), labels)


@dataclass(frozen=True)
class Dependencies:
    """A head and a label for every word; rows are ``{"words", "heads", "labels"}``, heads from 1, root 0."""

    labels: tuple[str, ...] = ()
    projective: bool = True  # Eisner; False: Chu-Liu/Edmonds
    arc_size: int = 500
    label_size: int = 100
    dropout: float = 0.33
    pool: str = "mean"
    learnt: bool = False
    asks: ClassVar[tuple[str, ...]] = ("words",)

    def __post_init__(self) -> None:
        check_pool(self.pool)

    def ready(self, rows: Sequence[Row]) -> Dependencies:
        return replace(self, labels=label_set(row_labels(row["labels"]) for row in rows), learnt=True)

    def check(self, row: Row) -> None:
        check_words(row, "heads", "labels")
        check_heads(row["heads"])
        check_known(row_labels(row["labels"], self.labels), self)

    def encode(self, rows: Sequence[Row], tokenizer: Any, max_length: int) -> Columns:
        columns = encode_words(rows, tokenizer, max_length)
        labels = numbered((row_labels(row["labels"], self.labels) for row in rows), self.labels)
        return {**columns, "heads": Ragged.of(row["heads"] for row in rows), "labels": Ragged.of(labels)}

    def head(self, hidden: int) -> nn.Module:
        return ArcHead(hidden, len(self.labels), self)

    def loss(self, scores: Arcs, batch: Batch) -> Tensor:
        heads, labels = batch["heads"], batch["labels"]
        arc_loss = cross_entropy(scores.heads, heads)
        label_loss = cross_entropy(_at_heads(scores.labels, heads.clamp(min=0)), labels)
        return masked_mean(arc_loss, heads >= 0) + masked_mean(label_loss, labels >= 0)

    def decode(self, scores: Arcs, batch: Batch) -> list[list[tuple[int, str]]]:
        parse = eisner if self.projective else chu_liu_edmonds
        counts = word_counts(batch)
        heads = parse(scores.heads, counts)
        labels = _at_heads(scores.labels, heads).argmax(-1)
        counted = zip(heads.tolist(), labels.tolist(), counts.tolist())
        return [[(h, self.labels[i]) for h, i in zip(row[:n], names)] for row, names, n in counted]

    def gold(self, rows: Sequence[Row]) -> list[list[tuple[int, str]]]:
        return [list(zip(row["heads"], row_labels(row["labels"], self.labels))) for row in rows]

    def unanswered(self, row: Row) -> Row:
        size = len(row["words"])
        return {**row, "heads": list(range(size)), "labels": [self.labels[0]] * size}

    def predictions(self, scores: Arcs, batch: Batch, rows: Sequence[Row]) -> list[Parsed]:
        decoded = [list(zip(*arcs)) for arcs in self.decode(scores, batch)]
        return [Parsed(row["words"], list(heads), list(labels)) for row, (heads, labels) in zip(rows, decoded)]


def _at_heads(labels_BWHL: Tensor, heads_BW: Tensor) -> Tensor:
    index = heads_BW[:, :, None, None].expand(-1, -1, 1, labels_BWHL.shape[-1])
    return labels_BWHL.gather(2, index)[:, :, 0]


# -- constituents


class Brackets(NamedTuple):
    """Scores of every bracket between two fence posts, and of every label on it, "no constituent" first."""

    spans: Tensor | None  # (B, P, P); None for the span scorer, whose labels say it all
    labels: Tensor  # (B, P, P, 1 + labels)


class BracketHead(nn.Module):
    """Biaffine scores over fence posts: half of the word before, half of the word after (Zhang et al. 2020).

    The pooled vector precedes the first word; the last sub-word's state ([SEP]) follows the last one.
    """

    def __init__(self, hidden: int, outputs: int, kind: Constituents):
        super().__init__()
        self.pool = kind.pool
        self.left, self.right = (Projection(hidden, kind.label_size, kind.dropout) for _ in range(2))
        self.label = Biaffine(kind.label_size, kind.label_size, outputs + 1)
        if kind.training == "crf":
            self.start, self.end = (Projection(hidden, kind.span_size, kind.dropout) for _ in range(2))
            self.span = Biaffine(kind.span_size, kind.span_size, 1)

    def forward(self, hidden: Hidden, batch: Batch) -> Brackets:
        posts = fence_posts(hidden, batch, self.pool)
        spans = self.span(self.start(posts), self.end(posts))[..., 0] if hasattr(self, "span") else None
        return Brackets(spans, self.label(self.left(posts), self.right(posts)))


def fence_posts(hidden: Hidden, batch: Batch, pool: str) -> Tensor:
    """A vector for every position between words, before the first and after the last: ``(B, W + 1, E)``."""
    states, counts = words(hidden.states, batch, pool), word_counts(batch)
    last = (batch["attention_mask"].sum(1) - 1)[:, None, None].expand(-1, 1, states.shape[2])
    around = torch.cat([hidden.pooled[:, None], states, torch.zeros_like(states[:, :1])], 1)
    after = torch.arange(around.shape[1], device=states.device) == counts[:, None] + 1
    around = torch.where(after[:, :, None], hidden.states.gather(1, last), around)
    half = states.shape[2] // 2
    return torch.cat([around[:, :-1, :half], around[:, 1:, half:]], 2)


@dataclass(frozen=True)
class Constituents:
    """Labelled brackets that form a tree; rows are ``{"words", "tree"}``, the tree in Penn brackets over those words.

    ``training="crf"`` learns which brackets form the tree (inside algorithm; minimum Bayes risk decoding: CKY on
    bracket probabilities) and, separately, their labels. ``training="span"`` labels every span independently, most of
    them "no constituent", and decodes by CKY. Unary chains are one label, joined by ``+``.
    """

    labels: tuple[str, ...] = ()
    training: str = "crf"
    span_size: int = 500
    label_size: int = 100
    dropout: float = 0.33
    pool: str = "mean"
    learnt: bool = False
    asks: ClassVar[tuple[str, ...]] = ("words",)

    def __post_init__(self) -> None:
        check_pool(self.pool)
        if self.training not in ("crf", "span"):
            raise unknown("training of constituents", self.training, ("crf", "span"))

    def ready(self, rows: Sequence[Row]) -> Constituents:
        labels = label_set((label for _, _, label in Tree.read(row["tree"]).binary() if label) for row in rows)
        if not labels:
            raise HeadwiseError("training rows without constituents", "trees such as (S (NP (NN dogs)) ...)")
        return replace(self, labels=labels, learnt=True)

    def check(self, row: Row) -> None:
        check_words(row)
        if not isinstance(row.get("tree"), str):
            raise HeadwiseError(f"tree {row.get('tree')!r}", "a bracketed tree as text")
        tree = Tree.read(row["tree"])
        if not tree.spells(row["words"]):
            raise HeadwiseError(f"a tree over {tree.words}", f"the row's words {row['words']}")
        check_known((label for _, _, label in tree.binary() if label), self)

    def encode(self, rows: Sequence[Row], tokenizer: Any, max_length: int) -> Columns:
        columns = encode_words(rows, tokenizer, max_length)
        trees = [Tree.read(row["tree"]).binary() for row in rows]
        labels = numbered(([label for _, _, label in tree] for tree in trees), ("", *self.labels))
        spans = [[(s, e, label) for (s, e, _), label in zip(*row)] for row in zip(trees, labels)]
        return {**columns, "spans": Ragged.of(spans, 3)}

    def head(self, hidden: int) -> nn.Module:
        return BracketHead(hidden, len(self.labels), self)

    def loss(self, scores: Brackets, batch: Batch) -> Tensor:
        if scores.spans is None:
            return self._span_loss(scores.labels, batch)
        return self._crf_loss(scores.spans, scores.labels, batch)

    def _crf_loss(self, spans: Tensor, labels: Tensor, batch: Batch) -> Tensor:
        start, end, label = batch["spans"].unbind(-1)
        present = start >= 0
        counts, row = word_counts(batch), torch.arange(len(start), device=start.device)[:, None]
        tree = (spans[row, start, end] * present).sum(1)
        surprise = (inside(spans, counts) - tree) / counts
        label_loss = cross_entropy(labels[row, start, end], label)
        return surprise + masked_mean(label_loss, label >= 0)

    def _span_loss(self, labels: Tensor, batch: Batch) -> Tensor:
        start, end, label = batch["spans"].unbind(-1)
        size = labels.shape[1]
        target = marked(start * size + end, label, size * size).view(labels.shape[:3])
        post = torch.arange(size, device=target.device)
        valid = (post[:, None] < post) & (post <= word_counts(batch)[:, None, None]) & (target >= 0)
        return masked_mean(cross_entropy(labels, target), valid)

    def decode(self, scores: Brackets, batch: Batch) -> list[list[Span]]:
        counts = word_counts(batch)
        if scores.spans is None:
            worth = (scores.labels[..., 1:].amax(-1) - scores.labels[..., 0]).clamp(min=0)
        else:
            worth = marginals(scores.spans, counts)
        example, start, end = cky(worth, counts).nonzero(as_tuple=True)
        label = scores.labels[example, start, end].argmax(-1)
        out: list[list[Span]] = [[] for _ in range(len(counts))]
        for b, s, e, i in torch.stack([example, start, end, label], -1).tolist():
            if i:
                out[b] += [(s, e, name) for name in self.labels[i - 1].split(CHAIN)]
        return out

    def gold(self, rows: Sequence[Row]) -> list[list[Span]]:
        return [Tree.read(row["tree"]).brackets() for row in rows]

    def unanswered(self, row: Row) -> Row:
        return {**row, "tree": written(row["words"], [])}

    def predictions(self, scores: Brackets, batch: Batch, rows: Sequence[Row]) -> list[Bracketed]:
        return [Bracketed(r["words"], written(r["words"], spans)) for r, spans in zip(rows, self.decode(scores, batch))]
