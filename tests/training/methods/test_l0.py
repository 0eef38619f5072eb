"""Learned gates: the closed form is the draw's, planted heads stay and no others, and cutting changes no output."""

from __future__ import annotations

import copy

import pytest
import torch

from headwise.errors import HeadwiseError
from headwise.heads.cutting import prune
from headwise.heads.gates import Heads, gated
from headwise.measuring.evaluate import evaluate
from headwise.scoring.gating import HardConcrete
from headwise.scoring.importance import importance
from headwise.testing import planted, toy_model
from headwise.training.loop import fit
from headwise.training.methods import methods
from headwise.training.methods.l0 import L0
from headwise.training.plan import Plan

BASE = Plan(steps=20, lr=3e-3, batch_size=16, evaluate_every=0)
STATIC = Plan(steps=150, lr=1e-3, batch_size=32, evaluate_every=0, train="heads")


@pytest.fixture(scope="module")
def plant():
    return planted(seed=0, steps=150)


def same(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values()))


class Unfolded(L0):
    """Keeps the model as it was before its gates were folded in."""

    def finish(self, run):
        self.before = copy.deepcopy(run.model)
        super().finish(run)


# -- the gate itself


def _batch(model, task: str = "toy0", items: int = 6) -> dict[str, torch.Tensor]:
    from headwise.models.batching import encode

    return encode(model.tasks[task], "train", model.tokenizer, model.max_length).batch(range(items))


# -- training


def test_each_task_keeps_exactly_its_planted_head(plant):
    model, masks = copy.deepcopy(plant[0]), plant[1]
    method = L0(weight=0.3, lr=0.1, shared=False)
    fit(model, STATIC, method)
    for task, gates in zip(model.tasks, method.gates.settled()):
        assert torch.equal(gates > 0, masks[task]), gates


def test_a_shared_set_keeps_both_and_a_target_is_met(plant):
    model, masks = copy.deepcopy(plant[0]), plant[1]
    method = L0(weight=0.0, lr=0.1, target=0.75, warmup=0.5)
    history = fit(model, STATIC.with_(steps=300, evaluate_every=300), method)
    assert torch.equal(method.gates.settled()[0] > 0, masks["toy0"] | masks["toy1"])
    assert float(method.gates.open_share()) == pytest.approx(0.25, abs=0.03)
    assert min(history.scores[-1]["scores"].values()) > 0.95


def test_without_a_penalty_all_stay_open(plant):
    model = copy.deepcopy(plant[0])
    method = L0(weight=0.0, lr=0.05)
    fit(model, STATIC.with_(steps=80), method)
    assert (method.gates.settled() > 0.5).all()


def test_a_static_encoder_rests_but_for_the_folded_gates(plant):
    model = copy.deepcopy(plant[0])
    method = L0(weight=0.3, lr=0.1)
    fit(model, STATIC.with_(steps=10), method)
    for (name, before), after in zip(plant[0].encoder.named_parameters(), model.encoder.parameters()):
        assert torch.equal(before, after) == (not name.endswith("attention.output.dense.weight")), name


def test_evaluations_while_training_are_those_of_the_folded_model():
    model = toy_model(2)
    history = fit(model, BASE.with_(steps=30, evaluate_every=30), L0(weight=0.2, lr=0.2, init="xavier"))
    assert history.scores[-1]["scores"] == {task: evaluate(model, task).value for task in model.tasks}


def test_patience_ends_with_the_gates_of_the_best_evaluation():
    model = toy_model(2)
    method = L0(weight=3.0, lr=0.3, penalty="sum")  # closes every head: the scores must fall
    history = fit(model, BASE.with_(steps=60, lr=1e-2, evaluate_every=10, patience=3), method)
    best = history.best()
    assert best["step"] < history.steps
    assert best["scores"] == {task: evaluate(model, task).value for task in model.tasks}


def test_the_penalty_falls_on_the_sets_of_a_steps_batches():
    """Half a step's batches, half the penalty; the gates' learning rate keeps out of the schedule."""
    seen = []

    class Watched(L0):
        def before_update(self, run, tasks):
            before = self.gates.log_a.grad.clone()
            super().before_update(run, tasks)
            chances = self.gates.chances().detach()
            shares = torch.tensor([tasks.count(task) / len(tasks) for task in self.gates.tasks])
            slope = 0.5 * shares[:, None, None] * chances * (1 - chances) / 2
            assert torch.allclose(self.gates.log_a.grad - before, slope, atol=1e-6)
            rates = {id(group["params"][0]): group["lr"] for group in run.optimizer.param_groups}
            seen.append((shares.tolist(), rates.pop(id(self.gates.log_a)), *rates.values()))

    plan = BASE.with_(accumulate=2, window="mixed", weight_decay=0.1)
    fit(toy_model(2), plan, Watched(weight=0.5, lr=0.01, shared=False))
    assert {tuple(shares) for shares, *_ in seen} >= {(0.5, 0.5)}
    assert {rate for _, rate, *_ in seen} == {0.01} and len({others for *_, others in seen}) > 5


def test_warmup_climbs():
    method = L0(warmup=0.5)
    run = type("Run", (), {"total": 20, "step": 0})()
    ramps = []
    for run.step in range(20):
        ramps.append(method._ramp(run))
    assert ramps[:11] == pytest.approx([(i + 1) / 10 for i in range(10)] + [1.0]) and set(ramps[10:]) == {1.0}


@pytest.mark.parametrize("settings", [{}, {"shared": False, "target": 0.5, "warmup": 0.3}], ids=["shared", "target"])
def test_resume_is_exact(tmp_path, settings):
    plan = BASE.with_(checkpoint_every=4, evaluate_every=4, patience=9)
    settings = {**settings, "lr": 0.1, "init": "xavier", "snapshots": 5}
    whole, one = toy_model(), L0(**settings)
    fit(whole, plan, one)

    class Crash(L0):
        def before_batch(self, run, task):
            if run.step == 14:
                raise RuntimeError("crash")

    with pytest.raises(RuntimeError, match="crash"):
        fit(toy_model(), plan, Crash(**settings), out=tmp_path)
    resumed, other = toy_model(), L0(**settings)
    fit(resumed, plan, other, out=tmp_path)
    assert same(whole, resumed) and same(one.gates, other.gates)
    assert torch.equal(one.price.multiplier, other.price.multiplier)
    assert list(one.snapshots) == list(other.snapshots) == [0, 5, 10, 15, 20]
    assert all(torch.equal(a, b) for a, b in zip(one.snapshots.values(), other.snapshots.values()))


# -- afterwards


@pytest.mark.parametrize("shared", [True, False])
def test_from_gates_to_a_smaller_model(shared):
    model = toy_model(2)
    method = Unfolded(weight=0.4, lr=0.25, init="xavier", shared=shared)
    fit(model, BASE.with_(steps=9), method)
    gates = method.gates.settled()[-1]
    assert (gates == 0).any() and ((gates > 0) & (gates < 1)).any(), gates
    batch, before = _batch(model, "toy1"), method.before.eval()
    model.eval()
    with torch.no_grad():
        with gated(before.encoder, gates):
            expected = before("toy1", batch).scores
        if shared:
            assert torch.allclose(model("toy1", batch).scores, expected, atol=1e-5)
        method.cut(model, "toy1")
        assert torch.allclose(model("toy1", batch).scores, expected, atol=1e-5)
    assert torch.equal(Heads.of(model.encoder).alive, gates > 0)


def test_a_cut_model_learns_gates_for_what_is_left(plant):
    model = copy.deepcopy(plant[0])
    gone = torch.zeros(2, 4, dtype=torch.bool)
    gone[0, 0] = gone[1, 3] = True
    prune(model.encoder, gone)
    method = L0(weight=0.0, target=4 / 6, lr=0.1, warmup=0.5)
    fit(model, STATIC, method)
    assert (method.gates.settled()[0][gone] == 0).all()
    assert float(method.gates.open_share()) == pytest.approx(2 / 6, abs=0.06), "a share of the six heads left"
    assert importance(model, "toy0", "l0", steps=5).scores.isnan().equal(gone)


# -- what is refused


def test_bad_use():
    for bad in ({"weight": -1}, {"penalty": "max"}, {"target": 1.5}, {"warmup": 2}, {"lr": float("nan")}):
        with pytest.raises(HeadwiseError):
            L0(**bad)
    with pytest.raises(HeadwiseError, match="open"):
        fit(toy_model(), BASE, L0(init="closed"))
    with pytest.raises(HeadwiseError, match="shared=False"):
        fit(toy_model(family="albert"), BASE, L0())
    model = toy_model()
    gates = HardConcrete(Heads.of(model.encoder), ("toy0",))
    with pytest.raises(HeadwiseError, match="toy0"), gates.on(model):
        model("toy1", _batch(model))
    with pytest.raises(HeadwiseError, match="called directly"), gates.on(model):
        model.hidden(_batch(model))


def test_shared_weights_take_gates_beside_the_model():
    model, method = toy_model(family="albert"), L0(weight=0.4, lr=0.3, shared=False)
    fit(model, BASE, method)
    assert methods["l0"] is L0 and (method.gates.settled() < 1).all()


def test_the_estimator_leaves_no_trace(plant):
    model, state = plant[0], torch.get_rng_state()
    found = importance(model, "toy1", "l0", steps=8)
    assert torch.equal(state, torch.get_rng_state())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert torch.equal(found.scores, importance(model, "toy1", "l0", steps=8).scores)
    halves = torch.from_numpy(found.blocks.sums).float()
    assert torch.allclose(halves.mean(0), found.scores) and (found.stderr >= 0).all()
