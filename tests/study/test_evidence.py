"""The score of answers that do not read the input, and what it takes to be above it."""

from __future__ import annotations

import numpy as np
import pytest

from headwise.measuring.evaluate import Score
from headwise.study.evidence import against_baseline, best_constant
from headwise.tasks.metrics import metrics


@pytest.mark.parametrize(
    ("metric", "golds", "expected"),
    [
        ("accuracy", [0, 0, 0, 1], 0.75),
        ("f1", [0, 0, 0, 1], 0.4),  # all of class 1: precision 1/4, recall 1
        ("macro_f1", [0, 0, 1, 1], 1 / 3),
        ("mcc", [0, 1, 1, 1], 0.0),
        ("pearson", [0.1, 2.0, 3.5], 0.0),
        ("spearman", [0.1, 2.0, 3.5], 0.0),
        ("tag_accuracy", [["DET", "NOUN"], ["NOUN", "VERB", "NOUN"]], 0.6),
        ("span_f1", [["O", "O", "B-PER"], ["O", "O"]], 1 / 3),  # a name at every word: five, one of them right
        ("span_f1", [[(0, 1, "PER")], []], 0.0),
        ("uas_punct", [[(0, "root"), (1, "obj"), (1, "obj")]], 2 / 3),
        ("las_punct", [[(0, "root"), (1, "obj"), (1, "obj")]], 1 / 3),
        ("em", [["Paris", "in Paris"], ["1999"]], 0.0),
    ],
)
def test_the_best_constant_by_hand(metric, golds, expected):
    assert best_constant(metric, golds) == pytest.approx(expected)


@pytest.mark.parametrize("metric", ["accuracy", "f1", "macro_f1", "mcc"])
def test_no_constant_answer_beats_it(metric):
    golds = np.random.default_rng(0).integers(2, size=50).tolist()
    assert all(metrics[metric]([c] * 50, golds) <= best_constant(metric, golds) for c in (0, 1))


def score(right: int, n: int = 100) -> Score:
    """A task of two equally frequent classes."""
    golds = [i % 2 for i in range(n)]
    found = [gold if i < right else 1 - gold for i, gold in enumerate(golds)]
    return Score("t", "accuracy", right / n, found, golds)


@pytest.mark.parametrize(("right", "learned"), [(40, False), (50, False), (57, False), (65, True), (100, True)])
def test_a_task_is_learned_where_its_interval_is_above_the_baseline(right, learned):
    found = against_baseline(score(right))
    assert (found["baseline"], found["n"], found["learned"]) == (0.5, 100, learned)


def test_guessing_is_rarely_called_learned():
    rng = np.random.default_rng(0)
    called = [against_baseline(score(int(rng.binomial(100, 0.5))))["learned"] for _ in range(300)]
    assert np.mean(called) < 0.06
