"""The published tables agree with themselves, where they are not said to be wrong."""

from __future__ import annotations

from statistics import median

import pytest

from headwise.papers.anatomy import published

CELLS = [(model, task) for model, rows in published.TABLE_5.items() for task in rows]


@pytest.mark.parametrize(("model", "task"), CELLS)
def test_printed_gains_follow_from_printed_scores(model, task):
    """Printed scores are rounded to 0.1, and the gains were made from finer ones."""
    last, best, top = published.TABLE_5[model][task]
    for printed, score in zip(published.TABLE_5_GAINS[model][task], (best, top)):
        if printed is not None:
            slack = 100 * (0.05 / last + 0.05 * score / last**2) + 0.06
            assert printed == pytest.approx(100 * (score / last - 1), abs=slack)


def test_the_misprint_is_told_by_the_gain_beside_it():
    last, _, top = published.TABLE_5["gpt2"]["OddManOut"]
    assert published.TABLE_5_GAINS["gpt2"]["OddManOut"][1] == pytest.approx(100 * (top / last - 1), abs=0.1)
    assert abs(100 * (5.5 / last - 1) - 1.6) > 90 and "55.5" in published.ERRATA["table 5, gpt2, OddManOut"]


def test_the_median_gain_is_over_the_last_layer():
    over = {
        name: median(published.gain(published.TABLE_5[m][t], 2, i) for m, t in CELLS)
        for name, i in (("last", 0), ("best", 1))
    }
    assert over["last"] == pytest.approx(published.MEDIAN_GAIN, abs=0.05)
    assert over["best"] == pytest.approx(11.6, abs=0.05) and "11.6" in published.ERRATA["section 4.4"]


def test_the_top_heads_win_on_all_ten_tasks():
    for rows in published.TABLE_3.values():
        assert len(rows) == 10 and all(top > best >= last for last, best, top in rows.values())


def test_tables_speak_of_the_same_tasks_and_models():
    assert all(list(rows) == list(published.TASKS) for rows in published.TABLE_5.values())
    assert set(published.TABLE_5) <= set(published.TABLE_1) and set(published.TABLE_5_GAINS) == set(published.TABLE_5)
    assert list(published.BEST_HEADS) == list(published.TOP_12_DEV) == list(published.TASKS)
    for model, task, _ in published.UNREADABLE:
        assert published.TABLE_5_GAINS[model][task][1] is None
