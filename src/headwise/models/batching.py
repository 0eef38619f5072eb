"""Tokenized and cached data; seeded batches by length that can resume at any position."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headwise.errors import HeadwiseError, HeadwiseWarning
from headwise.io.files import cache_folder, digest, read_arrays, write_arrays
from headwise.io.identity import file_hash
from headwise.io.identity import tokenizer as tokenizer_hash
from headwise.tasks.columns import Columns, Ragged, from_arrays, stepped, to_arrays
from headwise.tasks.kinds.windows import longest_window, places
from headwise.tasks.task import Kind, ReadsFiles, Row, Task

FORMAT = 6  # version of the cache format
GRAIN = 16  # tokens: about 3 % more padding, eight shapes up to length 128
POOL = 64  # batches sorted by length together: saves padding, yet stays random
NUMBERS = {"pixel_values": 768, "input_features": 160, "input_values": 160}  # of an image or recording, for a token
FILLS = {"token_type_ids": 0}  # every other column is filled with -1, "absent"


@dataclass(frozen=True)
class Encoded:
    """An encoded split of a task, ready for batching."""

    columns: Columns
    pad: int
    rows: int  # rows of the task; long contexts (span QA) become several items
    part: tuple[Any, ...] = ()  # the task, split and limit that were encoded

    @cached_property
    def lengths(self) -> np.ndarray:
        """The length of each item: its tokens, an image's patches of 16 x 16, or about the frames of a recording."""
        ids = self.columns.get("input_ids")
        if isinstance(ids, Ragged):
            return ids.lengths
        read = [(column, NUMBERS[name]) for name, column in self.columns.items() if name in NUMBERS]
        tokens = [column[:1].size // per for column, per in read if isinstance(column, np.ndarray)]
        return np.full(len(self), max([1, *tokens]))

    @cached_property
    def _most(self) -> dict[str, int]:
        """The words of the longest item and the tokens of the longest window."""
        word_of, window = self.columns["word_of"], self.columns.get("window")
        assert isinstance(word_of, Ragged)
        longest = longest_window(window) if isinstance(window, Ragged) else 0
        return {"words": int(word_of.values.max(initial=-1)) + 1, "window": longest}

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def batch(self, items: Sequence[int] | np.ndarray, grain: int = 1) -> dict[str, torch.Tensor]:
        """The chosen items as padded tensors, with masks of tokens and words; widths are multiples of ``grain``.

        The operations of a pass depend on shapes only, so windows are identified by the positions of their tokens.
        """
        items = np.asarray(items, np.int64)
        out = {}
        for name, column in self.columns.items():
            if isinstance(column, Ragged):
                fill = self.pad if name == "input_ids" else FILLS.get(name, -1)
                array = column.padded(items, fill, grain=grain)
            else:
                array = column[items]
            out[name] = torch.from_numpy(array.astype(np.int64) if array.dtype.kind in "iub" else array)
        if "input_ids" in out:
            out["attention_mask"] = _mask(torch.from_numpy(self.lengths[items]), out["input_ids"].shape[1])
        if "word_of" in out:
            words = out["word_of"].amax(1) + 1
            out["word_mask"] = _mask(words, stepped(int(words.max()), grain, self._most["words"]))
        if "window" in out:
            out["window"] = places(out["window"], grain, self._most["window"])
        return out


def _mask(lengths_B: torch.Tensor, width: int) -> torch.Tensor:
    return (torch.arange(width) < lengths_B[:, None]).long()


def encode(
    task: Task,
    split: str,
    tokenizer: Any,
    max_length: int = 128,
    limit: int | None = None,
    chosen: Sequence[int] | np.ndarray | None = None,
) -> Encoded:
    """Tokenize a split, or read it from the cache.

    Args:
        task: a task whose labels are known (``task.ready()``).
        split: train, dev or test.
        tokenizer: the model's tokenizer (an image processor for pictures).
        max_length: maximum number of tokens.
        limit: use a seeded sample of this many rows.
        chosen: only these rows, in this order.
    """
    rows = task.rows(split)
    rows = sample(rows, limit) if chosen is None else [rows[i] for i in chosen]
    path = _place(task.kind, rows, tokenizer, max_length)
    columns = path and _cached(path)
    if columns is None:
        columns = task.kind.encode(rows, tokenizer, max_length)
        if path:
            _keep(path, columns)
    _tell_cut(f"{task.name}/{split}", columns.get("cut"), max_length)
    part = (task.name, split, limit if chosen is None else "chosen rows")
    return Encoded(columns, pad=getattr(tokenizer, "pad_token_id", None) or 0, rows=len(rows), part=part)


def _place(kind: Kind, rows: list[Row], tokenizer: Any, max_length: int) -> Path | None:
    """The cache file of this content; None if the kind's code or the tokenizer cannot be identified."""
    code = _code(type(kind))
    rules = tokenizer_hash(tokenizer)
    if code is None or rules is None:
        return None
    files = [file_hash(file) for file in kind.files_of(rows)] if isinstance(kind, ReadsFiles) else []
    return cache_folder("tokens") / f"{digest(FORMAT, code, kind, rows, files, rules, max_length)}.safetensors"


@lru_cache(maxsize=64)  # hash of a class when first used: its file may be edited while the code runs
def _code(kind: type) -> str | None:
    """The hash of the modules that define a user's kind; FORMAT identifies the built-in kinds."""
    parts = []
    for each in kind.__mro__[:-1]:
        if each.__module__.partition(".")[0] == "headwise":
            continue
        module = sys.modules.get(each.__module__)
        if (
            module is None or getattr(module, each.__qualname__, None) is not each
        ):  # defined in a function, or unpickled
            return None
        try:
            parts.append([each.__module__, each.__qualname__, inspect.getsource(module)])
        except (OSError, TypeError):  # defined interactively
            return None
    return digest(parts)


def _keep(path: Path, columns: Columns) -> None:
    """Write to the cache; failures only warn."""
    try:
        write_arrays(path, to_arrays(columns))
    except OSError as error:
        warnings.warn(f"tokens are not cached: {error}", HeadwiseWarning, stacklevel=3)


def _tell_cut(name: str, lost: Any, max_length: int) -> None:
    """Warn about rows longer than the model accepts."""
    if lost is not None and (longer := int((lost > 0).sum())):
        words = f"{longer} of {len(lost)} rows of {name} are longer than {max_length} tokens and were truncated"
        warnings.warn(
            f"{words}; use a larger max_length (--max-length in training) to keep more", HeadwiseWarning, stacklevel=3
        )


def _cached(path: Path) -> Columns | None:
    try:
        return from_arrays(read_arrays(path)[0]) if path.exists() else None
    except PermissionError:
        return None
    except HeadwiseError as error:
        warnings.warn(f"{error}; tokenizing again", HeadwiseWarning, stacklevel=3)
        return None


def sample(rows: list[Row], limit: int | None, seed: int = 0) -> list[Row]:
    """A seeded sample of rows in their original order; all rows if there are fewer."""
    if limit is not None and limit < 1:
        raise HeadwiseError(f"a sample of {limit} rows", "1 or more")
    if limit is None or limit >= len(rows):
        return list(rows)
    chosen = np.random.default_rng(seed).choice(len(rows), limit, replace=False)
    return [rows[i] for i in np.sort(chosen)]


@dataclass(frozen=True)
class Order:
    """Batches of a split, by number of items or by number of padded tokens."""

    lengths: np.ndarray
    size: int = 32
    tokens: int | None = None

    def epoch(self, seed: int | Sequence[int]) -> list[np.ndarray]:
        """Every item once, in seeded random batches of similar lengths."""
        rng = np.random.default_rng(seed)
        items = rng.permutation(len(self.lengths))
        batches: list[np.ndarray] = []
        for start in range(0, len(items), self._pool):
            pool = items[start : start + self._pool]
            pool = pool[np.argsort(self.lengths[pool], kind="stable")]
            batches += self._cut(pool)
        return [batches[i] for i in rng.permutation(len(batches))]

    def plain(self) -> list[np.ndarray]:
        """Every item once, longest first, for evaluation."""
        return self._cut(np.argsort(-self.lengths, kind="stable"))

    @cached_property
    def _pool(self) -> int:
        """Items sorted together."""
        size = self.size if self.tokens is None else max(1, int(self.tokens // max(1.0, self._widths.mean())))
        return POOL * size

    @cached_property
    def _widths(self) -> np.ndarray:
        """Lengths padded for an accelerator, so that few shapes recur."""
        return -(-self.lengths // GRAIN) * GRAIN

    def _cut(self, items: np.ndarray) -> list[np.ndarray]:
        if self.tokens is None:
            return [items[i : i + self.size] for i in range(0, len(items), self.size)]
        items = items[np.argsort(-self._widths[items], kind="stable")]  # the first is the widest
        batches, start = [], 0
        while start < len(items):
            rows = max(1, self.tokens // max(1, int(self._widths[items[start]])))
            batches.append(items[start : start + rows])
            start += rows
        return batches


class Stream:
    """Endless training batches of a task, which can resume at any position."""

    def __init__(self, data: Encoded, order: Order, seed: Sequence[int]):
        if not len(data):
            raise HeadwiseError("a task with no training items", "at least one")
        self.data, self.order, self.seed = data, order, list(seed)
        self.epoch, self.position = 0, 0
        self._batches = order.epoch([*self.seed, 0])

    def __len__(self) -> int:
        """Batches in one epoch."""
        return len(self._batches)

    def next(self) -> np.ndarray:
        """The items of the next batch."""
        if self.position >= len(self._batches):
            self.epoch, self.position = self.epoch + 1, 0
            self._batches = self.order.epoch([*self.seed, self.epoch])
        self.position += 1
        return self._batches[self.position - 1]

    def state(self) -> dict[str, int]:
        return {"epoch": self.epoch, "position": self.position}

    def load_state(self, state: dict[str, int]) -> None:
        self.epoch, self.position = state["epoch"], state["position"]
        self._batches = self.order.epoch([*self.seed, self.epoch])


def batches(data: Encoded, tokens: int, device: Any = "cpu") -> Iterator[tuple[np.ndarray, dict[str, torch.Tensor]]]:
    """Every item once, longest first: indices and tensors."""
    for items in Order(data.lengths, tokens=tokens).plain():
        yield items, {name: tensor.to(device) for name, tensor in data.batch(items).items()}
