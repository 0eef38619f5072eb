"""What a study says in words: every sentence follows from the numbers, and none is said without them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from headwise.dissociation import verdict as judge
from headwise.selection import top
from headwise.tasks.leakage import leakage
from headwise.tasks.sentence import Classify
from headwise.tasks.task import Rows, Task
from headwise.verdict import top_mask, verdict

OWN = {"a": [[9, 8, 0, 0], [0, 0, 1, 2]], "b": [[0, 0, 9, 8], [1, 2, 0, 0]]}


def maps(**scores):
    return {"importance": {task: {"scores": found} for task, found in scores.items()}}


def dissociation(mean, pairs, **interval):
    return {
        "dissociation": {"default": 0.3, "D": [{"fraction": 0.3, "mean": {"value": mean, **interval}, "pairs": pairs}]}
    }


def pair(kind, p=0.001):
    return {"a": "a", "b": "b", "verdict": kind, "p": p}


def row(task, plain, iat, low, high, **p):
    return {"task": task, "plain": plain, "iat": iat, "low": low, "high": high, **p}


def drawn(seed, tasks=8, shape=(6, 12), shared=0.0):
    """Scores of heads drawn anew for each task, beside what all tasks have in common."""
    generator = np.random.default_rng(seed)
    common = generator.normal(size=shape)
    own = {f"t{i}": shared * common + (1 - shared) * generator.normal(size=shape) for i in range(tasks)}
    return {task: scores.tolist() for task, scores in own.items()}


def cuts(*losses, kept=(8, 7, 6)):
    rows = zip((0.0, 0.1, 0.3), kept, (0.0, *losses))
    return {"prune": {"rows": [{"fraction": f, "kept": k, "task scores": {"a": 0.9 - x}} for f, k, x in rows]}}


def said(study, alpha=0.25):
    return " ".join(verdict(study, alpha))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from([0.0, 1.0, 2.5, float("nan")]), min_size=3, max_size=3), min_size=2, max_size=4)
)
def test_the_top_heads_are_those_of_selection(scores):
    array = np.array(scores)
    if np.isnan(array).sum() > array.size / 2:
        return
    rows = [[None if x != x else x for x in row] for row in scores]  # as JSON has them
    for alpha in (0.0, 0.25, 0.5):
        assert top_mask(rows, alpha).tolist() == top(torch.tensor(array), alpha).tolist()


def test_heads_that_cannot_be_cut_are_closed_and_halves_that_are_not_there_say_nothing():
    rows = [{"fraction": f, "kept": kept, "task scores": {"a": 0.9}} for f, kept in ((0.0, 8), (0.5, 4))]
    text = said({"prune": {"rows": rows}, "trust": {"split_half": {"a": None}}})
    assert "heads that are needed least can be closed for 0.0 points" in text and "How sure" not in text
    assert "can be cut" in said({"prune": {"rows": [row | {"speedup": 1.0} for row in rows]}})


def test_nothing_is_said_without_numbers():
    assert verdict({}, 0.3) == []
    assert verdict(maps(a=OWN["a"]), 0.3) == [], "one task shares heads with none"


def test_the_top_heads_are_never_cut_ones():
    assert top_mask([[0.3, None], [0.1, float("nan")]], 0.9).tolist() == [[True, False], [True, False]]


def test_shared_heads_against_chance():
    text = said(maps(**OWN))
    assert "2 of 8" in text and "share 0.5." in text and "a and b share 0 of them, not told apart from chance" in text
    same = said(maps(a=OWN["a"], b=OWN["a"]))
    assert "a and b share 2" in same and "(p = 0.071)" in same, "1 of 28 pairs of heads, and it might have been fewer"
    assert "Pairs of tasks share 0 to 2 of them, none told apart from chance" in said(maps(**OWN, c=OWN["a"]))


def test_shared_heads_are_told_with_what_the_choice_of_the_pair_costs():
    """Of twelve heads in ninety-six, all or none in common: the most shared of three pairs, of six tests."""
    one, other = np.zeros((8, 12)), np.zeros((8, 12))
    one[0], other[1] = 1, 1
    text = said(maps(a=one.tolist(), b=one.tolist(), c=other.tolist()), 0.125)
    p = 6 * float(stats.hypergeom(96, 12, 12).sf(11))
    assert f"a and b share most, more than chance gives: 12 of 12 (p = {p:.2g}, adjusted over 3 pairs)." in text
    assert "fewer than" not in text, "none in common is what chance gives often enough"


def test_heads_that_tasks_leave_to_each_other_are_told():
    one = np.arange(96.0).reshape(8, 12)
    text = said(maps(a=one.tolist(), b=(-one).tolist(), c=one.tolist()), 0.5)
    assert "a and c share most, more than chance gives: 48 of 48" in text
    assert "a and b share least, fewer than chance gives: 0 of 48" in text


@pytest.mark.parametrize(("tasks", "alpha"), [(2, 0.3), (8, 0.3), (8, 0.5)])
def test_heads_drawn_by_chance_are_rarely_said_to_be_shared(tasks, alpha):
    """Many pairs are looked at, and the most extreme one is told: 5 % is the chance that any is."""
    cases = 200
    wrong = sum("than chance gives" in said(maps(**drawn(seed, tasks)), alpha) for seed in range(cases))
    assert wrong / cases <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / cases)


def test_heads_that_are_shared_are_said_to_be():
    for seed in range(20):
        text = said(maps(**drawn(seed, shared=0.8)), 0.3)
        assert "share most, more than chance gives" in text and "share least, fewer" not in text


def test_chance_counts_living_heads_only():
    """Half of the heads are cut: tasks that take half of the others at random share half of those."""
    cut = np.arange(72).reshape(6, 12) % 2 == 0
    wrong = 0
    for seed in range(100):
        scores = {task: np.where(cut, np.nan, found) for task, found in drawn(seed).items()}
        rows = {task: [[None if x != x else x for x in row] for row in found] for task, found in scores.items()}
        text = said(maps(**rows), 0.25)
        assert "18 of 72, of which 36 are not cut); by chance two tasks would share 9." in text
        wrong += "than chance gives" in text
    assert wrong <= 9


@pytest.mark.parametrize(
    ("mean", "word"),
    [
        (0.12, "costs it 12.0 percentage points of its whole score more"),
        (-0.2, "costs it 20.0 percentage points of its whole score less"),
    ],
)
def test_the_sign_of_a_dissociation_is_a_word(mean, word):
    assert word in said(dissociation(mean, []))


def test_the_dissociation_told_is_that_of_the_default_share():
    found = {"default": 0.5, "D": [{"fraction": f, "mean": {"value": f}, "pairs": []} for f in (0.3, 0.5)]}
    text = said({"dissociation": found})
    assert "(α = 0.5)" in text and "50.0 percentage points" in text and "30.0 p" not in text


def test_only_tested_dissociations_are_named():
    assert "come apart (double dissociation, one-sided p < 0.05): a and b" in said(
        dissociation(0.2, [pair("distinct")])
    )
    assert "come apart" not in said(dissociation(0.2, [pair("distinct", p=0.2)]))
    assert "come apart" not in said(dissociation(0.2, [pair("distinct", p=None)])), "no p-value, no claim"
    assert "No dissociation is seen between: a and b" in said(dissociation(0.0, [pair("none")]))
    assert "(mean D +10.0 %, 95 % interval +5.0 to +15.0)" in said(dissociation(0.1, [], low=0.05, high=0.15))
    assert "(mean D -7.2 %, 95 % interval -25.6 to +8.1)" in said(dissociation(-0.072, [], low=-0.256, high=0.081))


@pytest.mark.parametrize("p", [0.001, 0.05, 0.6, None])
def test_every_pair_is_in_one_list(p):
    """Whatever its verdict is: of a pair that no list has, a reader would conclude the opposite."""
    extremes = [-0.2, -0.01, 0.0, 0.02, 0.3, float("nan")]
    kinds = sorted({judge(a, b) for a in extremes for b in extremes})
    assert len(kinds) == 6
    pairs = [{"a": f"one{i}", "b": f"other{i}", "verdict": kind, "p": p} for i, kind in enumerate(kinds)]
    lines = verdict(dissociation(0.1, pairs), 0.3)
    for i, kind in enumerate(kinds):
        (line,) = [line for line in lines if f"one{i} and other{i}" in line]
        sure = p is not None and p < 0.05
        words = {"distinct": "They come apart" if sure else "Double dissociation, but not sure", "single": "One-sided"}
        words |= {"double": words["distinct"], "undefined": "Not known"}
        assert line.startswith(words.get(kind, "No dissociation is seen"))


def test_iat_is_better_only_where_a_test_says_so():
    unsure = said({"iat": {"rows": [row("a", 0.8, 0.82, -0.01, 0.05, p=0.2)]}})
    assert "+2.00 points" in unsure and "no single task's change is beyond chance on these examples" in unsure
    rows = [row("a", 0.8, 0.9, 0.05, 0.15, p=0.001), row("b", 0.8, 0.7, -0.15, -0.05, p=0.002)]
    sure = said({"iat": {"rows": rows}})
    assert "beyond chance on these examples, better: a +10.0, worse: b -10.0" in sure
    assert "one training of each" in sure and "one training of each" in unsure and "surely" not in sure


def test_iat_is_tested_over_all_tasks_together():
    """One of ten tasks at 0.02 is what ten tasks bring by themselves."""
    rows = [row("a", 0.8, 0.9, 0.01, 0.2, p=0.02), *(row(f"t{i}", 0.8, 0.8, -0.1, 0.1, p=0.9) for i in range(9))]
    assert "no single task's change is beyond chance" in said({"iat": {"rows": rows}})
    assert "better: a +10.0, worse: none" in said({"iat": {"rows": rows[:2]}})


@pytest.mark.parametrize("p", [{}, {"p": None}])
def test_iat_without_a_p_value_is_told_by_its_mean_alone(p):
    """As records of before have it."""
    text = said({"iat": {"rows": [row("a", 0.8, 0.9, 0.05, 0.15, **p)]}})
    assert text == "Important-head training changes the mean score by +10.00 points."


def test_what_may_be_cut():
    assert "The 2 of 8 heads" in said(cuts(0.0, 0.005)) and "0.5 points at most" in said(cuts(0.0, 0.005))
    assert "The 1 of 8 heads" in said(cuts(0.0, 0.2))
    assert "Cutting even the 1 of 8 heads" in said(cuts(0.02, 0.2))
    assert "The 2 of 4 heads" in said(cuts(0.0, 0.0, kept=(4, 2, 0))), "nobody cuts all heads that are left"
    assert said(cuts(0.0, 0.0, kept=(8, 8, 8))) == "", "a share of few heads that is no head is no cut"


def test_how_sure():
    assert "agree on every task's heads" in said({"trust": {"split_half": {"a": 1.0, "b": 1.0}}})
    assert "agree on 60% or more" in said({"trust": {"split_half": {"a": 1.0, "b": 0.6}}})
    assert "all predictions fall into one class for a as it is" in said({"trust": {"collapsed": ["a as it is"]}})


def texts(name, **splits):
    rows = {split: [{"text": text, "label": "x"} for text in found] for split, found in splits.items()}
    return Task(name, Classify(("x", "y")), Rows(**rows), "accuracy")


def overlapping(*tasks):
    return said({"trust": leakage(tasks).to_trust()})


def test_leaks_are_told_in_rows_of_the_two_splits_that_share_most():
    train, dev = [f"text {i}" for i in range(10)], [f"text {i}" for i in (1, 2, 30, 40)]
    text = overlapping(texts("a", train=train, dev=dev), texts("b", train=train[:2], dev=["new", *train[:3]]))
    assert "Beware" in text and "3 of 4 dev rows of b (75%) have their text in the train rows of a too" in text


def test_texts_that_evaluations_share_are_no_leak():
    text = overlapping(texts("a", train=["x"], dev=["one", "two"]), texts("b", train=["y"], dev=["one", "3", "4"]))
    assert "no leak: 1 of 2 dev rows of a (50%) have their text in the dev rows of b too" in text
    assert "Beware" not in text and "training" not in text
    assert "no leak" not in overlapping(texts("a", train=["x"], dev=["x"]))


def test_what_a_study_does_not_use_is_no_warning_of_it():
    assert overlapping(texts("a", train=["x"], dev=["y"], test=["x", "y"])) == ""
    assert "1 of 1 test rows of a (100%)" in overlapping(texts("a", train=["x"], test=["x"])), "it serves as dev"
