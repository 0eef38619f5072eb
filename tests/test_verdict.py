"""What a study says in words: every sentence follows from the numbers, and none is said without them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.selection import top
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


def row(task, plain, iat, low, high):
    return {"task": task, "plain": plain, "iat": iat, "low": low, "high": high}


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


def test_nothing_is_said_without_numbers():
    assert verdict({}, 0.3) == []
    assert verdict(maps(a=OWN["a"]), 0.3) == [], "one task shares heads with none"


def test_shared_heads_against_chance():
    text = said(maps(**OWN))
    assert "2 of 8" in text and "share 0.5." in text and "a and b share 0" in text
    assert "a and b share 2" in said(maps(a=OWN["a"], b=OWN["a"]))
    three = said(maps(**OWN, c=OWN["a"]))
    assert "a and c share most: 2 of 2" in three and "share least: 0" in three


@pytest.mark.parametrize(("mean", "word"), [(0.12, "12.0 % more"), (-0.2, "20.0 % less")])
def test_the_sign_of_a_dissociation_is_a_word(mean, word):
    assert word in said(dissociation(mean, []))


def test_the_dissociation_told_is_that_of_the_default_share():
    found = {"default": 0.5, "D": [{"fraction": f, "mean": {"value": f}, "pairs": []} for f in (0.3, 0.5)]}
    text = said({"dissociation": found})
    assert "(α = 0.5)" in text and "50.0 %" in text and "30.0 %" not in text


def test_only_tested_dissociations_are_named():
    assert "come apart (double dissociation, p < 0.05): a and b" in said(dissociation(0.2, [pair("distinct")]))
    assert "come apart" not in said(dissociation(0.2, [pair("distinct", p=0.2)]))
    assert "come apart" not in said(dissociation(0.2, [pair("distinct", p=None)])), "no p-value, no claim"
    assert "No dissociation is seen between: a and b" in said(dissociation(0.0, [pair("none")]))
    assert "(mean D +10.0 %, 95 % interval +5.0 to +15.0)" in said(dissociation(0.1, [], low=0.05, high=0.15))
    assert "(mean D -7.2 %, 95 % interval -25.6 to +8.1)" in said(dissociation(-0.072, [], low=-0.256, high=0.081))


def test_iat_is_better_only_where_its_interval_says_so():
    unsure = said({"iat": {"rows": [row("a", 0.8, 0.82, -0.01, 0.05)]}})
    assert "+2.00 points" in unsure and "no single task's change is beyond chance" in unsure
    sure = said({"iat": {"rows": [row("a", 0.8, 0.9, 0.05, 0.15), row("b", 0.8, 0.7, -0.15, -0.05)]}})
    assert "surely better: a +10.0" in sure and "surely worse: b -10.0" in sure


def test_what_may_be_cut():
    assert "The 30% of heads" in said(cuts(0.0, 0.005)) and "0.5 points at most" in said(cuts(0.0, 0.005))
    assert "The 10% of heads" in said(cuts(0.0, 0.2))
    assert "Cutting even 10%" in said(cuts(0.02, 0.2))
    assert said(cuts(0.0, 0.0, kept=(8, 8, 8))) == "", "a share of few heads that is no head is no cut"


def test_how_sure():
    assert "agree on every task's heads" in said({"trust": {"split_half": {"a": 1.0, "b": 1.0}}})
    assert "agree on 60% or more" in said({"trust": {"split_half": {"a": 1.0, "b": 0.6}}})
    warned = said({"trust": {"collapsed": ["a as it is"], "leakage": ["x", "y"]}})
    assert "all predictions fall into one class for a as it is" in warned and "2 found" in warned


def test_texts_that_evaluations_share_are_no_leak():
    text = said({"trust": {"leakage": [], "shared": ["x", "y"]}})
    assert "2 found" in text and "Beware" not in text and "training" not in text
    assert "no leak" not in said({"trust": {"leakage": ["x"], "shared": []}})
