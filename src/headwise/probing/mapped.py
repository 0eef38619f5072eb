"""Large tensors in one safetensors file, written in place and read as a memory map, never entirely in memory.

A file carries the hash of its inputs and of its own bytes. A file of another model, or one that was truncated or
modified, is refused.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from headwise.errors import HeadwiseError

DTYPES = {"fp32": (torch.float32, "F32"), "fp16": (torch.float16, "F16"), "bf16": (torch.bfloat16, "BF16")}
Shapes = Mapping[str, tuple[int, ...]]


def nbytes(shapes: Shapes, precision: str) -> int:
    return sum(math.prod(shape) for shape in shapes.values()) * DTYPES[precision][0].itemsize


@contextmanager
def written(path: Path, shapes: Shapes, precision: str, about: dict[str, str]) -> Iterator[dict[str, torch.Tensor]]:
    """Empty tensors that become the file ``path`` if the block succeeds, and are discarded if it fails.

    ``about`` needs a ``key``; the block may add a few short entries.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    size, free = nbytes(shapes, precision), shutil.disk_usage(path.parent).free
    if size > free:
        raise HeadwiseError(f"features of {size:,} bytes and {free:,} free in {path.parent}", "enough free space")
    scratch = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        start = len(_header(shapes, precision, about))
        with scratch.open("wb") as file:
            _reserve(file.fileno(), start + size)
        yield _tensors(scratch, start, shapes, precision, "r+")
        whole = _header(shapes, precision, about | {"bytes": _digest(scratch, start)}, start)
        with scratch.open("rb+") as file:  # what was written through the map is seen here: one page cache
            file.write(whole)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


def _reserve(file: int, size: int) -> None:
    """Allocate the space now: if the disk filled up later, writing through the map would kill the process silently."""
    os.posix_fallocate(file, 0, size) if hasattr(os, "posix_fallocate") else os.truncate(file, size)


def read(path: Path, key: str) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Read the tensors of a file and their metadata; HeadwiseError if its key differs or it is incomplete."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(length, 1 << 20)))
        about = header.pop("__metadata__")
        shapes = {name: tuple(entry["shape"]) for name, entry in header.items()}
        precision = about["precision"]
        expected = nbytes(shapes, precision) + 8 + length
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise HeadwiseError(f"{path} is not a readable feature file ({error})") from None
    if about.get("key") != key:
        raise HeadwiseError(f"{path} was computed from other inputs (key {about.get('key')})", f"key {key}")
    if path.stat().st_size != expected:
        raise HeadwiseError(f"{path} has {path.stat().st_size:,} bytes", f"{expected:,}")
    if about.get("bytes") != _digest(path, 8 + length):
        raise HeadwiseError(f"{path} was modified after it was written")
    return _tensors(path, 8 + length, shapes, precision, "c"), about


def _header(shapes: Shapes, precision: str, about: Mapping[str, str], size: int | None = None) -> bytes:
    """The header of a safetensors file; without a size, with room for a hash and a few more entries."""
    entries: dict = {"__metadata__": {"precision": precision, **about}}
    start = 0
    for name, shape in shapes.items():
        end = start + math.prod(shape) * DTYPES[precision][0].itemsize
        entries[name] = {"dtype": DTYPES[precision][1], "shape": list(shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(entries).encode()
    size = size or 8 + (len(text) + 512) // 8 * 8
    return (size - 8).to_bytes(8, "little") + text.ljust(size - 8)


def _tensors(path: Path, start: int, shapes: Shapes, precision: str, mode) -> dict[str, torch.Tensor]:
    """Views of the file; with mode "c", readers write to private copies only."""
    dtype, out = DTYPES[precision][0], {}
    for name, shape in shapes.items():
        flat = np.memmap(path, np.uint8, mode, start, (math.prod(shape) * dtype.itemsize,))
        out[name] = torch.from_numpy(flat).view(dtype).view(shape)
        start += flat.nbytes
    return out


def _digest(path: Path, start: int) -> str:
    sha = hashlib.sha256()
    with path.open("rb") as file:
        file.seek(start)
        while block := file.read(1 << 22):
            sha.update(block)
    return sha.hexdigest()
