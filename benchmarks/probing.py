"""All heads at once against one classifier at a time, on the same features in one run.

    python benchmarks/probing.py [--device cuda] [--sentences 4000] [--json FILE]

On a CPU: 12 x 12 heads of 64 dimensions, five L2 strengths. The loops are run on a few heads and scaled up, in turns
with ours, and each side's best time counts, so that other work on the machine weighs on both. On an accelerator: end
to end, from 100,000 sentences to the scores of all heads and layers of a BERT-base shape.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
import warnings
from collections.abc import Callable

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits
from torch import nn
from transformers import AutoModel, BertConfig

from headwise.probing import probe
from headwise.probing.descent import Rule
from headwise.probing.fitting import PRINTED, Labels, Vectors, fit
from headwise.tasks import Classify, Rows, Task
from headwise.testing import tiny_tokenizer

HEADS, SIZE = 144, 64


def features(sentences: int, classes: int) -> tuple[Vectors, Labels]:
    """Vectors with the falling spectrum of real head outputs, and labels that heads tell to different degrees."""
    generator = torch.Generator().manual_seed(0)
    every = sentences + sentences // 2
    mix = torch.randn(HEADS, SIZE, SIZE, generator=generator) * torch.logspace(0, -2, SIZE)[:, None]
    hidden = torch.randn(every, SIZE, generator=generator)
    share = torch.linspace(0, 1, HEADS)[:, None, None]
    x = (share * hidden + (1 - share) * torch.randn(HEADS, every, SIZE, generator=generator)) @ mix
    scores = hidden @ torch.randn(SIZE, classes, generator=generator)
    y = (scores + 4 * torch.randn(every, classes, generator=generator)).argmax(1).numpy()
    ends = [0, sentences, sentences + sentences // 4, every]
    sides = [(slice(a, b)) for a, b in zip(ends, ends[1:])]  # noqa: RUF007
    return Vectors(*(x[:, s].contiguous() for s in sides)), Labels(*(y[s] for s in sides), classes)


def scikit_learn(vectors: Vectors, labels: Labels, heads: list[int], **options) -> np.ndarray:
    """One LogisticRegression after the other; the development accuracy of each.

    On one thread, which is its best for problems of this size: more threads wait for each other.
    """
    out = np.empty((len(heads), len(PRINTED)))
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")  # some stop before they converge, as they do for people
        for i, head in enumerate(heads):
            train, dev = vectors.train[head].numpy(), vectors.dev[head].numpy()
            for k, l2 in enumerate(PRINTED):
                model = LogisticRegression(C=1 / (l2 * len(train)), max_iter=1000, **options)
                out[i, k] = model.fit(train, labels.train).score(dev, labels.dev)
    return out


def doubled(vectors: Vectors) -> Vectors:
    """In 64 bits, where scikit-learn reaches the optimum."""
    return Vectors(vectors.train.double(), vectors.dev.double(), vectors.test.double())


def one_by_one(vectors: Vectors, labels: Labels, heads: list[int], rule: Rule) -> np.ndarray:
    """One classifier, one optimizer and one early stopping after the other, as the released code does it."""
    out = np.empty((len(heads), len(PRINTED)))
    gold = torch.from_numpy(labels.train)
    for i, head in enumerate(heads):
        for k, l2 in enumerate(PRINTED):
            np.random.seed(rule.seed)
            torch.manual_seed(rule.seed)
            model = nn.Sequential(nn.Linear(SIZE, labels.classes))
            optimizer = torch.optim.RMSprop(model.parameters(), lr=rule.lr, weight_decay=l2)
            out[i, k] = stopped_early(model, optimizer, vectors.train[head], gold, vectors.dev[head], labels, rule)
    return out


def stopped_early(model, optimizer, x, y, dev, labels: Labels, rule: Rule) -> float:
    best, misses, epoch, stop = -1.0, 0, 0, False
    while not stop and epoch <= rule.max_epochs:
        for _ in range(rule.every):
            order = np.random.permutation(len(x))
            for start in range(0, len(x), rule.batch):
                items = torch.from_numpy(order[start : start + rule.batch])
                loss = nn.functional.cross_entropy(model(x[items]), y[items])
                loss.item()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        epoch += rule.every
        with torch.no_grad():
            score = (model(dev).argmax(1).numpy() == labels.dev).mean()
        if score > best:
            best, _ = score, copy.deepcopy(model)
        else:
            stop, misses = misses >= rule.tenacity, misses + 1
    return best


def in_turns(repeat: int, *works: Callable[[], object]) -> list[float]:
    """The best time of each, in seconds, one after the other in every round."""
    best = [float("inf")] * len(works)
    for _ in range(repeat):
        for i, work in enumerate(works):
            start = time.perf_counter()
            work()
            best[i] = min(best[i], time.perf_counter() - start)
    return best


def ratios(sentences: int, repeat: int) -> list[dict]:
    some, rule = [18, 54, 90, 126], Rule(max_epochs=30)  # heads of every kind
    up, rows = HEADS / len(some), []
    for classes in (2, 6):
        vectors, labels = features(sentences, classes)
        ours, lbfgs, newton = in_turns(
            repeat,
            lambda v=vectors, la=labels: fit("sklearn", v, la),
            lambda v=vectors, la=labels: scikit_learn(v, la, some),
            lambda v=vectors, la=labels: scikit_learn(v, la, some, solver="newton-cholesky"),
        )
        away = np.abs(
            scikit_learn(doubled(vectors), labels, some, solver="newton-cholesky", tol=1e-9).max(1)
            - fit("sklearn", vectors, labels).dev[some].numpy()
        )
        rows += [
            row(f"scikit-learn loop / converged, {classes} classes", up * lbfgs / ours, ">= 10"),
            row(
                f"the same dealt out to {torch.get_num_threads()} cores without loss",
                up * lbfgs / ours / torch.get_num_threads(),
                ">= 10",
            ),
            row(f"scikit-learn newton loop / converged, {classes} classes", up * newton / ours, ""),
            row(f"converged, {HEADS} heads x 5, s, {classes} classes", ours, ""),
            row(f"largest difference in accuracy, {classes} classes", away.max(), "<= 1e-4"),
        ]
    vectors, labels = features(sentences, 2)
    options = {"l2": PRINTED, "max_epochs": rule.max_epochs}
    ours, loop = in_turns(
        repeat, lambda: fit("anatomy", vectors, labels, **options), lambda: one_by_one(vectors, labels, some, rule)
    )
    away = np.abs(
        one_by_one(vectors, labels, some, rule).max(1) - fit("anatomy", vectors, labels, **options).dev[some].numpy()
    )
    return [
        *rows,
        row("torch loop / early-stopped", up * loop / ours, ">= 25"),
        row("early-stopped, s", ours, ""),
        row("largest difference in accuracy, early-stopped", away.max(), "0"),
    ]


def row(what: str, value: float, goal: str) -> dict:
    return {"what": what, "ratio": float(value), "goal": goal, "floor": ""}


def end_to_end(sentences: int) -> list[dict]:
    """From sentences to scores on an accelerator."""
    rng = np.random.default_rng(0)
    every = [f"w{i}" for i in range(50)]
    texts = [" ".join(rng.choice(every, n)) for n in rng.integers(6, 24, sentences * 6 // 5)]
    made = [{"text": text, "label": "ab"[text.count("w1") % 2]} for text in texts]
    parts = Rows(made[:sentences], made[sentences : sentences * 11 // 10], made[sentences * 11 // 10 :])
    task = Task("t", Classify(("a", "b")), parts, "accuracy")
    model = AutoModel.from_config(BertConfig()).to("cuda").eval()
    rows = []
    for protocol in ("sklearn", "anatomy"):
        torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        marks: list[float] = []
        probe(
            model,
            task,
            tokenizer=tiny_tokenizer(every),
            protocol=protocol,
            precision="bf16",
            shared="keep",
            say=lambda line, marks=marks, start=start: marks.append(time.perf_counter() - start),
        )
        spent = time.perf_counter() - start
        rows += [
            row(f"{protocol}: {sentences} sentences end to end, s", spent, "<= 60"),
            row(f"{protocol}: of it probing, s", spent - marks[-1], ""),
            row(f"{protocol}: device memory, GB", torch.cuda.max_memory_allocated() / 1e9, ""),
        ]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--sentences", type=int)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    on_device = args.device == "cuda"
    rows = end_to_end(args.sentences or 100_000) if on_device else ratios(args.sentences or 4000, args.repeat)
    for each in rows:
        print(f"{each['what']:52s} {each['ratio']:10.4g}   goal {each['goal'] or '-'}")
    if args.json:
        with open(args.json, "w") as file:  # noqa: PTH123
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
