"""Training that stops and resumes: the result is that of no stop, and what does not fit is refused."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from twoprocesses import assert_agree

from headwise.errors import HeadwiseError
from headwise.heads.cutting import fold, prune
from headwise.heads.gates import Heads
from headwise.models.multitask import MultiTaskModel
from headwise.tasks.task import Rows
from headwise.testing import no_dropout, tiny, tiny_tokenizer, toy_model, toy_tasks
from headwise.training import checkpoint
from headwise.training.loop import Run, fit
from headwise.training.methods.iat import IAT
from headwise.training.methods.method import Method
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


def test_a_second_training_of_one_model_is_not_taken_for_its_first(tmp_path):
    """The same object trained twice, into two folders: the second began from what the first left."""
    model = toy_model()
    fit(model, PLAN.with_(steps=3), out=tmp_path / "first")
    fit(model, PLAN.with_(steps=3), out=tmp_path / "second")
    after = weights(model)
    fit(model, PLAN.with_(steps=3), out=tmp_path / "second")
    assert same(weights(model), after), "its own is read back"
    with pytest.raises(HeadwiseError, match="different initial weights"):
        fit(toy_model(), PLAN.with_(steps=3), out=tmp_path / "second")
    other_words(model)
    with pytest.raises(HeadwiseError, match="different initial weights"):
        fit(model, PLAN.with_(steps=3), out=tmp_path / "second")


def test_training_anew_into_a_folder_begins_from_the_weights_there_are(tmp_path):
    model = toy_model()
    fit(model, PLAN.with_(steps=3), out=tmp_path)
    fit(model, PLAN.with_(steps=3), out=tmp_path, resume=False)
    with pytest.raises(HeadwiseError, match="different initial weights"):
        fit(toy_model(), PLAN.with_(steps=3), out=tmp_path)


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


@pytest.mark.soak  # tests/faults/test_writing.py does the same quickly
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


@pytest.mark.parametrize("change", ["rows", "metric"])
def test_scores_of_other_development_rows_are_not_read_back(tmp_path, change):
    """A finished run would answer with the scores of the rows that there were."""

    def other():
        model = toy_model()
        task = model.tasks["toy0"]
        few = Rows(train=task.rows("train"), dev=task.rows("dev")[:9])
        model.tasks["toy0"] = replace(task, **({"source": few} if change == "rows" else {"metric": "mcc"}))
        return model

    plan = PLAN.with_(steps=4, evaluate_every=2)
    fit(toy_model(), plan, out=tmp_path)
    with pytest.raises(HeadwiseError, match=r"another run \(different development rows or metric of toy0\)"):
        fit(other(), plan, out=tmp_path)
    unseen = plan.with_(evaluate_every=0)
    fit(toy_model(), unseen, out=tmp_path / "unseen")
    fit(other(), unseen, out=tmp_path / "unseen")  # nothing was measured on them


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


def with_relu(model):
    model.encoder.encoder.layer[1].intermediate.intermediate_act_fn = torch.nn.ReLU()
    return model


def frozen(model):
    model.encoder.requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (lambda: toy_model(seed=1), "different initial weights"),
        (lambda: other_words(toy_model()), "different initial weights"),
        (lambda: other_output_heads(toy_model()), "different initial weights"),
        (lambda: without_a_head(toy_model()), "different initial weights"),
        (lambda: frozen(toy_model()), "different frozen parameters"),
        (lambda: no_dropout(toy_model()), "different dropout"),
        (lambda: with_relu(toy_model()), "different activations or norms"),
        (lambda: toy_model(pooling="mean"), "pooling: cls then, mean now"),
        (lambda: flipped(toy_model()), "different training rows of toy0; different training rows of toy1"),
    ],
    ids=["weights", "words", "output heads", "cut heads", "frozen", "dropout", "activation", "pooling", "labels"],
)
def test_a_folder_goes_on_with_its_own_run_alone(tmp_path, other, told):
    fit(toy_model(), PLAN, out=tmp_path)
    with pytest.raises(HeadwiseError, match=rf"another run \({told}\)"):
        fit(other(), PLAN, out=tmp_path)
    again = toy_model()
    fit(again, PLAN, out=tmp_path)  # its own is read back
    fit(again, PLAN, out=tmp_path)  # also into the model that it has trained
