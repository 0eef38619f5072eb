"""What it costs to know a model by its content, beside one plain stream of sha256 over the same bytes.

    python benchmarks/identity.py [--gigabytes 1] [--json FILE]

The packaged MiniLM encoder and a random state dict, hashed twice each. Before the clock runs, a change of one number in
every tensor, one after the other, must change the identity: all bytes are read, as the plain stream reads them.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path
from typing import Any

import torch
from comparing import Row, equal, fastest, finish, row, seconds
from transformers import AutoModel

from headwise.io.identity import file_hash, identity, weights
from headwise.study.demo import encoder_folder

WIDTH = 4096  # of the square matrices of the random state dict


class Given(torch.nn.Module):
    """Random numbers as parameters."""

    def __init__(self, size: int):
        super().__init__()
        for number in range(max(1, size // (4 * WIDTH**2))):
            self.register_parameter(f"part{number}", torch.nn.Parameter(torch.randn(WIDTH, WIDTH)))


def bytes_of(model: torch.nn.Module) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())


def plain(model: torch.nn.Module) -> int:
    """All bytes through one sha256; how many there were."""
    sha, size = hashlib.sha256(), 0
    for tensor in model.state_dict().values():
        flat = tensor.detach().reshape(-1).view(torch.uint8).numpy()
        sha.update(memoryview(flat) if len(flat) else b"")
        size += len(flat)
    return size


def tensors_seen(model: torch.nn.Module) -> int:
    """In how many tensors the last number decides the identity."""
    before, seen = weights(model), 0
    for tensor in (t for t in model.state_dict().values() if t.numel()):
        last = tensor.view(-1)[-1].clone()
        tensor.view(-1)[-1] += 1
        seen += weights(model) != before
        tensor.view(-1)[-1] = last
    return seen


def model_rows(name: str, model: Any, goal: float, repeats: int) -> list[Row]:
    """Seconds of the first and of the next identity, and how much longer it takes than plain sha256."""
    tensors = [tensor for tensor in model.state_dict().values() if tensor.numel()]
    first = seconds(lambda: identity(model))
    again, floor = fastest([lambda: identity(model), lambda: plain(model)], repeats)
    same = [
        equal("tensors whose last number counts", tensors_seen(model), len(tensors)),
        equal("bytes", bytes_of(model), plain(model)),
    ]
    return [
        row(f"{name}: first identity, s", first, f"<= {goal:g}"),
        row(f"{name}: next identity, s", again, f"<= {goal:g}"),
        row(f"{name}: identity / plain sha256", again / floor, "", "1 (one core)", same=same),
    ]


def file_rows(repeats: int) -> list[Row]:
    """A file's hash, which is kept until its size or time changes."""
    file = encoder_folder() / "model.safetensors"
    first = seconds(lambda: file_hash(file))
    (again,) = fastest([lambda: file_hash(file)], repeats)
    return [row("weights file of MiniLM: first hash, s", first), row("the same: next hash, µs", 1e6 * again)]


def rows_of(gigabytes: float, repeats: int) -> list[Row]:
    minilm = AutoModel.from_pretrained(encoder_folder(), local_files_only=True).eval()
    large = Given(round(gigabytes * 1e9))
    size = bytes_of(large) / 1e9
    rows = model_rows("MiniLM", minilm, 0.5, repeats)
    rows += model_rows(f"{size:.2g} GB of random numbers", large, 3 * size, repeats)
    return rows + file_rows(repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    finish(rows_of(args.gigabytes, args.repeats), args.json)


if __name__ == "__main__":
    main()
