"""The released code's departures from the paper: each does what it says, and none of them is the paper's method."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from headwise.heads.modules import evaluating
from headwise.models.batching import Order
from headwise.models.multitask import MultiTaskModel
from headwise.papers.specialization.released import Redrawn, ReleasedIAT, ReleasedSettings
from headwise.tasks.kinds.classify import Regress
from headwise.tasks.task import Rows
from headwise.testing import no_dropout, toy_model
from headwise.training.loop import fit
from headwise.training.methods import methods
from headwise.training.methods.iat import IAT
from headwise.training.methods.method import Method
from headwise.training.plan import Plan

PLAN = Plan(steps=10, lr=1e-3, batch_size=16, evaluate_every=0)
PAPER = {"leak": False, "dropout": True, "freeze": "update", "by": "gradient"}


class Watched(ReleasedIAT):
    """Keeps the gradients of every step and the model's mode in it."""

    def start(self, run):
        super().start(run)
        self.grads, self.modes = [], []

    def before_update(self, run, tasks):
        super().before_update(run, tasks)
        self.grads.append({n: p.grad.clone() for n, p in run.model.named_parameters() if p.grad is not None})
        self.modes.append(run.wrapped.training)


def watched(plan=PLAN, model=None, kind=Watched, **switches) -> Watched:
    method = kind(0.5, 0.3, examples=64, **switches)
    fit(model or toy_model(rows=48), plan, method)
    return method


def test_with_every_switch_on_the_paper_it_is_the_paper_s_method():
    a, b = toy_model(rows=48), toy_model(rows=48)
    fit(a, PLAN, IAT(0.5, 0.3, examples=64))
    fit(b, PLAN, ReleasedIAT(0.5, 0.3, examples=64, **PAPER))
    assert all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values()))
    assert methods["iat_released"] is ReleasedIAT


@pytest.mark.parametrize(
    "switch",
    [{"leak": True}, {"dropout": False}, {"freeze": "grad"}, {"by": "token", "last_layer": "none"}],
    ids=lambda switch: next(iter(switch)),
)
def test_every_switch_changes_the_training(switch):
    a, b = toy_model(rows=48), toy_model(rows=48)
    fit(a, PLAN, ReleasedIAT(0.5, 0.3, examples=64, **PAPER))
    fit(b, PLAN, ReleasedIAT(0.5, 0.3, examples=64, **{**PAPER, **switch}))
    assert any(not torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values()))


def test_with_all_heads_free_it_is_plain_training_whose_dropout_may_end():
    """The control of the recipe's table: what dropout alone does, where no head is held."""
    plain, on, off = (toy_model(rows=48) for _ in range(3))
    alone = {**PAPER, "freeze": "grad"}
    fit(plain, PLAN, Method())
    fit(on, PLAN, ReleasedIAT(1.0, 0.3, examples=64, **alone))
    fit(off, PLAN, ReleasedIAT(1.0, 0.3, examples=64, **{**alone, "dropout": False}))
    assert all(torch.equal(x, y) for x, y in zip(plain.state_dict().values(), on.state_dict().values()))
    assert any(not torch.equal(x, y) for x, y in zip(plain.state_dict().values(), off.state_dict().values()))
    modes = watched(**{**alone, "dropout": False}).modes
    assert modes == [True] * 7 + [False] * 3


def test_what_leaks_is_the_sum_over_all_batches_of_all_tasks():
    clean, leaky = (watched(**{**PAPER, "freeze": "grad", "leak": leak}) for leak in (False, True))
    plan = PLAN.with_(steps=7)  # the state in which heads are chosen
    model = toy_model(rows=48)
    fit(model, PLAN.with_(steps=10), Stop(7))
    model.zero_grad()
    with evaluating(model):
        from headwise.models.batching import encode

        for name, task in model.tasks.items():
            data = encode(task, "train", model.tokenizer, model.max_length)
            for items in Order(data.lengths, plan.batch_size).plain():
                model(name, data.batch(items)).loss.mean().backward()
    left = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    for name, grad in leaky.grads[7].items():
        if "attention.self" in name:
            assert set(grad.view(8, -1).abs().sum(1).gt(0).tolist()) == {True, False}, "masked as the batch is"
        elif name in clean.grads[7]:
            assert torch.allclose(grad, clean.grads[7][name] + left[name], atol=1e-5), name
    for name, grad in leaky.grads[6].items():
        assert torch.equal(grad, clean.grads[6][name]), "before, nothing differs"


@pytest.mark.parametrize("where", ["batch", "leak"])
def test_what_leaks_is_there_when_memory_makes_the_step_begin_again(monkeypatch, where):
    runs = []

    class Small(Watched):
        def before_batch(self, run, task):
            super().before_batch(run, task)
            runs.append(run)
            if where == "batch" and run.step == 7 and run.parts == 1:
                raise torch.OutOfMemoryError

    def smaller(model, task, batch, forward=MultiTaskModel.forward):
        if where == "leak" and runs and runs[-1].step == 7 and len(batch["label"]) > 8:
            raise torch.OutOfMemoryError
        return forward(model, task, batch)

    plan = PLAN.with_(accumulate=2, window="mixed", sampling="round_robin")
    whole = watched(plan, no_dropout(toy_model(rows=48)))
    monkeypatch.setattr(MultiTaskModel, "forward", smaller)
    parted = watched(plan, no_dropout(toy_model(rows=48)), Small)
    for name, grad in whole.grads[7].items():
        assert torch.allclose(grad, parted.grads[7][name], atol=1e-4), name


class Stop(ReleasedIAT):
    """Plain training that leaves the weights of a step behind."""

    def __init__(self, at):
        super().__init__(0.5, 0.0)
        self.at = at

    def before_step(self, run):
        if run.step == self.at:
            self.kept = {n: v.clone() for n, v in run.model.state_dict().items()}

    def finish(self, run):
        run.model.load_state_dict(self.kept)


def test_dropout_is_off_until_the_epoch_ends():
    steps_of_an_epoch = 6  # two tasks of 48 rows in batches of 16
    found = watched(PLAN.with_(steps=14), leak=False)  # heads are chosen at step 10, an epoch ends at 12
    assert found.modes == [True] * 10 + [False, False] + [True] * 2
    assert found.first == 10 and steps_of_an_epoch * 2 == 12
    assert all(watched(PLAN.with_(steps=14), leak=False, dropout=True).modes)


def test_undivided_the_whole_last_layer_is_chosen_for_every_task():
    found = watched(leak=False)
    assert all(mask[1].all() and not mask[0].any() for mask in found.masks.values())
    divided = watched(leak=False, last_layer="tokens")
    assert not all(mask[1].all() for mask in divided.masks.values())
    assert found.describe()["options"] == {"last_layer": "none"} and found.describe()["leak"] is False


def test_without_a_switch_released_settings_are_plain_training_or_the_paper_s_method():
    for ours, theirs in (
        (ReleasedSettings(), Method()),
        (ReleasedSettings(0.5, 0.3, examples=64), IAT(0.5, 0.3, examples=64)),
    ):
        a, b = toy_model(rows=48), toy_model(rows=48)
        fit(a, PLAN, ours)
        fit(b, PLAN, theirs)
        assert all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values()))


def test_redrawn_batches_come_from_all_rows_and_any_place_can_be_gone_back_to():
    class Data:
        def __len__(self):
            return 40

    stream = Redrawn(Data(), Order(np.arange(40), 8), [3])
    first = [stream.next() for _ in range(10)]
    assert all(len(set(items.tolist())) == 8 for items in first)
    assert len({item for items in first[:5] for item in items.tolist()}) < 40, "an epoch does not cover the rows"
    again = Redrawn(Data(), Order(np.arange(40), 8), [3])
    again.load_state({"epoch": 1, "position": 2})
    assert (again.next() == first[7]).all()


def test_grades_on_their_own_scale_weigh_as_much_as_the_scale_squared():
    model = toy_model(rows=48)
    task = next(iter(model.tasks.values()))
    graded = replace(task, name="graded", kind=Regress(), source=Rows(train=[{"text": "a", "label": 5.0}] * 8))
    model.add(graded)
    run = SimpleNamespace(model=model, wrapped=lambda name, batch: SimpleNamespace(loss=torch.ones(2)))
    for grades, expected in ((True, 25.0), (False, 1.0)):
        method = ReleasedSettings(grades=grades)
        assert method.loss(run, "graded", {})[0] == expected and method.loss(run, task.name, {})[0] == 1.0
