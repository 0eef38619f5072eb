"""All labels of a task: sums of the published probes, and ours beside them."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import numpy as np
import pytest

from headwise.papers.stem_cell.published import LABELS, PROBES, TASKS, WRONG, Probed, probed_of

DATA = Path(os.environ.get("HEADWISE_DATA", "nowhere")) / "published" / "stem_cell_head_probes.csv"


def test_planted_probes_are_summed_up():
    """Two labels fall, one of them by less than two standard errors, and one rises."""
    rows = []
    for label, single, joint, sd in (("a", 90, 70, 1), ("b", 80, 79, 3), ("c", 60, 66, 1)):
        each = {"static": 50, "single": single, "all": joint, **dict.fromkeys(TASKS[1:], 75)}
        rows += [
            {"encoder": "e", "task": "pos", "label": label, "stage": stage, "accuracy": str(value), "sd": str(sd)}
            for stage, value in each.items()
        ]
    mean = round((70 + 79 + 66) / 3, 2)
    assert probed_of(rows) == {("e", "pos"): Probed(3, (50, round(230 / 3, 2), mean), (75,) * 4, 2, 1, 1)}


def test_published_sums_agree_with_the_single_labels_beside_our_tables():
    assert len(PROBES) == 4 * len(TASKS) and len(WRONG) == 9
    assert sum(4 * probed.labels * 7 for (encoder, _), probed in PROBES.items() if encoder == "bert-base") == 5292
    shifts = [round(PROBES["bert-base", task].stages[2] - PROBES["bert-base", task].stages[1], 1) for task in TASKS]
    assert np.allclose(shifts, (-14.9, -4.0, -4.1, -3.0, -1.0), atol=0.06)
    assert {task for task, _ in LABELS} == set(TASKS)


@pytest.mark.realdata
def test_the_sums_are_those_of_the_published_table():
    if not DATA.exists():
        pytest.skip(f"no {DATA}")
    with DATA.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 5292 and probed_of(rows) == PROBES
