"""Checkpoints: what is written comes back, the last and the best stay, and any of them can be gone on from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from headwise.errors import HeadwiseError
from headwise.measuring.evaluate import evaluate
from headwise.testing import toy_model
from headwise.training import checkpoint
from headwise.training.loop import fit
from headwise.training.methods.method import Method
from headwise.training.plan import Plan

PLAN = Plan(steps=24, lr=3e-3, batch_size=16, checkpoint_every=2, evaluate_every=4, weight_decay=0.01)


def steps(root: Path) -> list[int]:
    return [int(path.name.removeprefix("step-")) for path in checkpoint.list_all(root)]


def same(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values()))


class Rated(Method):
    """Training whose evaluations come out as written down."""

    def __init__(self, means: dict[int, float], crash: int | None = None):
        self.means, self.crash = means, crash

    def before_step(self, run):
        if run.step == self.crash:
            raise RuntimeError("crash")


@pytest.fixture
def rated(monkeypatch):
    """Makes evaluations during training give the scores a `Rated` method holds."""
    from headwise.training import loop as train

    real = train.Journal.scores

    def scores(self, entry):
        real(self, {**entry, "mean": self.run.method.means[entry["step"]]})

    monkeypatch.setattr(train.Journal, "scores", scores)


def test_what_is_written_comes_back(tmp_path):
    tensors = {
        "model": {"a": torch.randn(3, 2), "b": torch.randn(4).bfloat16(), "view": torch.randn(4, 4).T},
        "method": {"mask": torch.tensor([[True, False]])},
        "none": {},
    }
    path = checkpoint.save(tmp_path, 7, tensors, {"note": "text", "nested": {"x": [1, 2.5]}})
    back, state = checkpoint.load(path)
    assert state["step"] == 7 and state["note"] == "text" and state["nested"] == {"x": [1, 2.5]}
    for group, named in tensors.items():
        assert back[group].keys() == named.keys()
        assert all(torch.equal(back[group][name], value) for name, value in named.items())
    assert {file.suffix for file in path.iterdir()} == {".safetensors", ".json"}


def test_the_newest_two_and_the_best_stay(tmp_path):
    for step in range(1, 8):
        checkpoint.save(tmp_path, step, {}, {}, best=3 if step >= 3 else None)
    assert steps(tmp_path) == [3, 6, 7]
    assert checkpoint.best(tmp_path).name == "step-00000003"
    checkpoint.save(tmp_path, 8, {}, {}, best=8)
    assert steps(tmp_path) == [7, 8] and checkpoint.best(tmp_path).name == "step-00000008"


def test_going_back_forgets_what_came_after(tmp_path):
    for step in (2, 4, 6):
        checkpoint.save(tmp_path, step, {}, {})
    checkpoint.save(tmp_path, 5, {}, {})  # gone on from 4
    assert steps(tmp_path) == [4, 5]


def test_no_evaluations_no_best(tmp_path):
    assert checkpoint.best(tmp_path) is None
    checkpoint.save(tmp_path, 1, {}, {})
    assert checkpoint.best(tmp_path) is None


def test_broken_and_foreign_folders_are_named(tmp_path):
    first = checkpoint.save(tmp_path, 1, {"model": {"a": torch.ones(2)}}, {})
    second = checkpoint.save(tmp_path, 2, {"model": {"a": torch.ones(2)}}, {})
    (second / "model.safetensors").write_bytes(b"")
    with pytest.raises(HeadwiseError, match="step-00000002 is broken: model"):
        checkpoint.load(second)
    with pytest.warns(UserWarning, match="step-00000002"):
        assert checkpoint.newest(tmp_path)[1]["step"] == 1
    (first / "state.json").write_text('{"format": 99}')
    with pytest.raises(HeadwiseError, match="format 99"):
        checkpoint.load(first)


def test_optimizers_and_random_streams_come_back():
    parameters = [torch.nn.Parameter(torch.randn(3)), torch.nn.Parameter(torch.randn(2, 2))]
    one, other = (torch.optim.AdamW(parameters, fused=True) for _ in range(2))
    for _ in range(3):
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        one.step()
    checkpoint.unpack_optimizer(other, checkpoint.pack_optimizer(one))
    for parameter in parameters:
        assert all(torch.equal(value, other.state[parameter][name]) for name, value in one.state[parameter].items())
    kept = checkpoint.pack_random()
    drawn = torch.rand(5)
    checkpoint.unpack_random(kept)
    assert torch.equal(torch.rand(5), drawn)


def test_a_run_keeps_its_last_and_its_best(tmp_path, rated):
    means = {4: 0.1, 8: 0.9, 12: 0.5, 16: 0.9, 20: 0.2, 24: 0.3}
    model = toy_model()
    history = fit(model, PLAN, Rated(means), out=tmp_path)
    assert steps(tmp_path / "checkpoints") == [8, 22, 24]  # the first of equals is the best
    assert history.best()["step"] == 8
    best, _ = checkpoint.load(checkpoint.best(tmp_path / "checkpoints"))
    last, _ = checkpoint.load(tmp_path / "checkpoints/step-00000024")
    assert not torch.equal(best["model"]["heads.toy0.out.weight"], last["model"]["heads.toy0.out.weight"])
    assert all(torch.equal(last["model"][name], value) for name, value in model.state_dict().items())


def test_a_better_score_is_kept_when_no_checkpoint_was_due(tmp_path, rated):
    means = {4: 0.1, 8: 0.2, 12: 0.8, 16: 0.3, 20: 0.2, 24: 0.3}
    fit(toy_model(), PLAN.with_(checkpoint_every=5), Rated(means), out=tmp_path)
    assert steps(tmp_path / "checkpoints") == [12, 20, 24]
    fit(toy_model(), PLAN.with_(checkpoint_every=0), Rated(means), out=tmp_path / "never")
    assert steps(tmp_path / "never/checkpoints") == [24]


@pytest.mark.parametrize("place", [8, 22, 24])
def test_any_kept_checkpoint_can_be_gone_on_from(tmp_path, rated, place):
    means = {4: 0.1, 8: 0.9, 12: 0.5, 16: 0.9, 20: 0.2, 24: 0.3}
    whole = toy_model()
    undisturbed = fit(whole, PLAN, Rated(means), out=tmp_path)
    again = toy_model()
    history = fit(again, PLAN, Rated(means), out=tmp_path, resume=tmp_path / f"checkpoints/step-{place:08d}")
    assert same(whole, again)
    assert history.losses == undisturbed.losses and history.scores == undisturbed.scores
    assert steps(tmp_path / "checkpoints") == [8, 22, 24]


def test_a_named_checkpoint_of_another_run_or_none_is_refused(tmp_path):
    fit(toy_model(), PLAN.with_(steps=4), out=tmp_path)
    with pytest.raises(HeadwiseError, match="another run"):
        fit(toy_model(3), PLAN.with_(steps=4), resume=tmp_path / "checkpoints/step-00000004")
    with pytest.raises(HeadwiseError, match="no file"):
        fit(toy_model(), PLAN.with_(steps=4), resume=tmp_path / "checkpoints/step-00000099")


MEANS = {4: 0.1, 8: 0.9, 12: 0.5, 16: 0.6, 20: 0.95, 24: 0.3}


@pytest.mark.parametrize("out", [True, False])
def test_with_patience_the_model_ends_with_the_best_weights(tmp_path, rated, out):
    plan = PLAN.with_(patience=2)
    best, model = toy_model(), toy_model()
    with pytest.raises(RuntimeError, match="crash"):
        fit(best, plan, Rated(MEANS, crash=8))  # as it was after 8 steps
    history = fit(model, plan, Rated(MEANS), out=tmp_path if out else None)
    assert history.stopped.startswith("no better") and history.steps == 16
    assert same(model, best)


def test_without_patience_it_ends_with_the_last(rated):
    best, model = toy_model(), toy_model()
    with pytest.raises(RuntimeError, match="crash"):
        fit(best, PLAN, Rated(MEANS, crash=20))
    fit(model, PLAN, Rated(MEANS))
    assert not same(model, best)


@pytest.mark.parametrize("crash", [5, 9, 13])
def test_resume_keeps_the_best_weights_and_the_patience(tmp_path, rated, crash):
    plan = PLAN.with_(patience=2)
    whole, resumed = toy_model(), toy_model()
    undisturbed = fit(whole, plan, Rated(MEANS))
    with pytest.raises(RuntimeError, match="crash"):
        fit(toy_model(), plan, Rated(MEANS, crash), out=tmp_path)
    history = fit(resumed, plan, Rated(MEANS), out=tmp_path)
    assert same(whole, resumed) and history.steps == undisturbed.steps and history.stopped == undisturbed.stopped


def test_a_run_that_stopped_early_stays_stopped(tmp_path, rated):
    """Asking again trains no further and gives the same weights, also where checkpoints were never due."""
    for every in (2, 0):
        plan, out = PLAN.with_(patience=2, checkpoint_every=every), tmp_path / str(every)
        one, again = toy_model(), toy_model()
        fit(one, plan, Rated(MEANS), out=out)
        history = fit(again, plan, Rated(MEANS, crash=16), out=out)
        assert same(one, again) and history.steps == 16


def test_scores_that_are_no_numbers_are_never_the_best(rated):
    means = {4: float("nan"), 8: 0.2, 12: float("nan"), 16: 0.1, 20: 0.1, 24: 0.1}
    history = fit(toy_model(), PLAN, Rated(means))
    assert history.best()["step"] == 8


def test_the_best_is_by_the_mean_of_the_tasks(tmp_path):
    model = toy_model()
    history = fit(model, PLAN.with_(steps=40, patience=3), out=tmp_path)
    assert {name: evaluate(model, name).value for name in model.tasks} == history.best()["scores"]
    assert history.best()["mean"] == max(entry["mean"] for entry in history.scores)
