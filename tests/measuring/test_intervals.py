"""Intervals that cover with few rows and near the ceiling, against exact numbers and enumeration."""

import numpy as np
import pytest
from scipy.stats import binom

from headwise.errors import HeadwiseError
from headwise.measuring.intervals import bca, interval, of_alike, of_change, of_share, widened

SIZES = (20, 50, 100, 200)


def coverage(n: int, truth: float) -> float:
    right = np.arange(n + 1)
    low, high = of_share(right, n)
    return float(binom.pmf(right, n, truth)[(low <= truth) & (truth <= high)].sum())


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("truth", [0.5, 0.7, 0.9, 0.95, 0.98, 0.99])
def test_an_accuracy_is_covered_at_the_ceiling_too(n, truth):
    """98.5 % and more where right answers come in so few numbers that leaving one out would go below 93 %."""
    assert 0.93 <= coverage(n, truth) <= (0.98 if truth <= 0.8 else 0.995)


def test_a_bootstrap_misses_the_ceiling():
    """What percentiles of 50 rows cover of a true 0.98: all 50 are right in 36 % of cases, and no draw is lower."""
    right, draws = np.arange(51), np.random.default_rng(0)
    ends = [interval(draws.binomial(50, k / 50, 2000) / 50) for k in right]
    held = [low <= 0.98 <= high for low, high in ends]
    assert binom.pmf(right, 50, 0.98)[held].sum() < 0.7


def test_the_interval_of_a_share_solves_its_equations():
    low, high = of_share(np.array(47), 50)
    for end, tail in ((low, 0.025), (high, 0.975)):
        assert binom.sf(47, 50, end) + binom.pmf(47, 50, end) / 2 == pytest.approx(tail, abs=1e-9)
    assert of_share(np.array(0), 20)[0] == 0 and of_share(np.array(20), 20)[1] == 1
    mirrored = of_share(np.array([3, 17]), 20)
    assert mirrored[0][0] == pytest.approx(1 - mirrored[1][1])


def test_tangos_published_example():
    """Tango 1998: of 14 patients one alone is right under the first treatment, none under the second alone."""
    low, high = of_change(np.array(1), np.array(0), 14)
    assert (low, high) == pytest.approx((-0.1573, 0.3147), abs=2e-3)


def test_a_change_that_no_row_shows_has_an_interval():
    low, high = of_change(np.array([0, 0]), np.array([0, 2]), 50)
    assert low[0] == -high[0] and 0.05 < high[0] < 0.1 and low[1] < -0.04 < high[1]
    gained = of_change(np.array(7), np.array(3), 40)
    lost = of_change(np.array(3), np.array(7), 40)
    assert gained == pytest.approx((-lost[1], -lost[0]))


@pytest.mark.parametrize("n", [20, 50, 200])
def test_a_change_is_covered(n):
    generator, hits = np.random.default_rng(n), []
    truth = 0.9 - 0.8
    for _ in range(400):
        easy = generator.random(n)
        before, after = easy < 0.8, (easy < 0.75) | (generator.random(n) < 0.6)
        truth = 0.75 + 0.25 * 0.6 - 0.8
        low, high = of_change((after & ~before).sum(), (before & ~after).sum(), n)
        hits.append(low <= truth <= high)
    assert 0.92 <= np.mean(hits) <= 0.985


def test_quantiles_of_few_rows_are_widened():
    assert widened(0.95, 1000) == pytest.approx(0.95, abs=1e-3) and widened(0.95, 5) > 0.99
    generator, hits, plain = np.random.default_rng(0), [], []
    for _ in range(500):
        values = generator.normal(size=10)
        means = values[generator.integers(10, size=(400, 10))].mean(1)
        for held, level in ((hits, widened(0.95, 10)), (plain, 0.95)):
            low, high = interval(means, level)
            held.append(low <= 0 <= high)
    assert np.mean(plain) < 0.92 < np.mean(hits) < 0.98


def test_rows_that_behave_alike_leave_room_for_those_that_would_not():
    point = np.array([1.0, 0.5, 0.0])
    low, high = of_alike(point, (point, point), 30)
    room = 1 - 0.05 ** (1 / 30)
    assert low == pytest.approx([1 - room, 0.5 - room, 0]) and high == pytest.approx([1, 0.5 + room, room])
    low, high = of_alike(point, (point - 0.5, point + 0.5), 30)
    assert np.allclose(low, point - 0.5) and np.allclose(high, point + 0.5)
    low, high = of_alike(point, (point - 0.01, point + 0.01), 30, signed=True)
    assert np.allclose(low, point - room) and np.allclose(high, point + room)


def test_one_row_has_an_interval():
    low, high = bca(np.array(1.0), np.ones(100), np.ones(1))
    assert high == 1 and low == pytest.approx(0.05)


def test_wrong_levels_are_refused():
    for call in (lambda: interval(np.ones(3), 95), lambda: of_share(np.array(1), 2, 0), lambda: widened(1.0, 5)):
        with pytest.raises(HeadwiseError, match="level"):
            call()
