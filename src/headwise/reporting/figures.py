"""Figures for papers in one house style: svg, pdf or png by matplotlib (extra ``plots``).

Figures are made without pyplot: no global state, no window, nothing to close.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.errors import HeadwiseError, missing_extra, unknown
from headwise.io.display import RAMP
from headwise.io.files import write
from headwise.study.schema import checked, lesion_columns, nearest, relative

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["RAMP", "TASKS", "task_class", "task_colour", "task_rules"]

TASKS = (
    "#1f5fbf",
    "#f0a41f",
    "#6fbf98",
    "#8c2a5c",
    "#d55e00",
    "#56b4e9",
    "#f0e442",
    "#7a6fc4",
    "#9c6b43",
    "#8a8f2a",
)


def task_colour(study: Mapping, name: str, otherwise: str = "#1d2126") -> str:
    """The colour of a task by its position in the study; the list repeats after ten."""
    names = [task["name"] for task in study["tasks"]]
    return TASKS[names.index(name) % len(TASKS)] if name in names else otherwise


def task_class(study: Mapping, name: str) -> str:
    """The style class that gives a task its colour; empty for a name that is no task of the study."""
    colour = task_colour(study, name, "")
    return f"c{TASKS.index(colour)}" if colour else ""


def task_rules() -> str:
    """The task colours as style rules: ``.c3`` sets ``--c``, and ``--on`` for letters on it."""
    return "".join(f".c{i}{{--c:{colour};--on:{_letters_on(colour)}}}\n" for i, colour in enumerate(TASKS))


def _letters_on(colour: str) -> str:
    """Black or white, whichever has the higher contrast (WCAG 2)."""
    red, green, blue = (_linear(int(colour[i : i + 2], 16) / 255) for i in (1, 3, 5))
    return "#ffffff" if 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.179 else "#14161b"


def _linear(value: float) -> float:
    return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4


STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.edgecolor": "#5c646d",
    "axes.grid": False,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.color": "#1d2126",
    "ytick.color": "#1d2126",
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "figure.dpi": 150,
    "savefig.bbox": "tight",
    "svg.fonttype": "none",
    "svg.hashsalt": "headwise",
    "pdf.fonttype": 42,
}
INK = "#1d2126"


@contextmanager
def house_style() -> Iterator[Any]:
    """The house style for what is drawn or saved inside; yields the matplotlib module."""
    try:
        import matplotlib
        import matplotlib.figure
    except ImportError:
        raise missing_extra("matplotlib", "plots", "drawing figures") from None
    with matplotlib.rc_context(STYLE):
        yield matplotlib


def draw(study: Mapping, folder: str | Path, form: str = "svg") -> list[Path]:
    """Draw every figure the study has data for into a folder; returns the files.

    Example::

        draw(study, "figures", "pdf")  # figures/heads.pdf, figures/lesions.pdf, ...
    """
    if form not in ("svg", "pdf", "png"):
        raise unknown("form of figure", form, ("svg", "pdf", "png"))
    made = []
    for name, (needs, figure) in FIGURES.items():
        if _holds(study, needs):
            made.append(save(figure(study), Path(folder) / f"{name}.{form}"))
    return made


def save(figure: Figure, path: str | Path) -> Path:
    """Write a figure in the form its file name says, without a date: the same figure, the same bytes."""
    path, content = Path(path), io.BytesIO()
    undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix, {})
    with house_style():
        figure.savefig(content, format=path.suffix[1:], metadata=undated)
    return write(path, content.getvalue())


def heads(study: Mapping, tasks: Sequence[str] = ()) -> Figure:
    """One map per task: layers by heads, the first layer at the bottom, darker is more important."""
    data = checked(study)
    names = list(tasks) or list(data["importance"])
    columns = min(4, len(names))
    with house_style() as plots:
        rows = math.ceil(len(names) / columns)
        tall = 0.5 + 2.1 * data["model"]["layers"] / data["model"]["heads"]
        figure, axes = _sheet(plots, columns, rows, 2.1, tall)
        for axis, name in zip(axes, names):
            _head_map(axis, data["importance"][name]["scores"], name, plots)
        for axis in axes[len(names) :]:
            axis.remove()
    return figure


def _head_map(axis: Axes, scores: list[list[float | None]], title: str, plots: Any) -> None:
    values = [[math.nan if score is None else score for score in row] for row in scores]
    axis.pcolormesh(values, cmap=_ramp(plots), edgecolors="white", linewidth=0.4)
    axis.set_title(title)
    axis.set_aspect("equal")
    _quiet(axis)
    layers, width = len(values), len(values[0])
    axis.set_xticks([0.5, width - 0.5], ["0", str(width - 1)])
    axis.set_yticks([0.5, layers - 0.5], ["0", str(layers - 1)])
    axis.set_xlabel("head", labelpad=-6)
    axis.set_ylabel("layer", labelpad=-4)


def lesions(study: Mapping, fraction: float | None = None) -> Figure:
    """Relative performance of every task (rows) when the heads of each (columns) are ablated, in percent."""
    part = _dissociation(study)
    at = nearest(part["fractions"], part["default"] if fraction is None else fraction)
    places = {lesion: at for lesion, at in lesion_columns(part).items() if lesion != "none"}
    values = [[_mean([_percent(row[j]) for j in at]) for at in places.values()] for row in relative(part, at)]
    with house_style() as plots:
        figure, (axis,) = _sheet(plots, 1, 1, 0.9 + 0.5 * len(places), 0.8 + 0.33 * len(values))
        axis.pcolormesh(values, cmap=_ramp(plots, falling=True), vmax=100, edgecolors="white", linewidth=1.5)
        low = min((v for row in values for v in row if not math.isnan(v)), default=0.0)
        for i, row in enumerate(values):
            for j, value in enumerate(row):
                pale = (100 - value) / max(1e-9, 100 - low) < 0.45
                axis.text(j + 0.5, i + 0.5, f"{value:.0f}", ha="center", va="center", color=INK if pale else "white")
        axis.set_xticks([j + 0.5 for j in range(len(places))], list(places), rotation=30, ha="right")
        axis.set_yticks([i + 0.5 for i in range(len(values))], part["tasks"])
        axis.invert_yaxis()
        _quiet(axis)
        axis.set_title(f"Performance left, % (α = {part['fractions'][at]:g})")
    return figure


def dissociation(study: Mapping, fraction: float | None = None) -> Figure:
    """D of every task and their mean with intervals, in percentage points."""
    part = _dissociation(study)
    entries = part["D"]
    entry = entries[nearest([e["fraction"] for e in entries], part["default"] if fraction is None else fraction)]
    rows = {**entry["tasks"], **({"mean": entry["mean"]} if entry.get("mean") else {})}
    with house_style() as plots:
        figure, (axis,) = _sheet(plots, 1, 1, 3.4, 0.6 + 0.24 * len(rows))
        axis.axvline(0, color=INK, linewidth=0.6)
        axis.axvline(10, color=INK, linewidth=0.6, linestyle=":")
        for i, (name, score) in enumerate(rows.items()):
            colour = task_colour(study, name, INK)
            if score.get("low") is not None:
                axis.plot([100 * score["low"], 100 * score["high"]], [i, i], color=colour, alpha=0.4, linewidth=4)
            axis.plot([_percent(score["value"])], [i], "o", color=colour, markersize=4.5)
        axis.set_yticks(range(len(rows)), list(rows))
        axis.invert_yaxis()
        axis.set_xlabel("D, percentage points")
        axis.set_title(f"Dissociation (α = {entry['fraction']:g})")
    return figure


def dissociation_curve(study: Mapping) -> Figure:
    """D of every task and their mean against the fraction of heads ablated."""
    entries = _dissociation(study)["D"]
    x = [100 * entry["fraction"] for entry in entries]
    with house_style() as plots:
        figure, (axis,) = _sheet(plots, 1, 1, 3.4, 2.3)
        axis.axhline(0, color=INK, linewidth=0.6)
        for name in entries[0]["tasks"]:
            d = [_percent(entry["tasks"][name]["value"]) for entry in entries]
            axis.plot(x, d, color=task_colour(study, name, INK), label=name)
        if entries[0].get("mean"):
            axis.plot(x, [_percent(e["mean"]["value"]) for e in entries], color=INK, linewidth=2.2, label="mean")
        axis.set_xlabel("heads ablated, %")
        axis.set_ylabel("D, percentage points")
        axis.legend(fontsize=7, ncols=2)
    return figure


def training(study: Mapping) -> Figure:
    """Loss and held-out metric of every task over the steps of training."""
    runs = checked(study)["training"]["tasks"]
    with house_style() as plots:
        figure, axes = _sheet(plots, 2, 1, 3.2, 2.2)
        for axis, x, y in zip(axes, ("step", "metric_step"), ("loss", "metric")):
            for name, run in runs.items():
                values = [math.nan if v is None else v for v in run.get(y) or []]
                axis.plot(run.get(x) or range(len(values)), values, color=task_colour(study, name, INK), label=name)
            axis.set_title(y)
            axis.set_xlabel("step")
        axes[0].legend(fontsize=7)
    return figure


def similarity(study: Mapping) -> Figure:
    """D of each pair of tasks against their similarity, with the fitted line, one panel per measure."""
    part = checked(study)["similarity"]
    measures = list(dict.fromkeys(point["measure"] for point in part["points"]))
    with house_style() as plots:
        figure, axes = _sheet(plots, len(measures), 1, 2.6, 2.3)
        for axis, measure in zip(axes, measures):
            points = [p for p in part["points"] if p["measure"] == measure and None not in (p["similarity"], p["d"])]
            x = [point["similarity"] for point in points]
            axis.plot(x, [100 * point["d"] for point in points], "o", color=RAMP[3], markersize=4)
            fit = (part.get("fits") or {}).get(measure)
            if fit and fit["r"] is not None and x:
                ends = [min(x), max(x)]
                axis.plot(
                    ends, [100 * (fit["intercept"] + fit["slope"] * v) for v in ends], "--", color=INK, linewidth=1
                )
                axis.set_title(f"{measure}, r = {fit['r']:.2f}")
            axis.set_xlabel("similarity")
            axis.set_ylabel("D, percentage points")
    return figure


FIGURES: dict[str, tuple[str, Callable[[Mapping], Figure]]] = {
    "heads": ("importance", heads),
    "lesions": ("dissociation.performance", lesions),
    "dissociation": ("dissociation.D", dissociation),
    "dissociation-curve": ("dissociation.D", dissociation_curve),
    "training": ("training.tasks", training),
    "similarity": ("similarity.points", similarity),
}


def _holds(study: Any, needs: str) -> bool:
    for part in needs.split("."):
        study = study.get(part)
        if study is None or len(study) == 0:
            return False
    return True


def _dissociation(study: Mapping) -> dict[str, Any]:
    part = checked(study).get("dissociation")
    if not part:
        raise HeadwiseError("a study without lesions", "a part named 'dissociation'")
    return part


def _sheet(plots: Any, columns: int, rows: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    figure = plots.figure.Figure(figsize=(columns * width, rows * height), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    return figure, axes


def _ramp(plots: Any, falling: bool = False) -> Any:
    """Light for small values, dark for large ones; reversed when falling."""
    return plots.colors.LinearSegmentedColormap.from_list("headwise", RAMP if falling else RAMP[::-1])


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _percent(value: float | None) -> float:
    return math.nan if value is None else 100 * value


def _quiet(axis: Axes) -> None:
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0)
