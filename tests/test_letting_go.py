"""Nothing keeps a model alive once its user has let go of it: many jobs run in one process and share a device."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from headwise.dissociation.lesions import dissociate
from headwise.heads.cutting import prune
from headwise.heads.selection import random_heads
from headwise.measuring.evaluate import evaluate
from headwise.probing import probe
from headwise.scoring.importance import estimators, importance
from headwise.testing import toy_model, toy_tasks
from headwise.training.loop import fit
from headwise.training.methods.iat import IAT
from headwise.training.methods.l0 import L0
from headwise.training.methods.rates import Rates
from headwise.training.methods.scales import Scales
from headwise.training.plan import Plan

PLAN = Plan(steps=6, lr=1e-3, batch_size=8, evaluate_every=3)
USES = {
    "evaluate": lambda model: evaluate(model, "toy0"),
    "dissociate": lambda model: dissociate(model, {n: torch.rand(2, 4) for n in model.tasks}, 0.3, random=1),
    "fit": lambda model: fit(model, PLAN),
    "iat": lambda model: fit(model, PLAN, IAT(delta=0.5, examples=8)),
    "iat by gradient": lambda model: fit(model, PLAN, IAT(delta=0.5, examples=8, freeze="grad")),
    "l0": lambda model: fit(model, PLAN, L0()),
    "rates": lambda model: fit(model, PLAN, Rates(examples=8)),
    "scales": lambda model: fit(model, PLAN, Scales()),
    "prune": lambda model: prune(model.encoder, random_heads((2, 4), 0.3, seed=0)) and None,
    "probe": lambda model: probe(model.encoder, toy_tasks(1)[0], tokenizer=model.tokenizer).scores,
    **{
        f"importance by {by}": lambda model, by=by: importance(model, "toy0", by, examples=8)
        for by in estimators
        if by not in ("integrated_gradients", "shapley", "attribution")
    },
}


@pytest.mark.parametrize("use", USES)
def test_a_model_goes_when_its_user_lets_go(use):
    model = toy_model()
    alive = [weakref.ref(p) for p in model.encoder.parameters()]
    result = USES[use](model)
    del model
    gc.collect()
    assert not any(one() is not None for one in alive), f"held after {type(result).__name__} came back"
