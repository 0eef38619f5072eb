"""Comma-separated values for spreadsheets, which run text that looks like a formula (no torch)."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import Any

NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n")


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    """Rows as csv; text that a spreadsheet would run gets an apostrophe before it, numbers stay as they are.

    Example:
        >>> csv_text([["=1+1", "-0.5", -0.5, "a"]])
        "'=1+1,-0.5,-0.5,a\\r\\n"
    """
    out = io.StringIO()
    csv.writer(out).writerows([_quoted(value) for value in row] for row in rows)
    return out.getvalue()


def read_cell(text: str) -> str:
    """A cell of `csv_text` as it was before it was written.

    Example:
        >>> read_cell("'=1+1")
        '=1+1'
    """
    return text[1:] if text.startswith("'") and _runs(text.lstrip("'")) else text


def _quoted(value: Any) -> Any:
    """Also text that has an apostrophe there already, so that reading back takes off one and no more."""
    return f"'{value}" if isinstance(value, str) and _runs(value.lstrip("'")) else value


def _runs(text: str) -> bool:
    return text.startswith(FORMULAS) and not NUMBER.fullmatch(text)
