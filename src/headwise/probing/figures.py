"""Figures of probe scores as Jo and Myaeng (2020) draw them: heat maps, the scatter of heads, the effect of n."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headwise.errors import missing_extra
from headwise.probing.roles import Scatter, score_map, shared_range, sorted_map

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from headwise.probing.utilization import EffectOfN

COLOURS = "plasma"


def heat_maps(
    maps: Mapping[str, Any], *, ordered: bool | None = False, shared: bool | str = False, columns: int = 5
) -> Figure:
    """One map per name, the first layer at the bottom; cut heads stay white.

    Args:
        maps: probes or ``(layers, heads)`` arrays, by title.
        ordered: sort each layer's heads, best first (Figures 3 and 6); False keeps their order (Figure 7); None draws
            both, sorted maps above.
        shared: use one colour range for all maps, or ("row") for those of each row (Figure 4).
        columns: maps per row.
    """
    width = min(columns, len(maps))
    rows = -(-len(maps) // width)
    orders = (True, False) if ordered is None else (ordered,)
    figure = _figure((2.2 * width, 2.3 * rows * len(orders)))
    each = list(maps.values())
    ranges = [shared_range(each[r * width :][:width] if shared == "row" else each) for r in range(rows)]
    for half, best_first in enumerate(orders):
        for number, (title, grid) in enumerate(maps.items(), half * rows * width + 1):
            axis = figure.add_subplot(rows * len(orders), width, number)
            place = number - 1 - half * rows * width
            _map(figure, axis, grid, best_first, ranges[place // width] if shared else (None, None))
            axis.set_title(title, fontsize=8)
    return figure


def _map(figure: Figure, axis: Any, grid: Any, ordered: bool, span: tuple[float | None, float | None]) -> None:
    scores = sorted_map(grid) if ordered else score_map(grid)
    # a picture: with a path for each cell the file has three times the size
    drawn = axis.pcolormesh(scores, cmap=COLOURS, vmin=span[0], vmax=span[1], rasterized=True)
    axis.set_xticks([0.5, scores.shape[1] - 0.5], ["", ""] if ordered else ["0", str(scores.shape[1] - 1)])
    axis.set_yticks([0.5, len(scores) - 0.5], ["0", str(len(scores) - 1)])
    axis.tick_params(labelsize=7, length=0)
    axis.set_xlabel("heads, best first" if ordered else "head", fontsize=7)
    axis.set_ylabel("layer", fontsize=7)
    figure.colorbar(drawn, ax=axis).ax.tick_params(labelsize=6)


def scatters(by_model: Mapping[str, Scatter], columns: int = 4) -> Figure:
    """Heads by their scores on two groups of properties, coloured by layer, one plot per model (Figure 5)."""
    width = min(columns, len(by_model))
    rows = -(-len(by_model) // width)
    figure = _figure((2.8 * width, 2.6 * rows))
    for number, (title, points) in enumerate(by_model.items()):
        axis = figure.add_subplot(rows, width, number + 1)
        drawn = axis.scatter(points.x, points.y, c=points.layer, s=7, cmap="gist_rainbow")
        ends = np.array([points.x.min(), points.x.max()])
        axis.plot(ends, points.fit.slope * ends + points.fit.intercept, color="0.4", linewidth=0.8)
        axis.set_title(f"{title}, r = {points.fit.r:.2f}", fontsize=8)
        names = list(points.groups)
        axis.set_xlabel(names[0], fontsize=7)
        axis.set_ylabel(names[1], fontsize=7)
        axis.tick_params(labelsize=6)
        figure.colorbar(drawn, ax=axis, label="layer").ax.tick_params(labelsize=6)
    return figure


def curves(by_model: Mapping[str, Sequence[EffectOfN]], columns: int = 3) -> Figure:
    """Test score against the number of concatenated heads, one plot per model."""
    width = min(columns, len(by_model))
    rows = -(-len(by_model) // width)
    figure = _figure((2.8 * width + 1.4, 2.3 * rows))
    tasks = list(dict.fromkeys(each.task for effects in by_model.values() for each in effects))
    lines = {}
    for number, (title, effects) in enumerate(by_model.items()):
        axis = figure.add_subplot(rows, width, number + 1)
        for each in effects:
            colour = f"C{tasks.index(each.task)}"
            (lines[each.task],) = axis.plot(each.sizes, each.test, marker=".", linewidth=1, color=colour)
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter(lambda x, place: "")
        axis.set_title(title, fontsize=8)
        axis.set_xlabel("heads", fontsize=7)
        axis.set_ylabel("test score", fontsize=7)
        axis.tick_params(labelsize=6)
    names = [task.rpartition(".")[2].replace("_", " ") for task in lines]
    figure.legend(list(lines.values()), names, fontsize=7, loc="outside right center")
    return figure


def _figure(size: tuple[float, float]) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise missing_extra("matplotlib", "plots", "drawing figures") from None
    return Figure(figsize=size, layout="constrained")
