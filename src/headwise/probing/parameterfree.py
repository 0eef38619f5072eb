"""Probes without parameters: nearest centroids of head outputs, and the arg-max of attention for relations.

Legend: B batch, W words, L layers, H heads, D head size, U units, R labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwise.batching import Encoded, batches, encode, sample
from headwise.errors import HeadwiseError
from headwise.evaluate import evaluating
from headwise.heads import captured, eager
from headwise.metrics import bio_spans
from headwise.probing.features import INPUTS, Reader
from headwise.probing.measure import Probe
from headwise.probing.terminal import heat_map
from headwise.store import plain
from headwise.tasks.brackets import Node, parse
from headwise.tasks.task import Row, Task
from headwise.tasks.wordlevel import words

Unit = tuple[int, int, str]  # words from, to (exclusive), label
Relation = tuple[int, int, int, str]  # words from, to (exclusive), the word they hang on (-1: none, the root), label


@dataclass(frozen=True)
class Unlearnt:
    """How often each head is right without having learnt anything but centroids, for every label."""

    task: str
    by: str
    labels: tuple[str, ...]
    counts: np.ndarray  # (R,): how often each label was asked for
    by_label: np.ndarray  # (R, L, H); NaN for a label that was never asked for
    about: dict[str, Any]

    @property
    def accuracy(self) -> np.ndarray:
        """All labels together, (L, H)."""
        return np.einsum("r,rlh->lh", self.counts / self.counts.sum(), np.nan_to_num(self.by_label))

    def best(self) -> dict[str, tuple[int, int, float]]:
        """The best head for every label: layer, head and its accuracy."""
        out = {}
        for label, scores, count in zip(self.labels, self.by_label, self.counts):
            if count:
                layer, head = np.unravel_index(np.argmax(scores), scores.shape)
                out[label] = (int(layer), int(head), float(scores[layer, head]))
        return out

    def to_record(self) -> dict[str, Any]:
        return plain({**self.__dict__, "accuracy": self.accuracy, "metric": "accuracy"})

    def __str__(self) -> str:
        best = sorted(self.best().items(), key=lambda entry: -entry[1][2])[:8]
        listed = ", ".join(f"{label} {score:.2f} ({layer}.{head})" for label, (layer, head, score) in best)
        return f"{self.task} by {self.by}\n{heat_map(self.accuracy)}\nbest head by label: {listed}"


def nearest_centroid(probe: Probe) -> np.ndarray:
    """The test accuracy (L, H) of naming the class whose mean training vector is nearest, by cosine."""
    bench = probe.bench
    if bench.labels.graded:
        raise HeadwiseError(f"centroids of the grades of {probe.task}", "a task with classes")
    train, test = (bench.features[side].heads.flatten(0, 1).float() for side in ("train", "test"))
    gold = bench.labels.on("train", train.device)
    seen = gold[None] == torch.arange(bench.labels.classes, device=train.device)[:, None]  # (C, N)
    centroids = (seen / seen.sum(1, keepdim=True).clamp_min(1)).to(train) @ train  # (P, C, D)
    near = _unit(test) @ _unit(centroids).mT
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
    """Name each word's tag, entity's type or constituent's label by the nearest centroid of the head's outputs.

    A word's vector is the mean over its sub-words, a span's the mean over its words; constituents are those directly
    above the tags. ``fit_on="test"`` takes centroids from the judged data itself, as the stem-cell study did.
    """
    reader, task = Reader.of(model, tokenizer), task.ready()
    units = _units_of(task)
    labels: dict[str, int] = {}
    sums = torch.zeros(0, *reader.heads.shape, reader.heads.head_dim, device=reader.device)
    for vectors, names in _unit_vectors(reader, task, fit_on, units, limit):
        numbers = torch.tensor([labels.setdefault(name, len(labels)) for name in names], device=reader.device)
        grown = sums.new_zeros(len(labels) - len(sums), *sums.shape[1:])
        sums = torch.cat([sums, grown]).index_add(0, numbers, vectors)
    centroids = _unit(sums)
    right, counts = np.zeros((len(labels), *reader.heads.shape)), np.zeros(len(labels), np.int64)
    for vectors, names in _unit_vectors(reader, task, split, units, limit):
        near = torch.einsum("ulhd,rlhd->ulhr", _unit(vectors), centroids).argmax(-1).cpu().numpy()
        numbers = np.array([labels.get(name, -1) for name in names])
        known = numbers >= 0  # a label without a centroid cannot be named
        np.add.at(counts, numbers[known], 1)
        np.add.at(right, numbers[known], near[known] == numbers[known, None, None])
    return _result(task, "nearest centroid", labels, right, counts, {"split": split, "fit_on": fit_on})


def relations(
    model: Any, task: Task, *, tokenizer: Any = None, split: str = "test", limit: int | None = None
) -> Unlearnt:
    """Dependencies and semantic roles by attention: right where either end attends most to the other.

    Between words, attention is summed over the sub-words attended to and averaged over those that attend; the first
    token stands for the root. A span is right where one of its words is. The maps need eager attention, which the model
    runs for this pass alone.
    """
    reader, task = Reader.of(model, tokenizer), task.ready()
    asked = _relations_of(task)
    data, rows = _encoded(reader, task, split, limit)
    right: dict[str, np.ndarray] = {}
    counts: dict[str, int] = {}
    lost = 0
    with evaluating(reader.encoder), torch.no_grad(), eager(reader.encoder) as maps:
        for items, batch in batches(data, reader.budget, reader.device):
            to = _arg_max(maps(**{k: batch[k] for k in INPUTS if k in batch}), batch["word_of"])
            kept = (batch["word_of"].amax(1) + 1).tolist()
            for place, item in enumerate(items):
                for start, end, head, label in asked(rows[item]):
                    if max(end - 1, head) >= kept[place]:
                        lost += 1
                        continue
                    span, other = np.arange(start, end) + 1, head + 1
                    hit = (to[place][..., span] == other).any(-1) | np.isin(to[place][..., other], span)
                    counts[label] = counts.get(label, 0) + 1
                    right[label] = right.get(label, 0) + hit
    labels = {label: i for i, label in enumerate(sorted(right))}
    if not labels:
        raise HeadwiseError(f"no relations in {task.name}/{split}", "rows with dependencies or arguments")
    hits, asked_for = np.stack([right[label] for label in labels]), np.array([counts[label] for label in labels])
    return _result(task, "attention", labels, hits, asked_for, {"split": split, "cut": lost, "attention": "eager"})


def _arg_max(maps: tuple[Tensor, ...], word_of_BT: Tensor) -> np.ndarray:
    """For every word (place 0: the first token) which word it attends to most, ``(B, L, H, 1 + W)``.

    Words that are not there are never attended to.
    """
    size = int(word_of_BT.max()) + 1
    ids = torch.arange(size, device=word_of_BT.device)[:, None]
    belongs = torch.cat([torch.zeros_like(word_of_BT[:, None]), (word_of_BT[:, None] == ids).long()], 1).to(maps[0])
    belongs[:, 0, 0] = 1  # the first token
    mean = belongs / belongs.sum(-1, keepdim=True).clamp_min(1)
    absent = (belongs.sum(-1) == 0)[:, None, None]
    found = [((mean[:, None] @ a @ belongs.mT[:, None]).masked_fill(absent, -1)).argmax(-1) for a in maps]
    return torch.stack(found, 1).cpu().numpy()


def _unit(vectors: Tensor) -> Tensor:
    return vectors / vectors.norm(dim=-1, keepdim=True).clamp_min(1e-12)


def _encoded(reader: Reader, task: Task, split: str, limit: int | None) -> tuple[Encoded, list[Row]]:
    return encode(task, split, reader.tokenizer, reader.max_length, limit), sample(task.rows(split), limit)


def _unit_vectors(
    reader: Reader, task: Task, split: str, units: Callable[[Row], list[Unit]], limit: int | None
) -> Iterator[tuple[Tensor, list[str]]]:
    """The vectors ``(U, L, H, D)`` and labels of the units of one batch after the other."""
    data, rows = _encoded(reader, task, split, limit)
    place: dict[str, Tensor] = {}

    def reduce(out_BTHD: Tensor) -> Tensor:
        return words(out_BTHD.flatten(2).float(), place["word_of"]).unflatten(-1, out_BTHD.shape[2:])

    with evaluating(reader.encoder), torch.no_grad(), captured(reader.encoder, reduce, heads=reader.heads) as kept:
        for items, batch in batches(data, reader.budget, reader.device):
            kept.clear()
            place["word_of"] = batch["word_of"]
            reader.encoder(**{name: batch[name] for name in INPUTS if name in batch})
            vectors_BWLHD = torch.stack(kept, 2)
            there = (batch["word_of"].amax(1) + 1).tolist()
            found = [(b, *unit) for b, i in enumerate(items) for unit in units(rows[i]) if unit[1] <= there[b]]
            if found:
                parts = [vectors_BWLHD[b, start:end].mean(0) for b, start, end, _ in found]
                yield torch.stack(parts), [label for *_, label in found]


def _units_of(task: Task) -> Callable[[Row], list[Unit]]:
    kind = type(task.kind).__name__
    known: dict[str, Callable[[Row], list[Unit]]] = {
        "Tag": lambda row: [(i, i + 1, label) for i, label in enumerate(row["labels"])],
        "Spans": lambda row: bio_spans(row["labels"]),
        "Constituents": lambda row: low_constituents(row["tree"]),
    }
    if kind not in known:
        raise HeadwiseError(f"{task.name} is of kind {kind}", f"one of: {', '.join(known)}")
    return known[kind]


def _relations_of(task: Task) -> Callable[[Row], list[Relation]]:
    kind = type(task.kind).__name__
    known: dict[str, Callable[[Row], list[Relation]]] = {
        "Dependencies": lambda row: [
            (i, i + 1, head - 1, label) for i, (head, label) in enumerate(zip(row["heads"], row["labels"]))
        ],
        "Frames": lambda row: [
            (start, end, frame["predicate"], role) for frame in row["frames"] for start, end, role in frame["arguments"]
        ],
    }
    if kind not in known:
        raise HeadwiseError(f"{task.name} is of kind {kind}", f"one of: {', '.join(known)}")
    return known[kind]


def low_constituents(tree: str) -> list[Unit]:
    """The constituents directly above the tags.

    Example:
        >>> low_constituents("(S (NP (DT The) (NN dog)) (VP (VBZ barks)))")
        [(0, 2, 'NP'), (2, 3, 'VP')]
    """
    found: list[Unit] = []

    def walk(node: Node, start: int) -> int:
        if node.word is not None:
            return start + 1
        end = start
        for child in node.children:
            end = walk(child, end)
        if all(child.word is not None for child in node.children):
            found.append((start, end, node.label))
        return end

    walk(parse(tree), 0)
    return found


def _result(
    task: Task, by: str, labels: dict[str, int], right: np.ndarray, counts: np.ndarray, about: dict
) -> Unlearnt:
    scores = np.divide(right, counts[:, None, None], out=np.full(right.shape, np.nan), where=counts[:, None, None] > 0)
    return Unlearnt(task.name, by, tuple(labels), counts, scores, about)
