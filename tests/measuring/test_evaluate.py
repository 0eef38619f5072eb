"""Evaluation: K lesions in one pass are K evaluations under gates, and nothing is left behind."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headwise.errors import HeadwiseError
from headwise.heads.gates import gated
from headwise.heads.modules import evaluating
from headwise.measuring.evaluate import Score, chance, difference, evaluate, sentence_vectors
from headwise.models.multitask import MultiTaskModel
from headwise.papers.specialization.mtdnn import SAN
from headwise.tasks.metrics import metrics
from headwise.tasks.task import Rows, Task
from headwise.testing import tiny, toy_model
from headwise.training.loop import fit
from headwise.training.plan import Plan


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


def test_scores_that_are_no_numbers_are_no_answers():
    """The largest of several NaN is the first class."""
    broken = toy_model()
    next(broken.encoder.parameters()).data.fill_(torch.nan)
    with pytest.raises(HeadwiseError, match="scores of 'toy0' that are NaN"):
        evaluate(broken, "toy0")


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


# -- two models on the same examples


def scored(metric, predictions, golds):
    return Score("t", metric, metrics[metric](predictions, golds), list(predictions), list(golds))


def two_models(seed, gain=0.0, n=200, metric="accuracy"):
    """A model and another that is wrong less often by ``gain``, each on examples of its own."""
    generator = np.random.default_rng(seed)
    golds = generator.integers(2, size=n)
    wrong = generator.random((2, n)) < np.array([[0.3 - gain], [0.3]])
    return [scored(metric, np.where(w, 1 - golds, golds).tolist(), golds.tolist()) for w in wrong]


def test_ten_answers_mended_and_none_spoiled_are_ten_coins_on_one_side():
    golds = [1] * 40
    before, after = scored("accuracy", [0] * 10 + [1] * 30, golds), scored("accuracy", golds, golds)
    found = difference(after, before)
    assert (found.value, found.p) == (pytest.approx(0.25), pytest.approx(2 / 2**10)) and found.low > 0


@pytest.mark.parametrize("metric", ["accuracy", "f1", "mcc", "macro_f1"])
def test_models_that_answer_alike_do_not_differ(metric):
    after, _ = two_models(0, metric=metric)
    found = difference(after, after)
    assert (found.value, found.p) == (0, 1)
    assert found.low == pytest.approx(-found.high) and 0 < found.high < 0.03, "rows that were not seen may differ"


@pytest.mark.parametrize("metric", ["accuracy", "f1", "mcc"])
def test_a_difference_turned_around_is_as_sure(metric):
    after, before = two_models(3, 0.2, metric=metric)
    one, other = difference(after, before), difference(before, after)
    assert one.p == pytest.approx(other.p, abs=1e-12) and one.value == -other.value and one.p < 0.05


@pytest.mark.parametrize(("metric", "cases"), [("accuracy", 200), ("f1", 100)])
def test_models_that_are_as_good_rarely_differ(metric, cases):
    alike = [difference(*two_models(seed, n=80, metric=metric)).p < 0.05 for seed in range(cases)]
    apart = [difference(*two_models(seed, 0.25, n=80, metric=metric)).p < 0.05 for seed in range(20)]
    assert np.mean(alike) <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / cases) and np.mean(apart) > 0.8


@pytest.mark.parametrize("metric", ["mcc", "macro_f1"])
def test_a_class_that_one_model_alone_names_counts_for_both(metric):
    golds = [0, 1] * 20
    before, after = scored(metric, golds, golds), scored(metric, [2, *golds[1:]], golds)
    found = difference(after, before)
    assert found.value == pytest.approx(after.value - before.value)
    assert found.p == 1, "one answer that differs may as well be the other model's"


def test_a_vector_is_what_the_output_head_reads_in_the_order_of_the_texts():
    model = toy_model()
    texts = ["w1 w2 w3", "w4", "w5 w6 w7 w8 w9 w1", "w2"]
    found = sentence_vectors(model, texts)
    assert found.shape == (4, model.width) and found.dtype == np.float32
    with evaluating(model), torch.no_grad():
        for text, vector in zip(texts, found):
            alone = model.hidden(dict(model.tokenizer([text], return_tensors="pt")))
            np.testing.assert_allclose(vector, alone.pooled[0].float().numpy(), atol=1e-5)
