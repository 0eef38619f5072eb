"""Answers in the lab are those of `predict` under the same gates, and of `evaluate` for language models."""

from __future__ import annotations

import pytest
import torch

from headwise.errors import HeadwiseError
from headwise.heads.gates import gated
from headwise.lab.answers import PART, Answers, DevelopmentScores, Kept, texts_of
from headwise.lab.questions import NEXT, Ask
from headwise.measuring.evaluate import evaluate
from headwise.measuring.references import head_outputs, matched_tokens, mean
from headwise.models.multitask import MultiTaskModel
from headwise.tasks.kinds.classify import Classify, Regress
from headwise.tasks.kinds.tag import Tag
from headwise.tasks.task import Rows, Task
from headwise.testing import tiny, tiny_tokenizer, toy_language_model, toy_model

WORDS = [f"w{i}" for i in range(20)]
TEXT = "w1 w2 w3 w4 w5"


def answers_of(answers: Answers, gates, text=TEXT, **more):
    return answers.under(Ask.read({"text": text, "gates": gates, **more}, answers.heads.shape))


@pytest.fixture(scope="module")
def mixed() -> MultiTaskModel:
    """A task of each of several kinds on one encoder."""
    texts = [{"text": f"w{i} w{i + 1} w2", "label": "ab"[i % 2]} for i in range(8)]
    graded = [{"text": row["text"], "label": float(i % 5)} for i, row in enumerate(texts)]
    tagged = [{"words": row["text"].split(), "labels": ["N", "V", "N"]} for row in texts]
    data = {"cls": (Classify(("a", "b")), texts), "grade": (Regress(0, 5), graded), "tags": (Tag(("N", "V")), tagged)}
    tasks = [Task(n, kind, Rows(rows, rows), "accuracy") for n, (kind, rows) in data.items()]
    torch.manual_seed(0)
    return MultiTaskModel(tiny("bert"), tiny_tokenizer(WORDS), tasks, pooling="mean").eval()


def same(found, expected) -> bool:
    """The numbers of two predictions, to 1e-5."""
    if hasattr(expected, "value"):
        return abs(found["value"] - expected.value) < 1e-5
    mine = list(found["probabilities"].values() if isinstance(found["probabilities"], dict) else found["probabilities"])
    other = expected.probabilities
    other = list(other.values() if isinstance(other, dict) else other)
    labels = found.get("label", found.get("tags")) == getattr(expected, "label", getattr(expected, "tags", None))
    return labels and max(abs(a - b) for a, b in zip(mine, other)) < 1e-5


@pytest.mark.parametrize("close", ["zero", "mean", "resample"])
def test_answers_are_those_of_predict_under_the_same_gates(mixed, gates, close):
    answers = Answers(mixed)
    found = answers_of(answers, gates, close=close)
    ask = Ask.read({"text": TEXT, "gates": gates, "close": close}, answers.heads.shape)
    group = answers.question(ask).groups[0]
    assert {one.task for one in group} == {"cls", "grade", "tags"}, "one forward for all"
    reference = answers.reference(ask, group)
    with gated(mixed.encoder, torch.tensor(gates), reference):
        for name in mixed.tasks:
            assert same(found[name], mixed.predict(name, [TEXT])[0])
    if close == "mean":
        assert torch.allclose(
            reference, torch.stack([mean(mixed, n, split="dev") for n in mixed.tasks]).mean(0).float()
        )


def test_resampled_heads_return_what_they_do_on_a_development_example(mixed, gates):
    answers = Answers(mixed)
    references = []
    for seed in range(4):
        ask = Ask.read({"text": TEXT, "gates": gates, "close": "resample", "seed": seed}, answers.heads.shape)
        references.append(answers.reference(ask, answers.question(ask).groups[0]))
    assert not all(torch.equal(references[0], other) for other in references[1:])
    own = torch.ones(1, references[0].shape[1], dtype=torch.bool)
    donors = []
    for row in mixed.tasks["cls"].rows("dev"):
        batch = next(answers.batches(answers.encoded("cls", [row])))[1]
        real, z = head_outputs(mixed, "cls", batch)
        donors.append(z.take_along_dim(matched_tokens(own, real)[:, :, None, None, None], 1))
    assert all(any(torch.allclose(r, d) for d in donors) for r in references)


def test_before_has_all_heads_open_and_is_computed_once(mixed, gates, monkeypatch):
    answers, forwards = Answers(mixed), []
    mixed.encoder.register_forward_hook(lambda *_: forwards.append(1))
    ask = Ask.read({"text": TEXT, "gates": gates}, answers.heads.shape)
    first = answers.both(ask)
    assert same(first["before"]["cls"], mixed.predict("cls", [TEXT])[0]) and len(forwards) == 3
    answers.both(Ask.read({"text": TEXT, "gates": gates[::-1]}, answers.heads.shape))
    assert len(forwards) == 4, "one forward for a changed mask, whatever the number of tasks"


def test_factors_of_a_task_are_its_own(gates):
    model = toy_model(2).eval()
    model.give_scales(["toy0"])
    with torch.no_grad():
        model.scales_of("toy0").fill_(0.3)
    found = answers_of(Answers(model), gates)
    with gated(model.encoder, torch.tensor(gates)):
        assert all(same(found[name], model.predict(name, [TEXT])[0]) for name in model.tasks)


def test_a_text_no_task_can_read_says_why(mixed, gates):
    found = answers_of(Answers(mixed), gates, text=" ")
    assert all("no text" in found[name]["problem"] for name in mixed.tasks)
    long = answers_of(Answers(mixed), gates, text="w1 " * 600)
    assert "longer than" in long["cls"]["problem"]


@pytest.mark.parametrize("family", ["llama", "bert"])
def test_a_language_model_says_next_words_and_choices(family):
    lm = toy_language_model(family, torch.float32)
    answers = Answers(lm)
    layers, heads = answers.heads.shape
    gates = [[0.0] * heads] + [[1.0] * heads] * (layers - 1)
    text = "w1 w2 [MASK] w4" if family == "bert" else "w1 w2 w3"
    found = answers_of(answers, gates, text, choices=["w5 w6", "w7"])
    ids = lm.tokenizer(text, return_tensors="pt")
    ids = {name: ids[name] for name in ("input_ids", "attention_mask")}
    place = ids["input_ids"][0].tolist().index(lm.tokenizer.mask_token_id) if family == "bert" else -1
    with lm.gated(torch.tensor(gates)), torch.no_grad():
        chances = lm.model(**ids).logits[0, place].softmax(-1)
    words = found[NEXT]["words"]
    assert abs(words[0][1] - float(chances.max())) < 1e-5 and len(words) == 12
    row = {"prompt": text, "choices": ["w5 w6", "w7"], "label": 0}
    batch = next(answers.batches(answers.encoded("short", [row])))[1]
    with lm.gated(torch.tensor(gates)), torch.no_grad():
        scores = lm.tasks["short"].kind.scores_of(lm("short", batch).scores, batch)[0].double().softmax(-1)
    assert [name for name, _ in found["short"]["probabilities"]] == ["w5 w6", "w7"]
    assert all(abs(a - float(b)) < 1e-5 for (_, a), b in zip(found["short"]["probabilities"], scores))
    assert found["after"]["form"] == "continuation"
    assert "no masked word" in answers_of(answers, gates, "w1 w2")[NEXT].get("problem", "no masked word")


def test_resampled_heads_of_a_language_model_return_one_token_of_another_prompt():
    lm = toy_language_model("llama", torch.float32)
    answers = Answers(lm)
    ask = Ask.read({"text": "w1 w2", "gates": [[0.0] * 4] * 2, "close": "resample"}, answers.heads.shape)
    assert answers.reference(ask, None).shape == (*answers.heads.shape, answers.heads.head_dim)
    assert NEXT in answers.both(ask)["after"]


def test_a_mean_without_development_rows_is_refused(gates):
    rows = [{"text": "w1 w2", "label": "a"}, {"text": "w3", "label": "b"}]
    task = Task("bare", Classify(("a", "b")), Rows(train=rows), "accuracy")
    model = MultiTaskModel(tiny("bert"), tiny_tokenizer(WORDS), [task])
    with pytest.raises(HeadwiseError, match="no development rows"):
        answers_of(Answers(model), gates, close="mean")


def test_what_is_kept_is_bounded():
    kept = Kept[int](3)
    assert [kept.get(i, lambda i=i: i) for i in range(9)] == list(range(9))
    assert list(kept.values) == [6, 7, 8]
    kept.get(6, lambda: 0), kept.get(9, lambda: 9)
    assert list(kept.values) == [8, 6, 9]


def under(answers: Answers, limit: int = 240, **data) -> list[dict]:
    return list(DevelopmentScores(answers, limit).under(Ask.read(data, answers.heads.shape)))


def test_scores_end_where_evaluate_is(gates):
    answers = Answers(toy_model(2).eval())
    found = under(answers, gates=gates)
    assert [one["n"] for one in found if one["task"] == "toy0"] == [PART, 2 * PART, 3 * PART]
    for name in answers.subject.tasks:
        last = [one for one in found if one["task"] == name][-1]
        scores = evaluate(answers.subject, name, torch.stack([torch.ones(2, 4), torch.tensor(gates)]))
        assert last["intact"] == pytest.approx(scores[0].value) and last["value"] == pytest.approx(scores[1].value)
        assert last["low"] <= last["value"] <= last["high"] and last["n"] == last["of"] == 48
        other = sum(a != b for a, b in zip(scores[0].predictions, scores[1].predictions))
        assert last["flipped"] == other and len(last["examples"]) == min(5, other)


def test_an_example_that_the_mask_changes_does_change(gates):
    answers = Answers(toy_model(2).eval())
    closed = [[0.0] * 4] * 2
    last = next(one for one in reversed(under(answers, gates=closed)) if one["flipped"])
    example = last["examples"][0]
    both = answers.both(Ask.read({"text": example["text"], "gates": closed}, answers.heads.shape))
    assert both["before"][last["task"]]["label"] != both["after"][last["task"]]["label"]


@pytest.mark.parametrize("close", ["mean", "resample"])
def test_other_references_are_measured_too(close, gates):
    answers = Answers(toy_model(2).eval())
    assert {one["task"] for one in under(answers, 20, gates=gates, close=close)} == {"toy0", "toy1"}


def test_language_models_are_measured_and_their_rows_shown():
    answers = Answers(toy_language_model("llama", torch.float32))
    found = under(answers, gates=[[0.0] * 4, [1.0] * 4])
    assert {one["task"] for one in found} == {"short", "pairs", "several", "after", "asked"}
    shown = texts_of(answers.rows("short")[0])
    assert shown["text"] == answers.rows("short")[0]["prompt"] and shown["label"] in shown["choices"]
