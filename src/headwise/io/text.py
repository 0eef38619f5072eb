"""Text files that people edit: TOML of plans, studies and sweeps, and CSV that is safe to open in spreadsheets.

Spreadsheets run text that looks like a formula.
"""

from __future__ import annotations

import csv
import io
import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headwise.errors import HeadwiseError


def read_toml(path: str | Path, what: str, example: str) -> dict[str, Any]:
    """The values of a TOML file; ``what`` and ``example`` appear in errors."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise HeadwiseError(f"no {what} at {path}") from None
    except (ValueError, RecursionError, IsADirectoryError) as error:
        raise HeadwiseError(f"{path} is not TOML ({error})", f"lines such as: {example}") from None


def to_toml(values: Mapping[str, Any]) -> str:
    """Values as TOML; None is omitted, a mapping becomes a table at the end.

    Example:
        >>> print(to_toml({"lr": 0.1, "plan": {"steps": 3}, "order": ["a"], "clip": None}))
        lr = 0.1
        order = ["a"]
        <BLANKLINE>
        [plan]
        steps = 3
        <BLANKLINE>
    """
    lines = [f"{name} = {_toml(v)}\n" for name, v in values.items() if v is not None and not isinstance(v, Mapping)]
    tables = [f"\n[{name}]\n{to_toml(v)}" for name, v in values.items() if isinstance(v, Mapping)]
    return "".join([*lines, *tables])


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return "[" + ", ".join(map(_toml, value)) + "]" if isinstance(value, (list, tuple)) else repr(value)


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
