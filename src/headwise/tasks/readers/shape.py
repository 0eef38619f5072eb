"""From a file's record to a task's row: which columns make a task, and one small function per kind (no torch)."""

from __future__ import annotations

import math
import re
import unicodedata
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from headwise.errors import HeadwiseError, HeadwiseWarning, unknown
from headwise.tasks.labels import LabelNames, label_text
from headwise.tasks.metrics import bio_spans
from headwise.tasks.readers import brackets
from headwise.tasks.readers.formats import Record
from headwise.tasks.task import Row

PREDICATE_ROLES = ("V", "C-V")  # they say where the frame is
JOIN = " - "  # between the columns that make one text (AG's title and description, Li et al. 2023)
_NOT_LETTERS = re.compile(r"[\W_]+")


def label_of(raw: Any, names: LabelNames) -> str:
    """The name of a label as found in a file."""
    if names:
        return names.of(raw)
    label = label_text(raw)
    if not label.strip():
        raise HeadwiseError(f"label {raw!r}", "a label on every row", "fill it in, or remove the row")
    return label


def text_of(record: Record, column: str | tuple[str, ...]) -> str:
    """One text, from one column or several."""
    if isinstance(column, tuple):
        return JOIN.join(text_of(record, part).strip() for part in column)
    value = _cell(record, column)
    if not isinstance(value, str):
        raise HeadwiseError(f"{column} is {value!r}", "a text (an empty one is fine)")
    return value


def _cell(record: Record, column: str) -> Any:
    if column not in record:
        raise unknown("column", column, record)
    return record[column]


def _texts(record: Record, columns: Mapping[str, Any]) -> Row:
    row: Row = {"text": text_of(record, columns["text"]), "text_b": None}
    pair = columns.get("text_b")
    if pair is not None and (isinstance(pair, tuple) or _cell(record, pair) is not None):
        row["text_b"] = text_of(record, pair)
    return row


def _classify(record: Record, columns: Mapping[str, Any], names: LabelNames) -> Row:
    return _texts(record, columns) | {"label": label_of(_cell(record, columns["label"]), names)}


def _regress(record: Record, columns: Mapping[str, Any], names: LabelNames) -> Row:
    raw = _cell(record, columns["label"])
    try:
        grade = float(raw)
    except (TypeError, ValueError):
        raise HeadwiseError(f"grade {raw!r}", "a number") from None
    if not math.isfinite(grade):
        raise HeadwiseError(f"grade {raw!r}", "a finite number")
    return _texts(record, columns) | {"label": grade}


def _forced_choice(record: Record, columns: Mapping[str, Any], names: LabelNames) -> Row:
    """A minimal pair (BLiMP) as two choices: which is the better? The good side alternates by the pair's number."""
    good, bad = text_of(record, columns["good"]), text_of(record, columns["bad"])
    second = int(_cell(record, columns["number"])) % 2
    text, text_b = (bad, good) if second else (good, bad)
    return {"prompt": "", "choices": [text, text_b], "text": text, "text_b": text_b, "label": second}


def _words(record: Record, columns: Mapping[str, Any]) -> list[str]:
    words = _cell(record, columns["words"])
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise HeadwiseError(f"words {words!r}"[:80], "a list of words")
    return words


def _per_word(record: Record, column: str, words: list[str]) -> list:
    values = _cell(record, column)
    if len(values) != len(words):
        raise HeadwiseError(
            f"{len(values)} {column} for {len(words)} words ({' '.join(words[:6])} ...)", "one for each word"
        )
    return values


def _tag(record: Record, columns: Mapping[str, Any], names: LabelNames) -> Row:
    words = _words(record, columns)
    return {"words": words, "labels": [label_of(raw, names) for raw in _per_word(record, columns["labels"], words)]}


def _spans(record: Record, columns: Mapping[str, Any], names: LabelNames) -> Row:
    words = _words(record, columns)
    labels = _per_word(record, columns["labels"], words)
    before = "O"
    for i, label in enumerate(labels):
        if label[:2] not in ("O", "B-", "I-") or (label[0] == "I" and before[2:] != label[2:]):
            raise HeadwiseError(f"tag {label!r} after {before!r} at word {i + 1}", "BIO: B-X, then I-X, or O")
        if names and label != "O" and label[2:] not in names.by_text:
            raise unknown("entity", label[2:], names.by_text)
        before = label
    return {"words": words, "labels": list(labels)}


def check_heads(heads: Sequence[int]) -> None:
    """Raise unless the heads (1-based, 0 is the root) make one tree.

    Example:
        >>> check_heads([2, 0, 2])
    """
    size = len(heads)
    roots = [i + 1 for i, head in enumerate(heads) if head == 0]
    outside = [head for head in heads if not isinstance(head, int) or not 0 <= head <= size]
    if outside:
        raise HeadwiseError(f"head {outside[0]!r} in a sentence of {size} words", f"0 to {size}")
    if size and len(roots) != 1:
        raise HeadwiseError(f"{len(roots)} roots (words {roots})", "one root")
    state = [0] * (size + 1)  # 0 unseen, 1 on the way up, 2 known to reach the root
    state[0] = 2
    for word in range(1, size + 1):
        path = []
        while state[word] == 0:
            state[word] = 1
            path.append(word)
            word = heads[word - 1]
        if state[word] == 1:
            raise HeadwiseError(f"the heads run in a circle at word {word}", "a tree")
        for seen in path:
            state[seen] = 2


def _dependencies(record: Record, columns: Mapping[str, Any], names: LabelNames) -> Row:
    row = _tag(record, columns, names)
    try:
        heads = [int(head) for head in _per_word(record, columns["heads"], row["words"])]
    except (TypeError, ValueError):
        raise HeadwiseError(f"heads {_cell(record, columns['heads'])}"[:80], "numbers") from None
    check_heads(heads)
    return {"words": row["words"], "heads": heads, "labels": row["labels"]}


def _constituents(record: Record, columns: Mapping[str, Any], names: LabelNames) -> Row:
    """Words come from the tree, as they stand in a text; function tags and traces go."""
    tree = brackets.cleaned(brackets.parse(_cell(record, columns["tree"])))
    if tree is None:
        raise HeadwiseError("a tree without words", "a tree with words")
    words = [brackets.unescape(leaf.word or "") for leaf in brackets.leaves(tree)]
    if "words" in columns and len(_words(record, columns)) != len(words):
        raise HeadwiseError(f"a tree over {len(words)} words", f"the sentence's {len(_words(record, columns))}")
    return {"words": words, "tree": brackets.write(tree)}


def _frames(record: Record, columns: Mapping[str, Any], names: LabelNames) -> Row:
    words = _words(record, columns)
    frames = [_frame(frame, words, names) for frame in _cell(record, columns["frames"])]
    return {"words": words, "frames": frames}


def _frame(frame: Record, words: list[str], names: LabelNames) -> Record:
    arguments = frame["arguments"] if "arguments" in frame else bio_spans(_per_word(frame, "tags", words))
    arguments = [
        [start, end, role if role in PREDICATE_ROLES else label_of(role, names)] for start, end, role in arguments
    ]
    arguments = [argument for argument in arguments if argument[2] not in PREDICATE_ROLES]
    for start, end, role in arguments:
        if not 0 <= start < end <= len(words):
            raise HeadwiseError(f"{role} from {start} to {end} in a sentence of {len(words)} words", "a span inside it")
    if not 0 <= frame["predicate"] < len(words):
        raise HeadwiseError(f"predicate {frame['predicate']} in a sentence of {len(words)} words", "a word of it")
    return {"predicate": frame["predicate"], "arguments": arguments}


def _treebank(record: Record, columns: Mapping[str, Any], names: LabelNames) -> Row:
    """All that a treebank says of a sentence, for the probing builder; there may be no tree of constituents."""
    words = _words(record, columns)
    fields = ("upos", "feats", "heads", "deprels")
    row: Row = {"words": words} | {field: _per_word(record, columns[field], words) for field in fields}
    row["heads"] = [int(head) for head in row["heads"]]
    check_heads(row["heads"])
    return row | {"tree": record.get(columns.get("tree", ""))}


def _answer(record: Record, columns: Mapping[str, Any], names: LabelNames) -> Row:
    row: Row = {field: text_of(record, columns[field]) for field in ("question", "context")}
    row["id"] = str(record.get(columns["id"], ""))
    given = record.get(columns["answers"])
    if isinstance(given, dict):  # the Hub's form
        record = record | {columns["answers"]: given["text"], columns["starts"]: given["answer_start"]}
    answers, starts = _cell(record, columns["answers"]), _cell(record, columns["starts"])
    if len(answers) != len(starts):
        raise HeadwiseError(f"{len(answers)} answers and {len(starts)} starts", "one start for each answer")
    for answer, start in zip(answers, starts):
        if not answer:
            raise HeadwiseError("an empty answer", "a split with its answers", "use another: these are hidden")
        if not isinstance(answer, str) or not isinstance(start, int):
            raise HeadwiseError(f"answer {answer!r} at {start!r}"[:80], "a text, and the number of its first letter")
        if not 0 <= start <= start + len(answer) <= len(row["context"]):
            raise HeadwiseError(
                f"answer {answer!r} at {start} in a context of {len(row['context'])} letters", "a span inside it"
            )
        if row["context"][start : start + len(answer)] != answer:
            raise HeadwiseError(
                f"answer {answer!r} is not what stands at {start} of its context", "the answer's own start"
            )
    return row | {"answers": list(answers), "starts": list(starts)}


def _picture(record: Record, columns: Mapping[str, Any], names: LabelNames) -> Row:
    return {"path": text_of(record, columns["path"]), "label": label_of(_cell(record, columns["label"]), names)}


def _transcript(record: Record, columns: Mapping[str, Any], names: LabelNames) -> Row:
    return {"path": text_of(record, columns["path"]), "text": text_of(record, columns["text"])}


Shaper = Callable[[Record, Mapping[str, Any], LabelNames], Row]
SHAPES: dict[str, Shaper] = {
    "classify": _classify,
    "regress": _regress,
    "choice": _forced_choice,
    "tag": _tag,
    "spans": _spans,
    "dependencies": _dependencies,
    "constituents": _constituents,
    "frames": _frames,
    "treebank": _treebank,
    "answer": _answer,
    "picture": _picture,
    "sound": _picture,
    "transcript": _transcript,
}


def row_texts(row: Row) -> dict[str, str]:
    """The texts a row shows a model, by field."""
    if "words" in row:
        return {"words": " ".join(row["words"])}
    return {name: row[name] for name in ("text", "text_b", "question", "context", "path") if row.get(name) is not None}


@lru_cache(maxsize=100_000)  # many questions share a context
def normalized(text: str) -> str:
    """Letters and digits only, lower case: different spellings and tokenizations of a text become equal.

    Example:
        >>> normalized("Don't STOP .") == normalized("do n't stop")
        True
    """
    return _NOT_LETTERS.sub("", unicodedata.normalize("NFKC", text).casefold())


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
    """How a table is read: its shape (texts, words, answers or recordings), and field to column."""

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
    guess = _guessed(record, coded)
    said = ", ".join(f"{column!r} as {field}" for field, column in guess.columns.items() if field != column)
    if said:
        warnings.warn(f"using column {said}", HeadwiseWarning, stacklevel=4)
    return guess


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
    if len(given) == 2 and isinstance(first, str) and first.lower().endswith(".wav"):
        return Reading("recordings", dict(zip(("path", "text"), given)))
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
    candidates = ["text"] if "text" in texts else texts
    return Reading("texts", {"text": _only("text", candidates, record, "", label), "label": label})


def _label(record: Record, coded: Sequence[str]) -> str:
    known = ["label"] if "label" in record else [name for name in LABELS if name in record]
    plain = [name for name in coded if not isinstance(record.get(name), list)]
    numbers = [name for name, value in record.items() if isinstance(value, int | float)]
    candidates = known or (plain if len(plain) == 1 else []) or (numbers if len(numbers) == 1 else [])
    if not candidates:
        texts = [name for name, value in record.items() if isinstance(value, str)]
        if len(texts) == 2 and len(record) == 2:
            return texts[1]
    return _only("label", candidates, record)


def _only(field: str, candidates: Sequence[str], record: Record, *beside: str) -> str:
    if len(candidates) == 1:
        return candidates[0]
    seen = f"{'no' if not candidates else 'several'} columns to read as {field}: {', '.join(candidates or record)}"
    example = ",".join([*[name for name in beside if name][:1], candidates[0] if candidates else "..."])
    hint = f"name=file:{example if field == 'labels' else 'text,label'}, or columns=(...)"
    raise HeadwiseError(seen, "the columns by name", hint)


def _is_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
