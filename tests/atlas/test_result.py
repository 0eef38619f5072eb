"""What is claimed of roles follows from sums over texts: means, paired tests, and corrections."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from headwise.atlas.result import Moments, Roles
from headwise.measuring.stats import adjust


def of(scores: np.ndarray, controls: np.ndarray) -> Roles:
    """From scores of texts, (N, R, L, H)."""
    sums = Moments(
        np.full(scores.shape[1], len(scores)),
        scores.sum(0),
        controls.sum(0),
        (scores**2).sum(0),
        ((scores - controls) ** 2).sum(0),
    )
    return Roles.of(["a", "b"], ["", ""], sums)


@pytest.fixture
def drawn():
    rng = np.random.default_rng(0)
    return rng.uniform(0.1, 0.5, (30, 2, 2, 3)), rng.uniform(0.1, 0.5, (30, 2, 2, 3))


def test_means_intervals_and_p_are_those_of_scipy(drawn):
    score, control = drawn
    found = of(score, control)
    np.testing.assert_allclose(found.score, score.mean(0))
    low, high = stats.t.interval(0.95, 29, score.mean(0), stats.sem(score))
    np.testing.assert_allclose(found.interval(), (low, high), rtol=1e-6)
    p = stats.ttest_rel(score, control, alternative="greater").pvalue
    np.testing.assert_allclose(found.p[0].ravel(), adjust(p[0].ravel()), rtol=1e-6)


def test_no_head_of_random_scores_has_a_role_more_often_than_the_level():
    wrong = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        found = of(rng.uniform(0, 0.6, (25, 2, 4, 4)), rng.uniform(0, 0.6, (25, 2, 4, 4)))
        wrong.append((found.p[0] < 0.05).any())
    assert np.mean(wrong) <= 0.09


def test_a_planted_head_has_the_role(drawn):
    score, control = drawn
    score[:, 1, 0, 2] = 0.9
    found = of(score, control)
    assert found.strongest()[0, 2] == 1 and found.top("b", 1)[0]["head"] == "0.2"
    assert len(found.to_records()) == 12 and {"role", "layer", "head", "p", "holds"} <= set(found.to_records()[0])
    raised = Roles(**{**found.__dict__, "untrained": np.array([np.nan, 0.95])})
    assert not raised.holds()[1].any()


def test_a_head_that_gives_the_control_all_it_gives_the_role_has_none(drawn):
    """A previous-token head gives the first sub-word of a two-piece word all it has, and any other pair as much."""
    score, control = drawn
    control[:, 0, 1, 1] = 0.999
    score[:, 0, 1, 1] = control[:, 0, 1, 1] + np.random.default_rng(1).uniform(0, 0.001, 30)
    found = of(score, control)
    assert found.p[0, 1, 1] < 0.05 and not found.holds()[0, 1, 1]
