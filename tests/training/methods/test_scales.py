"""Factors per head and task: limits, whose they are, planted heads, save and resume."""

from __future__ import annotations

import pytest
import torch

from headwise.errors import HeadwiseError
from headwise.heads.gates import gated
from headwise.measuring.evaluate import evaluate
from headwise.models.batching import encode
from headwise.models.multitask import MultiTaskModel
from headwise.scoring.importance import importance
from headwise.testing import planted, toy_model, toy_tasks
from headwise.training.loop import fit
from headwise.training.methods.scales import Scales
from headwise.training.plan import Plan

PLAN = Plan(steps=12, lr=1e-3, batch_size=16, evaluate_every=0)


def test_a_rate_of_zero_is_plain_training():
    plain, still = toy_model(), toy_model()
    fit(plain, PLAN)
    fit(still, PLAN, Scales(lr=0.0))
    assert all(torch.equal(x, y) for x, y in zip(plain.parameters(), still.parameters()))
    assert all((scale == 1).all() for scale in still.scales.values())


def test_the_model_runs_under_its_tasks_factors_and_no_others():
    model = toy_model().eval()
    batch = encode(model.tasks["toy0"], "dev", model.tokenizer).batch(range(4))
    factors = torch.rand(2, 4) + 0.5
    with torch.no_grad(), gated(model.encoder, factors):
        expected = model("toy0", batch).scores
    model.give_scales()
    with torch.no_grad():
        before = model("toy1", batch).scores
        model.scales["toy0"].copy_(factors)
        assert torch.equal(model("toy0", batch).scores, expected)
        assert torch.equal(model("toy1", batch).scores, before)


def test_a_tasks_batch_moves_its_own_factors_only():
    model = toy_model()
    fit(model, PLAN.with_(steps=1), Scales(lr=0.1))
    moved = {name for name, scale in model.scales.items() if (scale != 1).any()}
    assert len(moved) == 1


def test_planted_heads_are_turned_up_by_the_task_that_lives_on_them():
    model, masks = planted()
    fit(model, Plan(steps=60, lr=0.0, head_lr=0.0, evaluate_every=0), Scales(lr=0.02))
    for task, mask in masks.items():
        scales = model.scales_of(task)
        assert scales[mask].mean() > scales[~mask].mean()


def test_importance_is_that_of_the_scaled_model():
    model = toy_model(rows=12).double().eval()
    model.give_scales()
    model.scales["toy0"].data = torch.rand(2, 4, dtype=torch.float64) + 0.5
    data = encode(model.tasks["toy0"], "train", model.tokenizer)
    each = []
    for item in range(len(data)):
        gates = torch.ones(2, 4, dtype=torch.float64, requires_grad=True)
        with gated(model.encoder, gates):
            model("toy0", data.batch([item])).loss.sum().backward()
        each.append(gates.grad.abs())
    torch.testing.assert_close(
        importance(model, "toy0", "gradient").scores, torch.stack(each).mean(0), check_dtype=False
    )


def test_factors_are_saved_with_the_model(tmp_path):
    model = toy_model()
    fit(model, PLAN, Scales(lr=0.05))
    back = MultiTaskModel.load(model.save_pretrained(tmp_path / "model"), toy_tasks())
    for name in model.tasks:
        assert torch.equal(model.scales_of(name), back.scales_of(name))
        assert evaluate(model, name).value == evaluate(back, name).value


def test_a_task_added_later_gets_factors_and_the_others_keep_theirs(tmp_path):
    """In between the model is saved and read with those it has."""
    model = toy_model()
    fit(model, PLAN, Scales(lr=0.05))
    model.add(toy_tasks(3)[2])
    back = MultiTaskModel.load(model.save_pretrained(tmp_path / "some"), model.tasks.values())
    assert list(back.scales) == ["toy0", "toy1"] and torch.equal(back.scales_of("toy1"), model.scales_of("toy1"))
    fit(model, PLAN.with_(lr=0.0, head_lr=0.0), Scales(lr=0.0))
    assert torch.equal(back.scales_of("toy1"), model.scales_of("toy1")) and (model.scales_of("toy2") == 1).all()
    fit(model, PLAN, Scales(lr=0.05))
    assert (model.scales_of("toy2") != 1).any()
    back = MultiTaskModel.load(model.save_pretrained(tmp_path / "all"), model.tasks.values())
    assert all(torch.equal(back.scales_of(task), model.scales_of(task)) for task in model.tasks)


def test_tied_heads_of_a_layer_have_one_factor_and_each_task_its_own():
    model = toy_model()
    fit(model, PLAN, Scales(lr=0.05, tied="heads"))
    one, other = (model.scales_of(task) for task in model.tasks)
    assert (one == one[:, :1]).all() and (other == other[:, :1]).all()
    assert (one != 1).any() and not torch.equal(one, other)


def test_tied_tasks_have_the_same_factors_and_each_head_its_own(tmp_path):
    model = toy_model()
    fit(model, PLAN, Scales(lr=0.05, tied="tasks"))
    one, other = (model.scales_of(task) for task in model.tasks)
    assert torch.equal(one, other) and (one[:, 1:] != one[:, :1]).all()
    back = MultiTaskModel.load(model.save_pretrained(tmp_path / "model"), toy_tasks())
    assert all(torch.equal(model.scales_of(name), back.scales_of(name)) for name in model.tasks)


@pytest.mark.parametrize("tied", ["heads", "tasks"])
def test_what_was_tied_is_learned_apart_later_also_without_saving(tied, tmp_path):
    model = toy_model()
    fit(model, PLAN, Scales(lr=0.05, tied=tied))
    back = MultiTaskModel.load(model.save_pretrained(tmp_path / "model"), toy_tasks())
    for one in (model, back):
        fit(one, PLAN, Scales(lr=0.05))
    assert all(torch.equal(x, y) for x, y in zip(model.parameters(), back.parameters(), strict=True))
    assert not torch.equal(*(model.scales_of(task) for task in model.tasks))


def test_of_one_task_tying_tasks_says_nothing():
    alone, tied = toy_model(1), toy_model(1)
    fit(alone, PLAN, Scales(lr=0.05))
    fit(tied, PLAN, Scales(lr=0.05, tied="tasks"))
    assert all(torch.equal(x, y) for x, y in zip(alone.parameters(), tied.parameters()))


@pytest.mark.parametrize("tied", ["heads", "tasks"])
def test_factors_that_were_learned_apart_are_not_tied(tied):
    model = toy_model()
    fit(model, PLAN, Scales(lr=0.05))
    before = [scales.clone() for scales in model.scales.values()]
    with pytest.raises(HeadwiseError, match=f"differ between {tied}"):
        fit(model, PLAN, Scales(tied=tied))
    assert all(torch.equal(x, y) for x, y in zip(before, model.scales.values()))


@pytest.mark.parametrize("tied", [None, "heads", "tasks"])
def test_resume_is_exact(tied, tmp_path):
    class Dies(Scales):
        def after_update(self, run, tasks):
            if run.step == 7:
                raise RuntimeError

    whole, resumed = toy_model(), toy_model()
    fit(whole, PLAN, Scales(lr=0.05, tied=tied))
    plan = PLAN.with_(checkpoint_every=3)
    with pytest.raises(RuntimeError):
        fit(toy_model(), plan, Dies(lr=0.05, tied=tied), out=tmp_path)
    fit(resumed, plan, Scales(lr=0.05, tied=tied), out=tmp_path)
    assert all(torch.equal(x, y) for x, y in zip(whole.parameters(), resumed.parameters()))


def test_what_makes_no_sense_is_refused():
    with pytest.raises(HeadwiseError, match="lr=-1"):
        Scales(lr=-1)
    with pytest.raises(HeadwiseError, match="tied='layers'"):
        Scales(tied="layers")
