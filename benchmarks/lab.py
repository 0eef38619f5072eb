"""The lab: milliseconds from a changed mask to new answers, ten pages at once for a minute, and memory over many asks.

    python benchmarks/lab.py [--repeats 200] [--seconds 60] [--requests 10000] [--json FILE]

The server is a process of its own, as a person starts it, and is asked over loopback; the browser's painting is not
counted. SmolLM2-135M is read from $HEADWISE_WEIGHTS/smollm2-135m; without it the same shape with random weights stands
in, which takes as long.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from comparing import Row, finish, row
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.utils import logging

from headwise.models.multitask import MultiTaskModel
from headwise.study.demo import CORPUS, encoder_folder
from headwise.testing import tiny_tokenizer, toy_model

CLIENTS = 10
TEXT = "Although the song was bad, Clara said the races in Lisbon were perfect."
WORDS = [f"w{i}" for i in range(20)]


class Page:
    """One page: a connection that is kept, and a name."""

    def __init__(self, address: str, name: str):
        host, _, self.token = address.removeprefix("http://").rstrip("/").partition("/")
        self.connection, self.name = http.client.HTTPConnection(host, timeout=120), name

    def ask(self, path: str, **body: Any) -> Any:
        text = json.dumps({"client": self.name, **body})
        self.connection.request("POST", f"/{self.token}/{path}", text, {"Content-Type": "application/json"})
        answer = self.connection.getresponse()
        found = json.loads(answer.read())
        assert answer.status == 200, found
        return found

    def about(self) -> Any:
        self.connection.request("GET", f"/{self.token}/about.json")
        return json.loads(self.connection.getresponse().read())


@contextmanager
def serving(folder: str | Path, *options: str) -> Iterator[tuple[str, psutil.Process]]:
    """The address of a lab, and its process."""
    command = [sys.executable, "-m", "headwise", "lab", str(folder), "--no-browser", "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if "http://" not in line:
            raise RuntimeError("the lab did not start")
        yield line.split()[-1], psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(timeout=30)


def masks(shape: tuple[int, int], seed: int) -> Iterator[list[list[float]]]:
    """A mask without end: each differs from the one before in one head."""
    draw, gates = random.Random(seed), [[1.0] * shape[1] for _ in range(shape[0])]
    while True:
        layer, head = draw.randrange(shape[0]), draw.randrange(shape[1])
        gates[layer][head] = 1 - gates[layer][head]
        yield gates


def times(page: Page, shape: tuple[int, int], text: str, repeats: int, seed: int = 0) -> list[float]:
    """Milliseconds of one answer after another."""
    found = []
    for gates, _ in zip(masks(shape, seed), range(repeats + 5)):
        start = time.perf_counter()
        page.ask("answers", text=text, gates=gates)
        found.append(1000 * (time.perf_counter() - start))
    return found[5:]  # the first ones read the text and warm up


def spent(process: psutil.Process) -> float:
    """Seconds of processors that a process has used: what a busy machine does not stretch."""
    used = process.cpu_times()
    return used.user + used.system


def one_page(name: str, folder: Path, repeats: int, goal: str) -> list[Row]:
    with serving(folder) as (address, process):
        page = Page(address, "one")
        about = page.about()
        shape = about["layers"], about["heads"]
        times(page, shape, TEXT, 5)
        before = spent(process)
        found = times(page, shape, TEXT, repeats)
        work = 1000 * (spent(process) - before) / (repeats + 5)
    what = f"{name}: ms from a changed mask to all answers"
    rows = [row(f"{what}, median", np.median(found), goal), row(f"{what}, p95", np.percentile(found, 95))]
    return [*rows, row(f"{what}, of one processor alone", work)]


def many_pages(folder: Path, seconds: float) -> list[Row]:
    """Ten pages that change a head as soon as they have their answers."""
    with serving(folder) as (address, process):
        shape = (lambda about: (about["layers"], about["heads"]))(Page(address, "first").about())
        times(Page(address, "warm"), shape, TEXT, 20)
        before, until, found = process.memory_full_info().uss, time.perf_counter() + seconds, []

        def run(number: int) -> None:
            page, changing = Page(address, f"page-{number}"), masks(shape, number)
            while time.perf_counter() < until:
                start = time.perf_counter()
                page.ask("answers", text=f"{TEXT} {number}", gates=next(changing))
                found.append(1000 * (time.perf_counter() - start))

        threads = [threading.Thread(target=run, args=[number]) for number in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        grown = (process.memory_full_info().uss - before) / 1e6
    name = f"MiniLM, {CLIENTS} pages for {seconds:g} s"
    return [
        row(f"{name}: answers a second", len(found) / seconds),
        row(f"{name}: ms, median", np.median(found)),
        row(f"{name}: ms, p95", np.percentile(found, 95)),
        row(f"{name}: memory, MB more", grown, "<= 50"),
    ]


def memory(folder: Path, data: Path, requests: int) -> list[Row]:
    """Different texts and masks, on a tiny model: what grows, in memory of its own, would be the lab."""
    with serving(folder, "--data", str(data)) as (address, process):
        page, draw, changing = Page(address, "one"), random.Random(0), masks((2, 4), 0)
        sizes = []
        for number in range(requests + 200):
            page.ask("answers", text=" ".join(draw.choices(WORDS, k=draw.randint(3, 30))), gates=next(changing))
            if number == 199:
                sizes.append(process.memory_full_info().uss)
        sizes.append(process.memory_full_info().uss)
    return [row(f"memory over {requests} texts and masks, MB more", (sizes[1] - sizes[0]) / 1e6, "<= 20")]


def smollm(folder: Path) -> Path:
    """SmolLM2-135M where it is here, else its shape."""
    own = Path(os.environ.get("HEADWISE_WEIGHTS", "")) / "smollm2-135m"
    if own.is_dir():
        return own
    config = LlamaConfig(
        hidden_size=576, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3, intermediate_size=1536
    )
    config.vocab_size, config.tie_word_embeddings = 49152, True
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tiny_tokenizer(WORDS).save_pretrained(folder)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        MultiTaskModel.from_pretrained(encoder_folder(), list(CORPUS), pooling="mean").save_pretrained(
            folder / "minilm"
        )
        toy_model(3).save_pretrained(folder / "toy")
        rows = one_page("MiniLM, 4 tasks", folder / "minilm", args.repeats, "<= 100")
        rows += one_page(
            "SmolLM2-135M, next words", smollm(folder / "smollm2-135m"), max(5, args.repeats // 4), "<= 700"
        )
        rows += many_pages(folder / "minilm", args.seconds)
        rows += memory(folder / "toy", folder, args.requests)
    finish(rows, args.json)


if __name__ == "__main__":
    main()
