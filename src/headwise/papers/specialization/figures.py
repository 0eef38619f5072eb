"""Figures of the specialization recipe in the house style, drawn from the same records as its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headwise.errors import HeadwiseError
from headwise.papers.specialization.records import Lesioned, Records, label
from headwise.papers.specialization.similarity import similarities
from headwise.papers.specialization.sweeps import Axis
from headwise.papers.specialization.tables import in_order, pairwise_d
from headwise.papers.specialization.training import CLIPPED, CLIPPED_BEST, gaps
from headwise.papers.specialization.transfer import Transfer
from headwise.papers.summary import student
from headwise.reporting.figures import INK, RAMP, TASKS, house_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from headwise.dissociation.similarity import Similarity

ALIKE = {
    "dse": "similarity of sentence vectors (DSE)",
    "cra": "similarity of sentence vectors (CRA)",
    "ahp": "transfer between tasks (AHP)",
    "overlap": "shared top heads",
    "rank": "rank correlation of importance",
}
SWEPT = {"α": "α: fraction of heads trained", "δ": "δ: last fraction of training"}
OURS = ("a factor", "a rate", CLIPPED_BEST)
SHOWN = {  # names of tables, as a reader knows the methods
    "single": "a model for each task",
    "iat": "IAT, most important heads",
    "random heads": "IAT, random heads",
    "bottom heads": "IAT, least important heads",
    "ticket-share": "Ticket-Share",
    "prune least": "pruning while training",
    "mt-dnn": "MT-DNN (clips gradients)",
    "distilled": "a student of half the layers",
    CLIPPED: "plain training, gradients clipped",
    "a rate per head and task": "learning rate per head and task",
    "a factor per head and task": "Scales, rate 0.003",
    "a factor per head and task, faster": "Scales (per head and task), rate 0.03",
    CLIPPED_BEST: "Scales, rate 0.03, gradients clipped",
    "a factor per layer and task, faster": "Scales tied in a layer, rate 0.03",
    "a factor per head, faster": "Scales tied over tasks, rate 0.03",
}
FITTED = 8  # pairs; a line through fewer says nothing


def _sheet(columns: int, width: float, height: float, rows: int = 1) -> tuple[Figure, list[Any]]:
    """A figure and its axes, row by row."""
    with house_style() as plots:
        figure = plots.figure.Figure(figsize=(columns * width, rows * height), layout="constrained")
        return figure, list(figure.subplots(rows, columns, squeeze=False).ravel())


def _models(names: Sequence[str], xlabel: str, ylabel: str) -> tuple[Figure, dict[str, Any]]:
    """A figure and one panel for each model, three in a row."""
    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    figure, axes = _sheet(columns, 2.6 if len(names) > 1 else 3.6, 2.0 if len(names) > 1 else 2.3, rows)
    for place, axis in enumerate(axes):
        axis.set_visible(place < len(names))
        axis.set_xlabel(xlabel if place + columns >= len(names) else "")
        axis.set_ylabel(ylabel if place % columns == 0 else "")
    panels = dict(zip(names, axes))
    for name, axis in panels.items():
        axis.set_title(name)
    return figure, panels


def _colours(five: Mapping[str, Sequence[Lesioned]]) -> dict[str, str]:
    """One colour per task in all panels."""
    tasks = [task for lesioned in five.values() for task in lesioned[0].trained.tasks]
    return dict(zip(in_order(list(dict.fromkeys(tasks))), TASKS))


def _legend_of_all(figure: Figure) -> None:
    lines = {str(line.get_label()): line for axis in figure.axes for line in axis.get_legend_handles_labels()[0]}
    figure.legend(list(lines.values()), list(lines), fontsize=7, loc="outside right center")


def layers(five: Mapping[str, Sequence[Lesioned]]) -> Figure:
    """Figure 4: top heads per layer, one line per task, their mean in ink; a panel for each model."""
    figure, panels = _models(list(five), "layer", "top heads")
    colours = _colours(five)
    for model, axis in panels.items():
        tasks = in_order(five[model][0].trained.tasks)
        counts = np.mean([[one.top(task).sum(1) for task in tasks] for one in five[model]], 0)
        x = np.arange(1, counts.shape[1] + 1)
        for task, line in zip(tasks, counts):
            axis.plot(x, line, color=colours[task], label=label(task))
        axis.plot(x, counts.mean(0), color=INK, linewidth=2.2, label="mean")
        axis.set_xticks(x[:: 1 + len(x) // 10])  # more labels would overlap
    _legend_of_all(figure)
    return figure


def encoders(every: Mapping[str, Sequence[Lesioned]]) -> Figure:
    """D on accuracy of every task in every model, the most heads above: a dot for each task, a stroke for each seed."""
    tasks = in_order(next(iter(every.values()))[0].trained.tasks)
    figure, (axis,) = _sheet(1, 5.0, 0.7 + 0.32 * len(every))
    axis.axvline(0, color=INK, linewidth=0.6)
    for place, lesioned in enumerate(every.values()):
        for number, (task, colour) in enumerate(zip(tasks, TASKS)):
            each = [d for one in lesioned if (d := one.on_accuracy(task)) is not None]
            at, shown = place + 0.13 * (number - (len(tasks) - 1) / 2), label(task) if not place else None
            axis.plot(each, [at] * len(each), "|", color=colour, markersize=5, alpha=0.6)
            if each:
                axis.plot([np.mean(each)], [at], "o", color=colour, markersize=4.5, label=shown)
    axis.set_yticks(range(len(every)), list(every))
    axis.invert_yaxis()
    axis.set_xlabel("D on accuracy, percentage points")
    _legend_beside(axis)
    return figure


def _legend_beside(axis: Any) -> None:
    axis.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))


def shares(five: Mapping[str, Sequence[Lesioned]]) -> Figure:
    """D on accuracy of every task by the share of heads closed: means, and the lowest and highest seed as a band."""
    figure, panels = _models(list(five), "heads closed, %", "D on accuracy, points")
    colours = _colours(five)
    for model, axis in panels.items():
        parts = [one.result["dissociation"] for one in five[model]]
        entries = [part["on"].get("accuracy") or part["D"] for part in parts]
        x = [100 * entry["fraction"] for entry in entries[0]]
        axis.axhline(0, color=INK, linewidth=0.6)
        for task in in_order(five[model][0].trained.tasks):
            values = [[entry["tasks"][task]["value"] for entry in each] for each in entries]
            percent = 100 * np.array(values, float)
            axis.plot(x, percent.mean(0), color=colours[task], label=label(task))
            axis.fill_between(x, percent.min(0), percent.max(0), color=colours[task], alpha=0.15, linewidth=0)
    _legend_of_all(figure)
    return figure


def scatter(records: Records, models: Sequence[str], by: str) -> Figure:
    """Figures 3 and 5 to 7: D of each pair of tasks, on accuracy, against its similarity; a panel for each model."""
    figure, panels = _models(models, ALIKE.get(by, by), "D on accuracy, points")
    for model, axis in panels.items():
        _against(axis, similarities(records, model)[by], pairwise_d(records.five(model), "accuracy"), model)
    return figure


def _against(axis: Any, measure: Similarity, d: Mapping[Any, float], title: str) -> None:
    """One panel: the pairs of tasks and, through enough of them, a line."""
    x, y = np.array([[alike, 100 * d[pair]] for pair, alike in measure.pairs().items() if pair in d]).reshape(-1, 2).T
    axis.plot(x, y, "o", color=RAMP[3], markersize=4)
    if len(x) < FITTED:
        return
    try:
        fit = measure.against(d).fit
    except HeadwiseError:  # all pairs alike, or one without D: no line
        return
    ends = np.array([min(x), max(x)])
    axis.plot(ends, 100 * (fit.intercept + fit.slope * ends), "--", color=INK, linewidth=1)
    axis.set_title(f"{title}, r = {fit.r:.2f}")


def sweeps(base: Mapping[int, float], swept: Mapping[Axis, Mapping[float, Mapping[int, float]]]) -> Figure:
    """Figures 9 and 10: GLUE's mean against plain training over δ and over α: means with 95 % intervals, and seeds."""
    figure, axes = _sheet(len(swept), 2.8, 2.3)
    for axis, (one, points) in zip(axes, swept.items()):
        each = {value: differences for value, scores in points.items() if (differences := gaps(scores, base))}
        axis.axhline(0, color=INK, linewidth=0.6)
        for value, differences in each.items():
            axis.plot([value] * len(differences), differences, "o", color=RAMP[3], markersize=2.5, alpha=0.4)
            axis.plot([value], [np.mean(differences)], "o", color=RAMP[3], markersize=4.5)
            axis.plot([value] * 2, _interval(differences), color=RAMP[3], linewidth=1.2)
        axis.set_title(one.beside)
        axis.set_xlabel(SWEPT[one.sign])
    axes[0].set_ylabel("GLUE's mean against plain, points")
    return figure


def _interval(values: Sequence[float]) -> list[float]:
    """Student's interval of the mean over seeds; not drawn for one seed."""
    return [np.nan if end is None else end for end in student(values)]


def gains(by_method: Mapping[str, Sequence[float]]) -> Figure:
    """GLUE's mean against plain training that was not tuned: means with 95 % intervals, and seeds; orange is ours."""
    figure, (axis,) = _sheet(1, 6.0, 0.6 + 0.21 * len(by_method))
    for place, (name, each) in enumerate(by_method.items()):
        colour = TASKS[1] if name.startswith(OURS) else RAMP[3]
        axis.plot(each, [place] * len(each), "o", color=colour, markersize=2.5, alpha=0.4)
        axis.plot([np.mean(each)], [place], "o", color=colour, markersize=4.5)
        axis.plot(_interval(each), [place] * 2, color=colour, linewidth=1.2)
    axis.axvline(0, color=INK, linewidth=0.6)
    axis.set_yticks(range(len(by_method)), [SHOWN.get(name, name) for name in by_method])
    axis.invert_yaxis()
    axis.set_xlabel("points of GLUE's mean above plain multi-task training of the same seeds, gradients not clipped")
    return figure


def shots(by_task: Mapping[str, Transfer]) -> Figure:
    """Few-shot scores of every starting point, with their spread over seeds."""
    figure, axes = _sheet(len(by_task), 3.0, 2.3)
    for axis, (task, one) in zip(axes, by_task.items()):
        x = np.arange(len(one.shots))
        for i, (start, colour) in enumerate(zip(one.starts, TASKS)):
            axis.errorbar(
                x + 0.06 * i, 100 * one.mean[i], 100 * one.sd[i], color=colour, marker="o", markersize=3, label=start
            )
        axis.set_xticks(x, [str(n) for n in one.shots])
        axis.set_title(label(task))
        axis.set_xlabel("training rows")
    axes[0].set_ylabel(f"{next(iter(by_task.values())).metric}, %")
    _legend_beside(axes[-1])
    return figure


def pairs(rows: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """Figure 2: D on accuracy of every pair: means, 95 % intervals over seeds, and seeds; a panel for each model."""
    longest = max(len(name) for each in rows.values() for name in each)
    figure, axes = _sheet(len(rows), 1.8 + 0.065 * longest, 2.6)
    for axis, (model, each) in zip(axes, rows.items()):
        for place, values in enumerate(each.values()):
            axis.plot(values, [place] * len(values), "o", color=RAMP[3], markersize=2.5, alpha=0.4)
            axis.plot([np.mean(values)], [place], "o", color=RAMP[3], markersize=4.5)
            axis.plot(_interval(values), [place] * 2, color=RAMP[3], linewidth=1.2)
        axis.axvline(0, color=INK, linewidth=0.6)
        axis.set_yticks(range(len(each)), list(each))
        axis.invert_yaxis()
        axis.set_title(model)
        axis.set_xlabel("D on accuracy, points")
    return figure


def raised(models: Mapping[str, Mapping[str, Mapping[str, Mapping[int, float]]]]) -> Figure:
    """Figure 8: D of GLUE's tasks after plain training and after important-head training, a dot for each seed."""
    figure, axes = _sheet(1, 5.2, 2.4, len(models))
    for axis, (model, by_method) in zip(axes, models.items()):
        _raised(axis, by_method)
        axis.set_title(model)
    _legend_beside(axes[0])
    return figure


def _raised(axis: Any, by_method: Mapping[str, Mapping[str, Mapping[int, float]]]) -> None:
    axis.axhline(0, color=INK, linewidth=0.6)
    names = [task for task in next(iter(by_method.values())) if any(one[task] for one in by_method.values())]
    for number, (method, colour) in enumerate(zip(by_method, TASKS)):
        for place, task in enumerate(names):
            each, at = list(by_method[method][task].values()), place + 0.36 * (number - 0.5)
            if each:
                axis.bar(at, np.mean(each), width=0.34, color=colour, alpha=0.45, label=None if place else method)
                axis.plot([at] * len(each), each, "o", color=colour, markersize=3)
    axis.set_xticks(range(len(names)), [label(task) for task in names], rotation=30)
    axis.set_ylabel("D, percentage points")
