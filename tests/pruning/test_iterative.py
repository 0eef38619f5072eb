"""Cutting in rounds: two heads that back each other up are told from two that nobody needs."""

from __future__ import annotations

import pytest
import torch

from headwise.errors import HeadwiseError
from headwise.heads.gates import gated
from headwise.heads.modules import evaluating
from headwise.heads.selection import bottom, top
from headwise.measuring.evaluate import evaluate
from headwise.models.batching import encode
from headwise.pruning.iterative import cut_in_rounds
from headwise.scoring.importance import importance
from headwise.testing import toy_model
from headwise.training.loop import fit
from headwise.training.methods.method import Method
from headwise.training.plan import Plan

TWINS = torch.zeros(2, 4, dtype=torch.bool)
TWINS[0, 1] = TWINS[1, 2] = True


class Backups(Method):
    """Either twin alone makes the model sure; every other head, when closed, makes it a little less so."""

    def loss(self, run, task, batch):
        model, size = run.model, len(batch["label"])
        gates = (torch.rand(size, 2, 4) < 0.6).float()
        gates[: size // 3].masked_fill_(TWINS, 1.0)  # as in use
        gates[-size // 3 :].masked_fill_(TWINS, 0.0)
        with gated(model.encoder, gates):
            scores = model(task, batch).scores
        sure = 0.97 - 0.045 * (1 - gates[:, ~TWINS]).sum(1)
        sure = torch.where(gates[:, TWINS].any(1), sure, 0.5)
        right = torch.nn.functional.one_hot(batch["label"], 2).float()
        wanted = right * sure[:, None] + (1 - right) * (1 - sure[:, None])
        return -(wanted * scores.log_softmax(-1)).sum(-1)


@pytest.fixture(scope="module")
def twins():
    model = toy_model(1, rows=512)
    torch.manual_seed(0)
    fit(model, Plan(steps=700, lr=4e-3, batch_size=64, evaluate_every=0), Backups())
    return model


def test_the_plant_is_what_it_says(twins):
    batch = encode(twins.tasks["toy0"], "dev", twins.tokenizer).batch(range(200))

    def sure(gates):
        with torch.no_grad(), evaluating(twins), gated(twins.encoder, gates):
            return float((-twins("toy0", batch).loss).exp().mean())

    one, other = 1 - torch.eye(8).view(8, 2, 4)[TWINS.flatten()]
    assert min(sure(torch.ones(2, 4)), sure(one), sure(other)) > 0.9 and sure((~TWINS).float()) < 0.6


def test_scored_once_both_twins_go_and_in_rounds_one_stays(twins):
    once = importance(twins, "toy0", "ablation").scores
    assert (bottom(once, 0.375) & TWINS).sum() == 2, "alone neither seems needed"
    found = cut_in_rounds(twins, "toy0", "ablation", step=1 / 8, until=0.75)
    stay = ~bottom(found.scores, 0.75)
    assert (stay & TWINS).sum() == 1
    assert found.curve["toy0"][-1] > 0.9 > 0.7 > found.once["toy0"][-1]
    in_rounds, scored_once = found.area("toy0")
    assert in_rounds > scored_once + 0.1
    assert len(found.order) == 6 and found.fractions[-1] == 0.75
    assert "100" in str(found) or "99" in str(found)


def test_one_round_is_scoring_once(twins):
    found = cut_in_rounds(twins, "toy0", step=0.5, until=0.5)
    assert found.curve == found.once
    assert torch.equal(bottom(found.scores, 0.5), bottom(importance(twins, "toy0").scores, 0.5))
    by_score = sorted(found.order, key=lambda at: float(importance(twins, "toy0").scores[at]))
    assert list(found.order) == by_score


def test_curves_are_those_of_the_masks_they_name(twins):
    found = cut_in_rounds(twins, "toy0", step=0.25, until=0.75, limit=30)
    for fraction, value in zip(found.fractions, found.curve["toy0"]):
        gates = torch.ones(2, 4)
        for layer, head in found.order[: round(8 * fraction)]:
            gates[layer, head] = 0
        assert evaluate(twins, "toy0", gates[None], limit=30)[0].value == value


def test_the_most_important_first(twins):
    found = cut_in_rounds(twins, "toy0", "ablation", step=1 / 8, until=0.5, first="most")
    once = importance(twins, "toy0", "ablation").scores
    assert found.order[0] == divmod(int(once.argmax()), 4)
    gone = torch.zeros(2, 4, dtype=torch.bool)
    for at in found.order:
        gone[at] = True
    assert torch.equal(top(found.scores, 0.5), gone), "the score map of either direction has the needed heads on top"


def test_several_tasks_and_floors_and_bad_use():
    model = toy_model(2, rows=40)
    found = cut_in_rounds(model, ["toy0", "toy1"], step=0.25, until=1.0, keep_per_layer=1, limit=20)
    assert set(found.curve) == {"toy0", "toy1"}
    assert found.fractions[-1] == 0.75, "one head of each of two layers stays"
    assert not found.scores.isnan().any() and found.scores.min() == 0 and found.scores.max() == 1
    assert not any(m._forward_pre_hooks for m in model.modules())
    for bad in (
        {"step": 0.0},
        {"step": 0.5, "until": 0.2},
        {"first": "some"},
        {"by": "random"},
        {"step": 0.01, "until": 0.01},
    ):
        with pytest.raises(HeadwiseError):
            cut_in_rounds(model, "toy0", **bad)
