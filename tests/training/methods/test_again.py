"""A method that trains a second model knows nothing of the first."""

from __future__ import annotations

import pytest
import torch

from headwise.papers.mesh.meta import Meta
from headwise.papers.specialization.released import ReleasedIAT
from headwise.testing import toy_model
from headwise.training.loop import fit
from headwise.training.methods.iat import IAT
from headwise.training.methods.l0 import L0
from headwise.training.methods.prune_least import PruneLeast
from headwise.training.methods.rates import Rates
from headwise.training.plan import Plan

PLAN = Plan(steps=10, lr=1e-2, batch_size=12, evaluate_every=0)
MADE = {
    "iat": lambda: IAT(delta=0.5, examples=16),
    "released": lambda: ReleasedIAT(delta=0.5, examples=16),
    "rates": lambda: Rates(start=0.5, examples=16),
    "prune_least": lambda: PruneLeast(delta=0.5, examples=16),
    "l0": L0,
    "meta": lambda: Meta(support=6, gates="sigmoid", trim={"prune": 0.25, "train": 0.25, "examples": 16}),
}


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_a_second_training_is_as_by_a_fresh_method(make):
    used, again, fresh = make(), toy_model(), toy_model()
    fit(toy_model(), PLAN, used)
    fit(again, PLAN.with_(seed=3), used)
    fit(fresh, PLAN.with_(seed=3), make())
    for name, value in fresh.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
