"""What a results folder and the queue of a sweep cost as they grow, on this machine.

python benchmarks/records.py [--records 2000] [--json FILE]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from comparing import Row, finish, row

from headwise.dissociation.lesions import GRID
from headwise.dissociation.result import Counts, Dissociation
from headwise.experiments.jobs import Job, in_order
from headwise.experiments.sweep import _Queue
from headwise.io.records import Results

QUEUE = 20_000  # jobs


def lesions(shape: tuple[int, int] = (6, 12)) -> dict[str, Any]:
    """What the lesions of a pair leave in a record, of random numbers."""
    rng = np.random.default_rng(0)
    counts = [Counts(rng.integers(0, 2, (50, len(GRID), 6, 1)).astype(float), lambda s: s[..., 0] / 50)] * 2
    maps = {name: {"scores": rng.random(shape).tolist(), "stderr": rng.random(shape).tolist()} for name in "ab"}
    apart = Dissociation.of(["a", "b"], fractions=GRID, counts=counts, undefined="leave")
    return {"importance": maps, "dissociation": apart.to_record()}


def chain(i: int) -> Job:
    """A job, and the one it stands on."""
    return Job("lesions", {"i": i}, after=(Job("train", {"i": i}),))


def emptied(queue: _Queue) -> None:
    """Every job begins and ends."""
    while job := queue.next():
        queue.ended(job, failed=False)


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    made = work()
    return time.perf_counter() - start, made


def measure(number: int) -> list[Row]:
    queue = {job.key: job for job in in_order([chain(i) for i in range(QUEUE // 2)])}
    with tempfile.TemporaryDirectory() as folder:
        results, record = Results(folder), lesions()
        save, keys = timed(lambda: [results.save("lesions", {"i": i}, record) for i in range(number)])
        lookup, _ = timed(lambda: [results[key] for key in keys])
        found = results[keys[0]]
        size = (found.path / "record.json").stat().st_size
        choose, _ = timed(lambda: emptied(_Queue(queue)))
    rows = {
        "writing a record, ms": 1e3 * save / number,
        "finding and reading a record, µs": 1e6 * lookup / number,
        "a job's way through the queue, µs": 1e6 * choose / QUEUE,
        "a record of a pair's lesions, kB": size / 1e3,
    }
    return [row(what, value) for what, value in rows.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=2000)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    finish(measure(args.records), args.json)


if __name__ == "__main__":
    main()
