"""Tables measured on one trained model: importance estimators, the permutation test, pruning in rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import rankdata

from headwise.io.records import Record
from headwise.measuring.stats import adjust
from headwise.papers.specialization.records import CHANCE, NEAR, Lesioned, Records, label, seeds
from headwise.papers.specialization.settings import ESTIMATORS
from headwise.papers.specialization.training import against
from headwise.papers.summary import mean_sd, student, table

Table = dict[str, Any]


def estimator_table(records: Records, model: str) -> Table | None:
    """Every importance estimator: agreement with Eq. 4, cost, and what closing its heads does."""
    by_estimator: dict[str, list[Record]] = {}
    for record in records.of("estimator"):
        if record.config["model"] == model:
            by_estimator.setdefault(record.config["by"], []).append(record)
    if "gradient" not in by_estimator:
        return None
    reference = {r.config["seed"]: r.result["tasks"] for r in by_estimator["gradient"]}
    rows = []
    for by, ones in by_estimator.items():
        cells = [(r, t) for r in ones for t in r.result["tasks"] if r.config["seed"] in reference]
        pairs = [(r.result["tasks"][t]["scores"], reference[r.config["seed"]][t]["scores"]) for r, t in cells]
        if not cells:
            continue
        agree = np.mean([_agreement(pair)[0, 1] for pair in pairs])
        cost = np.mean([r.result["tasks"][t]["seconds"] for r, t in cells])
        area = [_area(r.result["fractions"], r.result["tasks"][t]["curve"]) for r, t in cells]
        apart = [100 * r.result["D"] for r in ones if r.result.get("D") is not None]
        compared = {r.config["seed"] for r, _ in cells}
        rows.append([by, agree, cost, 100 * np.nanmean(area), mean_sd(apart)[0], len(compared)])
    rows.sort(key=lambda row: row[3])
    examples = by_estimator["gradient"][0].config["examples"]
    note = (
        f"Over tasks and seeds, {examples} examples each. Performance left: mean over the fractions of heads closed, "
        "most important first, in percent of the intact model's; lower means a better ranking. D: dissociation of the "
        "tasks by its heads, α = 0.3; closing heads that every task needs costs much and adds nothing to D."
    )
    columns = ["estimator", "rank correlation with gradient", "seconds a task", "performance left", "D", "seeds"]
    return table(f"Importance estimators, {model}", columns, rows, note)


def agreement_table(records: Records, model: str) -> Table | None:
    """How far the estimators' rankings of heads agree, every two of them."""
    maps: dict[str, dict[tuple[int, str], Any]] = {}
    for record in records.of("estimator"):
        if record.config["model"] == model:
            for task, one in record.result["tasks"].items():
                maps.setdefault(record.config["by"], {})[record.config["seed"], task] = one["scores"]
    if len(maps) < 2:
        return None
    names = [by for by in ESTIMATORS if by in maps]
    places = dict.fromkeys(at for one in maps.values() for at in one)
    each = np.array([_agreement([maps[name].get(at) for name in names]) for at in places])
    rows = [[name, *(mean_sd(r[~np.isnan(r)])[0] for r in each[:, i].T)] for i, name in enumerate(names)]
    note = "Spearman correlation of the heads' scores, means over tasks and seeds."
    return table(f"Agreement of estimators, {model}", ["", *names], rows, note)


def _agreement(maps: Sequence[Any]) -> np.ndarray:
    """Spearman correlations of every two maps of scores; NaN for those that are not there."""
    have = [i for i, one in enumerate(maps) if one is not None]
    scores = np.array([np.ravel(maps[i]) for i in have], float)
    agreement = np.full((len(maps), len(maps)), np.nan)
    with np.errstate(invalid="ignore"):  # equal scores have no order: NaN
        agreement[np.ix_(have, have)] = np.corrcoef(rankdata(scores[:, ~np.isnan(scores).any(0)], axis=1))
    return agreement


def _area(fractions: Sequence[float], curve: Sequence[float]) -> float:
    """Mean relative performance over the fractions; NaN where the whole model scores nothing."""
    if not curve[0] > 0:
        return np.nan
    return float(np.trapezoid(np.array(curve) / curve[0], fractions) / (fractions[-1] - fractions[0]))


def permutation_table(records: Records) -> Table | None:
    """The permutation test of D, seed by seed."""
    rows = [
        [r.config["model"], r.config["seed"], 100 * r.result["D"], r.result["mean"], r.result["draws"]]
        for r in records.of("relabelling")
    ]
    note = (
        "Heads are permuted between tasks, keeping each task's number of heads and each head's number of tasks; p: "
        "how often D is then at least as large, one-sided."
    )
    return table("Permutation test of D", ["model", "seed", "D", "p", "draws"], rows, note) if rows else None


def closing_table(records: Records) -> Table | None:
    """D by what closed heads return, beside zero: does a gentler lesion show what chance level hides?"""
    by_model: dict[str, list[Record]] = {}
    for record in records.of("closings"):
        by_model.setdefault(record.config["model"], []).append(record)
    rows = []
    for model, ones in by_model.items():
        d = {
            how: {r.config["seed"]: 100 * r.result["closed"][how]["D"] for r in ones}
            for how in ones[0].config["closes"]
        }
        for how, values in d.items():
            test = against(values, d["zero"]) if how != "zero" else (None, None)
            low = [_at_the_floor(record, how) for record in ones]
            floor = f"{sum(map(sum, low))} of {sum(map(len, low))}"
            rows.append([model, how, mean_sd(values.values())[0], *student(values.values()), *test, floor, len(ones)])
    note = (
        "D on accuracy in percent, mean over tasks, α = 0.3; low, high: Student's interval over trainings; against "
        "zero: the mean difference over the same trainings, p by Student's paired t, two-sided. Mean: a head's mean "
        "output over rows. Resample: its output for another row. At the floor: own lesions that leave a task within "
        "five points of chance."
    )
    columns = ["model", "closed to", "D", "low", "high", "against zero", "p", "at the floor", "seeds"]
    return table("D by what closed heads return", columns, rows, note) if rows else None


def _at_the_floor(record: Record, how: str) -> list[bool]:
    """For each task of known chance, whether its own lesion leaves it near there."""
    cells, tasks = record.result["closed"][how]["accuracy"], record.result["tasks"]
    known = [(row[1 + i], CHANCE[task]) for i, (task, row) in enumerate(zip(tasks, cells)) if task in CHANCE]
    return [value <= chance + NEAR for value, chance in known]


def rounds_table(records: Records, model: str) -> Table | None:
    """Pruning in rounds against pruning by scores taken once, the least important heads first."""
    return _rounds_table(records, model, "least")


def most_table(records: Records, model: str) -> Table | None:
    """The same with the most important heads first."""
    return _rounds_table(records, model, "most")


def _rounds_table(records: Records, model: str, first: str) -> Table | None:
    every = [r for r in records.of("rounds") if r.config["model"] == model]
    runs = [r for r in every if r.config.get("first", "least") == first]
    if not runs:
        return None
    rows = []
    for task in runs[0].result["curve"]:
        anew, once = ({i: 100 * r.result["area"][task][at] for i, r in enumerate(runs)} for at in (0, 1))
        means = [float(np.mean(list(areas.values()))) for areas in (anew, once)]
        rows.append([label(task), *means, *against(anew, once)])
    note = (
        f"Mean performance in percent over fractions pruned, {first} important first, {seeds(len(runs))}; in rounds, "
        "importance is re-estimated after every tenth. p: paired t test over seeds, two-sided, not corrected."
    )
    title = f"Pruning in rounds{', most important first' * (first == 'most')}, {model}"
    return table(title, ["task", "in rounds", "scored once", "difference", "p"], rows, note)


LEVEL = 0.05


def head_set_table(records: Records) -> dict[str, Any] | None:
    """Each task's D with its tests over random sets of as many heads, and over sets with as many of each layer."""
    by_model = {model: records.head_sets(model) for model in records.models()}
    rows = [row for model, lesioned in by_model.items() if lesioned for row in _rows(model, lesioned)]
    if not rows:
        return None
    drawn = sorted({str(one.result["dissociation"]["random"]) for lesioned in by_model.values() for one in lesioned})
    note = (
        f"In percent, α = 0.3, by the tasks' own metrics; {', '.join(drawn)} random sets. p, one-sided: how often "
        "random sets of the same sizes, assigned to the tasks, give as large a D; by layer: sets with as many heads "
        "in each layer, which tests whether more than the layer matters. Medians over trainings; below: in how many p "
        f"is under {LEVEL}, Holm-corrected over tasks. The trainings are separate from those of the other tables, with "
        "the same seeds."
    )
    columns = ["model", "task", "D", "p", "below", "p by layer", "below by layer", "trainings"]
    return table("D against random head sets", columns, rows, note)


def _rows(model: str, lesioned: list[Lesioned]) -> list[list[Any]]:
    """A row for each task, and one for the mean of all, which is one test a training."""
    entries, tasks = [one.entry() for one in lesioned], lesioned[0].trained.tasks
    tests = [np.array([_cells(entry, tasks, name) for entry in entries]) for name in ("p", "p_layers")]
    holm = [np.array([adjust(p) for p in test]) for test in tests]
    d = np.array([_cells(entry, tasks, "value") for entry in entries])
    rows = []
    for i, task in enumerate(tasks):
        counts = [
            (float(np.median(test[:, i])), int((corrected[:, i] < LEVEL).sum())) for test, corrected in zip(tests, holm)
        ]
        rows.append([model, label(task), 100 * float(d[:, i].mean()), *counts[0], *counts[1], len(lesioned)])
    means = [np.array([_number(entry["mean"][name]) for entry in entries]) for name in ("value", "p", "p_layers")]
    counts = [(float(np.median(p)), int((p < LEVEL).sum())) for p in means[1:]]
    return [*rows, [model, "mean", 100 * float(means[0].mean()), *counts[0], *counts[1], len(lesioned)]]


def _cells(entry: Mapping[str, Any], tasks: Sequence[str], name: str) -> list[float]:
    return [_number(entry["tasks"][task][name]) for task in tasks]


def _number(value: float | None) -> float:
    return np.nan if value is None else value
