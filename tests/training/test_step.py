"""One step of training: the mean gradient of its batches, clipped and finite."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from headwise.errors import HeadwiseError
from headwise.testing import no_dropout, toy_model
from headwise.training import checkpoint
from headwise.training.loop import Run, fit
from headwise.training.methods.method import Method
from headwise.training.plan import Plan

PLAN = Plan(epochs=2, lr=3e-3, batch_size=16, checkpoint_every=4, evaluate_every=0, clip=1.0, weight_decay=0.01)


def same(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_the_step_is_the_mean_gradient_of_its_batches():
    """One step of SGD-like AdamW equals the hand-written gradient of both tasks' mean losses."""
    model, by_hand = no_dropout(toy_model()), no_dropout(toy_model())
    seen = {}

    class Look(Method):
        def before_update(self, run: Run, tasks: list[str]) -> None:
            seen.update({n: p.grad.clone() for n, p in run.model.named_parameters() if p.grad is not None})

    plan = Plan(steps=1, accumulate=2, window="mixed", sampling="round_robin", batch_size=16, evaluate_every=0)
    run = Run(by_hand, plan, Method(), None)
    total = 0.0
    for task in ("toy0", "toy1"):
        total = total + by_hand(task, run.data[task].batch(run.streams[task].next())).loss.mean() / 2
    total.backward()
    fit(model, plan, Look())
    wanted = {n: p.grad for n, p in by_hand.named_parameters() if p.grad is not None}
    assert seen.keys() == wanted.keys()
    for name in wanted:
        assert torch.allclose(seen[name], wanted[name], atol=1e-6), name


def test_a_loss_that_is_no_number_stops_and_names_the_batch(tmp_path):
    class Poison(Method):
        def loss(self, run, task, batch):
            return super().loss(run, task, batch) * (float("nan") if run.step == 6 else 1.0)

    with pytest.raises(HeadwiseError, match=r"'toy\d' became nan at step 7 .*the last checkpoint is in"):
        fit(toy_model(), PLAN, Poison(), out=tmp_path)
    _, state = checkpoint.load(checkpoint.list_all(tmp_path / "checkpoints")[-1])
    assert state["step"] == 4


def test_clipping_counts_what_is_trained_alone():
    """Factors of an earlier training stay in the model, and get gradients that nobody asks for."""
    norms = []
    for given in (False, True):
        model = no_dropout(toy_model())
        if given:
            model.give_scales()

        class Seen(Method):
            def before_update(self, run: Run, tasks: list[str]) -> None:
                norms.append(torch.nn.utils.get_total_norm([p.grad for p in run.clipped if p.grad is not None]))

        fit(model, replace(PLAN, steps=4), Seen())
        assert all(p.grad is None for p in model.parameters())
    assert torch.allclose(torch.stack(norms[:4]), torch.stack(norms[4:]), rtol=1e-4)


@pytest.mark.parametrize("window", ["same", "mixed"])
def test_sgd_with_momentum_takes_in_tasks_as_they_come(window):
    """Against torch's own step, parameter by parameter."""
    order = ("toy0", "toy1", "toy1", "toy2", "toy0", "toy2")
    plan = Plan(steps=4, lr=0.1, optimizer="sgd", weight_decay=0.1, batch_size=16, evaluate_every=0)
    plan = plan.with_(sampling="fixed", order=order, accumulate=2, window=window)
    model, by_hand = no_dropout(toy_model(3)), no_dropout(toy_model(3))

    class Plain(Method):
        def start(self, run: Run) -> None:
            run.optimizer = torch.optim.SGD(run.optimizer.param_groups, momentum=0.9, weight_decay=0.1, fused=False)
            for group in run.optimizer.param_groups:
                group["fused"] = False

    fit(model, plan)
    fit(by_hand, plan, Plain())
    for name, value in by_hand.state_dict().items():
        assert torch.allclose(value, model.state_dict()[name], atol=1e-6), name
