"""Where rows come from: files below a folder, or the Hugging Face Hub (no torch)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from headwise.errors import HeadwiseError, missing_extra
from headwise.tasks.labels import LabelNames
from headwise.tasks.readers.formats import Record, formats
from headwise.tasks.readers.shape import SHAPES, normalized, row_texts
from headwise.tasks.readers.tables import TextTable, text_table
from headwise.tasks.task import SPLITS, Row

PARQUET_BRANCH = "refs/convert/parquet"  # where the Hub keeps what used to need a loading script


@dataclass(frozen=True)
class Layout:
    """How a task lies on disk or on the Hub: which file is which split, and which columns make a row.

    Attributes:
        files: split to path below the data folder (or to the Hub's split). ``a|b`` is the first that is there, a
            tuple or ``*`` several in a row; the split ``all`` is cut into 80, 10 and 10 hundredths.
        columns: field of the row to column of the file; a tuple of columns makes one text.
        names: a file's own words for the labels.
        where: column to the value a record must have to belong, or a tuple of them, others being counted; a dict gives
            one value per split.
        leave_out: column to values whose records are skipped and counted.
        sizes: the rows of this edition, where it is not the published one.
        hidden: a split whose labels publishers may keep, to the tabs in its first line where they do not; files
            without labels are passed over.
    """

    format: str
    files: Mapping[str, str | tuple[str, ...]]
    columns: Mapping[str, str | tuple[str, ...]]
    names: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    where: Mapping[str, Any] = field(default_factory=dict)
    leave_out: Mapping[str, tuple] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    hidden: Mapping[str, int] = field(default_factory=dict)

    def column_names(self) -> list[str]:
        """Every column a reader must bring."""
        parts = [
            part for column in self.columns.values() for part in (column if isinstance(column, tuple) else (column,))
        ]
        return list(dict.fromkeys([*parts, *self.where, *self.leave_out]))

    def belongs(self, record: Record, split: str) -> bool:
        wanted = (
            (column, want.get(split) if isinstance(want, Mapping) else want) for column, want in self.where.items()
        )
        return all(
            record.get(column) in value if isinstance(value, tuple) else record.get(column) == value
            for column, value in wanted
        )


def rows_of(
    records: Iterable[tuple[str, Record | None]],
    layout: Layout,
    split: str,
    kind: str,
    labels: Sequence[str],
    counts: Counter,
) -> list[Row]:
    """Records as checked rows; an error names the record's place, skipped and empty rows are counted."""
    shape, names = SHAPES[kind], LabelNames(labels, layout.names)
    rows = []
    for place, record in records:
        if record is None:
            counts["broken lines skipped"] += 1
            continue
        if layout.where and not layout.belongs(record, split):
            counts["skipped"] += any(isinstance(want, tuple) for want in layout.where.values())
            continue
        if layout.leave_out and any(record.get(name) in values for name, values in layout.leave_out.items()):
            counts["skipped"] += 1
            continue
        try:
            row = shape(record, layout.columns, names)
        except HeadwiseError as error:
            raise HeadwiseError(f"{place}: {error.seen}", error.expected, error.hint) from None
        except (TypeError, ValueError, LookupError, AttributeError) as error:  # lists for numbers, and the like
            expected = f"the columns of the kind {kind}: {', '.join(layout.column_names())}"
            raise HeadwiseError(f"{place}: {type(error).__name__} {error}", expected) from None
        counts["empty"] += any(not text.strip() for text in row_texts(row).values())
        rows.append(row)
    return rows


def portions(rows: Sequence[Row], seed: int = 0) -> dict[str, Any]:
    """Rows cut 80/10/10 by a seed; rows that share a text, however it is written, stay together, so nothing leaks.

    Where that would join most rows (one question asked of every text), rows with all texts in common do.
    """
    group = rows.groups if isinstance(rows, TextTable) else None
    group = _numbered(_groups(rows, len(SPLITS)), len(rows)) if group is None else group
    sizes = np.bincount(group)
    order = np.random.default_rng(seed).permutation(len(sizes))
    large = 10 * sizes[order] > len(rows)  # what is larger than a side is for training
    order = np.concatenate([order[~large], order[large]])
    tenth = max(1, round(len(order) / 10))
    side = np.zeros(len(sizes), np.int8)
    side[order[: tenth * (len(order) > 1)]] = 1  # of one or two groups, training comes first
    side[order[tenth : 2 * tenth * (len(order) > 2)]] = 2
    places = {split: np.flatnonzero(side[group] == i) for i, split in enumerate(SPLITS)}
    if isinstance(rows, TextTable):
        return {split: rows.taken(chosen) for split, chosen in places.items()}
    return {split: [rows[int(i)] for i in chosen] for split, chosen in places.items()}


def _numbered(groups: list[list[int]], rows: int) -> np.ndarray:
    """The number of every row's group."""
    numbers = np.empty(rows, np.int64)
    for number, members in enumerate(groups):
        numbers[members] = number
    return numbers


def halves(rows: Sequence[Row], seed: int = 0) -> dict[str, list[Row]]:
    """Rows cut into train and dev, half each, in the same way."""
    order = _groups(rows, 2)
    random.Random(seed).shuffle(order)
    order.sort(key=len, reverse=True)
    sides: dict[str, list[list[int]]] = {"dev": [], "train": []}
    sizes = dict.fromkeys(sides, 0)
    for group in order:
        smaller = min(sizes, key=lambda side: sizes[side])
        sides[smaller].append(group)
        sizes[smaller] += len(group)
    return {split: [rows[i] for i in sorted(i for group in groups for i in group)] for split, groups in sides.items()}


def _groups(rows: Sequence[Row], least: int) -> list[list[int]]:
    """The numbers of rows that stay together, in the order of their first rows."""
    seen = [_keys(row) for row in rows]
    order, whole = linked(seen), linked([[tuple(texts)] for texts in seen])
    return whole if 10 * len(order) < len(whole) or len(order) < least else order


def _keys(row: Row) -> list[str]:
    """What rows are the same by: their texts, in whatever spelling, or their pictures."""
    texts = {name: text for name, text in row_texts(row).items() if text.strip()}
    return [text if name == "path" else normalized(text) or text for name, text in texts.items()]


def linked(keys: Sequence[Sequence[Hashable]]) -> list[list[int]]:
    """Numbers in groups, those that have a key in common together, also through others.

    Example:
        >>> linked(["ab", "c", "bd", "d"])
        [[0, 2, 3], [1]]
    """
    root, first = list(range(len(keys))), {}

    def find(i: int) -> int:
        while root[i] != i:
            root[i] = i = root[root[i]]
        return i

    for i, key in ((i, key) for i, each in enumerate(keys) for key in each):
        one, other = find(i), find(first.setdefault(key, i))
        root[max(one, other)] = min(one, other)
    groups: dict[int, list[int]] = {}
    for i in range(len(keys)):
        groups.setdefault(find(i), []).append(i)
    return list(groups.values())


@dataclass(frozen=True)
class Files:
    """Rows from files below a folder.

    Example:
        >>> layout = Layout("csv", {"train": "reviews.csv"}, {"text": "text", "label": "stars"})
        >>> source = Files(layout, Path("mine"), "classify", ("1", "2", "3", "4", "5"))
    """

    layout: Layout
    root: Path
    kind: str
    labels: tuple[str, ...] = ()
    counts: dict[str, Counter] = field(default_factory=dict, repr=False, compare=False)

    def paths(self, split: str) -> list[Path]:
        """The files of a split that are there."""
        given = self.layout.files.get(split, ())
        paths = [path for pattern in ([given] if isinstance(given, str) else given) for path in self._find(pattern)]
        tabs = self.layout.hidden.get(split, 0)
        return [path for path in paths if not tabs or _tabs(path) >= tabs]

    def _find(self, pattern: str) -> list[Path]:
        if (self.root / pattern).is_file():  # one's own file may have any name
            return [self.root / pattern]
        for choice in pattern.split("|"):
            paths = sorted(self.root.glob(choice)) if "*" in choice else [self.root / choice]
            if paths := [path for path in paths if path.exists()]:
                return paths
        return []

    def records(self, split: str) -> Iterator[tuple[str, Record | None]]:
        """The records of a split, each with its place in a file."""
        paths = self.paths(split)
        if not paths:
            looked = self.layout.files.get(split)
            expected = f"{looked} in {self.root}" if looked else f"one of the splits {', '.join(self.layout.files)}"
            raise HeadwiseError(f"no {split} file", expected, "give the folder by --data or HEADWISE_DATA")
        reader = formats[self.layout.format]
        options = dict(self.layout.options)
        if reader.columns:
            options["columns"] = self.layout.column_names()
        for path in paths:
            for line, record in reader.read(path, **options):
                yield f"{path}:{line}", record

    def read(self, split: str) -> list[Row]:
        if "all" in self.layout.files and split not in self.layout.files:
            return self._portions[split]
        return self._read(split)

    def _read(self, split: str) -> Any:
        self.counts[split], layout = Counter(), self.layout
        simple = not (layout.where or layout.leave_out or layout.names or layout.options)
        if simple and (paths := self.paths(split)):
            table = text_table(paths, layout.format, layout.columns, self.kind, self.labels)
            if table is not None:
                return table
        return rows_of(self.records(split), self.layout, split, self.kind, self.labels, self.counts[split])

    @cached_property
    def _portions(self) -> dict[str, Any]:
        return portions(self._read("all"))

    @property
    def splits(self) -> list[str]:
        """The splits whose files are there."""
        whole = SPLITS if self.paths("all") else ()
        return [split for split in SPLITS if split in whole or self.paths(split)]

    @property
    def origin(self) -> str:
        first = next((paths[0] for split in (*SPLITS, "all") if (paths := self.paths(split))), self.root)
        return f"{self.layout.format} files, {first.parent}"


def _tabs(path: Path) -> int:
    """How many tabs the first line of a file has that is not empty."""
    with path.open("rb") as file:
        return next((line.count(b"\t") for line in file if line.strip()), 0)


@dataclass(frozen=True)
class Hub:
    """Rows from the Hugging Face Hub, through ``datasets`` (the extra ``hub``); never runs code from there."""

    layout: Layout
    kind: str
    labels: tuple[str, ...] = ()
    before: str = ""  # what was tried first, for the error
    counts: dict[str, Counter] = field(default_factory=dict, repr=False, compare=False)

    def records(self, split: str) -> Iterator[tuple[str, Record | None]]:
        wanted = self.layout.files.get(split)
        if wanted is None:
            raise HeadwiseError(f"{self.origin} has no {split} split", f"one of {', '.join(self.layout.files)}")
        try:
            data = _load(str(wanted), **self.layout.options)
        except HeadwiseError as error:
            raise HeadwiseError(f"{self.before}{error.seen}", error.expected, error.hint) from error
        coded = {name: words for name, feature in dict(data.features).items() if (words := feature_names(feature))}
        for number, record in enumerate(data.to_list(), 1):
            for name, words in coded.items():
                record[name] = _decoded(record[name], words)
            yield f"{self.origin} {wanted} row {number}", record

    def read(self, split: str) -> list[Row]:
        self.counts[split] = Counter()
        return rows_of(self.records(split), self.layout, split, self.kind, self.labels, self.counts[split])

    @property
    def splits(self) -> list[str]:
        return [split for split in SPLITS if split in self.layout.files]

    @property
    def origin(self) -> str:
        config = self.layout.options.get("config")
        return f"Hugging Face Hub, {self.layout.options['path']}" + (f" ({config})" if config else "")


def _load(split: str, path: str, config: str | None = None, parquet_branch: bool = False) -> Any:
    try:
        datasets = import_module("datasets")
    except ImportError:
        purpose, local = f"reading {path} from the Hugging Face Hub", "give a local folder by --data FOLDER"
        raise missing_extra("datasets", "hub", purpose, local) from None
    place = {"data_dir": config, "revision": PARQUET_BRANCH} if parquet_branch else {"name": config}
    try:
        return datasets.load_dataset(path, split=split, **place)
    except Exception as error:  # whatever fails in there, the user's next step is the same
        hint = "check the network, or give a local folder by --data or HEADWISE_DATA"
        raise HeadwiseError(
            f"{path} could not be read from the Hub ({type(error).__name__}: {error})", "", hint
        ) from error


def feature_names(feature: Any) -> list[str] | None:
    """The label names of a ClassLabel, or of a list of them."""
    return getattr(feature, "names", None) or getattr(getattr(feature, "feature", None), "names", None)


def _decoded(value: Any, words: list[str]) -> Any:
    if isinstance(value, list):
        return [_decoded(item, words) for item in value]
    return words[value] if isinstance(value, int) and 0 <= value < len(words) else value
