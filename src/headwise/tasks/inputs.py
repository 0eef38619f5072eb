"""Inputs without answers, in the shapes people have them, as rows (no torch)."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headwise.errors import HeadwiseError, HeadwiseWarning
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
    found: dict[str, Any] = {}
    for field in asks:
        if field in columns:
            found[field] = columns[field]
        elif field in item:
            found[field] = field
        elif field in own and all(part in item for part in _parts(own[field])):
            found[field] = own[field]
    left = ((name, value) for name, value in item.items() if name not in found.values())
    texts = [name for name, value in left if isinstance(value, str) and any(map(str.isalpha, value))]
    first = asks[0]
    if first not in found and len(texts) == 1:
        found[first] = texts[0]
        warnings.warn(f"using column {texts[0]!r} as {first}", HeadwiseWarning, stacklevel=4)
    if first not in found:
        column = next(iter(texts or item), "...")
        hint = f'columns={{"{first}": "{column}"}} (--column {first}={column})'
        raise HeadwiseError(f"no column {first!r}, only {', '.join(map(str, item))}", EXAMPLES[first], hint)
    return found


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
        found = dict(item)
    elif isinstance(item, str | Path) and first != "question":
        found = {first: str(item)}
    elif isinstance(item, list | tuple) and first == "words":
        found = {"words": list(item)}
    elif isinstance(item, list | tuple) and 1 <= len(item) <= len(asks):
        found = dict(zip(asks, item))
    else:
        raise HeadwiseError(f"{item!r}"[:80], EXAMPLES[first])
    if first == "words":
        return {**found, "words": _words(found["words"])}
    if first == "question" and "context" not in found:
        raise HeadwiseError("a question without a context", EXAMPLES[first])
    for field, value in found.items():
        if field == "choices" and isinstance(value, list | tuple):
            continue
        if not isinstance(value, str | Path) and not (field == "text_b" and value is None):
            raise HeadwiseError(f"{field} is {value!r}"[:80], "a text")
    return found


def _words(value: Any) -> list[str]:
    """A list of words; a text is split at its spaces."""
    words = value.split() if isinstance(value, str) else list(value) if isinstance(value, Iterable) else value
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        raise HeadwiseError(f"words {value!r}"[:80], "one word or more")
    return words
