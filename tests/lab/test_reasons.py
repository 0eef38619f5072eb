"""Effects are derivatives, a flipping set flips and none of it can be spared, attention is the model's."""

from __future__ import annotations

import base64

import numpy as np
import pytest
import torch
from kindlaws import letters

from headwise.errors import HeadwiseError
from headwise.heads.attention import eager
from headwise.lab.answers import Answers
from headwise.lab.questions import NEXT, Ask
from headwise.lab.reasons import Reasons
from headwise.models.multitask import MultiTaskModel
from headwise.tasks.lookup import kind_class
from headwise.tasks.task import Rows, Task
from headwise.testing import tiny, toy_language_model, toy_model

TEXT = "w1 m0a w3 w4 w5"


@pytest.fixture(scope="module")
def reasons() -> Reasons:
    """A model whose answer leans on its heads: what they write is large, and the encoder is in double precision."""
    model = toy_model(2).double().eval()
    with torch.no_grad():
        for name, parameter in model.encoder.named_parameters():
            if "attention.output.dense.weight" in name or "value" in name:
                parameter.mul_(8)
    return Reasons(Answers(model))


def ask_of(reasons, gates=None, **more) -> Ask:
    return Ask.read({"text": TEXT, "gates": gates, **more}, reasons.heads.shape)


@pytest.mark.parametrize("close", ["zero", "mean"])
def test_effects_are_the_derivatives_of_the_margin(reasons, close):
    layers, heads = reasons.heads.shape
    gates = [[0.7] * heads] * layers
    ask = ask_of(reasons, gates, close=close)
    found = reasons.effects(ask, "toy0")
    step = 1e-4
    for layer, head in [(0, 0), (1, 3)]:
        both = []
        for sign in (1, -1):
            moved = reasons.answers.gates(ask)
            moved[layer, head] += sign * step
            with torch.no_grad():
                both.append(float(reasons.margin(ask, "toy0", moved)[0]))
        assert found["effects"][layer][head] == pytest.approx((both[0] - both[1]) / (2 * step), rel=0.05, abs=1e-4)


def test_a_set_that_flips_does_and_no_head_of_it_can_be_spared(reasons):
    *steps, last = reasons.flipping(ask_of(reasons), "toy0")
    assert last["done"] and last["found"], "the answer of this model can be flipped"
    assert [step["step"] for step in steps] == list(range(len(steps))) and steps[-1]["margin"] <= 0 < steps[0]["margin"]
    whole = reasons.answers.under(ask_of(reasons))["toy0"]["label"]

    def label(closed) -> str:
        gates = torch.ones(reasons.heads.shape)
        for layer, head in closed:
            gates[layer, head] = 0
        return reasons.answers.under(ask_of(reasons, gates.tolist()))["toy0"]["label"]

    assert label(last["found"]) != whole
    for spared in last["found"]:
        assert label([head for head in last["found"] if head != spared]) == whole
    assert 0 <= last["flips"] <= last["random"]


def test_the_next_word_has_effects_too():
    reasons = Reasons(Answers(toy_language_model("llama", torch.float32)))
    found = reasons.effects(Ask.read({"text": "w1 w2"}, reasons.heads.shape), NEXT)
    assert found["margin"] > 0 and np.isfinite(np.array(found["effects"])).all()
    choice = Ask.read({"text": "w1 w2", "choices": ["w3", "w4 w5"]}, reasons.heads.shape)
    assert np.abs(np.array(reasons.effects(choice, "short")["effects"])).max() > 0


def test_a_question_has_the_next_best_span_to_be_ahead_of():
    rows = [{"question": "who barks", "context": "the dog barks a cat", "answers": ["dog"], "starts": [4]}] * 4
    task = Task("qa", kind_class("answer")(), Rows(train=rows, dev=rows), "answer_f1")
    torch.manual_seed(0)
    model = MultiTaskModel(tiny("bert", vocab_size=128), letters(), [task], max_length=48).eval()
    with torch.no_grad():
        for name, parameter in model.encoder.named_parameters():
            parameter.mul_(8 if "attention.output.dense.weight" in name or "value" in name else 1)
    reasons = Reasons(Answers(model))
    texts = {"text": rows[0]["question"], "other": rows[0]["context"]}
    *steps, last = reasons.flipping(Ask.read(texts, reasons.heads.shape), "qa")
    assert last["found"] and steps[0]["margin"] > 0 >= steps[-1]["margin"]
    gates = torch.ones(reasons.heads.shape)
    for layer, head in last["found"]:
        gates[layer, head] = 0
    found = reasons.answers.both(Ask.read({**texts, "gates": gates.tolist()}, reasons.heads.shape))
    assert found["before"]["qa"]["answer"] != found["after"]["qa"]["answer"]


def test_answers_without_a_single_number_are_refused():
    reasons = Reasons(Answers(toy_language_model("llama", torch.float32)))
    with pytest.raises(HeadwiseError, match="no single number"):
        reasons.effects(Ask.read({"text": "w1 w2", "choices": ["w3"]}, reasons.heads.shape), "after")


def test_attention_is_that_of_the_model_under_the_gates(reasons):
    ask = ask_of(reasons, [[0.0] * 4, [1.0] * 4])
    found = reasons.attention(ask, 1)
    model = reasons.subject
    batch = {
        name: value for name, value in model.tokenizer(TEXT, return_tensors="pt").items() if name != "token_type_ids"
    }
    with eager(model.encoder) as maps, model.gated(torch.tensor(ask.gates)), torch.no_grad():
        expected = maps(**batch)[1][0]
    size = len(found["tokens"])
    weights = np.frombuffer(base64.b64decode(found["weights"]), np.uint8).reshape(4, size, size) / 255
    assert np.abs(weights - expected.numpy()).max() <= 0.5 / 255 + 1e-9
    assert found["tokens"][0] == "[CLS]" and found["tokens"][1] == "w1"


def test_attention_of_texts_too_long_to_draw_is_refused(reasons):
    with pytest.raises(HeadwiseError, match=r"128 at most|longer"):
        reasons.attention(Ask.read({"text": "w1 " * 127}, reasons.heads.shape), 0)
