"""Which heads a task lives on: exactness, planted truth, and what an estimator may not disturb."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from headwise.errors import HeadwiseError
from headwise.heads.cutting import fold, prune
from headwise.heads.gates import Heads, gated
from headwise.heads.selection import top
from headwise.measuring.evaluate import evaluate
from headwise.models.batching import encode
from headwise.models.multitask import MultiTaskModel
from headwise.scoring.importance import Sample, estimators, importance
from headwise.scoring.stability import BLOCKS
from headwise.tasks.kinds.answer import Answer
from headwise.tasks.task import Rows, Task
from headwise.testing import planted, tiny, tiny_tokenizer, toy_model

CONTROLS = ("random", "magnitude", "confidence")
CAPTUM = ("integrated_gradients", "attribution", "shapley")
INFORMED = [name for name in estimators if name not in (*CONTROLS, *CAPTUM)]


@pytest.fixture(scope="module")
def plant():
    return planted(seed=0)


@pytest.fixture(scope="module")
def model():
    made = toy_model(2, rows=40).double()
    return made.eval()


CUTS = {"uneven": [[0, 0, 1, 0], [1, 1, 0, 0]], "even": [[1, 0, 0, 1], [0, 1, 1, 0]], "layer": [[0, 1, 0, 0], [1] * 4]}


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("by", ["magnitude", "confidence", "gradient", "ablation", "weight"])
def test_heads_of_a_cut_model_are_scored_as_those_beside_closed_ones(model, by, cut):
    gone = torch.tensor(cut, dtype=torch.bool)
    smaller, closed = copy.deepcopy(model), copy.deepcopy(model)
    prune(smaller.encoder, gone)
    fold(closed.encoder, (~gone).double())
    found, expected = (importance(one, "toy0", by, examples=12).scores for one in (smaller, closed))
    torch.testing.assert_close(found, expected.masked_fill(gone, torch.nan), equal_nan=True)


def test_the_random_control_draws_for_each_task_anew(model):
    one, other = (importance(model, task, by="random").scores for task in ("toy0", "toy1"))
    assert not torch.equal(one, other)
    assert torch.equal(one, importance(model, "toy0", by="random").scores)


def by_hand(model, task: str, per_token: bool = False) -> torch.Tensor:
    """∂L/∂ξ of every training example, one example and one backward at a time."""
    from headwise.models.batching import encode

    data = encode(model.tasks[task], "train", model.tokenizer, model.max_length)
    rows = []
    for i in range(len(data)):
        gates = torch.ones(1, 2, 4, dtype=torch.float64, requires_grad=True)
        with gated(model.encoder, gates):
            rows.append(torch.autograd.grad(model(task, data.batch([i])).loss.sum(), gates)[0][0])
    return torch.stack(rows)


def test_scores_equal_a_batch_of_one_loop(model):
    gradients = by_hand(model, "toy0")
    found = importance(model, "toy0", tokens=64)
    assert torch.allclose(found.scores.double(), gradients.abs().mean(0), rtol=1e-6)
    assert torch.allclose(importance(model, "toy0", "fisher").scores.double(), gradients.square().mean(0), rtol=1e-6)
    assert torch.allclose(importance(model, "toy0", "taylor").scores.double(), gradients.mean(0).abs(), rtol=1e-6)
    spread = gradients.abs().std(0) / len(gradients) ** 0.5
    assert torch.allclose(found.stderr.double(), spread, rtol=1e-4)
    assert found.examples == 40


def test_exactness_in_double_precision(model):
    from headwise.heads.gates import Heads
    from headwise.models.batching import encode
    from headwise.scoring.gradient import head_gradients
    from headwise.scoring.sample import Sample, frozen

    data = encode(model.tasks["toy1"], "train", model.tokenizer, model.max_length)
    sample = Sample(model, "toy1", data, np.arange(len(data)), Heads.of(model.encoder), 512, 0)
    with frozen(model):
        together = head_gradients(sample, data.batch(range(40)), per_token=False)
    assert torch.allclose(together, by_hand(model, "toy1"), atol=1e-10)


def test_half_precision_keeps_the_ranking():
    made, _ = planted(seed=1, steps=60)
    exact = importance(made, "toy0").scores.flatten()
    with torch.autocast("cpu", torch.bfloat16):
        half = importance(made, "toy0").scores.flatten()
    assert spearmanr(exact, half).statistic >= 0.97


@pytest.mark.parametrize("tokens", [16, 100, 4096])
def test_scores_do_not_depend_on_the_batching(model, tokens):
    for by in ("gradient", "token", "batch", "fisher"):
        whole = importance(model, "toy0", by).scores
        assert torch.allclose(whole, importance(model, "toy0", by, tokens=tokens).scores, rtol=1e-5)


@pytest.mark.parametrize("by", ["gradient", "ablation"])
def test_only_what_is_looked_at_is_tokenized(model, by, monkeypatch):
    task = model.tasks["toy0"]
    whole = encode(task, "train", model.tokenizer, model.max_length)
    expected, seen = importance(model, "toy0", by, examples=9, data=whole), []
    read = type(task.kind).encode
    monkeypatch.setattr(
        type(task.kind), "encode", lambda kind, rows, *rest: seen.extend(rows) or read(kind, rows, *rest)
    )
    monkeypatch.setattr("headwise.models.batching._cached", lambda path: None)
    found = importance(model, "toy0", by, examples=9)
    assert torch.equal(found.scores, expected.scores) and np.array_equal(found.blocks.sums, expected.blocks.sums)
    assert len(seen) == 9


@pytest.mark.parametrize("examples", [10, 500])
def test_of_long_contexts_all_windows_may_be_drawn(examples):
    words = [f"w{i}" for i in range(20)]
    texts = [" ".join(words[(i * j) % 20] for j in range(60)) for i in range(1, 21)]
    rows = [{"question": "w1 w2", "context": t, "answers": [t.split()[0]], "starts": [0]} for t in texts]
    task = Task("qa", Answer(), Rows(train=rows, dev=rows), "squad_f1")
    model = MultiTaskModel(tiny("bert"), tiny_tokenizer(words), [task], max_length=24).eval()
    whole = encode(model.tasks["qa"], "train", model.tokenizer, model.max_length)
    assert len(whole) > 2 * len(rows)
    found, expected = (importance(model, "qa", examples=examples, data=data) for data in (None, whole))
    assert found.examples == expected.examples == min(examples, len(whole))
    assert torch.equal(found.scores, expected.scores)


def test_batch_and_weight_are_one_gradient_with_two_divisors(model):
    """|·| per batch, averaged over batches or over examples: the same where all batches are of one size."""
    batch, weight = (importance(model, "toy0", by, size=8).scores for by in ("batch", "weight"))
    assert torch.allclose(batch, weight, rtol=1e-5)
    uneven, by_example = (importance(model, "toy0", by, size=32).scores for by in ("batch", "weight"))
    assert not torch.allclose(uneven, by_example, rtol=1e-3)


@pytest.mark.parametrize("by", INFORMED)
def test_every_estimator_finds_the_planted_head(plant, by):
    model, masks = plant
    for task, mask in masks.items():
        found = importance(model, task, by)
        assert torch.equal(top(found.scores, 1 / 8), mask), f"{task} by {by}: {found.scores}"


def test_distractors_are_active(plant):
    model, masks = plant
    scores = importance(model, "toy0").scores
    assert (scores[~masks["toy0"]] > 0).all()


def test_it_leaves_no_trace(plant):
    model, _ = plant
    model.train()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    state = torch.get_rng_state()
    importance(model, "toy0")
    assert model.training and model.encoder.training
    assert all(p.requires_grad and torch.equal(p.grad, torch.ones_like(p)) for p in model.parameters())
    assert torch.equal(state, torch.get_rng_state())
    assert not any(m._forward_pre_hooks for m in model.modules())
    for parameter in model.parameters():
        parameter.grad = None
    model.eval()


def test_last_layer_conventions(model):
    plain = importance(model, "toy0", "token").scores
    michel = importance(model, "toy0", "token", last_layer="examples").scores
    released = importance(model, "toy0", "token", last_layer="none").scores
    assert torch.equal(plain[0], michel[0]) and torch.equal(plain[0], released[0])
    assert (michel[1] > plain[1]).all()
    assert top(released, 0.5)[1].all(), "undivided, the whole last layer is on top"


def test_layers_scaled_to_length_one(model):
    scores = importance(model, "toy0", normalize="l2").scores
    assert torch.allclose(scores.norm(dim=1), torch.ones(2))


def test_stopping_when_stable_uses_fewer_examples():
    model = toy_model(1, rows=4000)
    all_of_them = importance(model, "toy0")
    early = importance(model, "toy0", stable=0.25)
    assert early.examples < all_of_them.examples == 4000
    assert early.split_half(0.25) >= 0.95
    assert all_of_them.examples_needed(0.25) <= 4000


def test_the_planted_head_is_needed(plant):
    """The plant is what it says: closing it takes the task to chance, closing any other head does not."""
    model, masks = plant
    for task, mask in masks.items():
        gates = torch.stack([torch.ones(2, 4), (~mask).float(), *(1 - torch.eye(8).view(8, 2, 4)[~mask.flatten()])])
        base, closed, *others = (score.value for score in evaluate(model, task, gates))
        assert base > 0.95 and closed < 0.75 and min(others) > 0.95


def test_bad_use(model):
    with pytest.raises(HeadwiseError, match="toy0"):
        importance(model, "nothing")
    with pytest.raises(HeadwiseError, match="gradient"):
        importance(model, "toy0", "gradints")
    with pytest.raises(HeadwiseError, match="l2"):
        importance(model, "toy0", normalize="l1")


@pytest.mark.parametrize("examples", [0, -5])
def test_scores_stand_on_one_example_or_more(model, examples):
    with pytest.raises(HeadwiseError, match=f"examples={examples}; expected 1 or more"):
        importance(model, "toy0", examples=examples, split="not even read")


@pytest.mark.parametrize("options", [{}, {"normalize": "l2"}], ids=["plain", "l2"])
@pytest.mark.parametrize("by", ["gradient", "fisher", "taylor", "token", "batch", "weight", "ablation", "magnitude"])
def test_all_blocks_together_are_the_result(by, options):
    model = toy_model(1, rows=128)
    prune(model.encoder, torch.tensor([[False, True, False, False], [False] * 4]))
    found = importance(model, "toy0", by, tokens=256, **({"last_layer": "none"} if by == "token" else {}), **options)
    whole = torch.from_numpy(found.blocks.scores(np.ones(BLOCKS))).float()
    assert torch.allclose(whole, found.scores, equal_nan=True)


@pytest.mark.parametrize("by", ["token", "weight"])
def test_the_error_of_scores_over_tokens_or_batches_is_that_of_a_ratio(by):
    model = toy_model(1, rows=24)
    task, options = model.tasks["toy0"], {"size": 1} if by == "weight" else {}
    whole, values = importance(model, "toy0", by, **options), []
    rows = task.rows("train")
    sizes = [len(row["text"].split()) + 2 if by == "token" else 1 for row in rows]
    for row, size in zip(rows, sizes):
        model.tasks["toy0"] = replace(task, source=Rows(train=[row]))
        values.append(size * importance(model, "toy0", by, **options).scores)
    values, sizes = torch.stack(values), torch.tensor(sizes)
    ratio = values.sum(0) / sizes.sum()
    apart = values - ratio * sizes[:, None, None]
    assert torch.allclose(whole.scores, ratio, rtol=1e-4)
    error = (apart.square().sum(0) * len(rows) / (len(rows) - 1)).sqrt() / sizes.sum()
    assert torch.allclose(whole.stderr, error, rtol=1e-3)
    assert importance(model, "toy0", by, **options).stderr.isnan().all(), "one row has no spread"


def test_batches_of_one_size_have_the_error_of_their_mean(model):
    batch, weight = (importance(model, "toy0", by, size=10) for by in ("batch", "weight"))
    assert torch.allclose(batch.scores, weight.scores) and torch.allclose(batch.stderr, weight.stderr)


def test_a_part_of_the_batches_is_no_longer_than_the_whole():
    """What stops early, or looks at the first examples, must not see the longest alone."""
    model = toy_model(1, rows=600)
    data = encode(model.tasks["toy0"], "train", model.tokenizer, model.max_length)
    firsts = []
    for seed in range(30):
        items = np.random.default_rng(seed).permutation(len(data))
        sample = Sample(model, "toy0", data, items, Heads.of(model.encoder), 64, seed)
        batches = [batch["attention_mask"].sum(1) for _, batch, *_ in sample.batches()]
        assert sum(map(len, batches)) == len(data)
        firsts.append(float(torch.cat(batches[: len(batches) // 4]).float().mean()))
    assert np.mean(firsts) == pytest.approx(data.lengths.mean(), rel=0.05)


@pytest.mark.parametrize(("by", "examples"), [("gradient", 1), ("batch", 20), ("random", 40)])
def test_what_has_no_two_halves_agrees_with_nothing(model, by, examples):
    assert math.isnan(importance(model, "toy0", by, examples=examples).split_half())


@pytest.mark.parametrize("by", CAPTUM)
def test_captum_estimators(plant, by):
    pytest.importorskip("captum")
    model, masks = plant
    for task, mask in masks.items():
        assert torch.equal(top(importance(model, task, by, examples=64).scores, 1 / 8), mask)
