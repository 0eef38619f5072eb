"""Parameter-free probes of all heads at once against a loop over words, layers and heads, on the same model outputs.

    python benchmarks/parameterfree.py [--sentences 2000] [--json FILE]

12 x 12 heads of 64 dimensions, sentence lengths as in the English Web Treebank, one word in five of two sub-words. The
loop asks every head about every word with ``.item()``, as the released code does. Both run on a sample of the sentences
and are scaled up; the model's own forwards are the same for both and not counted. Times are the process's own, on one
thread, so that other work on the machine weighs on neither.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoModel, BertConfig, PreTrainedTokenizerFast

from headwise.batching import batches, encode
from headwise.heads import captured, eager
from headwise.probing.features import INPUTS, Reader
from headwise.probing.parameterfree import Tally, arg_max, hits, means, named, unit
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


@torch.no_grad()
def our_tags(reader: Reader, task: Task, sentences: int) -> float:
    """Seconds for all heads at once: words' vectors, the centroids' sums, then the nearest."""
    data, spent = encode(task, "test", reader.tokenizer, limit=sentences), 0.0
    sums, seen = torch.randn(TAGS, LAYERS, HEADS, SIZE), torch.ones(TAGS, dtype=torch.bool)
    tally = Tally([str(i) for i in range(TAGS)], reader.heads, reader.device)
    for _, batch in batches(data, reader.budget):
        with captured(reader.encoder, lambda out: out) as kept:
            reader.encoder(**{name: batch[name] for name in INPUTS if name in batch})
        start = time.process_time()
        b, word = (batch["labels"] >= 0).nonzero(as_tuple=True)
        weights, gold = means(batch["word_of"], b, word, word + 1), batch["labels"][b, word]
        pooled = [torch.sparse.mm(weights, out.flatten(0, 1).flatten(1)).unflatten(1, (HEADS, SIZE)) for out in kept]
        vectors = torch.stack(pooled, 1)
        sums.index_add_(0, gold, vectors)
        tally.add(named(vectors, unit(sums), seen) == gold[:, None, None], gold)
        spent += time.process_time() - start
    return spent


@torch.no_grad()
def our_arcs(reader: Reader, task: Task, sentences: int) -> float:
    data, spent = encode(task, "test", reader.tokenizer, limit=sentences), 0.0
    tally = Tally([str(i) for i in range(40)], reader.heads, reader.device)
    with eager(reader.encoder) as maps:
        for _, batch in batches(data, 3072):  # as `relations` makes them for these lengths
            found = maps(**{name: batch[name] for name in INPUTS if name in batch})
            start = time.process_time()
            to = arg_max(found, batch["word_of"], int(batch["word_of"].max()) + 1)
            b, word = (batch["labels"] >= 0).nonzero(as_tuple=True)
            tally.add(hits(to, b, word, word + 1, batch["heads"][b, word] - 1), batch["labels"][b, word])
            spent += time.process_time() - start
    return spent


@torch.no_grad()
def loop_tags(reader: Reader, task: Task, sentences: int) -> float:
    """Seconds for the words of some sentences: a centroid's sum, then the nearest one, head by head."""
    data, spent = encode(task, "test", reader.tokenizer), 0.0
    centroids = torch.randn(LAYERS, HEADS, TAGS, SIZE)
    for item in range(sentences):
        batch = data.batch([item])
        with captured(reader.encoder, lambda out: out) as kept:
            reader.encoder(**{name: batch[name] for name in INPUTS if name in batch})
        start = time.process_time()
        for word, tag in enumerate(batch["labels"][0].tolist()):
            vectors = torch.stack([out[0, batch["word_of"][0] == word].mean(0) for out in kept])
            for layer in range(LAYERS):
                for head in range(HEADS):
                    vector = vectors[layer, head]
                    centroids[layer, head, tag] += vector
                    near = torch.cosine_similarity(vector[None], centroids[layer, head]).argmax().item()
                    near == tag  # noqa: B015
        spent += time.process_time() - start
    return spent


@torch.no_grad()
def loop_arcs(reader: Reader, task: Task, sentences: int) -> float:
    """Seconds for the dependencies of some sentences: word-level maps once a head, then each arc both ways."""
    data, spent = encode(task, "test", reader.tokenizer), 0.0
    with eager(reader.encoder) as maps:
        for item in range(sentences):
            batch = data.batch([item])
            found = maps(**{name: batch[name] for name in INPUTS if name in batch})
            start = time.process_time()
            belongs = [torch.tensor([True] + [False] * (batch["word_of"].shape[1] - 1))]
            belongs += [batch["word_of"][0] == word for word in range(int(batch["word_of"].max()) + 1)]
            for layer in range(LAYERS):
                for head in range(HEADS):
                    keys = torch.stack([found[layer][0, head][:, places].sum(1) for places in belongs], 1)
                    to = torch.stack([keys[places].mean(0) for places in belongs])
                    for word, other in enumerate(batch["heads"][0].tolist()):
                        _ = to[word + 1].argmax().item() == other or to[other].argmax().item() == word + 1
            spent += time.process_time() - start
    return spent


def rows(sentences: int, few: int, many: int, repeat: int) -> list[dict]:
    pos, dep = tasks(sentences)
    found = []
    for name, task, ours, loop, width in (
        ("nearest centroid (POS)", pos, our_tags, loop_tags, HEADS * SIZE),
        ("attention (DEP)", dep, our_arcs, loop_arcs, 192),  # attention maps are the same size for any width
    ):
        task, many = task.ready(), sentences if task is dep else many  # maps are padded: their batches count
        config = BertConfig(vocab_size=64, hidden_size=width, intermediate_size=2 * width)
        reader = Reader.of(AutoModel.from_config(config).eval(), tokenizer())
        slow = loop(reader, task, few) / few
        fast = min(ours(reader, task, many) for _ in range(repeat)) / many
        found += [
            row(f"{name}: loop / all heads at once", slow / fast, ">= 50"),
            row(f"{name}: {sentences} sentences all at once, s", fast * sentences, ""),
            row(f"{name}: {sentences} sentences by the loop, s", slow * sentences, ""),
        ]
    return found


def row(what: str, value: float, goal: str) -> dict:
    return {"what": what, "ratio": float(value), "goal": goal, "floor": ""}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sentences", type=int, default=2000)
    parser.add_argument("--few", type=int, default=20, help="sentences of the loop")
    parser.add_argument("--many", type=int, default=200, help="sentences of ours")
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    table = rows(args.sentences, args.few, args.many, args.repeat)
    for each in table:
        print(f"{each['what']:64s} {each['ratio']:10.4g}   goal {each['goal'] or '-'}")
    if args.json:
        args.json.write_text(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
