"""Few-shot transfer: paired seeds, fair starts, and the stars of Table 6."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.errors import HeadwiseError
from headwise.papers.specialization.transfer import PLAN, Transfer, shuffled, transfer
from headwise.testing import toy_model, toy_tasks
from headwise.training.loop import fit
from headwise.training.plan import Plan

QUICK = Plan(epochs=6, lr=3e-3, evaluate_every=0, checkpoint_every=0, batch_size=8)


@pytest.fixture(scope="module")
def ready():
    """A model that knows where the marker word of the new task is, and one that knows nothing."""
    model = toy_model(2, rows=192)
    fresh = copy.deepcopy(model)
    fit(model, Plan(steps=120, lr=3e-3, batch_size=32, evaluate_every=0))
    return {"fresh": fresh, "trained": model}


@pytest.fixture(scope="module")
def found(ready):
    return transfer(ready, toy_tasks(1, rows=192)[0], shots=(8, 32), seeds=5, plan=QUICK)


def test_a_start_that_learned_the_task_before_beats_one_that_did_not(found):
    assert found.scores.shape == (2, 2, 5)
    assert (found.mean[1] > found.mean[0] + 0.1).all()
    assert found.beats("trained", "fresh", 8).p < 0.05
    assert {row["star"] for row in found.against() if row["shots"] == 8} == {True}
    assert "*" in str(found).splitlines()[2] and "*" not in str(found).splitlines()[1]


def test_a_start_against_itself_is_equal_seed_by_seed(ready, tmp_path):
    task = toy_tasks(1, rows=192)[0]
    folder = ready["fresh"].save_pretrained(tmp_path / "model")
    both = transfer(
        {"a": ready["fresh"], "b": folder}, task, (4,), (3, 7), plan=QUICK, tasks=toy_tasks(2, rows=192), limit=20
    )
    assert (both.scores[0] == both.scores[1]).all(), "same rows, same order, same new head: same result"
    assert both.examples == 20
    assert not both.against()[0]["star"]


def test_a_start_is_left_as_it_was_and_runs_do_not_touch_each_other(ready):
    task, model = toy_tasks(1, rows=192)[0], ready["fresh"]
    before = {k: v.clone() for k, v in model.state_dict().items()}
    one = transfer({"a": model}, task, (4, 8), (0, 1), plan=QUICK)
    assert list(model.tasks) == ["toy0", "toy1"]
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    alone = transfer({"a": model}, task, (8,), (1,), plan=QUICK)
    assert alone.scores[0, 0, 0] == one.scores[0, 1, 1], "a run does not depend on those before it"


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=40), st.integers(0, 99))
def test_shots_are_nested_and_as_even_as_the_rows_allow(labels, seed):
    rows = [{"label": label} for label in labels]
    order = shuffled(rows, seed)
    assert sorted(order) == list(range(len(rows))), "every row once"
    for n in range(1, len(rows) + 1):
        taken = [labels[i] for i in order[:n]]
        for a in set(labels):
            for b in set(labels):
                if taken.count(a) < labels.count(a):  # where a class is not used up, no other is ahead by two
                    assert taken.count(b) - taken.count(a) <= 1
    assert sorted(shuffled(rows, seed, balanced=False)) == list(range(len(rows)))


def test_parts_measured_apart_are_the_same_side_by_side(found):
    parts = [
        Transfer(found.task, found.metric, (start,), found.shots, found.seeds, found.scores[i : i + 1], found.examples)
        for i, start in enumerate(found.starts)
    ]
    joined = Transfer.side_by_side(parts)
    assert str(joined) == str(found)
    again = Transfer.from_record(joined.to_record())
    assert str(again) == str(found) and (again.scores == found.scores).all()
    with pytest.raises(HeadwiseError, match="a name for each"):
        Transfer.side_by_side([parts[0], parts[0]])
    with pytest.raises(HeadwiseError, match="the same for all"):
        Transfer.side_by_side([parts[0], transfer_of(np.zeros((1, 1, 5)))])


def transfer_of(scores: np.ndarray) -> Transfer:
    starts = tuple("abcdef"[: scores.shape[0]])
    return Transfer("t", "accuracy", starts, (4,), tuple(range(scores.shape[2])), scores, 100)


def test_stars_are_rare_where_starts_do_not_differ():
    """Under the null a one-sided 5 % test stars about one comparison in twenty, and Holm's p is never smaller."""
    draws = np.random.default_rng(0).normal(0.8, 0.05, (5, 1, 30))
    stars = 0
    for seed in range(60):
        scores = np.random.default_rng(seed).normal(0.8, 0.05, (3, 1, 30)) + draws[:1]
        rows = transfer_of(scores).against()
        stars += sum(row["star"] for row in rows)
        assert all(row["holm"] >= row["p"] for row in rows)
    assert stars <= 15, "120 comparisons, 6 expected"


def test_stars_do_not_follow_the_spread_that_seeds_share():
    """A seed's luck is the same for all starts: a small steady gain is seen through a large shared spread."""
    generator = np.random.default_rng(1)
    luck, noise = generator.normal(0.7, 0.1, 30), generator.normal(0, 0.01, (2, 30))
    found = transfer_of(np.stack([luck + noise[0], luck + 0.02 + noise[1]])[:, None])
    assert found.sd[0, 0] > 0.05 and found.against()[0]["star"]


def test_a_plan_that_evaluates_is_as_one_that_does_not(ready):
    task = toy_tasks(1, rows=192)[0]
    plans = (QUICK, QUICK.with_(evaluate_every=1, checkpoint_every=1))
    one, two = (transfer(ready, task, shots=(8,), seeds=1, plan=plan) for plan in plans)
    assert np.array_equal(one.scores, two.scores) and "nan" not in str(one)
    with pytest.raises(HeadwiseError, match="patience=2"):
        transfer(ready, task, shots=(8,), seeds=1, plan=QUICK.with_(evaluate_every=1, patience=2))
    with pytest.raises(HeadwiseError, match="no numbers of shots"):
        transfer(ready, task, shots=(), seeds=1)


def test_what_cannot_be_asked_is_said():
    task = toy_tasks(1, rows=12)[0]
    model = toy_model(1, rows=12)
    with pytest.raises(HeadwiseError, match="1 to 12"):
        transfer({"a": model}, task, (20,), 2)
    with pytest.raises(HeadwiseError, match="each seed once"):
        transfer({"a": model}, task, (4,), (1, 1))
    with pytest.raises(HeadwiseError, match="unknown starting point 'x'"):
        transfer_of(np.zeros((2, 1, 3))).beats("x", "a", 4)
    assert PLAN.epochs == 20 and PLAN.lr == 2e-5 and PLAN.batch_size == 32, "Li et al. 2023, appendix A.2"
