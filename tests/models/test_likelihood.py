"""Likelihoods: equal to a loop of one text at a time, however rows are batched, padded and cached."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from headwise.errors import HeadwiseError
from headwise.heads.gates import gated
from headwise.models.likelihood import Reader, branch
from headwise.testing import tiny, toy_language_model

CAUSAL = [
    "llama",
    "gpt2",
    "gpt_neox",
    "gemma3_text",
    "gemma2",
    "mistral",
    "bloom",
    "opt",
    "mpt",
    "falcon",
    "phi",
    "gptj",
]
CLOSE = {"gemma2": 1e-4, **dict.fromkeys(("mpt", "gptj", "bloom", "falcon"), 1e-6)}
CHOICES = ["short", "pairs", "several", "after"]


def one_by_one(lm: Any, task: str) -> list[list[float]]:
    """The log-likelihood of every choice by plain forwards over one text at a time."""
    kind, found = lm.tasks[task].kind, []
    for row in lm.tasks[task].rows("dev"):
        choices = [row["target"]] if "target" in row else row["choices"]
        pairs = [kind.reading.pair(row["prompt"], choice, lm.tokenizer) for choice in choices]
        found.append([ALONE[lm.reader.form](lm.model, lm.tokenizer, pair) for pair in pairs])
    return found


@torch.no_grad()
def causal_alone(model: Any, tokenizer: Any, pair: Any) -> float:
    ids = torch.tensor([[*pair.prompt, *pair.continuation]])
    logp = model(input_ids=ids).logits[0].log_softmax(-1)
    return float(sum(logp[i - 1, ids[0, i]] for i in range(len(pair.prompt), ids.shape[1])))


@torch.no_grad()
def masked_alone(model: Any, tokenizer: Any, pair: Any) -> float:
    ids, total = torch.tensor([[*pair.prompt, *pair.continuation, *pair.end]]), 0.0
    for place in range(len(pair.prompt), len(pair.prompt) + len(pair.continuation)):
        hidden = ids.clone()
        hidden[0, place] = tokenizer.mask_token_id
        total += float(model(input_ids=hidden).logits[0, place].log_softmax(-1)[ids[0, place]])
    return total


@torch.no_grad()
def seq2seq_alone(model: Any, tokenizer: Any, pair: Any) -> float:
    answer = [model.config.decoder_start_token_id, *pair.continuation]
    output = model(input_ids=torch.tensor([pair.prompt]), decoder_input_ids=torch.tensor([answer[:-1]]))
    logp = output.logits[0].log_softmax(-1)
    return float(sum(logp[i, token] for i, token in enumerate(pair.continuation)))


ALONE = {"causal": causal_alone, "masked": masked_alone, "seq2seq": seq2seq_alone}


def in_batches(lm: Any, task: str, size: int) -> list[list[float]]:
    data, found = lm.encode(task, "dev"), []
    for start in range(0, len(data), size):
        batch = data.batch(range(start, min(len(data), start + size)))
        with torch.no_grad():
            rows = lm.reader.likelihoods(batch).total.tolist()
        found += [row[:count] for row, count in zip(rows, (batch["tokens"] > 0).sum(1).tolist())]
    return found


def assert_alike(one: list[list[float]], other: list[list[float]], rel: float = 1e-9) -> None:
    assert len(one) == len(other)
    for left, right in zip(one, other):
        assert left == pytest.approx(right, rel=rel, abs=rel)


@pytest.mark.parametrize("family", CAUSAL)
@pytest.mark.parametrize("task", CHOICES)
def test_causal_likelihoods_are_those_of_one_text_at_a_time(family, task):
    # Some families compute attention in float32 whatever their weights are; Gemma 2 cannot mask float64 then.
    lm = toy_language_model(family, torch.float32 if family == "gemma2" else torch.float64)
    expected = one_by_one(lm, task)
    for cache in (True, False):
        lm.reader.cache = cache and lm.reader.cache
        for size in (1, 5, 12):
            assert_alike(in_batches(lm, task, size), expected, CLOSE.get(family, 1e-9))


@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert", "t5", "bart"])
@pytest.mark.parametrize("task", CHOICES)
def test_masked_and_seq2seq_likelihoods_are_those_of_one_text_at_a_time(family, task):
    lm = toy_language_model(family)
    assert lm.reader.form == ("seq2seq" if family in ("t5", "bart") else "masked")
    expected = one_by_one(lm, task)
    for size in (1, 5, 12):
        assert_alike(in_batches(lm, task, size), expected)


def test_most_families_branch_their_cache_off():
    assert all(toy_language_model(family).reader.cache for family in ("llama", "gemma3_text", "gpt2", "phi"))
    assert not toy_language_model("llama", cache=False).reader.cache


def test_a_branch_leaves_the_cache_as_it_was():
    model = tiny("llama", auto="AutoModelForCausalLM")
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        cache = model(input_ids=ids, use_cache=True).past_key_values
        before = cache.layers[0].keys.clone()
        model(input_ids=ids[:, :2], past_key_values=branch(cache))
    assert torch.equal(cache.layers[0].keys, before)


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("family", ["llama", "bert"])
def test_gates_per_example_hold(family, cache):
    lm = toy_language_model(family, cache=cache)
    batch = lm.encode("several", "dev").batch(range(6))
    heads = lm.attention
    gates = torch.rand(6, *heads.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), gated(lm.backbone, gates):
        together = lm("several", batch).loss
    for i in range(6):
        alone = lm.encode("several", "dev").batch([i])
        with torch.no_grad(), gated(lm.backbone, gates[i]):
            assert torch.allclose(lm("several", alone).loss, together[i : i + 1], rtol=1e-9)


def test_what_choices_share_is_computed_once():
    lm = toy_language_model("llama")
    batch = lm.encode("short", "dev").batch(range(12))
    calls = []
    handle = lm.model.model.register_forward_hook(lambda *_: calls.append(1))
    lm("short", batch)
    assert len(calls) == 1  # two choices of one token
    handle.remove()


def test_only_places_that_count_are_scored():
    lm = toy_language_model("llama")
    seen = []
    handle = lm.model.lm_head.register_forward_hook(lambda module, args, out: seen.append(out.shape[:-1].numel()))
    lm("short", lm.encode("short", "dev").batch(range(12)))
    handle.remove()
    assert seen == [12]


def test_greedy_says_whether_decoding_gives_the_text():
    lm = toy_language_model("llama")
    found = in_batches(lm, "after", 4)
    batch = lm.encode("after", "dev").batch(range(12))
    greedy = lm.reader.likelihoods(batch).greedy
    for row, (text, says) in enumerate(zip(lm.tasks["after"].rows("dev"), greedy[:, 0].tolist())):
        pair = lm.tasks["after"].kind.reading.pair(text["prompt"], text["target"], lm.tokenizer)
        ids = torch.tensor([pair.prompt])
        with torch.no_grad():
            out = lm.model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=len(pair.continuation), do_sample=False
            )
        assert says == (out[0, ids.shape[1] :].tolist() == pair.continuation), found[row]


@pytest.mark.parametrize("family", ["llama", "gpt2", "t5", "bart"])
@pytest.mark.parametrize("cache", [True, False])
def test_generation_is_greedy_decoding(family, cache):
    lm = toy_language_model(family, cache=cache)
    batch = lm.encode("asked", "dev").batch(range(12))
    rows = lm.reader.generate(batch, 4, lambda row: False, lm.tokenizer.eos_token_id)
    for row, text in zip(rows, lm.tasks["asked"].rows("dev")):
        ids = torch.tensor([lm.tokenizer.encode(text["prompt"])])
        stop = {"eos_token_id": 2, "pad_token_id": 0, "forced_eos_token_id": None, "use_cache": False}
        with torch.no_grad():
            out = lm.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=4, do_sample=False, **stop)
        start = 1 if lm.reader.form == "seq2seq" else ids.shape[1]
        expected = out[0, start:].tolist()
        assert row == (expected[: expected.index(2)] if 2 in expected else expected)


def test_a_model_without_a_head_is_refused():
    with pytest.raises(HeadwiseError, match="no language-model head"):
        Reader(tiny("llama"), "causal")
