"""Verbs that measure take a checkpoint of transformers as it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from typer.testing import CliRunner

from headwise.cli import app
from headwise.cli.options import head_scores
from headwise.errors import HeadwiseError
from headwise.testing import playground, tiny, tiny_tokenizer

RUN = CliRunner()


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    playground(".")
    config = tiny("bert").config
    config.id2label, config.label2id = {0: "Bad", 1: "Good"}, {"Bad": 0, "Good": 1}
    torch.manual_seed(0)
    transformers.AutoModelForSequenceClassification.from_config(config).save_pretrained("finetuned")
    tiny_tokenizer(["the", "was", "great", "dull"]).save_pretrained("finetuned")
    return tmp_path


def test_importance_of_a_checkpoint_uses_its_own_classifier(place):
    verb = ["importance", "--model", "finetuned", "--task", "reviews=reviews.csv:text,label", "--json"]
    done = RUN.invoke(app, [*verb, "--examples", "20"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    scores = json.loads(done.stdout)["reviews"]
    assert len(scores["scores"]) == 2 and len(scores["signed"][0]) == 4


def test_two_tasks_of_a_checkpoint_come_apart_under_any_reference(place):
    tasks = ["--task", "a=reviews.csv:text,label", "--task", "b=reviews.csv:text,label"]
    for close in ("zero", "mean"):
        verb = ["dissociate", "finetuned", *tasks, "--random", "2", "--dev", "10", "--examples", "20"]
        done = RUN.invoke(app, [*verb, "--close", close, "--json"], catch_exceptions=False)
        assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["importance"], "no model"),
        (["importance", "finetuned", "--model", "finetuned"], "two models"),
        (["importance", "finetuned"], "no tasks to measure finetuned on"),
        (
            ["importance", "bert-tiny", "--task", "a=reviews.csv:text,label"],
            "holds BertModel, which has no output head",
        ),
        (["importance", "finetuned", "--task", "a=news.csv:text,label"], "the checkpoint's: Bad, Good"),
    ],
)
def test_what_cannot_be_measured_is_refused(place, words, says):
    with pytest.raises(HeadwiseError, match=says):
        RUN.invoke(app, words, catch_exceptions=False)


def test_scores_are_known_by_what_is_in_their_file(place):
    verb = ["importance", "--model", "finetuned", "--task", "reviews=reviews.csv:text,label", "--examples", "20"]
    refused = RUN.invoke(app, [*verb, "--out", "scores.json"])
    assert isinstance(refused.exception, HeadwiseError) and "--out scores.safetensors" in str(refused.exception)
    assert RUN.invoke(app, [*verb, "--out", "scores"], catch_exceptions=False).exit_code == 0
    known = head_scores(Path("scores"))
    assert known["reviews"].shape == (2, 4)
    Path("study.json").write_text(
        json.dumps(
            {
                "model": {"name": "m", "layers": 2, "heads": 4},
                "tasks": [{"name": "reviews"}],
                "importance": {"reviews": {"scores": known["reviews"].tolist()}},
            }
        )
    )
    assert torch.equal(head_scores(Path("study.json"))["reviews"], known["reviews"])
