"""Short names for the layouts that many tasks share, so that a task of the catalog is a few lines (no torch)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from headwise.tasks.readers.sources import Layout
from headwise.tasks.task import SPLITS

Columns = Mapping[str, Any]
NONE: Mapping = MappingProxyType({})


def one(text: str | tuple[str, ...], label: str = "label") -> dict[str, Any]:
    """The columns of a text and its label."""
    return {"text": text, "label": label}


def two(text: str | tuple[str, ...], text_b: str | tuple[str, ...], label: str = "label") -> dict[str, Any]:
    """The columns of a pair of texts and its label."""
    return {"text": text, "text_b": text_b, "label": label}


PACKED = two("text_a", "text_b")


def sizes(train: int | None = None, dev: int | None = None, test: int | None = None) -> dict[str, int]:
    return {split: size for split, size in zip(SPLITS, (train, dev, test)) if size is not None}


def per_split(pattern: str, train: str = "train", dev: str = "dev", test: str = "test") -> dict[str, str]:
    """The same path for each split, with the split's word filled in."""
    return {split: pattern.replace("{split}", word) for split, word in zip(SPLITS, (train, dev, test)) if word}


def parquet(
    folder: str,
    columns: Columns = PACKED,
    without: str = "",
    size: tuple = (),
    odd: Mapping = NONE,
    where: Mapping = NONE,
) -> Layout:
    """``<folder>/<split>.parquet``; ``odd`` maps a split to a file name (or path) that differs.

    Rows where the column ``without`` is null are skipped; rows without the values of ``where`` belong to another task.
    """

    def file(split: str) -> str:
        name = f"{folder}/{split}.parquet"
        if split not in odd:
            return name
        return f"{name}|{odd[split] if '/' in odd[split] else f'{folder}/{odd[split]}'}.parquet"

    files = {split: file(split) for split in SPLITS}
    left_out = {without: (None,)} if without else {}
    return Layout("parquet", files, columns, where=dict(where), leave_out=left_out, sizes=sizes(*size))


def by_index(layout: Layout, labels: Sequence[str]) -> Layout:
    """A layout whose numbers are indices into ``labels``, although these are numbers themselves."""
    return replace(layout, names={str(place): label for place, label in enumerate(labels)})


def table(
    files: Mapping, columns: Columns, *header: str, format: str = "tsv", names: Mapping = NONE, **rest: Any
) -> Layout:
    """Text columns; ``header`` names them if the file has no header line."""
    return Layout(format, files, columns, dict(names), {"header": header} if header else {}, **rest)


def glue(folder: str, columns: Columns, *header: str, dev: str = "dev", lenient: bool = False) -> Layout:
    """GLUE's folders of tab-separated files; its test sets carry no labels, so there is no test split."""
    files = {"train": f"{folder}/train.tsv", "dev": f"{folder}/{dev}.tsv"}
    return Layout("tsv", files, columns, options={"header": header or None, "lenient": lenient})


def hub(path: str, config: str | None, columns: Columns, branch: bool = False, **rest: Any) -> Layout:
    """A data set of the Hub; ``branch`` reads its parquet branch, for data sets that used to need a script."""
    options = {"path": path, "config": config, "parquet_branch": branch}
    files = rest.pop("files", {"train": "train", "dev": "validation", "test": "test"})
    return Layout("hub", files, columns, options=options, **rest)
