"""Importance from repeated forwards and controls: on cut models, under factors of heads, on pictures."""

from __future__ import annotations

import pytest
import torch

from headwise.heads.cutting import fold, prune
from headwise.heads.gates import Heads, captured
from headwise.models.batching import Encoded
from headwise.models.multitask import MultiTaskModel
from headwise.scoring.importance import importance
from headwise.tasks.kinds.image import Picture
from headwise.tasks.task import Rows, Task
from headwise.testing import tiny, tiny_batch, toy_model

CONTROLS = ("magnitude", "confidence")


@pytest.mark.parametrize("by", CONTROLS)
def test_heads_cut_from_the_last_layer_leave_the_others_as_they_were(by):
    model, cut = toy_model(1), torch.tensor([[False] * 4, [False, True, False, True]])
    before = importance(model, "toy0", by).scores
    prune(model.encoder, cut)
    after = importance(model, "toy0", by).scores
    assert torch.equal(after.isnan(), cut)
    assert torch.allclose(after[~cut], before[~cut], atol=1e-5)


@pytest.mark.parametrize("by", ["gradient", "ablation", "mean_ablation", *CONTROLS])
def test_factors_of_heads_are_as_if_folded_into_the_projections(by):
    model, factors = toy_model(1).double(), torch.linspace(0.2, 3, 8).view(2, 4)
    model.give_scales()
    with torch.no_grad():
        model.scales_of("toy0").copy_(factors)
    under = importance(model, "toy0", by).scores
    with torch.no_grad():
        model.scales_of("toy0").fill_(1)
    fold(model.encoder, factors)
    assert torch.allclose(under, importance(model, "toy0", by).scores, atol=1e-6)


@pytest.fixture
def pictures():
    model = MultiTaskModel(tiny("vit"), None, [Task("p", Picture(("a", "b")), Rows(), "accuracy")]).eval()
    pixels = tiny_batch(model.encoder, 6)["pixel_values"]
    return model, Encoded({"pixel_values": pixels.numpy(), "label": torch.arange(6).numpy() % 2}, pad=0, rows=6)


@pytest.mark.parametrize("by", ["mean_ablation", "token", *CONTROLS])
def test_pictures_score_alike_in_any_batches(pictures, by):
    model, data = pictures
    one, all_ = (importance(model, "p", by, data=data, tokens=tokens).scores for tokens in (1, 4096))
    assert torch.isfinite(one).all() and torch.allclose(one, all_, atol=1e-5)


def test_what_heads_add_to_pictures_is_a_mean_over_all_their_tokens(pictures):
    model, data = pictures
    with captured(model.encoder, lambda z: z) as outputs, torch.no_grad():
        model.encoder(pixel_values=torch.from_numpy(data.columns["pixel_values"]))
    found = importance(model, "p", "magnitude", data=data).scores
    for site, z in zip(Heads.of(model.encoder).sites, outputs):
        added = torch.einsum("bthd,ohd->btho", z, site.module.weight.detach().unflatten(1, (4, -1)))
        assert torch.allclose(found[site.layer], added.norm(dim=-1).mean((0, 1)), atol=1e-5)
