"""What a model must give to be measured: the smallest subject is measured like any other."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from kindlaws import letters

from headwise.dissociation.lesions import dissociate
from headwise.errors import HeadwiseError, HeadwiseWarning
from headwise.heads.gates import gated
from headwise.measuring.evaluate import evaluate
from headwise.models.multitask import MultiTaskModel
from headwise.models.subject import Output, Subject
from headwise.scoring.importance import importance
from headwise.tasks.kinds.answer import Answer
from headwise.tasks.kinds.bracketing import Tree
from headwise.tasks.kinds.classify import Classify, Regress
from headwise.tasks.kinds.frames import Frames
from headwise.tasks.kinds.tag import Spans, Tag
from headwise.tasks.kinds.tree import Constituents, Dependencies
from headwise.tasks.own_files import own
from headwise.tasks.predictions import Labelled, Predictions
from headwise.tasks.readers.shape import check_heads
from headwise.tasks.task import Rows, Task
from headwise.testing import tiny, toy_model


class Mirrored(Subject):
    """Reads every text twice, forwards and with its marker hidden, as two rows of one forward."""

    def __init__(self, model: MultiTaskModel):
        super().__init__()
        self.model, self.tasks, self.tokenizer, self.max_length = model, model.tasks, model.tokenizer, 64

    @property
    def backbone(self):
        return self.model.encoder

    def rows(self, batch):
        return torch.arange(len(batch["input_ids"])).repeat_interleave(2)

    def forward(self, task, batch):
        ids, mask = batch["input_ids"].repeat_interleave(2, 0), batch["attention_mask"].repeat_interleave(2, 0)
        ids[1::2, 1] = 4
        states = self.backbone(input_ids=ids, attention_mask=mask).last_hidden_state[:, 0, :2]
        scores = states[::2] - states[1::2]
        return Output(self.tasks[task].kind.loss(scores, batch), scores)


@pytest.fixture(scope="module")
def subject():
    return Mirrored(toy_model(2, rows=24).double().eval())


def test_a_multitask_model_is_a_subject():
    model = toy_model(1, rows=8)
    assert isinstance(model, Subject) and model.backbone is model.encoder
    assert model.attention.shape == (2, 4)


def test_a_subject_of_few_lines_is_evaluated_and_dissociated(subject):
    gates = torch.stack([torch.ones(2, 4), torch.zeros(2, 4)])
    whole, closed = evaluate(subject, "toy0", gates)
    assert whole.predictions == evaluate(subject, "toy0").predictions and len(closed.predictions) == closed.examples
    scores = {task: importance(subject, task) for task in subject.tasks}
    assert dissociate(subject, scores, 0.5, random=2, undefined="leave").tasks == ("toy0", "toy1")


@pytest.mark.parametrize("by", ["gradient", "integrated_gradients", "ablation", "magnitude", "l0"])
def test_rows_of_an_example_are_counted_to_it(subject, by):
    options = {"steps": 3} if by in ("integrated_gradients", "l0") else {}
    found = importance(subject, "toy0", by, tokens=80, **options)
    assert found.examples == 24 and bool(found.scores.isfinite().all())


def test_gradients_of_examples_laid_out_as_rows_equal_a_loop_over_examples(subject):
    data, rows = subject.encode("toy0", "train"), []
    for item in range(len(data)):
        gates = torch.ones(2, 4, dtype=torch.float64, requires_grad=True)
        with gated(subject.backbone, gates):
            rows.append(torch.autograd.grad(subject("toy0", data.batch([item])).loss.sum(), gates)[0])
    found = importance(subject, "toy0", tokens=80).scores
    torch.testing.assert_close(found.double(), torch.stack(rows).abs().mean(0), rtol=1e-6, atol=1e-9)


WORDS = ["the", "dog", "barks", "."]
SENTENCE = {
    "words": WORDS,
    "labels": ["B-X", "I-X", "O", "O"],
    "heads": [2, 3, 0, 3],
    "tree": "(TOP (S (NP (DT the) (NN dog)) (VP (VBZ barks)) (. .)))",
    "frames": [{"predicate": 2, "arguments": [[0, 2, "A0"]]}],
}
OTHER = {**SENTENCE, "labels": ["O", "B-Y", "O", "O"]}
QUESTION = {
    "id": "1",
    "question": "who barks?",
    "context": "the dog barks . " * 20,
    "answers": ["the dog"],
    "starts": [0],
}
KINDS = {
    "tag": (Tag(), [SENTENCE, OTHER], "tag_accuracy"),
    "spans": (Spans(), [SENTENCE, OTHER], "span_f1"),
    "dep": (Dependencies(), [SENTENCE, OTHER], "las"),
    "con": (Constituents(), [SENTENCE, OTHER], "bracket_f1"),
    "srl": (Frames(widest=4), [SENTENCE, OTHER], "srl_f1"),
    "qa": (Answer(), [QUESTION, {**QUESTION, "id": "2"}], "answer_f1"),
    "grade": (Regress(1, 5), [{"text": "the dog", "label": 2.0}, {"text": "a cat", "label": 4.5}], "spearman"),
}


def model_of(*names: str) -> MultiTaskModel:
    tasks = [Task(name, KINDS[name][0], Rows(KINDS[name][1], KINDS[name][1]), KINDS[name][2]) for name in names]
    return MultiTaskModel(tiny("bert", vocab_size=128), letters(), tasks, max_length=48).eval()


def test_texts_pairs_rows_and_tables_are_predicted_alike():
    model = toy_model().eval()
    texts = ["w1 m0a w7", "w2 m0b", "w3"]
    found = model.predict("toy0", texts)
    assert [record.label for record in found] == [
        record.label for record in model.predict("toy0", pa.table({"text": texts}))
    ]
    assert found == model.predict("toy0", [{"text": text} for text in texts])
    assert found == model.predict("toy0", ({"review": text} for text in texts), columns={"text": "review"})
    assert model.predict("toy0", [texts[0]]) == model.predict("toy0", texts[0])
    for record in found:
        assert sum(record.probabilities.values()) == pytest.approx(1)
        assert record.label == max(record.probabilities, key=record.probabilities.__getitem__)
    pair = model.predict("toy0", [("w1 m0a", "w7")])
    assert pair == model.predict("toy0", [{"text": "w1 m0a", "text_b": "w7"}])


def test_predictions_are_those_of_evaluation():
    model = toy_model().eval()
    rows = model.tasks["toy0"].rows("dev")
    found = model.predict("toy0", [row["text"] for row in rows], tokens=64)
    labels = model.tasks["toy0"].kind.labels
    assert [labels.index(record.label) for record in found] == evaluate(model, "toy0").predictions


@pytest.mark.parametrize("name", ["tag", "spans", "dep", "con", "srl", "grade"])
def test_every_kind_says_what_evaluation_scores(name):
    model = model_of(name)
    rows = KINDS[name][1]
    given = [{"words": row["words"]} if "words" in row else row["text"] for row in rows]
    found = model.predict(name, given)
    scored = evaluate(model, name).predictions
    assert len(found) == len(rows)
    for record, want in zip(found, scored):
        if name == "tag":
            assert record.tags == want and len(record.probabilities) == len(record.words)
        elif name == "spans":
            assert record.spans == sorted(want)
        elif name == "dep":
            assert list(zip(record.heads, record.labels)) == want
            check_heads(record.heads)
        elif name == "con":
            tree = Tree.read(record.tree)
            assert tree.words == WORDS and sorted(tree.brackets()) == sorted(want)
        elif name == "srl":
            told = {(f["predicate"], *argument) for f in record.frames for argument in map(tuple, f["arguments"])}
            assert told == {frame for frame in want if frame[3] != "V"}
        else:
            assert record.value == pytest.approx(want)


def test_a_long_context_is_read_through_windows_and_answered_once():
    model = model_of("qa")
    found = model.predict("qa", [("who barks?", QUESTION["context"]), ("what?", "")])
    assert len(found) == 2 and found[0].answer == QUESTION["context"][found[0].start : found[0].end]
    assert found[0].answer == evaluate(model, "qa").predictions[0] and found[1].answer == ""


def test_words_may_come_as_a_text():
    model = model_of("tag")
    assert model.predict("tag", ["the dog barks ."]) == model.predict("tag", [WORDS])


@pytest.mark.parametrize(
    ("task", "inputs", "words"),
    [
        ("toy9", ["a"], "toy0"),
        ("toy0", [{"a": "x", "b": "y"}], "no column 'text', only a, b"),
        ("toy0", [3], "input 0: 3"),
        ("toy0", ["fine", {"text": None}], "input 1"),
        ("toy0", 3, "inputs that are a int"),
    ],
)
def test_inputs_that_do_not_fit_are_told_with_what_to_give(task, inputs, words):
    with pytest.raises(HeadwiseError, match=words):
        toy_model().predict(task, inputs)


def test_the_only_text_column_is_used_and_said():
    model = toy_model()
    with pytest.warns(HeadwiseWarning, match="using column 'sentence' as text"):
        found = model.predict("toy0", [{"id": 1, "sentence": "w1"}])
    assert found == model.predict("toy0", ["w1"])


def test_a_model_predicts_without_its_data_and_gets_it_later(tmp_path):
    model = toy_model().eval()
    back = MultiTaskModel.load(model.save_pretrained(tmp_path / "model")).eval()
    assert back.predict("toy1", ["w1 m1a"]) == model.predict("toy1", ["w1 m1a"])
    with pytest.raises(HeadwiseError, match=r"no rows of task 'toy0'.*add_data\(\"toy0\""):
        evaluate(back, "toy0")
    back.add_data("toy0", model.tasks["toy0"])
    assert evaluate(back, "toy0").predictions == evaluate(model, "toy0").predictions
    with pytest.raises(HeadwiseError, match="has changed"):
        back.add_data("toy1", replace(model.tasks["toy1"], kind=Classify(("x", "y"))))


def test_tasks_of_own_files_are_found_again(tmp_path):
    file = tmp_path / "reviews.csv"
    rows = "".join(f"w{i % 9} m0{'ab'[i % 2]} w{i},{'good' if i % 2 else 'bad'}\n" for i in range(20))
    file.write_text(f"review,verdict\n{rows}")
    model = toy_model(1)
    model.add(own(f"reviews={file}:review,verdict"))
    path = model.save_pretrained(tmp_path / "model")
    back = MultiTaskModel.load(path)
    assert back.tasks["reviews"].rows("dev") == model.tasks["reviews"].rows("dev")
    assert back.predict("reviews", [{"review": "w1", "verdict": "?"}]) == back.predict("reviews", ["w1"])
    file.write_text(f"review,verdict\n{rows}w3,good\n")
    with pytest.warns(HeadwiseWarning, match="reviews.csv of task 'reviews' changed"):
        MultiTaskModel.load(path)
    file.unlink()
    assert MultiTaskModel.load(path).predict("reviews", ["w1"])[0].label in ("good", "bad")


def test_predictions_are_written_beside_their_inputs(tmp_path):
    found = Predictions([Labelled("good", {"bad": 0.25, "good": 0.75})])
    inputs = [{"text": "a, b", "label": "?"}]
    with found.write(tmp_path / "p.csv", inputs).open(newline="") as file:
        assert list(csv.DictReader(file)) == [
            {"text": "a, b", "label": "?", "predicted_label": "good", "bad": "0.25", "good": "0.75"}
        ]
    assert json.loads(Path(found.write(tmp_path / "p.jsonl")).read_text()) == {
        "label": "good",
        "bad": 0.25,
        "good": 0.75,
    }
    assert "good</td>" in found._repr_html_() and "0.250</td>" in found._repr_html_()
    with pytest.raises(HeadwiseError, match=r"\.xlsx"):
        found.write(tmp_path / "p.xlsx")


def test_a_text_of_nothing_but_not_numbers_is_no_answer():
    model = toy_model().eval()
    with torch.no_grad():
        model.head("toy0").out.bias.fill_(torch.nan)
    with pytest.raises(HeadwiseError, match="NaN"):
        model.predict("toy0", ["w1"])
