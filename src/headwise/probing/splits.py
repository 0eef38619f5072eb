"""Which rows train, select and test a probe; no sentence is in two splits."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headwise.errors import HeadwiseError, HeadwiseWarning, unknown
from headwise.io.files import digest
from headwise.measuring.evaluate import chance
from headwise.models.batching import sample
from headwise.tasks.kinds.classify import Classify, Regress
from headwise.tasks.readers.shape import normalized
from headwise.tasks.task import Row, Task

SHARED = ("drop", "refuse", "keep")
HELD_OUT = 0.1  # of the training rows, where a task has no test rows and its dev rows judge


@dataclass(frozen=True)
class Splits:
    """The rows of a task for probing, and their labels as numbers: classes, or grades from 0 to 1."""

    task: Task
    rows: Mapping[str, list[Row]]
    notes: tuple[str, ...]  # what was changed or is doubtful

    @property
    def graded(self) -> bool:
        return isinstance(self.task.kind, Regress)

    @property
    def classes(self) -> int:
        return 0 if self.graded else len(self.task.kind.labels)

    def labels(self, split: str) -> np.ndarray:
        gold = np.asarray(self.task.kind.gold(self.rows[split]))
        if isinstance(self.task.kind, Regress):
            return ((gold - self.task.kind.low) / (self.task.kind.high - self.task.kind.low)).astype(np.float64)
        return gold.astype(np.int64)

    @property
    def chance(self) -> float:
        """Accuracy of the most frequent test class; 0 for a correlation."""
        return 0.0 if self.graded else chance(self.labels("test").tolist())

    @property
    def key(self) -> str:
        """A hash of the rows."""
        return digest(
            {split: [[r["text"], r.get("text_b"), r["label"]] for r in rows] for split, rows in self.rows.items()}
        )

    @property
    def sizes(self) -> dict[str, int]:
        return {split: len(rows) for split, rows in self.rows.items()}


def to_probe(task: Task | str) -> Task:
    """A task, or the task of this name, if it can be probed; no rows are read."""
    from headwise import tasks

    chosen: Task = tasks.get(task) if isinstance(task, str) else task
    if not isinstance(chosen.kind, Classify | Regress):
        raise HeadwiseError(f"{chosen.name} is of kind {type(chosen.kind).__name__}", "Classify or Regress")
    return chosen


def splits(task: Any, *, limit: int | None = None, shared: str = "drop", seed: int = 0) -> Splits:
    """The rows of a task, checked.

    Args:
        task: a task of kind Classify or Regress, or its name.
        limit: maximum number of training rows; the other splits have at most a fifth of it.
        shared: what to do with rows whose text is also in a later split (test, then dev): drop them, refuse the task,
            or keep them.
        seed: of the rows held out from training if a task has no test rows.
    """
    if shared not in SHARED:
        raise unknown("way with shared sentences", shared, SHARED)
    task = to_probe(task).ready()
    rows, notes = _sides(task, seed)
    rows = {
        "train": sample(rows["train"], limit),
        **{s: sample(rows[s], limit and -(-limit // 5)) for s in ("dev", "test")},
    }
    rows, repeated = _apart(task.name, rows, shared)
    made = Splits(task, rows, tuple([*notes, *repeated]))
    return Splits(task, rows, (*made.notes, *_doubts(made)))


def _sides(task: Task, seed: int) -> tuple[dict[str, list[Row]], list[str]]:
    there = task.splits
    if {"train", "dev", "test"} <= set(there):
        return {split: task.rows(split) for split in ("train", "dev", "test")}, []
    judge = next((split for split in ("test", "dev") if split in there), None)
    if "train" not in there or judge is None:
        raise HeadwiseError(f"{task.name} has {', '.join(there) or 'no rows'}", "training rows, and dev or test rows")
    train = task.rows("train")
    order = np.random.default_rng([seed, 5]).permutation(len(train))
    held = set(order[: max(1, round(HELD_OUT * len(train)))].tolist())
    dev = [row for i, row in enumerate(train) if i in held]
    rest = [row for i, row in enumerate(train) if i not in held]
    note = f"no {'test' if judge == 'dev' else 'dev'} rows: {judge} judges, {len(dev)} training rows choose"
    return {"train": rest, "dev": dev, "test": task.rows(judge)}, [note]


def _text(row: Row) -> tuple[str, str]:
    return normalized(row["text"]), normalized(row.get("text_b") or "")


def _apart(name: str, rows: dict[str, list[Row]], shared: str) -> tuple[dict[str, list[Row]], list[str]]:
    """Rows without those whose text is also in a later split."""
    later: set[tuple[str, str]] = set()
    kept, notes = {}, []
    for split in ("test", "dev", "train"):
        texts = [_text(row) for row in rows[split]]
        clean = [row for row, text in zip(rows[split], texts) if text not in later]
        if lost := len(texts) - len(clean):
            note = f"{lost} of {len(texts)} {split} rows of {name} also have their text in a later split"
            if shared == "refuse":
                raise HeadwiseError(note, "splits without shared texts", 'shared="drop"')
            notes.append(f"{note}: {'dropped' if shared == 'drop' else 'kept'}")
            warnings.warn(HeadwiseWarning(notes[-1]), stacklevel=4)
        kept[split] = clean if shared == "drop" else rows[split]
        later |= set(texts)
    return {split: kept[split] for split in ("train", "dev", "test")}, notes


def _doubts(changes: Splits) -> list[str]:
    """Raise for tasks that cannot be probed; warn about those that can only be probed poorly."""
    for split, rows in changes.rows.items():
        if not rows:
            raise HeadwiseError(f"{changes.task.name} has no {split} rows left", "rows in every split")
    if changes.graded:
        if np.ptp(changes.labels("train")) == 0:
            raise HeadwiseError("identical training grades", "grades that differ")
        return []
    counts = Counter(changes.labels("train").tolist())
    if len(counts) < 2:
        raise HeadwiseError("training rows of one class only", "two classes or more")
    if changes.classes > len(changes.rows["train"]):
        raise HeadwiseError(
            f"{changes.classes} classes for {len(changes.rows['train'])} training rows", "more rows than classes"
        )
    names = changes.task.kind.labels
    rare = [names[c] for c, n in counts.items() if n == 1]
    absent = [name for c, name in enumerate(names) if c not in counts]
    notes = [f"classes with one training row: {_few(rare)}"] if rare else []
    return notes + ([f"classes with no training row: {_few(absent)}"] if absent else [])


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
