"""Low-rank updates of the output projection: they start at nothing, belong to one task, and are what they say."""

from __future__ import annotations

import pytest
import torch

from headwise.errors import HeadwiseError
from headwise.heads.gates import Heads
from headwise.models.batching import encode
from headwise.papers.methods.updates import Updates, Written
from headwise.testing import toy_model
from headwise.training.loop import fit
from headwise.training.plan import Plan

PLAN = Plan(steps=12, lr=1e-3, batch_size=16, evaluate_every=0)


@pytest.mark.parametrize("per", ["head", "layer"])
def test_they_start_at_nothing_and_a_rate_of_zero_is_plain_training(per):
    plain, still = toy_model(), toy_model()
    fit(plain, PLAN)
    fit(still, PLAN, Updates(lr=0.0, per=per, times=0.0))
    for name, value in plain.state_dict().items():
        assert torch.equal(value, still.state_dict()[name]), name


def test_a_head_writes_its_update_for_its_task_alone():
    """Against output projections changed by hand: W_O + u vᵀ in a head's own columns."""
    model, by_hand = toy_model().eval(), toy_model().eval()
    batch = encode(model.tasks["toy0"], "dev", model.tokenizer).batch(range(4))
    with torch.no_grad():
        before = model("toy1", batch).scores
        model.updates = written = Written(model, "head", seed=0)
        for values in (*written.into.values(), *written.out.values()):
            values.normal_()
        for values in (v for key, v in written.out.items() if key.startswith("toy1 ")):
            values.zero_()
        for site in Heads.of(by_hand.encoder).sites:
            part, key = site.parts["o"], f"toy0 {site.layer}"
            for head, columns in enumerate(part.rows):
                part.module.weight[:, columns] += torch.outer(written.out[key][head], written.into[key][head])
        assert torch.allclose(model("toy0", batch).scores, by_hand("toy0", batch).scores, atol=1e-5)
        assert torch.equal(model("toy1", batch).scores, before)


def test_updates_of_layers_have_no_fewer_parameters_than_those_of_heads():
    sizes = {per: sum(p.numel() for p in Written(toy_model(), per, 0).parameters()) for per in ("head", "layer")}
    assert 1.0 <= sizes["layer"] / sizes["head"] < 1.25


def test_they_learn_and_are_clipped_with_the_model():
    model = toy_model()
    fit(model, PLAN.with_(clip=1.0), Updates())
    assert all((values != 0).any() for values in model.updates.out.values())
    with pytest.raises(HeadwiseError, match="shape of updates"):
        Updates(per="row")
