"""Task models of transformers as subjects: their own classifier, labels and predictions."""

from __future__ import annotations

import pytest
import torch
import transformers

from headwise.dissociation.lesions import dissociate
from headwise.errors import HeadwiseError
from headwise.measuring.evaluate import evaluate
from headwise.models.plain import TaskModel
from headwise.scoring.importance import importance
from headwise.tasks.kinds.answer import Answer
from headwise.tasks.kinds.classify import Classify, Regress
from headwise.tasks.kinds.tag import Tag
from headwise.tasks.kinds.tree import Dependencies
from headwise.tasks.task import Rows, Task
from headwise.testing import tiny, tiny_tokenizer

WORDS = [f"w{i}" for i in range(12)]


def texts(labels, column="text", count=12):
    rows = [{"text": f"w{i} w{i * 5 % 12} w{i * 7 % 12}"[: 5 + 3 * (i % 3)], "label": labels[i % len(labels)]}
            for i in range(count)]  # fmt: skip
    return Rows(train=rows, dev=rows)


def checkpoint(tmp_path, purpose, labels, family="bert", **settings):
    config = tiny(family).config
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: i for i, label in enumerate(labels)}
    config.update(settings)
    torch.manual_seed(0)
    model = getattr(transformers, f"AutoModelFor{purpose}").from_config(config)
    model.save_pretrained(tmp_path / "model")
    tiny_tokenizer(WORDS).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def sentiment(tmp_path):
    return checkpoint(tmp_path, "SequenceClassification", ["NEGATIVE", "POSITIVE"])


def test_a_classifier_predicts_what_it_predicts_in_transformers(sentiment):
    source = texts(["positive", "negative"])
    subject = TaskModel.from_pretrained(sentiment, [Task("reviews", Classify(), source, "accuracy")])
    assert subject.tasks["reviews"].kind.labels == ("NEGATIVE", "POSITIVE")
    score = evaluate(subject, "reviews")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(sentiment).eval()
    expected = [int(model(**subject.tokenizer(row["text"], return_tensors="pt")).logits.argmax()) for row in source.dev]
    assert score.predictions == expected
    assert score.golds == [{"positive": 1, "negative": 0}[row["label"]] for row in source.dev]


@pytest.mark.parametrize("names", [["0", "1"], ["Positive", "negative"]])
def test_labels_may_be_numbers_or_in_any_case(sentiment, names):
    subject = TaskModel.from_pretrained(sentiment, [Task("reviews", Classify(), texts(names), "accuracy")])
    assert set(evaluate(subject, "reviews").golds) == {0, 1}


def test_labels_the_checkpoint_does_not_know_are_refused_with_its_own(sentiment):
    subject = TaskModel.from_pretrained(sentiment, [Task("reviews", Classify(), texts(["good", "bad"]), "accuracy")])
    with pytest.raises(HeadwiseError, match=r"label 'good' of 'reviews'.*NEGATIVE, POSITIVE"):
        evaluate(subject, "reviews")


def test_a_checkpoint_without_names_takes_the_order_of_the_task(tmp_path):
    path = checkpoint(tmp_path, "SequenceClassification", ["LABEL_0", "LABEL_1"])
    kind = Classify(("not_entailment", "entailment"))
    subject = TaskModel.from_pretrained(path, [Task("rte", kind, texts(["entailment", "not_entailment"]), "accuracy")])
    assert evaluate(subject, "rte").golds[:2] == [1, 0]


def test_heads_of_one_checkpoint_are_measured_on_several_tasks(sentiment):
    tasks = [Task(name, Classify(), texts(["positive", "negative"]), "accuracy") for name in ("one", "two")]
    subject = TaskModel.from_pretrained(sentiment, tasks)
    scores = {name: importance(subject, name) for name in subject.tasks}
    torch.testing.assert_close(scores["one"].scores, scores["two"].scores)
    assert dissociate(subject, scores, 0.25, random=2, undefined="leave", close="mean").tasks == ("one", "two")


def test_a_tagger_reads_the_first_sub_word_and_long_texts_in_windows(tmp_path):
    path = checkpoint(tmp_path, "TokenClassification", ["O", "B-PER", "I-PER"])
    rows = [{"words": WORDS[: 3 + i], "labels": ["O", "B-PER", "I-PER", *["O"] * i]} for i in range(8)]
    task = Task("ner", Tag(), Rows(train=rows, dev=rows), "tag_accuracy")
    whole = TaskModel.from_pretrained(path, [task])
    model = transformers.AutoModelForTokenClassification.from_pretrained(path).eval()
    tags = evaluate(whole, "ner").predictions
    for row, found in zip(rows, tags):
        logits = model(**whole.tokenizer([row["words"]], is_split_into_words=True, return_tensors="pt")).logits
        assert found == [whole.labels[i] for i in logits[0, 1:-1].argmax(-1).tolist()]
    assert importance(TaskModel.from_pretrained(path, [task], max_length=6), "ner").scores.isfinite().all()


def test_questions_and_grades(tmp_path):
    rows = [{"question": "w1 w2", "context": "w3 w4 w5 w6", "answers": ["w4"], "starts": [3]} for _ in range(6)]
    path = checkpoint(tmp_path / "qa", "QuestionAnswering", ["LABEL_0", "LABEL_1"])
    subject = TaskModel.from_pretrained(path, [Task("qa", Answer(), Rows(train=rows, dev=rows), "answer_f1_en")])
    assert evaluate(subject, "qa").examples == 6 and importance(subject, "qa").scores.isfinite().all()
    path = checkpoint(tmp_path / "sts", "SequenceClassification", ["LABEL_0"], problem_type="regression")
    grades = Task("sts", Regress(0, 1), texts([0.0, 0.5, 1.0]), "pearson")
    assert evaluate(TaskModel.from_pretrained(path, [grades]), "sts").examples == 12


def test_a_base_model_and_the_wrong_kind_are_refused(sentiment, tmp_path):
    tiny("bert").save_pretrained(tmp_path / "base")
    with pytest.raises(HeadwiseError, match="no output head"):
        TaskModel.from_pretrained(tmp_path / "base", [])
    rows = Rows(train=[{"words": ["w1"], "labels": ["O"]}])
    with pytest.raises(HeadwiseError, match="a model for TokenClassification"):
        TaskModel.from_pretrained(sentiment, [Task("t", Tag(("O",)), rows, "tag_accuracy")])
    with pytest.raises(HeadwiseError, match="MultiTaskModel"):
        TaskModel.from_pretrained(sentiment, [Task("t", Dependencies(("root",)), Rows(), "las")])
