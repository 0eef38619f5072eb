"""What a run tells: one JSONL line per batch and evaluation, and to trackers only when asked."""

from __future__ import annotations

import json
import sys
from importlib import machinery

import pytest

from headwise.errors import HeadwiseError
from headwise.testing import toy_model
from headwise.training.loop import fit
from headwise.training.plan import Plan

PLAN = Plan(steps=8, lr=3e-3, batch_size=16, evaluate_every=4)


def lines(folder) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_metrics_are_the_history(tmp_path):
    history = fit(toy_model(), PLAN, out=tmp_path)
    told = lines(tmp_path)
    batches = [entry for entry in told if "loss" in entry]
    assert [entry["step"] for entry in told] == sorted(entry["step"] for entry in told)
    for task, points in history.losses.items():
        assert [(e["step"], e["loss"]) for e in batches if e["task"] == task] == points
    assert [entry for entry in told if "scores" in entry] == history.scores
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert plan["method"] == "plain" and plan["plan"]["lr"] == 3e-3


def test_nothing_is_written_without_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fit(toy_model(), PLAN)
    assert list(tmp_path.iterdir()) == []


def test_curves_are_ready_to_plot():
    history = fit(toy_model(), PLAN)
    curve = history.curves()["toy0"]
    assert len(curve["step"]) == len(curve["loss"]) and curve["metric_step"] == [4, 8]


def test_tensorboard_gets_losses_and_scores_when_asked(tmp_path):
    pytest.importorskip("tensorboard")
    history = fit(toy_model(), PLAN, out=tmp_path, track=["tensorboard"])
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "headwise"))
    events.Reload()
    assert {"loss/toy0", "loss/toy1", "dev/toy0", "dev/toy1"} <= set(events.Tags()["scalars"])
    told = [(event.step, event.value) for event in events.Scalars("loss/toy0")]
    assert [step for step, _ in told] == [step for step, _ in history.losses["toy0"]]
    assert all(abs(value - wanted) < 1e-5 for (_, value), (_, wanted) in zip(told, history.losses["toy0"]))
    assert [event.step for event in events.Scalars("dev/toy1")] == [4, 8]


def test_trackers_are_never_loaded_unasked(tmp_path):
    before = set(sys.modules)
    fit(toy_model(), PLAN, out=tmp_path)
    assert not {"wandb", "trackio"} & (set(sys.modules) - before)
    assert {path.name for path in tmp_path.iterdir()} == {"metrics.jsonl", "plan.json", "checkpoints"}


def test_trackers_that_cannot_be_are_told(tmp_path, monkeypatch):
    with pytest.raises(HeadwiseError, match="Try: tensorboard"):
        fit(toy_model(), PLAN, out=tmp_path, track=["tensorbord"])
    monkeypatch.setattr("headwise.training.history.find_spec", lambda name: None)
    with pytest.raises(HeadwiseError, match="pip install wandb"):
        fit(toy_model(), PLAN, out=tmp_path, track=["wandb"])
    monkeypatch.setattr("headwise.training.history.find_spec", lambda name: machinery.ModuleSpec(name, None))
    with pytest.raises(HeadwiseError, match="out="):
        fit(toy_model(), PLAN, track=["tensorboard"])
