"""Inputs without answers, in the shapes people have them, and what a model predicts for them (no torch)."""

from __future__ import annotations

import csv
import io
import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from headwise.errors import HeadwiseError, HeadwiseWarning, unknown
from headwise.io import files as store
from headwise.io.display import SHOWN, Shown, table
from headwise.tasks.readers.shape import text_of
from headwise.tasks.task import Row, Task, items_of

Columns = Mapping[str, "str | tuple[str, ...]"]
EXAMPLES = {
    "text": '["a fine film", ...], pairs ("a text", "another"), or rows {"text": ...}',
    "words": '["A fine film", ...], lists of words, or rows {"words": [...]}',
    "question": '[("who wrote it?", "a text with the answer"), ...], or rows {"question": ..., "context": ...}',
    "path": '["picture.png", ...]',
    "prompt": '["The sky is", ...], or rows {"prompt": ..., "choices": [...]}',
}


def as_rows(asks: Sequence[str], inputs: Any, columns: Columns | None = None, own: Columns | None = None) -> list[Row]:
    """Rows without answers from texts, pairs, lists of words, mappings, a DataFrame or a Dataset.

    Args:
        asks: the fields a row may have, the first of them required.
        inputs: the inputs of the user.
        columns: field to column, where columns have other names.
        own: the columns of the task's own data, tried where no column has a field's name.

    Example:
        >>> as_rows(("text", "text_b"), ["fine", ("one", "two")])
        [{'text': 'fine'}, {'text': 'one', 'text_b': 'two'}]
    """
    rows, names = [], None
    for number, item in enumerate(items_of(inputs)):
        try:
            if isinstance(item, Mapping):
                names = _names(asks, item, columns or {}, own or {}) if names is None else names
                item = {field: _cell(item, column) for field, column in names.items()}
            rows.append(_row(asks, item))
        except HeadwiseError as error:
            raise HeadwiseError(f"input {number}: {error.seen}", error.expected, error.hint) from None
    return rows


def own_columns(task: Task) -> dict[str, Any]:
    """Field to column in the task's own files."""
    return dict(getattr(getattr(task.source, "layout", None), "columns", {}))


def _names(asks: Sequence[str], item: Mapping, columns: Columns, own: Columns) -> dict[str, Any]:
    """Which column holds each field: as named, else by the field's name, else the task's own, else the only text."""
    fields: dict[str, Any] = {}
    for field in asks:
        if field in columns:
            fields[field] = columns[field]
        elif field in item:
            fields[field] = field
        elif field in own and all(part in item for part in _parts(own[field])):
            fields[field] = own[field]
    left = ((name, value) for name, value in item.items() if name not in fields.values())
    texts = [name for name, value in left if isinstance(value, str) and any(map(str.isalpha, value))]
    first = asks[0]
    if first not in fields and len(texts) == 1:
        fields[first] = texts[0]
        warnings.warn(f"using column {texts[0]!r} as {first}", HeadwiseWarning, stacklevel=4)
    if first not in fields:
        column = next(iter(texts or item), "...")
        hint = f'columns={{"{first}": "{column}"}} (--column {first}={column})'
        raise HeadwiseError(f"no column {first!r}, only {', '.join(map(str, item))}", EXAMPLES[first], hint)
    return fields


def _parts(column: Any) -> tuple[str, ...]:
    return tuple(column) if isinstance(column, tuple | list) else (column,)


def _cell(item: Mapping, column: Any) -> Any:
    if isinstance(column, tuple):
        return text_of(dict(item), column)
    if column not in item:
        raise HeadwiseError(f"no column {column!r}, only {', '.join(map(str, item))}")
    return item[column]


def _row(asks: Sequence[str], item: Any) -> Row:
    first = asks[0]
    if isinstance(item, dict):
        fields = dict(item)
    elif isinstance(item, str | Path) and first != "question":
        fields = {first: str(item)}
    elif isinstance(item, list | tuple) and first == "words":
        fields = {"words": list(item)}
    elif isinstance(item, list | tuple) and 1 <= len(item) <= len(asks):
        fields = dict(zip(asks, item))
    else:
        raise HeadwiseError(f"{item!r}"[:80], EXAMPLES[first])
    if first == "words":
        return {**fields, "words": _words(fields["words"])}
    if first == "question" and "context" not in fields:
        raise HeadwiseError("a question without a context", EXAMPLES[first])
    for field, value in fields.items():
        if field == "choices" and isinstance(value, list | tuple):
            continue
        if not isinstance(value, str | Path) and not (field == "text_b" and value is None):
            raise HeadwiseError(f"{field} is {value!r}"[:80], "a text")
    return fields


def _words(value: Any) -> list[str]:
    """A list of words; a text is split at its spaces."""
    words = value.split() if isinstance(value, str) else list(value) if isinstance(value, Iterable) else value
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        raise HeadwiseError(f"words {value!r}"[:80], "one word or more")
    return words


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
        >>> answers = Predictions([Labelled("good", {"bad": 0.1, "good": 0.9})])
        >>> answers[0].label, answers.to_records()
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
            records = [{**given, **_renamed(record, given)} for given, record in zip(beside, records, strict=True)]
        if path.suffix not in WRITERS:
            raise unknown("file format", path.suffix, WRITERS)
        return WRITERS[path.suffix](path, records)

    def _repr_html_(self) -> str:
        records = self.to_records()
        rows = [[v if isinstance(v, float) else _shown(v) for v in record.values()] for record in records[:SHOWN]]
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


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple | dict):
        return json.dumps(value, ensure_ascii=False)
    return f"{value:.6g}" if isinstance(value, float) else "" if value is None else str(value)


def _table(path: Path, records: Sequence[Mapping[str, Any]]) -> Path:
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter="\t" if path.suffix == ".tsv" else ",", lineterminator="\n")
    writer.writerow(records[0] if records else ())
    writer.writerows([_shown(value) for value in record.values()] for record in records)
    return store.write(path, out.getvalue())


def _json_lines(path: Path, records: Sequence[Mapping[str, Any]]) -> Path:
    return store.write(path, "".join(f"{json.dumps(store.finite(r), ensure_ascii=False)}\n" for r in records))


def _parquet(path: Path, records: Sequence[Mapping[str, Any]]) -> Path:
    from headwise.tasks.readers.formats import write_parquet

    return write_parquet(path, [dict(record) for record in records])


WRITERS = {".csv": _table, ".tsv": _table, ".jsonl": _json_lines, ".parquet": _parquet}
