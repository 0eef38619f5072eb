"""Figures of the MESH recipe in the house style, drawn from the same records as its tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from headwise.papers.mesh.jobs import STARTS, WHAT
from headwise.papers.mesh.tables import (
    Records,
    _percent,
    _shots,
    found_shots,
    label,
    recovered,
    same_seeds,
    scored_pairs,
    seeds_of,
)
from headwise.papers.summary import student
from headwise.reporting.figures import INK, TASKS, house_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _sheet(columns: int, width: float, height: float) -> tuple[Figure, list[Any]]:
    with house_style() as plots:
        figure = plots.figure.Figure(figsize=(columns * width, height), layout="constrained")
        return figure, list(figure.subplots(1, columns, squeeze=False)[0])


def recovery(records: Records) -> Figure:
    """Mean score of all pairs by the share of heads closed: after recovery, dashed before it, dotted with all heads."""
    models = {m: {k: each for k, each in recovered(records, m).items() if k[1] == "all"} for m in records.models()}
    models = {model: by_trim for model, by_trim in models.items() if by_trim}
    figure, axes = _sheet(len(models), 3.0, 2.4)
    for axis, (model, by_trim) in zip(axes, models.items()):
        cut = [record for each in by_trim.values() for record in each]
        pairs = scored_pairs(cut)
        if whole := same_seeds(records.starts(model), cut):
            axis.axhline(_percent(whole, pairs).mean(), color=INK, linewidth=0.6, linestyle=":")
        for by, colour in zip(dict.fromkeys(key[0] for key in by_trim), TASKS):
            x = [100 * key[2] for key in by_trim if key[0] == by]
            for side, style in (("scores", "-"), ("cut", "--")):
                y = [_percent(each, pairs, side).mean() for key, each in by_trim.items() if key[0] == by]
                axis.plot(x, y, style, color=colour, marker="o", markersize=3, label=by if side == "scores" else None)
        axis.set_title(f"{model}, seeds: {seeds_of(by_trim)}")
        axis.set_xlabel("share of heads closed, %")
    axes[0].set_ylabel("mean score, %")
    axes[0].legend(fontsize=7)
    return figure


def meta_tests(records: Records, model: str) -> Figure:
    """Scores of the pairs held out by the number of examples: means, and 95 % intervals (three trainings or more)."""
    tested = {what: [r for start in STARTS for r in records.part(model, "meta", f"{what}: {start}")] for what in WHAT}
    panels = [
        (what, p) for what, each in tested.items() for p in dict.fromkeys(p for r in each for p in r.result["tests"])
    ]
    figure, axes = _sheet(len(panels), 2.6, 2.8)
    for axis, (what, pair) in zip(axes, panels):
        shots = [entry["shots"] for entry in found_shots(records, model, what)]
        for place, (start, colour) in enumerate(zip(STARTS, TASKS)):
            runs = [r for r in records.part(model, "meta", f"{what}: {start}") if pair in r.result["tests"]]
            if runs:
                y = [np.nan if v is None else v for v in _shots(runs, pair)]
                x = np.arange(len(shots)) + 0.08 * (place - (len(STARTS) - 1) / 2)
                axis.plot(x, y, color=colour, marker="o", markersize=3, label=start)
                entries = zip(*(record.result["tests"][pair]["shots"] for record in runs))
                for at, each in zip(x, entries if len(runs) > 2 else ()):  # of two it would fill the panel
                    ends = student(100 * entry["value"] for entry in each if entry["value"] is not None)
                    axis.plot([at] * 2, [np.nan if end is None else end for end in ends], color=colour, linewidth=0.7)
        axis.set_xticks(range(len(shots)), [str(n) for n in shots])
        axis.set_title(f"{label(pair)}: {what}", fontsize=7)
        axis.set_xlabel("examples")
    axes[0].set_ylabel("score, %")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=7)
    return figure
