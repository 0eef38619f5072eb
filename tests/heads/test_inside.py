"""Heads that no module's input holds are reached inside the attention call, and obey the same laws there."""

from __future__ import annotations

import pytest
import torch

from families.build import build
from families.check import verdict
from headwise.errors import HeadwiseError
from headwise.heads.cutting import fold, prune
from headwise.heads.gates import Heads, captured, gated
from headwise.heads.repairing import refit

IDS = torch.tensor([[5, 9, 11, 13, 8, 4], [3, 2, 6, 17, 12, 19]])
WAVES = torch.randn(2, 1600, generator=torch.Generator().manual_seed(0))
# A product of matrices by einsum, torch's own multi-head attention, modules of their own for each step, a fused kernel.
INPUTS = {
    "xlnet": {"input_ids": IDS},
    "wavlm": {"input_values": WAVES},
    "squeezebert": {"input_ids": IDS},
    "jetmoe": {"input_ids": IDS, "use_cache": False},
}


@pytest.fixture(scope="module", params=INPUTS)
def model(request):
    return build(request.param)


def last(model, **more) -> torch.Tensor:
    torch.manual_seed(0)
    return model(**INPUTS[model.config.model_type] | more).last_hidden_state


def test_closing_equals_closing_inside_the_call(model):
    heads = Heads.of(model)
    assert heads.verified and not heads.exact and heads.alive.all() and all(site.inside for site in heads.sites)
    assert verdict(model)[0] == "right"


@torch.no_grad()
def test_ones_change_nothing_whatever_the_reference(model):
    heads, before = Heads.of(model), last(model)
    reference = torch.randn(*heads.shape, heads.head_dim)
    for given in (None, reference):
        with gated(model, torch.ones(heads.shape), given, heads=heads):
            assert torch.equal(last(model), before)
    with gated(model, torch.zeros(heads.shape), heads=heads):
        assert not torch.allclose(last(model), before)
    assert torch.equal(last(model), before), "nothing is left behind"


@torch.no_grad()
def test_closed_heads_return_what_was_captured(model):
    heads, before = Heads.of(model), last(model)
    with captured(model, lambda z_BTHD: z_BTHD, heads=heads) as outputs:
        last(model)
    z = torch.stack(outputs, 2)  # (B, T, L, H, D)
    assert z.shape[0] == 2 and z.shape[2:] == (*heads.shape, heads.head_dim)
    with gated(model, torch.zeros(heads.shape), z, heads=heads):
        assert torch.allclose(last(model), before, atol=1e-6)


@torch.no_grad()
def test_every_example_has_its_own_gates(model):
    heads = Heads.of(model)
    one = torch.ones(heads.shape)
    one[0, 1] = 0
    with gated(model, one, heads=heads):
        expected = last(model)
    with gated(model, torch.stack([one, torch.ones(heads.shape)]), heads=heads):
        found = last(model)
    assert torch.allclose(found[0], expected[0], atol=1e-5) and torch.allclose(found[1], last(model)[1], atol=1e-5)


def test_gradients_are_those_of_finite_differences(model):
    twin = build(model.config.model_type).double()
    heads = Heads.of(twin)
    given = {
        k: v.double() if v.is_floating_point() else v
        for k, v in INPUTS[twin.config.model_type].items()
        if k != "use_cache"
    }

    def loss(gates: torch.Tensor) -> torch.Tensor:
        with gated(twin, gates, heads=heads):
            return last(twin, **given).pow(2).sum()

    gates = torch.ones(heads.shape, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(loss(gates), gates)
    step = torch.zeros_like(gates)
    step[1, 2] = 1e-2  # smaller ones meet the rounding of norms that JetMoE computes in float32 whatever its precision
    with torch.no_grad():
        slope = (loss(gates + step) - loss(gates - step)) / 2e-2
    assert gradient[1, 2].item() == pytest.approx(slope.item(), rel=2e-3)


def test_heads_that_are_subtracted_are_closed_in_both_calls():
    """DiffLlama computes a head twice, with two halves of the values, and subtracts heads of one half from others."""
    model = build("diffllama")
    heads = Heads.of(model)
    assert [site.inside for site in heads.sites] == [2, 2] and verdict(model, thorough=False)[0] == "right"
    gates = torch.ones(heads.shape, requires_grad=True)
    with gated(model, gates, heads=heads):
        (gradient,) = torch.autograd.grad(model(input_ids=IDS).last_hidden_state.pow(2).sum(), gates)
    assert gradient.abs().min() > 0
    reference = torch.zeros(*heads.shape, heads.head_dim)
    for block in (captured(model, lambda z_BTHD: z_BTHD), gated(model, torch.ones(heads.shape), reference)):
        with pytest.raises(HeadwiseError, match="in pieces"), block:
            model(input_ids=IDS)


def test_what_needs_a_projection_says_so(model):
    heads = Heads.of(model)
    some = torch.zeros(heads.shape, dtype=torch.bool)
    some[0, 0] = True
    for work in (lambda: prune(model, some), lambda: fold(model, some.float()), lambda: refit(model, some, [])):
        with pytest.raises(HeadwiseError, match=r"rows of q, k, v|over all heads|straight into a projection"):
            work()
