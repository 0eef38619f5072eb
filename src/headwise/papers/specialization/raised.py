"""Does important-head training raise D (Figure 8)? On GLUE's tasks, as published, and on the five."""

from __future__ import annotations

from headwise.papers.specialization.records import Lesioned, Records, label
from headwise.papers.specialization.training import COLUMNS, CORPUS_GLUE, Table, after_holm, against
from headwise.papers.summary import mean_sd, table

ORDER = (*COLUMNS, *CORPUS_GLUE)
METHODS = ("multi", "iat")


def on_glue(records: Records, model: str) -> dict[str, dict[str, dict[int, float]]]:
    """D of each of GLUE's tasks in percent, and their mean: method to task to seed; empty without both methods."""
    every = {method: records.on_glue(model, method) for method in METHODS}
    return {method: _by_task(found) for method, found in every.items()} if all(every.values()) else {}


def _by_task(found: list[Lesioned]) -> dict[str, dict[int, float]]:
    tasks: dict[str, dict[int, float]] = {task: {} for task in sorted(found[0].trained.tasks, key=ORDER.index)}
    for one in found:
        entry = one.entry()
        for task in tasks:
            if (value := entry["tasks"][task]["value"]) is not None:
                tasks[task][one.trained.seed] = 100 * value
    defined = [task for task, seeds in tasks.items() if len(seeds) == len(found)]
    seeds = [one.trained.seed for one in found]
    mean = {seed: sum(tasks[task][seed] for task in defined) / len(defined) for seed in seeds} if defined else {}
    return tasks | {"mean": mean}


def glue_d_table(records: Records, model: str) -> Table | None:
    """Figure 8: D of GLUE's tasks after plain training and after important-head training."""
    found = on_glue(records, model)
    if not found:
        return None
    plain, held = (found[method] for method in METHODS)
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
    note = "In percent by the tasks' own metrics, α = 0.3, δ = 0.1, annealed sampling; p: paired t test over seeds, "
    note += "two-sided. A task whose whole model scores zero has no D, and the mean is over the tasks that have one in "
    note += "every seed. The paper draws it for five models and prints no numbers."
    return table(f"D on GLUE, {model}", columns, rows, note)


def raised_table(records: Records) -> Table | None:
    """The same on the five tasks of the dissociation."""
    rows = []
    for model in records.models():
        plain, held = ({one.trained.seed: one for one in records.five(model, m)} for m in ("multi", "iat"))
        common = [seed for seed in plain if seed in held]
        if common:
            means = ({seed: found[seed].entry()["mean"]["value"] for seed in common} for found in (plain, held))
            a, b = ({seed: 100 * value for seed, value in one.items() if value is not None} for one in means)
            rows.append([model, *mean_sd(a.values()), *mean_sd(b.values()), *against(b, a), len(common)])
    columns = ["model", "D plain", "sd", "D with IAT", "sd", "difference", "p", "seeds"]
    note = "In percent, α = 0.3; p: paired t test over seeds, two-sided."
    return table("D of the five tasks with and without important-head training", columns, rows, note) if rows else None
