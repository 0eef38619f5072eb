"""Probe every head and every layer of a model for a task's labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwise.errors import HeadwiseError, unknown
from headwise.io import display
from headwise.io.files import plain
from headwise.models.multitask import MultiTaskModel
from headwise.probing.features import Features, Reader
from headwise.probing.fitting import SIDES, Fit, Labels, Vectors, checked, fit
from headwise.probing.splits import Splits, splits

STEPS = "▁▂▃▄▅▆▇█"
ABSENT = "·"


def heat_map(scores: Any, layers: Any = None) -> str:
    """Scores ``(L, H)`` as blocks from lowest to highest, with each layer's best head and the layer's own score.

    Example:
        >>> print(heat_map([[0.5, 0.6], [0.9, 0.7]]))
        layer 1  █▄  0.900
        layer 0  ▁▂  0.600
                 0.500 ▁ to █ 0.900; the best head of each layer at its right
    """
    scores = np.asarray(scores, float)
    known = scores[~np.isnan(scores)]
    if not known.size:
        return "(no heads)"
    low, high = float(known.min()), float(known.max())
    place = np.nan_to_num((scores - low) / ((high - low) or 1.0) * (len(STEPS) - 1)).round().astype(int)
    lines = []
    for layer in reversed(range(len(scores))):
        blocks = "".join(ABSENT if np.isnan(s) else STEPS[p] for s, p in zip(scores[layer], place[layer]))
        best = f"{np.nanmax(scores[layer]):.3f}" if not np.isnan(scores[layer]).all() else "–"
        whole = "" if layers is None else f"  (layer itself {float(layers[layer]):.3f})"
        lines.append(f"layer {layer:<2} {blocks}  {best}{whole}")
    legend = f"         {low:.3f} {STEPS[0]} to {STEPS[-1]} {high:.3f}; the best head of each layer at its right"
    return "\n".join([*lines, legend])


Log = Callable[[str], None]


@dataclass(frozen=True)
class Bench:
    """The data and settings of a probe, to fit other vectors of the same sentences later."""

    reader: Reader
    splits: Splits
    features: dict[str, Features]
    labels: Labels
    memory: int | None
    protocol: str
    options: dict[str, Any]

    def fit(self, vectors: Vectors, **changes: Any) -> Fit:
        """Fit probes to these vectors with the same protocol."""
        device = self.reader.device
        return fit(self.protocol, vectors, self.labels, memory=self.memory, device=device, **self.options | changes)

    def vectors(self, of: str) -> Vectors:
        """The vectors of all remaining heads, of all layers, or of their means."""
        per_side = (getattr(self.features[side], of) for side in SIDES)
        if of != "heads":
            return Vectors(*per_side)
        flat, alive = [x.flatten(0, 1) for x in per_side], self.reader.heads.alive.flatten()
        return Vectors(*(flat if alive.all() else [x[alive.to(x.device)] for x in flat]))

    def together(self, heads: list[tuple[int, int]]) -> Vectors:
        """The concatenated vectors of some heads."""
        return Vectors(*(torch.cat([self.features[side].heads[head] for head in heads], -1)[None] for side in SIDES))


@dataclass(frozen=True)
class Probe(display.Shown):
    """How well a linear probe predicts a task's labels from each head and each layer.

    Scores are accuracies, or Pearson's r for grades; NaN for cut heads.
    """

    task: str
    metric: str
    protocol: str
    accuracy: Tensor  # (L, H), on the test side
    dev: Tensor  # (L, H)
    layers: Tensor  # (L,): the output of each layer
    layers_dev: Tensor
    chance: float
    l2: Tensor  # (L, H): the strength the development score chose
    layers_l2: Tensor
    select_on: str  # the side that ranks heads and layers
    more: dict[str, Tensor]  # (L, H) each: control, selectivity; code, compression
    about: dict[str, Any]  # settings
    bench: Bench = field(repr=False, compare=False)
    layer_fit: Fit = field(repr=False, compare=False)

    @property
    def shape(self) -> tuple[int, int]:
        return self.accuracy.shape[0], self.accuracy.shape[1]

    @property
    def scores(self) -> Tensor:
        """The scores that rank heads: development scores, or test scores with ``select_on="test"``."""
        return self.accuracy if self.select_on == "test" else self.dev

    def ranking(self) -> list[tuple[int, int]]:
        """(layer, head) of all remaining heads, best first; ties go to the lower layer, then the lower head."""
        flat = self.scores.flatten()
        order = flat.nan_to_num(-torch.inf).argsort(descending=True, stable=True).tolist()
        return [divmod(i, self.shape[1]) for i in order if not flat[i].isnan()]

    def best(self, n: int) -> list[tuple[int, int]]:
        """The n best heads."""
        ranked = self.ranking()
        if not 1 <= n <= len(ranked):
            raise HeadwiseError(f"the best {n} heads", f"1 to {len(ranked)}, the heads there are")
        return ranked[:n]

    def mask(self, n: int) -> Tensor:
        """Bool (L, H) of the n best heads, as ``MultiTaskModel(use_heads=...)`` takes it."""
        mask = torch.zeros(self.shape, dtype=torch.bool)
        for head in self.best(n):
            mask[head] = True
        return mask

    def best_layer(self) -> int:
        """The layer with the best ranking score; the lowest on ties."""
        return int((self.layers if self.select_on == "test" else self.layers_dev).argmax())

    def top(self, n: int) -> Any:
        """The n best heads as a sentence encoder and scikit-learn transformer.

        Example:
            >>> probe(model, "sst2").top(12).encode(["A fine film."]).shape
            (1, 768)
        """
        from headwise.probing.transform import HeadFeatures

        reader = self.bench.reader
        return HeadFeatures(
            reader.encoder,
            reader.tokenizer,
            heads=self.best(n),
            at=reader.at,
            pair=reader.pair,
            max_length=reader.max_length,
            precision=reader.precision,
        )

    def to_record(self) -> dict[str, Any]:
        maps = {"accuracy": self.accuracy, "dev": self.dev, "l2": self.l2, "layers": self.layers}
        maps |= {"layers_dev": self.layers_dev, "layers_l2": self.layers_l2, **self.more}
        words = {"metric": self.metric, "protocol": self.protocol, "chance": self.chance, "select_on": self.select_on}
        return plain({**words, **{name: value.tolist() for name, value in maps.items()}, **self.about})

    def __str__(self) -> str:
        (layer, head), scores = self.best(1)[0], self.accuracy
        each = {name: float(value[layer, head]) for name, value in self.more.items()}
        more = ", ".join(f"{n} {v:.0f} bits" if n == "code" else f"{n} {v + 0.0:.3f}" for n, v in each.items())
        first = f"{self.task}: {self.metric} of {self.protocol} probes, {self.about['sizes']['test']} test sentences"
        best = (
            f"best head {layer}.{head}: {scores[layer, head]:.3f}{f' ({more})' if more else ''}, "
            f"best layer {self.best_layer()}: {self.layers[self.best_layer()]:.3f}, "
            f"last layer: {self.layers[-1]:.3f}, chance: {self.chance:.3f} "
            f"(chosen on {self.select_on})"
        )
        return "\n".join([first, heat_map(scores, self.layers), best, *self.about["notes"]])

    def to_records(self) -> list[dict[str, Any]]:
        """One record per head: its test and development scores, and what else the protocol measures."""
        return [
            {"task": self.task, **record}
            for record in display.map_records(score=self.accuracy, dev=self.dev, **self.more)
        ]

    def plot(self, ax: Any = None) -> Any:
        """The scores as a heat map; returns matplotlib axes."""
        return display.plot_map(self.accuracy, self.task, ax, self.metric)

    def _repr_html_(self) -> str:
        return display.heat_map(self.accuracy, f"{self.task}: {self.metric}", str(self).splitlines()[-1])


def best_head(record: Mapping[str, Any]) -> tuple[int, int, float]:
    """Layer, head and test score of the best head in a record, chosen by the ranking score; the first on ties."""
    ranks = np.array(record["accuracy"] if record["select_on"] == "test" else record["dev"], float)  # None is NaN
    layer, head = map(int, np.unravel_index(np.nanargmax(ranks), ranks.shape))
    return layer, head, record["accuracy"][layer][head]


def probe(
    model: Any,
    task: Any,
    *,
    tokenizer: Any = None,
    protocol: str = "sklearn",
    at: str | None = None,
    pair: str = "apart",
    select_on: str = "dev",
    shared: str = "drop",
    limit: int | None = None,
    max_length: int | None = None,
    precision: str = "fp32",
    means: bool = False,
    cache: Any = False,
    memory: int | None = None,
    seed: int = 0,
    log: Log = lambda line: None,
    **options: Any,
) -> Probe:
    """Probe all heads and layers of a model for a task, in one pass over its sentences.

    Args:
        model: a Hugging Face encoder with its tokenizer, a `MultiTaskModel`, or a folder or Hub name.
        task: a task of kind Classify or Regress, or its name.
        tokenizer: the tokenizer of a Hugging Face model.
        protocol: sklearn (converged), anatomy (Jo and Myaeng 2020), mdl (online code), control (selectivity).
        at: cls, last, mean or post_last. Default: the model's pooling, else last for causal models and cls for others.
        pair: read two texts separately, as [|a - b|, a * b], or together.
        select_on: the split that ranks heads and layers: dev, or test as published (noted in the record).
        shared: rows whose text is also in a later split: drop, refuse or keep.
        limit: maximum number of training rows; the other splits have at most a fifth of it.
        max_length: maximum input length in sub-words.
        precision: of the features: fp32, fp16 or bf16.
        means: also keep every layer's mean over tokens, from the same pass; `controls` then reads no text again.
        cache: store features on disk; a folder, or True for the cache folder.
        memory: bytes that features, and then probes, may take. Default: half of the free memory.
        seed: of permutations, folds, shuffles and held-out rows.
        log: called with a line of text at every stage.
        options: of the protocol: l2, folds, lr, batch, controls, portions, ...

    Example:
        >>> probed = probe(model, "probing_gold.bigram_shift", tokenizer=tokenizer)
        >>> probed.accuracy.shape, probed.top(12).encode(["Dogs bark."]).shape
        (torch.Size([12, 12]), (1, 768))
    """
    if select_on not in ("dev", "test"):
        raise unknown("side to select on", select_on, ("dev", "test"))
    checked(protocol, options)  # raise before sentences are read, not after
    if isinstance(model, MultiTaskModel) and isinstance(task, str):
        task = model.tasks.get(task, task)
    reader = Reader.of(model, tokenizer, at, max_length, pair=pair, precision=precision, means=means)
    data = splits(task, limit=limit, shared=shared, seed=seed)
    features = {side: _read(reader, data, side, cache, memory, log) for side in SIDES}
    labels = Labels(**{side: data.labels(side) for side in SIDES}, classes=data.classes)
    bench = Bench(reader, data, features, labels, memory, protocol, {**options, "seed": seed})
    return _probe(bench, select_on, log)


def _read(reader: Reader, data: Splits, side: str, cache: Any, memory: int | None, log: Log) -> Features:
    log(f"{data.task.name}: reading {len(data.rows[side])} {side} sentences")
    return reader.read(data.rows[side], cache=cache, memory=memory)


def _probe(bench: Bench, select_on: str, log: Log) -> Probe:
    heads, data = bench.reader.heads, bench.splits
    log(f"{data.task.name}: probing {int(heads.alive.sum())} heads and {heads.num_layers} layers")
    by_head, by_layer = bench.fit(bench.vectors("heads")), bench.fit(bench.vectors("layers"))

    def spread(values: Tensor) -> Tensor:
        whole = torch.full(heads.shape, torch.nan, dtype=torch.float64)
        whole[heads.alive] = values.double()
        return whole

    late = by_head.unsettled + by_layer.unsettled
    about = {
        "options": bench.options,
        "at": bench.reader.at,
        "pair": bench.reader.pair if any(row.get("text_b") for row in data.rows["train"]) else None,
        "precision": bench.reader.precision,
        "sizes": data.sizes,
        "features": {side: features.about for side, features in bench.features.items()},
        "cut": {side: features.cut for side, features in bench.features.items()},
        "notes": [*data.notes, *([f"{late} probes were stopped before their optimum"] if late else [])],
        "origin": data.task.source.origin,
        "model": bench.reader.model_key,
        "data": data.key,
    }
    return Probe(
        data.task.name,
        "pearson" if data.graded else "accuracy",
        bench.protocol,
        spread(by_head.test),
        spread(by_head.dev),
        by_layer.test,
        by_layer.dev,
        data.chance,
        spread(by_head.l2),
        by_layer.l2,
        select_on,
        {name: spread(values) for name, values in by_head.more.items()},
        about,
        bench,
        by_layer,
    )
