"""Groups of tasks: planted heads come apart, a group of one is its task, groups of the same heads do not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headwise.dissociation.lesions import dissociate
from headwise.dissociation.result import Counts
from headwise.errors import HeadwiseError
from headwise.papers.mesh.groups import dissociate_groups, side_by_side
from headwise.scoring.importance import importance
from headwise.testing import planted


@pytest.fixture(scope="module")
def plant():
    model, _ = planted(seed=0, steps=200)
    return model, {task: importance(model, task, examples=128) for task in model.tasks}


def test_groups_of_one_task_are_the_tasks(plant):
    model, scores = plant
    grid, options, groups = (0.125, 0.25), {"random": 1, "resamples": 50}, {t: f"group of {t}" for t in scores}
    whole, grouped = (
        dissociate(model, scores, grid, **options),
        dissociate_groups(model, scores, groups, grid, **options),
    )
    assert np.array_equal(whole.performance, grouped.performance)
    assert grouped.tasks == ("group of toy0", "group of toy1")
    assert np.allclose(whole.scores(0.125), grouped.scores(0.125))


def test_planted_groups_come_apart(plant):
    model, scores = plant
    found = dissociate_groups(model, scores, {"toy0": "en", "toy1": "es"}, 0.125, resamples=200)
    assert found.mean() > 0.1 and (found.scores() > 0).all()


def test_the_metric_of_a_group_is_the_mean_of_its_tasks():
    rng = np.random.default_rng(0)

    def ratio(sums: np.ndarray) -> np.ndarray:
        return sums[..., 0] / sums[..., 1]

    def mean(sums: np.ndarray) -> np.ndarray:
        return sums[..., 0] / sums[..., -1]

    one = Counts(np.stack([rng.integers(0, 2, (30, 1, 4)), np.ones((30, 1, 4))], -1), ratio)
    two = Counts(np.stack([rng.random((7, 1, 4)), rng.random((7, 1, 4)), np.ones((7, 1, 4))], -1), mean)
    both = side_by_side([one, two])
    assert both.counts.shape == (37, 1, 4, 5 + 2)  # and how many examples of each
    wanted = (one.value(one.counts.sum(0)) + two.value(two.counts.sum(0))) / 2
    assert np.allclose(both.value(both.counts.sum(0)), wanted)
    with np.errstate(invalid="ignore"):
        assert np.isnan(both.value(both.counts[:30].sum(0))).all(), "a draw without the second task has no mean"


def test_every_task_needs_a_group(plant):
    model, scores = plant
    with pytest.raises(HeadwiseError, match="a group for each"):
        dissociate_groups(model, scores, {"toy0": "en"})
    with pytest.raises(HeadwiseError, match="two tasks"):
        dissociate_groups(model, {t: torch.rand(2, 4) for t in scores}, dict.fromkeys(scores, "en"))
