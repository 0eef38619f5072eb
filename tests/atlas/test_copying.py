"""Needles say again what they said; retrieval counts the tokens that are copied; closing all heads ends it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headwise.atlas.copying import _elsewhere, copied, copying_curve, needles, retrieval
from headwise.errors import HeadwiseError
from headwise.heads.gates import Heads
from headwise.testing import tiny, tiny_tokenizer

WORDS = ["the", "secret", "words", "are", *[f"{a}{b}" for a in "abcde" for b in "xyz"]]
HAY = ["the words are ax", "bx by bz", "cx are cy"]


def model_and_texts(count: int = 4):
    tokenizer = tiny_tokenizer(WORDS)
    return tiny("llama", auto="AutoModelForCausalLM"), needles(
        tokenizer, HAY, count, 40, "The secret words are".lower(), 3
    )


def test_a_needle_stands_once_in_the_hay_and_once_at_the_end():
    _, texts = model_and_texts(5)
    depths = [text.source[0] for text in texts]
    assert depths == sorted(depths) and depths[0] < 8 and depths[-1] > 20
    for text in texts:
        assert len(text.ids) == 40
        assert (text.ids[text.source] == text.ids[text.asked + 1]).all()
        assert (text.asked > text.source).all() and text.asked[-1] == len(text.ids) - 2


def test_only_copied_tokens_count(monkeypatch):
    """A model whose logits are made to copy has scores; one that copies nothing has none."""
    model, texts = model_and_texts()
    nothing = retrieval(model, [t for t in texts if copied(model, [t])[0] == 0])
    assert np.isnan(nothing.score).all() and (nothing.strongest() == -1).all()
    forward = type(model).forward

    def copying(self, input_ids=None, **kwargs):
        out = forward(self, input_ids=input_ids, **kwargs)
        out.logits = torch.nn.functional.one_hot(input_ids.roll(-1, 1), 64).float()
        return out

    monkeypatch.setattr(type(model), "forward", copying)
    assert (copied(model, texts) == 1).all()
    found = retrieval(model, texts)
    assert found.texts[0] == len(texts) and (found.score >= 0).all() and (found.score <= 1).all()


def test_a_planted_retrieval_head_is_found(monkeypatch):
    model, texts = model_and_texts(6)
    attention = model.model.layers[1].self_attn
    forward, whole = type(attention).forward, type(model).forward
    now: dict = {}

    def planted(self, *args, **kwargs):
        out, maps = forward(self, *args, **kwargs)[:2]
        if self is attention:
            maps = maps.clone()
            maps[:, 3] = 0
            for asked, source in zip(now["text"].asked, now["text"].source):
                maps[:, 3, asked, source] = 1
            maps[:, 3, -1, 0] = 1
        return out, maps

    def copying(self, input_ids=None, **kwargs):
        now["text"] = next(t for t in texts if (t.ids == input_ids[0].numpy()).all())
        out = whole(self, input_ids=input_ids, **kwargs)
        out.logits = torch.nn.functional.one_hot(input_ids.roll(-1, 1), 64).float()
        return out

    monkeypatch.setattr(type(attention), "forward", planted)
    monkeypatch.setattr(type(model), "forward", copying)
    [best] = retrieval(model, texts).top("retrieval", 1)
    assert best["head"] == "1.3" and best["score"] == 1 and best["control"] == 0


def test_a_curve_closes_as_many_heads_as_it_says():
    model, texts = model_and_texts(3)
    scores = np.arange(8.0).reshape(Heads.of(model).shape)
    rows = copying_curve(model, texts, scores, [0, 2, 8], random=2)
    assert [row["heads"] for row in rows] == [0, 2, 8]
    assert rows[0]["copied"] == rows[0]["random"] == copied(model, texts).mean()


def test_random_heads_are_others_of_the_same_layers_while_there_are_any():
    top, alive, rng = np.zeros((3, 4), bool), np.ones((3, 4), bool), np.random.default_rng(0)
    top[0, 1] = top[1, :2] = True
    drawn = _elsewhere(top, alive, rng)
    assert drawn.sum(1).tolist() == [1, 2, 0] and not (drawn & top).any()
    top[1] = True  # none left in this layer
    drawn = _elsewhere(top, alive, rng)
    assert drawn.sum() == top.sum() and not (drawn & top).any()
    assert (_elsewhere(alive, alive, rng) == alive).all()


def test_what_cannot_be_measured_is_refused():
    _, texts = model_and_texts()
    with pytest.raises(HeadwiseError, match="predicts no tokens"):
        retrieval(tiny("llama"), texts)
    with pytest.raises(HeadwiseError, match="0 texts"):
        copied(tiny("llama", auto="AutoModelForCausalLM"), [])
    with pytest.raises(HeadwiseError, match="filler"):
        needles(tiny_tokenizer(WORDS), HAY, length=10)
