"""Table 4: the same news as single texts and as pairs: does the task matter, or the form of its input?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headwise.measuring.stats import adjust
from headwise.papers.specialization import published as paper
from headwise.papers.specialization.records import Lesioned, Records, label, of_base
from headwise.papers.specialization.settings import SIZES
from headwise.papers.summary import over_seeds, table

Table = dict[str, Any]


def paired_news(records: Records, model: str) -> dict[str, dict[str, list[Lesioned]]]:
    """Beside each other task the news as single texts and as pairs, as far as both were lesioned: one for each seed."""
    pairs = records.pairs(model)
    for size in ("small", "smoke"):
        plain, paired, two = SIZES[size].other
        made: dict[str, dict[str, list[Lesioned]]] = {}
        for other in (two, SIZES[size].five[-1]):
            sides = {a: pairs.get((a, other)) or pairs.get((other, a)) for a in (plain, paired)}
            made[other] = {a: one for a, one in sides.items() if one}
        if any(made.values()):
            return made
    return {}


def ag_pair_table(records: Records, model: str) -> Table | None:
    """Table 4: the same news as single texts and as pairs, each beside a task of pairs and one of single texts."""
    rows, published = [], []
    for other, sides in paired_news(records, model).items():
        for a, one in sides.items():
            rows.append([label(a), label(other), *_both(one, a), len(one)])
            published.append([None, None, *_table_4(model, label(a), label(other)), None])
    if not rows:
        return None
    columns = ["A", "B", "A whole", "A without A's", "A without B's", "B whole", "B without A's", "B without B's"]
    columns += ["D_A", "D_B", "D", "seeds"]
    note = "In percent: performance whole and without the top 30 % of heads of A or B."
    return table(f"AG against AG-Pair, {model}", columns, rows, note, published)


def _both(lesioned: Sequence[Lesioned], a: str) -> list[float]:
    """Performances of A and B whole, without A's and without B's heads, and D_A, D_B, D, in percent over seeds."""
    cells = np.mean([one.cells()[:, :3] for one in lesioned], 0)
    if lesioned[0].trained.tasks[0] != a:
        cells = cells[::-1][:, [0, 2, 1]]
    (base_a, a_a, a_b), (base_b, b_a, b_b) = cells
    d_a, d_b = (a_b - a_a) / base_a, (b_a - b_b) / base_b
    return [100 * v for v in (base_a, a_a, a_b, base_b, b_a, b_b, d_a, d_b, (d_a + d_b) / 2)]


def _table_4(model: str, a: str, b: str) -> list[float | None]:
    if (a, b) not in paper.TABLE_4 or not of_base(model):
        return [None] * 9
    (base_a, a_a, a_b), (base_b, b_a, b_b), scores = paper.TABLE_4[a, b]
    return [base_a, a_a, a_b, base_b, b_a, b_b, *scores]


def news_test(records: Records, model: str) -> Table | None:
    """The claim of Section 6.2, that the form of the input makes no significant difference, put to a test."""
    rows = []
    for other, sides in paired_news(records, model).items():
        if len(sides) == 2:
            single, paired = (
                {one.trained.seed: 100 * one.entry()["pairs"][0]["d"] for one in side if _defined(one)}
                for side in sides.values()
            )
            names, test = [label(a) for a in sides], over_seeds(paired, single)
            cells = [test.value, test.low, test.high, test.p] if test else [None] * 4
            printed = [paper.TABLE_4.get((name, label(other)), ((), (), (None,) * 3))[2][2] for name in names]
            single_text, pairs = printed
            gap = None if single_text is None or pairs is None or not of_base(model) else pairs - single_text
            rows.append([label(other), *cells, len(single.keys() & paired.keys()), gap])
    if not rows:
        return None
    for row, holm in zip(rows, adjust(np.array([np.nan if row[4] is None else row[4] for row in rows])).tolist()):
        row.insert(5, holm)
    columns = ["against", "D of pairs - D of texts", "low", "high", "p", "p (Holm)", "seeds", "published difference"]
    note = (
        "D of AG-Pair minus D of AG against the same other task, in percent; low, high and p: Student's paired t over "
        "seeds, two-sided. The paper finds no significant difference and names no test; three seeds detect only large "
        "differences, so p above 0.05 is no evidence that the form of the input does not matter."
    )
    return table(f"AG against AG-Pair, difference of D, {model}", columns, rows, note)


def _defined(one: Lesioned) -> bool:
    return one.entry()["pairs"][0]["d"] is not None
