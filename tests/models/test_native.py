"""Output heads of transformers: trained here, opened by transformers alone, with equal scores."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from kindlaws import letters
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModel,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    pipeline,
)

from headwise.errors import HeadwiseError
from headwise.heads.gates import gated
from headwise.models.multitask import MultiTaskModel
from headwise.models.native import plain_model
from headwise.pruning.export import export
from headwise.scoring.importance import importance
from headwise.tasks.kinds.answer import Answer
from headwise.tasks.kinds.classify import Classify, Regress
from headwise.tasks.kinds.tag import Spans, Tag
from headwise.tasks.kinds.tree import Dependencies
from headwise.tasks.task import Rows, Task
from headwise.testing import tiny, tiny_tokenizer, toy_model, toy_tasks
from headwise.training.loop import fit
from headwise.training.plan import Plan

MASK = torch.tensor([[True, False, False, False], [False, True, True, False]])
CLASSIFIERS = [
    "bert",
    "roberta",
    "distilbert",
    "albert",
    "electra",
    "deberta-v2",
    "modernbert",
    "gpt2",
    "llama",
    "gemma3_text",
]
FRESH = """
import json, sys, torch, transformers
from safetensors.torch import load_file, save_file
folder, kind = sys.argv[1:3]
model = getattr(transformers, kind).from_pretrained(folder).eval()
with torch.no_grad():
    answer = model(**load_file(f"{folder}.inputs"))
assert not any(module.startswith("headwise") for module in sys.modules)
save_file({name: answer[name].contiguous() for name in answer if name.endswith("logits")}, f"{folder}.found")
"""


def sentences(*labels: str) -> list[dict]:
    words = ["the", "dog", "barks", "."]
    return [
        {"words": words[i:] + words[:i], "labels": [labels[(i + j) % len(labels)] for j in range(4)]} for i in range(4)
    ]


QUESTIONS = [
    {"id": str(i), "question": "who barks?", "context": "the dog barks at a cat .", "answers": ["dog"], "starts": [4]}
    for i in range(4)
]


def native(family: str, *tasks: Task, **options) -> MultiTaskModel:
    return MultiTaskModel(
        tiny(family, vocab_size=128), letters(), tasks, output_heads="native", max_length=32, **options
    )


def task(name: str, kind, rows: list[dict], metric: str = "accuracy") -> Task:
    return Task(name, kind, Rows(rows, rows), metric)


@pytest.mark.parametrize("family", CLASSIFIERS)
def test_a_classifier_opens_in_transformers_with_equal_scores(tmp_path, family):
    words = [f"w{i}" for i in range(20)] + ["m0a", "m0b"]
    model = MultiTaskModel(tiny(family), tiny_tokenizer(words), toy_tasks(1, rows=24), output_heads="native")
    fit(model, Plan(steps=3, lr=1e-3, batch_size=8, evaluate_every=0))
    path = export(model, None, tmp_path / "toy", "masked", task="toy0")
    texts = [row["text"] for row in model.tasks["toy0"].rows("dev")]
    plain = AutoModelForSequenceClassification.from_pretrained(path).eval()
    with torch.no_grad():
        batch = model.tokenizer(texts, padding=True, return_tensors="pt")
        chances = plain(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits.softmax(-1)
    found = model.predict("toy0", texts)
    assert [plain.config.id2label[i] for i in chances.argmax(-1).tolist()] == [record.label for record in found]
    wanted = torch.tensor([list(record.probabilities.values()) for record in found])
    torch.testing.assert_close(chances, wanted, atol=1e-5, rtol=1e-4)


def test_a_cut_classifier_opens_in_a_program_without_headwise(tmp_path):
    model = toy_model(output_heads="native").eval()
    path = export(model, MASK, tmp_path / "cut", "masked", task="toy1")
    ids = torch.randint(5, 30, (3, 8), generator=torch.Generator().manual_seed(0))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    save_file(inputs, tmp_path / "cut.inputs")
    line = [sys.executable, "-c", FRESH, str(path), "AutoModelForSequenceClassification"]
    done = subprocess.run(line, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ""})
    assert done.returncode == 0, done.stderr
    with gated(model.encoder, (~MASK).float()), torch.no_grad():
        wanted = model("toy1", {**inputs, "label": torch.zeros(3, dtype=torch.long)}).scores
    torch.testing.assert_close(load_file(tmp_path / "cut.found")["logits"], wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("output_heads", ["linear", "native"])
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_taggers_and_question_answerers_open_in_transformers(tmp_path, family, output_heads):
    tasks = [task("tags", Tag(("A", "B"), pool="first"), sentences("A", "B"), "tag_accuracy")]
    tasks.append(task("qa", Answer(), QUESTIONS, "answer_f1"))
    model = MultiTaskModel(
        tiny(family, vocab_size=128), letters(), tasks, output_heads=output_heads, max_length=48
    ).eval()
    tagger = AutoModelForTokenClassification.from_pretrained(export(model, MASK, tmp_path / "t", "masked", task="tags"))
    answerer = AutoModelForQuestionAnswering.from_pretrained(export(model, MASK, tmp_path / "q", "masked", task="qa"))
    for name, plain in (("tags", tagger), ("qa", answerer)):
        batch = model.encode(name, "dev").batch(range(4))
        inputs = {k: batch[k] for k in ("input_ids", "attention_mask", "token_type_ids") if k in batch}
        with torch.no_grad(), gated(model.encoder, (~MASK).float()):
            wanted, answer = model(name, batch).scores, plain.eval()(**inputs)
        if name == "qa":
            real = batch["attention_mask"].bool()
            torch.testing.assert_close(answer.start_logits[real], wanted.start[real], atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(answer.end_logits[real], wanted.end[real], atol=1e-5, rtol=1e-4)
        else:
            first = torch.tensor([[row.tolist().index(w) for w in range(4)] for row in batch["word_of"]])
            torch.testing.assert_close(
                answer.logits.gather(1, first[..., None].expand(-1, -1, 2)), wanted, atol=1e-5, rtol=1e-4
            )


def test_a_pipeline_gives_the_same_labels(tmp_path):
    model = toy_model(output_heads="native").eval()
    path = export(model, None, tmp_path / "toy", "masked", task="toy0")
    texts = [row["text"] for row in model.tasks["toy0"].rows("dev")]
    found = pipeline("text-classification", str(path), device="cpu")(texts)
    wanted = model.predict("toy0", texts)
    assert [each["label"] for each in found] == [record.label for record in wanted]
    assert [each["score"] for each in found] == pytest.approx([max(r.probabilities.values()) for r in wanted], abs=1e-4)


def test_entities_are_bio_tags_of_first_sub_words(tmp_path):
    rows = sentences("B-X", "I-X", "O", "B-Y")
    model = native(
        "bert", task("ner", Spans(), rows, "span_f1"), task("tag", Tag(), sentences("A", "B"), "tag_accuracy")
    )
    assert model.tasks["ner"].kind == Tag(("O", "B-X", "I-X", "B-Y", "I-Y"), pool="first", learnt=True)
    assert model.tasks["tag"].kind.pool == "first"
    fit(model, Plan(steps=60, lr=5e-3, batch_size=4, evaluate_every=0))
    back = MultiTaskModel.load(model.save_pretrained(tmp_path / "m"), [task("ner", Spans(), rows, "span_f1")])
    words = rows[0]["words"]
    assert back.predict("ner", [words])[0].tags == model.predict("ner", [words])[0].tags
    path = export(back, None, tmp_path / "ner", "masked", task="ner")
    found = pipeline("token-classification", str(path), device="cpu", aggregation_strategy="first")(" ".join(words))
    groups = {each["entity_group"] for each in found}
    assert groups == {tag[2:] for tag in back.predict("ner", [words])[0].tags if tag != "O"}


def test_native_and_own_output_heads_stand_side_by_side(tmp_path):
    rows = [{**row, "heads": [0, 1, 2, 3]} for row in sentences("A", "B")]
    graded = [{"text": "the dog", "label": 0.0}, {"text": "a cat", "label": 4.0}]
    model = native("distilbert", task("dep", Dependencies(), rows, "las"), task("sts", Regress(), graded, "spearman"))
    with pytest.raises(HeadwiseError, match="kind dependencies, for which transformers has no class"):
        export(model, None, tmp_path / "dep", "masked", task="dep")
    plain = AutoModelForSequenceClassification.from_pretrained(
        export(model, None, tmp_path / "s", "masked", task="sts")
    )
    assert plain.config.problem_type == "regression" and plain.config.num_labels == 1


def test_what_is_saved_comes_back_and_is_measured(tmp_path):
    model = toy_model(output_heads="native").eval()
    model.give_scales()
    with torch.no_grad():
        model.scales_of("toy0").uniform_(0.5, 1.5)
    back = MultiTaskModel.load(model.save_pretrained(tmp_path / "m"), toy_tasks()).eval()
    assert back.describe() == model.describe() and back.output_heads == "native"
    assert back.predict("toy0", ["w1 m0a"]) == model.predict("toy0", ["w1 m0a"])
    assert torch.isfinite(importance(back, "toy0", examples=16).scores).all()
    plain = AutoModelForSequenceClassification.from_pretrained(
        export(back, None, tmp_path / "p", "masked", task="toy0")
    )
    batch = back.encode("toy0", "dev").batch(range(4))
    with torch.no_grad():
        logits = plain.eval()(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        torch.testing.assert_close(logits, back("toy0", batch).scores, atol=1e-5, rtol=1e-4)


def test_a_family_whose_encoder_comes_without_a_pooler_gets_one(tmp_path):
    words = [f"w{i}" for i in range(20)] + ["m0a", "m0b"]
    encoder = AutoModel.from_config(tiny("bert").config, add_pooling_layer=False)
    model = MultiTaskModel(encoder, tiny_tokenizer(words), toy_tasks(1, rows=12), output_heads="native").eval()
    assert any("pooler" in name for name, _ in model.head("toy0").named_parameters())
    path = export(model, None, tmp_path / "toy", "masked", task="toy0")
    assert json.loads((path / "config.json").read_text())["architectures"] == ["BertForSequenceClassification"]


def test_a_linear_classifier_is_refused_with_what_to_type(tmp_path):
    with pytest.raises(HeadwiseError, match=r"linear output head.*output_heads=\"native\""):
        export(toy_model(), None, tmp_path / "toy", "masked", task="toy0")
    with pytest.raises(HeadwiseError, match="toy0"):
        export(toy_model(), None, tmp_path / "toy", "masked", task="toy9")
    with pytest.raises(HeadwiseError, match="a MultiTaskModel"):
        export(tiny("bert"), None, tmp_path / "toy", "masked", task="toy0")
    with pytest.raises(HeadwiseError, match="linear, native"):
        toy_model(output_heads="naive")
    with pytest.raises(HeadwiseError, match="layer="):
        toy_model(output_heads="native", layer=1)
    assert list(tmp_path.iterdir()) == []


def test_a_masked_export_of_a_whole_model_opens_as_an_encoder_too(tmp_path):
    model = toy_model().eval()
    path = export(model, MASK, tmp_path / "cut", "masked")
    back = MultiTaskModel.load(path).eval()
    plain = AutoModel.from_pretrained(path).eval()
    batch = model.encode("toy0", "dev").batch(range(4))
    with torch.no_grad(), gated(model.encoder, (~MASK).float()):
        wanted = model("toy0", batch)
        states = model.hidden(batch).states
    with torch.no_grad():
        torch.testing.assert_close(back("toy0", batch).scores, wanted.scores, atol=1e-5, rtol=1e-4)
        found = plain(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
    torch.testing.assert_close(found, states, atol=1e-5, rtol=1e-4)
    again = export(back, None, tmp_path / "sliced", "sliced")  # and from there on
    assert MultiTaskModel.load(again).eval().predict("toy0", ["w1"])[0].label == back.predict("toy0", ["w1"])[0].label
    assert plain_model(replace_output(back), "toy0") is not None


def replace_output(model: MultiTaskModel) -> MultiTaskModel:
    """The same encoder with the output heads of transformers."""
    tasks = [replace(each, kind=Classify(each.kind.labels)) for each in model.tasks.values()]
    return MultiTaskModel(model.encoder, model.tokenizer, tasks, output_heads="native").eval()
