"""What is known of He and Choi 2021 (the stem cell hypothesis) outside its score table, on OntoNotes 5.

The paper's table of single-task, pairwise and joint scores is not available, so ours has no published numbers.
``PROBES`` sums up the probes of four encoders, 5,292 numbers in the released scripts; ``LABELS`` are some of BERT
base's: percent of the best head, centroids and scores both taken on the test data. ``OVERLAP`` was counted from the
released picture of three runs of POS with gates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

TASKS = ("pos", "ner", "dep", "con", "srl")
STAGES = ("pretrained", "single", "all five")

LABELS = {  # (task, label): pretrained, single task, all five
    ("pos", "NN"): (44.11, 91.44, 54.75),
    ("pos", "IN"): (53.45, 89.79, 53.86),
    ("pos", "DT"): (65.15, 93.93, 64.11),
    ("ner", "GPE"): (76.43, 91.40, 79.73),
    ("dep", "prep"): (72.62, 72.80, 78.02),
    ("dep", "pobj"): (96.35, 95.64, 88.59),
    ("con", "NP"): (55.97, 85.72, 57.58),
    ("srl", "ARG1"): (71.88, 77.75, 74.58),
}

OVERLAP = {"task": "pos", "heads": 144, "open": (50, 60, 58), "all": 41, "any": 69, "r": (0.63, 0.76)}


class Probed(NamedTuple):
    """What is left of an encoder's published probes of one task, over all its labels."""

    labels: int
    stages: tuple[float, float, float]
    """Mean of the labels' best heads, in percent, by `STAGES`."""
    pairs: tuple[float, ...]
    """The same after training with each other task, in the order of `TASKS`."""
    falls: int
    """Labels whose best head is worse after training with all five than after training alone."""
    down: int
    """Those that fall, and below those that rise, by more than two standard errors of three runs."""
    up: int


# Computed from all 5,292 numbers in the authors' repository; `probed_of` computes them again from a table of them.
PROBES = {
    ("bert-base", "pos"): Probed(49, (73.18, 90.49, 75.54), (84.28, 82.27, 81.67, 83.59), 45, 35, 0),
    ("bert-base", "ner"): Probed(18, (80.67, 86.69, 82.68), (83.7, 83.21, 82.19, 84.87), 15, 7, 0),
    ("bert-base", "dep"): Probed(44, (79.41, 79.28, 75.22), (74.67, 78.1, 78.64, 77.91), 33, 18, 5),
    ("bert-base", "con"): Probed(23, (82.36, 86.55, 83.5), (85.87, 85.62, 85.3, 83.05), 15, 5, 0),
    ("bert-base", "srl"): Probed(55, (78.58, 84.73, 83.71), (84.02, 85.61, 83.89, 84.48), 25, 9, 1),
    ("roberta-base", "pos"): Probed(49, (65.61, 65.93, 58.44), (60.76, 60.68, 59.98, 61.17), 34, 30, 8),
    ("roberta-base", "ner"): Probed(18, (61.04, 60.98, 61.09), (61.48, 61.87, 61.88, 60.49), 6, 3, 4),
    ("roberta-base", "dep"): Probed(44, (58.93, 70.93, 66.96), (68.83, 69.72, 69.22, 70.81), 33, 27, 4),
    ("roberta-base", "con"): Probed(23, (73.93, 70.78, 70.17), (70.83, 70.49, 70.57, 70.01), 8, 4, 1),
    ("roberta-base", "srl"): Probed(55, (71.91, 80.96, 75.59), (76.88, 76.99, 78.52, 76.9), 30, 21, 1),
    ("electra-base", "pos"): Probed(49, (72.15, 64.87, 59.29), (62.74, 62.46, 62.42, 62.81), 39, 28, 0),
    ("electra-base", "ner"): Probed(18, (68.75, 67.79, 62.9), (64.38, 65.35, 65.76, 66.27), 16, 8, 1),
    ("electra-base", "dep"): Probed(44, (63.04, 70.73, 65.91), (68.21, 69.01, 69.48, 70.1), 35, 32, 3),
    ("electra-base", "con"): Probed(23, (76.81, 74.36, 72.95), (73.55, 72.89, 73.78, 73.15), 10, 6, 0),
    ("electra-base", "srl"): Probed(55, (78.05, 83.02, 81.93), (81.16, 82.78, 84.82, 82.83), 24, 15, 4),
    ("deberta-base", "pos"): Probed(49, (57.54, 60.88, 57.31), (59.46, 58.39, 59.67, 59.11), 32, 11, 2),
    ("deberta-base", "ner"): Probed(18, (60.39, 62.17, 63.65), (63.9, 62.42, 63.33, 62.96), 4, 1, 1),
    ("deberta-base", "dep"): Probed(44, (66.45, 82.19, 75.58), (79.71, 80.84, 78.95, 79.16), 35, 30, 2),
    ("deberta-base", "con"): Probed(23, (69.75, 71.1, 71.64), (71.22, 71.4, 71.22, 71.59), 7, 1, 2),
    ("deberta-base", "srl"): Probed(55, (78.6, 83.6, 83.31), (82.49, 83.46, 84.58, 84.4), 20, 12, 4),
}
WRONG = {  # value probes of encoders other than BERT: the released code reads another tensor
    (encoder, task) for encoder, task in PROBES if encoder != "bert-base" and task in ("pos", "ner", "con")
}

ERRATA = {
    "15 models average": "the released script averages all tasks but draws the last one, SRL, alone",
    "probes": "centroids are taken from the test data they are then judged on",
    "probes of other models": "the released value probe is wrong for RoBERTa, ELECTRA and DeBERTa",
    "gates": "released gates start between 0.3 and 0.7, not open; static pruning has no released script",
}


def probed_of(rows: Iterable[Mapping[str, str]]) -> dict[tuple[str, str], Probed]:
    """Sum up published probes: rows of encoder, task, label, stage, accuracy and sd, as their scripts hold them."""
    numbers: dict[tuple[str, str], dict[str, dict[str, tuple[float, float]]]] = {}
    for row in rows:
        stage = "joint" if row["stage"] == "all" else row["stage"]
        labels = numbers.setdefault((row["encoder"], row["task"]), {})
        labels.setdefault(row["label"], {})[stage] = float(row["accuracy"]), float(row["sd"] or 0)
    return {key: _summed(key[1], list(labels.values())) for key, labels in numbers.items()}


def _summed(task: str, labels: Sequence[Mapping[str, tuple[float, float]]]) -> Probed:
    def mean(stage: str) -> float:
        return round(sum(one[stage][0] for one in labels) / len(labels), 2)

    shifts = [one["joint"][0] - one["single"][0] for one in labels]
    noise = [2 * math.sqrt((one["joint"][1] ** 2 + one["single"][1] ** 2) / 3) for one in labels]
    down, up = (sum(sign * s > n for s, n in zip(shifts, noise)) for sign in (-1, 1))
    three = mean("static"), mean("single"), mean("joint")
    pairs = tuple(mean(other) for other in TASKS if other != task)
    return Probed(len(labels), three, pairs, sum(s < 0 for s in shifts), down, up)
