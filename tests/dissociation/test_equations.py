"""Eq. 5-7 of Li et al. 2023 and what they do not depend on."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.dissociation.result import Dissociation

shares = st.floats(0.01, 1.0)


@st.composite
def matrices(draw: st.DrawFn, random: int = 2) -> np.ndarray:
    tasks = draw(st.integers(2, 5))
    rows = st.lists(shares, min_size=tasks + 1 + random, max_size=tasks + 1 + random)
    return np.array(draw(st.lists(rows, min_size=tasks, max_size=tasks)))


def scores_of(performance: np.ndarray) -> np.ndarray:
    return Dissociation.of([f"t{i}" for i in range(len(performance))], performance).scores()


@given(matrices())
@settings(max_examples=50, deadline=None)
def test_eq_7_as_written(performance):
    t = len(performance)
    rp = performance / performance[:, :1]
    for i, d in enumerate(scores_of(performance)):
        others = [rp[i, 1 + j] for j in range(t) if j != i]
        assert d == pytest.approx(sum(others) / (t - 1) - rp[i, 1 + i], abs=1e-9)


@given(matrices())
@settings(max_examples=50, deadline=None)
def test_lesions_that_do_the_same_dissociate_nothing(performance):
    t = len(performance)
    performance[:, 1 : t + 1] = performance[:, 1:2]
    found = Dissociation.of([str(i) for i in range(t)], performance)
    assert (found.scores() == 0).all() and {p["verdict"] for p in found.pairs().values()} == {"none"}


@given(matrices(), st.lists(st.floats(0.1, 10), min_size=5, max_size=5))
@settings(max_examples=50, deadline=None)
def test_the_scale_of_a_metric_does_not_matter(performance, factors):
    scaled = performance * np.array(factors[: len(performance)])[:, None]
    np.testing.assert_allclose(scores_of(scaled), scores_of(performance), atol=1e-9)


@given(matrices(), st.randoms(use_true_random=False))
@settings(max_examples=50, deadline=None)
def test_reordering_tasks_reorders_their_scores(performance, random):
    t = len(performance)
    order = list(range(t))
    random.shuffle(order)
    columns = [0, *(1 + i for i in order), *range(t + 1, performance.shape[1])]
    np.testing.assert_allclose(scores_of(performance[order][:, columns]), scores_of(performance)[order], atol=1e-12)


@given(matrices())
@settings(max_examples=50, deadline=None)
def test_random_lesions_do_not_enter_d(performance):
    assert np.array_equal(scores_of(performance), scores_of(performance[:, : len(performance) + 1]))


@given(matrices())
@settings(max_examples=50, deadline=None)
def test_the_mean_of_pairs_is_the_mean_of_tasks(performance):
    found = Dissociation.of([str(i) for i in range(len(performance))], performance)
    assert np.mean([p["d"] for p in found.pairs().values()]) == pytest.approx(found.mean(), abs=1e-9)
