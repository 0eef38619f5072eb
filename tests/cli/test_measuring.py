"""Verbs that measure take a checkpoint of transformers as it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from typer.testing import CliRunner

from headwise.cli.app import app
from headwise.cli.options import head_scores
from headwise.errors import HeadwiseError
from headwise.testing import (
    causal_tokenizer,
    playground,
    speech_playground,
    tiny,
    tiny_tokenizer,
    toy_language_model,
)

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


def saved(folder, purpose, family, **settings):
    torch.manual_seed(0)
    base = tiny(family, auto=f"AutoModelFor{purpose}", **settings)
    base.save_pretrained(folder)
    words = ["the", "was", "great", "dull", "film", "good", "bad"]
    made = causal_tokenizer(words) if purpose in ("CausalLM", "Seq2SeqLM") else tiny_tokenizer(words)
    made.save_pretrained(folder)


def data_of(place, purpose):
    """A file that a class of models is measured on, and the task that names it."""
    if purpose == "TokenClassification":
        rows = [{"tokens": ["the", "film"], "tags": ["D", "N"]}, {"tokens": ["was", "good"], "tags": ["N", "D"]}]
        Path("tags.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows * 10))
        return "mine=tags.jsonl:tokens,tags"
    if purpose == "QuestionAnswering":
        answers = [{"text": "great", "answer_start": 13}]
        asked = [{"id": str(i), "question": f"was {i}", "answers": answers} for i in range(10)]
        data = {"data": [{"paragraphs": [{"context": "the film was great", "qas": asked}]}]}
        Path("asked.json").write_text(json.dumps(data))
        return "mine=asked.json:qa"
    if purpose == "ImageClassification":
        image = pytest.importorskip("PIL.Image")
        for i in range(20):
            folder = Path("pictures") / ("red" if i % 2 else "blue")
            folder.mkdir(parents=True, exist_ok=True)
            image.new("RGB", (16 + i, 16), folder.name).save(folder / f"{i}.png")
        return "mine=pictures"
    speech = {"AudioClassification": "mine=tones", "SpeechSeq2Seq": "mine=clips.csv:path,text"}
    return speech.get(purpose, "reviews@prompt=reviews.csv:text,label")


@pytest.mark.parametrize(
    ("purpose", "family", "shape"),
    [
        ("TokenClassification", "bert", (2, 4)),
        ("QuestionAnswering", "bert", (2, 4)),
        ("ImageClassification", "vit", (2, 4)),
        ("AudioClassification", "tone-model", (2, 4)),
        ("SpeechSeq2Seq", "whisper-tiny", (8, 4)),
        ("MaskedLM", "bert", (2, 4)),
        ("CausalLM", "llama", (2, 4)),
        ("Seq2SeqLM", "t5", (8, 4)),
    ],
)
def test_every_class_of_models_opens_from_the_command_line(place, purpose, family, shape):
    task, folder = data_of(place, purpose), Path("checkpoint")
    if purpose in ("AudioClassification", "SpeechSeq2Seq"):
        folder = speech_playground(".") / family
    else:
        names = {"TokenClassification": ("D", "N"), "ImageClassification": ("blue", "red")}.get(purpose, ())
        labels = {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}
        settings = (labels if names else {}) | ({"decoder_start_token_id": 0} if family == "t5" else {})
        saved(folder, purpose, family, **settings)
    if family == "vit":
        transformers.ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(folder)
    verb = ["importance", str(folder), "--task", task, "--examples", "8", "--json"]
    done = RUN.invoke(app, verb, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    (found,) = json.loads(done.stdout).values()
    scores = torch.tensor([[float("nan") if s is None else s for s in row] for row in found["scores"]])
    assert tuple(scores.shape) == shape and bool((scores.nan_to_num() > 0).any())


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


# -- `headwise lab`: what is typed reaches the server, and what cannot be opened is refused before it starts


@pytest.fixture
def served(monkeypatch, tmp_path):
    """Runs the verb with a server that only notes what it was given."""
    lm = toy_language_model("llama")
    lm.model.save_pretrained(tmp_path / "lm"), lm.tokenizer.save_pretrained(tmp_path / "lm")
    monkeypatch.chdir(tmp_path)
    given: list = []
    monkeypatch.setattr("headwise.lab.server.serve", lambda *arguments: given.extend(arguments))

    def run(line: str) -> list:
        done = CliRunner().invoke(app, ["lab", *line.split()])
        if done.exception:
            raise done.exception
        return given

    return run


def test_options_reach_the_server(served):
    opened, host, port, browser, _ = served("lm --port 0 --host ::1 --no-browser --exports cuts")
    assert (host, port, browser) == ("::1", 0, False)
    assert opened.folder == Path("cuts") and opened.name == "lm" and not opened.subject.tasks


@pytest.mark.parametrize("line", ["nowhere", "lm --tasks corpus.topic", "lm --scores none.json", "lm --static site"])
def test_what_cannot_be_opened_is_refused(served, line):
    with pytest.raises(HeadwiseError):
        served(line)
