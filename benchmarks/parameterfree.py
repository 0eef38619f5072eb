"""Parameter-free probes of all heads at once against a loop over words, layers and heads, on the same model outputs.

    python benchmarks/parameterfree.py [--sentences 100] [--json FILE]

12 x 12 heads of 64 dimensions, sentence lengths as in the English Web Treebank, one word in five of two sub-words. The
loop asks every head about every word with ``.item()``, as the released code does; between the two stands the loop's
best form, sentence after sentence with all heads at once. All read the same sentences and must find the same hits; the
model's own forwards are the same for all and not counted.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from comparing import CLOCK, Row, equal, finish, row
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoModel, BertConfig, PreTrainedTokenizerFast

from headwise.heads.attention import eager
from headwise.heads.gates import captured
from headwise.measuring.evaluate import TOKENS
from headwise.models.batching import batches, encode
from headwise.probing.features import INPUTS, Reader
from headwise.probing.parameterfree import arg_max, hits, means, named, unit
from headwise.tasks import Dependencies, Rows, Tag, Task

LAYERS, HEADS, SIZE, TAGS = 12, 12, 64, 17


def tokenizer() -> PreTrainedTokenizerFast:
    """Words ``w0`` to ``w39`` are known whole, ``v0`` to ``v9`` have two sub-words, as one word in five of a text."""
    pieces = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "v", *(f"##{i}" for i in range(10)), *(f"w{i}" for i in range(40))]
    backend = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]")


def tasks(sentences: int) -> tuple[Task, Task]:
    rng = np.random.default_rng(0)
    tags, arcs = [], []
    for size in np.clip(rng.lognormal(2.6, 0.7, sentences), 2, 90).astype(int):
        text = [f"w{i}" if i < 40 else f"v{i - 40}" for i in rng.integers(0, 50, size)]
        tags.append({"words": text, "labels": [f"T{i}" for i in rng.integers(0, TAGS, size)]})
        heads = [0, *(int(rng.integers(1, i + 1)) for i in range(1, size))]
        arcs.append({"words": text, "heads": heads, "labels": [f"L{i}" for i in rng.integers(0, 40, size)]})
    return (
        Task("pos", Tag(), Rows(tags, tags, tags), "tag_accuracy"),
        Task("dep", Dependencies(), Rows(arcs, arcs, arcs), "las"),
    )


Hits = list[torch.Tensor]  # of every sentence, (units, L, H)
Way = Callable[[Reader, Task, int | None], tuple[float, Hits]]


def read_batches(
    reader: Reader, task: Task, budget: int | None
) -> Iterator[tuple[np.ndarray, dict[str, torch.Tensor]]]:
    """Batches by a budget of tokens, or the sentences one by one."""
    data = encode(task, "test", reader.tokenizer)
    if budget is None:
        return ((np.array([item]), data.batch([item])) for item in range(len(data)))
    return batches(data, budget)


def inputs_of(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: batch[name] for name in INPUTS if name in batch}


def centroids_of() -> torch.Tensor:
    """Of every tag, head by head: their sums are the cheap part, and alike for all ways."""
    return unit(torch.randn(TAGS, LAYERS, HEADS, SIZE, generator=torch.Generator().manual_seed(0)))


@torch.no_grad()
def tags_at_once(reader: Reader, task: Task, budget: int | None) -> tuple[float, Hits]:
    """Seconds and hits for all heads at once: words' vectors, then the nearest centroid."""
    spent, found, centroids = 0.0, {}, centroids_of()
    seen = torch.ones(TAGS, dtype=torch.bool)
    for items, batch in read_batches(reader, task, budget):
        with captured(reader.encoder, lambda out: out) as kept:
            reader.encoder(**inputs_of(batch))
        start = CLOCK()
        b, word = (batch["labels"] >= 0).nonzero(as_tuple=True)
        weights, gold = means(batch["word_of"], b, word, word + 1), batch["labels"][b, word]
        pooled = [torch.sparse.mm(weights, out.flatten(0, 1).flatten(1)).unflatten(1, (HEADS, SIZE)) for out in kept]
        right = named(torch.stack(pooled, 1), centroids, seen) == gold[:, None, None]
        spent += CLOCK() - start
        found |= {int(item): right[b == number] for number, item in enumerate(items)}
    return spent, [found[item] for item in sorted(found)]


@torch.no_grad()
def tags_by_loop(reader: Reader, task: Task, budget: int | None = None) -> tuple[float, Hits]:
    """The same word by word and head by head."""
    spent, found, centroids = 0.0, [], centroids_of()
    for _, batch in read_batches(reader, task, None):
        with captured(reader.encoder, lambda out: out) as kept:
            reader.encoder(**inputs_of(batch))
        start = CLOCK()
        tags = batch["labels"][0].tolist()
        right = torch.zeros(len(tags), LAYERS, HEADS, dtype=torch.bool)
        for word, tag in enumerate(tags):
            vectors = [out[0, batch["word_of"][0] == word].mean(0) for out in kept]
            for layer in range(LAYERS):
                for head in range(HEADS):
                    near = torch.cosine_similarity(vectors[layer][head][None], centroids[:, layer, head])
                    right[word, layer, head] = near.argmax().item() == tag
        spent += CLOCK() - start
        found.append(right)
    return spent, found


@torch.no_grad()
def arcs_at_once(reader: Reader, task: Task, budget: int | None) -> tuple[float, Hits]:
    """Seconds and hits of the dependencies: what every word attends to most, in all heads at once."""
    spent, found = 0.0, {}
    with eager(reader.encoder) as maps:
        for items, batch in read_batches(reader, task, budget):
            attention = maps(**inputs_of(batch))
            start = CLOCK()
            to = arg_max(attention, batch["word_of"], int(batch["word_of"].max()) + 1)
            b, word = (batch["labels"] >= 0).nonzero(as_tuple=True)
            right = hits(to, b, word, word + 1, batch["heads"][b, word] - 1)
            spent += CLOCK() - start
            found |= {int(item): right[b == number] for number, item in enumerate(items)}
    return spent, [found[item] for item in sorted(found)]


@torch.no_grad()
def arcs_by_loop(reader: Reader, task: Task, budget: int | None = None) -> tuple[float, Hits]:
    """The same with word-level maps once a head, then each arc both ways."""
    spent, found = 0.0, []
    with eager(reader.encoder) as maps:
        for _, batch in read_batches(reader, task, None):
            attention = maps(**inputs_of(batch))
            start = CLOCK()
            heads = batch["heads"][0].tolist()
            right = torch.zeros(len(heads), LAYERS, HEADS, dtype=torch.bool)
            belongs = [torch.tensor([True] + [False] * (batch["word_of"].shape[1] - 1))]
            belongs += [batch["word_of"][0] == word for word in range(int(batch["word_of"].max()) + 1)]
            for layer in range(LAYERS):
                for head in range(HEADS):
                    keys = torch.stack([attention[layer][0, head][:, places].sum(1) for places in belongs], 1)
                    to = torch.stack([keys[places].mean(0) for places in belongs])
                    for word, other in enumerate(heads):
                        forth, back = to[word + 1].argmax().item() == other, to[other].argmax().item() == word + 1
                        right[word, layer, head] = forth or back
            spent += CLOCK() - start
            found.append(right)
    return spent, found


def rows_of(sentences: int, repeat: int) -> list[Row]:
    pos, dep = tasks(sentences)
    found = []
    for name, task, ours, loop, width, budget in (
        ("nearest centroid (POS)", pos, tags_at_once, tags_by_loop, HEADS * SIZE, TOKENS),
        ("attention (DEP)", dep, arcs_at_once, arcs_by_loop, 192, 3072),  # maps are the same size for any width
    ):
        config = BertConfig(vocab_size=64, hidden_size=width, intermediate_size=2 * width)
        torch.manual_seed(0)
        reader = Reader.of(AutoModel.from_config(config).eval(), tokenizer())
        found += probe_rows(name, [(ours, budget), (ours, None), (loop, None)], reader, task.ready(), repeat)
    return found


def probe_rows(name: str, ways: list[tuple[Way, int | None]], reader: Reader, task: Task, repeat: int) -> list[Row]:
    rounds = [[way(reader, task, budget) for way, budget in ways] for _ in range(repeat)]
    fast, each, slow = (min(spent for spent, _ in times) for times in zip(*rounds))
    at_once, by_sentence, by_loop = (torch.cat(right).double() for _, right in rounds[0])
    words = len(at_once)
    return [
        row(f"{name}: sentence by sentence / all at once", each / fast, same=[_hits(at_once, by_sentence)]),
        row(f"{name}: loop / all at once", slow / fast, ">= 50", same=[_hits(at_once, by_loop)]),
        row(f"{name}: all at once, µs a word", 1e6 * fast / words),
    ]


def _hits(ours: torch.Tensor, theirs: torch.Tensor) -> str:
    """Rounding may turn a near tie: one in ten thousand answers may differ."""
    differ = float((ours != theirs).double().mean())
    return equal("hits", ours.sum(), theirs.sum(), 1e-4) if differ <= 1e-4 else equal("hits", ours, theirs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sentences", type=int, default=100)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    finish(rows_of(args.sentences, args.repeat), args.json)


if __name__ == "__main__":
    main()
