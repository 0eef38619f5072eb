"""The base class of methods, and what the training loop makes of a method."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from headwise.errors import HeadwiseError
from headwise.papers.mesh.meta import Meta
from headwise.papers.specialization.released import ReleasedIAT
from headwise.testing import layers_run_again, no_dropout, toy_model
from headwise.training import checkpoint
from headwise.training.loop import Run, fit
from headwise.training.methods.distill import Distill
from headwise.training.methods.iat import IAT
from headwise.training.methods.l0 import L0
from headwise.training.methods.method import Method
from headwise.training.methods.prune_least import PruneLeast
from headwise.training.methods.rates import Rates
from headwise.training.methods.scales import Scales
from headwise.training.plan import Plan

PLAN = Plan(epochs=2, lr=3e-3, batch_size=16, checkpoint_every=4, evaluate_every=0, clip=1.0, weight_decay=0.01)


def weights(model) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_what_branches_off_has_moments_of_its_own(tmp_path):
    plan = replace(PLAN, steps=6, checkpoint_every=3)
    fit(toy_model(), plan, L0(lr=0.1), out=tmp_path)
    seen = []

    class Look(L0):
        def start(self, run: Run) -> None:
            super().start(run)
            seen.extend(run.optimizer.state.get(p) for group in run.own for p in group["params"])
            known = [p for group in run.optimizer.param_groups for p in group["params"]]
            assert all(any(key is p for p in known) for key in run.optimizer.state)

    fit(toy_model(), plan, Look(lr=0.1), branch=checkpoint.place(tmp_path / "checkpoints", 3))
    assert seen and not any(seen)


@pytest.mark.parametrize("again", [Scales, lambda: Meta(support=4), lambda: Distill(toy_model())])
def test_layers_that_run_again_in_the_backward_pass_are_refused_where_it_would_not_be_the_same(again):
    model = toy_model()
    layers_run_again(model.encoder)
    with pytest.raises(HeadwiseError, match=r"with (gradient|activation) checkpointing") as told:
        fit(model, PLAN.with_(steps=2), again())
    exec(told.value.hint, {"model": model})  # what it says to type
    fit(model, PLAN.with_(steps=2), again())


@pytest.mark.parametrize(
    "method", [Method, lambda: IAT(delta=0.5, examples=8), lambda: PruneLeast(delta=0.5, examples=8)]
)
def test_layers_that_run_again_change_nothing_else(method):
    plain, again = no_dropout(toy_model()), no_dropout(toy_model())
    layers_run_again(again.encoder)
    for model in (plain, again):
        fit(model, PLAN.with_(steps=4), method())
    assert same(weights(plain), weights(again))


def test_a_method_given_by_name_names_the_registry():
    with pytest.raises(HeadwiseError, match=r"'iat'.*headwise\.training\.methods\.methods"):
        fit(toy_model(), PLAN, "iat")


AGAIN_PLAN = Plan(steps=10, lr=1e-2, batch_size=12, evaluate_every=0)
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
    fit(toy_model(), AGAIN_PLAN, used)
    fit(again, AGAIN_PLAN.with_(seed=3), used)
    fit(fresh, AGAIN_PLAN.with_(seed=3), make())
    for name, value in fresh.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
