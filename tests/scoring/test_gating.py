"""Gates that are pushed open and pushed closed find heads that help, and heads that harm."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from headwise.errors import HeadwiseError
from headwise.scoring.importance import importance
from headwise.tasks.task import Rows
from headwise.testing import planted, toy_model


@pytest.fixture(scope="module")
def plant():
    return planted(seed=0)


def test_a_planted_head_facilitates_most(plant):
    model, masks = plant
    for task, mask in masks.items():
        result = importance(model, task, "causal_gating", steps=90)
        roles = result.roles()
        layer, head = mask.nonzero()[0].tolist()
        assert roles[layer][head] == "facilitates" and sum(row.count("facilitates") for row in roles) <= 3
        assert (result.signed.abs() <= 1).all() and result.closed.shape == (4, 2, 4)
        assert torch.equal(result.scores == result.scores.max(), mask)


def test_a_head_that_speaks_against_the_task_interferes(plant):
    model, masks = plant
    turned = {"a": "b", "b": "a"}
    task = model.tasks["toy0"]
    flipped = [{**row, "label": turned[row["label"]]} for row in task.rows("train")]
    model.tasks["toy0"] = replace(task, source=Rows(train=flipped))
    try:
        result = importance(model, "toy0", "causal_gating", steps=90)
        signed = importance(model, "toy0", "ablation", examples=64)
    finally:
        model.tasks["toy0"] = task
    layer, head = masks["toy0"].nonzero()[0].tolist()
    assert result.roles()[layer][head] == "interferes" and float(result.signed[layer, head]) < -0.8
    assert bool(signed.harmful[layer, head]) and "harmful, first" in str(signed)


def test_it_is_the_same_again_and_needs_two_seeds():
    model = toy_model(1, rows=32)
    first, again = (importance(model, "toy0", "causal_gating", steps=6) for _ in range(2))
    assert torch.equal(first.scores, again.scores) and torch.equal(first.signed, again.signed)
    with pytest.raises(HeadwiseError, match="2 or more"):
        importance(model, "toy0", "causal_gating", seeds=1)
    with pytest.raises(HeadwiseError, match="a reference for importance by causal_gating"):
        importance(model, "toy0", "causal_gating", reference="mean")
