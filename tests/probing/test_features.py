"""One pass over sentences gives what single forwards give."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from headwise.errors import HeadwiseError, HeadwiseWarning
from headwise.heads.cutting import prune
from headwise.heads.gates import captured, gated
from headwise.probing.features import Reader
from headwise.testing import tiny, tiny_tokenizer, toy_model

TEXTS = ["w1 w2 w3", "w4", "w5 w6 w7 w8 w9 w1", "w2 w2"]
ROWS = [{"text": text} for text in TEXTS]
TOKENIZER = tiny_tokenizer([f"w{i}" for i in range(10)])


def bare_tokenizer():
    """Words alone, without special tokens, as GPT's."""
    tokenizer = tiny_tokenizer([f"w{i}" for i in range(10)])
    tokenizer.backend_tokenizer.post_processor = None
    return tokenizer


def alone(model, ids, place):
    """Head outputs (L, H, D) and layer outputs (L, E) of one sentence by a forward of its own."""
    take = (lambda x: x.mean(1)) if place == "mean" else lambda x: x[:, place]
    with torch.no_grad(), captured(model, take) as kept:
        states = model(input_ids=torch.tensor([ids]), output_hidden_states=True).hidden_states
    return torch.cat(kept), torch.cat([take(state) for state in states[1:]])


@pytest.mark.parametrize("family", ["bert", "gpt2", "albert"])
@pytest.mark.parametrize(("at", "place"), [("cls", 0), ("last", -1), ("mean", "mean")])
def test_features_equal_single_forwards(family, at, place):
    model = tiny(family)
    found = Reader.of(model, TOKENIZER, at=at).read(ROWS)
    for number, text in enumerate(TEXTS):
        heads, layers = alone(model, TOKENIZER(text)["input_ids"], place)
        torch.testing.assert_close(found.heads[:, :, number], heads, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(found.layers[:, number], layers, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("cache", [False, True])
def test_means_come_from_the_same_pass(cache, tmp_path):
    model = tiny("bert")
    found = Reader.of(model, TOKENIZER, at="cls", means=True).read(ROWS, cache=tmp_path if cache else False)
    torch.testing.assert_close(found.means, Reader.of(model, TOKENIZER, at="mean").read(ROWS).layers)
    plain = Reader.of(model, TOKENIZER, at="cls").read(ROWS, cache=tmp_path if cache else False)
    torch.testing.assert_close(found.layers, plain.layers)
    assert plain.means is None and torch.equal(found.heads, plain.heads)


def test_post_last_reads_a_padding_token_after_the_sentence():
    model, tokenizer = tiny("gpt2"), bare_tokenizer()
    found = Reader.of(model, tokenizer, at="post_last").read(ROWS)
    for number, text in enumerate(TEXTS):
        heads, _ = alone(model, [*tokenizer(text)["input_ids"], 0], -1)
        torch.testing.assert_close(found.heads[:, :, number], heads, atol=1e-5, rtol=1e-4)


def test_the_default_position_follows_the_model():
    assert Reader.of(tiny("bert"), TOKENIZER).at == "cls"
    assert Reader.of(tiny("gpt2"), TOKENIZER).at == "last"
    assert Reader.of(toy_model(pooling="mean")).at == "mean"


def test_pairs_apart_and_together():
    reader = Reader.of(tiny("bert"), TOKENIZER)
    rows = [{"text": a, "text_b": b} for a, b in zip(TEXTS, reversed(TEXTS))]
    a, b = reader.read(ROWS), reader.read(ROWS[::-1])
    apart = reader.read(rows)
    torch.testing.assert_close(apart.heads, torch.cat([(a.heads - b.heads).abs(), a.heads * b.heads], -1))
    torch.testing.assert_close(apart.layers, torch.cat([(a.layers - b.layers).abs(), a.layers * b.layers], -1))
    together = Reader.of(tiny("bert"), TOKENIZER, pair="together").read(rows)
    assert together.heads.shape == a.heads.shape and not torch.allclose(together.heads, a.heads)


@pytest.mark.parametrize("order", [1, -1])
def test_rows_with_and_without_a_second_text_are_not_mixed_where_they_are_read_apart(order):
    rows = [{"text": "a dog barks"}, {"text": "a dog barks", "text_b": "a cat sleeps"}][::order]
    with pytest.raises(HeadwiseError, match="1 rows of 2 with a second text"):
        Reader.of(tiny("bert"), TOKENIZER).read(rows)
    assert len(Reader.of(tiny("bert"), TOKENIZER, pair="together").read(rows)) == 2


def test_reading_changes_neither_the_model_nor_its_mode():
    model = tiny("bert").train()
    before = [p.clone() for p in model.parameters()]
    found = Reader.of(model, TOKENIZER).read(ROWS)
    assert model.training and not found.heads.requires_grad
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))
    assert torch.equal(found.heads, Reader.of(model, TOKENIZER).read(ROWS).heads)  # no dropout


def test_little_memory_sends_features_to_disk(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path))
    reader = Reader.of(tiny("bert"), TOKENIZER)
    here, there = reader.read(ROWS), reader.read(ROWS, memory=100)
    assert here.place == "cpu" and there.place.startswith(str(tmp_path))
    assert torch.equal(here.heads, there.heads) and torch.equal(here.layers, there.layers)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_smaller_precisions_are_near(precision, tmp_path):
    whole = Reader.of(tiny("bert"), TOKENIZER).read(ROWS)
    small = Reader.of(tiny("bert"), TOKENIZER, precision=precision).read(ROWS, cache=tmp_path)
    assert small.heads.element_size() == 2
    torch.testing.assert_close(small.heads.float(), whole.heads, atol=0.02, rtol=0.02)


def test_a_cache_is_read_again_by_the_same_content_only(tmp_path, monkeypatch):
    model = tiny("bert")
    first = Reader.of(model, TOKENIZER).read(ROWS, cache=tmp_path)
    monkeypatch.setattr(Reader, "_fill", lambda *_: pytest.fail("made again"))
    again = Reader.of(model, TOKENIZER).read(ROWS, cache=tmp_path)
    assert torch.equal(first.heads, again.heads) and again.cut == 0
    with torch.no_grad():
        next(model.parameters())[0, 0] += 1e-3
    keys = {
        Reader.of(m, TOKENIZER, at=at).key(rows)
        for m, at, rows in (
            (model, "cls", ROWS),
            (tiny("bert"), "cls", ROWS),
            (model, "last", ROWS),
            (model, "cls", ROWS[:2]),
        )
    }
    assert len(keys) == 4


def test_a_model_that_changed_is_read_anew(tmp_path):
    reader = Reader.of(tiny("bert"), TOKENIZER)
    reader.read(ROWS, cache=tmp_path)
    with torch.no_grad():
        next(reader.encoder.parameters()).mul_(1.5)
    assert torch.equal(reader.read(ROWS, cache=tmp_path).layers, reader.read(ROWS).layers)


@pytest.mark.parametrize("how", [{"cache": True}, {"cache": True, "memory": 0}, {"memory": 0}], ids=str)
@pytest.mark.parametrize("gated_first", [True, False])
def test_what_is_read_under_gates_and_without_never_meets(how, gated_first, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path))
    reader, gates = Reader.of(tiny("bert"), TOKENIZER), torch.ones(2, 4)
    gates[0] = 0

    def layers(closed, **options):
        with gated(reader.encoder, gates) if closed else nullcontext():
            return reader.read(ROWS, **options).layers

    found = {closed: layers(closed, **how) for closed in (gated_first, not gated_first)}
    assert all(torch.equal(found[closed], layers(closed)) for closed in found)
    assert not torch.allclose(found[True], found[False])
    assert len(list(tmp_path.rglob("*"))) == 2  # the folder, and the file of what has no gates


@pytest.mark.parametrize("how", ["half written", "another model's"])
def test_a_bad_cache_is_refused_and_made_again(tmp_path, how):
    reader = Reader.of(tiny("bert"), TOKENIZER)
    good = reader.read(ROWS, cache=tmp_path)
    wanted, path = good.heads.clone(), tmp_path / f"{reader.key(ROWS)}.safetensors"
    if how == "half written":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    else:
        other = Reader.of(tiny("bert", seed=1), TOKENIZER)
        other.read(ROWS, cache=tmp_path)
        (tmp_path / f"{other.key(ROWS)}.safetensors").replace(path)
    with pytest.warns(HeadwiseWarning, match="rejected and rebuilt"):
        found = reader.read(ROWS, cache=tmp_path)
    assert torch.equal(found.heads, wanted)
    assert torch.equal(reader.read(ROWS, cache=tmp_path).heads, wanted)


def test_texts_that_were_cut_are_counted(tmp_path):
    reader = Reader.of(tiny("bert"), TOKENIZER, max_length=6)
    assert reader.read(ROWS).cut == 1
    reader.read(ROWS, cache=tmp_path)
    assert reader.read(ROWS, cache=tmp_path).cut == 1


def test_cut_heads_are_nan():
    model, mask = tiny("bert"), torch.zeros(2, 4, dtype=torch.bool)
    mask[1, 2] = True
    prune(model, mask)
    found = Reader.of(model, TOKENIZER).read(ROWS)
    assert found.heads[1, 2].isnan().all() and found.heads.isnan().sum() == found.heads[1, 2].numel()


def test_bad_input_is_told():
    model = tiny("bert")
    with pytest.raises(HeadwiseError, match="without its tokenizer"):
        Reader.of(model)
    with pytest.raises(HeadwiseError, match="position"):
        Reader.of(model, TOKENIZER, at="middle")
    with pytest.raises(HeadwiseError, match="precision"):
        Reader.of(model, TOKENIZER, precision="int8")
    with pytest.raises(HeadwiseError, match="no sentences"):
        Reader.of(model, TOKENIZER).read([])
    with pytest.raises(HeadwiseError, match="no tokens"):
        Reader.of(tiny("gpt2"), bare_tokenizer()).read([{"text": ""}])
