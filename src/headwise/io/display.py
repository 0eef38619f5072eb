"""Results in a notebook: HTML tables, heat maps, DataFrames and plots (no torch, no script).

``RAMP`` is the sequential scale of notebook, page and figures: lightness rises in even steps (OKLCH 0.235 to 0.97) from
indigo through teal to cream, so the order is visible in any kind of colour vision and in greyscale.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from importlib import import_module
from typing import Any

from headwise.errors import missing_extra

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
SHOWN = 20  # records in a notebook
CELL = "width:1.6em;height:1.6em;padding:0;border:1px solid #fff"
TEXT = "padding:2px 8px;text-align:right;font-size:90%"


def heat_map(scores: Any, title: str = "", note: str = "", digits: int = 4) -> str:
    """A (layers, heads) map as HTML: first layer at the bottom, darker is larger, values on hover.

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
    """An HTML table; numbers have three digits, and everything is escaped."""
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


# -- DataFrames and plots


class Shown:
    """What every result offers: ``to_records()`` of its own, a DataFrame and a table of them, and a plot of its own."""

    def to_records(self) -> list[dict[str, Any]]:
        """One flat record per measurement."""
        raise NotImplementedError

    def to_frame(self) -> Any:
        """The records as a pandas DataFrame.

        Example:
            >>> importance(model, "sst2").to_frame().nlargest(5, "score")  # doctest: +SKIP
        """
        try:
            pandas = import_module("pandas")
        except ImportError:
            raise missing_extra("pandas", "plots", "a DataFrame", "to_records()") from None
        return pandas.DataFrame(self.to_records())

    def _repr_html_(self) -> str:
        records = self.to_records()
        more = f"{len(records) - SHOWN} more" if len(records) > SHOWN else ""
        return table(list(records[0]) if records else [], [list(r.values()) for r in records[:SHOWN]], note=more)


def map_records(**maps: Any) -> list[dict[str, Any]]:
    """Maps of shape (layers, heads) as records with ``layer`` and ``head``; maps that are None are omitted.

    Example:
        >>> map_records(score=[[0.1, 0.9]])
        [{'layer': 0, 'head': 0, 'score': 0.1}, {'layer': 0, 'head': 1, 'score': 0.9}]
    """
    known = {name: [list(map(float, row)) for row in values] for name, values in maps.items() if values is not None}
    first = next(iter(known.values()))
    places = [(layer, head) for layer, row in enumerate(first) for head in range(len(row))]
    return [{"layer": i, "head": j} | {name: values[i][j] for name, values in known.items()} for i, j in places]


def axes(ax: Any = None, size: tuple[float, float] = (4.0, 3.0)) -> Any:
    """The axes given, or those of a new figure, which a notebook shows."""
    if ax is not None:
        return ax
    try:
        return import_module("matplotlib.pyplot").subplots(figsize=size, layout="constrained")[1]
    except ImportError:
        raise missing_extra("matplotlib", "plots", "a plot") from None


def plot_curves(
    x: Sequence[float] | Sequence[str],
    curves: Mapping[str, Sequence[float]],
    band: Any = None,
    ax: Any = None,
    **labels: str,
) -> Any:
    """Curves over x by name; ``band`` is (name, low, high), a shaded range. Returns the axes."""
    ax = axes(ax, (5.0, 3.2))
    if band is not None:
        ax.fill_between(x, band[1], band[2], color="0.85", label=band[0])
    for name, y in curves.items():
        ax.plot(x, y, marker="o", label=name)
    ax.set(**labels)
    ax.legend(frameon=False)
    return ax


def plot_map(scores: Any, title: str, ax: Any = None, label: str = "") -> Any:
    """Plot a (layers, heads) map: first layer at the bottom, darker is larger, cut heads white. Returns the axes."""
    rows = [[float(v) for v in row] for row in scores]
    size = (1.4 + 0.3 * max(len(row) for row in rows), 1.2 + 0.26 * len(rows))
    ax = axes(ax, size)
    colours = import_module("matplotlib.colors").LinearSegmentedColormap.from_list("headwise", RAMP[::-1])
    drawn = ax.pcolormesh(rows, cmap=colours, edgecolors="white", linewidth=0.5)
    for axis, count in ((ax.xaxis, len(rows[0])), (ax.yaxis, len(rows))):
        step = 1 if count <= 12 else 4
        axis.set_ticks([i + 0.5 for i in range(0, count, step)], [str(i) for i in range(0, count, step)])
    ax.set(title=title, xlabel="head", ylabel="layer", aspect="equal")
    ax.figure.colorbar(drawn, ax=ax, label=label, shrink=0.8)
    return ax


def plot_matrix(
    values: Any, rows: Sequence[str], columns: Sequence[str], title: str, ax: Any = None, percent: bool = True
) -> Any:
    """Plot a matrix with its numbers, changes in percentage points: red is worse, blue is better. Returns the axes."""
    table = [[(100 if percent else 1) * float(v) for v in row] for row in values]
    ax = axes(ax, (1.6 + 0.8 * len(columns), 1.2 + 0.5 * len(rows)))
    reach = max((abs(v) for row in table for v in row if math.isfinite(v)), default=1.0) or 1.0
    drawn = ax.imshow(table, cmap="RdBu", vmin=-reach, vmax=reach, aspect="auto")
    for i, row in enumerate(table):
        for j, value in enumerate(row):
            colour = "white" if abs(value) > 0.6 * reach else "black"
            word = f"{value:+.1f}" if percent else f"{value:.2f}"
            ax.text(j, i, word if math.isfinite(value) else "", ha="center", va="center", color=colour, fontsize=9)
    ax.set_xticks(range(len(columns)), columns, rotation=30, ha="right")
    ax.set_yticks(range(len(rows)), rows)
    ax.set(title=title)
    ax.figure.colorbar(drawn, ax=ax, label="change, percentage points" if percent else "")
    return ax
