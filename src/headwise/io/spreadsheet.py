"""CSV that is safe to open in spreadsheets, which run text that looks like a formula (no torch)."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import Any

NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n")


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    """Rows as csv; text that a spreadsheet would run is prefixed with an apostrophe, numbers are unchanged.

    Example:
        >>> csv_text([["=1+1", "-0.5", -0.5, "a"]])
        "'=1+1,-0.5,-0.5,a\\r\\n"
    """
    out = io.StringIO()
    csv.writer(out).writerows([_quoted(value) for value in row] for row in rows)
    return out.getvalue()


def read_cell(text: str) -> str:
    """The original value of a cell written by `csv_text`.

    Example:
        >>> read_cell("'=1+1")
        '=1+1'
    """
    return text[1:] if text.startswith("'") and _runs(text.lstrip("'")) else text


def _quoted(value: Any) -> Any:
    """Text that already starts with an apostrophe gets one too, so reading removes exactly one."""
    return f"'{value}" if isinstance(value, str) and _runs(value.lstrip("'")) else value


def _runs(text: str) -> bool:
    return text.startswith(FORMULAS) and not NUMBER.fullmatch(text)
