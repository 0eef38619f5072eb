"""Dissociations of models whose truth is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from headwise.dissociation.lesions import LesionCurve, dissociate, layer_masks, lesion_curve, null_matrices
from headwise.errors import HeadwiseError
from headwise.heads.selection import top
from headwise.measuring.evaluate import evaluate
from headwise.scoring.importance import importance
from headwise.tasks import Rows
from headwise.testing import planted, toy_model


@pytest.fixture(scope="module")
def apart():
    model, _ = planted(seed=0)
    return model, {task: importance(model, task) for task in model.tasks}


def test_two_planted_heads_give_a_double_dissociation(apart):
    model, scores = apart
    found = dissociate(model, scores, 1 / 8)
    pair = found.pairs()["toy0", "toy1"]
    assert pair["verdict"] == "distinct" and pair["p_rows"] < 0.01
    assert pair["p"] > 0.05 > found.to_record()["D"][0]["mean"]["p"], "one of eight heads is not seldom the one"
    assert (found.scores() > 0.1).all()


def test_a_shared_head_gives_none():
    model, _ = planted(shared=True, seed=0)
    found = dissociate(model, {task: importance(model, task) for task in model.tasks}, 1 / 8)
    assert np.allclose(found.scores(), 0) and found.pairs()["toy0", "toy1"]["verdict"] == "none"


def test_the_matrix_is_that_of_separate_evaluations(apart):
    model, scores = apart
    grid = (0.125, 0.5)
    found = dissociate(model, scores, grid, random=2, limit=50)
    assert found.lesions == ("none", "toy0", "toy1", "random 1", "random 2")
    for f, fraction in enumerate(grid):
        for i, task in enumerate(scores):
            assert found.performance[f, i, 0] == evaluate(model, task, limit=50).value
            for j, other in enumerate(scores.values()):
                gates = (~top(other.scores, fraction)).float()[None]
                assert found.performance[f, i, 1 + j] == evaluate(model, task, gates, limit=50)[0].value


def test_collapsed_lesions_are_marked(apart):
    model, scores = apart
    found = dissociate(model, scores, (0.125, 1.0), random=0, matched=0)
    for i, task in enumerate(scores):
        everything = evaluate(model, task, torch.zeros(1, 2, 4))[0]
        assert found.collapsed[1, i, 1] == (len(set(everything.predictions)) == 1)
    assert not found.collapsed[:, :, 0].any()


@pytest.mark.parametrize("alike", [("toy0",), ("toy0", "toy1")])
def test_answers_of_one_class_have_no_d_above_chance(alike):
    """One row, or rows of one class: naming that class is right every time, so nothing is left to be above."""
    model = toy_model(rows=48)
    for name in alike:
        task = model.tasks[name]
        same = [row for row in task.rows("dev") if row["label"] == "a"]
        model.tasks[name] = replace(task, source=Rows(train=task.rows("train"), dev=same))
    found = dissociate(model, {task: torch.rand(2, 4) for task in model.tasks}, undefined="leave")
    above = found.on["chance_corrected"]
    assert np.isnan(above.scores()[[list(model.tasks).index(name) for name in alike]]).all()
    assert np.array_equal(found.on["accuracy"].performance, found.performance)


def test_random_and_matched_sets_are_closed_in_the_same_pass(apart):
    """Matched sets have as many heads of each layer as the task's own, and are closed at one fraction only."""
    model, scores = apart
    found = dissociate(model, scores, (0.25, 0.5), random=12, matched=10, alpha=0.5)
    assert found.default == 0.5 and found.random == 12 and found.matched.shape == (2, 2, 10)
    masks = layer_masks([score.scores for score in scores.values()], 0.5, 10, seed=0)
    for j, score in enumerate(scores.values()):
        assert (masks[j].sum(-1) == top(score.scores, 0.5).sum(-1)).all()
    for i, task in enumerate(scores):
        expected = [score.value for score in evaluate(model, task, (~masks[1]).float())]
        assert found.matched[i, 1].tolist() == expected
    record = found.to_record()
    assert record["random"] == 12 and record["matched"] == 10 and record["n"] == {"toy0": 192, "toy1": 192}
    quarter, half = record["D"]
    assert quarter["mean"]["p"] is not None and quarter["mean"]["p_layers"] is None
    assert half["mean"]["p_layers"] is not None


def test_few_rows_have_intervals_and_no_p(apart):
    """Five rows that behave alike once gave p = 0.001 and an interval of no width."""
    model, scores = apart
    record = dissociate(model, scores, 1 / 8, limit=5).to_record()
    why = "only 5 rows; 20 are needed"
    assert record["withheld"] == {"toy0": why, "toy1": why}
    (d,), cells = record["D"], [cell for row in record["cells"][0].values() for cell in row.values()]
    for part in (d["mean"], *d["pairs"], *d["tasks"].values(), *cells):
        assert all(part[name] is None for name in part if name.startswith("p"))
    for part in (d["mean"], *d["tasks"].values(), *cells):
        assert part["high"] - part["low"] > 0.2
    assert np.min(np.array(record["high"]) - record["low"]) > 0.2


def test_scores_that_tie_at_the_cut_have_no_p(apart):
    model, scores = apart
    tied = {"toy0": torch.zeros(2, 4), "toy1": scores["toy1"]}
    record = dissociate(model, tied, 1 / 8).to_record()
    assert list(record["withheld"]) == ["toy0"] and "tie" in record["withheld"]["toy0"]
    assert record["D"][0]["pairs"][0]["p"] is None and record["D"][0]["tasks"]["toy1"]["p"] is not None


def test_permutation_null(apart):
    model, scores = apart
    found = dissociate(model, scores, 1 / 8, random=0)
    null = null_matrices(model, scores, 1 / 8, draws=10)
    assert null.shape == (10, 2, 2)
    assert found.permutation_test(null)["mean"] <= 0.7  # two single heads can only be dealt as they are or swapped


def test_bad_use(apart):
    model, scores = apart
    with pytest.raises(HeadwiseError, match="two tasks"):
        dissociate(model, {"toy0": scores["toy0"]})
    with pytest.raises(HeadwiseError, match=r"\(2, 4\)"):
        dissociate(model, {"toy0": torch.ones(3, 4), "toy1": torch.ones(2, 4)})
    with pytest.raises(HeadwiseError, match="0 to 1"):
        dissociate(model, scores, 30)
    with pytest.raises(HeadwiseError, match="a fraction or more"):
        dissociate(model, scores, ())
    for wrong in ("random", "matched"):
        with pytest.raises(HeadwiseError, match=f"{wrong}=-1"):
            dissociate(model, scores, **{wrong: -1})


def test_untrained_tasks_still_measure():
    model = toy_model(2)
    found = dissociate(model, {task: importance(model, task) for task in model.tasks}, 0.25)
    assert found.performance.shape == (1, 2, 23)


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
