"""Agreement of subsamples: planted scores and noise, whose agreement at any number of examples is known by drawing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headwise.heads.selection import top
from headwise.scoring.stability import BLOCKS, TARGET, Blocks, agreement, stability, top_probability

SHAPE, ALPHA = (6, 12), 0.3
SPREADS = {
    "normal": lambda rng: rng.normal(size=SHAPE),
    "lognormal": lambda rng: np.exp(rng.normal(size=SHAPE)),
    "gamma": lambda rng: rng.gamma(0.6, 1.0, SHAPE),
    "none": lambda rng: np.zeros(SHAPE),
}


class Plant:
    """Heads with true scores, and examples that all heads see with noise, a part of it in common."""

    def __init__(self, spread: str, noise: float, seed: int):
        self.rng = np.random.default_rng([seed, 7])
        self.truth = SPREADS[spread](np.random.default_rng(seed))
        self.noise = noise * (self.truth.std() or 1)

    def means(self, number: int, examples: float) -> np.ndarray:
        noise = self.rng.normal(size=(number, *SHAPE)) + 0.5 * self.rng.normal(size=(number, 1, 1))
        return self.truth + self.noise * noise / np.sqrt(examples)

    def blocks(self, examples: int) -> Blocks:
        return Blocks(self.means(BLOCKS, examples / BLOCKS), np.ones(BLOCKS))

    def agreement(self, examples: float) -> float:
        """Of pairs of samples of so many examples."""
        masks = [top(torch.from_numpy(scores), ALPHA) for scores in self.means(80, examples)]
        return float(np.mean([(a & b).sum() / a.sum() for a, b in zip(masks[::2], masks[1::2])]))


@pytest.mark.parametrize("spread", ["normal", "lognormal", "gamma"])
@pytest.mark.parametrize("noise", [3, 10])
def test_the_agreement_of_all_examples_is_predicted(spread, noise):
    errors = []
    for seed in range(12):
        plant = Plant(spread, noise, seed)
        errors.append(stability(plant.blocks(400), ALPHA, 400).expected - plant.agreement(400))
    assert -0.05 < np.mean(errors) < 0.02 and np.std(errors) < 0.08, "rather too low than too high"


@pytest.mark.parametrize("spread", ["normal", "lognormal", "gamma"])
def test_too_few_examples_are_called_so_with_a_number_that_holds(spread):
    reached = []
    for seed in range(12):
        plant = Plant(spread, 6, seed)
        found = stability(plant.blocks(240), ALPHA, 240)
        assert found.enough is False and (found.needed is None or found.needed > 240)
        reached += [plant.agreement(found.needed)] if found.needed else []
    assert len(reached) >= 9 and np.mean(reached) > TARGET - 0.01 and min(reached) > TARGET - 0.06


@pytest.mark.parametrize("spread", ["normal", "lognormal", "gamma"])
def test_enough_examples_are_called_so(spread):
    for seed in range(12):
        plant = Plant(spread, 2, seed)
        found = stability(plant.blocks(1000), ALPHA, 1000)
        assert found.enough and found.needed <= 1000 and plant.agreement(1000) > TARGET - 0.02


def test_noise_alone_is_never_enough_and_no_number_is_promised():
    found = [stability(Plant("none", 5, seed).blocks(500), ALPHA, 500) for seed in range(20)]
    assert not any(one.enough for one in found)
    assert sum(one.needed is not None for one in found) <= 2
    assert np.mean([one.expected for one in found]) == pytest.approx(ALPHA, abs=0.1)


def test_scores_without_noise_agree_wholly():
    blocks = Plant("normal", 0.0, 0).blocks(100)
    found = stability(blocks, ALPHA, 100)
    assert found.split_half == 1 and found.enough and found.needed == 5, "one block, the least that was tried"
    assert set(np.unique(top_probability(blocks, ALPHA))) == {0.0, 1.0}


def test_the_agreement_is_that_of_the_top_heads_of_selection():
    """Two blocks: one pair of halves, in two orders."""
    plant = Plant("normal", 3, 0)
    blocks = Blocks(plant.means(2, 10), np.ones(2))
    one, other = (top(torch.from_numpy(part), ALPHA) for part in blocks.sums)
    assert agreement(blocks, ALPHA, 1) == pytest.approx(float((one & other).sum() / one.sum()))
    found = stability(blocks, ALPHA, 20)
    assert found.split_half == agreement(blocks, ALPHA, 1) and found.enough is None, "two blocks show no trend"


def test_without_blocks_nothing_is_said():
    nothing = stability(Blocks.none(SHAPE), ALPHA, 0)
    assert (nothing.split_half, nothing.expected, nothing.needed, nothing.enough) == (None,) * 4
    assert top_probability(Blocks.none(SHAPE), ALPHA) is None


def test_the_chance_to_be_a_top_head_is_that_over_samples():
    """Over many samples: as often as bootstraps say on average, at both ends of the ranking and at the cut."""
    told, happened = [], []
    for seed in range(30):
        plant = Plant("normal", 5, seed)
        told.append(top_probability(plant.blocks(200), ALPHA))
        happened.append(np.mean([top(torch.from_numpy(s), ALPHA).numpy() for s in plant.means(100, 200)], 0))
    told, happened = np.ravel(told), np.ravel(happened)
    assert told[happened > 0.95].mean() > 0.9 and told[happened < 0.05].mean() < 0.1
    assert np.corrcoef(told, happened)[0, 1] > 0.85
    assert top_probability(plant.blocks(200), ALPHA).sum() == pytest.approx(int(ALPHA * 72))


def test_cut_heads_are_in_no_set_and_weights_count():
    sums = np.stack([np.full((1, 4), 2.0), np.full((1, 4), 8.0)])
    sums[:, 0, 0] = np.nan
    blocks = Blocks(sums, np.array([1.0, 2.0]))
    assert blocks.scores(np.ones(2))[0, 1] == pytest.approx(10 / 3)
    many = Blocks(np.repeat(sums, 10, 0), np.ones(20))
    assert top_probability(many, 0.5)[0, 0] == 0
    assert stability(many, 0.75, 20).split_half == 1, "all living heads are top heads"


def test_signs_and_layers_are_treated_after_the_mean():
    blocks = Blocks(np.array([[[1.0, -3.0]], [[-2.0, 1.0]]]), np.ones(2), absolute=True, normalized=True)
    assert blocks.scores(np.ones(2)).ravel() == pytest.approx(np.array([0.5, 1.0]) / np.sqrt(1.25))
