"""Parts with a backward pass in one kernel: the same numbers, from less memory, where both were found equal."""

from __future__ import annotations

import pytest
import torch

from headwise.models.device import Live
from headwise.scoring import backward
from headwise.scoring.importance import importance
from headwise.testing import layers_run_again, tiny, tiny_batch


@pytest.fixture(autouse=True)
def in_models_of_any_size(monkeypatch):
    monkeypatch.setattr(backward, "LARGE", 0)


@pytest.fixture
def everywhere(monkeypatch):
    monkeypatch.setattr(backward, "DEVICES", {"cpu"})
    monkeypatch.setattr(backward, "_proofs", {})


def decoder(family: str, dtype=torch.float32):
    model = tiny(family, auto="AutoModelForCausalLM", dtype=dtype, num_hidden_layers=3)
    for module in model.modules():
        if "RMSNorm" in type(module).__name__:
            torch.nn.init.normal_(module.weight)
    batches = [
        {**tiny_batch(model, 8, 12, seed), "labels": tiny_batch(model, 8, 12, seed)["input_ids"]} for seed in (0, 1)
    ]
    return model, batches


def replaced(model) -> int:
    model.requires_grad_(False)
    with backward.fused(model):
        return sum("forward" in module.__dict__ for module in model.modules())


@pytest.mark.parametrize(("family", "count"), [("llama", 10), ("qwen3", 16), ("gemma2", 0), ("bert", 0)])
def test_parts_of_a_family_are_replaced_where_gradients_agree(everywhere, family, count):
    model = tiny(family, num_hidden_layers=3)
    assert replaced(model) == count
    assert not any("forward" in module.__dict__ for module in model.modules())


def test_a_small_model_does_not_wait_for_a_compiler(everywhere, monkeypatch):
    model = tiny("llama", num_hidden_layers=3)
    assert replaced(model) == 10
    monkeypatch.setattr(backward, "LARGE", 1e9)
    assert replaced(model) == 7  # the norms


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_outputs_are_bit_equal_and_scores_the_same(monkeypatch, dtype):
    model, batches = decoder("llama", dtype)
    own = importance(model, batches, log=lambda line: None)
    monkeypatch.setattr(backward, "DEVICES", {"cpu"})
    ours = importance(model, batches, log=lambda line: None)
    within = 1e-5 if dtype == torch.float32 else 0.03
    assert (ours.scores - own.scores).abs().max() < within * own.scores.abs().max()
    model.requires_grad_(False)
    ids, embedded = batches[0]["input_ids"], model.get_input_embeddings()
    given = embedded(ids).requires_grad_()
    plain = model(inputs_embeds=given).logits
    with backward.fused(model):
        assert torch.equal(model(inputs_embeds=given).logits, plain)


def test_it_takes_less_memory(monkeypatch):
    model, batches = decoder("llama", torch.bfloat16)
    peaks = []
    for devices in (set(), {"cpu"}):
        monkeypatch.setattr(backward, "DEVICES", devices)
        importance(model, batches, log=lambda line: None)
        with Live() as live:
            importance(model, batches, log=lambda line: None)
        peaks.append(live.peak)
    assert peaks[1] < 0.9 * peaks[0]


def test_layers_that_run_again_have_the_same_scores(everywhere):
    model, batches = decoder("llama")
    whole = importance(model, batches, log=lambda line: None).scores
    again = importance(layers_run_again(model), batches, log=lambda line: None).scores
    assert torch.allclose(whole, again, rtol=1e-6, atol=1e-9)


def test_another_formula_keeps_its_own_gradient(everywhere):
    class Odd(torch.nn.Module):
        eps = 1e-6

        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(8))

        def forward(self, x):
            return self.weight * x / (x.square().mean(-1, keepdim=True) + 0.01).sqrt()  # not its epsilon

    class Pair(Odd):
        def forward(self, x, gate):
            return x * gate

    assert replaced(torch.nn.Sequential(Odd())) == 0
    assert replaced(torch.nn.Sequential(Pair())) == 0


def test_parts_that_learn_are_left_alone(everywhere):
    model, batches = decoder("llama")
    with backward.fused(model):
        model(**batches[0]).loss.backward()
    assert model.model.norm.weight.grad is not None
