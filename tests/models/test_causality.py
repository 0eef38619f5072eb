"""Causality is measured: whatever a model is called, its default vector of a text depends on the whole text."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import AutoConfig

from headwise.errors import HeadwiseWarning
from headwise.models import causality
from headwise.models.causality import _narrow, _random_model, default_pooling, is_causal, pooling_by_name
from headwise.models.multitask import MultiTaskModel
from headwise.probing.features import Reader
from headwise.testing import tiny, tiny_tokenizer, toy_tasks

CAUSAL = ("granite", "smollm3", "olmo3", "gemma", "glm4", "cohere2", "mixtral", "qwen3_moe", "gpt_oss", "granitemoe")
CAUSAL += ("olmo", "olmoe", "persimmon", "xglm", "biogpt", "seed_oss", "exaone4", "helium", "apertus", "ernie4_5")
CAUSAL += ("arcee", "gpt_bigcode", "mamba", "falcon_mamba", "openai-gpt", "opt", "diffllama")
ENCODERS = ("bert", "roberta", "mpnet", "distilbert", "deberta-v2", "modernbert", "electra", "albert", "xlnet", "fnet")
ENCODERS += ("roformer", "longformer", "ernie", "convbert", "eurobert", "nystromformer")


def small(family: str, **settings) -> torch.nn.Module:
    return _random_model(_narrow(AutoConfig.for_model(family, **settings))).eval()


def two_texts() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.tensor([[7, 9, 11, 13], [7, 8, 12, 15]]), "attention_mask": torch.ones(2, 4).long()}


@pytest.mark.parametrize("family", CAUSAL)
def test_texts_that_begin_alike_differ_by_default(family):
    """The first token of a causal model sees itself alone: every text would be the same to the output heads."""
    encoder = small(family)
    model = MultiTaskModel(encoder, tiny_tokenizer(), toy_tasks(1)).eval()
    assert model.pooling == "last"
    first, other = encoder(input_ids=two_texts()["input_ids"]).last_hidden_state[:, 0]
    assert torch.allclose(first, other, atol=1e-5), "so the first token says nothing of the text"
    one, other = model.hidden(two_texts()).pooled
    assert not torch.allclose(one, other, atol=1e-3)


@pytest.mark.parametrize("family", ENCODERS)
def test_what_reads_in_both_directions_keeps_its_first_token(family):
    assert default_pooling(small(family)) == "cls"


@pytest.mark.parametrize(
    ("family", "settings", "pooling"),
    [
        ("gemma3_text", {"use_bidirectional_attention": True}, "cls"),
        ("gemma3_text", {}, "last"),
        ("bert", {"is_decoder": True}, "last"),
        ("roberta", {"is_decoder": True}, "last"),
        ("llama", {"is_causal": False}, "cls"),
    ],
)
def test_the_configuration_can_turn_a_type_around(family, settings, pooling):
    assert default_pooling(small(family, **settings)) == pooling


@pytest.mark.parametrize(("family", "pooling"), [("bert", "cls"), ("llama", "last"), ("gpt2", "last"), ("t5", "cls")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_every_precision_says_the_same(family, pooling, dtype):
    auto = "AutoModelForTextEncoding" if family == "t5" else "AutoModel"
    assert default_pooling(tiny(family, dtype=dtype, auto=auto)) == pooling


@pytest.mark.parametrize("family", ["vit", "dinov2", "whisper"])
def test_pictures_and_sound_are_read_in_both_directions(family):
    assert default_pooling(tiny(family)) == "cls"


def test_one_position_has_no_order():
    assert default_pooling(tiny("gpt2", n_positions=1)) == "cls"


def test_a_model_is_measured_once_and_again_when_it_has_changed(monkeypatch):
    calls = []
    whole = causality._first_state_rests
    monkeypatch.setattr(causality, "_first_state_rests", lambda model: calls.append(1) or whole(model))
    model = tiny("llama")
    assert is_causal(model) and is_causal(model) and len(calls) == 1
    model.config.is_causal = False
    for layer in model.layers:
        layer.self_attn.is_causal = False
    assert not is_causal(model) and len(calls) == 2
    assert not is_causal(copy.deepcopy(model)) and len(calls) == 3


def test_measuring_leaves_no_trace():
    model = tiny("llama").train()
    model.layers[1].eval()
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    is_causal(model)
    assert torch.equal(torch.rand(2), expected)
    assert model.training and model.layers[0].training and not model.layers[1].training


@pytest.mark.parametrize(("family", "causal"), [("bert", False), ("llama", True), ("granite", True)])
def test_without_weights_the_configuration_decides_and_it_is_said(family, causal):
    with torch.device("meta"):
        model = causality.empty_model(_narrow(AutoConfig.for_model(family)))
    with pytest.warns(HeadwiseWarning, match="unverified"):
        assert is_causal(model) is causal


def test_tokens_that_do_not_mix_are_no_evidence():
    model = tiny("bert")
    with torch.no_grad():
        for layer in model.encoder.layer:
            layer.attention.output.dense.weight.zero_()
    with pytest.warns(HeadwiseWarning, match="no state depends on another token"):
        assert not is_causal(model)


@pytest.mark.parametrize("family", ["granite", "smollm3", "mixtral"])
def test_probes_read_the_token_that_has_seen_the_text(family):
    assert Reader.of(small(family), tiny_tokenizer()).at == "last"


@pytest.mark.parametrize(
    ("name", "pooling"),
    [
        ("openai-community/openai-gpt", "last"),
        ("facebook/opt-125m", "last"),
        ("gpt2-medium", "last"),
        ("EleutherAI/pythia-70m", "last"),
        ("HuggingFaceTB/SmolLM3-3B", "last"),
        ("ibm-granite/granite-3b", "last"),
        ("gemma3-270m", "last"),
        ("smollm2-135m", "last"),
        ("stories15m", "last"),
        ("google-bert/bert-base-uncased", "cls"),
        ("microsoft/deberta-v3-base", "cls"),
        ("huawei-noah/TinyBERT_General_6L_768D", "cls"),
        ("minilm-l6", "cls"),
        ("mpnet-base", "cls"),
        ("roberta-30m", "cls"),
        ("distilbert-cased", "cls"),
        ("somebody/something", "cls"),
    ],
)
def test_a_model_that_is_not_here_is_known_by_its_name(name, pooling):
    assert pooling_by_name(name, name) == pooling


@pytest.mark.parametrize(("family", "pooling"), [("granite", "last"), ("mpnet", "cls")])
def test_a_folder_is_known_by_its_configuration(family, pooling, tmp_path):
    small(family).config.save_pretrained(tmp_path / "bert-or-llama")
    assert pooling_by_name("mine", tmp_path / "bert-or-llama") == pooling


def test_a_large_configuration_needs_no_large_model(tmp_path):
    AutoConfig.for_model("llama", hidden_size=8192, num_hidden_layers=80, num_attention_heads=64).save_pretrained(
        tmp_path
    )
    assert pooling_by_name("large", tmp_path) == "last"
