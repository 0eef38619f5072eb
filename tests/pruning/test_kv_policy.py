"""Streaming heads: nothing is lost within the window; prices are gradients; files are those that others read."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import DynamicCache

from headwise.errors import HeadwiseError
from headwise.pruning.kv_policy import (
    KVPolicy,
    Passage,
    kv_policy,
    losses,
    passages,
    policy_curve,
    streaming,
)
from headwise.testing import no_dropout, tiny, tiny_tokenizer

WORDS = [f"w{i}" for i in range(20)]


def lm(family: str = "llama", **config):
    return no_dropout(tiny(family, dtype=torch.float64, auto="AutoModelForCausalLM", **config))


def texts(count: int = 3, length: int = 24) -> list[Passage]:
    rng = np.random.default_rng(0)
    return [Passage(rng.integers(3, 60, length), np.arange(length // 2, length - 1)) for _ in range(count)]


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt2"])
def test_a_window_as_long_as_the_text_costs_nothing(family):
    model, [text, *_] = lm(family), texts()
    groups = 4 if family == "gpt2" else 2
    with torch.no_grad():
        whole = losses(model, [text])
        with streaming(model, np.ones((2, groups), bool), 0, 24):
            torch.testing.assert_close(losses(model, [text]), whole)
        with streaming(model, np.ones((2, groups), bool), 1, 3):
            assert (losses(model, [text]) - whole).abs().max() > 1e-3
        with streaming(model, np.zeros((2, groups), bool), 1, 3):
            torch.testing.assert_close(losses(model, [text]), whole)
    np.testing.assert_allclose(kv_policy(model, texts(), 0, 24).scores, 0, atol=1e-12)


def test_a_cache_and_no_cache_agree_on_what_streams():
    model = lm()
    ids = torch.randint(3, 60, (1, 20), generator=torch.Generator().manual_seed(1))
    mask = np.array([[True, False], [False, True]])
    with torch.no_grad(), streaming(model, mask, 2, 4):
        whole = model(input_ids=ids).logits[:, -1]
        past = model(input_ids=ids[:, :-1], use_cache=True).past_key_values
        torch.testing.assert_close(model(input_ids=ids[:, -1:], past_key_values=past).logits[:, -1], whole)


def test_a_price_is_the_slope_of_the_loss_as_a_head_is_mixed_with_its_streaming_self():
    """In one layer, where nothing before a head changes, the mix can be made by hand."""
    model, [text, *_] = lm(num_hidden_layers=1), texts()
    policy = kv_policy(model, [text], 1, 3)
    z = {}
    site = model.model.layers[0].self_attn.o_proj
    keep = lambda name: site.register_forward_pre_hook(lambda m, args: z.__setitem__(name, args[0]))  # noqa: E731
    with torch.no_grad():
        for name, mask in (("full", np.zeros((1, 2), bool)), ("near", np.ones((1, 2), bool))):
            hook = keep(name)
            with streaming(model, mask, 1, 3):
                losses(model, [text])
            hook.remove()
        for group in range(2):
            columns = torch.zeros(24, dtype=torch.float64)
            columns[group * 12 : (group + 1) * 12] = 1e-3  # two query heads of size six
            mixed = z["full"] + columns * (z["near"] - z["full"])
            whole = losses(model, [text]).mean()
            hook = site.register_forward_pre_hook(lambda m, args, mixed=mixed: (mixed,))
            slope = (losses(model, [text]).mean() - whole) / 1e-3
            hook.remove()
            assert policy.scores[0, group] == pytest.approx(slope.item(), rel=2e-2)


def test_the_cheapest_heads_stream_within_a_budget():
    policy = KVPolicy(np.array([[0.3, -0.1], [0.0, 2.0]]), np.zeros((2, 2)), sink=2, recent=8)
    assert policy.streaming(0.5).tolist() == [[False, True], [True, False]]
    assert policy.memory(policy.streaming(0.5), 100) == pytest.approx(0.55)
    for budget in (0.2, 0.55, 0.7, 1.0):
        mask = policy.within(budget, 100)
        assert policy.memory(mask, 100) <= budget + 1e-9
        if mask.any():
            fewer = policy.streaming((mask.sum() - 1) / 4)
            assert policy.memory(fewer, 100) > budget
    with pytest.raises(HeadwiseError, match="budget"):
        policy.within(0.05, 100)


def test_files_are_those_of_duo_attention(tmp_path):
    policy = KVPolicy(np.array([[0.3, -0.1], [0.0, 2.0]]), np.zeros((2, 2)), sink=2, recent=8)
    policy.save(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    gates = np.clip(np.loadtxt(tmp_path / "full_attention_heads.tsv", dtype=float, delimiter="\t"), 0, 1)
    assert (settings["sink_size"], settings["recent_size"]) == (2, 8)
    assert ((gates < np.quantile(gates, 0.5)) == policy.streaming(0.5)).all()  # as duo-attention cuts
    assert (np.argsort(gates, axis=None) == np.argsort(policy.scores, axis=None)).all()  # as kvpress cuts
    again = KVPolicy.load(tmp_path)
    assert np.array_equal(again.scores, policy.scores) and (again.sink, again.recent) == (2, 8)
    (tmp_path / "scores.json").unlink()
    assert (KVPolicy.load(tmp_path).streaming(0.5) == policy.streaming(0.5)).all()


def test_kvpress_reads_the_files_and_generates_the_same(tmp_path, monkeypatch):
    """Where kvpress is installed: its press closes the same heads, and the next token is as likely."""
    duo = pytest.importorskip("kvpress.presses.duo_attention_press")
    model = tiny("llama", auto="AutoModelForCausalLM", num_key_value_heads=2)
    policy = KVPolicy(np.array([[0.3, -0.1], [0.0, 2.0]]), np.zeros((2, 2)), sink=2, recent=4)
    text = {file.name: file.read_text() for file in policy.save(tmp_path).iterdir()}
    read = lambda url: (lambda t: SimpleNamespace(text=t, json=lambda: json.loads(t)))(text[url.rpartition("/")[2]])  # noqa: E731
    monkeypatch.setattr(duo, "requests", SimpleNamespace(get=read))
    monkeypatch.setitem(duo.PATTERNS_DICT, model.config.name_or_path, "ours")
    press = duo.DuoAttentionPress(head_compression_ratio=0.5)
    press.post_init_from_model(model)
    assert (press.streaming_mask.numpy() == policy.streaming(0.5)).all()
    ids = torch.randint(5, 60, (1, 20), generator=torch.Generator().manual_seed(0))
    pressed, full = DynamicCache(), DynamicCache()
    with torch.no_grad(), press(model):
        model(input_ids=ids[:, :-1], past_key_values=pressed, cache_position=torch.arange(19))
    with torch.no_grad():
        theirs = model(input_ids=ids[:, -1:], past_key_values=pressed).logits
        for layer in model.model.layers:
            layer.self_attn.masked_key_indices = None
        model(input_ids=ids[:, :-1], past_key_values=full)
        with streaming(model, policy.streaming(0.5), policy.sink, policy.recent + 1):  # the window then ends one later
            ours = model(input_ids=ids[:, -1:], past_key_values=full).logits
    torch.testing.assert_close(theirs, ours, atol=1e-5, rtol=0)


def test_a_curve_compares_the_same_memory():
    model = lm()
    policy = kv_policy(model, texts(), 1, 3)
    none, half, every = policy_curve(model, texts(4), policy, [0, 0.5, 1], random=2)
    assert none["policy"] == pytest.approx(none["random"]) and none["memory"] == 1
    assert half["memory"] == pytest.approx((1 + 4 / 24) / 2) and half["window"] == 13
    assert every["window"] == 3 and every["policy"] == pytest.approx(every["uniform"])
    assert half["low_uniform"] <= half["below_uniform"] <= half["high_uniform"]
    assert half["below_uniform"] == pytest.approx(half["uniform"] - half["policy"])


def test_what_cannot_stream_is_refused(tmp_path):
    with pytest.raises(HeadwiseError, match="keeps no cache"):
        kv_policy(tiny("bert"), texts())
    with pytest.raises(HeadwiseError, match="no texts"):
        kv_policy(lm(), [])
    with pytest.raises(HeadwiseError, match="layers by key-value heads"), streaming(lm(), np.ones((2, 4), bool)):
        pass
    with pytest.raises(HeadwiseError, match=r"KVPolicy\.save"):
        KVPolicy.load(tmp_path)


def test_passages_are_cut_from_running_text():
    tokenizer = tiny_tokenizer(WORDS)
    found = passages(tokenizer, [" ".join(WORDS)] * 5, 16, 4, count=3)
    assert [len(p.ids) for p in found] == [16] * 3 and found[0].asked.tolist() == [11, 12, 13, 14]
    with pytest.raises(HeadwiseError, match=r"15 or more|16 or more"):
        passages(tokenizer, ["w1"], 16, 4)
