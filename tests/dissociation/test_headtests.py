"""Tests over head sets: exact by enumeration, level under the null, ties against the claim."""

from itertools import permutations, product

import numpy as np
import pytest

from headwise.dissociation.headtests import layer_sets, over_layers, over_random, random_sets
from headwise.dissociation.result import Dissociation


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
