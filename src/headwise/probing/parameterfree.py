"""Parameter-free probes: nearest centroids of head outputs, and the arg-max of attention for relations.

Legend: B batch, T sub-words, W words, L layers, H heads, D head size, U units, N relations, R labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwise.errors import HeadwiseError
from headwise.heads.attention import attended, eager
from headwise.heads.gates import Heads, captured
from headwise.heads.modules import evaluating
from headwise.io.files import plain
from headwise.models.batching import batches, encode, sample
from headwise.probing.features import INPUTS, Reader
from headwise.probing.measure import Probe, heat_map
from headwise.tasks.kinds.windows import parts
from headwise.tasks.metrics import bio_spans
from headwise.tasks.readers.brackets import Node, cleaned, parse
from headwise.tasks.task import Row, Task

Unit = tuple[int, int, str]  # words from, to (exclusive), label
Relation = tuple[int, int, int, str]  # words from, to (exclusive), their head word (-1: none, the root), label


def units_of(task: Task) -> Callable[[Row], list[Unit]]:
    """The labelled words or spans of a row: tags, entities, constituents directly above the tags."""
    return _found(task, UNITS)


def relations_of(task: Task) -> Callable[[Row], list[Relation]]:
    """The relations of a row: dependencies, arguments of frames."""
    return _found(task, RELATIONS)


def _found(task: Task, known: dict[str, Callable]) -> Callable:
    kind = type(task.kind).__name__
    if kind not in known:
        raise HeadwiseError(f"{task.name} is of kind {kind}", f"one of: {', '.join(known)}")
    return known[kind]


def low_constituents(tree: str) -> list[Unit]:
    """The constituents directly above the tags.

    Example:
        >>> low_constituents("(S (NP (DT The) (NN dog)) (VP (VBZ barks)))")
        [(0, 2, 'NP'), (2, 3, 'VP')]
    """
    constituents: list[Unit] = []

    def walk(node: Node, start: int) -> int:
        if node.word is not None:
            return start + 1
        end = start
        for child in node.children:
            end = walk(child, end)
        if all(child.word is not None for child in node.children):
            constituents.append((start, end, node.label))
        return end

    root = cleaned(parse(tree))  # without traces, as the row's words are
    if root is not None:
        walk(root, 0)
    return constituents


def _tags(row: Row) -> list[Unit]:
    return [(i, i + 1, label) for i, label in enumerate(row["labels"])]


def _dependencies(row: Row) -> list[Relation]:
    return [(i, i + 1, head - 1, label) for i, (head, label) in enumerate(zip(row["heads"], row["labels"]))]


def _arguments(row: Row) -> list[Relation]:
    """Arguments of all frames, without the predicate's own span."""
    return [
        (start, end, frame["predicate"], role)
        for frame in row["frames"]
        for start, end, role in frame["arguments"]
        if role.removeprefix("C-") != "V"
    ]


UNITS: dict[str, Callable[[Row], list[Unit]]] = {
    "Tag": _tags,
    "Spans": lambda row: bio_spans(row["labels"]),
    "Constituents": lambda row: low_constituents(row["tree"]),
}
RELATIONS: dict[str, Callable[[Row], list[Relation]]] = {"Dependencies": _dependencies, "Frames": _arguments}
WORDWISE = (*UNITS, *RELATIONS)  # kinds that are probed without parameters


Maps = Callable[..., tuple[Tensor, ...]]
MAPS = 2**27  # bytes that the attention maps of a batch may take


@dataclass(frozen=True)
class Unlearnt:
    """The accuracy of each head on every label, with centroids only."""

    task: str
    by: str
    labels: tuple[str, ...]
    counts: np.ndarray  # (R,): how often each label was asked for
    by_label: np.ndarray  # (R, L, H); NaN for a label that was never asked for, and for heads that were cut away
    about: dict[str, Any]

    @property
    def accuracy(self) -> np.ndarray:
        """All labels together, (L, H)."""
        asked = self.counts > 0
        return np.einsum("r,rlh->lh", self.counts[asked] / self.counts.sum(), self.by_label[asked])

    def best(self) -> dict[str, tuple[int, int, float]]:
        """The best head for every label: layer, head and its accuracy."""
        out = {}
        for label, scores, count in zip(self.labels, self.by_label, self.counts):
            if count:
                layer, head = np.unravel_index(np.nanargmax(scores), scores.shape)
                out[label] = (int(layer), int(head), float(scores[layer, head]))
        return out

    def to_record(self) -> dict[str, Any]:
        return plain({**self.__dict__, "accuracy": self.accuracy, "metric": "accuracy"})

    def __str__(self) -> str:
        best = sorted(self.best().items(), key=lambda entry: -entry[1][2])[:8]
        listed = ", ".join(f"{label} {score:.2f} ({layer}.{head})" for label, (layer, head, score) in best)
        return f"{self.task} by {self.by}\n{heat_map(self.accuracy)}\nbest head by label: {listed}"


class Tally:
    """How often each label occurred, and how often each head was right."""

    def __init__(self, labels: Sequence[str], heads: Heads, device: torch.device):
        self.labels, self.alive = tuple(labels), heads.alive.numpy()
        self.right = torch.zeros(len(labels), *heads.shape, dtype=torch.float64, device=device)
        self.counts = torch.zeros(len(labels), dtype=torch.long, device=device)

    def add(self, hits_ULH: Tensor, number_U: Tensor) -> None:
        self.right.index_add_(0, number_U, hits_ULH.double())
        self.counts += number_U.bincount(minlength=len(self.counts))

    def result(self, task: Task, by: str, about: dict[str, Any]) -> Unlearnt:
        counts, right = self.counts.cpu().numpy(), self.right.cpu().numpy()
        if not counts.sum():
            raise HeadwiseError(f"nothing to probe in {task.name}/{about['split']}", "rows with labels")
        asked = (counts > 0)[:, None, None] & self.alive
        scores = np.divide(right, counts[:, None, None], out=np.full(right.shape, np.nan), where=asked)
        return Unlearnt(task.name, by, self.labels, counts, scores, about)


def unlearnt(model: Any, task: Task, **options: Any) -> Unlearnt:
    """Probe a word-level task: by centroids for tags, entities and constituents, by attention for relations.

    Example:
        >>> print(unlearnt(model, tasks.get("ewt_dep"), limit=500))  # doctest: +SKIP
    """
    related = type(task.kind).__name__ in RELATIONS
    if related:
        options.pop("fit_on", None)
    return (relations if related else word_centroids)(model, task, **options)


# -- centroids


def nearest_centroid(probe: Probe) -> np.ndarray:
    """The test accuracy (L, H) of predicting the class whose mean training vector is nearest by cosine."""
    bench = probe.bench
    if bench.labels.graded:
        raise HeadwiseError(f"centroids for the grades of {probe.task}", "a task with classes")
    train, test = (bench.features[side].heads.flatten(0, 1).float() for side in ("train", "test"))
    gold = bench.labels.on("train", train.device)
    seen = gold[None] == torch.arange(bench.labels.classes, device=train.device)[:, None]  # (C, N)
    centroids = (seen / seen.sum(1, keepdim=True).clamp_min(1)).to(train) @ train  # (P, C, D)
    near = unit(test) @ unit(centroids).mT
    near = near.masked_fill(~seen.any(1), -torch.inf)
    right = (near.argmax(-1) == bench.labels.on("test", train.device)).double().mean(-1)
    return right.view(probe.shape).masked_fill(probe.accuracy.isnan().to(right.device), torch.nan).cpu().numpy()


def word_centroids(
    model: Any,
    task: Task,
    *,
    tokenizer: Any = None,
    split: str = "test",
    fit_on: str = "train",
    limit: int | None = None,
) -> Unlearnt:
    """Predict tags, entity types or constituent labels by the nearest centroid of the head's outputs.

    A word's vector is the mean of its sub-words, a span's the mean of its words; constituents are those directly above
    the tags. ``fit_on="test"`` computes centroids on the test data itself, as the stem-cell study did. A label without
    a centroid is never predicted.
    """
    reader, task = Reader.of(model, tokenizer), task.ready()
    units = units_of(task)
    sides = [sample(task.rows(side), limit) for side in (fit_on, split)]
    labels = _numbers(label for rows in sides for row in rows for *_, label in units(row))
    sums = torch.zeros(len(labels), *reader.heads.shape, reader.heads.head_dim, device=reader.device)
    seen = torch.zeros(len(labels), dtype=torch.bool, device=reader.device)
    for vectors, numbers in _unit_vectors(reader, task, fit_on, units, labels, limit):
        sums.index_add_(0, numbers, vectors)
        seen[numbers] = True
    tally, centroids = Tally(tuple(labels), reader.heads, reader.device), unit(sums)
    for vectors, numbers in _unit_vectors(reader, task, split, units, labels, limit):
        tally.add(named(vectors, centroids, seen) == numbers[:, None, None], numbers)
    unseen = [name for name, i in labels.items() if not seen[i]]
    return tally.result(task, "nearest centroid", {"split": split, "fit_on": fit_on, "unseen": unseen})


def named(vectors_ULHD: Tensor, centroids_RLHD: Tensor, seen_R: Tensor) -> Tensor:
    """The nearest centroid of every unit in every head, by cosine: one matrix product per head. ``(U, L, H)``"""
    near = torch.einsum("ulhd,rlhd->ulhr", vectors_ULHD, centroids_RLHD)  # the unit's own length moves no order
    return near.masked_fill_(~seen_R, -torch.inf).argmax(-1)


def unit(vectors: Tensor) -> Tensor:
    return vectors / vectors.norm(dim=-1, keepdim=True).clamp_min(1e-12)


def _numbers(labels: Iterator[str]) -> dict[str, int]:
    return {label: i for i, label in enumerate(sorted(set(labels)))}


def _unit_vectors(
    reader: Reader, task: Task, split: str, units: Callable[[Row], list], labels: Mapping[str, int], limit: int | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the vectors ``(U, L, H, D)`` and label indices of the units, batch by batch."""
    data, rows = encode(task, split, reader.tokenizer, reader.max_length, limit), sample(task.rows(split), limit)
    weights = torch.empty(0)

    def reduce(out_BTHD: Tensor) -> Tensor:
        return torch.sparse.mm(weights, out_BTHD.flatten(0, 1).flatten(1).float()).unflatten(-1, out_BTHD.shape[2:])

    with evaluating(reader.encoder), torch.no_grad(), captured(reader.encoder, reduce, heads=reader.heads) as kept:
        for items, batch in batches(data, reader.budget, reader.device):
            spans = [(b, start, end, labels[name]) for b, i in enumerate(items) for start, end, name in units(rows[i])]
            if not spans:
                continue
            *where, number = torch.tensor(spans, device=reader.device).T
            whole = torch.zeros(1, device=reader.device)
            for place, part in parts(_columns(batch, "word_of"), batch.get("window")):
                kept.clear()
                weights = means(part.pop("word_of").masked_fill(place < 0, -1), *where)
                reader.encoder(**part)
                whole = whole + torch.stack(kept, 1)  # a word is in one window: the others add zeros
            yield whole, number


def means(word_of_BT: Tensor, b: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """Units as means of their words, words as means of their sub-words: a sparse matrix ``(U, B * T)``."""
    size = int(torch.maximum(end.max(), word_of_BT.max() + 1))
    row, place = (word_of_BT >= 0).nonzero(as_tuple=True)
    word = row * size + word_of_BT[row, place]  # numbered through the batch, in order of the sub-words
    counts = torch.bincount(word, minlength=len(word_of_BT) * size)
    owner, inside = spread(start, end)
    which = b[owner] * size + inside
    first = (counts.cumsum(0) - counts)[which]
    pair, piece = spread(first, first + counts[which])
    token = (row * word_of_BT.shape[1] + place)[piece]
    share, at = 1 / (counts[which] * (end - start)[owner])[pair].float(), torch.stack([owner[pair], token])
    with torch.sparse.check_sparse_tensor_invariants(enable=False):  # torch warns unless this is set
        return torch.sparse_coo_tensor(at, share, (len(b), word_of_BT.numel()))


def spread(start: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """Every position of the spans, with the index of its span."""
    sizes = end - start
    owner = torch.repeat_interleave(sizes)
    return owner, start[owner] + torch.arange(len(owner), device=owner.device) - (sizes.cumsum(0) - sizes)[owner]


def _columns(batch: Mapping[str, Tensor], *more: str) -> dict[str, Tensor]:
    return {name: batch[name] for name in (*INPUTS, *more) if name in batch}


# -- attention


def relations(
    model: Any, task: Task, *, tokenizer: Any = None, split: str = "test", limit: int | None = None
) -> Unlearnt:
    """Probe dependencies and semantic roles by attention: right if either end attends most to the other.

    Attention between words is summed over attended sub-words and averaged over attending ones. The first token stands
    for the root unless it is a word (GPT, T5), in which case roots are not probed. A span is right if one of its words
    is. Attention maps need eager attention, which the model uses for this pass only.
    """
    reader, task = Reader.of(model, tokenizer), task.ready()
    asked = relations_of(task)
    data, rows = encode(task, split, reader.tokenizer, reader.max_length, limit), sample(task.rows(split), limit)
    labels = _numbers(label for row in rows for *_, label in asked(row))
    tally, rooted = Tally(tuple(labels), reader.heads, reader.device), True
    longest = min(reader.max_length, int(data.lengths.max()))
    budget = min(reader.budget, MAPS // (4 * reader.heads.alive.numel() * longest))
    with evaluating(reader.encoder), torch.no_grad(), eager(reader.encoder) as maps:
        for items, batch in batches(data, budget, reader.device):
            to, rooted = _looks(maps, batch, reader.heads), bool((batch["word_of"][:, 0] < 0).all())
            edges = [
                (b, *relation[:3], labels[relation[3]]) for b, i in enumerate(items) for relation in asked(rows[i])
            ]
            edges = [relation for relation in edges if rooted or relation[3] >= 0]
            if edges:
                b, start, end, head, number = torch.tensor(edges, device=reader.device).T
                tally.add(hits(to, b, start, end, head), number)
    root = "first token" if rooted else "not asked for"
    return tally.result(task, "attention", {"split": split, "attention": "eager", "root": root})


def hits(to_BWLH: Tensor, b: Tensor, start: Tensor, end: Tensor, head: Tensor) -> Tensor:
    """Whether a word of each span attends most to its head word, or the head word to it: bool ``(N, L, H)``."""
    other = head + 1  # place 0 is the first token
    back = to_BWLH[b, other]
    owner, word = spread(start, end)
    forth = to_BWLH[b[owner], word + 1] == other[owner, None, None]
    some = torch.zeros_like(back).index_add_(0, owner, forth.to(back.dtype)) > 0
    return some | ((back > start[:, None, None]) & (back <= end[:, None, None]))


def _looks(maps: Maps, batch: Mapping[str, Tensor], heads: Heads) -> Tensor:
    """The word that each word attends to most, within its window (position 0: the first token): ``(B, 1 + W, L, H)``"""
    size = int(batch["word_of"].max()) + 1
    full = batch.get("window_word", batch["word_of"])
    columns = _columns(batch, "word_of") | {"full": full}
    whole: Tensor | None = None
    for place, part in parts(columns, batch.get("window")):
        word_of, full = (part.pop(name).masked_fill(place < 0, -1) for name in ("word_of", "full"))
        looks = arg_max(maps(**part), full, size, heads)
        if whole is None:
            whole = looks
        mine = (word_of[:, None] == torch.arange(size, device=word_of.device)[:, None]).any(-1)  # (B, W)
        whole[:, 1:] = torch.where(mine[..., None, None], looks[:, 1:], whole[:, 1:])
    assert whole is not None
    return whole


def arg_max(maps: tuple[Tensor, ...], word_of_BT: Tensor, size: int, heads: Heads | None = None) -> Tensor:
    """The word that each word attends to most (position 0: the first token), ``(B, 1 + W, L, H)``.

    Absent words, and a first token that is itself a word, are never chosen.
    """
    slot_BT = torch.where(word_of_BT >= 0, word_of_BT + 1, size + 1)  # the last slot takes what is no word
    slot_BT[:, 0] = torch.where(word_of_BT[:, 0] < 0, 0, slot_BT[:, 0])
    absent = torch.ones_like(slot_BT[:, :1]).repeat(1, size + 2).scatter_(1, slot_BT, 0).bool()[:, :-1]
    by_layer: dict[int, Tensor] = {}
    layers = range(len(maps)) if heads is None else [site.layer for site in attended(heads)]
    for layer, a_BHTT in zip(layers, maps, strict=True):
        queries = _grouped(a_BHTT, slot_BT, size)  # sums in place of means: the order of keys is the same
        between = _grouped(queries.transpose(2, 3), slot_BT, size)  # (B, H, keys, queries)
        between = between.masked_fill_(absent[:, None, :, None], -1).transpose(2, 3).contiguous()
        to = between.max(-1).indices.transpose(1, 2)
        by_layer[layer] = to if heads is None else _whole(to, heads.sites[layer].kept, heads.num_heads)
    nothing = torch.zeros_like(next(iter(by_layer.values())))
    return torch.stack([by_layer.get(i, nothing) for i in range(len(maps) if heads is None else heads.num_layers)], 2)


def _grouped(rows_BHTN: Tensor, slot_BT: Tensor, size: int) -> Tensor:
    """Rows summed by their slot, ``(B, H, 1 + size, N)``."""
    batch, heads, _, width = rows_BHTN.shape
    out = rows_BHTN.new_zeros(batch * heads, size + 2, width)
    first = torch.arange(batch * heads, device=slot_BT.device).view(batch, heads, 1) * (size + 2)
    out.flatten(0, 1).index_add_(0, (first + slot_BT[:, None]).flatten(), rows_BHTN.flatten(0, 2))
    return out.unflatten(0, (batch, heads))[:, :, :-1]


def _whole(to_BWH: Tensor, kept: Sequence[int], heads: int) -> Tensor:
    """Add positions for cut heads, which have no map."""
    if len(kept) == heads:
        return to_BWH
    whole = to_BWH.new_zeros(*to_BWH.shape[:2], heads)
    whole[..., list(kept)] = to_BWH
    return whole
