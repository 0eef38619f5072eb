"""Before a cut, output projections are refitted: as near to the whole model as heads that stay allow."""

from __future__ import annotations

import copy

import pytest
import torch

from headwise.errors import HeadwiseError
from headwise.heads.cutting import prune
from headwise.heads.gates import Heads, captured, gated
from headwise.heads.repairing import moments, refit
from headwise.testing import tiny

FAMILIES = ("bert", "gpt2", "llama", "qwen3", "opt")  # with a bias and without, input first, groups, found by gradients


def batches(seed: int, count: int = 4) -> list[dict[str, torch.Tensor]]:
    draw = torch.Generator().manual_seed(seed)
    return [{"input_ids": torch.randint(5, 30, (8, 10), generator=draw)} for _ in range(count)]


def some(model) -> torch.Tensor:
    mask = torch.zeros(Heads.of(model).shape, dtype=torch.bool)
    mask[0, 1] = mask[1, 0] = mask[1, 3] = True
    return mask


@torch.no_grad()
def added(model, given: list[dict[str, torch.Tensor]], layer: int) -> torch.Tensor:
    """What a layer's output projection adds, (N, W)."""
    site, seen = Heads.of(model).sites[layer], []
    hook = site.module.register_forward_hook(lambda _, args, out: seen.append(out.flatten(0, -2)))
    for batch in given:
        model(**batch)
    hook.remove()
    return torch.cat(seen)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_repaired_cut_is_nearer_to_the_whole_model(family):
    model = tiny(family).eval()
    mask, train = some(model), batches(0)
    expected = added(model, train, 0)
    plain, repaired = (prune(copy.deepcopy(model), mask, repair=texts) for texts in (None, train))
    away, near = ((added(each, train, 0) - expected).square().sum() for each in (plain, repaired))
    assert near < 0.9 * away
    assert Heads.of(repaired).alive.equal(~mask)


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_it_is_the_least_squares_fit(family):
    """No change of the weights that are left makes the first layer's answer nearer: its gradient is nothing."""
    model = tiny(family).double().eval()
    mask, train = some(model), batches(0)
    expected = added(model, train, 0)
    own = refit(copy.deepcopy(model), mask, train)
    site = Heads.of(own).sites[0]
    site.module.requires_grad_(True)
    seen = []
    hook = site.module.register_forward_hook(lambda _, args, out: seen.append(out.flatten(0, -2)))
    with gated(own, (~mask).double()):
        for batch in train:
            own(**batch)
    hook.remove()
    loss = (torch.cat(seen) - expected).square().mean()
    for parameter in site.module.parameters():
        (gradient,) = torch.autograd.grad(loss, parameter, retain_graph=True)
        assert gradient.abs().max() < 1e-3 * loss.item() ** 0.5 * expected.square().mean().item() ** 0.5


def test_what_needs_no_repair_stays():
    """Where a head only repeats another, the other answers for it: nothing is lost. Layers that lose no head stay."""
    model = tiny("gpt2").eval()
    fused = model.h[0].attn.c_attn
    with torch.no_grad():
        for start in (0, 24, 48):  # queries, keys and values of head 1 become those of head 0
            size = fused.nf // 12
            first = start // 24 * (fused.nf // 3)
            fused.weight[:, first + size : first + 2 * size] = fused.weight[:, first : first + size]
            fused.bias[first + size : first + 2 * size] = fused.bias[first : first + size]
    mask = torch.zeros(2, 4, dtype=torch.bool)
    mask[0, 1] = True
    before = model.h[1].attn.c_proj.weight.clone()
    repaired = prune(copy.deepcopy(model), mask, repair=batches(0))
    for batch in batches(1):
        whole, cut = model(**batch).last_hidden_state, repaired(**batch).last_hidden_state
        assert torch.allclose(whole, cut, atol=2e-3)
    assert torch.equal(repaired.h[1].attn.c_proj.weight, before)


def test_hidden_positions_do_not_count():
    model = tiny("bert").eval()
    batch = batches(0)[0]
    shown = torch.ones_like(batch["input_ids"])
    shown[:, 7:] = 0
    found = moments(model, [batch | {"attention_mask": shown}])
    assert [each.count for each in found.values()] == [8 * 7] * 2
    with captured(model, lambda z_BTHD: z_BTHD[:, :7].flatten(2).flatten(0, 1)) as outputs:
        model(**batch, attention_mask=shown)
    assert torch.allclose(found[0].total, outputs[0].double().sum(0), atol=1e-5)


def test_moments_serve_several_masks():
    model = tiny("llama").eval()
    known, mask = moments(model, batches(0)), some(model)
    one = refit(copy.deepcopy(model), mask, known)
    other = refit(copy.deepcopy(model), mask, batches(0))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters()))


def test_no_texts_are_an_error():
    model = tiny("bert")
    with pytest.raises(HeadwiseError, match="a few hundred texts"):
        refit(model, some(model), [])
