"""Tests over head sets: exact by enumeration, level under the null, ties against the claim."""

from __future__ import annotations

import math
from itertools import permutations, product

import calibration
import numpy as np
import pytest
from calibration import CLAIMS, LAYERED, NULLS, PLANTED, rates
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from headwise.dissociation.result import Counts, Dissociation, pairwise, per_task
from headwise.dissociation.significance import layer_sets, over_layers, over_random, random_sets

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


def drawn(generator: np.random.Generator, tasks: int, random: int) -> np.ndarray:
    """Relative performances (T, T + R) in which no set means anything; one set is as bad for every task."""
    common = generator.normal(size=(1, tasks + random))
    return 0.8 + 0.05 * common + 0.05 * generator.normal(size=(tasks, tasks + random))


def test_a_pair_is_tested_by_all_ordered_pairs_of_its_scores():
    rp = drawn(np.random.default_rng(0), 3, 12)
    scores = [rp[0, 0], rp[0, 2], *rp[0, 3:]]
    gaps = [b - a for a, b in permutations(scores, 2)]
    assert over_random(rp).pairs[0, 2] == pytest.approx(np.mean([gap >= scores[1] - scores[0] for gap in gaps]))
    assert np.isnan(np.diagonal(over_random(rp).pairs)).all()


def test_a_task_and_the_mean_are_tested_by_all_ways_to_deal_the_sets():
    rp = drawn(np.random.default_rng(1), 2, 10)
    found = over_random(rp)
    ways = [((rp[0, b] - rp[0, a]), (rp[1, a] - rp[1, b])) for a, b in permutations(range(12), 2)]
    seen = (rp[0, 1] - rp[0, 0], rp[1, 0] - rp[1, 1])
    for task in (0, 1):
        assert found.tasks[task] == pytest.approx(np.mean([way[task] >= seen[task] for way in ways]))
    assert found.mean == pytest.approx(np.mean([sum(way) >= sum(seen) for way in ways]))


def test_matched_sets_stand_in_for_their_own_set_only():
    generator = np.random.default_rng(2)
    rp, matched = generator.random((2, 2)), generator.random((2, 2, 10))
    found = over_layers(rp, matched)
    own, other = [rp[0, 0], *matched[0, 0]], [rp[0, 1], *matched[0, 1]]
    gaps = [b - a for a, b in product(own, other)]
    assert found.pairs[0, 1] == pytest.approx(np.mean([gap >= rp[0, 1] - rp[0, 0] for gap in gaps]))


def test_the_smallest_p_values():
    rp = np.full((2, 22), 0.8) + np.linspace(-0.01, 0.01, 22)
    rp[:, :2] = [[0.2, 1.0], [1.0, 0.2]]
    found = over_random(rp)
    assert found.pairs[0, 1] == found.pairs[1, 0] == found.mean == pytest.approx(1 / (22 * 21))
    matched = np.full((2, 2, 20), 0.8) + np.linspace(-0.01, 0.01, 20)
    assert over_layers(rp[:, :2], matched).pairs[0, 1] == pytest.approx(1 / 21**2)


def test_equal_scores_are_no_evidence():
    assert over_random(np.full((2, 22), 0.7)).mean == 1
    assert over_random(np.full((4, 40), 0.7)).tasks.tolist() == [1] * 4  # by draws


def test_few_sets_are_no_test():
    assert np.isnan(over_random(drawn(np.random.default_rng(0), 2, 9)).mean)
    assert np.isnan(over_layers(np.ones((2, 2)), np.ones((2, 2, 9))).tasks).all()


def test_a_task_without_a_base_has_no_p_and_spoils_no_other():
    rp = drawn(np.random.default_rng(3), 3, 20)
    rp[1] = np.nan
    found = over_random(rp)
    assert np.isnan(found.tasks).tolist() == [False, True, False] and not np.isnan(found.mean)
    assert np.isnan(found.pairs[1]).all() and not np.isnan(found.pairs[0, 2])


@pytest.mark.parametrize("tasks", [2, 3, 6])
def test_sets_that_mean_nothing_are_seldom_called_special(tasks):
    generator, runs = np.random.default_rng(4), 400
    found = [over_random(drawn(generator, tasks, 20)) for _ in range(runs)]
    limit = 0.05 + 2.5 * np.sqrt(0.05 * 0.95 / runs)
    assert np.mean([one.mean <= 0.05 for one in found]) <= limit
    assert np.mean([one.tasks[0] <= 0.05 for one in found]) <= limit
    assert np.mean([one.pairs[0, 1] <= 0.05 for one in found]) <= limit
    assert np.mean([one.tasks[0] <= 0.3 for one in found]) > 0.2, "and not by never speaking"


def test_as_many_random_sets_as_corrected_tests_ask_for():
    for tasks in (2, 3, 5, 8, 12):
        pairs, sets = tasks * (tasks - 1) / 2, random_sets(tasks)
        assert pairs / ((sets + 2) * (sets + 1)) < 0.05 / 5 and pairs / (layer_sets(tasks) + 1) ** 2 < 0.05
    assert random_sets(2) == layer_sets(2) == 20 and random_sets(100) == layer_sets(100) == 100


def test_few_rows_and_ties_leave_no_p_and_say_why():
    generator = np.random.default_rng(5)
    performance = np.c_[[0.9, 0.9], drawn(generator, 2, 20) * 0.9]
    tied = Dissociation.of(["a", "b"], performance, tied=[[True, False]])
    record = tied.to_record()
    assert record["withheld"] == {"a": "importance scores tie at the cut, so its top heads are undefined"}
    d = record["D"][0]
    assert d["tasks"]["a"]["p"] is None and d["tasks"]["b"]["p"] is not None
    assert d["mean"]["p"] is None and d["pairs"][0]["p"] is None


def accuracy(sums: np.ndarray) -> np.ndarray:
    return sums[..., 0] / sums[..., 1]


def drawn_of_rowtests(generator: np.random.Generator, truth: np.ndarray, n: int) -> Counts:
    """One task's right and wrong answers under every lesion; an example's difficulty is the same under all."""
    hard = scipy_stats.norm.cdf((generator.normal(size=(n, 1, 1)) + generator.normal(size=(n, *truth.shape))) / 2**0.5)
    return Counts(np.stack([hard < truth, np.ones((n, *truth.shape))], -1).astype(float), accuracy)


TRUE = np.array([[[0.9, 0.5, 0.8, 0.85], [0.8, 0.7, 0.4, 0.75]]])  # (F, T, K)


def test_intervals_of_d_cover_the_truth():
    truth = per_task(pairwise(TRUE[0]))
    generator, hits, mean_hits = np.random.default_rng(1), [], []
    for run in range(300):
        counts = [drawn_of_rowtests(generator, TRUE[:, i], 250) for i in range(2)]
        found = Dissociation.of(["a", "b"], counts=counts, resamples=250, seed=run).to_record()["D"][0]
        hits += [found["tasks"][t]["low"] <= d <= found["tasks"][t]["high"] for t, d in zip("ab", truth)]
        mean_hits.append(found["mean"]["low"] <= truth.mean() <= found["mean"]["high"])
    assert abs(np.mean(hits) - 0.95) < 3 * math.sqrt(0.95 * 0.05 / 600) + 0.01
    assert abs(np.mean(mean_hits) - 0.95) < 3 * math.sqrt(0.95 * 0.05 / 300) + 0.01


def test_p_values_of_d_are_uniform_when_lesions_hurt_alike():
    truth = np.array([[0.9, 0.6, 0.6]])
    generator, found = np.random.default_rng(2), []
    for run in range(300):
        counts = [drawn_of_rowtests(generator, truth, 400) for _ in range(2)]
        found.append(
            Dissociation.of(["a", "b"], counts=counts, resamples=300, seed=run).to_record()["D"][0]["mean"]["p_rows"]
        )
    assert scipy_stats.kstest(found, "uniform").pvalue > 0.01


def test_counts_give_the_point_values_and_shared_draws():
    counts = [drawn_of_rowtests(np.random.default_rng(3), TRUE[:, i], 500) for i in range(2)]
    found = Dissociation.of(["a", "b"], counts=counts)
    assert np.array_equal(found.performance[0, 0], accuracy(counts[0].counts.sum(0))[0])
    same = Dissociation.of(["a", "b"], counts=[Counts(np.repeat(c.counts[:, :, :1], 3, 2), accuracy) for c in counts])
    record = same.to_record()["D"][0]
    mean = record["mean"]  # paired draws: no noise where nothing differs, yet 500 rows alike are not all rows there are
    assert mean["value"] == 0 and mean["p_rows"] == 1 and -0.01 < mean["low"] == -mean["high"] < -0.005
    assert record["pairs"][0]["verdict"] == "none" and record["pairs"][0]["p_rows"] == 1


def test_a_pairs_p_value_needs_both_tasks():
    truth = np.array([[[0.9, 0.5, 0.8]], [[0.8, 0.6, 0.6]]])  # only the first task comes apart
    generator = np.random.default_rng(4)
    found = Dissociation.of(["a", "b"], counts=[drawn_of_rowtests(generator, t, 800) for t in truth])
    assert found.to_record()["D"][0]["mean"]["p_rows"] < 0.01 < found.pairs()["a", "b"]["p_rows"]


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
