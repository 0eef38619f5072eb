"""Requests name tasks, layers and rows that exist, and pages by short names."""

from __future__ import annotations

import asyncio
import json

import pytest
import torch

import headwise
from headwise.errors import HeadwiseError
from headwise.lab.answers import Answers
from headwise.lab.questions import Ask
from headwise.lab.requests import EXAMPLES, Desk, cut_model, mask_json, mask_of, python_lines
from headwise.pruning.export import read_mask


@pytest.fixture(scope="module")
def desk(opened):
    made = Desk(opened)
    yield made
    made.close()


def ask(desk, name, **data):
    return asyncio.run(desk.ask(name, {"client": "c", **data}))


def test_examples_are_development_rows(desk, opened):
    found = ask(desk, "examples", task="toy0", start=40)
    rows = opened.subject.tasks["toy0"].rows("dev")
    assert [row["text"] for row in found["rows"]] == [row["text"] for row in rows[40:]] and found["of"] == len(rows)
    assert len(ask(desk, "examples", task="toy0")["rows"]) == EXAMPLES


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("examples", {"task": "nope"}, "unknown task"),
        ("examples", {"task": "toy0", "start": -1}, "0 or more"),
        ("examples", {"task": "toy0", "start": True}, "0 or more"),
        ("why", {"task": ["toy0"]}, "unknown task"),
        ("why", {"task": "next word"}, "unknown task"),
        ("attention", {"layer": 2}, "below 2"),
        ("attention", {"layer": "0"}, "below 2"),
        ("masks", {"what": "shell"}, "python"),
        ("answers", {"client": "a b"}, "no client"),
        ("answers", {"client": None}, "no client"),
    ],
)
def test_what_does_not_exist_is_refused(desk, name, data, words):
    with pytest.raises(HeadwiseError, match=words):
        ask(desk, name, **{"text": "w1", **data})


TEXT = "w1 m0a w3"


def ask_of(opened, gates, **more) -> Ask:
    return Ask.read({"text": TEXT, "gates": gates, **more}, opened.subject.attention.shape)


@pytest.mark.parametrize("close", ["zero", "mean"])
def test_the_lines_give_the_answers_of_the_page(opened, gates, close, capsys, monkeypatch):
    ask = ask_of(opened, gates, close=close)
    rows = {name: task for name, task in opened.subject.tasks.items()}
    load = headwise.MultiTaskModel.load
    monkeypatch.setattr(headwise.MultiTaskModel, "load", lambda path: load(path, rows.values()))  # toys are in no file
    scope: dict = {}
    exec(python_lines(opened.subject, opened.source, ask), scope)
    printed = capsys.readouterr().out
    expected = Answers(opened.subject).under(ask)
    for name, answer in expected.items():
        line = next(line for line in printed.splitlines() if line.startswith(name))
        assert f"label={answer['label']!r}" in line
    with scope["model"].gated(
        scope["gates"], *([] if close == "zero" else [torch.stack(scope["means"]).mean(0).float()])
    ):
        found = scope["model"].predict("toy0", [TEXT])[0].probabilities
    assert all(abs(found[label] - expected["toy0"]["probabilities"][label]) < 1e-5 for label in found)


def test_the_file_is_the_mask_that_export_reads(opened, gates, tmp_path):
    closed = [[float(gate > 0.4) for gate in row] for row in gates]
    (tmp_path / "mask.json").write_text(mask_json(ask_of(opened, closed)))
    assert torch.equal(read_mask(tmp_path / "mask.json"), torch.tensor(closed) == 0)
    assert json.loads(mask_json(ask_of(opened, closed)))[0][0] is True


def test_half_open_heads_have_no_mask(opened, gates):
    with pytest.raises(HeadwiseError, match="1 half-open heads"):
        mask_of(ask_of(opened, gates))


def test_a_cut_model_answers_as_the_page_did(opened, tmp_path):
    layers, heads = opened.subject.attention.shape
    ask = ask_of(opened, [[0.0, *[1.0] * (heads - 1)]] * layers)
    found = cut_model(opened.subject, ask, tmp_path, {"name": "small", "form": "sliced"})
    model = headwise.MultiTaskModel.load(found["path"], opened.subject.tasks.values())
    assert int(model.attention.alive.sum()) == layers * (heads - 1)
    expected = Answers(opened.subject).under(ask)["toy1"]["probabilities"]
    found = model.predict("toy1", [TEXT])[0].probabilities
    assert all(abs(found[label] - expected[label]) < 1e-5 for label in found)


@pytest.mark.parametrize("name", ["../up", "/etc/x", "a/b", "", ".hidden", "a" * 41, None, 3, "x\n"])
def test_names_do_not_lead_out_of_the_folder(opened, tmp_path, name):
    open_ = [[1.0] * 4] * 2
    with pytest.raises(HeadwiseError, match="letters, digits"):
        cut_model(opened.subject, ask_of(opened, open_), tmp_path / "in", {"name": name})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("folder", "options", "more", "words"),
    [
        (None, {"name": "a"}, {}, "--exports"),
        ("in", {"name": "a", "form": "onnx"}, {}, "form"),
        ("in", {"name": "a"}, {"close": "mean"}, "zero"),
    ],
)
def test_what_no_cut_model_can_be_is_refused(opened, tmp_path, folder, options, more, words):
    with pytest.raises(HeadwiseError, match=words):
        cut_model(opened.subject, ask_of(opened, [[1.0] * 4] * 2, **more), folder and tmp_path / folder, options)
