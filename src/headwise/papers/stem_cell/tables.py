"""Tables of the stem-cell recipe: scores, heads kept, claims, probes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, product
from typing import Any

import numpy as np

from headwise.measuring.stats import Estimate, adjust, paired_bootstrap
from headwise.papers.stem_cell import published as paper
from headwise.papers.stem_cell.claims import Claims, RunOverlap
from headwise.papers.stem_cell.published import PROBES, STAGES, TASKS, WRONG, Probed
from headwise.papers.stem_cell.records import ALL, UNTRAINED, Records, alike, best_heads, between_runs, shared
from headwise.papers.stem_cell.stages import Profile, changes
from headwise.papers.summary import less, mean_sd, over_seeds, table

Table = dict[str, Any]
NAMES = [task.upper() for task in TASKS]
WAYS = {(False, False): "without gates", (True, False): "with gates", (True, True): "with gates, encoder frozen"}


# -- scores


def score_table(records: Records, model: str, gates: bool, frozen: bool = False) -> Table | None:
    """Every task alone, beside each other one, and with all; p-values against alone."""
    scores = records.scores(model, gates, frozen)
    if not scores:
        return None

    def cells(sets: list[str], part: int = 0) -> list[float | None]:
        return [_percent(mean_sd(scores.get((s, t), {}).values())[part]) for s, t in zip(sets, TASKS)]

    def chance(sets: list[str]) -> list[Any]:
        pairs = [over_seeds(scores.get((s, t), {}), scores.get((t, t), {})) for s, t in zip(sets, TASKS)]
        return [test.p if test else None for test in pairs]

    every, blank = [ALL] * 5, [None] * 5
    alone, together = cells(list(TASKS)), cells(every)
    rows = [["alone", *alone, *blank], ["  sd over seeds", *cells(list(TASKS), 1), *blank]]
    for other in TASKS:
        sets = [_pair(task, other) if task != other else "" for task in TASKS]
        row = cells(sets)
        rows += [[f"with {other.upper()}", *row, *chance(sets)]] if any(v is not None for v in row) else []
    rows += [["all five", *together, *blank], ["  sd over seeds", *cells(every, 1), *blank]]
    rows.append(["all five - alone", *map(less, together, alone), *chance(every)])
    seeds = max(len(each) for each in scores.values())
    note = f"Test scores in percent, means over up to {seeds} seeds; sentences: {records.examples()}. p: against "
    note += "alone, Student's paired t over seeds, two-sided, not corrected for multiple tests."
    columns = ["trained", *NAMES, *(f"p {name}" for name in NAMES)]
    return table(f"Scores {WAYS[gates, frozen]}, {model}", columns, rows, note)


def equal_table(records: Records, model: str) -> Table | None:
    """Alone with as many updates as all five together: is it joint training that helps or hurts, or more updates?"""
    usual, equal = records.scores(model, False), records.scores(model, False, equal=True)
    if not equal:
        return None
    rows = []
    for task, name in zip(TASKS, NAMES):
        alone, more, joint = (scores.get(key, {}) for scores, key in zip((usual, equal, usual), _keys(task)))
        if more:
            each = [_percent(mean_sd(scores.values())[0]) for scores in (alone, more, joint)]
            difference = over_seeds(joint, more)
            test = _tested(difference)
            rows.append([name, *each, *test, len(joint.keys() & more.keys())])
    for row, holm in zip(rows, adjust(np.array([np.nan if row[7] is None else row[7] for row in rows])).tolist()):
        row.insert(8, holm)
    columns = ["task", "alone", "alone, equal updates", "all five", "all five - equal", "low", "high", "p", "p (Holm)"]
    note = (
        "Test scores in percent, means over seeds; low, high and p: Student's paired t over seeds, two-sided. Equal "
        "updates: as many as all five tasks have together, five times the usual number. In joint training one batch "
        "in five is of a given task, so the first and third columns have equal epochs over its rows, the second and "
        "third equal updates."
    )
    return table(f"Equal updates, {model}", [*columns, "seeds"], rows, note)


def each_table(records: Records, model: str) -> Table | None:
    """The remedy: do per-task gates avoid the cost of joint training?"""
    own = records.scores(model, True, each=True)
    if not own:
        return None
    plain, shared, rows = records.scores(model, False), records.scores(model, True), []
    for task, name in zip(TASKS, NAMES):
        mine = own.get((ALL, task), {})
        others = plain.get((task, task), {}), plain.get((ALL, task), {}), shared.get((ALL, task), {})
        alone, joint, one = ({seed: each[seed] for seed in each if seed in mine} for each in others)
        difference = over_seeds(mine, joint)
        test = _tested(difference)
        rows.append([name, *(_percent(mean_sd(s.values())[0]) for s in (alone, joint, one, mine)), *test, len(mine)])
    columns = ["task", "alone", "all five", "one set of gates", "gates of each task", "own gates - none", "low", "high"]
    note = (
        "Test scores in percent, means over the seeds counted; the difference is from all five without gates, by "
        "Student's paired t."
    )
    return table(f"Gates for each task, {model}", [*columns, "p", "seeds"], rows, note)


def _tested(difference: Estimate | None) -> list[Any]:
    """Difference, interval and p in percent; None for fewer than two seeds."""
    if difference is None:
        return [None] * 4
    return [*(100 * np.array([difference.value, difference.low, difference.high], float)).tolist(), difference.p]


def _keys(task: str) -> tuple[tuple[str, str], ...]:
    return (task, task), (task, task), (ALL, task)


def _pair(a: str, b: str) -> str:
    return "+".join(sorted((a, b), key=TASKS.index))


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value


# -- gates


def kept_table(records: Records, model: str) -> Table | None:
    """How many heads stay open, and how far runs agree on them."""
    rows, published = [], []
    for tasks, frozen, random in _gated(records, model):
        gates = records.gates(model, tasks, frozen, random)
        if gates is None:
            continue
        overlap, size = RunOverlap(tasks, gates), gates[0].size
        r = overlap.r[np.triu_indices(len(gates), 1)]
        share = 100 * overlap.open.mean() / size
        named = "all five" if tasks == ALL else tasks.upper()
        how = "random encoder" if random else "frozen" if frozen else "trained"
        low, high = (np.nanmin(r), np.nanmax(r)) if len(r) and not np.isnan(r).all() else (None, None)
        rows.append([named, how, overlap.open.mean(), share, overlap.all, overlap.any, low, high, len(gates)])
        published.append(_published_kept(tasks if records.real else "", how, len(rows[-1])))
    if not rows:
        return None
    columns = ["trained", "encoder", "heads open", "% open", "in all runs", "in any", "r lowest", "r highest", "runs"]
    note = "r: Pearson between the gates of two runs. Published: three runs of BERT base for POS, read from a figure."
    return table(f"Heads kept, {model}", columns, rows, note, published)


def _gated(records: Records, model: str) -> list[tuple[str, bool, bool]]:
    there = [one for one in records.trained if one.model == model and one.gates]
    order = {tasks: i for i, tasks in enumerate((*TASKS, ALL))}
    kinds = {(one.tasks, one.frozen, one.random) for one in there}
    return sorted(kinds, key=lambda one: (one[2], one[1], order.get(one[0], 5 + len(one[0]) / 100), one[0]))


def _published_kept(tasks: str, how: str, width: int) -> list[Any]:
    if (tasks, how) != (paper.OVERLAP["task"], "trained"):
        return [None] * width
    known = paper.OVERLAP
    mean = sum(known["open"]) / 3
    return [None, None, mean, 100 * mean / known["heads"], known["all"], known["any"], *known["r"], 3]


def correlation_table(records: Records, model: str) -> Table | None:
    """Pearson between the gates of two single runs, of two tasks or, on the diagonal, of one."""
    claims = with_joint(records, model)
    if claims is None:
        return None
    matrix = between_runs(claims)
    names = [*NAMES, "all five"][: len(claims.tasks)]
    rows = [[name, *row] for name, row in zip(names, matrix)]
    seeds = "different seeds" if len(claims.gates) > 1 else "the same seed"
    note = (
        f"Mean r between the gates of two single runs with {seeds}; on the diagonal, of the same task. Two tasks with "
        "the same claims would have an r like those on the diagonal."
    )
    return table(f"Correlation of gates, {model}", ["", *names], rows, note)


def with_joint(records: Records, model: str) -> Claims | None:
    """The five tasks' gates and, where its runs are as many, those of joint training."""
    claims, joint = records.claims(model), records.gates(model, ALL)
    if claims is None or joint is None or len(joint) < len(claims.gates):
        return claims
    each = {task: claims.gates[:, i] for i, task in enumerate(claims.tasks)}
    return Claims.of({**each, ALL: joint[: len(claims.gates)]})


def stem_table(records: Records) -> Table | None:
    """Heads claimed by most tasks, against chance."""
    rows = []
    for model in records.models():
        for frozen in (False, True):
            claims = records.claims(model, frozen)
            if claims is None:
                continue
            shares = range(len(claims.tasks) // 2 + 1, len(claims.tasks) + 1)
            rows += [[model, "frozen" if frozen else "trained", *_stem_row(claims, most)] for most in shares]
    if not rows:
        return None
    columns = ["model", "encoder", "tasks or more", "heads", "chance in layers", "p", "chance over all", "p ", "layers"]
    note = (
        "Heads claimed by at least this many of the five tasks, each in most of its runs. Chance: each task's heads "
        "are dealt at random; p is one-sided, for more shared heads than that."
    )
    return table("Stem cells", [*columns, "runs"], rows, note)


def _stem_row(claims: Claims, most: int) -> list[Any]:
    cells = claims.stem_cells(most)
    chance = [cells.chance["layers"], cells.p["layers"], cells.chance["all"], cells.p["all"]]
    layers = np.flatnonzero(cells.heads.any(1))
    where = f"{layers.min()}-{layers.max()}" if len(layers) else "none"
    return [most, f"{cells.count} of {cells.heads.size}", *chance, where, len(claims.gates)]


# -- probes


def label_table(records: Records, model: str, task: str, most: int = 20) -> Table | None:
    """The best head for each label before training, after training alone and with all; the commonest labels."""
    every = {stage: p for stage, p in records.profiles(model, "test").items() if stage in STAGES}
    best = {stage: best_heads(p) for stage, p in every.items()}
    stages = [stage for stage in STAGES if stage in best]
    if STAGES[0] not in best:
        return None
    base = next(iter(alike(every[STAGES[0]]).values())).of_task(task)
    order = np.argsort(-base.counts, kind="stable")[:most]
    rows, published = [], []
    for i in order:
        label, each = base.labels[i], [_best(best[stage], task, base.labels[i]) for stage in stages]
        rows.append([label, int(base.counts[i]), *each, int(base.layer[i]), *_fall(each)])
        known = paper.LABELS.get((task, label) if records.real else ("", ""), (None,) * 3)
        known = [known[STAGES.index(stage)] for stage in stages]
        published.append([None, None, *known, None, *_fall(known)])
    columns = ["label", "n", *stages, "layer", *(["all five - single"] if len(stages) == len(STAGES) else [])]
    runs = ", ".join(f"{stage} {len(alike(every[stage]))}" for stage in stages)
    note = (
        f"Accuracy in percent of each seed's best head, means over seeds ({runs}); the {len(rows)} most frequent "
        "labels; centroids, where used, are from the test data, as published. Published: BERT base on OntoNotes. "
        "Layer: of the pretrained encoder."
    )
    return table(f"Best heads by label, {task.upper()}, {model}", columns, rows, note, published)


def _fall(each: Sequence[float | None]) -> list[float | None]:
    """From training alone to training with all, where all stages are there."""
    return [less(each[2], each[1])] if len(each) == len(STAGES) else []


def _best(profile: Profile, task: str, label: str) -> float | None:
    places = [i for i, pair in enumerate(zip(profile.tasks, profile.labels)) if pair == (task, label)]
    return 100 * float(profile.best[places[0]]) if places else None


def way_table(records: Records, model: str) -> Table | None:
    """The effect of taking centroids from training data: the mean best score over labels, by stage."""
    ways = {way: records.profiles(model, way) for way in ("train", "test")}
    rows = []
    for stage in (*STAGES, "random"):
        for task in TASKS:
            pair = [_mean_best(ways[way].get(stage, {}), task) for way in ("train", "test")]
            if None not in pair:
                runs = min(len(alike(ways[way][stage])) for way in ways)
                rows.append([stage, task.upper(), *pair, less(pair[1], pair[0]), runs])
    if not rows:
        return None
    columns = ["heads", "task", "centroids from training data", "from the test data", "difference", "seeds"]
    note = (
        "Accuracy in percent of each label's best head in each seed, mean over seeds and labels. DEP and SRL use "
        "attention, not centroids."
    )
    return table(f"Where centroids come from, {model}", columns, rows, note)


def _mean_best(profiles: Mapping[int, Profile], task: str) -> float | None:
    if not profiles:
        return None
    part = best_heads(profiles).of_task(task)
    return 100 * float(part.best.mean()) if len(part.labels) else None


def change_table(records: Records, model: str) -> Table | None:
    """How heads' profiles change from stage to stage, and what an untrained encoder has."""
    profiles = records.profiles(model, "train")
    stages = shared({stage: alike(profiles[stage]) for stage in ("random", *STAGES) if stage in profiles})
    rows = [[*two, *cells] for two in combinations(stages, 2) if (cells := _change(stages, *two))]
    if not rows:
        return None
    columns = ["from", "to", "gain", "low", "high", "p", "low over seeds", "high over seeds", "p over seeds"]
    columns += ["% best head moved", "r of profiles", "selectivity", "labels"]
    note = (
        "Gain of the labels' best heads in points, the best head of each seed before the mean over seeds. Low, high "
        "and p are over labels, with the trainings fixed; p is one-sided, for a gain. Over seeds: Student's paired t "
        "of the mean over labels, two-sided, where both stages have the same seeds. r of heads' profiles, mean over "
        "heads; change of selectivity in points: above zero, heads became specialists; both are computed run by run, "
        "as is the percentage of best heads that moved. Centroids from training data"
    )
    note += f"; seeds: {', '.join(f'{stage} {len(alike(profiles[stage]))}' for stage in STAGES if stage in profiles)}."
    return table(f"What training changes in heads, {model}", columns, rows, note)


def _change(stages: Mapping[str, Mapping[int, Profile]], before: str, after: str) -> list[Any] | None:
    """What changes from one stage to another, run by run; None where they have no seed in common."""
    a, b = stages[before], stages[after]
    trained = before not in UNTRAINED and after not in UNTRAINED
    runs = [(seed, seed) for seed in a if seed in b] if trained else list(product(a, b))
    if not runs:
        return None
    each = [changes({before: a[i], after: b[j]})[before, after] for i, j in runs]
    ends = [np.array([getattr(shift, side).max((1, 2)) for shift in each]) for side in ("after", "before")]  # (R, K)
    gain = paired_bootstrap(*(side.mean(0) for side in ends))
    seeds = over_seeds(*(dict(enumerate(side.mean(1))) for side in ends)) if trained else None
    wide = [100 * part for part in (gain.value, gain.low, gain.high)]
    wide += [gain.p, *((100 * seeds.low, 100 * seeds.high, seeds.p) if seeds else (None,) * 3)]
    kept = np.array([shift.kept for shift in each])
    r = None if np.isnan(kept).all() else np.nanmean(kept)
    moved, selective = (100 * np.mean([getattr(shift, name) for shift in each]) for name in ("moved", "selective"))
    return [*wide, moved, r, selective, len(each[0].best)]


COLUMNS = ("task", "labels", *STAGES, "in pairs", "pretrained to single", "single to all five", "labels that fall")


def every_table(records: Records, model: str, fit_on: str = "test") -> Table | None:
    """The best head of every label, the mean over a task's labels, by stage; BERT base on OntoNotes beside."""
    profiles = records.profiles(model, fit_on)
    if STAGES[0] not in profiles or len(profiles) < 2:
        return None
    rows, published = [], []
    for task in TASKS:
        pairs = {name: profile for name, profile in profiles.items() if name != ALL and task in name.split("+")}
        means = {stage: _means(profiles.get(stage, {}), task) for stage in STAGES}
        if not means[STAGES[0]]:
            continue
        static, single, joint = (mean_sd(means[stage].values())[0] for stage in STAGES)
        both = mean_sd(v for each in pairs.values() for v in _means(each, task).values())[0]
        falls, number = _falls(profiles, task)
        test = over_seeds(means[STAGES[2]], means[STAGES[1]])
        shifts = [less(single, static), less(joint, single), falls, test.p if test else None]
        rows.append([task.upper(), number, static, single, joint, both, *shifts])
        known = PROBES["bert-base", task] if records.real else None
        published.append([None, *_cells(known)[1:], None] if known else [None] * 10)
    note = (
        "Accuracy in percent of each seed's best head, mean over all labels and seeds; labels that fall from single "
        "to all five, by the mean over seeds; p: Student's paired t of the mean over seeds, two-sided. Centroids, "
        "where used, are from the test data, as published. Published: BERT base on OntoNotes."
    )
    return table(f"All labels, {model}", [*COLUMNS, "p over seeds"], rows, note, published) if rows else None


def _means(profiles: dict[int, Profile], task: str) -> dict[int, float]:
    """Seed to the mean over a task's labels of their best heads, in percent."""
    each = {seed: profile.of_task(task) for seed, profile in alike(profiles).items()} if profiles else {}
    return {seed: 100 * float(part.best.mean()) for seed, part in each.items() if part.labels}


def _falls(profiles: dict[str, dict[int, Profile]], task: str) -> tuple[str | None, int]:
    """How many labels' best heads are worse with all five than alone, and how many labels there are."""
    number = len(next(iter(alike(profiles[STAGES[0]]).values())).of_task(task).labels)
    best = []
    for stage in STAGES[1:]:
        each = [profile.of_task(task) for profile in alike(profiles[stage]).values()] if stage in profiles else []
        named = [dict(zip(one.labels, one.best)) for one in each]
        best.append({label: float(np.mean([one[label] for one in named])) for label in named[0]} if named else {})
    both = best[0].keys() & best[1].keys()
    return (f"{sum(best[1][label] < best[0][label] for label in both)} of {len(both)}" if both else None), number


def published_table() -> Table:
    """Summary of the authors' own probes of four encoders."""
    rows = []
    for (encoder, task), known in PROBES.items():
        remark = "the released value probe reads another tensor" if (encoder, task) in WRONG else ""
        rows.append([encoder, *_cells(known, task.upper()), f"{known.down} down, {known.up} up", remark])
    note = "Computed from the 5,292 numbers in the authors' scripts: percent of each label's best head, mean over "
    note += "labels; the last count is of labels that move by more than two standard errors of three runs."
    columns = ["encoder", *COLUMNS, "beyond two standard errors", ""]
    return table("The published probes", columns, rows, note)


def _cells(known: Probed, task: str = "") -> list[Any]:
    static, single, joint = known.stages
    shifts = [round(single - static, 2), round(joint - single, 2), f"{known.falls} of {known.labels}"]
    return [task, known.labels, static, single, joint, float(np.mean(known.pairs)), *shifts]
