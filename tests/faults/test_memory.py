"""Where the device's memory does not hold a batch, smaller ones give the same results, and it is said once."""

from __future__ import annotations

import functools
import gc
import itertools
import warnings
import weakref

import numpy as np
import pytest
import torch

from headwise.atlas.measure import roles
from headwise.dissociation.lesions import dissociate
from headwise.errors import HeadwiseWarning
from headwise.heads.cutting import prune
from headwise.heads.selection import random_heads
from headwise.measuring.evaluate import evaluate
from headwise.papers.mesh.meta import Meta
from headwise.probing import probe
from headwise.probing.features import Reader
from headwise.scoring.importance import estimators, importance
from headwise.testing import layers_run_again, no_dropout, toy_language_model, toy_model, toy_tasks
from headwise.training.loop import Run, fit
from headwise.training.methods.conflict import Conflict
from headwise.training.methods.iat import IAT
from headwise.training.methods.l0 import L0
from headwise.training.methods.method import Method
from headwise.training.methods.rates import Rates
from headwise.training.methods.scales import Scales
from headwise.training.plan import Plan


@pytest.fixture
def small(monkeypatch):
    """A device that holds a given number of padded tokens: a larger forward runs out of memory."""

    def shrink(model: torch.nn.Module, tokens: int) -> None:
        real = model.forward

        @functools.wraps(real)
        def forward(*args, **kwargs):
            if kwargs["input_ids"].numel() > tokens:
                raise torch.OutOfMemoryError("CUDA out of memory (as a test says)")
            return real(*args, **kwargs)

        monkeypatch.setattr(model, "forward", forward)

    return shrink


@pytest.mark.parametrize("again", [False, True])
def test_memory_that_ends_amid_a_cached_forward_leaves_nothing_behind(again):
    """The last layer of the third forward, whose first layers had grown the cache, also where layers run again."""
    lm = toy_language_model()
    whole, calls = importance(lm, "several").signed, itertools.count(1)
    last = layers_run_again(lm.model).model.layers[-1] if again else lm.model.model.layers[-1]

    def full(module: torch.nn.Module, args: tuple) -> None:
        if next(calls) == 3:
            raise torch.OutOfMemoryError("CUDA out of memory (as a test says)")

    last.register_forward_pre_hook(full)
    with pytest.warns(HeadwiseWarning, match="out of device memory"):
        found = importance(lm, "several", tokens=512).signed
    assert torch.allclose(found, whole, rtol=1e-9, atol=1e-12)


def told(caught: list) -> list[str]:
    return [str(w.message) for w in caught if issubclass(w.category, HeadwiseWarning)]


def test_evaluation_goes_on_in_smaller_batches(small):
    model = toy_model()
    gates = torch.ones(3, 2, 4)
    gates[1, 0, 0] = gates[2, 1, 3] = 0
    whole = evaluate(model, "toy0", gates)
    small(model.encoder, 128)
    with pytest.warns(HeadwiseWarning, match="out of device memory: continuing with 128 tokens"):
        parts = evaluate(model, "toy0", gates, tokens=512)
    assert [a.predictions for a in whole] == [b.predictions for b in parts]


def test_importance_goes_on_in_smaller_batches(small):
    model = toy_model()
    whole = importance(model, "toy0", examples=64)
    small(model.encoder, 128)
    with pytest.warns(HeadwiseWarning, match="out of device memory"):
        parts = importance(model, "toy0", examples=64, tokens=512)
    assert torch.allclose(whole.scores, parts.scores, atol=1e-6) and parts.examples == 64


def test_features_go_on_in_smaller_batches_and_say_so_once(small, monkeypatch):
    monkeypatch.setattr("headwise.probing.features.POOL", 16)
    model = toy_model()
    rows = model.tasks["toy0"].rows("train")[:64]
    whole = Reader.of(model).read(rows)
    small(model.encoder, 128)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        parts = Reader.of(model, tokens=255).read(rows)
    assert torch.allclose(whole.heads, parts.heads, atol=1e-5) and len(told(caught)) == 1


def test_roles_go_on_in_smaller_batches(small):
    model = toy_model()
    texts = [row["text"] for row in model.tasks["toy0"].rows("train")[:64]]
    whole = roles(model, texts=texts, repeats=0)
    small(model.encoder, 128)
    with pytest.warns(HeadwiseWarning, match="out of device memory: continuing with 128 tokens"):
        parts = roles(model, texts=texts, repeats=0, tokens=512)
    np.testing.assert_allclose(parts.score, whole.score, atol=1e-6)


class Gradients(Method):
    """Keeps the gradient of every step."""

    def __init__(self):
        self.kept: list[dict[str, torch.Tensor]] = []

    def before_update(self, run: Run, tasks: list[str]) -> None:
        self.kept.append({n: p.grad.clone() for n, p in run.model.named_parameters() if p.grad is not None})


@pytest.mark.parametrize("accumulate", [1, 3])
def test_training_goes_on_in_parts_with_the_same_gradient(small, accumulate):
    plan = Plan(steps=4, lr=1e-3, batch_size=16, accumulate=accumulate, evaluate_every=0)
    whole, parts = Gradients(), Gradients()
    calm = fit(no_dropout(toy_model()), plan, whole)
    model = no_dropout(toy_model())
    small(model.encoder, 70)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        stormy = fit(model, plan, parts)
    assert len(told(caught)) in (1, 2) and "parts" in told(caught)[0]
    for ours, theirs in zip(whole.kept, parts.kept, strict=True):
        assert ours.keys() == theirs.keys()
        assert all(torch.allclose(ours[n], theirs[n], atol=1e-5) for n in ours)
    for task in calm.losses:
        assert [v for _, v in calm.losses[task]] == pytest.approx([v for _, v in stormy.losses[task]], abs=1e-4)


def test_a_step_that_begins_again_leaves_nothing_of_its_first_try(small):
    """Memory ends in the second of two tasks' batches, when the first has left its gradient."""
    plan = Plan(steps=2, lr=1e-3, batch_size=16, accumulate=2, window="mixed", sampling="round_robin", evaluate_every=0)

    def mean(matrix: torch.Tensor) -> torch.Tensor:
        return matrix.mean(0)

    calm, stormy = no_dropout(toy_model()), no_dropout(toy_model())
    fit(calm, plan, Conflict(mean))
    calls, real = [], stormy.encoder.forward

    @functools.wraps(real)
    def second(*args, **kwargs):
        calls.append(1)
        if len(calls) == 2:
            raise torch.OutOfMemoryError
        return real(*args, **kwargs)

    stormy.encoder.forward = second
    with pytest.warns(HeadwiseWarning, match="2 parts"):
        fit(stormy, plan, Conflict(mean))
    for (name, a), b in zip(calm.state_dict().items(), stormy.state_dict().values()):
        assert torch.allclose(a, b, atol=1e-4) or "key.bias" in name, name


def test_one_example_that_does_not_fit_raises(small):
    model = toy_model()
    small(model.encoder, 2)
    with pytest.warns(HeadwiseWarning), pytest.raises(torch.OutOfMemoryError):
        fit(model, Plan(steps=1, batch_size=4, evaluate_every=0))


def test_episodes_are_not_cut(small):
    model = toy_model()
    small(model.encoder, 20)
    with pytest.raises(torch.OutOfMemoryError):
        fit(model, Plan(steps=1, batch_size=16, evaluate_every=0), Meta("fomaml", steps=1, support=4))


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
