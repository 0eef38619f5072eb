"""Records named by everything they depend on: saved, found, listed, compared, exported (no torch)."""

from __future__ import annotations

import datetime
import io
import json
import math
import platform
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from headwise.errors import HeadwiseError, unknown
from headwise.io.display import Shown, table
from headwise.io.files import plain, write
from headwise.io.spreadsheet import csv_text
from headwise.io.storage import Folder, Packed, Record, flat, record_key, write_packed

PLAIN = ("model", "task", "tasks", "short", "name", "seed")  # of a configuration, what people know a record by


class Results(Shown):
    """A folder of records, or one file that `pack` wrote of such a folder, which is only read.

    Example:
        >>> results = Results("results")
        >>> key = results.save("importance", {"model": "m", "task": "sst2", "seed": 0}, {"examples": 100})
        >>> results[key].result["examples"]
        100
    """

    def __init__(self, root: str | Path):
        self.root = Path(root)
        self._store = Packed(self.root) if self.root.suffix == ".parquet" else Folder(self.root)

    @staticmethod
    def key(work: str, config: Mapping[str, Any], version: int = 1) -> str:
        """The name of a record: a hash of the work, the version of its results and all that determines them."""
        return record_key(work, config, version)

    def save(
        self,
        work: str,
        config: Mapping[str, Any],
        result: Mapping[str, Any],
        arrays: Mapping[str, np.ndarray] | None = None,
        beside: Mapping[str, Any] | None = None,
        version: int = 1,
    ) -> str:
        """Write a record and return its key; a record that exists is kept.

        Args:
            work: the registered name of what was done.
            config: all that determines the result (`headwise.io.identity`).
            result: plain values.
            arrays: stored beside them.
            beside: added to ``about``, which holds versions and time and is no part of the key.
            version: of the work's results, raised when a corrected work gives other results.
        """
        key = self.key(work, config, version)
        if key not in self._store:
            record = Record(key, work, version, plain(config), plain(result), {**about(), **(beside or {})})
            self._store.write(record, arrays or {})
        return key

    def find(self, work: str, config: Mapping[str, Any], version: int = 1) -> Record | None:
        """The record of this configuration, if there is one."""
        key = self.key(work, config, version)
        return self._store.read(key) if key in self._store else None

    def __getitem__(self, key: str) -> Record:
        """The record with this key, or with the only key that begins like this."""
        if len(key) == 16 and key.isalnum() and key in self._store:  # no need to list all others
            return self._store.read(key)
        names = self._store.keys()
        matching = [name for name in names if key and name.startswith(key)]
        if len(matching) != 1:
            raise unknown(f"record under {self.root}", key, names)
        return self._store.read(matching[0])

    def __iter__(self) -> Iterator[Record]:
        """In the order of creation, which copying does not change."""
        keys = self._store.keys()
        records = [self._store.read(key) for key in keys]
        yield from sorted(records, key=lambda record: (str(record.about.get("created", "")), record.key))

    def __len__(self) -> int:
        return len(self._store.keys())

    def pack(self, path: str | Path) -> Path:
        """Write all records into one Parquet file, a row each, that `Results` opens."""
        return write_packed(Path(path), list(self))

    def where(self, **wanted: Any) -> list[Record]:
        """The records whose work or configuration has these values (nested names with a dot)."""
        return [record for record in self if record.matches(wanted)]

    def compare(self, a: str, b: str) -> list[tuple[str, Any, Any]]:
        """What differs between two records' configurations and results: (name, in a, in b)."""
        left, right = (flat({"config": r.config, "result": r.result}) for r in (self[a], self[b]))
        names = sorted(set(left) | set(right))
        return [(n, left.get(n), right.get(n)) for n in names if not _equal(left.get(n), right.get(n))]

    def export(self, path: str | Path, records: Iterable[Record] | None = None) -> Path:
        """All records, or those given, as one table: csv or parquet by the file's ending; lists are cells of JSON.

        In csv, text that a spreadsheet would run as a formula has an apostrophe before it.
        """
        told = (
            {"key": r.key, "work": r.work, **flat({"config": r.config, "result": r.result})}
            for r in (self if records is None else records)
        )
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

    def to_records(self) -> list[dict[str, Any]]:
        """One flat record each: key, work, configuration and result, nested names with a dot."""
        return [{"key": r.key, "work": r.work, **flat({"config": r.config, "result": r.result})} for r in self]

    def _repr_html_(self) -> str:
        rows = [
            [r.key, r.work, r.about.get("created", ""), r.config.get("task") or r.config.get("model")] for r in self
        ]
        return table(["key", "work", "created", "of"], rows, f"{len(rows)} records in {self.root}")


def _column(values: list) -> list:
    """Values of one kind as they are, others as text."""
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) <= 1 or kinds == {int, float}:
        return [float(v) if v is not None and kinds == {int, float} else v for v in values]
    return [None if value is None else str(value) for value in values]


def differences(records: Sequence[Record]) -> list[str]:
    """For each record the fields of its configuration that not all records of its work share, the plainest first.

    Without hashes, which say nothing, and without the training that a record of a trained model repeats.
    """
    configs = [{name: _word(v) for name, v in flat(r.config).items() if _telling(name, v)} for r in records]
    many = Counter(record.work for record in records)
    alike = Counter((r.work, *item) for r, config in zip(records, configs) for item in config.items())
    return [
        ", ".join(
            f"{name.rpartition('.')[2]} {value}"
            for name, value in sorted(config.items(), key=lambda item: _rank(item[0]))
            if alike[record.work, name, value] < many[record.work]
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


def scores_of(record: Record) -> dict[str, float]:
    """The task scores that a result holds, by task; empty for one without."""
    result = record.result.get("scores") or record.result
    return {
        task: entry["value"]
        for task, entry in (result.items() if isinstance(result, Mapping) else ())
        if isinstance(entry, Mapping) and isinstance(entry.get("value"), float) and "metric" in entry
    }


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
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    return {"versions": plain(found), "created": now, "machine": platform.machine(), **_accelerated()}


def _accelerated() -> dict[str, str]:
    """On an accelerator: how it makes products of float32 numbers, whole (highest) or of ten bits (high)."""
    torch = sys.modules.get("torch")
    used = torch is not None and torch.cuda.is_initialized()
    return {"products": torch.get_float32_matmul_precision()} if used else {}  # type: ignore[union-attr]
