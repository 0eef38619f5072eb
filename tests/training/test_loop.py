"""Laws of the training loop: exact resume, exact gradients, determinism, loud failures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from accelerate.state import PartialState
from twoprocesses import STILL, assert_agree

from headwise.errors import HeadwiseError
from headwise.models.multitask import MultiTaskModel
from headwise.tasks.kinds.classify import Classify
from headwise.tasks.task import Rows, Task
from headwise.testing import tiny, tiny_tokenizer, toy_model
from headwise.training import checkpoint
from headwise.training.loop import Run, _accelerator, fit
from headwise.training.methods.method import Method
from headwise.training.plan import Plan

PLAN = Plan(epochs=2, lr=3e-3, batch_size=16, checkpoint_every=4, evaluate_every=0, clip=1.0, weight_decay=0.01)


def weights(model) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_what_the_caller_froze_stays_as_it_is():
    model = toy_model()
    model.encoder.requires_grad_(False)
    model.encoder.encoder.layer[1].requires_grad_(True)
    before = weights(model.encoder)
    fit(model, PLAN.with_(steps=3))
    moved = {name for name, value in weights(model.encoder).items() if not torch.equal(value, before[name])}
    assert moved and all(name.startswith("encoder.layer.1.") for name in moved)
    assert not model.encoder.embeddings.word_embeddings.weight.requires_grad


def test_same_seed_same_bytes():
    a, b, c = toy_model(), toy_model(), toy_model()
    fit(a, PLAN)
    fit(b, PLAN)
    fit(c, PLAN.with_(seed=1))
    assert same(weights(a), weights(b))
    assert not same(weights(a), weights(c))


@pytest.mark.parametrize("read_before", [False, True])
def test_a_label_that_only_dev_has_is_refused_before_training(monkeypatch, read_before):
    train = [{"text": f"w{i}", "label": "ab"[i % 2]} for i in range(16)]
    task = Task("mine", Classify(), Rows(train=train, dev=[{"text": "w1", "label": "c"}]), "accuracy")
    monkeypatch.setattr("headwise.training.loop._step", lambda run: pytest.fail("training began"))
    if read_before:
        assert task.rows("dev")
    with pytest.raises(HeadwiseError, match=r"mine/dev row 0: unknown label 'c'; expected one of: a, b"):
        fit(MultiTaskModel(tiny("bert"), tiny_tokenizer([f"w{i}" for i in range(16)]), [task]), Plan(steps=4))


def test_two_processes_agree_with_one(tmp_path):
    assert_agree(
        tmp_path,
        "from headwise.testing import toy_model\nfrom headwise.training.loop import fit\n"
        "from headwise.training.plan import Plan\n"
        f"model = toy_model()\n{STILL}"
        "plan = Plan(steps=12, lr=1e-3, batch_size=16, checkpoint_every=5, evaluate_every=0)\n"
        "fit(model, plan, out=out, device='cpu')\nkept = dict(model.state_dict())\n",
    )


def test_a_frozen_encoder_stays():
    model = toy_model()
    before = weights(model.encoder)
    fit(model, PLAN.with_(train="heads"))
    assert same(before, weights(model.encoder))


def test_a_run_has_the_device_it_asks_for(monkeypatch):
    """accelerate would give every run of a process the device of the first."""
    monkeypatch.setitem(PartialState()._shared_state, "device", torch.device("meta"))
    assert Run(toy_model(), PLAN, Method(), None, device="cpu").device == torch.device("cpu")


class Broken(Method):
    """Fails where it is told to."""

    def __init__(self, where: str):
        setattr(self, where, self.fail)

    def fail(self, *_) -> None:
        raise HeadwiseError("broken")


def broken_off(model, plan, where: str):
    with pytest.raises(HeadwiseError, match="broken"):
        fit(model, plan, Broken(where))
    return model


@pytest.mark.parametrize("where", ["start", "before_step", "before_update"])
def test_a_run_that_breaks_off_leaves_nothing_behind(where):
    """Neither its precision, nor its gradients, nor what it held still."""
    model, fresh, plan = toy_model(), toy_model(), replace(PLAN, steps=3)
    broken_off(model, replace(plan, precision="bf16", train="heads"), where)
    assert all(p.requires_grad and p.grad is None for p in model.parameters()) and "forward" not in vars(model)
    before = weights(model)
    fit(model, plan)
    fresh.load_state_dict(before)
    fit(fresh, plan)
    assert same(weights(model), weights(fresh))


def test_every_run_of_a_model_has_its_own_precision():
    """accelerate marks a model it has prepared, and does nothing for it a second time: no precision, no device."""
    model, seen = toy_model(), []
    layer = next(m for m in model.encoder.modules() if isinstance(m, torch.nn.Linear))
    layer.register_forward_hook(lambda module, args, out: seen.append(out.dtype))
    for precision, kind in (("bf16", torch.bfloat16), ("bf16", torch.bfloat16), ("fp32", torch.float32)) * 2:
        seen.clear()
        fit(model, replace(PLAN, precision=precision, evaluate_every=0))
        assert set(seen) == {kind}


@pytest.mark.accelerator
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no accelerator here")
def test_runs_of_a_process_go_to_the_accelerator_or_not():
    model = toy_model()
    for device, kind in ((None, "cuda"), ("cpu", "cpu"), ("cuda:0", "cuda"), (None, "cuda")):
        fit(model, PLAN, device=device)
        assert model.device.type == kind


def test_of_several_accelerators_the_one_asked_for_becomes_the_current_one(monkeypatch):
    """accelerate trains on the current one, whatever a plan says."""
    taken = []
    monkeypatch.setattr("headwise.training.loop.default_device", lambda asked: torch.device(asked or "cuda"))
    monkeypatch.setattr("torch.accelerator.set_device_index", taken.append)
    for device in ("cuda:1", "cuda:0", "cuda", "cpu"):
        _accelerator(PLAN, None, device, ())
    assert taken == [1, 0]


def test_early_stopping():
    history = fit(toy_model(), Plan(epochs=40, lr=0.0, batch_size=16, evaluate_every=2, patience=3))
    assert history.stopped.startswith("no better") and history.steps == 8


def test_full_disk_is_told_and_the_earlier_checkpoint_stays(tmp_path, monkeypatch):
    calls = []
    real = checkpoint.save_file

    def full(*args, **kwargs):
        calls.append(1)
        if len(calls) > 4:  # the second checkpoint
            raise OSError(28, "No space left on device")
        return real(*args, **kwargs)

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(OSError, match="No space left"):
        fit(toy_model(), PLAN, out=tmp_path)
    monkeypatch.undo()
    assert [p.name for p in Path(tmp_path / "checkpoints").iterdir()] == ["step-00000004"]
    assert checkpoint.load(tmp_path / "checkpoints/step-00000004")[1]["step"] == 4
