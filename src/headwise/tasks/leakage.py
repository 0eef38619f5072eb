"""Texts that training and evaluation share, within a task, across tasks and across languages (no torch)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from headwise.errors import HeadwiseError
from headwise.tasks.readers.shape import normalized, row_texts
from headwise.tasks.task import SPLITS, Row, Rows, Task


@dataclass(frozen=True)
class Overlap:
    """The number of rows of a held-out split with a field that also occurs in another split."""

    seen: str  # "task/split"
    held: str
    field: str  # the held-out row's text, or "pair" for both texts, or "item" for the same item in another language
    rows: int
    of: int
    example: str
    used: bool = True  # by a study, which trains on train and measures on dev

    @property
    def leak(self) -> bool:
        """Whether training data overlap with test data."""
        return self.seen.endswith("/train")

    def __str__(self) -> str:
        kind = "LEAK  " if self.leak else "shared"
        share = f"{self.rows} of {self.of} ({self.rows / self.of:.1%})"
        return f"{kind} {share} {self.field} of {self.held} in {self.seen}: {self.example[:60]!r}"


@dataclass(frozen=True)
class Leakage:
    """All overlaps, leaks first, largest first."""

    overlaps: tuple[Overlap, ...]

    @property
    def leaks(self) -> tuple[Overlap, ...]:
        return tuple(overlap for overlap in self.overlaps if overlap.leak)

    def __str__(self) -> str:
        return "\n".join(map(str, self.overlaps)) or "no text is shared"

    def to_record(self) -> list[dict]:
        return [asdict(overlap) | {"leak": overlap.leak} for overlap in self.overlaps]

    def to_trust(self) -> dict[str, Any]:
        """For a study: leaks, texts shared by evaluations, unused splits; and the worst of each."""
        lists = {
            "leakage": [overlap for overlap in self.leaks if overlap.used],
            "shared": [overlap for overlap in self.overlaps if overlap.used and not overlap.leak],
            "unused": [overlap for overlap in self.overlaps if not overlap.used],
        }
        worst = {name: asdict(pairs[0]) for name, pairs in lists.items() if pairs}
        return {name: list(map(str, pairs)) for name, pairs in lists.items()} | {"worst_overlap": worst}


@dataclass(frozen=True)
class _Part:
    """One split of one task, with its keys."""

    name: str
    split: str
    rows: list[Row]
    keys: list[dict[str, str]]
    texts: frozenset[str]
    used: bool

    @classmethod
    def of(cls, task: Task, split: str) -> _Part:
        rows = task.rows(split)
        keys = [_keys(row) for row in rows]
        texts = frozenset(key for row in keys for field, key in row.items() if key and field not in ("pair", "item"))
        measured = "dev" if "dev" in task.splits else "test"  # which then serves as dev
        return cls(f"{task.name}/{split}", split, rows, keys, texts, split in ("train", measured))

    def column(self, field: str) -> set[str]:
        return {row[field] for row in self.keys if field in row}


def _keys(row: Row) -> dict[str, str]:
    keys = {field: normalized(text) for field, text in row_texts(row).items()}
    if "text_b" in keys:
        keys["pair"] = f"{keys['text']}\t{keys['text_b']}"
    if "item" in row:
        keys["item"] = row["item"]
    return keys


def leakage(tasks: Sequence[Task]) -> Leakage:
    """Exact overlap, after normalization, of every held-out split with every other split of these tasks.

    Example:
        >>> print(leakage([get("sst2"), get("mr")]))  # doctest: +SKIP
        LEAK   582 of 872 (66.7%) text of sst2/dev in mr/train: ...
    """
    parts = [_Part.of(task, split) for task in tasks for split in task.splits]
    overlaps = []
    for i, first in enumerate(parts):
        for other in parts[i + 1 :]:
            ways = [
                list(_overlaps(seen, held)) for seen, held in ((first, other), (other, first)) if held.split != "train"
            ]
            if "train" not in (first.split, other.split):  # the same fact twice: keep the side that is covered more
                ways = [max(ways, key=lambda way: max((o.rows / o.of for o in way), default=0))]
            overlaps += [overlap for way in ways for overlap in way]
    return Leakage(tuple(sorted(overlaps, key=lambda o: (not o.leak, -o.rows / o.of, o.held, o.seen, o.field))))


def _overlaps(seen: _Part, held: _Part) -> Iterator[Overlap]:
    for field in dict.fromkeys(field for row in held.keys for field in row):
        known = seen.column(field) if field in ("pair", "item") else seen.texts
        hits = [i for i, row in enumerate(held.keys) if row.get(field) and row[field] in known]
        if hits:
            texts = row_texts(held.rows[hits[0]])
            example = texts.get(field) or " | ".join(texts.values())
            yield Overlap(seen.name, held.name, field, len(hits), len(held.rows), example, seen.used and held.used)


def split_by_item(
    tasks: Sequence[Task], seed: int = 0, shares: tuple[float, float, float] = (0.8, 0.1, 0.1)
) -> list[Task]:
    """Split parallel tasks again, so that an item is in the same split in every language.

    Example:
        >>> english, spanish = split_by_item([get("xquad_en"), get("xquad_es")])  # doctest: +SKIP
    """
    pooled = {task.name: [row for split in task.splits for row in task.rows(split)] for task in tasks}
    for name, rows in pooled.items():
        if any("item" not in row for row in rows):
            raise HeadwiseError(f"task {name!r} has rows without an item", "parallel tasks such as xnli_en and xnli_es")
    items = sorted({row["item"] for rows in pooled.values() for row in rows})
    random.Random(seed).shuffle(items)
    ends = [round(len(items) * sum(shares[: i + 1])) for i in range(3)]
    side = {item: next(s for s, end in zip(SPLITS, ends) if i < end) for i, item in enumerate(items)}
    return [_resplit(task, pooled[task.name], side) for task in tasks]


def _resplit(task: Task, rows: Sequence[Row], side: dict[str, str]) -> Task:
    parts = {split: [row for row in rows if side[row["item"]] == split] for split in SPLITS}
    return replace(task, source=Rows(**parts), sizes={}, note="split anew by item")
