"""Forwards from the lesioned layer on: the losses of whole forwards, for fewer runs of layers."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest
import torch

from headwise.heads.gates import Heads, gated
from headwise.heads.modules import evaluating
from headwise.measuring.evaluate import evaluate
from headwise.measuring.replay import Replay, in_order, worth
from headwise.scoring.importance import importance
from headwise.testing import tiny, tiny_batch, toy_language_model, toy_model


def alone(heads: Heads) -> torch.Tensor:
    """Every head closed alone, the last first."""
    living = heads.alive.flatten().nonzero().flatten()
    gates = torch.ones(len(living), heads.alive.numel())
    gates[range(len(living)), living] = 0
    return gates.view(-1, *heads.shape).flip(0)


class Counted:
    """How often the layers of a model ran."""

    def __init__(self, model, blocks):
        self.count, self.begun = 0, 0
        for block in blocks:
            original = block.forward
            block.forward = partial(self._called, original)

    def _called(self, original, *args, **kwargs):
        self.count += 1
        return original(*args, **kwargs)


def states(model, batch, gates, heads):
    with gated(model, gates, heads=heads):
        out = model(**batch)
    return getattr(out, "last_hidden_state", None) if hasattr(out, "last_hidden_state") else out.logits


FAMILIES = ("bert", "gpt2", "llama", "t5", "vit", "deberta-v2", "albert", "gemma3_text", "bart")


@pytest.mark.parametrize("family", [*FAMILIES])
def test_any_model_gives_what_whole_forwards_give(family):
    model = tiny(family).eval()
    stack = "decoder" if family in ("t5", "bart") else None
    heads, batch = Heads.of(model, stack=stack), tiny_batch(model)
    batch |= {"use_cache": False} if stack else {}
    replay, lesions = Replay(model, heads), alone(heads)
    with torch.no_grad(), replay.batch():
        found = [replay.run(gates, partial(states, model, batch, gates)) for gates in lesions]
    with torch.no_grad():
        whole = [states(model, batch, gates, heads) for gates in lesions]
    assert all(torch.equal(a, b) for a, b in zip(found, whole))
    assert replay.usable == (family != "albert"), "one set of weights is called for every layer"
    assert not any("forward" in vars(module) for module in model.modules()), "nothing is left behind"


def test_layers_below_a_lesion_do_not_run():
    """Six layers: the whole once, a proof, and for a lesion in layer l the layers from l on."""
    model = tiny("bert", num_hidden_layers=6).eval()
    heads, batch = Heads.of(model), tiny_batch(model)
    counted, replay = Counted(model, model.encoder.layer), Replay(model, heads)
    with torch.no_grad(), replay.batch():
        replay.run(None, partial(states, model, batch, torch.ones(heads.shape)))
        for gates in alone(heads):
            replay.run(gates, partial(states, model, batch, gates))
    assert replay.usable and counted.count == 6 + 6 + heads.num_heads * sum(range(1, 7))


def test_nested_sets_start_at_the_head_that_joins_them():
    """As in Shapley values and greedy searches: the next set differs from the last one in one layer."""
    model = tiny("bert", num_hidden_layers=4).eval()
    heads, batch, order = Heads.of(model), tiny_batch(model), [(3, 0), (0, 1), (2, 2), (1, 3), (3, 1), (2, 0)]
    counted, replay, ran = Counted(model, model.encoder.layer), Replay(model, heads), []
    sets = torch.ones(len(order), *heads.shape)
    for number, (layer, head) in enumerate(order):
        sets[number:, layer, head] = 0
    with torch.no_grad(), replay.batch():
        for gates in sets:
            before = counted.count
            found = replay.run(gates, partial(states, model, batch, gates))
            ran.append(counted.count - before)
    with torch.no_grad():
        assert torch.equal(found, states(model, batch, sets[-1], heads))
    assert ran == [4, 4, 2 + 4, 3, 1, 2], "the third is the proof"


@pytest.mark.parametrize("by", ["ablation", "mean_ablation", "all_but_one"])
def test_importance_is_that_of_whole_forwards(by, monkeypatch):
    model = toy_model(1)
    found = importance(model, "toy0", by)
    monkeypatch.setattr(Replay, "run", lambda self, gates, work: work(self.heads))
    whole = importance(model, "toy0", by)
    assert torch.allclose(found.scores, whole.scores, atol=1e-6) and torch.allclose(found.stderr, whole.stderr)


def test_scales_need_every_layer_so_forwards_are_whole(monkeypatch):
    model = toy_model(1)
    model.give_scales()
    found = importance(model, "toy0", "ablation").scores
    monkeypatch.setattr(Replay, "run", lambda self, gates, work: work(self.heads))
    assert torch.equal(found, importance(model, "toy0", "ablation").scores)


def test_lesions_of_prompts_start_from_the_cache_of_their_prefix(monkeypatch):
    model = toy_language_model()
    task = next(iter(model.tasks))
    lesions = alone(model.attention)
    ran = []
    block = next(m for n, m in model.model.named_modules() if n.endswith("layers.0"))
    original = block.forward
    block.forward = lambda *args, **kwargs: (ran.append(1), original(*args, **kwargs))[1]
    _, ran[:] = model.attention, []  # a model with other code is traced again
    found = evaluate(model, task, lesions)
    few, ran[:] = len(ran), []
    monkeypatch.setattr(Replay, "run", lambda self, gates, work: work(self.heads))
    whole = evaluate(model, task, lesions)
    assert [s.predictions for s in found] == [s.predictions for s in whole]
    assert few < 0.8 * len(ran)


def test_an_input_that_follows_from_gates_is_read_anew():
    """A loss whose second forward reads what the first said, as in decoding."""
    model = tiny("bert", num_hidden_layers=3).eval()
    heads, batch = Heads.of(model), tiny_batch(model)

    def twice(gates, here):
        with gated(model, gates, heads=here):
            first = model(**batch).last_hidden_state
            return model(inputs_embeds=first, attention_mask=batch["attention_mask"]).last_hidden_state

    lesions, replay = alone(heads), Replay(model, heads)
    with torch.no_grad(), evaluating(model), replay.batch():
        found = [replay.run(gates, partial(twice, gates)) for gates in lesions]
    with torch.no_grad():
        assert all(torch.equal(a, twice(gates, heads)) for a, gates in zip(found, lesions))
    assert not replay.usable


def test_an_order_makes_neighbours_of_lesions_that_begin_alike():
    generator = torch.Generator().manual_seed(0)
    lesions = (torch.rand(40, 3, 2, generator=generator) > 0.5).float()
    ordered = lesions[in_order(lesions)]
    beginnings = [tuple(row.flatten().tolist()) for row in ordered[:, :1]]
    assert sum(a != b for a, b in pairwise(beginnings)) == len(set(beginnings)) - 1
    assert worth(lesions) and not worth(lesions[:1])
    assert not worth(torch.eye(8).view(8, 1, 8)), "all differ in the first layer"
