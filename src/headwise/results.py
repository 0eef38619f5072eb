"""Records named by everything they depend on; JSON and safetensors, written whole or not at all (no torch)."""

from __future__ import annotations

import datetime
import io
import json
import math
import platform
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from headwise.display import table
from headwise.errors import HeadwiseError, unknown
from headwise.spreadsheet import csv_text
from headwise.store import digest, folder, plain, read_arrays, read_json, write, write_arrays, write_json

FORMAT = 1
PLAIN = ("model", "task", "tasks", "short", "name", "seed")  # of a configuration, what people know a record by


@dataclass(frozen=True)
class Record:
    """One result: what it is, all that determined it, and what came out."""

    key: str
    kind: str
    config: dict[str, Any]
    result: dict[str, Any]
    about: dict[str, Any]  # versions, time: not part of the name
    path: Path

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        file = self.path / "arrays.safetensors"
        return read_arrays(file)[0] if file.exists() else {}


class Results:
    """A folder of records.

    Example:
        >>> results = Results("results")
        >>> key = results.save("importance", {"model": "m", "task": "sst2", "seed": 0}, {"examples": 100})
        >>> results[key].result["examples"]
        100
    """

    def __init__(self, root: str | Path):
        self.root = Path(root)

    @staticmethod
    def key(kind: str, config: Mapping[str, Any]) -> str:
        """The name of a record: a hash of its kind, its configuration and the code's version."""
        return digest(kind, config, code_version())

    def save(
        self,
        kind: str,
        config: Mapping[str, Any],
        result: Mapping[str, Any],
        arrays: Mapping[str, np.ndarray] | None = None,
        beside: Mapping[str, Any] | None = None,
    ) -> str:
        """Write a record; one that is there already stays as it is. ``beside`` is told in ``about``, as time is."""
        key = self.key(kind, config)
        path = self.root / key
        if (path / "record.json").exists():
            return key
        with folder(path, replace=True) as scratch:
            if arrays:
                write_arrays(scratch / "arrays.safetensors", arrays)
            record = {"format": FORMAT, "key": key, "kind": kind, "config": config, "result": result}
            record["about"] = {**about(), **(beside or {})}
            write_json(scratch / "record.json", record)
        return key

    def find(self, kind: str, config: Mapping[str, Any]) -> Record | None:
        """The record of this configuration, if it was made before."""
        key = self.key(kind, config)
        return _read(self.root / key) if (self.root / key / "record.json").exists() else None

    def __getitem__(self, key: str) -> Record:
        """The record of a key, or of the beginning of one."""
        whole = len(key) == 16 and key.isalnum()  # then there is no need to look at all others
        if whole and (self.root / key / "record.json").exists():
            return _read(self.root / key)
        names = [path.name for path in self._folders()]
        found = [name for name in names if key and name.startswith(key)]
        if len(found) != 1:
            raise unknown(f"record under {self.root}", key, names)
        return _read(self.root / found[0])

    def __iter__(self) -> Iterator[Record]:
        """In the order in which they were made, also where they were copied to."""
        found = (_read(path) for path in self._folders())
        yield from sorted(found, key=lambda record: (str(record.about.get("created", "")), record.key))

    def _folders(self) -> list[Path]:
        """Where records are; a name that begins with a dot is one that was never finished."""
        return [p.parent for p in self.root.glob("*/record.json") if not p.parent.name.startswith(".")]

    def where(self, **wanted: Any) -> list[Record]:
        """The records whose kind or configuration has these values (nested names with a dot)."""
        return [record for record in self if all(_matches(record, name, value) for name, value in wanted.items())]

    def compare(self, a: str, b: str) -> list[tuple[str, Any, Any]]:
        """What differs between two records' configurations and results: (name, in a, in b)."""
        left, right = (flat({"config": r.config, "result": r.result}) for r in (self[a], self[b]))
        names = sorted(set(left) | set(right))
        return [(n, left.get(n), right.get(n)) for n in names if not _equal(left.get(n), right.get(n))]

    def export(self, path: str | Path) -> Path:
        """All records as one table, csv or parquet by the file's ending; lists are cells of JSON.

        In csv, text that a spreadsheet would run as a formula has an apostrophe before it.
        """
        told = ({"key": r.key, "kind": r.kind, **flat({"config": r.config, "result": r.result})} for r in self)
        rows = [{n: json.dumps(plain(v)) if isinstance(v, list) else v for n, v in row.items()} for row in told]
        names = list(dict.fromkeys(name for row in rows for name in row))
        path = Path(path)
        if path.suffix == ".csv":
            return write(path, csv_text([names, *([row.get(name) for name in names] for row in rows)]))
        if path.suffix == ".parquet":
            import pyarrow as pa
            import pyarrow.parquet as pq

            buffer = io.BytesIO()
            columns = {name: _column([row.get(name) for row in rows]) for name in names}
            pq.write_table(pa.table(columns), buffer)
            return write(path, buffer.getvalue())
        raise HeadwiseError(f"{path} ends in {path.suffix!r}", ".csv or .parquet")

    def _repr_html_(self) -> str:
        rows = [
            [r.key, r.kind, r.about.get("created", ""), r.config.get("task") or r.config.get("model")] for r in self
        ]
        return table(["key", "kind", "created", "of"], rows, f"{len(rows)} records in {self.root}")


def _read(path: Path) -> Record:
    data = read_json(path / "record.json")
    kinds = {"key": str, "kind": str, "config": dict, "result": dict}
    wrong = [n for n, kind in kinds.items() if not isinstance(data, dict) or not isinstance(data.get(n), kind)]
    if wrong or data["key"] != path.name or not isinstance(data.get("about", {}), dict):
        raise HeadwiseError(f"{path} is no record: {', '.join(wrong) or 'key'} missing or not as written")
    return Record(data["key"], data["kind"], data["config"], data["result"], data.get("about", {}), path)


def _column(values: list) -> list:
    """Values of one kind as they are, others as text."""
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) <= 1 or kinds == {int, float}:
        return [float(v) if v is not None and kinds == {int, float} else v for v in values]
    return [None if value is None else str(value) for value in values]


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """A nested dict as dotted names; lists stay whole."""
    if isinstance(value, Mapping):
        out: dict[str, Any] = {}
        for name, item in value.items():
            out |= flat(item, f"{prefix}.{name}" if prefix else str(name))
        return out
    return {prefix: value}


def told_apart(records: Sequence[Record]) -> list[str]:
    """For each record what its configuration has and not all others of its kind have, the plainest names first.

    Hashes tell nobody anything, and a record of a trained model repeats how that was trained.
    """
    configs = [{name: _word(v) for name, v in flat(r.config).items() if _telling(name, v)} for r in records]
    many = Counter(record.kind for record in records)
    alike = Counter((r.kind, *item) for r, config in zip(records, configs) for item in config.items())
    return [
        ", ".join(
            f"{name.rpartition('.')[2]} {value}"
            for name, value in sorted(config.items(), key=lambda item: _rank(item[0]))
            if alike[record.kind, name, value] < many[record.kind]
        )
        for record, config in zip(records, configs)
    ]


def _rank(name: str) -> tuple[int, int]:
    last = name.rpartition(".")[2]
    return PLAIN.index(last) if last in PLAIN else len(PLAIN), len(name)


def _telling(name: str, value: Any) -> bool:
    is_hash = isinstance(value, str) and len(value) == 16 and set(value) <= set("0123456789abcdef")
    return value is not None and value is not False and not is_hash and ".training." not in f".{name}"


def _word(value: Any) -> str:
    return "+".join(map(str, value)) if isinstance(value, list) else str(value)


def _matches(record: Record, name: str, value: Any) -> bool:
    if name == "kind":
        return value in (record.kind, record.kind.rpartition(":")[2])  # lists show works of one's own by the latter
    seen = flat(record.config).get(name)
    return seen == value or str(seen) == str(value)


def _equal(a: Any, b: Any) -> bool:
    return a == b or (isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b))


def code_version() -> str:
    """The version of headwise."""
    try:
        return version("headwise")
    except PackageNotFoundError:  # run from a source tree
        return "0+source"


def about() -> dict[str, Any]:
    """Versions and time, for the record."""
    found = {"headwise": code_version(), "python": platform.python_version()}
    for package in ("torch", "transformers", "accelerate", "numpy", "scipy", "scikit-learn"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "absent"
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"versions": plain(found), "created": now, "machine": platform.machine(), **_accelerated()}


def _accelerated() -> dict[str, str]:
    """On an accelerator: how it makes products of float32 numbers, whole (highest) or of ten bits (high)."""
    torch = sys.modules.get("torch")
    used = torch is not None and torch.cuda.is_initialized()
    return {"products": torch.get_float32_matmul_precision()} if used else {}  # type: ignore[union-attr]
