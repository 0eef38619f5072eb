"""Gradients tell which rows belong to a head, as names and layouts say where those are known."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from headwise.heads.families import EXACT
from headwise.heads.gates import Heads, gated, stacks_of
from headwise.heads.samples import samples
from headwise.heads.slices import slices
from headwise.heads.tracing import trace
from headwise.testing import tiny

UNNAMED = ("opt", "gptj", "falcon", "phi", "starcoder2", "stablelm", "cohere", "clip", "camembert", "nomic_bert")


def sliced(model: nn.Module) -> dict:
    inputs = next(samples(model))
    return slices(model, inputs, trace(model, inputs).proofs)


@pytest.mark.parametrize("family", sorted(EXACT))
def test_gradients_agree_with_known_layouts(family):
    model = tiny(family)
    found = sliced(model)
    for stack in stacks_of(model):
        for site in Heads.of(model, stack=stack).sites:
            for name, part in site.parts.items():
                each = found[site.name][name]
                assert model.get_submodule(each.module) is part.module and each.axis == part.axis
                assert torch.equal(each.rows, part.rows)


@pytest.mark.parametrize("family", UNNAMED)
def test_changing_the_rows_of_a_head_moves_that_head_alone(family):
    model = tiny(family)
    inputs = next(samples(model))
    for stack in stacks_of(model):
        heads = Heads.of(model, stack=stack)
        assert heads.exact
        site = next(site for site in heads.sites if site.kept)
        for name in "qkv":
            part = site.parts[name]
            for rows, own in zip(part.rows, site.owners(part)):
                assert moved(model, inputs, site, part, rows) == set(own), name


def moved(model: nn.Module, inputs: dict, site, part, rows: torch.Tensor) -> set[int]:
    """The heads of a layer whose outputs change with some rows of a weight."""
    states = []
    hook = site.module.register_forward_pre_hook(lambda _, args: states.append(site.heads_of(args[0]).flatten(0, -3)))
    before = part.module.weight.data.clone()
    with torch.no_grad():
        model(**inputs)
        part.module.weight.data.index_add_(part.axis, rows, torch.rand_like(before.index_select(part.axis, rows)))
        model(**inputs)
    part.module.weight.data.copy_(before)
    hook.remove()
    return set((states[0] != states[1]).any(-1).any(0).nonzero().flatten().tolist())


def test_a_norm_over_all_heads_leaves_none_its_own_rows():
    model = tiny("olmo2")
    assert sliced(model) == {}
    heads = Heads.of(model)
    assert heads.verified and not heads.exact
    with gated(model, torch.ones(heads.shape)):  # gates work all the same
        model(**next(samples(model)))


def test_frozen_weights_stay_frozen_and_have_no_gradients():
    model = tiny("opt").requires_grad_(False)
    assert sliced(model)
    assert not any(p.requires_grad or p.grad is not None for p in model.parameters())
