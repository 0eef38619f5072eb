"""What a study claims is seldom wrong and often right: a few simulated studies here, thousands in ``make soak``."""

from __future__ import annotations

import calibration
import numpy as np
import pytest
from calibration import CLAIMS, LAYERED, NULLS, PLANTED, rates

COVERED = (0.93, 0.98)


def room(runs: int) -> float:
    """By how much a rate of 5 % may be passed in this many runs."""
    return 2.5 * np.sqrt(0.05 * 0.95 / runs)


@pytest.mark.parametrize(
    "kind", ["random head sets of unlike tasks, n = 2,000", "lesion outcomes drawn alike, n = 400"]
)
def test_random_head_sets_do_not_come_apart(kind):
    """Tested by rows alone, head sets that mean nothing are called different in a quarter of the studies."""
    found = rates(NULLS[kind], 100)
    assert found["mean D by rows alone"] > 0.15, "the reason why head sets are what is tested"
    assert all(found[claim] <= 0.05 + room(100) for claim in CLAIMS)


@pytest.mark.parametrize("n", [20, 200])
def test_equal_lesion_outcomes_do_not_come_apart(n):
    found = rates(NULLS[f"equal lesion outcomes, n = {n}"], 100, seed=3)
    assert all(rate <= 0.05 + room(100) for rate in found.values())


def test_planted_heads_are_found():
    found = rates(PLANTED["planted heads, 2 tasks, strength 4"], 20)
    assert min(found[claim] for claim in CLAIMS) >= 0.8
    several = rates(PLANTED["planted heads, 5 tasks, strength 2"], 8)
    assert several["mean D"] == several["layers"] == 1 and several["a task"] >= 0.75


def test_what_only_the_layer_does_is_not_laid_to_its_heads():
    found = rates(LAYERED["only the layer matters, 2 tasks"], 40)
    assert found["mean D"] == 1 and found["layers"] <= 0.05 + room(40)


@pytest.mark.parametrize("metric", calibration.ROW_METRICS)
def test_rows_that_change_at_random_are_no_change(metric):
    p = [calibration.changed(np.random.default_rng([1, run]), 50, metric).p for run in range(150)]
    assert np.mean(np.array(p) < 0.05) <= 0.05 + room(150)


def test_independent_head_sets_are_seldom_said_to_share_more_or_fewer():
    said = [calibration.shared_heads(np.random.default_rng(run), 3)[-1] for run in range(200)]
    assert np.mean(["than random sets" in line for line in said]) <= 0.05 + room(200)


# -- the whole, in make soak


@pytest.mark.soak
@pytest.mark.parametrize("scenario", NULLS)
def test_no_claim_is_a_false_alarm_more_often_than_it_may(scenario):
    found = rates(NULLS[scenario], 1000, seed=1)
    print(scenario, found)
    assert all(found[claim] <= 0.07 for claim in CLAIMS)


@pytest.mark.soak
@pytest.mark.parametrize("n", [20, 50, 200])
@pytest.mark.parametrize("metric", calibration.ROW_METRICS)
def test_null_rows_are_no_change(metric, n):
    p = [calibration.changed(np.random.default_rng([2, n, run]), n, metric).p for run in range(1000)]
    assert np.mean(np.array(p) < 0.05) <= 0.07


@pytest.mark.soak
@pytest.mark.parametrize("n", [20, 50, 100, 200])
@pytest.mark.parametrize("truth", calibration.TRUTHS)
def test_d_is_covered(truth, n):
    each, mean = calibration.d_coverage(calibration.TRUTHS[truth], n, 1000)
    print(truth, n, each, mean)
    low, high = COVERED
    assert low - room(1000) <= min(each, mean) and max(each, mean) <= (1 if "ceiling" in truth else high + room(1000))


@pytest.mark.soak
@pytest.mark.parametrize("n", [20, 50, 100, 200])
@pytest.mark.parametrize("accuracy", [0.8, 0.95, 0.98])
@pytest.mark.parametrize("metric", ["f1", "mcc", "macro_f1", "answer_f1"])
def test_metrics_are_covered(metric, accuracy, n):
    found = calibration.metric_coverage(metric, accuracy, n, 1000)
    print(metric, accuracy, n, found)
    assert COVERED[0] - room(1000) <= found <= (1 if accuracy > 0.8 else COVERED[1] + room(1000))
