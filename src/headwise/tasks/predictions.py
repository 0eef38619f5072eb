"""What a model predicts, as a person reads it: one record per input (no torch)."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from headwise.errors import unknown
from headwise.io import files as store
from headwise.io.display import SHOWN, Shown, table
from headwise.tasks.task import Row


class Labelled(NamedTuple):
    """One label for a text, a pair or a picture."""

    label: str
    probabilities: dict[str, float]


class Graded(NamedTuple):
    """A number for a text or a pair, on the scale of the task."""

    value: float


class Tagged(NamedTuple):
    """One label for each word."""

    words: list[str]
    tags: list[str]
    probabilities: list[float]


class Spanned(NamedTuple):
    """Labelled spans of words: first word, end (exclusive) and label."""

    words: list[str]
    spans: list[tuple[int, int, str]]


class Parsed(NamedTuple):
    """A dependency tree: for each word its head (counted from 1, 0 is the root) and the label of the arc."""

    words: list[str]
    heads: list[int]
    labels: list[str]


class Bracketed(NamedTuple):
    """A constituency tree in brackets, with the tag XX for every word."""

    words: list[str]
    tree: str


class Framed(NamedTuple):
    """Predicates with their labelled argument spans."""

    words: list[str]
    frames: list[dict[str, Any]]


class Answered(NamedTuple):
    """The span of the context that answers a question; "" where none was found."""

    answer: str
    start: int  # characters
    end: int
    score: float


class Written(NamedTuple):
    """What a language model writes after a prompt."""

    answer: str


@runtime_checkable
class Predicts(Protocol):
    """A kind that can be asked: what it takes, and what it says about it.

    ``asks`` names the fields of a row without its answer, the first of them required.
    """

    asks: tuple[str, ...]

    def unanswered(self, row: Row) -> Row:
        """The row with a stand-in for its answer, so that `encode` takes it."""
        ...

    def predictions(self, scores: Any, batch: dict[str, Any], rows: Sequence[Row]) -> list[Any]:
        """One record per item of a batch, whose rows are given."""
        ...


class Predictions(Shown, list):
    """Records of one task in the order of the inputs.

    Example:
        >>> found = Predictions([Labelled("good", {"bad": 0.1, "good": 0.9})])
        >>> found[0].label, found.to_records()
        ('good', [{'label': 'good', 'bad': 0.1, 'good': 0.9}])
    """

    def to_records(self) -> list[dict[str, Any]]:
        """Flat records: a column for each field, and one for the probability of each label."""
        return [_flat(record) for record in self]

    def write(self, path: str | Path, beside: Sequence[Mapping[str, Any]] = ()) -> Path:
        """Write a .csv, .tsv, .jsonl or .parquet file; ``beside`` are the inputs, whose columns come first."""
        path = Path(path)
        records = self.to_records()
        if beside:
            records = [{**given, **_renamed(found, given)} for given, found in zip(beside, records, strict=True)]
        if path.suffix not in WRITERS:
            raise unknown("file format", path.suffix, WRITERS)
        return WRITERS[path.suffix](path, records)

    def _repr_html_(self) -> str:
        records = self.to_records()
        rows = [[v if isinstance(v, float) else _cell(v) for v in record.values()] for record in records[:SHOWN]]
        more = f"{len(records) - SHOWN} more" if len(records) > SHOWN else ""
        return table(list(records[0]) if records else [], rows, note=more)


def _flat(record: Any) -> dict[str, Any]:
    fields = record._asdict()
    chances = fields.get("probabilities")
    if isinstance(chances, dict):
        del fields["probabilities"]
        fields |= _renamed(chances, fields)
    return fields


def _renamed(new: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
    """New columns by names that no old one has."""
    return {f"predicted_{name}" if name in old else name: value for name, value in new.items()}


def _cell(value: Any) -> str:
    if isinstance(value, list | tuple | dict):
        return json.dumps(value, ensure_ascii=False)
    return f"{value:.6g}" if isinstance(value, float) else "" if value is None else str(value)


def _table(path: Path, records: Sequence[Mapping[str, Any]]) -> Path:
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter="\t" if path.suffix == ".tsv" else ",", lineterminator="\n")
    writer.writerow(records[0] if records else ())
    writer.writerows([_cell(value) for value in record.values()] for record in records)
    return store.write(path, out.getvalue())


def _json_lines(path: Path, records: Sequence[Mapping[str, Any]]) -> Path:
    return store.write(path, "".join(f"{json.dumps(store.finite(r), ensure_ascii=False)}\n" for r in records))


def _parquet(path: Path, records: Sequence[Mapping[str, Any]]) -> Path:
    from headwise.tasks.readers.formats import write_parquet

    return write_parquet(path, [dict(record) for record in records])


WRITERS = {".csv": _table, ".tsv": _table, ".jsonl": _json_lines, ".parquet": _parquet}
