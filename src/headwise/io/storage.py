"""Records on disk, as folders or as rows of Parquet files; everything read is checked against its hash.

New records are folders; the others lie by the million in few files, in the order of their keys and in small groups, so
that one record is read without the others.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load as unpack_arrays
from safetensors.numpy import save as pack_arrays

from headwise.errors import HeadwiseError
from headwise.io.files import digest, folder, locked, plain, read_json, write, write_json

FORMAT = 2
FIELDS: dict[str, type] = {"key": str, "work": str, "version": int, "config": dict, "result": dict, "about": dict}
JSON, ARRAYS = "record.json", "arrays.safetensors"
COLUMNS = (*FIELDS, "sha256", "arrays")


@dataclass(frozen=True)
class Record:
    """One result, the work that computed it and everything that determined it."""

    key: str
    work: str
    version: int
    config: dict[str, Any]
    result: dict[str, Any]
    about: dict[str, Any]  # versions and time, not part of the key
    path: Path | None = field(default=None, compare=False)
    load: Callable[[], dict[str, np.ndarray]] = field(default=dict, repr=False, compare=False)

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays by name, read from disk and checked at every call."""
        return self.load()

    def matches(self, wanted: Mapping[str, Any]) -> bool:
        """Whether the work and the configuration have these values (dots separate nested names)."""
        values = {**flat(self.config), "work": self.work}
        return all(values.get(name) == value or str(values.get(name)) == str(value) for name, value in wanted.items())

    def body(self) -> dict[str, Any]:
        """The stored fields."""
        return {name: getattr(self, name) for name in FIELDS}


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Flatten a nested dict to dotted names; lists are not flattened."""
    if isinstance(value, Mapping):
        out: dict[str, Any] = {}
        for name, item in value.items():
            out |= flat(item, f"{prefix}.{name}" if prefix else str(name))
        return out
    return {prefix: value}


def record_key(work: str, config: Mapping[str, Any], version: int = 1) -> str:
    """A hash of a work's name, version and configuration; code and module paths are not part of it."""
    return digest(work, version, config)


class Folder:
    """Records as ``ROOT/KEY/record.json`` and ``arrays.safetensors``."""

    def __init__(self, root: Path):
        self.root = root

    def __contains__(self, key: str) -> bool:
        return (self.root / key / JSON).exists()

    def keys(self) -> list[str]:
        """The keys; names that begin with a dot are unfinished records."""
        return [path.parent.name for path in self.root.glob(f"*/{JSON}") if not path.parent.name.startswith(".")]

    def write(self, record: Record, arrays: Mapping[str, np.ndarray]) -> None:
        with folder(self.root / record.key, replace=True) as scratch:
            packed = _packed(arrays)
            if packed is not None:
                write(scratch / ARRAYS, packed)
            write_json(scratch / JSON, {"format": FORMAT, **record.body(), "sha256": _hashes(record.body(), packed)})

    def read(self, key: str) -> Record:
        path = self.root / key
        return _checked(read_json(path / JSON), path, lambda: (path / ARRAYS).read_bytes())


class Packed:
    """Records as rows of a Parquet file, for storing and sharing thousands of them."""

    def __init__(self, path: Path):
        self.path = path

    @cached_property
    def _rows(self) -> dict[str, dict[str, Any]]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            table = pq.read_table(self.path)
        except FileNotFoundError:
            raise HeadwiseError(f"no file {self.path}") from None
        except (pa.ArrowException, OSError) as error:
            raise HeadwiseError(f"{self.path} is not a readable Parquet file ({error})") from None
        if not set(COLUMNS) <= set(table.column_names):
            expected = "a file that `headwise records pack` wrote"
            raise HeadwiseError(f"{self.path} has the columns {', '.join(table.column_names)}", expected)
        return {row["key"]: row for row in table.select(list(COLUMNS)).to_pylist()}

    def __contains__(self, key: str) -> bool:
        return key in self._rows

    def keys(self) -> list[str]:
        return list(self._rows)

    def write(self, record: Record, arrays: Mapping[str, np.ndarray]) -> None:
        raise HeadwiseError(f"{self.path} is read-only", "a folder to write new records to")

    def read(self, key: str) -> Record:
        return unpacked(self._rows[key], self.path / key)


def unpacked(row: Mapping[str, Any], place: Path) -> Record:
    """The record of a row of a Parquet file, checked."""
    fields = dict(row)
    try:
        fields |= {name: json.loads(row[name]) for name in ("config", "result", "about", "sha256")}
    except (ValueError, TypeError) as error:
        raise HeadwiseError(f"the record {place} is corrupted ({error})", "an intact file") from None
    return _checked({"format": FORMAT, **fields}, place, lambda: fields["arrays"] or b"")


def packed_row(record: Record) -> dict[str, Any]:
    """A record as a row of a Parquet file."""
    body, packed = record.body(), _packed(record.arrays)
    row = {**body, "sha256": _hashes(body, packed), "arrays": packed}
    return {name: _line(value) if isinstance(value, dict) else value for name, value in row.items()}


def write_packed(path: Path, records: Sequence[Record]) -> Path:
    """Write records as one Parquet file, the most compact format that other tools can read."""
    return write_rows(path, map(packed_row, records), max(1, len(records)), level=19)


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]], group: int, level: int = 3) -> Path:
    """Write rows in groups that are read one at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {"version": pa.int64(), "arrays": pa.binary()}
    schema = pa.schema([(name, types.get(name, pa.string())) for name in COLUMNS])
    buffer = io.BytesIO()
    with pq.ParquetWriter(buffer, schema, compression="zstd", compression_level=level, use_dictionary=False) as file:
        for part in batched(rows, group):
            columns = {name: pa.array([row[name] for row in part], schema.field(name).type) for name in COLUMNS}
            file.write_table(pa.table(columns, schema), row_group_size=group)
    return write(path, buffer.getvalue())


def batched(rows: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Lists of so many rows, the last one shorter."""
    rest = iter(rows)
    while part := list(islice(rest, size)):
        yield part


def _packed(arrays: Mapping[str, np.ndarray]) -> bytes | None:
    return pack_arrays({name: np.ascontiguousarray(value) for name, value in arrays.items()}) if arrays else None


def _hashes(body: Mapping[str, Any], packed: bytes | None) -> dict[str, str | None]:
    return {
        "record": _sha(_line(plain(body), sort_keys=True).encode()),
        "arrays": None if packed is None else _sha(packed),
    }


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _line(value: Any, sort_keys: bool = False) -> str:
    return json.dumps(value, sort_keys=sort_keys, ensure_ascii=False, separators=(",", ":"))


def _checked(stored: Any, path: Path, arrays: Callable[[], bytes]) -> Record:
    """A verified record, or an error that names what was modified."""
    form = stored.get("format") if isinstance(stored, dict) else None
    if form == 1:
        hint = f"headwise records upgrade {path.parent}"
        raise HeadwiseError(f"the record {path} has format 1", f"format {FORMAT}", hint)
    if form != FORMAT:
        raise HeadwiseError(f"{path} is not a headwise record: format {form!r}", f"format {FORMAT}")
    hashes = stored.get("sha256")
    wrong = [name for name, kind in FIELDS.items() if not isinstance(stored.get(name), kind)]
    if wrong or not isinstance(hashes, dict) or stored["key"] != path.name:
        raise HeadwiseError(
            f"{path} is not a headwise record: {', '.join(wrong) or 'key or sha256'} missing or of the wrong type"
        )
    body = {name: stored[name] for name in FIELDS}
    again = f"remove {path} to compute it again, or restore it"
    if hashes.get("record") != _hashes(body, None)["record"]:
        raise HeadwiseError(f"the record {path} was modified after it was written", "its sha256 to match", again)
    if record_key(body["work"], body["config"], body["version"]) != path.name:
        raise HeadwiseError(f"the record {path} has the configuration of another key", "a record of this key", again)
    return Record(**body, path=path, load=partial(_arrays, path, hashes.get("arrays"), arrays, again))


def _arrays(path: Path, sha: str | None, content: Callable[[], bytes], again: str) -> dict[str, np.ndarray]:
    if sha is None:
        return {}
    try:
        packed = content()
    except OSError:
        packed = b""
    if _sha(packed) != sha:
        seen = "are missing" if not packed else "were modified after they were written"
        raise HeadwiseError(f"the arrays of the record {path} {seen}", f"{ARRAYS} with its sha256", again)
    return unpack_arrays(packed)


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

    pc: Any = import_module("pyarrow.compute")  # its functions are made when it is imported

    texts = file.read(columns=["work", "config"])
    keep = pa.chunked_array([pa.array([True] * texts.num_rows)]) if texts.num_rows else None
    for name, value in wanted.items():
        if str(value) == "None":  # also a field that a record has not
            continue
        if name == "work":
            matches = pc.equal(texts["work"], str(value))
        else:
            matches = pc.match_substring_regex(texts["config"], _pattern(name.rpartition(".")[2], value))
        keep = pc.and_(keep, matches)
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
