"""Tables of dissociation: pairs, all tasks together, overlap, layers, input paradigms, similarity."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from headwise.dissociation.result import Dissociation
from headwise.dissociation.significance import verdict
from headwise.measuring.stats import adjust, over_trainings, overlap_test, p_value
from headwise.papers.specialization import published as paper
from headwise.papers.specialization.records import (
    TWO_TEXTS,
    Lesioned,
    Records,
    beside,
    erratum,
    label,
    of_base,
    real,
    seeds,
)
from headwise.papers.specialization.settings import CORPUS_FIVE, FIVE
from headwise.papers.summary import mean_sd, over_models, student, student_p, table

Table = dict[str, Any]
Pair = tuple[str, str]


def in_order(tasks: Sequence[str]) -> list[str]:
    """The tasks in the paper's order."""
    known = [*FIVE, *CORPUS_FIVE]
    return sorted(tasks, key=lambda t: known.index(t) if t in known else len(known))


# -- two tasks


def pair_d(lesioned: Sequence[Lesioned], on: str = "") -> dict[str, float | None]:
    """D_A, D_B and D of a pair over seeds, in percent, and the spread of D."""
    each = [one.entry(on)["pairs"][0] for one in lesioned if one.entry(on)]
    kept = {name: [100 * e[name] for e in each if e[name] is not None] for name in ("d_a", "d_b", "d")}
    means = {name: mean_sd(values)[0] for name, values in kept.items()}
    return means | {"sd": mean_sd(kept["d"])[1], "n": float(len(kept["d"]))}


def collapsed(lesioned: Sequence[Lesioned]) -> str:
    """The number of lesions after which all predictions are one class."""
    marks = [one.cells("collapsed")[:, 1 : 1 + len(one.trained.tasks)] for one in lesioned]
    count = sum(int(m.sum()) for m in marks)
    return f"{count} of {sum(m.size for m in marks)}"


def pair_table(records: Records, model: str, frozen: bool) -> Table | None:
    """Table 9: D of every two tasks after training them together."""
    by_pair = {pair: one for pair, one in records.pairs(model, frozen).items() if _of_five(pair)}
    if not by_pair:
        return None
    rows, published = [], []
    for a, b in combinations(in_order(list(dict.fromkeys(task for pair in by_pair for task in pair))), 2):
        one = by_pair.get((a, b)) or by_pair.get((b, a))
        if not one:
            continue
        d, exact, lifted = pair_d(one), pair_d(one, "accuracy"), pair_d(one, "chance_corrected")
        said = verdict((d["d_a"] or 0) / 100, (d["d_b"] or 0) / 100) if d["d_a"] is not None else ""
        rows.append([label(a), label(b), d["d_a"], d["d_b"], d["d"], d["sd"], exact["d"], lifted["d"], said])
        rows[-1] += [double_p(one), collapsed(one), int(d["n"] or 0)]
        published.append([None, None, *_published_pair(model, frozen, a, b), *[None] * 7])
    for row, p in zip(rows, adjust(np.array([row[9] for row in rows], float))):
        row[9] = p
    rows.append([f"mean of {len(rows)}", "", *_means(rows, (2, 3, 4)), None, *_means(rows, (6, 7)), "", None, "", None])
    published.append([None, None, *_means(published, (2, 3, 4)), *[None] * 7])
    columns = ["A", "B", "D_A", "D_B", "D", "sd", "D on accuracy", "D above chance"]
    columns += ["verdict", "p", "collapsed", "seeds"]
    same = real(task for pair in by_pair for task in pair)
    note = "In percent, α = 0.3, means over seeds; the verdict is on the means. p: both D_A and D_B are above zero, "
    note += f"one-sided by Student's t over trainings (seeds), Holm-corrected over {len(rows) - 1} pairs." + (
        f" Published: {'bert-base frozen' if frozen else beside(model, paper.TABLE_9)}, Table 9." if same else ""
    )
    kind = "a frozen encoder" if frozen else "training two tasks together"
    return table(f"D after {kind}, {model}", columns, rows, note, published)


def d_of_pairs(records: Records, model: str) -> dict[str, list[float]]:
    """D on accuracy of every pair and seed, in percent, by the pair's name."""
    by_pair = {pair: one for pair, one in records.pairs(model).items() if _of_five(pair)}
    each = {
        pair: [(one.entry("accuracy") or one.entry())["pairs"][0]["d"] for one in by_pair[pair]] for pair in by_pair
    }
    order = list(combinations(in_order(list(dict.fromkeys(task for pair in by_pair for task in pair))), 2))
    known = [(a, b, [100 * d for d in each.get((a, b)) or each.get((b, a)) or [] if d is not None]) for a, b in order]
    return {f"{label(a)}–{label(b)}": values for a, b, values in known if values}


def double_p(lesioned: Sequence[Lesioned]) -> float:
    """The p-value over trainings of "not both D_A and D_B are above zero"; NaN for one training."""
    each = [one.entry()["pairs"][0] for one in lesioned]
    known = [(pair["d_a"], pair["d_b"]) for pair in each if pair["d_a"] is not None and pair["d_b"] is not None]
    return max(float(over_trainings(np.array(values)).p) for values in zip(*known)) if known else math.nan  # type: ignore[arg-type]


def _means(rows: Sequence[Sequence[Any]], places: Sequence[int]) -> list[float | None]:
    return [mean_sd([row[i] for row in rows])[0] for i in places]


def _of_five(pair: Sequence[str]) -> bool:
    return set(pair) <= set(FIVE) or set(pair) <= set(CORPUS_FIVE)


def _published_pair(model: str, frozen: bool, a: str, b: str) -> list[float | None]:
    if not real((a, b)):
        return [None] * 3
    at = paper.PAIRS.index((label(a), label(b)))
    name = beside(model, paper.TABLE_9) if not frozen else "bert-base frozen" if of_base(model) else ""
    if not name:
        return [None] * 3
    d_a, d_b = paper.TABLE_9[name]
    return [d_a[at], d_b[at], (d_a[at] + d_b[at]) / 2]


def rise_table(records: Records) -> Table | None:
    """Mean D over the pairs, after training and with a frozen encoder (Section 6.1)."""
    rows, published = [], []
    for model in records.models():
        trained, frozen = (_pairs_d(records, model, kind) for kind in (False, True))
        same = [pair for pair in trained if not frozen or pair in frozen]  # other pairs are not comparable
        if same:
            means = [float(np.mean([one[pair] for pair in same])) for one in (trained, frozen) if one]
            rows.append([model, *means, *([means[0] - means[1]] if frozen else [None, None]), len(same)])
            known = paper.TABLE_9.get(model)
            theirs = [None if known is None else float(np.mean(known)), None, None]
            if model == "bert-base":
                theirs[1:] = [float(np.mean(paper.TABLE_9["bert-base frozen"])), 0.0]
                theirs[2] = theirs[0] - theirs[1]
            published.append([None, *theirs, None])
    columns = ["model", "mean D", "mean D, frozen encoder", "difference", "pairs"]
    return table("Mean D over pairs", columns, rows, erratum("section 6.1"), published) if rows else None


def _pairs_d(records: Records, model: str, frozen: bool = False) -> dict[Pair, float]:
    """D of the pairs that have one."""
    by_pair = {pair: pair_d(one)["d"] for pair, one in records.pairs(model, frozen).items() if _of_five(pair)}
    return {pair: d for pair, d in by_pair.items() if d is not None}


def paradigm_table(records: Records) -> Table | None:
    """D of pairs with like and unlike inputs, with a test that permutes tasks."""
    rows, published = [], []
    for model in records.models():
        d = _pairs_d(records, model)
        tasks = {task for pair in d for task in pair}
        if len(tasks) < 3 or len(d) < math.comb(len(tasks), 2):  # exchanged tasks need every pair
            continue
        across, within, p = paradigm_test(d, TWO_TEXTS)
        rows.append([model, across, within, across - within, p, len(d)])
        same = real(tasks)
        theirs = paper.IN_TEXT["mean D across and within input paradigms"]
        published.append([None, *(theirs if same else (None, None)), *[None] * 3])
    if not rows:
        return None
    note = (
        "p: how often randomly permuted tasks give as large a difference, one-sided; all permutations are tried. Five "
        "tasks, two of which read single texts, can be permuted in ten ways, so p is at least 0.1."
    )
    columns = ["model", "D across", "D within", "difference", "p", "pairs"]
    return table("D across and within input paradigms", columns, rows, note, published)


def paradigm_test(d: Mapping[Pair, float], two_texts: set[str]) -> tuple[float, float, float]:
    """Mean D of pairs of unlike and of like input, and the p-value over all ways to name the tasks' inputs."""
    tasks = sorted({task for pair in d for task in pair})
    number = sum(task in two_texts for task in tasks)

    def split(chosen: set[str]) -> tuple[float, float]:
        groups: dict[bool, list[float]] = {True: [], False: []}
        for (a, b), value in d.items():
            groups[(a in chosen) != (b in chosen)].append(value)
        return tuple(float(np.mean(groups[k])) if groups[k] else np.nan for k in (True, False))  # type: ignore[return-value]

    across, within = split(two_texts)
    others = [set(chosen) for chosen in combinations(tasks, number) if set(chosen) != two_texts & set(tasks)]
    null = np.array([one - other for one, other in map(split, others)])
    return across, within, float(p_value(across - within, null)) if len(null) else np.nan


# -- all tasks together


def five_table(records: Records, model: str, method: str = "multi", frozen: bool = False) -> Table | None:
    """Table 3: every task (columns) under every lesion (rows), and D."""
    lesioned = records.five(model, method, frozen)
    if not lesioned:
        return None
    tasks = in_order(lesioned[0].trained.tasks)
    rows = [[name, *values] for name, values in _matrix(lesioned, tasks).items()]
    for on, name in (("", "D"), ("accuracy", "D on accuracy"), ("chance_corrected", "D above chance")):
        each = [_d(lesioned, task, on) for task in tasks]
        rows.append([name, *(e[0] for e in each)])
        if not on:
            rows += [[name, *(e[i] for e in each)] for i, name in enumerate(("sd of D", "low", "high", "above 0"), 1)]
            rows.append(["p", *adjust(np.array([student_p(_values(lesioned, task)) for task in tasks]))])
            floors = [sum(one.floored(task) for one in lesioned) for task in tasks]
            rows.append(["at the floor", *(f"{count} of {len(lesioned)}" for count in floors)])
    lines = _table_3() if real(tasks) and method == "multi" and not frozen and of_base(model) else {}
    published = [[None, *lines.get(row[0], [None] * len(tasks))] for row in rows]
    note = (
        f"In percent, α = 0.3, means over {seeds(len(lesioned))}; low and high: Student's interval over seeds; above "
        "0: seeds whose own interval over examples lies above zero; p: that D is zero, by Student's t over "
        f"trainings (seeds), Holm-corrected over {len(tasks)} tasks; at the floor: seeds in which the task's own "
        "lesion leaves it within five points of chance or with one answer, which limits D. "
    )
    note += f"{collapsed(lesioned)} lesions of tasks' heads leave a single predicted class. " + (
        f"The published D is computed from the published matrix. {erratum('table 3')}" if lines else ""
    )
    kind = "frozen encoder" if frozen else {"multi": "plain training"}.get(method, method)
    return table(
        f"All tasks under lesions, {model}, {kind}", ["closed", *map(label, tasks)], rows, note.strip(), published
    )


def encoders(records: Records) -> dict[str, list[Lesioned]]:
    """The lesions of all tasks trained together in every model that has them, the most heads first."""
    every = {model: lesioned for model in records.models() if (lesioned := records.five(model))}
    tasks = {model: set(lesioned[0].trained.tasks) for model, lesioned in every.items()}
    common = max(tasks.values(), key=list(tasks.values()).count, default=set())
    alike = [model for model in every if tasks[model] == common]
    return {model: every[model] for model in sorted(alike, key=lambda model: (-every[model][0].heads, model))}


def mean_d(lesioned: Sequence[Lesioned], off_the_floor: bool = False) -> float | None:
    """A model's mean D on accuracy over tasks and seeds, of all lesions or of those that are not at the floor."""
    pairs = [(one, task) for one in lesioned for task in one.trained.tasks if not (off_the_floor and one.floored(task))]
    return mean_sd(one.on_accuracy(task) for one, task in pairs)[0]


def encoders_table(every: Mapping[str, Sequence[Lesioned]]) -> Table | None:
    """D of every task in every model, in one place."""
    if len(every) < 2:
        return None
    tasks, rows = in_order(next(iter(every.values()))[0].trained.tasks), []
    for model, lesioned in every.items():
        each = [[one.on_accuracy(task) for task in tasks] for one in lesioned]  # seeds by tasks
        means = [mean_sd(seed)[0] for seed in each]
        shown = [*(mean_sd(column)[0] for column in zip(*each)), mean_sd(means)[0], *student(means)]
        above = _above_zero([one.entry()["tasks"][task] for one in lesioned for task in tasks])
        floor = f"{sum(one.floored(task) for one in lesioned for task in tasks)} of {len(lesioned) * len(tasks)}"
        rows.append(
            [model, lesioned[0].heads, *shown, student_p(means), above, floor, mean_d(lesioned, True), len(lesioned)]
        )
    for row, joint in zip(rows, adjust(np.array([row[-5] for row in rows]))):
        row[-5] = joint
    columns = ["model", "heads", *map(label, tasks), "mean", "low", "high", "p", "above 0"]
    columns += ["at the floor", "D off the floor", "seeds"]
    note = (
        "D on accuracy in percent, α = 0.3, means over seeds; low and high: Student's interval of the mean over "
        f"seeds; p: that the mean is zero, by Student's t over trainings (seeds), Holm-corrected over {len(rows)} "
        "models; above 0: tasks and seeds whose D by their own metric has an interval over examples above zero; at "
        "the floor: tasks and seeds whose own lesion leaves them within five points of chance or with one answer, "
        f"which limits D; D off the floor: the mean of the others. {over_models([row[-8] for row in rows])}"
    )
    return table("D in all encoders", columns, rows, note)


def _matrix(lesioned: Sequence[Lesioned], tasks: Sequence[str]) -> dict[str, list[float]]:
    """Mean performance over seeds: lesion to tasks, in percent."""
    seen: dict[str, list[list[float]]] = {}
    for one in lesioned:
        cells, own = 100 * one.cells(), list(one.trained.tasks)
        rows = cells[[own.index(task) for task in tasks]]
        for task in tasks:
            seen.setdefault(label(task), []).append(rows[:, 1 + own.index(task)].tolist())
        seen.setdefault("random", []).append(rows[:, len(own) + 1 :].mean(1).tolist())
        seen.setdefault("none", []).append(rows[:, 0].tolist())
    return {name: np.mean(values, 0).tolist() for name, values in seen.items()}


def _d(lesioned: Sequence[Lesioned], task: str, on: str = "") -> list[Any]:
    """D_i over seeds in percent: mean, spread, Student's interval; how many seeds' intervals over examples are > 0."""
    each = _values(lesioned, task, on)
    return [
        *mean_sd(each),
        *student(each),
        _above_zero([one.entry(on)["tasks"][task] for one in lesioned if one.entry(on)]),
    ]


def _values(lesioned: Sequence[Lesioned], task: str, on: str = "") -> list[float]:
    """D_i of every seed that has one, in percent."""
    cells = [one.entry(on)["tasks"][task] for one in lesioned if one.entry(on)]
    return [100 * cell["value"] for cell in cells if cell["value"] is not None]


def _above_zero(cells: Sequence[Mapping[str, Any]]) -> str:
    """How many of the D that are defined have an interval over examples above zero."""
    known = [cell for cell in cells if cell["value"] is not None]
    return f"{sum((cell.get('low') or 0.0) > 0 for cell in known)} of {len(known)}"


def _table_3() -> dict[str, list[float]]:
    """The published matrix with D computed from it by Eq. 7."""
    cells = [[paper.TABLE_3[row][i] for row in ("none", *paper.TASKS)] for i in range(len(paper.TASKS))]
    d = Dissociation.of(paper.TASKS, np.array(cells)).scores()
    return {**{k: list(v) for k, v in paper.TABLE_3.items()}, "D": (100 * d).tolist()}


def mutual_table(records: Records, model: str) -> Table | None:
    """Table 10: D_A against each other task B."""
    lesioned = records.five(model)
    if not lesioned:
        return None
    tasks, d = in_order(lesioned[0].trained.tasks), mutual(lesioned)
    rows = [[label(b), *(None if (a, b) not in d else 100 * d[a, b] for a in tasks)] for b in tasks]
    known = paper.TABLE_10 if real(tasks) and of_base(model) else {}
    published = [[None, *known.get(row[0], [None] * len(tasks))] for row in rows]
    note = "D_A of column A when the heads of row B are closed in place of A's, in percent." + (
        f" {erratum('table 10')}" if known else ""
    )
    return table(f"D of every two tasks trained with all, {model}", ["B", *map(label, tasks)], rows, note, published)


def mutual(lesioned: Sequence[Lesioned], on: str = "") -> dict[Pair, float]:
    """D_A(B) over the seeds in which it is defined, by (A, B); ``on`` as in `Lesioned.entry`."""
    seen: dict[Pair, list[float]] = {}
    for one in lesioned:
        for pair in one.entry(on).get("pairs", ()):
            for a, b, d in ((pair["a"], pair["b"], pair["d_a"]), (pair["b"], pair["a"], pair["d_b"])):
                if d is not None:
                    seen.setdefault((a, b), []).append(d)
    return {pair: float(np.mean(values)) for pair, values in seen.items()}


def fell_table(records: Records) -> Table | None:
    """Failed trainings, which are excluded from all other tables."""
    rows = [[t.model, ", ".join(map(label, in_order(t.tasks))), t.method, t.seed] for t in records.fell]
    note = "Models that answer all rows of every classification task alike after training, excluded from other tables."
    return table("Trainings that failed", ["model", "tasks", "method", "seed"], rows, note) if rows else None


def overlap_table(records: Records, model: str) -> Table | None:
    """Table 11: how many of their top heads two tasks share."""
    lesioned = records.five(model)
    if not lesioned:
        return None
    rows, published = [], []
    for a, b in combinations(in_order(lesioned[0].trained.tasks), 2):
        tests = [overlap_test(one.top(a), one.top(b)) for one in lesioned]
        size = int(lesioned[0].top(a).sum())
        shares = [100 * test.shared / size for test in tests]
        more = np.mean([test.shared for test in tests]) >= tests[0].expected  # one tail for all seeds, and two of it
        worst = min(1.0, 2 * max(test.p_more if more else test.p_fewer for test in tests))
        rows.append([label(a), label(b), *mean_sd(shares), 100 * tests[0].expected / size, worst])
        printed = paper.TABLE_11.get((label(a), label(b))) if of_base(model) else None
        published.append([None, None, printed, *[None] * 3])
    note = f"Percent of {size} heads, means over {seeds(len(lesioned))}; p: hypergeometric, two-sided, "
    note += "the largest over seeds." + (f" {erratum('table 11')}" if any(row[2] for row in published) else "")
    columns = ["A", "B", "shared", "sd", "by chance", "p"]
    return table(f"Overlap of top heads, {model}", columns, rows, note, published)


def share_table(records: Records, model: str) -> Table | None:
    """D against the share of heads closed."""
    lesioned = records.five(model)
    if not lesioned:
        return None
    tasks, entries = in_order(lesioned[0].trained.tasks), [one.result["dissociation"]["D"] for one in lesioned]
    rows = []
    for at, entry in enumerate(entries[0]):
        each = [[e[at]["tasks"][task]["value"] for e in entries] for task in tasks]
        percent = [mean_sd([100 * v for v in values if v is not None])[0] for values in each]
        rows.append([f"{entry['fraction']:g}", *percent, mean_sd([p for p in percent if p is not None])[0]])
    columns = ["α", *map(label, tasks), "mean"]
    return table(f"D by the share of heads closed, {model}", columns, rows, "In percent, means over seeds.")


def layer_table(records: Records, model: str) -> Table | None:
    """Figure 4: how many top heads each layer has, and how far tasks differ there."""
    lesioned = records.five(model)
    if not lesioned:
        return None
    tasks = in_order(lesioned[0].trained.tasks)
    counts = np.mean([[one.top(task).sum(1) for task in tasks] for one in lesioned], 0)  # tasks by layers
    rows = [[i + 1, *column, column.mean(), column.std(ddof=1)] for i, column in enumerate(counts.T)]
    note = f"Heads among the top 30 %, means over {seeds(len(lesioned))}; σ over tasks. The paper: σ = 2.39 in layer 1 "
    note += "and 2.08 in layer 6 of BERT base, 3.6 heads a layer on average."
    columns = ["layer", *map(label, tasks), "mean", "σ"]
    return table(f"Top heads per layer, {model}", columns, rows, note)


def pairwise_d(lesioned: Sequence[Lesioned], on: str = "") -> dict[Pair, float]:
    """D of each pair of tasks trained with all, over seeds; pairs with an undefined D are not there."""
    d, pairs = mutual(lesioned, on), combinations(in_order(lesioned[0].trained.tasks), 2)
    return {(a, b): (d[a, b] + d[b, a]) / 2 for a, b in pairs if {(a, b), (b, a)} <= set(d)}
