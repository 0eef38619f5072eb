"""Conflicting gradients: one row per task, put together by an aggregator; the mean is plain training."""

from __future__ import annotations

import importlib.util
import sys

import pytest
import torch
from twoprocesses import STILL, assert_agree

from headwise.errors import HeadwiseError
from headwise.heads.gates import Heads
from headwise.testing import no_dropout, toy_model
from headwise.training.loop import Run, fit
from headwise.training.methods.conflict import Conflict, aggregator, blocks_of
from headwise.training.plan import Plan

PLAN = Plan(
    steps=8, accumulate=2, window="mixed", sampling="round_robin", batch_size=16, lr=3e-3, clip=1.0, evaluate_every=0
)
torchjd = pytest.mark.skipif(importlib.util.find_spec("torchjd") is None, reason="torchjd is not installed")


def mean(matrix: torch.Tensor) -> torch.Tensor:
    return matrix.mean(0)


@pytest.mark.parametrize("plan", [PLAN, PLAN.with_(accumulate=5, sampling="uniform"), PLAN.with_(weight_decay=0.1)])
def test_the_mean_of_the_rows_is_plain_training(plan):
    """Also where a step holds several batches of one task, or of one alone; what no task reaches does not decay."""
    plain, mixed = toy_model(3), toy_model(3)
    a = fit(plain, plan)
    b = fit(mixed, plan, Conflict(mean))
    for name, value in plain.state_dict().items():
        if "key.bias" not in name:  # its true gradient is 0, and Adam blows up the rounding noise
            assert torch.allclose(value, mixed.state_dict()[name], atol=2e-5), name
    assert a.losses.keys() == b.losses.keys()


def test_rows_are_the_tasks_own_gradients():
    """Against gradients taken by hand; output heads keep theirs."""
    seen = []

    def look(matrix: torch.Tensor) -> torch.Tensor:
        seen.append(matrix.clone())
        return matrix.mean(0)

    model, by_hand = no_dropout(toy_model()), no_dropout(toy_model())
    run = Run(by_hand, PLAN, Conflict(mean), None)
    wanted = []
    for task in ("toy0", "toy1"):
        by_hand.zero_grad()
        by_hand(task, run.data[task].batch(run.streams[task].next())).loss.mean().backward()
        grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in by_hand.encoder.parameters()]
        wanted.append(torch.cat([g.flatten() for g in grads]))
    fit(model, PLAN.with_(steps=1), Conflict(look))
    assert torch.allclose(seen[0], torch.stack(wanted), atol=1e-6)


def test_heads_are_combined_by_themselves():
    """Every entry of the gradient is in one block, a head's rows in their own; the mean of blocks is the mean."""
    model = toy_model()
    parameters = [p for p in model.encoder.parameters()]
    blocks = blocks_of(model.encoder, parameters)
    heads = Heads.of(model.encoder)
    places = torch.cat(blocks)
    assert len(blocks) == heads.alive.sum() + 1
    assert len(places) == len(places.unique()) == sum(p.numel() for p in parameters)
    sizes = {len(block) for block in blocks[:-1]}
    width = model.width
    assert sizes == {4 * width * heads.head_dim + 3 * heads.head_dim}
    whole, apart = (no_dropout(toy_model()) for _ in range(2))
    fit(whole, PLAN.with_(steps=3), Conflict(mean))
    fit(apart, PLAN.with_(steps=3), Conflict(mean, per="heads"))
    assert all(torch.allclose(x, y, atol=1e-6) for x, y in zip(whole.parameters(), apart.parameters()))


@torchjd
@pytest.mark.parametrize("name", ["PCGrad", "IMTLG"])
def test_aggregators_by_name_train(name):
    model = toy_model()
    history = fit(model, PLAN.with_(steps=60), Conflict(name))
    losses = [value for points in history.losses.values() for _, value in points]
    assert sum(losses[-8:]) < sum(losses[:8])


@torchjd
def test_a_projected_gradient_harms_no_task():
    """Two gradients that pull apart: their mean climbs one task's loss, the projection climbs none."""
    pytest.importorskip("quadprog")
    rows = torch.tensor([[1.0, 0.0, 1.0], [-4.0, 1.0, 0.0]])
    assert (rows @ rows.mean(0) < 0).any()
    assert (rows @ aggregator("UPGrad")(rows) >= -1e-4).all()


@torchjd
def test_resume_is_exact(tmp_path):
    class Crash(Conflict):
        def before_update(self, run, tasks):
            if run.step == 5:
                raise RuntimeError("crash")
            super().before_update(run, tasks)

    plan = PLAN.with_(checkpoint_every=2)
    whole, resumed = toy_model(), toy_model()
    fit(whole, plan, Conflict("PCGrad"))
    with pytest.raises(RuntimeError, match="crash"):
        fit(toy_model(), plan, Crash("PCGrad"), out=tmp_path)
    fit(resumed, plan, Conflict("PCGrad"), out=tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(whole.state_dict().values(), resumed.state_dict().values()))


class Remembering:
    """The mean of all matrices since it was made or reset."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.seen = []

    def __call__(self, matrix: torch.Tensor) -> torch.Tensor:
        self.seen.append(matrix.mean(0))
        return torch.stack(self.seen).mean(0)


def test_an_aggregator_starts_afresh_with_every_run():
    used, again, fresh = Conflict(Remembering()), toy_model(), toy_model()
    fit(toy_model(seed=4), PLAN, used)
    fit(again, PLAN, used)
    fit(fresh, PLAN, Conflict(Remembering()))
    assert all(torch.equal(a, b) for a, b in zip(fresh.state_dict().values(), again.state_dict().values()))


@pytest.mark.slow
def test_two_processes_agree_with_one(tmp_path):
    assert_agree(
        tmp_path,
        "from headwise.testing import toy_model\nfrom headwise.training.loop import fit\n"
        "from headwise.training.plan import Plan\n"
        f"from headwise.training.methods.conflict import Conflict\nmodel = toy_model()\n{STILL}"
        "plan = Plan(steps=6, accumulate=2, window='mixed', sampling='round_robin', batch_size=16, evaluate_every=0)\n"
        "fit(model, plan, Conflict(lambda rows: rows[0] + 2 * rows[1]), out=out, device='cpu')\n"
        "kept = dict(model.state_dict())\n",
    )


def test_what_cannot_be_done_is_refused():
    with pytest.raises(HeadwiseError, match=r"one task per step.*window=\"mixed\""):
        fit(toy_model(), PLAN.with_(window="same"), Conflict(mean))
    with pytest.raises(HeadwiseError, match="frozen encoder"):
        fit(toy_model(), PLAN.with_(train="heads"), Conflict(mean))


@torchjd
def test_unknown_aggregators_are_named():
    with pytest.raises(HeadwiseError, match="PCGrad"):
        Conflict("pcgrad")


def test_a_missing_package_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchjd", None)
    with pytest.raises(HeadwiseError, match=r"\.\[conflict\]"):
        Conflict("UPGrad")
