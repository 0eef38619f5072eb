"""Important-head training by its two settings: δ and α alone (Figures 9 and 10), and both together (Appendix F)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from headwise.papers.specialization.records import Lesioned, Records, label, method_name
from headwise.papers.specialization.training import (
    COLUMNS,
    CORPUS_GLUE,
    MEAN,
    PAIRED,
    START,
    Table,
    after_holm,
    against,
    by_method,
    columns_of,
    gaps,
    mean_scores,
)
from headwise.papers.summary import mean_sd, table


class Axis(NamedTuple):
    """A setting of important-head training that is swept while another has a fixed value."""

    name: str
    other: str
    value: float

    @property
    def sign(self) -> str:
        return SIGNS[self.name]

    @property
    def beside(self) -> str:
        return f"{SIGNS[self.other]} = {self.value:g}"

    def method(self, value: float) -> str:
        """The name of the method at a value."""
        return method_name({"name": "iat", self.name: value, self.other: self.value})


SIGNS = {"alpha": "α", "delta": "δ"}
AXES = (Axis("delta", "alpha", 0.5), Axis("alpha", "delta", 0.1))


def sweep_tables(records: Records, model: str) -> list[Table]:
    """Figures 9 and 10: δ at α = 0.5, and α at δ = 0.1."""
    base, swept = sweep_points(records, model)
    made = []
    for axis, points in swept.items():
        rows = [["plain", *mean_sd(list(base.values())), None, None, len(base), None]]
        for value, mine in points.items():
            alike = records.same_start(model, "annealed", axis.method(value))
            rows.append([f"{value:g}", *mean_sd(list(mine.values())), *against(mine, base), len(mine), alike])
        columns = [axis.sign, "mean", "sd", "against plain", "p", "seeds", "same start"]
        title = f"IAT by {axis.sign} with {axis.beside}, {model}"
        made.append(table(title, columns, rows, f"{MEAN}; {PAIRED} {START}"))
    return made


def sweep_points(records: Records, model: str) -> tuple[dict[int, float], dict[Axis, dict[float, dict[int, float]]]]:
    """The mean scores of plain training, and of IAT by the values of each axis."""
    scores = by_method(records, model, "annealed")
    if "multi" not in scores:
        return {}, {}
    tasks = columns_of(scores["multi"])
    swept = {}
    for axis in AXES:
        values = records.values_of(model, axis.name, {"name": "iat", axis.other: axis.value})
        named = {value: name for value in values if (name := axis.method(value)) in scores and name != "ticket-share"}
        points = {value: mean_scores(scores[name], tasks) for value, name in named.items()}
        if len(points) > 1:
            swept[axis] = points
    return mean_scores(scores["multi"], tasks), swept


def grid_points(records: Records, model: str) -> tuple[dict[int, float], dict[tuple[float, float], dict[int, float]]]:
    """The mean scores of plain training, and of IAT by δ and α where there are two or more values of both."""
    scores = by_method(records, model, "annealed")
    if "multi" not in scores:
        return {}, {}
    tasks, points = columns_of(scores["multi"]), dict[tuple[float, float], dict[int, float]]()
    for delta in records.values_of(model, "delta", {"name": "iat"}):
        for alpha in records.values_of(model, "alpha", {"name": "iat", "delta": delta}):
            name = method_name({"name": "iat", "alpha": alpha, "delta": delta})
            if name in scores and name != "ticket-share":
                points[delta, alpha] = mean_scores(scores[name], tasks)
    inner = {at: one for at, one in points.items() if _crossed(at, points)}
    return mean_scores(scores["multi"], tasks), inner


def _crossed(at: tuple[float, float], points: Mapping[tuple[float, float], object]) -> bool:
    """Whether a point is a corner of a rectangle of points: part of a grid, not of a single line."""
    deltas = {d for d, a in points if a == at[1] and d != at[0]}
    alphas = {a for d, a in points if d == at[0] and a != at[1]}
    return any((d, a) in points for d in deltas for a in alphas)


def grid_table(records: Records, model: str) -> Table | None:
    """Appendix F: every δ with every α, and the gain of the best when other seeds choose it."""
    base, points = grid_points(records, model)
    if len(points) < 4:
        return None
    rows = []
    for (delta, alpha), mine in points.items():
        alike = records.same_start(model, "annealed", method_name({"name": "iat", "alpha": alpha, "delta": delta}))
        rows.append([f"{delta:g}", f"{alpha:g}", *mean_sd(mine.values()), *against(mine, base), len(gaps(mine, base))])
        rows[-1].append(alike)
    for row, holm in zip(rows, after_holm(row[5] for row in rows)):
        row.insert(6, holm)
    best = max(rows, key=lambda row: -np.inf if row[4] is None else row[4])
    chosen = chosen_by_others(base, points)
    note = f"{MEAN}; {PAIRED} The paper takes the best of δ in 0.05, 0.1, 0.15 and α in 0.1, 0.2, 0.3 for each model. "
    note += f"Best here: δ = {best[0]}, α = {best[1]}"
    note += "." if chosen is None else f"; chosen on the other seeds, the gain is {chosen:+.2f} points."
    if own := by_method(records, model, "annealed").get(UNTUNED):
        means = mean_scores(own, columns_of(own))
        tested = [*against(means, base), None, len(gaps(means, base)), None]
        rows.append(["settled", "half", *mean_sd(means.values()), *tested])
        note += f" {UNTUNED_NOTE} {records.untuned(model)}"
    note += f" {records.trained_on(model)}"
    columns = ["δ", "α", "mean", "sd", "against plain", "p", "p (Holm)", "seeds", "same start"]
    return table(f"IAT over the grid of δ and α, {model}", columns, rows, f"{note} {START}")


UNTUNED = "iat, α and δ untuned"
UNTUNED_NOTE = (
    "Last row, not tuned: the fewest heads with half of a task's importance, once two selections agree by 0.9."
)


def chosen_by_others(
    base: Mapping[int, float], points: Mapping[tuple[float, float], Mapping[int, float]]
) -> float | None:
    """The mean gain if each seed uses the best δ and α of the other seeds: no score selects itself."""
    every = [seed for seed in base if all(seed in one for one in points.values())]
    if len(every) < 2:
        return None
    gain = {at: {seed: one[seed] - base[seed] for seed in every} for at, one in points.items()}

    def best(held: int) -> tuple[float, float]:
        return max(gain, key=lambda at: np.mean([gain[at][seed] for seed in every if seed != held]))

    return float(np.mean([gain[best(seed)][seed] for seed in every]))


ORDER = (*COLUMNS, *CORPUS_GLUE)
METHODS = ("multi", "iat")


def on_glue(records: Records, model: str) -> dict[str, dict[str, dict[int, float]]]:
    """D of each of GLUE's tasks in percent, and their mean: method to task to seed; empty without both methods."""
    every = {method: records.on_glue(model, method) for method in METHODS}
    return {method: _by_task(lesioned) for method, lesioned in every.items()} if all(every.values()) else {}


def _by_task(lesioned: list[Lesioned]) -> dict[str, dict[int, float]]:
    tasks: dict[str, dict[int, float]] = {task: {} for task in sorted(lesioned[0].trained.tasks, key=ORDER.index)}
    for one in lesioned:
        entry = one.entry()
        for task in tasks:
            if (value := entry["tasks"][task]["value"]) is not None:
                tasks[task][one.trained.seed] = 100 * value
    defined = [task for task, seeds in tasks.items() if len(seeds) == len(lesioned)]
    seeds = [one.trained.seed for one in lesioned]
    mean = {seed: sum(tasks[task][seed] for task in defined) / len(defined) for seed in seeds} if defined else {}
    return tasks | {"mean": mean}


def glue_d_table(records: Records, model: str) -> Table | None:
    """Figure 8: D of GLUE's tasks after plain training and after important-head training."""
    d_values = on_glue(records, model)
    if not d_values:
        return None
    plain, held = (d_values[method] for method in METHODS)
    rows = []
    for task in plain:
        both = [*mean_sd(plain[task].values()), *mean_sd(held[task].values())]
        rows.append(
            [label(task), *both, *against(held[task], plain[task]), len(held[task].keys() & plain[task].keys())]
        )
    for row, holm in zip(rows, after_holm(row[6] for row in rows[:-1])):
        row.insert(7, holm)
    rows[-1].insert(7, None)
    columns = ["task", "D plain", "sd", "D with IAT", "sd", "difference", "p", "p (Holm)", "seeds"]
    note = (
        "In percent by the tasks' own metrics, α = 0.3, δ = 0.1, annealed sampling; p: paired t test over seeds, "
        "two-sided. A task on which the intact model scores zero has no D; the mean is over the tasks with a D in "
        f"every seed. {records.trained_on(model)} The paper shows five models in a figure, without numbers."
    )
    return table(f"D on GLUE, {model}", columns, rows, note)


def raised_table(records: Records) -> Table | None:
    """The same on the five tasks of the dissociation."""
    rows = []
    for model in records.models():
        plain, held = ({one.trained.seed: one for one in records.five(model, m)} for m in ("multi", "iat"))
        common = [seed for seed in plain if seed in held]
        if common:
            means = ({seed: by_seed[seed].entry()["mean"]["value"] for seed in common} for by_seed in (plain, held))
            a, b = ({seed: 100 * value for seed, value in one.items() if value is not None} for one in means)
            rows.append([model, *mean_sd(a.values()), *mean_sd(b.values()), *against(b, a), len(common)])
    columns = ["model", "D plain", "sd", "D with IAT", "sd", "difference", "p", "seeds"]
    note = "In percent, α = 0.3; p: paired t test over seeds, two-sided."
    return table("D of the five tasks with and without important-head training", columns, rows, note) if rows else None
