"""Pruning the least important heads in training: they stay closed, for every task, and for good."""

from __future__ import annotations

import pytest
import torch

from headwise.errors import HeadwiseError
from headwise.heads.gates import Heads, gated
from headwise.heads.selection import bottom
from headwise.measuring.evaluate import evaluate
from headwise.scoring.importance import importance
from headwise.testing import toy_model
from headwise.training.loop import fit
from headwise.training.methods.prune_least import PruneLeast
from headwise.training.plan import Plan

BASE = Plan(steps=20, lr=3e-3, batch_size=16, evaluate_every=0, weight_decay=0.1)


def columns(model) -> torch.Tensor:
    """Whether every head's columns of the output projections are zero, (L, H)."""
    heads = Heads.of(model.encoder)
    found = []
    for site in heads.sites:
        weight = site.module.weight.detach()
        weight = weight.T if type(site.module).__name__ == "Conv1D" else weight
        found.append((weight.view(len(weight), heads.num_heads, -1) == 0).all(0).all(1))
    return torch.stack(found)


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_the_pruned_heads_are_zero_in_the_end_and_no_others(family):
    model = toy_model(family=family, pooling="cls" if family == "bert" else "last")
    method = PruneLeast(alpha=0.5, delta=0.5)
    fit(model, BASE, method)
    assert method.closed.sum() == 4
    assert torch.equal(columns(model), method.closed)


def test_the_heads_are_those_with_the_least_mean_share():
    """Scores are scaled to sum 1 before they are averaged: a task with large losses does not outvote the other."""
    seen = {}

    class Look(PruneLeast):
        def before_step(self, run):
            if run.step == self.first:
                maps = [importance(run.model, task).scores for task in run.names]
                seen["mean"] = sum(m / m.sum() for m in maps) / len(maps)
            super().before_step(run)

    method = Look(alpha=0.25, delta=0.5)
    fit(toy_model(), BASE, method)
    assert torch.equal(method.closed, bottom(seen["mean"], 0.25))


def test_evaluations_while_training_are_of_the_pruned_model():
    model = toy_model()
    history = fit(model, BASE.with_(evaluate_every=5), PruneLeast(alpha=0.5, delta=0.5))
    after = {name: evaluate(model, name).value for name in model.tasks}
    assert [entry["step"] for entry in history.scores] == [5, 10, 15, 20]
    assert history.scores[-1]["scores"] == after


def test_training_goes_on_under_the_gates():
    """The steps after the cut are those of a model gated from then on."""
    pruned, by_hand = toy_model(), toy_model()
    method = PruneLeast(alpha=0.5, delta=0.5)
    fit(pruned, BASE, method)

    class Gated(PruneLeast):
        def start(self, run):
            self.heads, self.first = Heads.of(run.model.encoder), 10

        def before_step(self, run):
            pass

        def around(self, run):
            gates = (~method.closed).float() if run.step >= 10 else torch.ones(2, 4)
            return gated(run.model.encoder, gates)

    fit(by_hand, BASE, Gated())
    batch = {"input_ids": torch.tensor([[1, 7, 9, 2]]), "attention_mask": torch.ones(1, 4, dtype=torch.long)}
    for model in (pruned, by_hand):
        model.eval()
    with torch.no_grad(), gated(by_hand.encoder, (~method.closed).float()):
        wanted = by_hand.hidden(batch).states
    with torch.no_grad():
        assert torch.allclose(pruned.hidden(batch).states, wanted, atol=1e-6)


@pytest.mark.parametrize("crash", [7, 16])
def test_resume_is_exact_before_and_after_the_cut(tmp_path, crash):
    plan = BASE.with_(checkpoint_every=3)
    whole = toy_model()
    fit(whole, plan, PruneLeast(delta=0.5))

    class Crash(PruneLeast):
        def before_batch(self, run, task):
            if run.step == crash:
                raise RuntimeError("crash")

    with pytest.raises(RuntimeError, match="crash"):
        fit(toy_model(), plan, Crash(delta=0.5), out=tmp_path)
    resumed = toy_model()
    fit(resumed, plan, PruneLeast(delta=0.5), out=tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(whole.state_dict().values(), resumed.state_dict().values()))
    again = toy_model()  # nothing is left to do, and the heads are closed all the same
    method = PruneLeast(delta=0.5)
    fit(again, plan, method, out=tmp_path)
    assert torch.equal(columns(again), method.closed)


def test_with_patience_the_best_weights_are_those_of_a_pruned_model():
    model = toy_model()
    method = PruneLeast(alpha=0.5, delta=0.5)
    history = fit(model, BASE.with_(evaluate_every=2, patience=50), method)
    best = history.best(after=10)
    assert best["step"] > 10
    assert {name: evaluate(model, name).value for name in model.tasks} == best["scores"]
    assert torch.equal(columns(model), method.closed)


@pytest.mark.parametrize("settings", [{"alpha": 0.0}, {"delta": 0.0}])
def test_the_limits_are_plain_training(settings):
    plain, limit = toy_model(), toy_model()
    fit(plain, BASE)
    fit(limit, BASE, PruneLeast(**settings))
    assert all(torch.equal(a, b) for a, b in zip(plain.state_dict().values(), limit.state_dict().values()))


def test_a_training_too_short_to_close_heads_has_patience_as_plain_training_has():
    plan = BASE.with_(steps=8, lr=0.0, evaluate_every=1, patience=2)
    assert fit(toy_model(), plan, PruneLeast(delta=0.05)).steps == fit(toy_model(), plan).steps < 8


def test_what_cannot_be_done_is_refused():
    with pytest.raises(HeadwiseError, match=r"alpha=1\.5"):
        PruneLeast(alpha=1.5)
    with pytest.raises(HeadwiseError, match="share one set of weights"):
        fit(toy_model(family="albert"), BASE, PruneLeast())
