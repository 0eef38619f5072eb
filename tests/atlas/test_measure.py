"""Roles of a model are sums over its attention maps; planted heads are found; nothing depends on batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import headwise
from headwise.atlas.measure import roles
from headwise.atlas.texts import annotated, batched
from headwise.atlas.weightings import CONTENT, POSITION, SHAPE, weightings
from headwise.errors import HeadwiseError
from headwise.heads.attention import eager, streamed, whole_maps
from headwise.heads.gates import Heads
from headwise.testing import no_dropout, tiny, tiny_batch, tiny_tokenizer

WORDS = [f"w{i}" for i in range(20)]
TEXTS = [" ".join(WORDS[(i * k) % 20] for k in range(2, 5 + i % 7)) for i in range(1, 24)]
FAMILIES = ["bert", "roberta", "distilbert", "albert", "gpt2", "llama", "gemma3_text", "modernbert", "deberta-v2"]


@pytest.mark.parametrize("family", FAMILIES)
def test_maps_stream_in_the_order_of_layers_and_are_those_of_the_model(family):
    model = no_dropout(tiny(family)).eval()
    heads, batch, seen = Heads.of(model), tiny_batch(model), {}
    with torch.no_grad(), streamed(model, lambda layer, a: seen.setdefault(layer, a.clone()), heads) as forward:
        forward(**batch)
    with torch.no_grad(), eager(model) as maps:
        expected = whole_maps(maps(**batch), heads)
    assert list(seen) == [site.layer for site in heads.sites if site.module is not None]
    for layer, found in seen.items():
        assert torch.equal(found, expected[layer][:, list(heads.sites[layer].kept)])


def test_scores_are_sums_over_maps_whatever_the_batches():
    model, tokenizer = no_dropout(tiny("bert")), tiny_tokenizer(WORDS)
    found, small = (roles(model, tokenizer, TEXTS, repeats=0, tokens=n) for n in (10_000, 40))
    known = {**POSITION, **CONTENT}
    np.testing.assert_allclose(found.score[:5], small.score[:5], atol=1e-6)
    [batch] = batched(annotated(tokenizer, TEXTS, (), 64), 0, False, "cpu", 10_000)
    with torch.no_grad(), eager(model) as maps:
        layers = torch.stack(maps(input_ids=batch.ids_BT, attention_mask=batch.mask_BT.long()), 1)
    weights, _ = weightings(batch, list(known.values()))
    by_hand = torch.einsum("blhij,brij->rblh", layers, weights)
    for r, name in enumerate(known):
        asked = weights[:, r].flatten(1).any(1)
        assert found.texts[found.index(name)] == int(asked.sum())
        if asked.any():
            np.testing.assert_allclose(found.score[found.index(name)], by_hand[r, asked].mean(0), atol=1e-6)


@pytest.mark.parametrize(("role", "offset"), [("previous", -1), ("next", 1), ("self", 0)])
def test_a_planted_head_is_found_and_no_other(role, offset, monkeypatch):
    """One head of a model with absolute positions is made to attend to a neighbour: it alone has the role."""
    model, tokenizer = (
        no_dropout(tiny("bert", num_attention_heads=4, hidden_size=64, max_position_embeddings=32)),
        tiny_tokenizer(WORDS),
    )
    attention = model.encoder.layer[1].attention.self
    forward = type(attention).forward

    def planted(self, *args, **kwargs):
        out, maps = forward(self, *args, **kwargs)[:2]
        if self is attention:
            size = maps.shape[-1]
            place = (torch.arange(size) + offset).clamp(0, size - 1)
            maps = maps.clone()
            maps[:, 2] = torch.nn.functional.one_hot(place, size).float()
        return out, maps

    monkeypatch.setattr(type(attention), "forward", planted)
    found = roles(model, tokenizer, TEXTS, repeats=0)
    assert found.top(role, 1)[0]["head"] == "1.2" and found.top(role, 1)[0]["score"] > 0.85
    assert found.names[found.strongest()[1, 2]] == role
    assert (found.strongest() == found.index(role)).sum() == 1


def test_an_untrained_model_has_no_roles_beyond_its_own_floor():
    model, tokenizer = no_dropout(tiny("bert")), tiny_tokenizer(WORDS)
    found = roles(model, tokenizer, TEXTS, repeats=8, untrained=True, seed=3)
    assert np.isfinite(found.untrained[: len(POSITION)]).all()
    assert (found.strongest() >= 0).mean() < 0.5


def test_heads_that_were_cut_and_layers_without_attention_are_absent():
    model, tokenizer = no_dropout(tiny("bert")), tiny_tokenizer(WORDS)
    mask = torch.zeros(Heads.of(model).shape, dtype=torch.bool)
    mask[0, 1] = mask[1, 3] = True
    whole = roles(model, tokenizer, TEXTS, repeats=0)
    cut = roles(headwise.prune(model, mask), tokenizer, TEXTS, repeats=0)
    assert np.isnan(cut.score[0][mask.numpy()]).all() and np.isfinite(cut.score[0][~mask.numpy()]).all()
    np.testing.assert_allclose(cut.score[0, 0, [0, 2, 3]], whole.score[0, 0, [0, 2, 3]], atol=1e-6)
    assert (cut.strongest()[mask.numpy()] == -1).all()


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_of_an_encoder_with_a_decoder_the_encoder_is_measured(family):
    model, tokenizer = tiny(family), tiny_tokenizer(["the", "cat", "saw", "a", "dog"])
    texts = ["the cat saw a dog", "a dog saw the cat", "the dog saw a cat"] * 4
    with pytest.raises(HeadwiseError, match=r'stack="encoder"'):
        roles(model, tokenizer, texts)
    with pytest.raises(HeadwiseError, match="roles of the stack 'cross'; expected encoder"):
        roles(model, tokenizer, texts, stack="cross")
    found = roles(model, tokenizer, texts, stack="encoder", repeats=4)
    alone = roles(model.get_encoder(), tokenizer, texts, repeats=4)
    assert found.score.shape[1:] == (2, 4) and np.array_equal(found.score, alone.score, equal_nan=True)


def test_what_cannot_be_measured_is_refused():
    model, tokenizer = tiny("bert"), tiny_tokenizer(WORDS)
    with pytest.raises(HeadwiseError, match="no tokenizer"):
        headwise.roles(model)
    with pytest.raises(HeadwiseError, match="two or more"):
        headwise.roles(model, tokenizer, ["one text"])
    with pytest.raises(HeadwiseError, match=r"unknown role 'inductoin'.*induction"):
        roles(model, tokenizer, TEXTS).top("inductoin")


def test_the_model_is_left_as_it_was():
    model, tokenizer = tiny("bert"), tiny_tokenizer(WORDS)
    model.train()
    before = model.config._attn_implementation, {n: len(m._forward_hooks) for n, m in model.named_modules()}
    roles(model, tokenizer, TEXTS, repeats=4)
    assert before == (model.config._attn_implementation, {n: len(m._forward_hooks) for n, m in model.named_modules()})
    assert model.training


@pytest.mark.realweights
def test_minilm_has_its_previous_token_head():
    from headwise.models.loading import load_encoder
    from headwise.study.demo import encoder_folder

    found = roles(*load_encoder(encoder_folder()), repeats=0, untrained=True)
    best = found.top("previous", 1)[0]
    assert best["head"] == "0.2" and best["score"] > 0.99 and best["p"] < 1e-6
    assert found.names[found.strongest()[0, 2]] == "previous"


def test_focus_and_distance_describe_heads_and_name_none():
    """A head that attends to one token alone is all focus, one that attends evenly none; neither has a role by it."""
    model, tokenizer = no_dropout(tiny("bert")), tiny_tokenizer(WORDS)
    found = roles(model, tokenizer, TEXTS, repeats=0)
    [batch] = batched(annotated(tokenizer, TEXTS, (), 64), 0, False, "cpu", 10_000)
    seen, size = batch.visible_BTT.sum(-1), batch.ids_BT.shape[1]
    even = (batch.visible_BTT / seen.clamp_min(1)[..., None])[:, None]
    one = torch.eye(size).expand(len(seen), 1, size, size)
    torch.testing.assert_close(SHAPE["focus"].measured(batch, even), torch.zeros(len(seen), 1), atol=1e-6, rtol=0)
    torch.testing.assert_close(SHAPE["focus"].measured(batch, one), torch.ones(len(seen), 1))
    weights, controls = weightings(batch, [SHAPE["distance"]])
    assert (weights[:, 0] * even[:, 0]).sum((1, 2)).allclose((controls[:, 0] * even[:, 0]).sum((1, 2)), atol=1e-5)
    assert (weights[:, 0] * one[:, 0]).sum() == 0
    for name in ("focus", "distance"):
        assert not found.holds()[found.index(name)].any()
        assert ((found.score[found.index(name)] > 0) & (found.score[found.index(name)] < 1)).all()


def test_a_head_that_follows_links_has_their_role_and_loses_it_when_words_are_shuffled(monkeypatch):
    """The first head of layer 1 attends from w3 to w7, wherever they stand; links say so of every text."""
    model, tokenizer = no_dropout(tiny("bert")), tiny_tokenizer(WORDS)
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(24):
        words = [WORDS[i] for i in rng.permutation([3, 7, *rng.choice(np.arange(8, 20), 6, replace=False)])]
        rows.append({"words": words, "links": {"mine": [(words.index("w3"), words.index("w7"))]}})
    attention, now = model.encoder.layer[1].attention.self, {}
    forward, whole = type(attention).forward, type(model).forward
    three, seven = tokenizer.convert_tokens_to_ids(["w3", "w7"])

    def planted(self, *args, **kwargs):
        out, maps = forward(self, *args, **kwargs)[:2]
        if self is attention:
            maps = maps.clone()
            for b, ids in enumerate(now["ids"]):
                maps[b, 0, ids == three] = (ids == seven).float()
        return out, maps

    def noted(self, input_ids=None, **kwargs):
        now["ids"] = input_ids
        return whole(self, input_ids=input_ids, **kwargs)

    monkeypatch.setattr(type(attention), "forward", planted)
    monkeypatch.setattr(type(model), "forward", noted)
    found = roles(model, tokenizer, rows, repeats=0, shuffled=True)
    best = found.top("mine", 1)[0]
    assert best["head"] == "1.0" and best["score"] == pytest.approx(1) and best["control"] < 0.5
    assert found.shuffled[found.index("mine"), 1, 0] < 0.5


def test_a_language_model_is_measured_in_several_ways_at_once():
    from headwise.testing import toy_language_model

    lm = toy_language_model("llama", dtype=torch.float32)
    words = [f"w{i}" for i in range(20)]
    texts = [" ".join(words[i % 5 : 9 + i % 7]) for i in range(8)]
    found = roles(lm, texts=texts, by=["attention", "copying", "writing", "functions"], repeats=4)
    assert {"previous", "induction", "retrieval", "name mover", "function", "antonym"} <= set(found.names)
    assert found.score.shape[1:] == (2, 4) and len(found.texts) == len(found.names)
    assert np.isfinite(found.score[found.index("function")]).all()
