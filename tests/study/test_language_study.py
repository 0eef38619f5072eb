"""A study of a language model: prompts as tasks, nothing trained, the same page."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from headwise.errors import HeadwiseError
from headwise.reporting import report
from headwise.study.study import Settings, Study
from headwise.study.verdict import _alone, _one_sided
from headwise.tasks.kinds.choice import Choice
from headwise.tasks.task import Rows, Task
from headwise.testing import toy_language_model


@pytest.fixture
def checkpoint(tmp_path):
    lm = toy_language_model("llama", torch.float32, rows=40)
    lm.model.save_pretrained(tmp_path / "lm")
    lm.tokenizer.save_pretrained(tmp_path / "lm")
    return tmp_path / "lm", [lm.tasks[name] for name in ("short", "pairs", "after")]


def test_a_language_model_is_studied_as_it_is(tmp_path, checkpoint):
    path, tasks = checkpoint
    closings = ("zero", "mean", "resample")
    settings = Settings(alpha=0.25, fractions=(0.25, 0.5), close=closings, random=4, matched=2, prune=(0.25,))
    study = Study(path, tasks, settings, tmp_path / "out")
    data = study.run()
    assert study.errors == {} and "training" not in data and not study.base["trained"]
    assert set(data["importance"]) == {"short", "pairs", "after"}
    assert data["dissociation"]["tasks"] == ["short", "pairs", "after"]
    answers = data["scores"]["short"]["answers"]
    assert set(answers) <= {"0", "1"}
    assert sum(answered for answered, _ in answers.values()) == sum(right for _, right in answers.values()) == 40
    assert [row[0] for row in data["tables"][0]["rows"] if row[1] == "its metric"] == list(closings)
    page = report(data, tmp_path / "page.html").read_text()
    assert "short" in page and "after" in page
    lines: list[str] = []
    again = Study(path, tasks, settings, tmp_path / "out", log=lines.append)
    assert again.run()["dissociation"] == data["dissociation"]
    assert any("already done" in line for line in lines)


def test_what_cannot_be_asked_is_refused_before_any_work(tmp_path, checkpoint):
    path, tasks = checkpoint
    row = {"choices": ["w1", "w2"], "label": 0}
    for prompt, choices, message in (
        ("w1 " * 900, ["w1", "w2"], "tokens; expected 64 at most"),
        ("w1", ["w1", ""], ""),
    ):
        bad = Task(
            "bad", Choice(), Rows([row | {"prompt": "w3"}], [row | {"prompt": prompt, "choices": choices}]), "accuracy"
        )
        with pytest.raises(HeadwiseError, match=message or "which has no tokens"):
            Study(path, [*tasks, bad], Settings(), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_single_task_has_a_lesion_curve(tmp_path, checkpoint):
    path, tasks = checkpoint
    settings = Settings(alpha=0.25, fractions=(0.25, 0.5), close="mean", random=3, skip=("attention",))
    study = Study(path, tasks[:1], settings, tmp_path / "out")
    data = study.run()
    assert study.errors == {} and "dissociation" not in data and set(data["importance"]) == {"short"}
    curve = data["curves"]["mean"]
    assert curve["fractions"] == [0.25, 0.5] and len(curve["random"][0]) == 3 and curve["examples"] == 40
    assert data["tables"][0]["title"] == "Lesion curve of short"
    assert "Lesion curve of short" in report(data, tmp_path / "page.html").read_text()
    assert {"stability"} <= set(data["trust"]) and "prune" in data


def test_a_single_task_is_told_beside_random_heads():
    curve = {"task": "a", "fractions": [0.1, 0.3], "intact": 0.9, "own": [0.8, 0.5], "random": [[0.9] * 30] * 2}
    told = list(_alone({"curves": {"mean": curve | {"p": [0.5, 0.03]}}}, 0.3))
    assert told[0].startswith(
        "Ablating the task's own heads, which return their mean instead, (α = 0.3) takes a from 90.0"
    )
    assert "to 50.0, significantly more than random heads (90.0 on average; p = 0.03)." in told[0]


def test_one_sided_answers_are_told():
    score = {"metric": "accuracy", "value": 0.5, "low": 0.4, "high": 0.6, "n": 100, "baseline": 0.5, "learned": False}
    lopsided = {"scores": {"a": score | {"answers": {"no": [3, 50], "yes": [97, 50]}}}}
    assert next(_one_sided(lopsided)).startswith("a is answered 'yes' on 97 of 100 rows; it is right on 50.")
    assert not list(_one_sided({"scores": {"a": score | {"answers": {"no": [5, 6], "yes": [95, 94]}}}}))


def test_an_encoder_and_a_decoder_are_studied_side_by_side(tmp_path):
    lm = toy_language_model("t5", torch.float32, rows=40)
    lm.model.save_pretrained(tmp_path / "lm")
    lm.tokenizer.save_pretrained(tmp_path / "lm")
    parts = {name: [lm.tasks[name].rows(split) for split in ("train", "dev")] for name in ("short", "pairs")}
    texts = {name: [[row | {"text": "w1 w2 w3"} for row in rows] for rows in found] for name, found in parts.items()}
    tasks = [replace(lm.tasks[name], source=Rows(*found), _read={}) for name, found in texts.items()]
    settings = Settings(alpha=0.25, fractions=(0.25,), close=("zero", "mean"), random=3, matched=0, prune=(0.25,))
    study = Study(tmp_path / "lm", tasks, settings, tmp_path / "out")
    data = study.run()
    assert study.errors == {}
    assert data["model"]["stacks"] == {"encoder": [0, 1], "decoder": [2, 4, 6], "cross": [3, 5, 7]}
    assert np.shape(data["importance"]["short"]["scores"]) == (8, 4) and len(data["prune"]["rows"]) == 2
    looks = data["attention"]
    assert looks["1.3"]["entropy"] > 0 and looks["2.0"]["entropy"] is None
    assert "cross: layers 3, 5, 7" in report(data, tmp_path / "page.html").read_text()
