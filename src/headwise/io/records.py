"""Records identified by everything they depend on: saved, listed, compared and exported (no torch)."""

from __future__ import annotations

import datetime
import io
import json
import math
import platform
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from headwise.errors import HeadwiseError, unknown
from headwise.io.display import Shown, table
from headwise.io.files import folder, plain, read_arrays, read_json, write
from headwise.io.storage import ARRAYS, JSON, Folder, Record, flat, opened, record_key, write_packed
from headwise.io.text import csv_text

PLAIN = ("model", "task", "tasks", "short", "name", "seed")  # fields of a configuration by which people know a record


class Results(Shown):
    """A folder of records, or a read-only file written by `pack`.

    Example:
        >>> results = Results("results")
        >>> key = results.save("importance", {"model": "m", "task": "sst2", "seed": 0}, {"examples": 100})
        >>> results[key].result["examples"]
        100
    """

    def __init__(self, root: str | Path):
        self.root = Path(root)
        self._store = opened(self.root)

    @staticmethod
    def key(work: str, config: Mapping[str, Any], version: int = 1) -> str:
        """The key of a record: a hash of the work, its version and everything that determines the result."""
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
        """Write a record and return its key; an existing record is not overwritten.

        Args:
            work: registered name of the work.
            config: everything that determines the result (`headwise.io.identity`).
            result: plain values.
            arrays: stored next to the result.
            beside: added to ``about`` (versions and time), which is not part of the key.
            version: version of the work; it is raised when a fix changes results.
        """
        key = self.key(work, config, version)
        if key not in self._store:
            record = Record(key, work, version, plain(config), plain(result), {**about(), **(beside or {})})
            self._store.write(record, arrays or {})
        return key

    def find(self, work: str, config: Mapping[str, Any], version: int = 1) -> Record | None:
        """The record of this configuration, or None."""
        key = self.key(work, config, version)
        return self._store.read(key) if key in self._store else None

    def __getitem__(self, key: str) -> Record:
        """The record with this key; an unambiguous prefix is enough."""
        if len(key) == 16 and key.isalnum() and key in self._store:  # no need to list the others
            return self._store.read(key)
        names = self._store.keys()
        matching = [name for name in names if key and name.startswith(key)]
        if len(matching) != 1:
            raise unknown(f"record under {self.root}", key, names)
        return self._store.read(matching[0])

    def __contains__(self, key: str) -> bool:
        return key in self._store

    def __iter__(self) -> Iterator[Record]:
        """All records by time of creation, which survives copying."""
        keys = self._store.keys()
        records = [self._store.read(key) for key in keys]
        yield from sorted(records, key=lambda record: (str(record.about.get("created", "")), record.key))

    def __len__(self) -> int:
        return len(self._store.keys())

    def pack(self, path: str | Path) -> Path:
        """Write all records to one Parquet file that `Results` can open."""
        return write_packed(Path(path), list(self))

    def where(self, **wanted: Any) -> list[Record]:
        """The records whose work or configuration has these values (dots separate nested names)."""
        select = getattr(self._store, "select", None)
        matching = [record for record in self if record.matches(wanted)] if select is None else list(select(wanted))
        return sorted(matching, key=lambda record: (str(record.about.get("created", "")), record.key))

    def compact(self) -> int:
        """Move the records, a folder each, into a few Parquet files in the same folder; how many were moved.

        Everything else stays as it was: new records are folders again, and `Results` finds both.
        """
        compact = getattr(self._store, "compact", None)
        return 0 if compact is None else compact()

    def compare(self, a: str, b: str) -> list[tuple[str, Any, Any]]:
        """The differences between two records' configurations and results: (name, in a, in b)."""
        left, right = (flat({"config": r.config, "result": r.result}) for r in (self[a], self[b]))
        names = sorted(set(left) | set(right))
        return [(n, left.get(n), right.get(n)) for n in names if not _equal(left.get(n), right.get(n))]

    def export(self, path: str | Path, records: Iterable[Record] | None = None) -> Path:
        """Write all records, or these, as one table: csv or parquet by suffix; lists become JSON cells.

        In csv, text that a spreadsheet would run as a formula is prefixed with an apostrophe.
        """
        described = (
            {"key": r.key, "work": r.work, **flat({"config": r.config, "result": r.result})}
            for r in (self if records is None else records)
        )
        rows = [{n: json.dumps(plain(v)) if isinstance(v, list) else v for n, v in row.items()} for row in described]
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
        """One flat dict per record: key, work, configuration and result, with dotted names."""
        return [{"key": r.key, "work": r.work, **flat({"config": r.config, "result": r.result})} for r in self]

    def _repr_html_(self) -> str:
        rows = [
            [r.key, r.work, r.about.get("created", ""), r.config.get("task") or r.config.get("model")] for r in self
        ]
        return table(["key", "work", "created", "of"], rows, f"{len(rows)} records in {self.root}")


def _column(values: list) -> list:
    """Values of one type unchanged, mixed ones as text."""
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) <= 1 or kinds == {int, float}:
        return [float(v) if v is not None and kinds == {int, float} else v for v in values]
    return [None if value is None else str(value) for value in values]


def differences(records: Sequence[Record]) -> list[str]:
    """For each record, the configuration fields that not all records of its work share, most readable first.

    Hashes are omitted, and so is the training that a record of a trained model repeats.
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
    """The scores in a result, by task; empty if there are none."""
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
    except PackageNotFoundError:  # running from a source tree
        return "0+source"


def about() -> dict[str, Any]:
    """Versions and time."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    return {"versions": dict(_versions()), "created": now, "machine": platform.machine(), **_accelerated()}


@cache
def _versions() -> dict[str, str]:
    versions = {"headwise": code_version(), "python": platform.python_version()}
    for package in ("torch", "transformers", "accelerate", "numpy", "scipy", "scikit-learn"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "absent"
    return versions


def _accelerated() -> dict[str, str]:
    """The precision of float32 products on an accelerator: full (highest) or TF32 (high)."""
    torch = sys.modules.get("torch")
    used = torch is not None and torch.cuda.is_initialized()
    return {"products": torch.get_float32_matmul_precision()} if used else {}  # type: ignore[union-attr]


PLACES = {  # module paths in format 1
    **{f"headwise.works:{name}": name for name in ("train", "lesions", "study")},
    **{
        f"headwise.recipes.{paper}.works:{name}": f"{paper}.{name}"
        for paper, names in {
            "anatomy": "inventory probed tuned",
            "mesh": "train apart",
            "specialization": (
                "distilled estimator few_shot inventory likeness mismatched mtdnn onto relabelling rounds submission"
            ),
            "stem_cell": "probed trained",
        }.items()
        for name in names.split()
    },
}


def upgrade(root: Path, into: Path, works: Mapping[str, str], known: Mapping[str, str] | None = None) -> dict[str, str]:
    """Convert the records of format 1 in one folder into another; returns new keys by old keys.

    Format 1 identified a record by module path and package version. Keys inside configurations are replaced as well.

    Args:
        root: the records to read; they are not changed.
        into: folder for the upgraded records.
        works: registered names by ``module:function``.
        known: new values of other hashes in configurations, by old value.
    """
    old = {path.parent.name: read_json(path) for path in sorted(root.glob(f"*/{JSON}"))}
    for key, record in old.items():
        if not isinstance(record, dict) or record.get("format") != 1:
            raise HeadwiseError(f"the record {root / key} is not of format 1", "records that were not upgraded before")

    @cache
    def config_of(key: str) -> dict[str, Any]:
        return replaced(old[key]["config"])

    def key_of(key: str) -> str:
        return record_key(works.get(old[key]["kind"], old[key]["kind"]), config_of(key))

    def replaced(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: replaced(part) for name, part in value.items()}
        if isinstance(value, list):
            return [replaced(part) for part in value]
        if isinstance(value, str):
            return key_of(value) if value in old else (known or {}).get(value, value)
        return value

    store = Folder(into)
    for key, record in old.items():
        file = root / key / ARRAYS
        work = works.get(record["kind"], record["kind"])
        new = Record(key_of(key), work, 1, config_of(key), replaced(record["result"]), record.get("about", {}))
        store.write(new, read_arrays(file)[0] if file.exists() else {})
    return {key: key_of(key) for key in old}


def upgrade_run(root: Path) -> int:
    """Upgrade the records of a run in place and rename the models and checkpoints named after their keys."""
    with folder(root, replace=True) as scratch:
        keys = upgrade(root, scratch, PLACES)
    for beside in (root.parent / "models", root.parent / "work"):
        for old, new in keys.items():
            if (beside / old).exists() and not (beside / new).exists():
                (beside / old).rename(beside / new)
    return len(keys)
