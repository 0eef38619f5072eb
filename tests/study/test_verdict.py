"""What a study says in words: every sentence follows from the numbers, and none is said without them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from headwise.dissociation.significance import verdict as judge
from headwise.heads.selection import ties, top
from headwise.reporting.words import repeated
from headwise.study.verdict import tied, top_mask, verdict, withheld
from headwise.tasks.kinds.classify import Classify
from headwise.tasks.leakage import leakage
from headwise.tasks.task import Rows, Task

OWN = {"a": [[9, 8, 0, 0], [0, 0, 1, 2]], "b": [[0, 0, 9, 8], [1, 2, 0, 0]]}


def maps(**scores):
    return {"importance": {task: {"scores": found} for task, found in scores.items()}}


def dissociation(mean, pairs, null="random heads", **tests):
    entry = {"fraction": 0.3, "mean": {"value": mean, **tests}, "pairs": pairs}
    return {"dissociation": {"default": 0.3, "null": null, "random": 20, "n": {"a": 200, "b": 240}, "D": [entry]}}


def pair(kind, p=0.001, **names):
    return {"a": "a", "b": "b", "verdict": kind, "p": p, **names}


def row(task, plain, iat, low, high, **p):
    return {"task": task, "plain": plain, "iat": iat, "low": low, "high": high, **p}


def scores(**learned):
    made = {"metric": "accuracy", "value": 0.52, "low": 0.43, "high": 0.61, "n": 120, "baseline": 0.5}
    return {"scores": {task: made | {"learned": value} for task, value in learned.items()}}


def drawn(seed, tasks=8, shape=(6, 12), shared=0.0):
    """Scores of heads drawn anew for each task, beside what all tasks have in common."""
    generator = np.random.default_rng(seed)
    common = generator.normal(size=shape)
    own = {f"t{i}": shared * common + (1 - shared) * generator.normal(size=shape) for i in range(tasks)}
    return {task: scores.tolist() for task, scores in own.items()}


def cuts(chosen, kept=(8, 7, 6), speed=True, **changes):
    rows = [{"fraction": f, "kept": k, "task scores": {"a": 0.9, "b": 0.8}} for f, k in zip((0.0, 0.1, 0.3), kept)]
    rows = [row | ({"speedup": 1.0} if speed else {}) for row in rows]
    held_out = {task: dict(zip(("value", "low", "high", "n", "split"), found)) for task, found in changes.items()}
    return {"prune": {"rows": rows, "chosen": chosen, "held out": held_out}}


def stable(**found):
    names = ("expected", "enough", "needed")
    return {"trust": {"stability": {t: dict(zip(names, f)) | {"used": 160} for t, f in found.items()}}}


def said(study, alpha=0.25):
    return " ".join(verdict(study, alpha))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from([0.0, 1.0, 2.5, float("nan")]), min_size=3, max_size=3), min_size=2, max_size=4)
)
def test_the_top_heads_and_their_ties_are_those_of_selection(scores):
    array = np.array(scores)
    if np.isnan(array).sum() > array.size / 2:
        return
    rows = [[None if x != x else x for x in row] for row in scores]  # as JSON has them
    for alpha in (0.0, 0.25, 0.5):
        assert top_mask(rows, alpha).tolist() == top(torch.tensor(array), alpha).tolist()
        assert tied(rows, alpha) == (ties(torch.tensor(array), alpha) > 0)


def test_nothing_is_said_without_numbers():
    assert verdict({}, 0.3) == []
    assert verdict(maps(a=OWN["a"]), 0.3) == [], "one task shares heads with none"


def test_the_top_heads_are_never_cut_ones():
    assert top_mask([[0.3, None], [0.1, float("nan")]], 0.9).tolist() == [[True, False], [True, False]]


# -- what was not learned


def whole(**learned):
    """A study in which everything is significant."""
    study = maps(**{task: np.arange(96.0).reshape(8, 12).tolist() for task in "abc"})
    pairs = [pair("distinct", a=a, b=b) for a, b in ("ab", "ac", "bc")]
    study |= dissociation(0.2, pairs, p=0.001, low=0.1, high=0.3)
    study |= cuts(0.3, a=(-0.2, -0.3, -0.1, 50, "dev"), b=(0.0, -0.01, 0.01, 50, "dev"))
    return study | scores(**learned) | stable(a=(0.95, True, 100), b=(0.5, False, 900), c=(0.95, True, 100))


def test_tasks_that_were_not_learned_come_first_and_nothing_is_claimed_of_them():
    first, *others = verdict(whole(a=False, b=True, c=True), 0.5)
    assert first.startswith(
        "Not learned: a (accuracy 0.52, 95 % CI 0.43 to 0.61, n = 120; a constant answer scores 0.50"
    )
    text = " ".join(others)
    assert "Withheld: a and b; a and c." in others and "Ablating a task's own heads" not in text
    assert "Double dissociation: b and c (one-sided p < 0.05" in text and "b and c share" in text
    assert "a and" not in text.replace("a and b; a and c", "") and "costs b" in text and "costs a" not in text


def test_where_nothing_was_learned_nothing_is_claimed():
    lines = verdict(whole(a=False, b=False, c=False), 0.5)
    assert len(lines) == 1 and lines[0].endswith("No claim is made about any head.")


def test_where_all_was_learned_the_dissociation_leads():
    first = verdict(whole(a=True, b=True, c=True), 0.5)[0]
    assert first.startswith(
        "Ablating a task's own heads (α = 0.3) costs it 20.0 percentage points of its intact score more"
    )


def test_what_is_withheld_names_its_reason():
    study = dissociation(0.2, [pair("distinct", p=None)], p=0.01) | {"withheld": {"a": "only 12 rows; 20 are needed"}}
    assert verdict(study, 0.3) == ["Withheld: a and b.", "No claim about a: only 12 rows; 20 are needed."]
    assert withheld(study | scores(b=False)).keys() == {"a", "b"}


# -- shared heads


def test_shared_heads_against_random_sets():
    text = said(maps(**OWN))
    assert "2 of 8" in text and "share 0.5." in text
    assert "a and b share 0 of them, not significantly different from random sets" in text
    same = said(maps(a=OWN["a"], b=OWN["a"]))
    assert "a and b share 2" in same and "(p = 0.071)" in same, "1 of 28 pairs of heads, and it might have been fewer"
    most = said(maps(**OWN, c=OWN["a"]))
    assert "Pairs of tasks share 0 to 2 of them, not significantly different from random sets" in most


def test_shared_heads_are_told_with_what_the_choice_of_the_pair_costs():
    """Of twelve heads in ninety-six, all or none in common: the most shared of three pairs, of six tests."""
    one, two, three = (np.random.default_rng(seed).random((8, 12)) / 10 for seed in range(3))
    one[0], two[0], three[1] = np.arange(3, 15)[::-1], np.arange(3, 15), np.arange(3, 15)
    text = said(maps(a=one.tolist(), b=two.tolist(), c=three.tolist()), 0.125)
    p = 6 * float(stats.hypergeom(96, 12, 12).sf(11))
    shown = "p < 0.001" if p < 0.001 else f"p = {p:.2g}"
    words = f"a and b share the most heads, more than random sets: 12 of 12 ({shown}, Holm-corrected over 3 pairs)."
    assert words in text and "fewer than" not in text, "none in common is what random sets give often enough"


def test_heads_that_tasks_leave_to_each_other_are_told():
    one = np.arange(96.0).reshape(8, 12)
    text = said(maps(a=one.tolist(), b=(-one).tolist(), c=one.tolist()), 0.5)
    assert "a and c share the most heads, more than random sets: 48 of 48" in text
    assert "a and b share the fewest heads, fewer than random sets: 0 of 48" in text


def test_scores_that_tie_at_the_cut_have_no_top_heads_to_share():
    """All-zero scores would give the first heads of the model to both tasks."""
    nothing = np.zeros((6, 12)).tolist()
    assert said(maps(a=nothing, b=nothing), 0.3) == ""
    clear = drawn(0, 2)
    assert "share" in said(maps(**clear), 0.3) and "nothing" not in said(maps(**clear, nothing=nothing), 0.3)


@pytest.mark.parametrize(("tasks", "alpha"), [(2, 0.3), (8, 0.3), (8, 0.5)])
def test_heads_drawn_by_chance_are_rarely_said_to_be_shared(tasks, alpha):
    """Many pairs are looked at, and the most extreme one is told: 5 % is the chance that any is."""
    cases = 200
    wrong = sum(" than random sets" in said(maps(**drawn(seed, tasks)), alpha) for seed in range(cases))
    assert wrong / cases <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / cases)


def test_heads_that_are_shared_are_said_to_be():
    for seed in range(20):
        text = said(maps(**drawn(seed, shared=0.8)), 0.3)
        assert "share the most heads, more than random sets" in text and "fewest" not in text


def test_chance_counts_living_heads_only():
    """Half of the heads are cut: tasks that take half of the others at random share half of those."""
    cut = np.arange(72).reshape(6, 12) % 2 == 0
    wrong = 0
    for seed in range(100):
        scores = {task: np.where(cut, np.nan, found) for task, found in drawn(seed).items()}
        rows = {task: [[None if x != x else x for x in row] for row in found] for task, found in scores.items()}
        text = said(maps(**rows), 0.25)
        assert "18 of 72, 36 of which remain); two random sets would share 9." in text
        wrong += " than random sets" in text
    assert wrong <= 9


# -- dissociation


@pytest.mark.parametrize(("mean", "words"), [(0.12, "12.0 {} more"), (-0.2, "20.0 {} less")])
def test_the_sign_of_a_dissociation_is_a_word(mean, words):
    assert words.format("percentage points of its intact score") in said(dissociation(mean, [], p=0.5))
    assert "costs it as much as ablating another task's" in said(dissociation(mean / 1000, [], p=0.5))


def test_the_dissociation_told_is_that_of_the_default_share():
    found = {"default": 0.5, "D": [{"fraction": f, "mean": {"value": f}, "pairs": []} for f in (0.3, 0.5)]}
    text = said({"dissociation": found})
    assert "(α = 0.5)" in text and "50.0 percentage points" in text and "30.0 p" not in text


@pytest.mark.parametrize(
    ("p", "words"),
    [
        (0.004, "significantly more than random head sets of the same size (one-sided p = 0.004)."),
        (0.2, "not significantly different from random head sets of the same size (one-sided p = 0.2)."),
        (None, "not tested against random head sets."),
    ],
)
def test_a_test_names_its_null_its_rows_and_its_training(p, words):
    (line,) = verdict(dissociation(0.1, [], low=0.05, high=0.15, p=p), 0.3)
    assert line.endswith(words) and "(95 % CI +5.0 to +15.0 over 200 to 240 rows of one training)" in line


def test_layers_are_named_where_they_may_explain_a_dissociation():
    assert "The layers may explain it" in said(dissociation(0.1, [], p=0.01, p_layers=0.3))
    assert "The layers alone do not explain it" in said(dissociation(0.1, [], p=0.01, p_layers=0.01))
    assert "layers" not in said(dissociation(0.1, [], p=0.2, p_layers=0.3)), "nothing to explain"


def test_only_tested_dissociations_are_called_significant():
    words = (
        "Double dissociation: a and b (one-sided p < 0.05 against random head sets of the same size; 200 to 240 rows"
    )
    assert words in said(dissociation(0.2, [pair("distinct")]))
    assert words not in said(dissociation(0.2, [pair("distinct", p=0.2)]))
    assert words not in said(dissociation(0.2, [pair("distinct", p=None)])), "no p-value, no claim"
    assert "No dissociation: a and b." in said(dissociation(0.0, [pair("none")]))


def test_a_p_value_over_rows_alone_is_no_test_of_heads():
    """As the studies of the first edition have it: p of a bootstrap of rows, and no null beside it."""
    text = said(dissociation(0.2, [pair("distinct", p=0.001)], null=None, p=0.001))
    assert "Double dissociation, not tested against random head sets: a and b." in text
    assert "; not tested against random head sets." in text and "p <" not in text


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
        tested = {None: ", not tested", 0.001: ":"}.get(p, ", not significant")
        words = {"distinct": f"Double dissociation{tested}", "single": "One-sided", "undefined": "Undefined"}
        assert line.startswith(words.get("distinct" if kind == "double" else kind, "No dissociation"))


# -- important-head training and pruning


def test_iat_is_better_only_where_a_test_says_so():
    unsure = said({"iat": {"rows": [row("a", 0.8, 0.82, -0.01, 0.05, p=0.2)]}})
    assert "+2.00 points; no task changes significantly" in unsure
    rows = [row("a", 0.8, 0.9, 0.05, 0.15, p=0.001), row("b", 0.8, 0.7, -0.15, -0.05, p=0.002)]
    clear = said({"iat": {"rows": rows}})
    assert "significantly better: a +10.0; significantly worse: b -10.0" in clear
    assert all("over the development rows of one training each" in text for text in (unsure, clear))


def test_iat_is_tested_over_all_tasks_together():
    """One of ten tasks at 0.02 is what ten tasks bring by themselves."""
    rows = [row("a", 0.8, 0.9, 0.01, 0.2, p=0.02), *(row(f"t{i}", 0.8, 0.8, -0.1, 0.1, p=0.9) for i in range(9))]
    assert "no task changes significantly" in said({"iat": {"rows": rows}})
    assert "better: a +10.0; significantly worse: none" in said({"iat": {"rows": rows[:2]}})


@pytest.mark.parametrize("p", [{}, {"p": None}])
def test_iat_without_a_p_value_is_told_by_its_mean_alone(p):
    text = said({"iat": {"rows": [row("a", 0.8, 0.9, 0.05, 0.15, **p)]}})
    assert text == "Important-head training changes the mean score by +10.00 points; not tested."


def test_a_cut_is_told_with_its_largest_loss_on_other_rows():
    text = said(cuts(0.3, a=(-0.004, -0.02, 0.011, 120, "test"), b=(0.0, -0.01, 0.01, 40, "dev")))
    assert text == (
        "Pruning the 2 of 8 least important heads costs a 0.4 points (95 % CI -1.1 to 2.0; 120 held-out test rows), "
        "the largest loss of 2 tasks."
    )
    nested = said(cuts(0.1, a=(-0.25, None, None, 4, "dev")))
    assert nested == (
        "Pruning the 1 of 8 least important heads costs a 25.0 points (4 held-out rows, 5 nested folds of dev)."
    )


def test_heads_that_cannot_be_cut_are_ablated():
    assert "Ablating the 2 of 8 least important heads" in said(cuts(0.3, speed=False, a=(0.0, 0.0, 0.0, 50, "dev")))


def test_where_no_cut_is_cheap_or_none_was_made():
    assert "Even the smallest cut, the 1 of 8 least important heads, costs a task more" in said(cuts(None))
    assert said(cuts(None, kept=(8, 8, 8))) == "", "a fraction of few heads that is no head is no cut"
    assert said(cuts(None, kept=(4, 0, 0))) == "", "nobody cuts all heads that are left"


# -- trust


def test_stable_head_sets_are_called_so():
    text = said(stable(a=(0.93, True, 150), b=(0.97, True, 60)))
    assert text == "Head sets are stable: as many other examples would give at least 90 % of the same heads."


def test_too_few_examples_are_told_with_how_many_would_do():
    text = said(stable(a=(0.62, False, 1900), b=(0.8, False, 400), c=(0.95, True, 100)))
    assert "160 others would give 62 % of the same heads for a; about 1,900 would give 90 %." in text
    assert "Also too few: b." in text
    assert "no number up to 20 times as many" in said(stable(a=(0.35, False, None)))


def test_without_subsamples_nothing_is_said_of_stability():
    assert said(stable(a=(None, None, None))) == ""


def test_heads_that_no_forward_proved_are_a_warning():
    assert "Warning: heads were found by name, unverified" in said({"model": {"name": "m", "verified": False}})
    assert "unverified" not in said({"model": {"name": "m"}})


def test_collapse_is_a_warning():
    assert "Warning: all predictions fall into one class for a as it is" in said(
        {"trust": {"collapsed": ["a as it is"]}}
    )


def texts(name, **splits):
    rows = {split: [{"text": text, "label": "x"} for text in found] for split, found in splits.items()}
    return Task(name, Classify(("x", "y")), Rows(**rows), "accuracy")


def overlapping(*tasks):
    return said({"trust": leakage(tasks).to_trust()})


def test_leaks_are_told_in_rows_of_the_two_splits_that_share_most():
    train, dev = [f"text {i}" for i in range(10)], [f"text {i}" for i in (1, 2, 30, 40)]
    text = overlapping(texts("a", train=train, dev=dev), texts("b", train=train[:2], dev=["new", *train[:3]]))
    assert "Warning" in text and "3 of 4 dev rows of b (75 %) have their text in the train rows of a too" in text


def test_texts_that_evaluations_share_are_no_leak():
    text = overlapping(texts("a", train=["x"], dev=["one", "two"]), texts("b", train=["y"], dev=["one", "3", "4"]))
    assert "not a leak: 1 of 2 dev rows of a (50 %) have their text in the dev rows of b too" in text
    assert "Warning" not in text and "training" not in text
    assert "not a leak" not in overlapping(texts("a", train=["x"], dev=["x"]))


def test_what_a_study_does_not_use_is_no_warning_of_it():
    assert overlapping(texts("a", train=["x"], dev=["y"], test=["x", "y"])) == ""
    assert "1 of 1 test rows of a (100 %)" in overlapping(texts("a", train=["x"], test=["x"])), "it serves as dev"


# -- several trainings


def training(seed, d_ab=0.2, d_ba=0.1, kind="distinct", p=0.001, **changes):
    study = dissociation(0.1, [pair(kind, p, d_a=d_ab, d_b=d_ba)]) | maps(**OWN)
    study |= {"title": f"seed {seed}", "model": {"name": "m"}, "tasks": [{"name": "a"}, {"name": "b"}]}
    return study | {"reproduce": {"plan": {"lr": 1e-4, "seed": seed}, "settings": {"alpha": 0.3}}} | changes


def test_trainings_of_one_study_are_told_together():
    studies = [training(0, 0.2), training(1, 0.3, p=0.2), training(2, 0.25)]
    (found,) = repeated(studies)
    (cell,) = found["pairs"]
    assert found["n"] == 3 and cell["d_a"] == [0.2, 0.3, 0.25] and cell["significant"] == 2
    ways = [stats.ttest_1samp(values, 0, alternative="greater").pvalue for values in (cell["d_a"], [0.1, 0.11, 0.12])]
    assert cell["p"] is None, "one direction has no spread"
    (found,) = repeated([training(i, d, 0.1 + i / 100) for i, d in enumerate((0.2, 0.3, 0.25))])
    assert found["pairs"][0]["p"] == pytest.approx(max(ways)) and found["seeds"] == {"a": 1.0, "b": 1.0}


@pytest.mark.parametrize(
    "other",
    [
        training(0),  # the same seed: one training, counted once
        training(1) | {"model": {"name": "another"}},
        training(1) | {"reproduce": {"plan": {"lr": 1.0, "seed": 1}, "settings": {"alpha": 0.3}}},
        training(1) | {"dissociation": None},
    ],
)
def test_other_studies_are_no_further_training(other):
    assert repeated([training(0), other]) == []
