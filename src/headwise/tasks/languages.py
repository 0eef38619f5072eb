"""Tasks in several languages: the task of a task-language pair, and how well a tokenizer covers a language.

No torch.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from headwise.errors import HeadwiseWarning, unknown
from headwise.io.files import plain
from headwise.tasks.readers.shape import row_texts
from headwise.tasks.task import Task

MANY = 3.0  # pieces a word from which on a tokenizer spells rather than reads
UNSPACED = ("ja", "th", "zh")  # written without spaces: every letter counts as a word
SETS = ("shared", "task", "language", "pair")


def base(task: Task) -> str:
    """A pair's task: its name without the language.

    Example:
        >>> from headwise.tasks import get
        >>> base(get("corpus.sentiment.es")), base(get("xnli_en"))
        ('corpus.sentiment', 'xnli')
    """
    parts = re.split(r"([._])", task.name)
    remaining = [i for i in range(0, len(parts), 2) if parts[i] != task.language]
    return (
        "".join(parts[i] + (parts[i + 1] if i != remaining[-1] else "") for i in remaining) if remaining else task.name
    )


def key(task: Task, each: str) -> str:
    """The group of a pair: one for all, its task, its language, or the pair itself."""
    if each not in SETS:
        raise unknown("way to group pairs", each, SETS)
    return {"shared": "all", "task": base(task), "language": task.language, "pair": task.name}[each]


def share(tasks: Iterable[Task]) -> dict[str, str]:
    """For `MultiTaskModel(share=...)`: pairs of one task and kind use the first one's output head."""
    first: dict[tuple, str] = {}
    shared = {}
    for task in tasks:
        task = task.ready()
        shared[task.name] = first.setdefault((base(task), str(plain(task.kind))), task.name)
    return {name: owner for name, owner in shared.items() if owner != name}


def joined(tasks: Iterable[Task]) -> list[Task]:
    """The tasks with label sets joined over the languages of each task, so that its languages share an output head.

    A language may lack a label that another has: tags of treebanks differ, and a small file may not hold all classes.
    """
    prepared = [task.ready() for task in tasks]
    labels: dict[tuple[str, type], dict[str, None]] = {}
    for task in prepared:
        every = labels.setdefault((base(task), type(task.kind)), {})
        every.update(dict.fromkeys(getattr(task.kind, "labels", ())))
    return [_with_labels(task, tuple(labels[base(task), type(task.kind)])) for task in prepared]


def _with_labels(task: Task, labels: tuple[str, ...]) -> Task:
    kind: Any = task.kind
    return task if not labels or kind.labels == labels else replace(task, kind=replace(kind, labels=labels))


@dataclass(frozen=True)
class Coverage:
    """How a tokenizer reads a task's texts."""

    task: str
    language: str
    words: int
    pieces_per_word: float
    unknown_rate: float  # of the pieces

    @property
    def poor(self) -> bool:
        return self.pieces_per_word > MANY

    def __str__(self) -> str:
        numbers = f"{self.pieces_per_word:.2f} pieces a word, {self.unknown_rate:.1%} unknown"
        return f"{self.task} ({self.language}): {numbers} ({self.words} words)"


def coverage(task: Task, tokenizer: Any, rows: int = 200, split: str = "train") -> Coverage:
    """Pieces per word and the fraction of unknown ones over a task's first rows; warns above three per word."""
    texts = [text for row in task.rows(split)[:rows] for text in row_texts(row).values()]
    words = sum(len("".join(parts) if task.language in UNSPACED else parts) for parts in map(str.split, texts))
    # Whole texts: to many tokenizers a word without the space before it is a rare one.
    ids = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"] if texts else []
    pieces = sum(map(len, ids))
    unknown_id = getattr(tokenizer, "unk_token_id", None)
    lost = sum(piece == unknown_id for text in ids for piece in text)
    measured = Coverage(task.name, task.language, words, pieces / max(1, words), lost / max(1, pieces))
    if measured.poor:
        warnings.warn(f"the tokenizer covers a language badly: {measured}", HeadwiseWarning, stacklevel=2)
    return measured
