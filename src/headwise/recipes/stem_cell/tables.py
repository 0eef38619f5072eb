"""Tables of the stem-cell recipe: scores, heads kept, claims, probes."""

from __future__ import annotations

from typing import Any

import numpy as np

from headwise.claims import Claims, RunOverlap
from headwise.probing.stages import Profile, changes
from headwise.recipes.stem_cell import published as paper
from headwise.recipes.stem_cell.published import STAGES, TASKS
from headwise.recipes.stem_cell.records import ALL, Records, alike, averaged
from headwise.recipes.summary import less, mean_sd, table

Table = dict[str, Any]
NAMES = [task.upper() for task in TASKS]
WAYS = {(False, False): "without gates", (True, False): "with gates", (True, True): "with gates, encoder frozen"}


# -- scores


def score_table(records: Records, model: str, gates: bool, frozen: bool = False) -> Table | None:
    """Every task alone, beside each other one, and with all."""
    scores = records.scores(model, gates, frozen)
    if not scores:
        return None

    def cells(sets: list[str]) -> list[float | None]:
        return [_percent(mean_sd(scores.get((s, t), {}).values())[0]) for s, t in zip(sets, TASKS)]

    def spread(sets: list[str]) -> list[float | None]:
        return [_percent(mean_sd(scores.get((s, t), {}).values())[1]) for s, t in zip(sets, TASKS)]

    alone, together = cells(list(TASKS)), cells([ALL] * 5)
    rows = [["alone", *alone], ["  sd over seeds", *spread(list(TASKS))]]
    for other in TASKS:
        row = cells([_pair(task, other) if task != other else "" for task in TASKS])
        rows += [[f"with {other.upper()}", *row]] if any(v is not None for v in row) else []
    rows += [["all five", *together], ["  sd over seeds", *spread([ALL] * 5)]]
    rows.append(["all five - alone", *map(less, together, alone)])
    seeds = max(len(found) for found in scores.values())
    note = f"Test scores in percent, means over up to {seeds} seeds; sentences: {records.examples()}."
    return table(f"Scores {WAYS[gates, frozen]}, {model}", ["trained", *NAMES], rows, note)


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
        found, size = RunOverlap(tasks, gates), gates[0].size
        r = found.r[np.triu_indices(len(gates), 1)]
        share = 100 * found.open.mean() / size
        named = "all five" if tasks == ALL else tasks.upper()
        how = "random encoder" if random else "frozen" if frozen else "trained"
        low, high = (np.nanmin(r), np.nanmax(r)) if len(r) and not np.isnan(r).all() else (None, None)
        rows.append([named, how, found.open.mean(), share, found.all, found.any, low, high, len(gates)])
        published.append(_published_kept(tasks if records.real else "", how, len(rows[-1])))
    if not rows:
        return None
    columns = ["trained", "encoder", "heads open", "% open", "in all runs", "in any", "r lowest", "r highest", "runs"]
    note = "r: Pearson between the gates of two runs. Beside: three runs of BERT base for POS, counted from a picture."
    return table(f"Heads kept, {model}", columns, rows, note, published)


def _gated(records: Records, model: str) -> list[tuple[str, bool, bool]]:
    there = [one for one in records.trained if one.model == model and one.gates]
    order = {tasks: i for i, tasks in enumerate((*TASKS, ALL))}
    found = {(one.tasks, one.frozen, one.random) for one in there}
    return sorted(found, key=lambda one: (one[2], one[1], order.get(one[0], 5 + len(one[0]) / 100), one[0]))


def _published_kept(tasks: str, how: str, width: int) -> list[Any]:
    if (tasks, how) != (paper.OVERLAP["task"], "trained"):
        return [None] * width
    known = paper.OVERLAP
    mean = sum(known["open"]) / 3
    return [None, None, mean, 100 * mean / known["heads"], known["all"], known["any"], *known["r"], 3]


def correlation_table(records: Records, model: str) -> Table | None:
    """Pearson between tasks' gates, with the reliability of each over runs on the diagonal."""
    claims = with_joint(records, model)
    if claims is None:
        return None
    matrix = claims.correlation()
    names = [*NAMES, "all five"][: len(claims.tasks)]
    rows = [[name, *row] for name, row in zip(names, matrix)]
    note = "Gates averaged over runs; on the diagonal the mean r between two runs of the same task."
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
    note = "Heads claimed by so many of the five tasks, each in most of its runs. Chance deals each task's heads anew; "
    note += "p is one-sided, for more shared heads than that."
    return table("Stem cells", [*columns, "runs"], rows, note)


def _stem_row(claims: Claims, most: int) -> list[Any]:
    found = claims.stem_cells(most)
    chance = [found.chance["layers"], found.p["layers"], found.chance["all"], found.p["all"]]
    layers = np.flatnonzero(found.heads.any(1))
    where = f"{layers.min()}-{layers.max()}" if len(layers) else "none"
    return [most, f"{found.count} of {found.heads.size}", *chance, where, len(claims.gates)]


# -- probes


def label_table(records: Records, model: str, task: str, most: int = 20) -> Table | None:
    """The best head for each label before training, after training alone and with all; the commonest labels."""
    every = {stage: p for stage, p in records.profiles(model, "test").items() if stage in STAGES}
    found = {stage: averaged(p) for stage, p in every.items()}
    stages = [stage for stage in STAGES if stage in found]
    if STAGES[0] not in found:
        return None
    base = found[STAGES[0]].of_task(task)
    order = np.argsort(-base.counts, kind="stable")[:most]
    rows, published = [], []
    for i in order:
        label, each = base.labels[i], [_best(found[stage], task, base.labels[i]) for stage in stages]
        change = less(each[2], each[1]) if len(each) == 3 else None
        rows.append([label, int(base.counts[i]), *each, int(base.layer[i]), change])
        known = paper.LABELS.get((task, label) if records.real else ("", ""), (None,) * 3)
        known = [known[STAGES.index(stage)] for stage in stages]
        full = less(known[2], known[1]) if len(known) == 3 else None
        published.append([None, None, *known, None, full])
    columns = ["label", "n", *stages, "layer", "all five - single"]
    runs = ", ".join(f"{stage} {len(alike(p))}" for stage, p in every.items() if stage != STAGES[0])
    note = f"Percent right of the best head, means over seeds ({runs}); the {len(rows)} commonest labels; centroids, "
    note += "where there are any, from the test data itself, as published. Beside: BERT base on OntoNotes. Layer: "
    note += "pretrained."
    return table(f"Best heads by label, {task.upper()}, {model}", columns, rows, note, published)


def _best(found: Profile, task: str, label: str) -> float | None:
    places = [i for i, pair in enumerate(zip(found.tasks, found.labels)) if pair == (task, label)]
    return 100 * float(found.best[places[0]]) if places else None


def way_table(records: Records, model: str) -> Table | None:
    """What it changes to take centroids from training data: the mean best score over labels, by stage."""
    ways = {way: records.profiles(model, way) for way in ("train", "test")}
    rows = []
    for stage in (*STAGES, "random"):
        for task in TASKS:
            pair = [_mean_best(ways[way].get(stage, []), task) for way in ("train", "test")]
            if None not in pair:
                runs = min(len(alike(ways[way][stage])) for way in ways)
                rows.append([stage, task.upper(), *pair, less(pair[1], pair[0]), runs])
    if not rows:
        return None
    columns = ["heads", "task", "centroids from training data", "from the test data", "difference", "seeds"]
    note = "Percent right of each label's best head, mean over labels. DEP and SRL go by attention: no centroids."
    return table(f"Where centroids come from, {model}", columns, rows, note)


def _mean_best(profiles: list[Profile], task: str) -> float | None:
    if not profiles:
        return None
    part = averaged(profiles).of_task(task)
    return 100 * float(part.best.mean()) if len(part.labels) else None


def change_table(records: Records, model: str) -> Table | None:
    """How heads' profiles change from stage to stage, and what an untrained encoder has."""
    found = records.profiles(model, "train")
    stages = {stage: averaged(found[stage]) for stage in ("random", *STAGES) if stage in found}
    if len(stages) < 2:
        return None
    rows = []
    for (before, after), shift in changes(stages).items():
        gain = shift.gain()
        spread = [100 * float(part) for part in (gain.value, gain.low, gain.high)]
        spread.append(float("nan" if gain.p is None else gain.p))
        moved, kept = 100 * shift.moved.mean(), np.nanmean(shift.kept) if not np.isnan(shift.kept).all() else None
        rows.append([before, after, *spread, moved, kept, 100 * shift.selective.mean(), len(shift.best)])
    columns = ["from", "to", "gain", "low", "high", "p", "% best head moved", "r of profiles", "selectivity", "labels"]
    note = "Gain of the labels' best heads in points, interval and p over labels; r of heads' profiles, mean over "
    note += "heads; change of selectivity in points: above zero heads became specialists. Centroids from training data"
    note += f"; seeds: {', '.join(f'{stage} {len(alike(found[stage]))}' for stage in STAGES if stage in found)}."
    return table(f"What training changes in heads, {model}", columns, rows, note)
