"""Published numbers of MESH (Gupta, Patel, Singh), Tables I and II, as data: percent and rows, as printed.

The ± values of Table I are omitted: they are the same in every row and equal those of another paper's table (Li et al.
2023, Table 6), so they do not describe these numbers.
"""

from __future__ import annotations

PAIRS = ("nli_en", "nli_es", "qa_en", "qa_es", "ner_en", "ner_es", "pa_en", "pa_es")
TABLE_1 = {
    "multi-task": (65.51, 62.91, 53.0, 55.28, 77.60, 74.21, 85.33, 74.08),
    "prune least important 30 %": (69.16, 63.16, 65.88, 62.10, 80.50, 82.37, 83.68, 84.25),
    "train random 30 %": (72.06, 68.50, 69.72, 66.71, 82.5, 84.03, 85.79, 86.11),
    "train most important 30 %": (75.40, 74.11, 72.12, 73.60, 83.10, 86.16, 86.02, 84.55),
}
TABLE_2 = {  # training rows
    **{"nli_en": 392_000, "nli_es": 392_000, "qa_en": 88_000, "qa_es": 81_800},
    **{"ner_en": 20_000, "ner_es": 20_000, "pa_en": 49_400, "pa_es": 49_400},
}
