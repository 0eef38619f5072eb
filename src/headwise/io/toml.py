"""TOML files of plans, studies and sweeps (no torch)."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
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
