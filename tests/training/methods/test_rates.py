"""Rates per head and task: limits, what moves how far, resume."""

from __future__ import annotations

import pytest
import torch

from headwise.errors import HeadwiseError
from headwise.heads.gates import Heads
from headwise.testing import tiny, toy_model
from headwise.training.loop import fit
from headwise.training.methods.iat import IAT
from headwise.training.methods.rates import Rates
from headwise.training.plan import Plan

PLAN = Plan(steps=24, lr=1e-3, batch_size=16, evaluate_every=0)


def weights(model):
    return list(model.state_dict().values())


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(weights(a), weights(b)))


@pytest.mark.parametrize("settings", [{"power": 0.0}, {"start": 1.0}])
def test_the_limits_are_plain_training(settings):
    plain, limit = toy_model(), toy_model()
    fit(plain, PLAN)
    fit(limit, PLAN, Rates(**settings))
    assert same(plain, limit)


def test_rates_are_one_for_the_task_that_needs_a_head_most():
    method = Rates(power=2.0)
    method.needs = {
        "a": torch.tensor([[1.0, 3.0]]),
        "b": torch.tensor([[30.0, 10.0]]),
    }  # the scale of a task is no need
    rates = method.rates()
    assert torch.allclose(rates["a"], torch.tensor([[(0.5 / 1.5) ** 2, 1.0]]))
    assert torch.allclose(rates["b"], torch.tensor([[1.0, (0.5 / 1.5) ** 2]]))


def test_a_head_that_harms_a_task_is_none_that_it_needs():
    """Scores of ablation may be below zero, also on average."""
    method = Rates()
    method.needs = {"a": torch.tensor([[3.0, -1.0, -4.0, -2.0]]), "b": torch.ones(1, 4)}
    rates = method.rates()["a"][0]
    assert rates[0] == 1 and (rates[1:] < 1e-6).all()


class Given(Rates):
    """Rates that a test says."""

    def __init__(self, rates, **settings):
        super().__init__(start=0.0, **settings)
        self.given = rates

    def _need(self, run, task):
        return self.given[task]

    def rates(self):
        return self.given


def test_a_rate_scales_how_far_a_head_moves():
    """One step of plain training, and the same with rates: every head's rows move by their rate."""
    rate = torch.tensor([[1.0, 0.5, 0.25, 0.0], [0.0, 1.0, 0.125, 0.75]])
    begin, plain, rated = toy_model(), toy_model(), toy_model()
    one = PLAN.with_(steps=1, warmup=0.0)
    fit(plain, one)
    fit(rated, one, Given({"toy0": rate, "toy1": rate}))
    sites = [Heads.of(m.encoder).sites for m in (begin, plain, rated)]
    for layer in range(2):
        for name in "qkvo":
            old, new, slow = (s[layer].parts[name] for s in sites)
            for head, rows in enumerate(old.rows):
                moved, wanted = (
                    part.module.weight.index_select(part.axis, rows) - old.module.weight.index_select(old.axis, rows)
                    for part in (slow, new)
                )
                assert torch.allclose(moved, wanted * rate[layer, head], atol=1e-7), (layer, name, head)
    assert torch.equal(plain.encoder.embeddings.word_embeddings.weight, rated.encoder.embeddings.word_embeddings.weight)


def test_rates_of_zero_and_one_hold_heads_as_iat_does():
    mask = torch.zeros(2, 4, dtype=torch.bool)
    mask[0, 1] = mask[1, 2] = True
    model, begin = toy_model(), toy_model()
    fit(model, PLAN, Given({"toy0": mask.float(), "toy1": mask.float()}, params="qkv"))
    held = toy_model()
    fit(held, PLAN, IAT(delta=1.0, choose={"toy0": mask, "toy1": mask}))
    for m in (model, held):
        for now, old in zip(Heads.of(m.encoder).sites, Heads.of(begin.encoder).sites):
            for head, rows in enumerate(old.parts["q"].rows):
                still = torch.equal(now.parts["q"].module.weight[rows], old.parts["q"].module.weight[rows])
                assert still != bool(mask[old.layer, head])


def test_resume_is_exact(tmp_path):
    class Crash(Rates):
        def before_update(self, run, tasks):
            if run.step == 17:
                raise RuntimeError("crash")
            super().before_update(run, tasks)

    plan, settings = PLAN.with_(checkpoint_every=5), {"start": 0.3, "examples": 32, "refresh": 6}
    whole, resumed = toy_model(), toy_model()
    fit(whole, plan, Rates(**settings))
    with pytest.raises(RuntimeError, match="crash"):
        fit(toy_model(), plan, Crash(**settings), out=tmp_path)
    fit(resumed, plan, Rates(**settings), out=tmp_path)
    assert same(whole, resumed) and not same(whole, toy_model())


@pytest.mark.parametrize("bad", [{"power": -1.0}, {"start": 1.5}, {"params": "qk"}])
def test_bad_settings(bad):
    with pytest.raises(HeadwiseError):
        Rates(**bad)


def test_shared_layers_are_refused():
    with pytest.raises(HeadwiseError, match="a learning rate per head"):
        Heads.of(tiny("albert")).require_exact("a learning rate per head")
