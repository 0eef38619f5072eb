"""Which columns of a table make a task, and of which kind: as named, else guessed where there is one way (no torch)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from headwise.errors import HeadwiseError, HeadwiseWarning
from headwise.tasks.readers.formats import Record

PAIRS = (
    *(("premise", "hypothesis"), ("sentence1", "sentence2"), ("question1", "question2"), ("question", "sentence")),
    *(("text1", "text2"), ("sentence_A", "sentence_B"), ("text", "text_b"), ("text_a", "text_b")),
)
LABELS = ("label", "labels", "class", "category", "target", "score", "rating", "stars", "sentiment", "intent", "topic")
WORDS = ("tokens", "words")
TAGS = ("ner_tags", "pos_tags", "upos", "tags", "labels", "chunk_tags", "xpos")
ANSWER = ("question", "context", "answers")
IDS = ("id", "idx", "index", "guid", "uid", "uuid")


class Reading(NamedTuple):
    """How a table is read: its shape (texts, words or answers), and field to column."""

    shape: str
    columns: dict[str, str]


def reading(record: Record, given: Sequence[str] | Mapping[str, str] = (), coded: Sequence[str] = ()) -> Reading:
    """How to read a table, from its first record.

    Args:
        record: a record of the table.
        given: its columns in the order of the fields, or field to column; guessed, and said, where there are none.
        coded: columns whose numbers have names (ClassLabel).

    Example:
        >>> reading({"text": "fine", "label": 1}, ["text", "label"])
        Reading(shape='texts', columns={'text': 'text', 'label': 'label'})
    """
    if isinstance(given, Mapping) and given:
        return _named(record, dict(given))
    if given:
        return _ordered(record, [part.strip() for part in given])
    found = _guessed(record, coded)
    said = ", ".join(f"{column!r} as {field}" for field, column in found.columns.items() if field != column)
    if said:
        warnings.warn(f"using column {said}", HeadwiseWarning, stacklevel=4)
    return found


def _named(record: Record, given: dict[str, str]) -> Reading:
    if "context" in given or "question" in given:
        return Reading("answers", {name: given.get(name, name) for name in ANSWER})
    if "words" in given or _is_words(record.get(given.get("text", ""))):
        words = given.get("words") or given["text"]
        return Reading("words", {"words": words, "labels": given.get("labels") or given.get("label") or "labels"})
    return Reading("texts", {"label": "label", **given} if "label" not in given else given)


def _ordered(record: Record, given: list[str]) -> Reading:
    first, last = record.get(given[0]), record.get(given[-1])
    if len(given) == 3 and isinstance(last, dict | list):
        return Reading("answers", dict(zip(ANSWER, given)))
    if len(given) == 2 and _is_words(first):
        return Reading("words", dict(zip(("words", "labels"), given)))
    if len(given) not in (2, 3):
        seen = f"{len(given)} columns, {','.join(given)}"
        raise HeadwiseError(seen, "text,label or text,text_b,label or tokens,tags or question,context,answers")
    return Reading("texts", dict(zip(("text", "label") if len(given) == 2 else ("text", "text_b", "label"), given)))


def _guessed(record: Record, coded: Sequence[str]) -> Reading:
    if all(name in record for name in ANSWER):
        return Reading("answers", {name: name for name in ANSWER})
    lists = [name for name, value in record.items() if _is_words(value)]
    words = [name for name in WORDS if name in lists]
    if words:
        tags = [name for name, value in record.items() if isinstance(value, list) and name not in words]
        return Reading("words", {"words": words[0], "labels": _only("labels", tags, record, words[0])})
    label = _label(record, coded)
    texts = [name for name, value in record.items() if isinstance(value, str) and name != label]
    pair = next((pair for pair in PAIRS if all(name in texts for name in pair)), None)
    if pair:
        return Reading("texts", {"text": pair[0], "text_b": pair[1], "label": label})
    texts = [name for name in texts if name.lower() not in IDS]
    found = ["text"] if "text" in texts else texts
    return Reading("texts", {"text": _only("text", found, record, "", label), "label": label})


def _label(record: Record, coded: Sequence[str]) -> str:
    known = ["label"] if "label" in record else [name for name in LABELS if name in record]
    plain = [name for name in coded if not isinstance(record.get(name), list)]
    numbers = [name for name, value in record.items() if isinstance(value, int | float)]
    found = known or (plain if len(plain) == 1 else []) or (numbers if len(numbers) == 1 else [])
    if not found:
        texts = [name for name, value in record.items() if isinstance(value, str)]
        if len(texts) == 2 and len(record) == 2:
            return texts[1]
    return _only("label", found, record)


def _only(field: str, found: Sequence[str], record: Record, *beside: str) -> str:
    if len(found) == 1:
        return found[0]
    seen = f"{'no' if not found else 'several'} columns to read as {field}: {', '.join(found or record)}"
    example = ",".join([*[name for name in beside if name][:1], found[0] if found else "..."])
    hint = f"name=file:{example if field == 'labels' else 'text,label'}, or columns=(...)"
    raise HeadwiseError(seen, "the columns by name", hint)


def _is_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
