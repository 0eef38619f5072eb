"""A task: a name, an output structure (Kind), a source of rows (Source) and a metric."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from headwise.errors import HeadwiseError
from headwise.tasks.columns import Columns

if TYPE_CHECKING:  # keeps readers, metrics and the corpus free of torch
    import torch

Row = dict[str, Any]
SPLITS = ("train", "dev", "test")


class Hidden(NamedTuple):
    """The encoder's output for an output head: every token's state and one vector per example."""

    states: torch.Tensor  # (B, T, E)
    pooled: torch.Tensor  # (B, E)


@runtime_checkable
class Kind(Protocol):
    """One output structure: rows to tensors, tensors to scores, scores to answers.

    Kinds are frozen dataclasses. ``-1`` in a target column of a batch means absent. Losses are per example.
    """

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes; empty until they are read from training rows."""
        ...

    def ready(self, rows: Sequence[Row]) -> Kind:
        """The kind with labels read from training rows, if it had none."""
        ...

    def check(self, row: Row) -> None:
        """Raise HeadwiseError if a row does not fit this kind."""
        ...

    def encode(self, rows: Sequence[Row], tokenizer: Any, max_length: int) -> Columns:
        """Tokenize: ``input_ids`` (Ragged), optional ``token_type_ids``, targets; ``row`` for rows of several items."""
        ...

    def head(self, hidden: int) -> torch.nn.Module:
        """The output head: ``forward(hidden: Hidden, batch) -> scores``."""
        ...

    def loss(self, scores: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """One loss per example, ``(B,)``."""
        ...

    def decode(self, scores: Any, batch: dict[str, torch.Tensor]) -> list:
        """One prediction per example, in the form that the metric expects."""
        ...

    def gold(self, rows: Sequence[Row]) -> list:
        """The right answers, in the same form."""
        ...


@runtime_checkable
class ReadsFiles(Protocol):
    """A kind whose rows name files: the files' content is part of the identity of cached rows."""

    def files_of(self, rows: Sequence[Row]) -> list[Path]: ...


@runtime_checkable
class Source(Protocol):
    """Where the rows of a task come from."""

    def read(self, split: str) -> list[Row]:
        """The rows of a split; a HeadwiseError says what is missing and where it was searched."""
        ...

    @property
    def origin(self) -> str:
        """One line that describes where rows come from."""
        ...


def items_of(inputs: Any) -> Iterator[Any]:
    """The items of a sequence; a table (pandas, polars, pyarrow, datasets) is a sequence of its rows."""
    if isinstance(inputs, str | Mapping):
        return iter([inputs])
    if hasattr(inputs, "to_pylist"):  # pyarrow
        return iter(inputs.to_pylist())
    if hasattr(inputs, "iloc") and hasattr(inputs, "columns"):  # pandas
        return iter(inputs.to_dict("records"))
    if hasattr(inputs, "to_dicts"):  # polars
        return iter(inputs.to_dicts())
    if not isinstance(inputs, Iterable):
        raise HeadwiseError(f"inputs that are a {type(inputs).__name__}", "a list of texts, a DataFrame or a Dataset")
    return iter(inputs)


@dataclass(frozen=True)
class Rows:
    """Rows passed in Python: the simplest source. Tables whose columns are a row's fields are rows too."""

    train: Any = ()
    dev: Any = ()
    test: Any = ()

    def __post_init__(self) -> None:
        for split in ("train", "dev", "test"):
            if isinstance(rows := getattr(self, split), Iterator):  # splits are read more than once
                object.__setattr__(self, split, list(rows))

    def read(self, split: str) -> list[Row]:
        return list(items_of(getattr(self, split)))

    @property
    def origin(self) -> str:
        return "Python rows"


@dataclass(frozen=True)
class Task:
    """A task in a few lines of data.

    Example:
        >>> from headwise.tasks import Classify, Rows, Task
        >>> rows = [{"text": "good", "label": "yes"}, {"text": "bad", "label": "no"}]
        >>> Task("mine", Classify(("no", "yes")), Rows(train=rows, dev=rows), "accuracy").rows("dev")[0]["text"]
        'good'
    """

    name: str
    kind: Kind
    source: Source
    metric: str
    language: str = "en"
    sizes: dict[str, int] = field(default_factory=dict, compare=False)  # published sizes: a cut file is noticed
    note: str = ""
    _read: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)  # rows by split, and their source

    def __post_init__(self) -> None:
        if not callable(getattr(self.source, "read", None)):
            seen, hint = f"rows that are a {type(self.source).__name__}", f'Task.from_dataset("{self.name}", data)'
            raise HeadwiseError(seen, "Rows(train=..., dev=...)", hint)
        # Copies share what was read, so that no file is read twice, unless they have a source of their own.
        if self._read.setdefault("source", self.source) is not self.source:
            object.__setattr__(self, "_read", {"source": self.source})
        # Names become parts of file names; a path must not come in with one.
        if not 0 < len(self.name) <= 100 or set(self.name) & set("/\\\0\n\r\t") or self.name.strip(". ") == "":
            raise HeadwiseError(f"task name {self.name[:120]!r}", "a name of up to 100 letters without slashes")
        if re.fullmatch(r"none|mean|random \d+", self.name):  # rows and columns of the tables beside tasks
            raise HeadwiseError(
                f"task name {self.name!r}",
                "a name that is not a row of the report's tables",
                f"{self.name.split()[0]}_task",
            )

    @classmethod
    def from_dataset(cls, name: str, data: Any, columns: Any = (), language: str = "en") -> Task:
        """A task from a Dataset or DatasetDict of `datasets`, records, or a folder of `save_to_disk`.

        Columns are given in the order text, label (or text, text_b, label; tokens, tags; question, context, answers) or
        as field to column; where there is one way to read a table, they are found. A table without splits is cut
        80/10/10 by a seed.

        Example:
            >>> Task.from_dataset("mine", [{"text": f"{i}", "label": "ab"[i % 2]} for i in range(20)]).kind.labels
            ('a', 'b')
        """
        return import_module("headwise.tasks.own_files").from_data(name, data, columns, language)  # it imports Task

    @classmethod
    def from_pandas(cls, name: str, frame: Any, columns: Any = (), language: str = "en") -> Task:
        """A task from a DataFrame, or from one for each split, as `from_dataset`.

        Example:
            >>> Task.from_pandas("mine", {"train": frame, "dev": other}, ("review", "stars"))  # doctest: +SKIP
        """
        return cls.from_dataset(name, frame, columns, language)

    def rows(self, split: str) -> list[Row]:
        """The checked rows of ``train``, ``dev`` or ``test``, read once."""
        if split not in SPLITS:
            raise HeadwiseError(f"split {split!r}", "train, dev or test")
        if split not in self._read:
            rows = self.source.read(split)
            if not rows:
                raise HeadwiseError(f"task {self.name!r} has no {split} rows ({self.source.origin})")
            self._check(split, rows)
            self._read[split] = rows
        return self._read[split]

    @property
    def splits(self) -> list[str]:
        """The distinct splits that have rows (a test set that also serves as dev counts once)."""
        if isinstance(self.source, Rows):
            return [split for split in SPLITS if self.source.read(split)]
        return list(getattr(self.source, "splits", SPLITS))

    def _check(self, split: str, rows: Sequence[Row]) -> None:
        for number, row in enumerate(getattr(rows, "distinct", lambda: rows)()):  # of a large table, one per label
            try:
                self.kind.check(row)
            except HeadwiseError as error:
                raise HeadwiseError(f"{self.name}/{split} row {number}: {error}") from None

    def ready(self) -> Task:
        """The task with its label set, read from training rows if the kind has none."""
        if self.kind.labels:
            return self
        known = replace(self, kind=self.kind.ready(self.rows("train")))
        for split in SPLITS:  # rows that were read before the labels were known
            known._check(split, self._read.get(split, ()))
        return known


def label_set(rows: Iterable[Iterable[str]]) -> tuple[str, ...]:
    """The sorted set of labels in the rows, for kinds without given labels."""
    return tuple(sorted({label for labels in rows for label in labels}))
