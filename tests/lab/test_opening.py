"""What `headwise lab` opens: a study's folder, a trained model, a language model, and what it refuses."""

from __future__ import annotations

import json

import pytest

from headwise.errors import HeadwiseError
from headwise.io.files import finite, write_json
from headwise.lab.opening import open_lab
from headwise.models.language import LanguageModel
from headwise.testing import playground, toy_language_model, toy_model, toy_tasks


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A folder as a study leaves it."""
    folder, model = tmp_path_factory.mktemp("runs") / "demo", toy_model(2)
    model.save_pretrained(folder / "model")
    scores = {name: {"scores": [[0.1, 0.2, 0.3, None]] * 2} for name in model.tasks}
    attention = {"0.1": {"previous": 0.9, "first": 0.1}, "1.0": {"previous": 0.2, "first": 0.7}}
    study = {"model": {"name": "toy", "layers": 2, "heads": 4}, "tasks": [{"name": name} for name in model.tasks]}
    write_json(folder / "study.json", {**study, "importance": scores, "attention": attention})
    return folder


def test_a_study_brings_scores_roles_and_a_place_for_exports(run):
    opened = open_lab(run, toy_tasks(2))
    assert opened.name == "toy" and opened.folder == run / "lab" and opened.study
    assert opened.scores["toy0"][0] == [0.1, 0.2, 0.3, None]
    assert opened.roles == {"previous token": [(0, 1)], "first token": [(1, 0)]}


def test_roles_that_were_measured_take_their_place(run):
    shape = [[[0.9, 0.1, 0.1, 0.1], [0.1] * 4]]
    record = {"names": ["induction"], "about": ["x"], "texts": [30], "score": shape, "control": [[[0.1] * 4] * 2]}
    record |= {"stderr": [[[0.01] * 4] * 2], "p": [[[0.001, 1, 1, 1], [1] * 4]], "untrained": [None]}
    record["shuffled"] = [[[0.1] * 4] * 2]
    narrow = {**record, "score": [[[0.9] * 3] * 2]}
    for content in (record, {"toy": record}, {"other": narrow, "toy": record}):  # as `headwise roles --out` writes it
        (run / "roles.json").write_text(json.dumps(finite(content)))
        assert open_lab(run, toy_tasks(2)).roles == {"induction": [(0, 0)]}
    (run / "roles.json").write_text(json.dumps(finite({"other": narrow})))
    with pytest.raises(HeadwiseError, match="roles of another model"):
        open_lab(run, toy_tasks(2))
    (run / "roles.json").unlink()


def test_a_trained_model_opens_without_a_study(run):
    opened = open_lab(run / "model", toy_tasks(2), scores={"toy0": [[1.0] * 4] * 2, "other": [[1.0]]})
    assert opened.study is None and list(opened.scores) == ["toy0"] and opened.folder == run / "model" / "lab"
    with pytest.raises(HeadwiseError, match="importance of another model"):
        open_lab(run / "model", toy_tasks(2), scores={"toy0": [[1.0] * 3] * 2})


def test_a_language_model_needs_no_tasks(tmp_path):
    lm = toy_language_model("llama")
    lm.model.save_pretrained(tmp_path / "lm"), lm.tokenizer.save_pretrained(tmp_path / "lm")
    opened = open_lab(tmp_path / "lm")
    assert isinstance(opened.subject, LanguageModel) and not opened.subject.tasks and opened.folder is None


def test_a_study_that_trained_no_model_asks_for_it(run, tmp_path):
    (tmp_path / "study.json").write_text((run / "study.json").read_text())
    with pytest.raises(HeadwiseError, match="--model toy"):
        open_lab(tmp_path)
    assert open_lab(tmp_path, toy_tasks(2), model=str(run / "model")).scores


def test_a_plain_encoder_without_tasks_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(playground(tmp_path))
    with pytest.raises(HeadwiseError):
        open_lab("bert-tiny")
