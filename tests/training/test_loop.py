"""Laws of the training loop: exact resume, exact gradients, determinism, loud failures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from accelerate.state import PartialState
from twoprocesses import STILL, assert_agree

from headwise.errors import HeadwiseError
from headwise.heads.cutting import fold, prune
from headwise.heads.gates import Heads
from headwise.io.stopping import Terminated
from headwise.models.multitask import MultiTaskModel
from headwise.papers.mesh.meta import Meta
from headwise.tasks.kinds.classify import Classify
from headwise.tasks.task import Rows, Task
from headwise.testing import layers_run_again, no_dropout, tiny, tiny_tokenizer, toy_model, toy_tasks
from headwise.training import checkpoint
from headwise.training.loop import Run, _accelerator, fit
from headwise.training.methods.distill import Distill
from headwise.training.methods.iat import IAT
from headwise.training.methods.l0 import L0
from headwise.training.methods.method import Method
from headwise.training.methods.prune_least import PruneLeast
from headwise.training.methods.scales import Scales
from headwise.training.plan import Plan

PLAN = Plan(epochs=2, lr=3e-3, batch_size=16, checkpoint_every=4, evaluate_every=0, clip=1.0, weight_decay=0.01)


def weights(model) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


class StopAt(Method):
    """Ends the process' part of training at a step, as a crash would."""

    def __init__(self, step: int):
        self.step = step

    def before_step(self, run: Run) -> None:
        if run.step == self.step:
            raise RuntimeError("crash")


def test_what_the_caller_froze_stays_as_it_is():
    model = toy_model()
    model.encoder.requires_grad_(False)
    model.encoder.encoder.layer[1].requires_grad_(True)
    before = weights(model.encoder)
    fit(model, PLAN.with_(steps=3))
    moved = {name for name, value in weights(model.encoder).items() if not torch.equal(value, before[name])}
    assert moved and all(name.startswith("encoder.layer.1.") for name in moved)
    assert not model.encoder.embeddings.word_embeddings.weight.requires_grad


def test_a_second_training_of_one_model_is_not_taken_for_its_first(tmp_path):
    """The same object trained twice, into two folders: the second began from what the first left."""
    model = toy_model()
    fit(model, PLAN.with_(steps=3), out=tmp_path / "first")
    fit(model, PLAN.with_(steps=3), out=tmp_path / "second")
    after = weights(model)
    fit(model, PLAN.with_(steps=3), out=tmp_path / "second")
    assert same(weights(model), after), "its own is read back"
    with pytest.raises(HeadwiseError, match="other weights at the start"):
        fit(toy_model(), PLAN.with_(steps=3), out=tmp_path / "second")
    other_words(model)
    with pytest.raises(HeadwiseError, match="other weights at the start"):
        fit(model, PLAN.with_(steps=3), out=tmp_path / "second")


def test_training_anew_into_a_folder_begins_from_the_weights_there_are(tmp_path):
    model = toy_model()
    fit(model, PLAN.with_(steps=3), out=tmp_path)
    fit(model, PLAN.with_(steps=3), out=tmp_path, resume=False)
    with pytest.raises(HeadwiseError, match="other weights at the start"):
        fit(toy_model(), PLAN.with_(steps=3), out=tmp_path)


def test_same_seed_same_bytes():
    a, b, c = toy_model(), toy_model(), toy_model()
    fit(a, PLAN)
    fit(b, PLAN)
    fit(c, PLAN.with_(seed=1))
    assert same(weights(a), weights(b))
    assert not same(weights(a), weights(c))


@pytest.mark.parametrize(
    "plan", [PLAN, PLAN.with_(accumulate=2, window="mixed", balance="moving_average", sampling="annealed")]
)
@pytest.mark.parametrize("crash", [3, 9])
def test_resume_after_a_crash_is_exact(tmp_path, plan, crash):
    whole = toy_model()
    undisturbed = fit(whole, plan)
    with pytest.raises(RuntimeError, match="crash"):
        fit(toy_model(), plan, StopAt(crash), out=tmp_path)
    resumed = toy_model()
    history = fit(resumed, plan, Method(), out=tmp_path)
    assert same(weights(whole), weights(resumed))
    if crash > 4:
        assert checkpoint.list_all(tmp_path / "checkpoints")
    assert history.losses == undisturbed.losses


def test_an_encoder_whose_files_lack_weights_is_resumed_exactly(tmp_path):
    tiny("bert", auto="AutoModelForMaskedLM").save_pretrained(tmp_path / "encoder")  # without a pooler
    tiny_tokenizer().save_pretrained(tmp_path / "encoder")
    whole, broken, resumed = (MultiTaskModel.from_pretrained(tmp_path / "encoder", toy_tasks()) for _ in range(3))
    assert "encoder.pooler.dense.weight" in whole.state_dict() and same(weights(whole), weights(resumed))
    fit(whole, PLAN)
    with pytest.raises(RuntimeError, match="crash"):
        fit(broken, PLAN, StopAt(9), out=tmp_path / "run")
    fit(resumed, PLAN, Method(), out=tmp_path / "run")
    assert same(weights(whole), weights(resumed))


def test_a_model_that_has_lost_heads_is_trained_on_and_resumed_exactly(tmp_path):
    gone = torch.tensor([[True, False, True, False], [True, True, True, True]])
    folder = prune_saved(toy_model(), gone, tmp_path / "cut")
    whole, resumed = MultiTaskModel.load(folder, toy_tasks()), MultiTaskModel.load(folder, toy_tasks())
    fit(whole, PLAN)
    with pytest.raises(RuntimeError, match="crash"):
        fit(MultiTaskModel.load(folder, toy_tasks()), PLAN, StopAt(9), out=tmp_path / "run")
    fit(resumed, PLAN, Method(), out=tmp_path / "run")
    assert same(weights(whole), weights(resumed))
    back = MultiTaskModel.load(resumed.save_pretrained(tmp_path / "end"), toy_tasks())
    assert same(weights(back), weights(whole)) and torch.equal(Heads.of(back.encoder).alive, ~gone)
    with pytest.raises(HeadwiseError, match="another run"):  # other heads of the same number
        fit(MultiTaskModel.load(prune_saved(toy_model(), gone.flip(1), tmp_path / "other"), toy_tasks()), PLAN,
            out=tmp_path / "run")  # fmt: skip


def prune_saved(model: MultiTaskModel, gone: torch.Tensor, folder: Path) -> Path:
    prune(model.encoder, gone)
    return model.save_pretrained(folder)


@pytest.mark.soak  # tests/faults/test_kills.py does the same quickly
def test_kill_nine_then_resume_is_exact(tmp_path):
    """A process killed at a random moment, again and again, ends with the weights of an undisturbed one."""
    script = (
        "import sys, torch; from headwise.testing import toy_model; from headwise.training.loop import fit;"
        "from headwise.training.plan import Plan; from safetensors.torch import save_file; torch.set_num_threads(1);"
        "model = toy_model(rows=960);"
        "fit(model, Plan(epochs=3, lr=3e-3, batch_size=16, checkpoint_every=3, evaluate_every=0), out=sys.argv[1]);"
        "save_file(dict(model.state_dict()), sys.argv[1] + '/final.safetensors')"
    )
    rng = np.random.default_rng(0)
    kills = 0
    for _ in range(6):
        process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "a")])
        try:
            process.wait(timeout=float(rng.uniform(3.5, 5.0)))
            break
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "a")], check=True)
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "b")], check=True)
    assert (tmp_path / "a/final.safetensors").read_bytes() == (tmp_path / "b/final.safetensors").read_bytes()
    lines = [json.loads(line) for line in (tmp_path / "a/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == sorted(line["step"] for line in lines)


@pytest.mark.parametrize("read_before", [False, True])
def test_a_label_that_only_dev_has_is_refused_before_training(monkeypatch, read_before):
    train = [{"text": f"w{i}", "label": "ab"[i % 2]} for i in range(16)]
    task = Task("mine", Classify(), Rows(train=train, dev=[{"text": "w1", "label": "c"}]), "accuracy")
    monkeypatch.setattr("headwise.training.loop._step", lambda run: pytest.fail("training began"))
    if read_before:
        assert task.rows("dev")
    with pytest.raises(HeadwiseError, match=r"mine/dev row 0: unknown label 'c'; expected one of: a, b"):
        fit(MultiTaskModel(tiny("bert"), tiny_tokenizer([f"w{i}" for i in range(16)]), [task]), Plan(steps=4))


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)], ids=["SIGINT", "SIGTERM"]
)
def test_a_stop_keeps_a_checkpoint_and_goes_on(tmp_path, number, error):
    class Interrupt(Method):
        def before_step(self, run: Run) -> None:
            if run.step == 5:
                os.kill(os.getpid(), number)
                time.sleep(0.01)

    whole, before = toy_model(), signal.getsignal(number)
    fit(whole, PLAN)
    with pytest.raises(error, match="goes on from there"):
        fit(toy_model(), PLAN, Interrupt(), out=tmp_path)
    assert checkpoint.load(checkpoint.list_all(tmp_path / "checkpoints")[-1])[1]["step"] == 6
    resumed = toy_model()
    fit(resumed, PLAN, out=tmp_path)
    assert same(weights(whole), weights(resumed))

    assert signal.getsignal(number) is before


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove"])
def test_a_broken_checkpoint_is_refused_by_name_and_the_one_before_used(tmp_path, damage):
    whole = toy_model()
    fit(whole, PLAN)
    with pytest.raises(RuntimeError, match="crash"):
        fit(toy_model(), PLAN, StopAt(9), out=tmp_path)
    _, newest = checkpoint.list_all(tmp_path / "checkpoints")
    file = newest / "model.safetensors"
    content = file.read_bytes()
    if damage == "remove":
        file.unlink()
    else:
        file.write_bytes(content[:-100] if damage == "truncate" else content[:-1] + bytes([content[-1] ^ 1]))
    resumed = toy_model()
    with pytest.warns(UserWarning, match=newest.name):
        fit(resumed, PLAN, out=tmp_path)
    assert same(weights(whole), weights(resumed))


def test_a_checkpoint_of_another_run_is_refused_with_what_differs(tmp_path):
    fit(toy_model(), PLAN.with_(steps=4), out=tmp_path)
    with pytest.raises(HeadwiseError, match=r"another run \(lr: 0.003 then, 1.0 now; seed: 0 then, 2 now\)"):
        fit(toy_model(), PLAN.with_(steps=4, lr=1.0, seed=2), out=tmp_path)
    with pytest.raises(HeadwiseError, match=r"another run \(tasks: toy0, toy1 then, toy0 now\)"):
        fit(toy_model(1), PLAN.with_(steps=4), out=tmp_path)
    with pytest.raises(HeadwiseError, match=r"another run \(method: plain then, iat now\)"):
        fit(toy_model(), PLAN.with_(steps=4), IAT(), out=tmp_path)


def test_a_checkpoint_that_does_not_say_what_it_was_made_with_is_refused_too(tmp_path):
    fit(toy_model(), PLAN.with_(steps=4), out=tmp_path)
    file = checkpoint.list_all(tmp_path / "checkpoints")[-1] / "state.json"
    state = json.loads(file.read_text())
    file.write_text(json.dumps({name: value for name, value in state.items() if name not in ("settings", "rows")}))
    with pytest.raises(HeadwiseError, match=r"another run \(model, tasks, plan or method differ\)"):
        fit(toy_model(), PLAN.with_(steps=4, lr=1.0), out=tmp_path)


def test_seconds_are_those_of_all_sessions(tmp_path):
    with pytest.raises(RuntimeError, match="crash"):
        fit(toy_model(), PLAN, StopAt(9), out=tmp_path)
    file = checkpoint.list_all(tmp_path / "checkpoints")[-1] / "state.json"
    state = json.loads(file.read_text())
    assert 0 < state["seconds"] < 600
    file.write_text(json.dumps(state | {"seconds": 5000.0}))
    first, again = (fit(toy_model(), PLAN, out=tmp_path).seconds for _ in range(2))
    assert 5000 < first < 5600 and first == pytest.approx(again, abs=5)


def test_rows_of_evaluations_may_change_on_the_way_unless_they_decide_when_to_stop(tmp_path):
    plan, whole, resumed = PLAN.with_(evaluate_every=4, max_dev=8), toy_model(), toy_model()
    fit(whole, plan)
    with pytest.raises(RuntimeError, match="crash"):
        fit(toy_model(), plan, StopAt(9), out=tmp_path)
    fit(resumed, plan.with_(max_dev=12), out=tmp_path)
    assert same(weights(whole), weights(resumed))
    fit(toy_model(), plan.with_(patience=9), out=tmp_path / "patient")
    with pytest.raises(HeadwiseError, match="max_dev: 8 then, 12 now"):
        fit(toy_model(), plan.with_(patience=9, max_dev=12), out=tmp_path / "patient")


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


def test_two_processes_agree_with_one(tmp_path):
    assert_agree(
        tmp_path,
        "from headwise.testing import toy_model\nfrom headwise.training.loop import fit\n"
        "from headwise.training.plan import Plan\n"
        f"model = toy_model()\n{STILL}"
        "plan = Plan(steps=12, lr=1e-3, batch_size=16, checkpoint_every=5, evaluate_every=0)\n"
        "fit(model, plan, out=out, device='cpu')\nkept = dict(model.state_dict())\n",
    )


def test_two_processes_go_on_each_with_dropout_of_its_own(tmp_path):
    found = assert_agree(
        tmp_path,
        "from headwise.testing import toy_model\nfrom headwise.training.loop import fit\n"
        "from headwise.training.plan import Plan\n"
        "plan = Plan(steps=6, lr=1e-3, batch_size=16, evaluate_every=0)\nwhole, resumed = toy_model(), toy_model()\n"
        "fit(whole, plan, out=out, device='cpu', marks=[0.5])\n"
        "fit(resumed, plan, resume=out + '/checkpoints/step-00000003', device='cpu')\n"
        "pairs = zip(whole.parameters(), resumed.parameters())\n"
        "kept = {'apart': torch.tensor([not torch.equal(a, b) for a, b in pairs]).float()}\n",
    )
    assert len(found["apart"]) and not found["apart"].any()


def test_more_processes_than_a_checkpoint_has_are_refused(tmp_path):
    fit(toy_model(), PLAN.with_(steps=4), out=tmp_path)
    run = Run(toy_model(), PLAN.with_(steps=4), Method(), tmp_path)
    run.accelerator = SimpleNamespace(process_index=0, num_processes=2)
    with pytest.raises(HeadwiseError, match="1 processes for 2"):
        run.checkpoints.restore(checkpoint.newest(tmp_path / "checkpoints"), whole=True)


def test_a_loss_that_is_no_number_stops_and_names_the_batch(tmp_path):
    class Poison(Method):
        def loss(self, run, task, batch):
            return super().loss(run, task, batch) * (float("nan") if run.step == 6 else 1.0)

    with pytest.raises(HeadwiseError, match=r"'toy\d' became nan at step 7 .*the last checkpoint is in"):
        fit(toy_model(), PLAN, Poison(), out=tmp_path)
    _, state = checkpoint.load(checkpoint.list_all(tmp_path / "checkpoints")[-1])
    assert state["step"] == 4


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


def flipped(model):
    """The same texts under other labels."""
    for name, task in model.tasks.items():
        labels = task.kind.labels
        rows = [row | {"label": labels[1 - labels.index(row["label"])]} for row in task.rows("train")]
        model.tasks[name] = replace(task, source=Rows(train=rows, dev=task.rows("dev")))
    return model


def other_words(model):
    """All rows of the word embeddings but the first: what a look at some numbers of each parameter does not see."""
    with torch.no_grad():
        model.encoder.embeddings.word_embeddings.weight[1:] += 0.5
    return model


def other_output_heads(model):
    with torch.no_grad():
        for parameter in model.heads.parameters():
            parameter += 0.5
    return model


def without_a_head(model):
    """As a masked export is: the same shapes, one head's output projection zero."""
    fold(model.encoder, torch.tensor([[0.0, 1, 1, 1], [1.0, 1, 1, 1]]))
    return model


def frozen(model):
    model.encoder.requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (lambda: toy_model(seed=1), "other weights at the start"),
        (lambda: other_words(toy_model()), "other weights at the start"),
        (lambda: other_output_heads(toy_model()), "other weights at the start"),
        (lambda: without_a_head(toy_model()), "other weights at the start"),
        (lambda: frozen(toy_model()), "other frozen parameters"),
        (lambda: no_dropout(toy_model()), "other dropout"),
        (lambda: toy_model(pooling="mean"), "pooling: cls then, mean now"),
        (lambda: flipped(toy_model()), "other training rows of toy0; other training rows of toy1"),
    ],
    ids=["weights", "words", "output heads", "cut heads", "frozen", "dropout", "pooling", "labels"],
)
def test_a_folder_goes_on_with_its_own_run_alone(tmp_path, other, told):
    fit(toy_model(), PLAN, out=tmp_path)
    with pytest.raises(HeadwiseError, match=rf"another run \({told}\)"):
        fit(other(), PLAN, out=tmp_path)
    again = toy_model()
    fit(again, PLAN, out=tmp_path)  # its own is read back
    fit(again, PLAN, out=tmp_path)  # also into the model that it has trained


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


def test_a_method_by_name_is_told_where_methods_are():
    with pytest.raises(HeadwiseError, match=r"'iat'.*headwise\.methods\.methods"):
        fit(toy_model(), PLAN, "iat")


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
