"""Tasks as a trained model remembers them: what they are, and where their rows were (no torch until one is read)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from headwise.errors import HeadwiseError, HeadwiseWarning
from headwise.io.files import plain
from headwise.io.identity import file_hash
from headwise.tasks.lookup import KINDS, get, is_known, kind_class
from headwise.tasks.readers.sources import Files, Layout
from headwise.tasks.task import SPLITS, Kind, Row, Task


@dataclass(frozen=True)
class Absent:
    """The source of a task whose rows are not here: a model can predict without them, not be measured."""

    task: str
    origin: str

    def read(self, split: str) -> list[Row]:
        raise HeadwiseError(
            f"no rows of task {self.task!r} here (it was trained on: {self.origin})",
            "its data",
            f'model.add_data("{self.task}", "FILE:text,label"), or --task {self.task}=FILE:text,label',
        )

    @property
    def splits(self) -> list[str]:
        return []


def described(task: Task) -> dict[str, Any]:
    """A task in plain values, without its rows; its own files by name, columns and hash."""
    about = {"kind": plain(task.kind), "metric": task.metric, "language": task.language, "origin": task.source.origin}
    source = task.source
    if isinstance(source, Files):
        files = {path.name: file_hash(path) for split in (*SPLITS, "all") for path in source.paths(split)}
        place = {"root": str(source.root.absolute()), "kind": source.kind, "labels": list(source.labels)}
        about["files"] = {**place, "layout": plain(source.layout), "sha256": files}
    return about


def restored(name: str, about: Mapping[str, Any], data: str | Path | None = None) -> Task:
    """The task a model was trained on, with the labels it had: from its files, the catalog, or without rows."""
    kind = _kind(name, about["kind"])
    files = about.get("files") or {}
    source = _files(name, files) if files.get("root") else None  # on the Hub no folder is named
    if source is None and is_known(name):
        return replace(get(name, data), kind=kind, metric=about["metric"])
    return Task(name, kind, source or Absent(name, about["origin"]), about["metric"], about["language"])


def _kind(name: str, stored: Mapping[str, Any]) -> Kind:
    types = {place.partition(":")[2]: kind for kind, place in KINDS.items()}
    if stored["type"] not in types:
        seen = f"task {name!r} is of the kind {stored['type']!r}, which is not one of headwise"
        raise HeadwiseError(seen, "the task itself", "MultiTaskModel.load(path, tasks=[...])")
    kind = kind_class(types[stored["type"]])
    values = {field.name: stored[field.name] for field in fields(kind) if field.name in stored}
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in values.items()})


def _files(name: str, stored: Mapping[str, Any]) -> Files | None:
    """The task's own files where they still are; a changed one is used, with a warning."""
    layout = stored["layout"]
    parts = {field.name: layout[field.name] for field in fields(Layout) if field.name in layout}
    parts["files"] = {split: _tuples(file) for split, file in parts["files"].items()}
    parts["columns"] = {field: _tuples(column) for field, column in parts["columns"].items()}
    source = Files(Layout(**parts), Path(stored["root"]), stored["kind"], tuple(stored["labels"]))
    now = {path.name: file_hash(path) for split in (*SPLITS, "all") for path in source.paths(split)}
    if changed := [file for file, digest in stored["sha256"].items() if file in now and now[file] != digest]:
        seen = f"{', '.join(changed)} of task {name!r} changed since the model was trained; its labels stay"
        warnings.warn(seen, HeadwiseWarning, stacklevel=4)
    return source if now else None


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
