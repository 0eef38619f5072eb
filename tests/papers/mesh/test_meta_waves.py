"""Sinusoids: a meta-trained start learns a new wave from ten points better than a multi-task one does."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from waves import network, wave

from headwise.heads.modules import evaluating
from headwise.measuring.stats import paired_bootstrap
from headwise.models.batching import encode
from headwise.papers.mesh.episodes import Draw
from headwise.papers.mesh.meta import GROUPS, Meta
from headwise.training.loop import fit
from headwise.training.plan import Plan

PLAN = Plan(
    **{"steps": 400, "lr": 1e-2, "batch_size": 20, "accumulate": 4, "window": "mixed", "sampling": "uniform"},
    **{"evaluate_every": 0, "warmup": 0.0},
)
RATES = (0.001, 0.003, 0.01, 0.03)


def errors(by: str, rates: tuple[float, ...]) -> np.ndarray:
    """Squared errors on 50 new waves after five steps on ten points each: (rates, waves)."""
    method, model = Meta(by, steps=1, support=10, rates=0.01), network([wave(i) for i in range(40)])
    fit(model, PLAN, method, device="cpu")
    found = []
    for task in (wave(1000 + i) for i in range(50)):
        train, dev = encode(task, "train", None), encode(task, "dev", None).batch(range(60))
        model.add(task, "wave0")
        support = train.batch(Draw(task.name, train).few(10, 0))
        with evaluating(method.learner):
            found.append([_error(method, task.name, support, dev, rate) for rate in rates])
    return np.array(found).T


def _error(method: Meta, task: str, support: dict, dev: dict, rate: float) -> float:
    fast = method.adapt(method.learner, task, support, 5, dict.fromkeys(GROUPS, rate)).parameters
    with method.learner.wearing(fast), torch.no_grad():
        return method.learner(task, dev).mean().item()


@pytest.fixture(scope="module")
def multitask() -> np.ndarray:
    """The baseline may choose its rate by the waves it is tested on."""
    return min(errors("multitask", RATES), key=np.mean)


@pytest.mark.filterwarnings("ignore::headwise.errors.HeadwiseWarning")
@pytest.mark.parametrize("by", ["maml", "fomaml"])
def test_a_meta_trained_start_is_better(by, multitask):
    (meta,) = errors(by, (0.01,))
    better = paired_bootstrap(multitask, meta)
    assert better.p < 0.05 and better.value > 0.3
