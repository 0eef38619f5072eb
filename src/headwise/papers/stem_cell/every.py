"""All labels of a task together: what training alone, in pairs and with all does to their best heads."""

from __future__ import annotations

from typing import Any

import numpy as np

from headwise.papers.stem_cell.published import PROBES, STAGES, TASKS, WRONG, Probed
from headwise.papers.stem_cell.records import ALL, Records, alike
from headwise.papers.stem_cell.stages import Profile
from headwise.papers.summary import less, mean_sd, over_seeds, table

Table = dict[str, Any]
COLUMNS = ("task", "labels", *STAGES, "in pairs", "pretrained to single", "single to all five", "labels that fall")


def every_table(records: Records, model: str, fit_on: str = "test") -> Table | None:
    """The best head of every label, the mean over a task's labels, by stage; BERT base on OntoNotes beside."""
    profiles = records.profiles(model, fit_on)
    if STAGES[0] not in profiles or len(profiles) < 2:
        return None
    rows, published = [], []
    for task in TASKS:
        pairs = {name: found for name, found in profiles.items() if name != ALL and task in name.split("+")}
        means = {stage: _means(profiles.get(stage, {}), task) for stage in STAGES}
        if not means[STAGES[0]]:
            continue
        static, single, joint = (mean_sd(means[stage].values())[0] for stage in STAGES)
        both = mean_sd(v for found in pairs.values() for v in _means(found, task).values())[0]
        falls, number = _falls(profiles, task)
        test = over_seeds(means[STAGES[2]], means[STAGES[1]])
        shifts = [less(single, static), less(joint, single), falls, test.p if test else None]
        rows.append([task.upper(), number, static, single, joint, both, *shifts])
        known = PROBES["bert-base", task] if records.real else None
        published.append([None, *_cells(known)[1:], None] if known else [None] * 10)
    note = (
        "Percent right of each seed's best head, mean over all labels and seeds; labels that fall from single to all "
    )
    note += "five by the mean over seeds; p: Student's paired t of the mean over seeds, two-sided. Centroids, where "
    note += "there are any, from the test data itself, as published. Beside: BERT base on OntoNotes."
    return table(f"All labels, {model}", [*COLUMNS, "p over seeds"], rows, note, published) if rows else None


def _means(found: dict[int, Profile], task: str) -> dict[int, float]:
    """Seed to the mean over a task's labels of their best heads, in percent."""
    each = {seed: profile.of_task(task) for seed, profile in alike(found).items()} if found else {}
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
    """The authors' own probes of four encoders, summed up."""
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
