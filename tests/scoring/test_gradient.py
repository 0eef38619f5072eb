"""Memory of importance, estimated from a row or two: what it is in truth, what is refused, what is cut."""

from __future__ import annotations

import pytest
import torch

from headwise.errors import HeadwiseError
from headwise.measuring.replay import checkpoints
from headwise.models import likelihood
from headwise.models.device import Live
from headwise.scoring import gradient
from headwise.scoring.importance import importance
from headwise.testing import layers_run_again, tiny, tiny_batch, toy_language_model


@pytest.fixture
def large(monkeypatch):
    """A model that counts as large, with batches of eight rows."""
    monkeypatch.setattr(gradient, "LARGE", 0)
    model = tiny("llama", auto="AutoModelForCausalLM", num_hidden_layers=4)
    batches = [
        {**tiny_batch(model, 8, 12, seed), "labels": tiny_batch(model, 8, 12, seed)["input_ids"]} for seed in (0, 1)
    ]
    return model, batches


def measured(model, batches, free, monkeypatch) -> list[str]:
    monkeypatch.setattr(gradient, "free_bytes", lambda device: free)
    lines: list[str] = []
    importance(model, batches, log=lines.append)
    return lines


def test_the_estimate_is_what_importance_takes(large, monkeypatch):
    model, batches = large
    line = measured(model, batches, 1e12, monkeypatch)[0]
    with Live() as live:
        importance(model, batches[:1], log=lambda line: None)
    monkeypatch.setattr(gradient, "LARGE", 1e12)
    with Live() as live:
        importance(model, batches, log=lambda line: None)
    estimate = float(line.split()[1])
    assert line.startswith("gradient: ") and "MB beside" in line and "for 96 tokens" in line
    assert estimate == pytest.approx(live.peak / 1e6, rel=0.1, abs=0.6)


def test_what_cannot_fit_is_refused_with_what_would(large, monkeypatch):
    with pytest.raises(HeadwiseError, match=r"importance needs .* are free.*fewer rows in a batch"):
        measured(*large, 1000, monkeypatch)


def test_a_task_goes_on_in_batches_that_fit(monkeypatch):
    from headwise.testing import toy_model

    model = toy_model(1)
    whole = importance(model, "toy0", tokens=512).scores
    monkeypatch.setattr(gradient, "LARGE", 0)
    lines: list[str] = []
    monkeypatch.setattr(gradient, "free_bytes", lambda device: 300_000)
    found = importance(model, "toy0", tokens=512, log=lines.append)
    assert "run again" in lines[1] and "in batches of" in lines[2] and torch.allclose(found.scores, whole, atol=1e-6)


@pytest.mark.parametrize("family", ["bert", "llama", "t5"])
def test_layers_that_run_again_give_the_same_gradients_for_less_memory(family):
    auto = "AutoModelForCausalLM" if family == "llama" else "AutoModel"
    model = tiny(family, auto=auto, **({"num_layers": 6} if family == "t5" else {"num_hidden_layers": 6}))
    batch, taken, found = tiny_batch(model, 8, 16), [], []
    batch |= {} if family == "bert" else {"use_cache": True}
    loss = lambda m, b: m(**b)[0].square().sum((1, 2))  # noqa: E731
    for enabled in (False, True):
        for module in model.modules():
            if hasattr(module, "gradient_checkpointing"):
                module.gradient_checkpointing = enabled
        with Live() as live:
            stack = "decoder" if family == "t5" else None
            found.append(importance(model, [batch], loss=loss, stack=stack, log=lambda line: None).scores)
        taken.append(live.peak)
    assert torch.allclose(*found, rtol=1e-5) and taken[1] < 0.8 * taken[0]
    assert not any("forward" in vars(module) for module in model.modules())


@pytest.mark.parametrize("window", [None, 3])
def test_layers_that_run_again_read_a_cache_as_it_was(window, monkeypatch):
    """Choices of several tokens after a cached prompt; a full window keeps its size whatever was written twice."""
    lm = toy_language_model("mistral" if window else "llama")
    lm.config.sliding_window = window
    whole = {task: importance(lm, task).signed for task in ("several", "pairs")}
    layers_run_again(lm.model)
    assert checkpoints(lm.model) and lm.reader.cache
    for task, signed in whole.items():
        assert torch.allclose(importance(lm, task).signed, signed, rtol=1e-9, atol=1e-12)
    monkeypatch.setattr(likelihood, "BRANCHING", frozenset())
    with pytest.raises(HeadwiseError, match=r"DynamicCache that changes in place.*use_cache=False"):
        importance(lm, "several")


@pytest.mark.parametrize("width", ["int8", "int4"])
def test_gradients_of_gates_pass_quantized_weights(width):
    """The same scores as with the weights that the quantized ones stand for, also where layers run again."""
    quantization = pytest.importorskip("torchao.quantization")
    model = tiny("llama", auto="AutoModelForCausalLM", hidden_size=64, intermediate_size=64, head_dim=16)
    per = quantization.PerGroup(32)
    config = quantization.Int8WeightOnlyConfig() if width == "int8" else None
    config = config or quantization.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=per)
    quantization.quantize_(model, config)
    batch = tiny_batch(model, 4, 8)
    loss = lambda m, b: m(**b).logits.log_softmax(-1)[:, :, 3].sum(1)  # noqa: E731
    scores = [importance(model, [batch], loss=loss).scores]
    layers_run_again(model)
    assert checkpoints(model)
    scores.append(importance(model, [batch], loss=loss).scores)
    plain = tiny("llama", auto="AutoModelForCausalLM", hidden_size=64, intermediate_size=64, head_dim=16)
    with torch.no_grad():
        for name, module in plain.named_modules():
            weight = getattr(model.get_submodule(name), "weight", None)
            if isinstance(module, torch.nn.Linear) and hasattr(weight, "dequantize"):
                module.weight.copy_(weight.dequantize())
    scores.append(importance(plain, [batch], loss=loss).scores)
    assert torch.allclose(scores[0], scores[1], rtol=1e-4) and torch.allclose(scores[0], scores[2], rtol=1e-3)
