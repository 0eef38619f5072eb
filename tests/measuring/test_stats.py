"""What statistics promise, by simulation: p-values uniform under the null, intervals that cover, errors bounded."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from headwise.errors import HeadwiseError
from headwise.measuring.correlation import correlation
from headwise.measuring.intervals import interval
from headwise.measuring.stats import (
    Spread,
    above_zero,
    adjust,
    bootstrap,
    change,
    over_trainings,
    overlap_test,
    p_value,
    paired_bootstrap,
    paired_t,
    permutation_test,
    resample,
)

RUNS = 600


def accuracy(sums: np.ndarray) -> np.ndarray:
    return sums[..., 0] / sums[..., 1]


def f1(sums: np.ndarray) -> np.ndarray:
    """Of (true positives, predicted, gold)."""
    return 2 * sums[..., 0] / np.maximum(sums[..., 1] + sums[..., 2], 1e-12)


def accuracy_counts(right: np.ndarray) -> np.ndarray:
    return np.stack([right, np.ones_like(right)], -1).astype(float)


def f1_counts(generator: np.random.Generator, n: int, recall: float, alarm: float) -> np.ndarray:
    gold = generator.random(n) < 0.4
    said = generator.random(n) < np.where(gold, recall, alarm)
    return np.stack([gold & said, said, gold], -1).astype(float)


def covers(low: float, high: float, truth: float) -> bool:
    return low <= truth <= high


def within_binomial_error(hits: list[bool], level: float, bias: float = 0.0) -> bool:
    """The share of hits is the level, give or take three binomial errors and the method's known small-sample bias."""
    return abs(np.mean(hits) - level) < 3 * math.sqrt(level * (1 - level) / len(hits)) + bias


# bootstrap


def test_resampled_sums_have_the_moments_of_the_bootstrap():
    counts = np.random.default_rng(0).normal(size=(50, 2, 3))
    sums = resample(counts, 20_000, seed=1)
    assert sums.shape == (20_000, 2, 3)
    error = counts.std(0) * math.sqrt(50)
    assert np.abs(sums.mean(0) - counts.sum(0)).max() < 5 * error.max() / math.sqrt(20_000)
    np.testing.assert_allclose(sums.std(0), error, rtol=0.05)


def test_systems_on_the_same_examples_share_their_draws():
    counts = np.random.default_rng(0).normal(size=(40, 1, 2))
    sums = resample(np.concatenate([counts, counts], 1), 100, seed=3)
    assert np.array_equal(sums[:, 0], sums[:, 1])
    assert np.array_equal(resample(counts, 100, seed=3)[:, 0], sums[:, 0])


def test_long_data_is_drawn_in_parts(monkeypatch):
    counts = np.ones((1000, 1))
    monkeypatch.setattr("headwise.measuring.stats.CELLS", 3000)
    assert (resample(counts, 10) == 1000).all()
    assert 0 < permutation_test(np.arange(1000.0), np.arange(1000.0)[::-1], resamples=10) <= 1


@pytest.mark.parametrize("how", ["percentile", "bca"])
@pytest.mark.parametrize("metric", ["accuracy", "f1"])
def test_intervals_cover(metric, how):
    generator = np.random.default_rng(5)
    truth = 0.8 if metric == "accuracy" else 2 * 0.28 / (0.4 + 0.28 + 0.06)
    hits = []
    for run in range(RUNS):
        if metric == "accuracy":
            counts, value = accuracy_counts(generator.random(200) < truth), accuracy
        else:
            counts, value = f1_counts(generator, 200, 0.7, 0.1), f1
        found = bootstrap(counts, value, 300, seed=run, how=how)
        hits.append(covers(found.low, found.high, truth))
    assert within_binomial_error(hits, 0.95, bias=0.01)


def test_bca_follows_the_skew_and_agrees_with_scipy():
    values = np.random.default_rng(1).lognormal(size=60)
    ours = bootstrap(values[:, None], lambda sums: sums[..., 0] / 60, 9999, how="bca")
    theirs = scipy_stats.bootstrap((values,), np.mean, n_resamples=9999, method="BCa", rng=np.random.default_rng(0))
    plain = bootstrap(values[:, None], lambda sums: sums[..., 0] / 60, 9999, how="percentile")
    assert (ours.low, ours.high) == pytest.approx(tuple(theirs.confidence_interval), rel=0.02)
    assert ours.high > plain.high


def test_several_systems_in_one_call_equal_single_calls():
    right = np.random.default_rng(2).random((80, 3)) < [0.5, 0.7, 0.9]
    for how in ("percentile", "bca"):
        together = bootstrap(accuracy_counts(right), accuracy, 200, seed=4, how=how)
        for i in range(3):
            alone = bootstrap(accuracy_counts(right[:, i]), accuracy, 200, seed=4, how=how)
            pair = (together.value[i], together.low[i], together.high[i]), (alone.value, alone.low, alone.high)
            np.testing.assert_allclose(*pair, rtol=1e-12)
    assert len(str(together).splitlines()) == 3


@pytest.mark.parametrize("n", [1, 3, 5, 30])
@pytest.mark.parametrize("how", ["share", "bca", "auto"])
def test_rows_that_behave_alike_still_have_an_interval(n, how):
    """Thirty right answers of thirty: one row in eleven may be wrong, though none was seen."""
    found = bootstrap(accuracy_counts(np.ones(n)), accuracy, 100, how=how)
    assert found.value == found.high == 1 and found.low == pytest.approx(0.05 ** (1 / n))


def test_undefined_draws_are_left_out_of_intervals():
    samples = np.array([[1.0, np.nan], [2.0, np.nan], [np.nan, np.nan], [3.0, np.nan]])
    low, high = interval(samples, 0.5)
    assert (low[0], high[0]) == (1.5, 2.5) and math.isnan(low[1]) and math.isnan(high[1])


# tests


@pytest.mark.parametrize("test", ["paired_bootstrap", "permutation"])
def test_p_values_are_uniform_under_the_null(test):
    generator = np.random.default_rng(11)
    found = []
    for run in range(RUNS):
        easy = generator.normal(size=120)
        a, b = easy + generator.normal(size=120), easy + generator.normal(size=120)
        if test == "permutation":
            found.append(permutation_test(a, b, resamples=399, seed=run))
        else:
            found.append(paired_bootstrap(a, b, resamples=399, seed=run).p)
    assert scipy_stats.kstest(found, "uniform").pvalue > 0.01


def test_p_values_of_a_metric_are_uniform_under_the_null():
    generator = np.random.default_rng(12)
    swapped, beaten = [], []
    for run in range(RUNS):
        gold = generator.random(600) < 0.4
        said = [generator.random(600) < np.where(gold, 0.7, 0.2) for _ in range(2)]
        a, b = (np.stack([gold & s, s, gold], -1).astype(float) for s in said)
        swapped.append(permutation_test(a, b, f1, 299, run))
        beaten.append(paired_bootstrap(a, b, f1, 299, run).p)
    assert scipy_stats.kstest(swapped, "uniform").pvalue > 0.01
    assert scipy_stats.kstest(beaten, "uniform").pvalue > 0.01


def test_a_better_system_is_found_and_a_worse_one_is_not():
    generator = np.random.default_rng(3)
    a, b = generator.normal(0.8, 0.05, 30), generator.normal(0.75, 0.05, 30)
    better, worse = paired_bootstrap(a, b), paired_bootstrap(b, a)
    assert better.p < 0.01 and better.low > 0 and worse.p > 0.99
    assert permutation_test(a, b) < 0.01
    assert paired_t(a, b).p < 0.01


def test_pairing_sees_what_two_separate_intervals_hide():
    generator = np.random.default_rng(4)
    hard = generator.random(500)
    a, b = hard < 0.70, hard < 0.66
    assert paired_bootstrap(accuracy_counts(a), accuracy_counts(b), accuracy, 2000).p < 0.01
    first, second = (bootstrap(accuracy_counts(x), accuracy) for x in (a, b))
    assert first.low < second.high


def test_permutation_p_values_equal_enumeration():
    a, b = np.array([0.3, 0.5, 0.9]), np.array([0.1, 0.2, 0.3])
    assert permutation_test(a, b, resamples=20_000) == pytest.approx(2 / 8, abs=0.01)


def test_paired_t_is_students_and_knows_degenerate_differences():
    a, b = np.array([0.81, 0.83, 0.85]), np.array([0.80, 0.80, 0.84])
    assert paired_t(a, b).p == pytest.approx(scipy_stats.ttest_rel(a, b).pvalue)
    assert paired_t(a, a).p == 1
    same = paired_t(np.array([0.5, 0.75]), np.array([0.25, 0.5]))  # two seeds of few rows: no spread is no proof
    assert same.value == 0.25 and math.isnan(same.p) and math.isnan(same.low)


@pytest.mark.parametrize("n", [2, 3, 5, 10, 30])
def test_few_seeds_are_not_called_sure(n):
    """Under the null a test at 5 % errs in 5 % of cases, and the interval misses in as many, however few seeds."""
    rng = np.random.default_rng(n)
    found = [paired_bootstrap(rng.normal(size=n), rng.normal(size=n), resamples=500, seed=i) for i in range(1000)]
    assert 0.02 < np.mean([one.p < 0.05 for one in found]) < 0.08
    assert 0.91 < np.mean([one.low <= 0 <= one.high for one in found]) < 0.98


def test_one_seed_has_a_difference_and_nothing_more():
    one = paired_bootstrap(np.array([0.8]), np.array([0.7]))
    assert one.value == pytest.approx(0.1) and all(map(math.isnan, (one.low, one.high, one.p)))


def test_trainings_are_tested_by_students_t():
    """Three trainings that all gain are not yet proof; how far they agree decides."""
    values = [0.08, 0.11, 0.07]
    found = over_trainings(values)
    assert found.p == pytest.approx(scipy_stats.ttest_1samp(values, 0, alternative="greater").pvalue)
    assert found.low > 0 and over_trainings([0.01, 0.2, 0.03]).p > 0.05
    assert over_trainings(-np.array(values)).p == pytest.approx(1 - found.p)
    for alike in ([0.1], [0.1, 0.1, 0.1], [0.0, 0.0]):
        assert math.isnan(over_trainings(alike).p) and math.isnan(over_trainings(alike).low)


def test_a_change_on_few_rows_has_an_interval_and_no_p():
    rng = np.random.default_rng(0)
    for n, known in ((19, False), (20, True)):
        pair = rng.random((2, n)) < 0.8
        exact = change(*map(accuracy_counts, pair), accuracy)
        other = change(*(f1_counts(rng, n, 0.7, 0.1) for _ in range(2)), f1, 200)
        for found in (exact, other):
            assert found.low < found.value < found.high and math.isnan(found.p) is not known


def test_changes_of_many_lesions_are_those_of_each():
    rng = np.random.default_rng(1)
    whole, cut = f1_counts(rng, 60, 0.8, 0.1), np.stack([f1_counts(rng, 60, 0.6, 0.2) for _ in range(3)], 1)
    together = change(cut, np.repeat(whole[:, None], 3, 1), f1, 300, seed=2)
    for i in range(3):
        alone = change(cut[:, i], whole, f1, 300, seed=2)
        for name in ("value", "low", "high", "p"):
            assert getattr(together, name)[i] == pytest.approx(float(getattr(alone, name)))


def test_ranks_of_a_few_are_tested_by_all_their_orders():
    assert correlation([1, 2, 3], [4, 5, 6], "spearman").p == pytest.approx(2 / 6)  # two of six orders are as extreme
    assert correlation([1, 2, 3, 4], [4, 5, 6, 9], "spearman").p == pytest.approx(2 / 24)


def test_p_value_counts_the_observed_one_and_skips_undefined_draws():
    assert p_value(np.float64(2), np.array([1.0, 2.0, 3.0])) == 3 / 4
    assert p_value(np.float64(9), np.array([1.0, np.nan])) == 1 / 2
    assert math.isnan(p_value(np.float64(np.nan), np.array([1.0])))
    assert above_zero(np.float64(5), np.array([4.0, 5.0, 6.0])) == 1 / 4
    assert (
        above_zero(np.float64(2), np.array([0.5, 2.0, 5.0])) == 2 / 4
    )  # one draw exceeds 2 by 2: skew speaks against A


def test_spread_over_seeds():
    assert str(Spread.of([80.0, 82.0, 84.0])) == "82 ± 2 (n = 3)"
    assert math.isnan(Spread.of([1.0]).sd)


# overlap


def test_overlap_p_values_are_the_hypergeometric_tails_by_enumeration():
    a = np.arange(6) < 3
    counts = np.zeros(4)
    for bits in range(64):
        b = np.array([bits >> i & 1 for i in range(6)], bool)
        if b.sum() == 3:
            counts[(a & b).sum()] += 1
    b = np.array([1, 1, 0, 1, 0, 0], bool)
    found = overlap_test(a, b)
    assert (found.shared, found.expected) == (2, 1.5)
    assert found.p_more == pytest.approx(counts[2:].sum() / 20) and found.p_fewer == pytest.approx(
        counts[:3].sum() / 20
    )


def test_overlap_of_random_sets_is_seldom_called_more_than_chance():
    generator = np.random.default_rng(0)
    found = []
    for _ in range(1000):
        a, b = (np.isin(np.arange(144), generator.permutation(144)[:43]).reshape(12, 12) for _ in range(2))
        found.append(overlap_test(a, b).p_more)
    for level in (0.01, 0.05, 0.2):
        assert np.mean(np.array(found) <= level) <= level + 3 * math.sqrt(level / 1000)


def test_overlap_counts_living_heads_only():
    a, alive = np.array([True, True, False, False]), np.array([True, True, True, False])
    assert overlap_test(a, a, alive).expected == pytest.approx(4 / 3)
    with pytest.raises(HeadwiseError, match="cut heads"):
        overlap_test(a, a, ~a)


# families


def test_holm_worked_by_hand():
    np.testing.assert_allclose(adjust([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_allclose(adjust([0.01, np.nan, 0.04], "bh"), [0.02, np.nan, 0.04])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
@settings(max_examples=50, deadline=None)
def test_adjusting_never_lowers_a_p_value_nor_changes_their_order(p):
    holm, bh, by = (adjust(p, how) for how in ("holm", "bh", "by"))
    for adjusted in (holm, bh, by):
        assert (adjusted >= np.array(p) - 1e-12).all() and (adjusted <= 1).all()
        assert (np.diff(adjusted[np.argsort(p, kind="stable")]) >= -1e-12).all()
    assert (bh <= holm + 1e-12).all() and (bh <= by + 1e-12).all()


def test_errors_of_a_family_are_bounded():
    generator = np.random.default_rng(8)
    any_error, false_share = [], []
    for _ in range(1000):
        z = generator.normal(size=20) + np.where(np.arange(20) < 5, 3.0, 0.0)
        p = scipy_stats.norm.sf(z)
        any_error.append((adjust(p, "holm")[5:] <= 0.05).any())
        found = adjust(p, "bh") <= 0.1
        false_share.append(found[5:].sum() / max(found.sum(), 1))
    assert np.mean(any_error) < 0.05 + 3 * math.sqrt(0.05 / 1000)
    assert np.mean(false_share) < 0.1 + 3 * np.std(false_share) / math.sqrt(1000)
    assert np.mean(any_error) > 0.01 and np.mean(false_share) > 0.04  # and not by refusing everything


# correlation


@pytest.mark.parametrize(
    "call",
    [
        lambda: correlation([1, 2, 3], [1, 2]),
        lambda: correlation([1, 2, 3], [1, 2, 3], "tau"),
        lambda: correlation([1, 2, 3], [1, 2, 4], by="magic"),
        lambda: bootstrap(np.empty((0, 2)), accuracy),
        lambda: bootstrap(np.full((3, 2), np.nan), accuracy),
        lambda: bootstrap(np.ones((3, 2)), accuracy, how="normal"),
        lambda: bootstrap(np.ones((3, 2)), accuracy, level=95),
        lambda: paired_bootstrap(np.ones(3), np.ones(4)),
        lambda: paired_bootstrap(np.ones((3, 2)), np.ones((3, 2))),
        lambda: paired_t([1.0], [2.0]),
        lambda: overlap_test(np.ones((2, 2)), np.ones((2, 3))),
        lambda: adjust([0.5, 1.5]),
        lambda: adjust([0.5], "sidak"),
    ],
)
def test_wrong_calls_are_refused(call):
    with pytest.raises(HeadwiseError):
        call()
