"""Large tables of texts and labels as columns; a row is made when it is asked for (no torch).

A table is read whole by arrow, or not at all: whatever is out of the ordinary in it is left to the readers that go row
by row and name its place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from importlib import import_module
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Any, overload

import numpy as np

from headwise.errors import HeadwiseError
from headwise.tasks.labels import LabelNames
from headwise.tasks.readers.shape import SHAPES, normalized
from headwise.tasks.task import Row

BLOCK = 1 << 19
LARGE = 4_000_000  # bytes of a file that is read as columns
CHUNK = 20_000  # rows made at a time
KINDS = ("classify", "regress")
KEPT = np.zeros(256, np.uint8)  # what `normalized` makes of a byte of ASCII: 0 where it drops it
KEPT[list((ascii_lowercase + digits).encode())] = list((ascii_lowercase + digits).encode())
KEPT[list(ascii_uppercase.encode())] = list(ascii_lowercase.encode())
SPACES = np.isin(np.arange(256), list(b" \t\n\v\f\r\x1c\x1d\x1e\x1f"))
MIXED = np.random.default_rng(0).integers(2**64, size=256, dtype=np.uint64)  # a number for each byte
FACTOR = 6364136223846793005


@dataclass(frozen=True, eq=False)
class TextTable(Sequence):
    """Rows with a text, maybe a second one, and a label; behaves as the list of their dicts.

    Example:
        >>> len(task.rows("train")), task.rows("train")[0]  # doctest: +SKIP
        (800000, {'text': 'a fine film', 'text_b': None, 'label': 'good'})
    """

    texts: Mapping[str, Any]  # field to an arrow array of strings
    codes: np.ndarray  # of every row, the place of its label
    labels: tuple[Any, ...]
    index: np.ndarray | None = None  # which rows these are, where not all

    def __len__(self) -> int:
        return len(self.codes if self.index is None else self.index)

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> list[Row]: ...
    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return list(self._made(np.arange(len(self))[place]))
        return next(self._made(np.array([range(len(self))[place]])))

    def __iter__(self) -> Iterator[Row]:
        for start in range(0, len(self), CHUNK):
            yield from self._made(np.arange(start, min(start + CHUNK, len(self))))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(a == b for a, b in zip(self, other))

    def _made(self, places: np.ndarray) -> Iterator[Row]:
        places = places if self.index is None else self.index[places]
        wanted = _column(places)
        first = self.texts["text"].take(wanted).to_pylist()
        second = self.texts["text_b"].take(wanted).to_pylist() if "text_b" in self.texts else [None] * len(first)
        for text, text_b, code in zip(first, second, self.codes[places].tolist()):
            yield {"text": text, "text_b": text_b, "label": self.labels[code]}

    def taken(self, places: np.ndarray) -> TextTable:
        """Some of the rows; the columns are shared."""
        return replace(self, index=(places if self.index is None else self.index[places]).astype(np.int32))

    def label_counts(self) -> Counter:
        """How many rows have each label."""
        codes = self.codes if self.index is None else self.codes[self.index]
        return Counter({self.labels[i]: int(n) for i, n in enumerate(np.bincount(codes, minlength=1)) if n})

    def distinct(self) -> list[Row]:
        """A row for each label: texts are texts, so a check of these is a check of all."""
        codes = self.codes if self.index is None else self.codes[self.index]
        return [self[int(place)] for place in np.unique(codes, return_index=True)[1]]

    def lengths(self) -> np.ndarray:
        """The number of words of every row, over its texts."""
        total = np.sum([_words(column) for column in self.texts.values()], axis=0)
        return total if self.index is None else total[self.index]

    @cached_property
    def groups(self) -> np.ndarray | None:
        """Which rows have the same text, however it is written: a number for each; None of pairs, which may chain."""
        return None if len(self.texts) > 1 or self.index is not None else _groups(self.texts["text"])


def text_table(
    paths: Sequence[Path], form: str, columns: Mapping[str, Any], kind: str, labels: Sequence[str]
) -> TextTable | None:
    """Files as one table, where they are large and nothing in them is out of the ordinary; else None."""
    import pyarrow as pa

    fields: list[Any] = [columns.get(field) for field in ("text", "text_b", "label") if field in columns]
    plain = kind in KINDS and form in READERS and set(columns) <= {"text", "text_b", "label"}
    if not plain or not all(isinstance(name, str) for name in fields) or len(set(fields)) < len(fields):
        return None
    size = sum(path.stat().st_size for path in paths)
    if not LARGE <= size < 2**31:  # longer ones have no place in 32-bit offsets
        return None
    try:
        texts, label = {name: _Texts(size) for name in fields[:-1]}, []
        for path in paths:
            for batch in READERS[form](path, fields):
                for name, column in texts.items():
                    column.add(batch.column(name))
                label.append(batch.column(fields[-1]))
        arrays = {name: column.array() for name, column in texts.items()} | {fields[-1]: pa.concat_arrays(label)}
        del batch, label, texts
        pa.default_memory_pool().release_unused()  # arrow keeps what readers let go
        return _checked(arrays, columns, kind, labels)
    except (pa.ArrowException, _Unusual, HeadwiseError, OSError, UnicodeError, TypeError, ValueError):
        return None


class _Texts:
    """Strings of many batches side by side in memory that is taken as it fills: never two copies of all."""

    def __init__(self, size: int):
        self.content, self.used = np.empty(size, np.uint8), 0
        self.offsets = [np.zeros(1, np.int32)]

    def add(self, part: Any) -> None:
        import pyarrow as pa

        if part.null_count or not pa.types.is_string(part.type):
            raise _Unusual
        offsets = _offsets(part)
        end = self.used + int(offsets[-1] - offsets[0])
        self.content[self.used : end] = np.frombuffer(part.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]
        self.offsets.append(offsets[1:] - offsets[0] + np.int32(self.used))
        self.used = end

    def array(self) -> Any:
        import pyarrow as pa

        offsets = np.concatenate(self.offsets)
        buffers = pa.py_buffer(offsets), pa.py_buffer(self.content[: self.used])
        return pa.StringArray.from_buffers(len(offsets) - 1, *buffers)


def _offsets(part: Any) -> np.ndarray:
    return np.frombuffer(part.buffers()[1], np.int32)[part.offset : part.offset + len(part) + 1]


# Arrow's own conversions import pandas, which takes more time and memory than a million rows do.


def _numbers(column: Any) -> np.ndarray:
    """A column of numbers without nulls."""
    kind = np.dtype(str(column.type))
    return np.frombuffer(column.buffers()[1], kind)[column.offset : column.offset + len(column)]


def _column(numbers: np.ndarray) -> Any:
    import pyarrow as pa

    whole = np.ascontiguousarray(numbers, np.int64)
    return pa.Array.from_buffers(pa.int64(), len(whole), [None, pa.py_buffer(whole)])


class _Unusual(Exception):
    """Something that only the readers that go row by row can judge."""


def _checked(table: Mapping[str, Any], columns: Mapping[str, Any], kind: str, labels: Sequence[str]) -> TextTable:
    """The table, once every text has something to read and every label was shaped as a row's is."""
    pc: Any = import_module("pyarrow.compute")  # its functions are made when it is imported

    texts = {field: table[columns[field]] for field in ("text", "text_b") if field in columns}
    for column in texts.values():
        if not len(column) or not pc.all(pc.match_substring_regex(column, r"[\pL\pN]")).as_py():
            raise _Unusual  # maybe nothing to read
    coded = table[columns["label"]].dictionary_encode()
    if coded.null_count:
        raise _Unusual
    shape, names = SHAPES[kind], LabelNames(labels)
    stand_in = dict.fromkeys((columns[field] for field in texts), "a")
    raw = coded.dictionary.to_pylist()
    shaped = [shape({**stand_in, columns["label"]: label}, columns, names)["label"] for label in raw]
    known = tuple(dict.fromkeys(shaped))  # 1 and 1.0 are one label
    place = np.array([known.index(label) for label in shaped], np.int32)
    codes = place[_numbers(coded.indices)]
    return TextTable(texts, codes, known)


# -- files


def _csv(path: Path, fields: list[str], delimiter: str = ",", quoted: bool = True) -> Any:
    import pyarrow as pa
    import pyarrow.csv as pc

    with path.open("rb") as file:
        head = file.readline().decode("utf-8-sig").rstrip("\r\n")
    header = [name.strip() for name in head.split(delimiter)]
    if '"' in head or len(set(header)) != len(header) or not set(fields) <= set(header):
        raise _Unusual
    _require_plain(path, delimiter, quoted)
    return pc.open_csv(
        path,
        pc.ReadOptions(column_names=header, skip_rows=1, use_threads=False),  # which would read ahead
        pc.ParseOptions(delimiter=delimiter, quote_char='"' if quoted else False, newlines_in_values=quoted),
        pc.ConvertOptions(
            include_columns=fields, column_types=dict.fromkeys(fields, pa.string()), strings_can_be_null=False
        ),
    )


def _require_plain(path: Path, delimiter: str, quoted: bool) -> None:
    """Quotes open after a delimiter and close before one, and no line ends in a lone carriage return."""
    before, after, last = [], [], b"\n"
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            block += file.read(1) if block[-1:] in b'\r"' else b""  # what follows these is judged with them
            content = np.frombuffer(last + block + (b"" if len(block) >= BLOCK else b"\n"), np.uint8)
            returns = np.flatnonzero(content[:-1] == ord("\r"))
            if (content[returns + 1] != ord("\n")).any() or block[-1:] == b"\r":
                raise _Unusual
            if quoted and b'"' in block:
                places = 1 + np.flatnonzero(content[1:-1] == ord('"'))
                before.append(content[places - 1])
                after.append(content[places + 1])
            last = block[-1:]
    ends = [ord(delimiter), ord("\n"), ord("\r"), ord('"')]
    opens, closes = (np.concatenate(sides) if sides else np.empty(0, np.uint8) for sides in (before, after))
    if len(opens) % 2 or not np.isin(opens[::2], ends).all() or not np.isin(closes[1::2], ends).all():
        raise _Unusual


def _tsv(path: Path, fields: list[str]) -> Any:
    return _csv(path, fields, "\t", quoted=False)


def _jsonl(path: Path, fields: list[str]) -> Any:
    import json

    import pyarrow as pa
    import pyarrow.json as pj

    with path.open(encoding="utf-8") as file:
        first = json.loads(next(line for line in file if line.strip()))
    types = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    schema = pa.schema([(name, types[type(first[name])]) for name in fields if type(first.get(name)) in types])
    if len(schema) != len(fields):
        raise _Unusual
    options = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    return pj.read_json(path, parse_options=options).to_batches()


READERS = {"csv": _csv, "tsv": _tsv, "jsonl": _jsonl}


# -- words, and rows that are the same


def _parts(column: Any) -> Iterator[tuple[int, int, Any]]:
    """A column in slices of some bytes each, with their first and last place."""
    offsets, start = _offsets(column), 0
    while start < len(column):
        stop = max(start + 1, int(np.searchsorted(offsets, offsets[start] + BLOCK, "right")) - 1)
        yield start, stop, column.slice(start, stop - start)
        start = stop


def _words(column: Any) -> np.ndarray:
    """The number of words of every text."""
    pc: Any = import_module("pyarrow.compute")  # its functions are made when it is imported

    counts = np.empty(len(column), np.int64)
    for start, stop, part in _parts(column):
        if pc.all(pc.string_is_ascii(part)).as_py():
            offsets = _offsets(part) - _offsets(part)[0]
            spaces = SPACES[np.frombuffer(part.buffers()[2], np.uint8)[_offsets(part)[0] : _offsets(part)[-1]]]
            begins = ~spaces
            begins[1:] &= spaces[:-1]
            begins[offsets[:-1]] = ~spaces[offsets[:-1]]
            counts[start:stop] = np.add.reduceat(begins, offsets[:-1], dtype=np.int64)
        else:
            split = pc.utf8_split_whitespace(pc.utf8_trim_whitespace(part))
            counts[start:stop] = _numbers(pc.list_value_length(split))
    return counts


def _groups(column: Any) -> np.ndarray:
    """The number of each text among the different ones, in the order of their first rows, by `normalized`.

    Texts are the same where 64 bits of them are: two others would only come into the same split.
    """
    import pyarrow as pa

    pc: Any = import_module("pyarrow.compute")  # its functions are made when it is imported

    hashes = np.empty(len(column), np.uint64)
    for start, stop, part in _parts(column):
        hashes[start:stop] = _hashed(part, KEPT)
        odd = _numbers(pc.string_is_ascii(part).cast(pa.uint8())) == 0
        if odd.any():
            written = pa.array([normalized(text) for text in part.filter(odd).to_pylist()], pa.string())
            hashes[start:stop][odd] = _hashed(written, np.arange(256, dtype=np.uint8))
    order = np.argsort(hashes, kind="stable").astype(np.int32)
    hashes = hashes[order]
    begins = np.concatenate([[True], hashes[1:] != hashes[:-1]])
    first = order[begins][np.cumsum(begins, dtype=np.int32) - 1]  # of every row in order, the first row with its text
    leads = np.zeros(len(order), bool)
    leads[first] = True
    groups = np.empty(len(order), np.int32)
    groups[order] = (np.cumsum(leads, dtype=np.int32) - 1)[first]
    return groups


def _hashed(part: Any, kept: np.ndarray) -> np.ndarray:
    """A hash of every text's bytes as ``kept`` maps them, those mapped to 0 dropped: a polynomial modulo 2^64."""
    offsets = _offsets(part)
    content = kept[np.frombuffer(part.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]]
    stays = content != 0
    ends = np.concatenate([[0], np.cumsum(stays, dtype=np.int32)])[offsets - offsets[0]]
    content = content[stays]
    sums = np.zeros(len(content) + 1, np.uint64)
    np.cumsum(MIXED[content] * _powers(FACTOR, len(content)), out=sums[1:])
    # Of a text in the middle the powers begin too high: the inverse of the first brings them down.
    return (sums[ends[1:]] - sums[ends[:-1]]) * _powers(pow(FACTOR, -1, 2**64), len(content) + 1)[ends[:-1]]


def _powers(base: int, count: int) -> np.ndarray:
    """1, base, base², ... modulo 2^64."""
    return _all_powers(base, 1 << max(count - 1, 1).bit_length())[:count]


@lru_cache(maxsize=4)
def _all_powers(base: int, count: int) -> np.ndarray:
    powers = np.full(count, base, np.uint64)
    powers[0] = 1
    return np.cumprod(powers)
