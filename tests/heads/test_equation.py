"""Laws of z' = r + g · (z - r)."""

from __future__ import annotations

import pytest
import torch

from headwise.errors import HeadwiseError
from headwise.heads.cutting import prune
from headwise.heads.gates import Heads, captured, gated, touched
from headwise.testing import no_dropout, tiny, tiny_batch

FAMILIES = ["bert", "gpt2", "llama", "albert", "deberta-v2", "t5"]


def build(family, dtype=torch.float32):
    model = no_dropout(tiny(family)).to(dtype).eval()
    return model, tiny_batch(model), Heads.of(model, stack="cross" if family == "t5" else None)


def outputs(model, batch, heads):
    """Head outputs as the projections receive them, (B, T, L, H, D)."""
    with captured(model, torch.clone, heads=heads) as layers:
        state = model(**batch).last_hidden_state
    return torch.stack(layers, 2), state


def references(heads, z_BTLHD, scale=3.0):
    generator = torch.Generator().manual_seed(0)
    batch, tokens = z_BTLHD.shape[:2]
    shape = (*heads.shape, heads.head_dim)
    for leading in [(), (1,), (batch,), (1, tokens), (batch, tokens), (batch, 1)]:
        yield scale * torch.randn(*leading, *shape, generator=generator)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_gates_of_one_change_nothing_whatever_the_reference(family, dtype):
    model, batch, heads = build(family, dtype)
    z, state = outputs(model, batch, heads)
    for reference in references(heads, z, 1e3):
        with gated(model, torch.ones(heads.shape), reference, heads=heads):
            again, same = outputs(model, batch, heads)
        assert torch.equal(again, z) and torch.equal(same, state)


@pytest.mark.parametrize("family", FAMILIES)
def test_gates_of_zero_return_the_reference_exactly(family):
    model, batch, heads = build(family)
    z, state = outputs(model, batch, heads)
    gates = torch.ones(heads.shape)
    gates[1, 2] = 0
    for reference in references(heads, z):
        with gated(model, gates, reference, heads=heads):
            changed, _ = outputs(model, batch, heads)
        expected = reference[..., 1, 2, :]
        expected = expected[:, None] if reference.ndim == 4 else expected
        assert torch.equal(changed[:, :, 1, 2], expected.expand_as(changed[:, :, 1, 2]))
        assert torch.equal(changed[:, :, 0], z[:, :, 0])
    with gated(model, torch.zeros(heads.shape), z, heads=heads):
        assert torch.equal(outputs(model, batch, heads)[1], state), "its own output as reference"


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_the_gradient_of_a_gate_is_that_of_the_output_along_its_way_from_the_reference(family):
    model, batch, heads = build(family, torch.float64)
    size = len(batch["input_ids"])
    z, _ = outputs(model, batch, heads)
    reference = torch.randn(size, *heads.shape, heads.head_dim, dtype=torch.float64)
    gates = torch.ones(size, *heads.shape, dtype=torch.float64, requires_grad=True)
    layers: list[torch.Tensor] = []

    def keep(layer, out):
        layers.append(out.clone())
        return layers[-1]

    with gated(model, gates, reference, heads=heads), touched(model, keep, heads):
        loss = model(**batch).last_hidden_state.square().sum()
        found, *grads = torch.autograd.grad(loss, [gates, *layers])
    expected = (torch.stack(grads, 2) * (z - reference[:, None])).sum((1, -1))
    torch.testing.assert_close(found, expected)


def test_a_reference_can_be_learned():
    model, batch, heads = build("bert")
    reference = torch.zeros(*heads.shape, heads.head_dim, requires_grad=True)
    gates = torch.ones(heads.shape)
    gates[0, 3] = 0
    with gated(model, gates, reference):
        (grad,) = torch.autograd.grad(model(**batch).last_hidden_state.square().sum(), reference)
    assert grad[0, 3].abs().sum() > 0 and grad[0, :3].abs().sum() == grad[1].abs().sum() == 0


def test_a_cut_model_takes_the_reference_of_the_whole_one():
    model, batch, _ = build("bert")
    smaller = prune(tiny("bert"), torch.tensor([[0, 1, 0, 0], [1, 0, 0, 1]]).bool()).eval()
    reference = torch.randn(2, 4, Heads.of(model).head_dim)
    z, _ = outputs(smaller, batch, Heads.of(smaller))
    gates = torch.tensor([[1.0, 1, 0, 1], [1, 0, 1, 1]])
    with gated(smaller, gates, reference.masked_fill(torch.isnan(z[0, 0]), torch.nan)):
        changed, _ = outputs(smaller, batch, Heads.of(smaller))
    assert torch.equal(changed[0, 0, 0, 2], reference[0, 2]) and torch.equal(changed[0, 0, 1, 1], reference[1, 1])
    assert torch.equal(changed[:, :, 0, [0, 3]], z[:, :, 0, [0, 3]])


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        (torch.zeros(2, 4), "reference of shape"),
        (torch.zeros(2, 4, 8).long(), "int64"),
        (torch.zeros(5, 2, 4, 8), "one for each example"),
        (torch.zeros(1, 99, 2, 4, 8), "99 tokens"),
        ("mean", "type str"),
    ],
)
def test_references_that_do_not_fit_are_refused(reference, says):
    model, batch, heads = build("bert")
    if isinstance(reference, torch.Tensor) and reference.ndim > 2:
        reference = reference[..., : heads.head_dim]
    with pytest.raises(HeadwiseError, match=says), gated(model, torch.ones(2, 4), reference):
        model(**batch)
