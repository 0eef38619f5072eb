"""The first section of a page: up to three claims with intervals and baselines, and one figure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from textwrap import wrap
from typing import Any, NamedTuple

from headwise.papers.recipe import Part
from headwise.papers.summary import mean_sd, student, table

TITLE = "In short"
WIDE = 92  # letters of a claim in one line of the figure
COLOURS = {"measured": "#0072b2", "baseline": "#d55e00", "control": "#7a7f85", "published": "#1d2126"}  # Okabe-Ito


class Row(NamedTuple):
    """One number with its interval."""

    what: str
    kind: str
    """Of `COLOURS`."""
    value: float
    low: float | None = None
    high: float | None = None
    n: str = ""


@dataclass(frozen=True)
class Claim:
    """A sentence and the numbers that support it."""

    says: str
    axis: str
    rows: Sequence[Row]
    at: float | None = 0.0
    """The value of no effect; a line in the figure."""


def row(what: str, kind: str, values: Iterable[float | None], unit: str = "") -> list[Row]:
    """A row of values over seeds, models or tasks with Student's interval; none without values.

    Example:
        >>> row("trained", "measured", [1.0, 2.0, 3.0])[0].value
        2.0
    """
    kept = [value for value in values if value is not None and value == value]
    return [Row(what, kind, mean_sd(kept)[0], *student(kept), f"{len(kept)} {unit}".strip())] if kept else []  # type: ignore[arg-type]


def in_short(claims: Iterable[Claim | None]) -> Part:
    """The first section of a page; empty where nothing was measured."""
    kept = [claim for claim in claims if claim and claim.rows]
    if not kept:
        return Part(TITLE)
    text = "\n\n".join(f"{number}. {claim.says}" for number, claim in enumerate(kept, 1))
    rows = [[number, *each] for number, claim in enumerate(kept, 1) for each in claim.rows]
    columns = ["claim", "what", "kind", "value", "low", "high", "n"]
    note = "Intervals: 95 %, Student's t over the units that n counts, unless the section says otherwise."
    return Part(TITLE, text, [table("Numbers of the claims", columns, rows, note)], {"in short": partial(drawn, kept)})


def drawn(claims: Sequence[Claim]) -> Any:
    """One panel for each claim: dots with 95 % intervals; orange is the baseline, grey the control."""
    from matplotlib.figure import Figure

    lines = [len(wrap(f"{number}. {claim.says}", WIDE)) for number, claim in enumerate(claims, 1)]
    heights = [0.65 + 0.14 * count + 0.24 * len(claim.rows) for count, claim in zip(lines, claims)]
    figure = Figure(figsize=(6.2, sum(heights)), layout="constrained")
    axes = figure.subplots(len(claims), 1, squeeze=False, height_ratios=heights)[:, 0]
    for number, (axis, claim) in enumerate(zip(axes, claims), 1):
        for place, each in enumerate(claim.rows):
            colour = COLOURS[each.kind]
            axis.plot([each.value], [place], "D" if each.kind == "published" else "o", color=colour, markersize=4)
            if each.low is not None and each.high is not None:
                axis.plot([each.low, each.high], [place, place], color=colour, linewidth=1.2)
            axis.annotate(f"  {each.value:.2f}", (each.value, place), xytext=(0, 4), textcoords="offset points", size=6)
        if claim.at is not None:
            axis.axvline(claim.at, color=COLOURS["published"], linewidth=0.6)
        axis.set_yticks(range(len(claim.rows)), [each.what for each in claim.rows])
        axis.set(ylim=(len(claim.rows) - 0.4, -0.6), xlabel=claim.axis)
        axis.set_title("\n".join(wrap(f"{number}. {claim.says}", WIDE)), loc="left", fontsize=8)
    return figure
