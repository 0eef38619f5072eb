"""A task's own heads against random ones, for a task that has no other beside it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headwise.dissociation.curve import LesionCurve, lesion_curve
from headwise.errors import HeadwiseError
from headwise.measuring.evaluate import evaluate
from headwise.scoring.importance import importance
from headwise.testing import planted, toy_model


def test_closing_the_planted_head_does_more_than_random_ones():
    model, masks = planted(seed=0)
    curve = lesion_curve(model, "toy0", importance(model, "toy0"), (1 / 8, 0.5), random=19)
    closed = evaluate(model, "toy0", (~masks["toy0"]).float()[None])[0]
    assert curve.own[0] == closed.value < curve.intact - 0.2
    mine = np.isclose(curve.random[0], curve.own[0])
    assert curve.p[0] == pytest.approx(2 * (1 + mine.sum()) / 20), "random sets that close it are as bad"
    assert curve.random.shape == (2, 19) and "12% closed" in str(curve)
    assert set(curve.to_record()) >= {"own", "random", "p", "fractions"}


def test_p_counts_random_sets_that_harm_as_much():
    random = np.array([[0.9, 0.8, 0.7], [0.5, 0.4, 0.6]])
    curve = LesionCurve("t", "accuracy", (0.1, 0.2), 0.95, np.array([0.6, 0.5]), random, 100)
    assert curve.p.tolist() == [0.5, 0.75]


def test_other_references_and_bad_input():
    model = toy_model(1, rows=16)
    scores = torch.rand(2, 4)
    assert lesion_curve(model, "toy0", scores, (0.5,), random=2, close="mean", limit=8).examples == 8
    with pytest.raises(HeadwiseError, match="the model's heads"):
        lesion_curve(model, "toy0", torch.rand(3, 4))
    with pytest.raises(HeadwiseError, match="random=0"):
        lesion_curve(model, "toy0", scores, random=0)
