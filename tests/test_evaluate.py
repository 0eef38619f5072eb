"""Evaluation: K lesions in one pass are K evaluations under gates, and nothing is left behind."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headwise.errors import HeadwiseError
from headwise.evaluate import chance, evaluate, evaluating
from headwise.heads import gated
from headwise.methods.mtdnn import SAN
from headwise.metrics import metrics
from headwise.model import MultiTaskModel
from headwise.plan import Plan
from headwise.tasks.task import Rows, Task
from headwise.testing import tiny, toy_model
from headwise.train import fit


@pytest.fixture(scope="module")
def model() -> MultiTaskModel:
    """Half trained, so that lesions tell."""
    made = toy_model()
    fit(made, Plan(steps=40, lr=3e-3, batch_size=16, evaluate_every=0))
    return made


def lesions(number: int = 5) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return (torch.rand(number, 2, 4, generator=generator) > 0.5).float()


def test_lesions_in_one_pass_equal_separate_gated_evaluations(model):
    together = evaluate(model, "toy0", lesions())
    for gate, score in zip(lesions(), together):
        with gated(model.encoder, gate):
            alone = evaluate(model, "toy0")
        assert score.predictions == alone.predictions and score.value == alone.value
    assert len({tuple(score.predictions) for score in together}) > 1


def test_an_open_gate_is_no_gate(model):
    (open_,) = evaluate(model, "toy0", torch.ones(1, 2, 4))
    assert open_.predictions == evaluate(model, "toy0").predictions


@pytest.mark.parametrize("tokens", [7, 64, 10_000])
def test_predictions_do_not_depend_on_how_the_data_is_cut(model, tokens):
    assert evaluate(model, "toy1", tokens=tokens).predictions == evaluate(model, "toy1").predictions


def test_predictions_are_in_the_order_of_the_rows(model):
    score = evaluate(model, "toy0")
    task = model.tasks["toy0"]
    assert score.golds == task.kind.gold(task.rows("dev")) and score.examples == 48
    assert score.value == np.mean([p == g for p, g in zip(score.predictions, score.golds)])
    assert score.value == metrics["accuracy"].value(score.counts.sum(0))
    low, high = score.interval()
    assert low <= score.value <= high


def test_a_limit_is_a_seeded_sample(model):
    score = evaluate(model, "toy0", limit=10)
    assert score.examples == 10 and score.predictions == evaluate(model, "toy0", limit=10).predictions


def test_nothing_is_left_behind(model):
    """Modes, gradients, random streams and hooks."""
    model.train()
    model.encoder.eval()
    random = torch.get_rng_state()
    evaluate(model, "toy0", lesions(2))
    assert model.training and not model.encoder.training and model.heads["toy0"].training
    assert torch.equal(torch.get_rng_state(), random)
    assert all(p.grad is None for p in model.parameters())
    assert not any(module._forward_pre_hooks for module in model.encoder.modules())
    with pytest.raises(RuntimeError), evaluating(model):
        raise RuntimeError
    assert model.training and not model.encoder.training
    model.train()


def test_other_metrics_of_the_same_predictions(model):
    score = evaluate(model, "toy0")
    assert score.on("mcc").value == metrics["mcc"](score.predictions, score.golds)
    assert str(score).startswith("toy0: accuracy ")


def test_a_constant_answer_is_noticed():
    made = toy_model()
    with torch.no_grad():
        made.heads["toy0"].out.bias.copy_(torch.tensor([100.0, 0.0]))
    assert evaluate(made, "toy0").collapsed and not evaluate(made, "toy1").collapsed


def test_chance_is_the_commonest_class():
    assert chance([0, 1, 1, 2]) == 0.5
    with pytest.raises(HeadwiseError):
        chance([])


def test_bad_input_is_told(model):
    with pytest.raises(HeadwiseError, match="toy0"):
        evaluate(model, "toy9")
    with pytest.raises(HeadwiseError, match="gates of shape"):
        evaluate(model, "toy0", torch.ones(2, 4))
    with pytest.raises(HeadwiseError, match="has no test rows"):
        evaluate(model, "toy0", split="test")


def test_a_model_with_a_pair_task_is_evaluated_alike_under_lesions():
    """Heads that read every token, not the pooled vector alone."""
    rows = [{"text": f"w{i} w{i + 1}", "text_b": f"w{i + 2}", "label": "ab"[i % 2]} for i in range(12)]
    task = Task("pair", SAN(("a", "b")), Rows(rows, rows), "accuracy")
    made = MultiTaskModel(tiny("bert"), toy_model().tokenizer, [task])
    for gate, score in zip(lesions(2), evaluate(made, "pair", lesions(2))):
        with gated(made.encoder, gate):
            assert score.predictions == evaluate(made, "pair").predictions
