"""Heads are a language's by what they do for it; a mask learns a few gates, lowers the loss, and changes no weight."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headwise.atlas.languages import _role, _shares, language_heads, language_roles, soft_mask
from headwise.errors import HeadwiseError
from headwise.heads.gates import Heads
from headwise.scoring.importance import importance
from headwise.scoring.result import Importance
from headwise.scoring.stability import Blocks
from headwise.testing import no_dropout, tiny, tiny_tokenizer, toy_language_model

SAID = {"en": ["a dog ran", "the cat saw a dog", "a cat ran"], "es": ["un perro", "el gato vio un perro", "un gato"]}


def needs(**maps):
    blocks = Blocks(np.ones((2, 2, 2)), np.ones(2))
    return {
        name: Importance(name, "gradient", torch.tensor(m), torch.zeros(2, 2), 8, blocks) for name, m in maps.items()
    }


def test_language_heads_have_a_larger_share_in_their_language():
    given = needs(en=[[4.0, 1.0], [1.0, 4.0]], es=[[1.0, 9.0], [9.0, 1.0]], fr=[[1.0, 1.0], [9.0, 1.0]])
    assert language_heads(given, "es", 1) == [(0, 1)]  # 1.0 is as much French
    assert set(language_heads(given, "en", 2)) == {(1, 1), (0, 0)}
    with pytest.raises(HeadwiseError, match="another to compare"):
        language_heads(needs(en=[[1.0, 1.0], [1.0, 1.0]]), "en")
    with pytest.raises(HeadwiseError, match="k=9"):
        language_heads(given, "es", 9)


def test_a_mask_learns_its_gates_alone_and_the_loss_falls():
    lm = toy_language_model("llama")
    before = {name: p.clone() for name, p in lm.named_parameters()}
    mask = soft_mask(lm, "after", [(0, 1), (1, 2)], steps=25, size=12, examples=12)
    assert mask.losses[-1] < mask.losses[0] and mask.gates.shape == (2,)
    assert ((mask.gates > 0) & (mask.gates < 2)).all() and (np.abs(mask.gates - 1) > 0.01).all()
    full = mask.full((2, 4))
    assert full[0, 1] == pytest.approx(mask.gates[0]) and (full != 1).sum() == 2
    for name, parameter in lm.named_parameters():
        assert torch.equal(parameter, before[name]) and parameter.requires_grad and parameter.grad is None


def test_heads_that_are_not_there_are_refused():
    with pytest.raises(HeadwiseError, match="one or more remaining heads"):
        soft_mask(toy_language_model("llama"), "after", [])


def test_what_a_head_matters_to_a_text_is_its_share_of_all_importance():
    model = no_dropout(tiny("llama", auto="AutoModelForCausalLM"))
    tokenizer = tiny_tokenizer(" ".join(SAID["en"]).split())
    ids = torch.tensor([tokenizer(SAID["en"][1])["input_ids"]])
    known = importance(model, [{"input_ids": ids, "labels": ids}], by="token").scores.double().numpy()
    np.testing.assert_allclose(
        _shares(model, Heads.of(model), tokenizer, SAID["en"][1]), known / known.sum(), rtol=1e-4
    )


def test_a_head_of_a_language_matters_to_its_texts_alone():
    rng = np.random.default_rng(0)
    found = {name: rng.uniform(0.5, 1, (60, 2, 3)) for name in ("en", "es")}
    found["es"][:, 1, 2] *= 3
    role = _role("es", found)
    [best] = role.top("language es", 1)
    assert best["head"] == "1.2" and best["score"] == pytest.approx(0.74, abs=0.03)
    assert role.holds().sum() == 1
    np.testing.assert_allclose(role.control, 0.5, atol=0.05)


def test_shares_of_two_languages_make_one_and_follow_the_texts():
    model, tokenizer = (
        tiny("llama", auto="AutoModelForCausalLM"),
        tiny_tokenizer(" ".join(text for some in SAID.values() for text in some).split()),
    )
    found = language_roles(model, tokenizer, SAID)
    np.testing.assert_allclose(found.score.sum(0), 1)
    other = language_roles(model, tokenizer, {"en": SAID["es"], "es": SAID["en"]})
    np.testing.assert_allclose(other.score, found.score[::-1])
    assert all(p.requires_grad for p in model.parameters())
    with pytest.raises(HeadwiseError, match="3 texts in en; expected two languages"):
        language_roles(model, tokenizer, {"en": SAID["en"]})
    with pytest.raises(HeadwiseError, match="next token"):
        language_roles(tiny("bert"), tokenizer, SAID)
