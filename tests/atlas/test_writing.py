"""A head whose value is made to be the token's own unembedding moves names; one that writes the next, succeeds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headwise.atlas.writing import Listing, name_listings, successor_listings, writing, written
from headwise.errors import HeadwiseError
from headwise.heads.gates import Heads
from headwise.testing import no_dropout, tiny, tiny_tokenizer

WORDS = [*["A", "B", "C", "D", "E", "F", "G", "H"], *[f"{a}{b}" for a in "xyz" for b in "abcdefgh"]]


def model_with(head: int, shift: int, family: str = "llama"):
    """In the first layer, one head's value is the embedding, and what it writes is the unembedding ``shift`` on."""
    model = no_dropout(tiny(family, auto="AutoModelForCausalLM", num_key_value_heads=4, hidden_size=24))
    layer, size = model.model.layers[0], 6
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(torch.randn(64, 24, generator=torch.Generator().manual_seed(0)))
        layer.input_layernorm.weight.fill_(1.0)
        model.model.norm.weight.fill_(1.0)
        read = torch.linalg.qr(torch.randn(24, 24, generator=torch.Generator().manual_seed(1)))[0][:size]
        layer.self_attn.v_proj.weight[head * size : (head + 1) * size] = read
        values = model.model.embed_tokens.weight @ read.T
        model.lm_head.weight.copy_(20 * torch.roll(values, shift, 0) @ read)
        layer.self_attn.o_proj.weight[:, head * size : (head + 1) * size] = read.T
    return model


@pytest.mark.parametrize(("shift", "role"), [(0, "name mover"), (1, "successor")])
def test_a_planted_head_writes_what_it_should(shift, role):
    model, tokenizer = model_with(2, shift), tiny_tokenizer(WORDS)
    letters = {"letters": WORDS[:8]}
    found = writing(model, tokenizer, letters, count=20)
    best = found.top(role, 1)[0]
    assert best["head"] == "0.2" and best["score"] > 0.5 and best["control"] < 0.2 and best["p"] < 0.01


def test_single_outputs_pass_the_norms_that_the_forward_applies():
    """In Gemma a norm stands behind the projection; a head's score is the same as of what truly joins the stream."""
    model = no_dropout(tiny("gemma3_text", auto="AutoModelForCausalLM"))
    heads = Heads.of(model)
    listing = Listing(
        np.arange(3, 13), np.arange(10), np.arange(3, 13), np.arange(10), np.roll(np.arange(10), 1), np.full(10, -1)
    )
    before = written(model, "name mover", "", [listing], heads).score
    with torch.no_grad():
        norm = model.model.layers[1].post_attention_layernorm
        norm.weight.copy_(torch.randn(24, generator=torch.Generator().manual_seed(3)) * 3)
    after = written(model, "name mover", "", [listing], heads).score
    np.testing.assert_array_equal(before[0, 0], after[0, 0])
    assert (before[0, 1] != after[0, 1]).any()


def test_listings_say_which_candidate_is_meant():
    tokenizer = tiny_tokenizer(WORDS)
    for each in name_listings(tokenizer, 3):
        assert (each.candidates[each.target] == each.ids[each.places]).all() and (each.control != each.target).all()
    for each in successor_listings(
        tokenizer, {"letters": ["A", "B", "C", "D", "E", "F", "G", "H"], "none": ["no", "such"]}, 3
    ):
        said = tokenizer.convert_ids_to_tokens(each.ids[each.places].tolist())
        after = tokenizer.convert_ids_to_tokens(each.candidates[each.target].tolist())
        assert [chr(ord(a) + 1) for a in said] == after
        assert (each.barred != each.target).all() and (each.candidates[each.barred] == each.ids[each.places]).all()


def test_a_model_without_an_unembedding_is_refused():
    with pytest.raises(HeadwiseError, match="predicts no tokens"):
        writing(tiny("llama"), tiny_tokenizer(WORDS))
