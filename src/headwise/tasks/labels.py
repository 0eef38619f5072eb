"""The meaning of a label in a row: a name, a number that is a name, or an index if no name is a number (no torch)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from numbers import Integral, Real
from typing import Any

import numpy as np

from headwise.errors import HeadwiseError, unknown

_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?", re.ASCII)


def label_text(raw: Any) -> str:
    """A label as text; 1.0 and 1 are both written as 1.

    Example:
        >>> label_text(1), label_text(1.0), label_text("1.0"), label_text(True)
        ('1', '1', '1.0', 'True')
    """
    if type(raw) is str:
        return raw
    if type(raw) is int:
        return str(raw)
    if isinstance(raw, list | dict | tuple | set | np.ndarray):
        raise HeadwiseError(f"label {raw!r}"[:80], "one label, a text or a number")
    if raw is None or raw != raw:  # NaN, the missing value of tables
        raise HeadwiseError(f"label {raw!r}", "a label on every row")
    if isinstance(raw, Real) and not isinstance(raw, bool | Integral):
        value = float(raw)
        return str(int(value)) if value.is_integer() else str(value)
    return str(raw)


class LabelNames:
    """The labels of a task, with every way that rows may write them.

    A text that is a label means that label. A number, or its text, means the label of that value, or an index if no
    label is a number. True and False mean labels of that name in any case.

    Example:
        >>> LabelNames(("1", "2", "3")).of(1), LabelNames(("bad", "good")).of(1)
        ('1', 'good')
    """

    def __init__(self, labels: Sequence[str] = (), words: Mapping[str, str] | None = None):
        """``words`` are additional names for the labels, such as a file's abbreviations."""
        self.labels = tuple(labels)
        self.by_text = {**{label: label for label in labels}, **(words or {})}
        self.by_value: dict[Decimal, set[str]] = {}
        for text, label in self.by_text.items():
            if (value := _number(text)) is not None:
                self.by_value.setdefault(value, set()).add(label)

    def __bool__(self) -> bool:
        return bool(self.by_text)

    def find(self, raw: Any) -> str | None:
        """The label that is written as ``raw`` or has its value; None if there is none."""
        text = label_text(raw)
        if not isinstance(raw, float | bool) and text in self.by_text:
            return self.by_text[text]
        if isinstance(raw, bool | np.bool_):
            matches = {label for word, label in self.by_text.items() if word.casefold() == text.casefold()}
        else:
            matches = self.by_value.get(_number(text), set())  # type: ignore[arg-type]
        if len(matches) > 1:
            raise HeadwiseError(f"label {raw!r} could mean {' or '.join(sorted(matches))}", "the label as a text")
        return next(iter(matches), None)

    def of(self, raw: Any) -> str:
        """The label a file means by ``raw``."""
        label = self.find(raw)
        return self._indexed(raw) if label is None else label

    def _indexed(self, raw: Any) -> str:
        value, known = _number(label_text(raw)), sorted({*self.labels, *self.by_text.values()})
        if isinstance(raw, bool | np.bool_):
            raise HeadwiseError(f"label {raw}", f"one of: {', '.join(known)}", "write the name of the label")
        if value == -1:
            raise HeadwiseError("label -1", "a labelled split", "use dev: the published test labels are hidden")
        if value is None or self.by_value or value != int(value):
            raise unknown("label", raw, known)
        if not 0 <= value < len(self.labels):
            raise HeadwiseError(f"label {raw} is out of range", f"0 to {len(self.labels) - 1}")
        return self.labels[int(value)]


def meaning(label: str) -> str | Decimal:
    """The common meaning of labels written in different ways: their value, or their text without case and spaces."""
    text = " ".join(label.split()).casefold()
    value = _number(text)
    return text if value is None else value


def _number(text: str) -> Decimal | None:
    return Decimal(text) if _NUMBER.fullmatch(text) else None


@lru_cache(maxsize=64)
def _names_of(labels: tuple[str, ...]) -> LabelNames:
    return LabelNames(labels)


def row_labels(raw: Iterable[Any], labels: tuple[str, ...] = ()) -> list[str]:
    """Map labels of rows passed in Python to the names of a label set; unknown ones are kept as written.

    Example:
        >>> row_labels([5, "1", 7], ("1", "5"))
        ['5', '1', '7']
    """
    names = _names_of(labels)
    return [names.find(each) or label_text(each) for each in raw]
