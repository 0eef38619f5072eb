"""How cost grows: examples, sequence length, heads, tasks, lesions, jobs; the exponent of each, fitted on a log scale.

    python benchmarks/growth.py [--size tiny|cores|accelerator] [--plot FILE.svg] [--json FILE]

An exponent of 1 is a cost in proportion; what is spent once makes it smaller. Attention is quadratic in length, but at
the lengths of sentences the rest of a layer, which is linear, is most of it.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from comparing import Row, finish, row
from transformers import AutoModel, BertConfig

from headwise.dissociation.lesions import dissociate
from headwise.experiments.jobs import Job, Place
from headwise.experiments.sweep import run
from headwise.measuring.evaluate import evaluate
from headwise.models.batching import encode
from headwise.models.multitask import MultiTaskModel
from headwise.scoring.importance import importance
from headwise.tasks.kinds.classify import Classify
from headwise.tasks.task import Rows, Task
from headwise.testing import tiny_tokenizer


class Size(NamedTuple):
    device: str
    tokens: int
    examples: tuple[int, ...]
    lengths: tuple[int, ...]
    heads: tuple[int, ...]
    tasks: tuple[int, ...]
    lesions: tuple[int, ...]
    jobs: tuple[int, ...]
    wide: int = 256
    repeats: int = 2


SIZES = {
    "tiny": Size("cpu", 512, (8, 16), (8, 16), (2, 4), (2, 3), (2, 4), (2, 4), 32, 1),
    "cores": Size(
        "cpu", 4096, (64, 128, 256, 512), (16, 32, 64, 128), (2, 4, 8, 16), (2, 3, 4, 6), (2, 4, 8, 16), (8, 16, 32)
    ),
    "accelerator": Size(
        *("cuda", 65536, (2048, 4096, 8192, 16384), (32, 64, 128, 256, 512), (4, 8, 16, 32), (2, 4, 6), (4, 8, 16, 32)),
        *((8, 16, 32), 768, 3),
    ),
}


def build(size: Size, rows: int = 64, length: int = 24, heads: int = 8, tasks: int = 1) -> MultiTaskModel:
    """A small encoder and tasks of random words, all of one length."""
    config = BertConfig(
        num_hidden_layers=4, num_attention_heads=heads, hidden_size=size.wide, intermediate_size=4 * size.wide
    )
    rng, words = np.random.default_rng(0), [f"w{i}" for i in range(50)]
    made = [{"text": " ".join(rng.choice(words, length - 2)), "label": "ab"[i % 2]} for i in range(rows)]
    given = [Task(f"t{n}", Classify(("a", "b")), Rows(train=made, dev=made), "accuracy") for n in range(tasks)]
    encoder = AutoModel.from_config(config).to(size.device)
    return MultiTaskModel(encoder, tiny_tokenizer(words), given, max_length=length).to(size.device).eval()


def importance_of(size: Size, **shape: int) -> Callable[[], object]:
    model = build(size, **shape)
    data = encode(model.tasks["t0"], "train", model.tokenizer, model.max_length)
    return lambda: importance(model, "t0", data=data, tokens=size.tokens)


def lesions_of(size: Size, number: int) -> Callable[[], object]:
    model = build(size)
    gates = torch.ones(number, 4, 8)
    gates[:, 0, 0] = 0.5
    return lambda: evaluate(model, "t0", gates, tokens=size.tokens)


def matrix_of(size: Size, tasks: int) -> Callable[[], object]:
    model = build(size, tasks=tasks)
    scores = {name: torch.rand(4, 8, generator=torch.Generator().manual_seed(i)) for i, name in enumerate(model.tasks)}
    return lambda: dissociate(model, scores, [0.3], random=1)


def jobs_of(size: Size, number: int) -> Callable[[], object]:
    """Jobs that do nothing: what a sweep itself costs, from its first job's end to its last's."""

    def sweep() -> float:
        ends: list[float] = []
        with tempfile.TemporaryDirectory() as folder:
            jobs = [Job("growth:nothing", {"n": n}) for n in range(number + 1)]
            run(jobs, folder, workers=1, on_change=lambda job, state, word: ends.append(time.perf_counter()))
        return ends[-1] - ends[-2 * number]

    return sweep


def nothing(place: Place) -> dict[str, Any]:
    """The work of a job that does nothing."""
    return {"n": place.config["n"]}


def seconds(work: Callable[[], object], size: Size) -> float:
    """The best of a few, after one to warm up."""
    best = float("inf")
    for _ in range(size.repeats + 1):
        began = time.perf_counter()
        told = work()
        if size.device == "cuda":
            torch.cuda.synchronize()
        best = min(best, told if isinstance(told, float) else time.perf_counter() - began)
    return best


def exponent(sizes: tuple[int, ...], times: list[float]) -> float:
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])


def measure(size: Size) -> list[Row]:
    axes: dict[str, tuple[tuple[int, ...], Callable[[int], Callable[[], object]], str]] = {
        "importance by examples": (size.examples, lambda n: importance_of(size, rows=n), "<= 1.1"),
        "importance by length": (size.lengths, lambda n: importance_of(size, length=n), "<= 1.5"),
        "importance by heads of a layer (same width)": (size.heads, lambda n: importance_of(size, heads=n), "<= 0.3"),
        "matrix by tasks (each adds a row and a column)": (size.tasks, lambda n: matrix_of(size, n), "<= 2.1"),
        "evaluation by lesions": (size.lesions, lambda n: lesions_of(size, n), "<= 1.1"),
        "sweep by jobs": (size.jobs, lambda n: jobs_of(size, n), "<= 1.1"),
    }
    rows = []
    for what, (sizes, make, goal) in axes.items():
        times = [seconds(make(n), size) for n in sizes]
        rows.append(row(f"{what}: exponent", exponent(sizes, times), goal, sizes=list(sizes), seconds=times))
    return rows


def plot(rows: list[Row], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 3, figsize=(11, 6), layout="constrained")
    for each, place in zip(rows, axes.flat):
        place.loglog(each["sizes"], each["seconds"], "o-")
        place.set_title(f"{each['what'].removesuffix(': exponent')}\nexponent {each['ratio']:.2f}", fontsize=9)
        place.set_ylabel("seconds")
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=[*SIZES], default="accelerator" if torch.cuda.is_available() else "cores")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])  # workers import this file
    rows = measure(SIZES[args.size])
    if args.plot:
        plot(rows, args.plot)
    finish(rows, args.json)


if __name__ == "__main__":
    main()
