"""What is known of He and Choi 2021 (the stem cell hypothesis) outside its score table, for BERT base on OntoNotes 5.

The paper's table of single-task, pairwise and joint scores could not be had, so nothing stands beside ours there.
``LABELS`` are numbers embedded in the released scripts: percent of the best head, centroids and scores both taken on
the test data; ``OVERLAP`` was counted from the released picture of three runs of POS with gates.
"""

from __future__ import annotations

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

ERRATA = {
    "15 models average": "the released script averages all tasks but draws the last one, SRL, alone",
    "probes": "centroids are taken from the test data they are then judged on",
    "probes of other models": "the released value probe is wrong for RoBERTa, ELECTRA and DeBERTa",
    "gates": "released gates start between 0.3 and 0.7, not open; static pruning has no released script",
}
