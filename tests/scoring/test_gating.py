"""Gates that are pushed open and pushed closed find heads that help, and heads that harm."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from headwise.errors import HeadwiseError
from headwise.heads.gates import Heads, gated
from headwise.papers.mesh.inner import HeadGates
from headwise.scoring.gating import HardConcrete, cut, draw, p_open, settle
from headwise.scoring.importance import importance
from headwise.tasks.task import Rows
from headwise.testing import layers_run_again, no_dropout, planted, tiny, tiny_batch, toy_model
from headwise.training.methods.l0 import L0
from headwise.training.plan import Plan


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


BASE = Plan(steps=20, lr=3e-3, batch_size=16, evaluate_every=0)


def test_the_closed_form_penalty_equals_monte_carlo():
    log_a = torch.linspace(-4, 4, 9, dtype=torch.float64)
    n = 100_000
    noise = torch.rand(n, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    drawn = (draw(log_a, noise) > 0).double().mean(0)
    exact = p_open(log_a)
    assert ((drawn - exact).abs() <= 5 * (exact * (1 - exact) / n).sqrt()).all()


def test_penalty_is_the_mean_or_the_sum_over_layers():
    gates = HardConcrete(Heads.of(tiny("bert")), tasks=("a", "b"), init="xavier", seed=1)
    chances = p_open(gates.log_a)
    assert torch.allclose(gates.penalty("sum"), chances.sum((1, 2)))
    assert torch.allclose(gates.penalty("mean") * 2, gates.penalty("sum"))


def test_draws_are_differentiable():
    log_a = torch.tensor([-1.0, -0.2, 0.3, 1.0], dtype=torch.float64, requires_grad=True)
    noise = torch.tensor([0.7, 0.45, 0.55, 0.3], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda a: draw(a, noise), (log_a,))
    assert torch.autograd.gradcheck(p_open, (log_a,))


def test_the_gradient_through_a_model_equals_finite_differences():
    model = toy_model(2, rows=8).double().train()
    gates = HardConcrete(Heads.of(model.encoder), tuple(model.tasks), "xavier", seed=3).double()
    batch = _batch(model)

    def loss() -> torch.Tensor:
        torch.manual_seed(0)  # the same draw and the same dropout
        with gates.on(model):
            return model("toy1", batch).loss.mean() + 0.1 * gates.penalty("mean").sum()

    (exact,) = torch.autograd.grad(loss(), gates.log_a)
    for place in [(0, 0, 1), (1, 0, 1), (1, 1, 0), (1, 1, 3)]:
        ends = []
        for step in (1e-5, -1e-5):
            with torch.no_grad():
                gates.log_a[place] += step
                ends.append(loss().item())
                gates.log_a[place] -= step
        assert (ends[0] - ends[1]) / 2e-5 == pytest.approx(exact[place].item(), rel=1e-4, abs=1e-8)


def _batch(model, task: str = "toy0", items: int = 6) -> dict[str, torch.Tensor]:
    from headwise.models.batching import encode

    return encode(model.tasks[task], "train", model.tokenizer, model.max_length).batch(range(items))


def test_released_numbers():
    """Closed below log a = -2.40, open above 2.40; the released start leaves 12 gates between 0.3 and 0.7."""
    assert settle(torch.tensor([-2.41, -2.38, 0.0, 2.38, 2.41])).tolist()[::4] == [0.0, 1.0]
    assert settle(torch.tensor(0.0)) == 0.5
    heads = Heads.of(tiny("bert", num_attention_heads=12))
    start = HardConcrete(heads, [str(i) for i in range(50)], "xavier").settled()
    assert 0.298 < start.min() < 0.32 and 0.68 < start.max() < 0.702
    assert (HardConcrete(heads).settled() == 1).all()


def test_draws_in_training_and_settled_gates_in_evaluation():
    model = toy_model(2, rows=8).eval()
    gates = HardConcrete(Heads.of(model.encoder), tuple(model.tasks), "xavier")
    batch = _batch(model)
    for task, settled in zip(model.tasks, gates.settled()):
        with gates.on(model), torch.no_grad():
            found = model(task, batch).scores
        with gated(model.encoder, settled), torch.no_grad():
            assert torch.equal(found, model(task, batch=batch).scores)
    for module in model.modules():
        module.training = module is model  # draws without dropout
    with gates.on(model), torch.no_grad():
        assert not torch.equal(model("toy0", batch).scores, model("toy0", batch).scores)
    assert not any(m._forward_pre_hooks for m in model.modules())


@pytest.mark.parametrize("kind", [HardConcrete, HeadGates])
def test_the_encoder_by_itself_belongs_to_no_task(kind):
    """Before a task's forward, after it, and after one that failed."""
    model = toy_model(2, rows=8)
    tasks = tuple(model.tasks) if kind is HardConcrete else model.tasks.values()
    gates, batch = kind(Heads.of(model.encoder), tasks), _batch(model)
    with gates.on(model):
        for task, given in (("toy0", batch), ("toy1", {"label": batch["label"]})):
            with pytest.raises(HeadwiseError, match="called directly"):
                model.hidden(batch)
            with nullcontext() if given is batch else pytest.raises(ValueError):
                model(task, given)
        with pytest.raises(HeadwiseError, match="called directly"):
            model.encoder(batch["input_ids"])
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())


def test_gradient_checkpointing_keeps_the_gradients_of_gates():
    model = no_dropout(toy_model(2, rows=8)).train()
    gates, found = HardConcrete(Heads.of(model.encoder), tuple(model.tasks), "xavier"), []
    for _ in range(2):
        torch.manual_seed(0)
        with gates.on(model):
            loss = model("toy1", _batch(model)).loss.mean()
            found += torch.autograd.grad(loss, [gates.log_a])
        layers_run_again(model.encoder)
    assert torch.equal(*found) and found[0][1].any()


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
def test_cutting_with_fractional_gates_changes_no_output(family):
    model = tiny(family)
    gates = torch.tensor([[0.0, 0.0, 0.4, 1.0], [0.7, 0.0, 0.0, 0.0]])
    batch = tiny_batch(model)
    with torch.no_grad(), gated(model, gates):
        expected = model(**batch).last_hidden_state
    smaller = cut(copy.deepcopy(model), gates)
    with torch.no_grad():
        assert torch.allclose(smaller(**batch).last_hidden_state, expected, atol=1e-5)
    assert smaller.num_parameters() < model.num_parameters()


def test_gates_of_another_model_are_refused():
    gates = HardConcrete(Heads.of(tiny("bert")))
    for other in (toy_model(family="roberta"), toy_model(family="electra")):
        with pytest.raises(HeadwiseError, match="gates of a bert"), gates.on(other):
            pass
    longer = HardConcrete(Heads.of(tiny("bert", num_hidden_layers=3)))
    with pytest.raises(HeadwiseError, match=r"\(3, 4\)"), longer.on(toy_model()):
        pass
    method, other = L0(), L0()
    method.parameters(toy_model(), BASE)
    other.gates, other.price = longer, method.price
    with pytest.raises(HeadwiseError, match="gates of shape"):
        method.load_state(other.state())
    with pytest.raises(HeadwiseError, match="gates of shape"):
        cut(tiny("bert"), torch.ones(3, 4))
