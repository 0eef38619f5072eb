"""A stranger's way from a file to a model in use: train, score, prune, predict, and open in plain transformers."""

from __future__ import annotations

import csv
import json
import random
import shlex
import sys
from pathlib import Path

import pytest
import torch
from kindlaws import letters
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    pipeline,
)

import headwise
from headwise import cli
from headwise.tasks import own
from headwise.testing import playground, tiny, tiny_tokenizer

PLAN = headwise.Plan(steps=150, lr=5e-3, batch_size=16, evaluate_every=0)
NOUNS, VERBS = ("dog", "cat", "dogs", "the"), ("barks", "bark", "sees", "a")


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """A line on the command line, in a folder with a tiny model and reviews.csv; what it prints."""
    playground(tmp_path)
    monkeypatch.chdir(tmp_path)

    def line(text: str) -> str:
        monkeypatch.setattr(sys, "argv", ["headwise", *shlex.split(text)])
        try:
            cli.main()
        except SystemExit as stop:
            assert not stop.code, f"{text}: {capsys.readouterr().err}"
        return capsys.readouterr().out

    return line


def cut_of(model: headwise.MultiTaskModel, task: str, fraction: float = 0.3) -> torch.Tensor:
    """The least important heads of a task."""
    return headwise.bottom(headwise.importance(model, task, examples=64).scores, fraction)


def test_from_a_csv_file_to_plain_transformers(run):
    run(
        "train --model bert-tiny --task reviews=reviews.csv:text,label --output-heads native "
        "--steps 120 --batch-size 16 --lr 5e-3 --out runs/r"
    )
    scores = json.loads(run("importance runs/r/model --examples 64 --json"))["reviews"]["scores"]
    mask = headwise.bottom(torch.tensor(scores), 0.3)
    Path("mask.json").write_text(json.dumps(mask.tolist()))
    run("prune runs/r/model runs/small --mask mask.json")
    run("predict runs/small reviews.csv --task reviews --out predictions.csv")
    run("export runs/r/model runs/plain --mask mask.json")
    with Path("predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    texts, found = [row["text"] for row in rows], [row["predicted_label"] for row in rows]
    plain = AutoModelForSequenceClassification.from_pretrained("runs/plain").eval()
    batch = AutoTokenizer.from_pretrained("runs/plain")(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = plain(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    assert [plain.config.id2label[i] for i in logits.argmax(-1).tolist()] == found
    assert sum(row["label"] == label for row, label in zip(rows, found)) > 0.9 * len(rows)
    assert [each["label"] for each in pipeline("text-classification", "runs/plain", device="cpu")(texts)] == found


def sentences(count: int, seed: int = 0) -> list[dict]:
    """Words with their kind, as Hugging Face users keep them."""
    draw = random.Random(seed)
    words = [[draw.choice(NOUNS + VERBS) for _ in range(draw.randint(3, 7))] for _ in range(count)]
    return [{"tokens": row, "pos_tags": ["VERB" if word in VERBS else "NOUN" for word in row]} for row in words]


def test_a_tagger(tmp_path):
    file = tmp_path / "tags.jsonl"
    file.write_text("".join(f"{json.dumps(record)}\n" for record in sentences(120)))
    model = headwise.MultiTaskModel(
        tiny("bert", vocab_size=128), letters(), [own(f"pos={file}")], output_heads="native"
    )
    headwise.fit(model, PLAN)
    mask = cut_of(model.eval(), "pos")
    whole = headwise.MultiTaskModel.load(headwise.export(model, mask, tmp_path / "small", "sliced")).eval()
    path = headwise.export(model, mask, tmp_path / "plain", "masked", task="pos")
    texts = [" ".join(record["tokens"]) for record in sentences(20, seed=1)]
    found = [record.tags for record in whole.predict("pos", texts)]
    assert found == [record["pos_tags"] for record in sentences(20, seed=1)]
    plain, tokenizer = AutoModelForTokenClassification.from_pretrained(path).eval(), AutoTokenizer.from_pretrained(path)
    for text, tags in zip(texts, found):
        coded = tokenizer(text.split(), is_split_into_words=True, return_tensors="pt")
        first = [coded.word_ids().index(word) for word in range(len(tags))]
        with torch.no_grad():
            logits = plain(input_ids=coded["input_ids"], attention_mask=coded["attention_mask"]).logits[0, first]
        assert [plain.config.id2label[i] for i in logits.argmax(-1).tolist()] == tags


def questions(count: int, seed: int = 0) -> list[dict]:
    """Who barks? The word before it."""
    draw, rows = random.Random(seed), []
    for number in range(count):
        words = [draw.choice(["the", "a", "sees"]) for _ in range(draw.randint(2, 6))]
        at = draw.randrange(len(words))
        words[at:at] = [draw.choice(["dog", "cat"]), "barks"]
        start = sum(len(word) + 1 for word in words[:at])
        answers = {"text": [words[at]], "answer_start": [start]}
        rows.append({"id": str(number), "question": "who barks", "context": " ".join(words), "answers": answers})
    return rows


def test_a_question_answerer(tmp_path):
    task = headwise.Task.from_dataset("qa", {"train": questions(160), "validation": questions(30, seed=1)})
    encoder = tiny("bert", vocab_size=128)
    model = headwise.MultiTaskModel(encoder, letters(), [task], output_heads="native", max_length=48)
    headwise.fit(model, PLAN)
    mask = cut_of(model.eval(), "qa")
    whole = headwise.MultiTaskModel.load(headwise.export(model, mask, tmp_path / "small", "sliced")).eval()
    path = headwise.export(model, mask, tmp_path / "plain", "masked", task="qa")
    asked = [(row["question"], row["context"]) for row in task.rows("dev")]
    found = [record.answer for record in whole.predict("qa", asked)]
    right = sum(answer in row["answers"] for answer, row in zip(found, task.rows("dev")))
    assert right > 0.8 * len(asked)
    plain, tokenizer = AutoModelForQuestionAnswering.from_pretrained(path).eval(), AutoTokenizer.from_pretrained(path)
    for (question, context), answer in zip(asked, found):
        coded = tokenizer(question, context, return_tensors="pt", return_offsets_mapping=True)
        inside = torch.tensor([side == 1 for side in coded.sequence_ids()])
        with torch.no_grad():
            out = plain(**{k: coded[k] for k in ("input_ids", "attention_mask", "token_type_ids")})
        worth = (out.start_logits[0, :, None] + out.end_logits[0]).masked_fill(~(inside[:, None] & inside), -torch.inf)
        first, last = divmod(int(worth.triu().masked_fill(worth.triu() == 0, -torch.inf).argmax()), worth.shape[1])
        start, end = int(coded["offset_mapping"][0, first, 0]), int(coded["offset_mapping"][0, last, 1])
        assert context[start:end] == answer


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("kind", ["lora", "decoder"])
def test_adapters_and_decoders(tmp_path, kind):
    playground(tmp_path)
    task = own(f"reviews={tmp_path}/reviews.csv:text,label")
    words = sorted({word for row in task.rows("train") for word in row["text"].split()})
    encoder = tiny("llama" if kind == "decoder" else "bert")
    if kind == "lora":
        peft = pytest.importorskip("peft")
        encoder = peft.get_peft_model(encoder, peft.LoraConfig(target_modules=["query", "value", "dense"], r=8))
    model = headwise.MultiTaskModel(encoder, tiny_tokenizer(words), [task], output_heads="native")
    headwise.fit(model, PLAN)
    mask = cut_of(model.eval(), "reviews")
    if kind == "decoder":  # query heads that share keys go together
        mask = mask.view(2, 2, 2).all(-1).repeat_interleave(2, -1)
    back = headwise.MultiTaskModel.load(model.save_pretrained(tmp_path / "model")).eval()
    small = headwise.MultiTaskModel.load(headwise.export(back, mask, tmp_path / "small", "sliced")).eval()
    path = headwise.export(back, mask, tmp_path / "plain", "masked", task="reviews")
    rows = task.rows("dev")
    found = [record.label for record in small.predict("reviews", [row["text"] for row in rows])]
    assert sum(label == row["label"] for label, row in zip(found, rows)) > 0.85 * len(rows)
    each = pipeline("text-classification", str(path), device="cpu")([row["text"] for row in rows])
    assert [one["label"] for one in each] == found
