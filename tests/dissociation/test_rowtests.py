"""Tests over rows: intervals of D cover the truth, p-values are uniform when lesions hurt alike."""

import math

import numpy as np
from scipy import stats as scipy_stats

from headwise.dissociation.result import Counts, Dissociation, pairwise, per_task


def accuracy(sums: np.ndarray) -> np.ndarray:
    return sums[..., 0] / sums[..., 1]


def drawn(generator: np.random.Generator, truth: np.ndarray, n: int) -> Counts:
    """One task's right and wrong answers under every lesion; an example's difficulty is the same under all."""
    hard = scipy_stats.norm.cdf((generator.normal(size=(n, 1, 1)) + generator.normal(size=(n, *truth.shape))) / 2**0.5)
    return Counts(np.stack([hard < truth, np.ones((n, *truth.shape))], -1).astype(float), accuracy)


TRUE = np.array([[[0.9, 0.5, 0.8, 0.85], [0.8, 0.7, 0.4, 0.75]]])  # (F, T, K)


def test_intervals_of_d_cover_the_truth():
    truth = per_task(pairwise(TRUE[0]))
    generator, hits, mean_hits = np.random.default_rng(1), [], []
    for run in range(300):
        counts = [drawn(generator, TRUE[:, i], 250) for i in range(2)]
        found = Dissociation.of(["a", "b"], counts=counts, resamples=250, seed=run).to_record()["D"][0]
        hits += [found["tasks"][t]["low"] <= d <= found["tasks"][t]["high"] for t, d in zip("ab", truth)]
        mean_hits.append(found["mean"]["low"] <= truth.mean() <= found["mean"]["high"])
    assert abs(np.mean(hits) - 0.95) < 3 * math.sqrt(0.95 * 0.05 / 600) + 0.01
    assert abs(np.mean(mean_hits) - 0.95) < 3 * math.sqrt(0.95 * 0.05 / 300) + 0.01


def test_p_values_of_d_are_uniform_when_lesions_hurt_alike():
    truth = np.array([[0.9, 0.6, 0.6]])
    generator, found = np.random.default_rng(2), []
    for run in range(300):
        counts = [drawn(generator, truth, 400) for _ in range(2)]
        found.append(
            Dissociation.of(["a", "b"], counts=counts, resamples=300, seed=run).to_record()["D"][0]["mean"]["p_rows"]
        )
    assert scipy_stats.kstest(found, "uniform").pvalue > 0.01


def test_counts_give_the_point_values_and_shared_draws():
    counts = [drawn(np.random.default_rng(3), TRUE[:, i], 500) for i in range(2)]
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
    found = Dissociation.of(["a", "b"], counts=[drawn(generator, t, 800) for t in truth])
    assert found.to_record()["D"][0]["mean"]["p_rows"] < 0.01 < found.pairs()["a", "b"]["p_rows"]
