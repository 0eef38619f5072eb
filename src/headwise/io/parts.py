"""Records by the million in few files: a folder of new ones, each in its own folder, and Parquet files of the others.

A part holds its records in the order of their keys, in small groups, so that one record is read without the others.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from headwise.errors import HeadwiseError
from headwise.io.files import digest, locked
from headwise.io.storage import COLUMNS, Folder, Packed, Record, packed_row, unpacked, write_rows

PART = 20_000  # records in one file
GROUP = 200  # records that are read to get at one of them
FOLDER = "parts"


class Parts:
    """Records under a folder, new ones as ``KEY/record.json``, others as rows of ``parts/*.parquet``."""

    def __init__(self, root: Path):
        self.root, self.loose = root, Folder(root)
        self._seen: tuple[str, ...] = ()
        self._keys: dict[str, np.ndarray] = {}
        self._open: dict[str, Any] = {}

    def _files(self) -> dict[str, np.ndarray]:
        """The sorted keys of every part; read again when there are other parts."""
        folder = self.root / FOLDER
        names = tuple(sorted(p.name for p in folder.glob("*.parquet"))) if folder.is_dir() else ()
        if names != self._seen:
            self._keys = {name: self._keys.get(name, _keys_of(folder / name)) for name in names}
            self._seen, self._open = names, {}
        return self._keys

    def _place(self, key: str) -> tuple[str, int] | None:
        for name, keys in self._files().items():
            at = int(np.searchsorted(keys, key.encode()))
            if at < len(keys) and keys[at] == key.encode():
                return name, at
        return None

    def __contains__(self, key: str) -> bool:
        return key in self.loose or self._place(key) is not None

    def keys(self) -> list[str]:
        stored = [key.decode() for keys in self._files().values() for key in keys.tolist()]
        return list(dict.fromkeys([*self.loose.keys(), *stored])) if stored else self.loose.keys()

    def write(self, record: Record, arrays: Mapping[str, np.ndarray]) -> None:
        self.loose.write(record, arrays)

    def read(self, key: str) -> Record:
        place = None if key in self.loose else self._place(key)
        if place is None:
            return self.loose.read(key)
        name, at = place
        file = self._opened(name)
        rows = file.read_row_group(at // GROUP, columns=list(COLUMNS)).slice(at % GROUP, 1).to_pylist()
        return unpacked(rows[0], self.root / FOLDER / name / key)

    def _opened(self, name: str) -> Any:
        import pyarrow.parquet as pq

        if name not in self._open:
            self._open[name] = pq.ParquetFile(self.root / FOLDER / name)
        return self._open[name]

    def select(self, wanted: Mapping[str, Any]) -> Iterator[Record]:
        """The records with these values; in parts, only rows whose text can have them are opened."""
        loose = self.loose.keys()
        for key in loose:
            if (record := self.loose.read(key)).matches(wanted):
                yield record
        known = set(loose)
        for name in self._files():
            for row in _candidates(self._opened(name), wanted):
                record = unpacked(row, self.root / FOLDER / name / row["key"])
                if record.key not in known and record.matches(wanted):
                    yield record

    def compact(self) -> int:
        """Move all loose records into parts; how many. Readers find a record at any time."""
        with locked(self.root):
            keys = sorted(self.loose.keys())
            for start in range(0, len(keys), PART):
                chosen = keys[start : start + PART]
                rows = (packed_row(self.loose.read(key)) for key in chosen)
                write_rows(self.root / FOLDER / f"{digest(chosen)}.parquet", rows, GROUP)
                for key in chosen:
                    shutil.rmtree(self.root / key)
            return len(keys)


def opened(root: Path) -> Any:
    """The records under a folder, or in a packed file."""
    return Packed(root) if root.suffix == ".parquet" else Parts(root)


def check(root: Path) -> Iterator[tuple[str, str]]:
    """The problems of the records in a folder or a packed file: (where, what)."""
    store = opened(root)
    for key in sorted(store.keys()):
        try:
            _ = store.read(key).arrays
        except HeadwiseError as error:
            yield key, str(error)


def _keys_of(path: Path) -> np.ndarray:
    import pyarrow.parquet as pq

    return np.array(pq.read_table(path, columns=["key"])["key"].to_pylist(), dtype="S16")


def _candidates(file: Any, wanted: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows of a part in whose text every wanted value stands behind its name."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = file.read(columns=["work", "config"])
    keep = pa.chunked_array([pa.array([True] * texts.num_rows)]) if texts.num_rows else None
    for name, value in wanted.items():
        if str(value) == "None":  # also a field that a record has not
            continue
        if name == "work":
            found = pc.equal(texts["work"], str(value))
        else:
            found = pc.match_substring_regex(texts["config"], _pattern(name.rpartition(".")[2], value))
        keep = pc.and_(keep, found)
    numbers = np.flatnonzero(keep.to_numpy(zero_copy_only=False)) if keep is not None else []
    groups: dict[int, list[int]] = {}
    for number in map(int, numbers):
        groups.setdefault(number // GROUP, []).append(number % GROUP)
    for group, rows in groups.items():
        yield from file.read_row_group(group, columns=list(COLUMNS)).take(rows).to_pylist()


def _pattern(name: str, value: Any) -> str:
    """A field's name and value as JSON, or anything a list or table may have in its place."""
    texts = {json.dumps(value, ensure_ascii=False), json.dumps(str(value), ensure_ascii=False), str(value)}
    texts |= {str(value).lower()} if str(value) in ("True", "False") else set()
    texts |= {str(int(value))} if isinstance(value, float) and value.is_integer() else set()
    either = "|".join(sorted(map(re.escape, texts))) if not isinstance(value, list | dict) else ""
    return rf'{re.escape(name)}":\s*({either}|\[|\{{)'
