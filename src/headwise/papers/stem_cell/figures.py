"""Figures of the stem-cell recipe in the house style."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headwise.papers.stem_cell.claims import Claims
from headwise.papers.stem_cell.published import STAGES, TASKS
from headwise.papers.stem_cell.records import ALL, best_heads, between_runs
from headwise.papers.stem_cell.stages import Profile
from headwise.reporting.figures import INK, house_style
from headwise.reporting.figures import TASKS as COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def sheet(columns: int, rows: int = 1, width: float = 2.0, height: float = 2.0) -> tuple[Figure, list[Any]]:
    """A figure and its axes, row by row."""
    with house_style() as plots:
        figure = plots.figure.Figure(figsize=(columns * width, rows * height), layout="constrained")
        return figure, list(figure.subplots(rows, columns, squeeze=False).ravel())


def _map(axis: Any, values: np.ndarray, title: str, **how: Any) -> Any:
    """Heads by layers, the first layer at the bottom."""
    drawn = axis.imshow(values, origin="lower", aspect="auto", interpolation="nearest", **how)
    axis.set_title(title)
    axis.set_xticks([0, values.shape[1] - 1])
    axis.set_yticks([0, values.shape[0] - 1])
    axis.tick_params(length=0)
    axis.set_xlabel("head")
    return drawn


def overlaps(claims: Claims) -> Figure:
    """The gates of three runs as red, green and blue: black where all claim a head, white where none does."""
    figure, axes = sheet(len(claims.tasks))
    for axis, task in zip(axes, claims.tasks):
        _map(axis, claims.overlap(task).rgb, "all five" if task == ALL else task.upper())
    axes[0].set_ylabel("layer")
    return figure


def claimed(claims: Claims, every: Claims) -> Figure:
    """The mean gate over tasks and runs, how many tasks claim each head, and how gates of single runs go together."""
    figure, axes = sheet(3, width=2.6, height=2.3)
    drawn = [
        _map(axes[0], claims.average(), "mean gate", cmap="Greys", vmin=0, vmax=1),
        _map(axes[1], claims.per_head(), "tasks that claim it", cmap="Greys", vmin=0, vmax=len(claims.tasks)),
        _map(axes[2], between_runs(every), "r of single runs", cmap="RdBu_r", vmin=-1, vmax=1),
    ]
    for axis, each in zip(axes, drawn):
        figure.colorbar(each, ax=axis)
    names = ["all" if task == ALL else task.upper() for task in every.tasks]
    axes[0].set_ylabel("layer")
    axes[1].set_ylabel("layer")
    axes[2].set_xlabel("trained on")
    axes[2].set_xticks(range(len(names)), names, fontsize=6)
    axes[2].set_yticks(range(len(names)), names, fontsize=6)
    return figure


def closing(snapshots: Mapping[str, tuple[np.ndarray, np.ndarray]], most: int = 6) -> Figure:
    """Gates while they learn, from the first step to the last; a row for each training."""
    chosen = {
        name: np.unique(np.linspace(0, len(steps) - 1, min(most, len(steps))).round().astype(int))
        for name, (steps, _) in snapshots.items()
    }
    columns = max(map(len, chosen.values()))
    figure, axes = sheet(columns, len(chosen), width=1.5, height=1.6)
    for row, (name, (steps, gates)) in enumerate(snapshots.items()):
        here = axes[row * columns : (row + 1) * columns]
        for axis, i in zip(here, chosen[name]):
            _map(axis, gates[i], f"step {steps[i]}", cmap="Greys", vmin=0, vmax=1)
        for axis in here[len(chosen[name]) :]:
            axis.set_axis_off()
        here[0].set_ylabel(f"{name}: layer")
    return figure


def layers(profile: Profile, most: int = 12) -> Figure:
    """The best head of each label before training: its score and its layer; area is how often a label is asked for."""
    figure, axes = sheet(len(TASKS), width=2.1, height=2.4)
    for axis, task, colour in zip(axes, TASKS, COLOURS):
        part = profile.of_task(task)
        size = 60 * part.counts / max(1, part.counts.max()) + 4
        axis.scatter(part.layer, 100 * part.best, s=size, color=colour, alpha=0.6, linewidths=0)
        for i in np.argsort(-part.counts, kind="stable")[:most]:
            axis.annotate(part.labels[i], (part.layer[i], 100 * part.best[i]), fontsize=5, color=INK)
        axis.set_title(task.upper())
        axis.set_xlabel("layer")
        axis.set_xlim(-0.5, profile.scores.shape[1] - 0.5)
    axes[0].set_ylabel("right, %")
    return figure


def against_single(profiles: Mapping[str, Mapping[int, Profile]], most: int = 10) -> Figure:
    """The change of each label's best head against training its task alone: pretrained, in pairs, with all five."""
    by_stage = {stage: best_heads(each) for stage, each in profiles.items() if stage != "random"}
    single = by_stage.pop(STAGES[1])
    figure, axes = sheet(len(TASKS), width=2.3, height=3.0)
    for axis, task in zip(axes, TASKS):
        part = single.of_task(task)
        chosen = np.argsort(-part.counts, kind="stable")[:most][::-1]
        base = {part.labels[i]: float(part.best[i]) for i in chosen}
        axis.axvline(0, color=INK, linewidth=0.6)
        for stage, marker, colour in ((STAGES[0], "o", COLOURS[0]), ("pair", "|", COLOURS[1]), (STAGES[2], "D", INK)):
            _changes(axis, _stage(by_stage, stage, task), base, marker, colour, stage)
        axis.set_yticks(range(len(base)), list(base), fontsize=6)
        axis.set_title(task.upper())
        axis.set_xlabel("points")
    drawn = [axis for axis in axes if axis.get_legend_handles_labels()[0]]
    if drawn:
        drawn[0].legend(fontsize=6)
    return figure


def _stage(by_stage: Mapping[str, Profile], stage: str, task: str) -> list[Profile]:
    if stage != "pair":
        return [by_stage[stage].of_task(task)] if stage in by_stage else []
    return [each.of_task(task) for name, each in by_stage.items() if name.count("+") == 1 and task in name.split("+")]


def _changes(
    axis: Any, parts: Sequence[Profile], base: Mapping[str, float], marker: str, colour: str, stage: str
) -> None:
    places = {label: i for i, label in enumerate(base)}
    points = [
        (100 * (best - base[label]), places[label])
        for part in parts
        for label, best in zip(part.labels, part.best)
        if label in base
    ]
    if points:
        x, y = zip(*points)
        axis.scatter(x, y, marker=marker, color=colour, s=16, linewidths=1, label=stage)
