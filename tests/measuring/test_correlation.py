"""Correlations: intervals cover, p-values are uniform under the null."""

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from headwise.measuring.correlation import correlation

RUNS = 600


def covers(low: float, high: float, truth: float) -> bool:
    return low <= truth <= high


def within_binomial_error(hits: list[bool], level: float, bias: float = 0.0) -> bool:
    """The share of hits is the level, give or take three binomial errors and the method's known small-sample bias."""
    return abs(np.mean(hits) - level) < 3 * math.sqrt(level * (1 - level) / len(hits)) + bias


@pytest.mark.parametrize(
    ("how", "by", "rho", "n"),
    [("pearson", "fisher", 0.6, 12), ("spearman", "fisher", 0.95, 100), ("pearson", "bootstrap", 0.6, 80)],
)
def test_correlation_intervals_cover(how, by, rho, n):
    generator = np.random.default_rng(9)
    truth = rho if how == "pearson" else 6 / math.pi * math.asin(rho / 2)
    hits = []
    for run in range(RUNS):
        x, y = generator.multivariate_normal([0, 0], [[1, rho], [rho, 1]], n).T
        found = correlation(x, y, how, by=by, resamples=300, seed=run)
        hits.append(covers(found.low, found.high, truth))
    assert within_binomial_error(hits, 0.95, bias=0.015 if by == "bootstrap" else 0)


@pytest.mark.parametrize("how", ["pearson", "spearman"])
def test_correlation_p_values_are_uniform_under_the_null(how):
    generator = np.random.default_rng(10)
    found = [correlation(*generator.normal(size=(2, 30)), how).p for _ in range(RUNS)]
    assert scipy_stats.kstest(found, "uniform").pvalue > 0.01


def test_correlation_finds_the_line():
    found = correlation([1, 2, 3, 4], [1, 3, 5, 7])
    assert (found.r, found.low, found.slope, found.intercept) == pytest.approx((1, 1, 2, -1), abs=1e-6)
    assert correlation([1, 2, 3], [1, 3, 2]).low == -1


def test_there_is_no_correlation_with_a_constant():
    for found in (correlation([1, 1, 1], [1, 2, 3]), correlation([1, 2, 3], [0.1, 0.1, 0.1], "spearman")):
        assert np.isnan([found.r, found.low, found.high, found.p, found.slope]).all() and found.n == 3
