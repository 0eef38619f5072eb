"""Development scores come in part by part and end as `evaluate` has them."""

from __future__ import annotations

import pytest
import torch

from headwise.lab.answers import Answers
from headwise.lab.asks import Ask
from headwise.lab.scores import PART, DevelopmentScores, texts_of
from headwise.measuring.evaluate import evaluate
from headwise.testing import toy_language_model, toy_model


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
