"""Successive halving: the better settings win, on rows of the training side alone, with the budget that was set."""

from __future__ import annotations

import pytest

from headwise.errors import HeadwiseError
from headwise.experiments import tuning
from headwise.experiments.jobs import Job, Place, perform
from headwise.experiments.tuning import held_out, rungs_of
from headwise.experiments.works import asked
from headwise.io.records import Results
from headwise.tasks import Classify, Rows, Task
from headwise.testing import playground

ROWS = [{"text": f"word {i}", "label": "ab"[i % 2]} for i in range(40)]


def test_a_slice_judges_and_neither_trains_nor_comes_from_dev():
    task = Task("t", Classify(("a", "b")), Rows(ROWS, [{"text": "dev", "label": "a"}], ROWS[:1]), "accuracy")
    found = held_out(task, 0.25, seed=3)
    train, dev = ({row["text"] for row in found.rows(split)} for split in ("train", "dev"))
    assert len(dev) == 10 and not train & dev and train | dev == {row["text"] for row in ROWS}
    assert found.rows("dev") == held_out(task, 0.25, seed=3).rows("dev") != held_out(task, 0.25, seed=4).rows("dev")
    for fraction in (0.0, 1.0):
        with pytest.raises(HeadwiseError, match="some rows"):
            held_out(task, fraction)


def test_a_file_makes_a_job_that_knows_weights_and_data(tmp_path):
    playground(tmp_path)
    task, at = f"news={tmp_path}/news.csv:text,label", {"m": str(tmp_path / "bert-tiny")}
    config = {"model": "m", "tasks": [task], "plan": {"lr": 1e-3}, "axes": {"plan.lr": [1e-3]}}
    job = asked("tune", config, at)
    assert job.work == "tune" and job.config["weights"] and job.config["tasks"][task] and job.config["rungs"]
    assert job.key != asked("tune", config | {"axes": {"plan.lr": [2e-3]}}, at).key
    for wrong in ({"axes": {}}, {"axis": {}}):
        with pytest.raises(HeadwiseError, match=r"axes|axis"):
            asked("tune", {name: v for name, v in config.items() if name != "axes"} | wrong, at)


def test_rungs_cost_about_the_same():
    assert rungs_of(27, (1 / 9, 1 / 3, 1.0)) == [27, 9, 3] and rungs_of(1) == [1, 1, 1]


def test_a_rate_that_learns_beats_rates_that_do_not(tmp_path, monkeypatch):
    playground(tmp_path)
    config = {"model": "m", "tasks": {f"news={tmp_path}/news.csv:text,label": None}, "max_length": 32, "method": None}
    config |= {"plan": {"epochs": 12, "batch_size": 16, "seed": 0, "evaluate_every": 0, "checkpoint_every": 0}}
    config |= {"axes": {"plan.lr": [0.0, 3e-3, 1e-9]}, "rungs": [0.7, 1.0], "pooling": "cls", "seed": 0}
    job = Job("tune", config | {"plan": config["plan"] | {"head_lr": 3e-3}}, {"m": str(tmp_path / "bert-tiny")})
    key = perform(job, tmp_path / "run", "cpu")
    found = Results(tmp_path / "run" / "records")[key].result
    assert found["changes"] == {"plan.lr": 3e-3} and found["chosen"]["plan"]["lr"] == 3e-3
    assert [len(rung["candidates"]) for rung in found["rungs"]] == [3, 3]
    means = [candidate["mean"] for candidate in found["rungs"][-1]["candidates"]]
    assert means == sorted(means, reverse=True)

    monkeypatch.setattr(tuning, "_trained", lambda *_: pytest.fail("trained again"))  # a stopped tuning resumes
    assert tuning.tune(Place(job, tmp_path / "run", "cpu")) == found
