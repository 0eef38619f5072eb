"""How results show themselves in a notebook: small tables and heat maps in plain HTML (no torch, no script).

``RAMP`` is the sequential scale of notebook, page and figures: lightness rises in even steps (OKLCH 0.235 to 0.97) from
indigo over teal to cream, so order survives any kind of colour vision and a grey print.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

RAMP = (
    "#1c1444",
    "#1f2a60",
    "#14437a",
    "#035e87",
    "#017891",
    "#0c9398",
    "#3cac99",
    "#7ac099",
    "#aed1a3",
    "#dae2bb",
    "#fbf5df",
)
CELL = "width:1.6em;height:1.6em;padding:0;border:1px solid #fff"
TEXT = "padding:2px 8px;text-align:right;font-size:90%"


def heat_map(scores: Any, title: str = "", note: str = "", digits: int = 4) -> str:
    """A (layers, heads) map as HTML: the first layer at the bottom, darker is more; each cell's number on hovering.

    Example:
        >>> heat_map([[0.1, 0.9]], "sst2").count("<td")
        2
    """
    rows = [[float(v) if v is not None else math.nan for v in row] for row in scores]
    known = [v for row in rows for v in row if math.isfinite(v)]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    lines = []
    for layer in reversed(range(len(rows))):
        cells = [_cell(v, low, high, f"{layer}.{head}: {v:.{digits}g}") for head, v in enumerate(rows[layer])]
        lines.append(f"<tr><th style='{TEXT}'>{layer}</th>{''.join(cells)}</tr>")
    legend = f"{low:.{digits}g} (light) to {high:.{digits}g} (dark)"
    return _framed(
        title, f"<table style='border-collapse:collapse'>{''.join(lines)}</table>", f"{legend}. {note}".strip()
    )


def _cell(value: float, low: float, high: float, said: str) -> str:
    if not math.isfinite(value):
        return f"<td style='{CELL}' title='cut'></td>"
    share = (value - low) / ((high - low) or 1.0)
    colour = RAMP[round((1 - share) * (len(RAMP) - 1))]
    return f"<td style='{CELL};background:{colour}' title='{escape(said)}'></td>"


def table(columns: Sequence[Any], rows: Sequence[Sequence[Any]], title: str = "", note: str = "") -> str:
    """A table as HTML; numbers with three digits, everything escaped."""
    head = "".join(f"<th style='{TEXT}'>{escape(str(name))}</th>" for name in columns)
    body = "".join("<tr>" + "".join(f"<td style='{TEXT}'>{_word(v)}</td>" for v in row) + "</tr>" for row in rows)
    return _framed(title, f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>", note)


def _word(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}" if math.isfinite(value) else "–"
    return escape("–" if value is None else str(value))


def _framed(title: str, inner: str, note: str) -> str:
    before = f"<p><b>{escape(title)}</b></p>" if title else ""
    after = f"<p style='font-size:85%;opacity:.75'>{escape(note)}</p>" if note else ""
    return f"<div>{before}{inner}{after}</div>"
