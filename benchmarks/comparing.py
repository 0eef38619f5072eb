"""What benchmarks share: two ways that take turns, and rows that prove that both did the same work.

A row that compares two ways, which its name parts by a slash, lists what was found equal on both sides before either
was timed. A row that compares with other software names the installed version too. Rows without them are refused.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

Row = dict[str, Any]
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
CLOCK = CLOCKS[os.environ.get("BENCH_CLOCK", "wall")]  # on a busy machine: one thread, and the process's own time
# How a row names other software, and the distribution whose version it must give.
PEERS = {
    "captum": "captum",
    "TransformerLens": "transformer-lens",
    "nnsight": "nnsight",
    "scikit-learn": "scikit-learn",
    "Torch-Pruning": "torch-pruning",
    "Trainer": "transformers",
    "onnxruntime": "onnxruntime",
}


class UnequalWork(AssertionError):
    """Two ways that were to be compared do different things."""


def equal(what: str, ours: Any, theirs: Any, within: float = 0.0) -> str:
    """The line of a table that says what both sides have in common; an error where they differ.

    Args:
        what: what is compared, for instance "scores".
        ours: a number, an array or a tensor.
        theirs: the same of the other side.
        within: the largest difference that passes, relative to the largest number of the other side.
    """
    a, b = (np.asarray(side, dtype=np.float64) for side in (ours, theirs))
    if a.shape != b.shape:
        raise UnequalWork(f"{what} of shape {a.shape} and {b.shape}")
    away = float(np.abs(a - b).max(initial=0) / max(np.abs(b).max(initial=0), 1e-300))
    if not away <= within:
        raise UnequalWork(f"{what} differ by {away:.2g}; expected {within:.2g} or less")
    if a.ndim == 0:
        return f"{what}: {float(a):,.0f}"
    return f"{what}: equal" if away == 0 else f"{what}: within {away:.0e}"


def row(
    what: str, value: float, goal: str = "", floor: str = "", *, same: Sequence[str] = (), peer: str = "", **more: Any
) -> Row:
    """A line of a table; ``same`` are lines of `equal`, ``peer`` is a key of PEERS."""
    found = {"what": what, "ratio": float(value), "goal": goal, "floor": floor, **more}
    if same:
        found["same"] = list(same)
    if peer:
        found["peer"] = f"{PEERS[peer]} {version(PEERS[peer])}"
    if wrong := faults(found):
        raise UnequalWork("; ".join(wrong))
    return found


def faults(found: Row) -> list[str]:
    """What a row lacks: proof of equal work, the version of what it compares with, or the reason for its absence."""
    what = found["what"]
    if "skipped" in found or "withdrawn" in found:
        return [] if found.get("skipped") or found.get("withdrawn") else [f"{what}: no reason given"]
    wrong = []
    dists = [dist for name, dist in PEERS.items() if name in what]
    unchecked = found.get("unchecked", False) and not dists
    if " / " in what and not (found.get("same") or unchecked):
        wrong.append(f"{what}: compares two ways without proof that they do the same work")
    if dists and not found.get("same"):
        wrong.append(f"{what}: compares with {dists[0]} without proof of equal work")
    if any(not found.get("peer", "").startswith(f"{dist} ") for dist in dists):
        wrong.append(f"{what}: does not name the version of {dists[0]}")
    return wrong


def in_turns(ways: Sequence[Callable[[], object]], repeats: int, device: str = "cpu") -> list[list[float]]:
    """Seconds of every way, round by round: a busy moment falls on all. The first round warms up and does not count."""
    rounds = [[seconds(way, device) for way in ways] for _ in range(repeats + 1)]
    return [list(each) for each in zip(*rounds[1:])]


def fastest(ways: Sequence[Callable[[], object]], repeats: int, device: str = "cpu") -> list[float]:
    """The best time of every way, taken in turns."""
    return [min(each) for each in in_turns(ways, repeats, device)]


def seconds(work: Callable[[], object], device: str = "cpu") -> float:
    """How long a piece of work takes."""
    _wait(device)
    start = CLOCK()
    work()
    _wait(device)
    return CLOCK() - start


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


@dataclass
class Read:
    """What an encoder has read."""

    forwards: int = 0
    subwords: int = 0
    padded: int = 0


@contextmanager
def reading(encoder: torch.nn.Module) -> Iterator[Read]:
    """Count what an encoder reads inside."""
    read = Read()

    def count(module: torch.nn.Module, args: tuple, given: dict[str, Any]) -> None:
        ids = given["input_ids"] if "input_ids" in given else args[0]
        mask = given.get("attention_mask")
        read.forwards += 1
        read.padded += ids.numel()
        read.subwords += ids.numel() if mask is None else int(mask.sum())

    handle = encoder.register_forward_pre_hook(count, with_kwargs=True)
    try:
        yield read
    finally:
        handle.remove()


def subwords_of(encoder: torch.nn.Module, work: Callable[[], object]) -> int:
    """How many sub-words, without padding, an encoder reads in a piece of work."""
    with reading(encoder) as read:
        work()
    return read.subwords


def parameters_of(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def finish(rows: list[Row], file: Path | None) -> None:
    """Print the rows of a program, and write them to a file."""
    for each in rows:
        said = each.get("skipped") or f"{each['ratio']:10.4g}   goal {each['goal'] or '-':10}   {each['floor']}"
        print(f"{each['what']:72} {said}")
        for line in (each.get("peer"), *each.get("same", ())):
            if line:
                print(f"    {line}")
    if file:
        file.write_text(json.dumps(rows, indent=1))
