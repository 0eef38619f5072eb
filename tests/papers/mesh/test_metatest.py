"""Meta-tests: the model is left as it was, support sets are every model's own, and numbers are what they say."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from headwise.errors import HeadwiseError, HeadwiseWarning
from headwise.measuring.evaluate import evaluate
from headwise.models.multitask import MultiTaskModel
from headwise.papers.mesh.meta import Meta
from headwise.papers.mesh.metatest import best_rate, meta_test, with_support
from headwise.tasks.languages import share
from headwise.tasks.task import Rows
from headwise.testing import tiny, tiny_tokenizer, toy_tasks
from headwise.training.loop import fit
from headwise.training.plan import Plan

PLAN = Plan(steps=60, lr=3e-3, batch_size=16, accumulate=2, window="mixed", evaluate_every=0)


def pairs() -> list:
    """One task in two languages, another in one, and a new one: the first with its answers swapped."""
    first, second = toy_tasks(2, rows=96)
    sides = {s: [row | {"label": "ba"["ab".index(row["label"])]} for row in first.rows(s)] for s in ("train", "dev")}
    third = replace(first, source=Rows(**sides))
    named = [("mark_en", "en", first), ("other_en", "en", second), ("mark_es", "es", first), ("new_es", "es", third)]
    return [replace(task, name=name, language=language, _read={}) for name, language, task in named]


def made(out=None, **settings) -> tuple[MultiTaskModel, Meta, list]:
    words = [f"w{i}" for i in range(20)] + [f"m{i}{c}" for i in range(3) for c in "ab"]
    known = pairs()[:2]
    torch.manual_seed(0)
    model = MultiTaskModel(tiny("bert"), tiny_tokenizer(words), known, share=share(known))
    method = Meta(support=8, rates=0.05, **settings)
    fit(model, PLAN, method, out=out)
    return model, method, pairs()[2:]


@pytest.fixture(scope="module")
def trained():
    return made(gates="sigmoid", gates_each="language", trim={"prune": 0.25, "each": "language", "examples": 64})


def test_the_model_is_left_as_it_was(trained):
    model, method, (known, new) = trained
    before, tasks = copy.deepcopy(model.state_dict()), dict(model.tasks)
    for task in (known, new):
        found = meta_test(model, method, task, shots=(4, 8), seeds=2, limit=24)
        assert not found.seen and set(found.scores) == {4, 8}
    assert model.tasks == tasks and model.shared == {}
    after = model.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[n], after[n]) for n in before)


def test_zero_shot_is_the_same_output_head_on_another_language(trained):
    model, method, (known, new) = trained
    found = meta_test(model, method, known, shots=(4,), seeds=1)
    assert found.zero_shot.predictions == _scores(model, method, "mark_en").predictions
    assert found.estimate(0).value == found.zero_shot.value
    assert meta_test(model, method, new, shots=(4,), seeds=1).zero_shot is None


def _scores(model, method, task):
    gates = method.learner.gates.newcomer(pairs()[2])  # Spanish gates: none were trained, so the mean
    gates = type(gates)(gates.heads, [model.tasks[task]], gates.form).requires_grad_(False)
    gates.logits.data.copy_(method.learner.gates.logits.mean(0))
    gates.open.copy_(method.learner.gates.open.amax(0))
    with gates.on(model):
        return evaluate(model, task)


def test_heads_are_closed_by_the_pairs_own_support(trained):
    """All of them closed leaves nothing of the text; none closed changes nothing; and the model is left as it was."""
    model, method, (known, _) = trained
    whole, same, none = (
        meta_test(model, method, known, (8,), 1, limit=24, prune=p).scores[8] for p in (0.0, 1e-9, 1.0)
    )
    assert whole[0].predictions == same[0].predictions != none[0].predictions
    again = meta_test(model, method, known, (8,), 1, limit=24)
    assert again.scores[8][0].predictions == whole[0].predictions


def test_adaptation_learns_a_new_task():
    model, method, (_, new) = made()
    few, more = meta_test(model, method, new, shots=(4, 32), seeds=3, steps=20).scores.values()
    assert np.mean([s.value for s in more]) > 0.6
    assert np.mean([s.value for s in more]) >= np.mean([s.value for s in few]) - 0.05


def test_numbers_repeat_and_pair(trained):
    model, method, (known, new) = trained
    one, two = (meta_test(model, method, known, shots=(8,), seeds=3, limit=32) for _ in range(2))
    assert one.to_record() == two.to_record()
    same = one.beats(two, 8)
    assert same.value == same.low == same.high == 0
    none = meta_test(model, method, known, shots=(8,), seeds=3, limit=32, steps=0)
    assert np.allclose(none.values(8), none.zero_shot.value)
    low, high = one.estimate(8).low, one.estimate(8).high
    assert low <= one.estimate(8).value <= high
    assert "8 shots" in str(one) and one.to_record()["shots"][1]["seeds"] == one.values(8).tolist()
    with pytest.raises(HeadwiseError, match="same pair"):
        one.beats(meta_test(model, method, new, shots=(8,), seeds=3, limit=32), 8)


def test_few_examples_are_refused_clearly(trained):
    model, method, (known, _) = trained
    with pytest.raises(HeadwiseError, match="96 training rows"):
        meta_test(model, method, known, shots=(500,), seeds=1)
    with pytest.raises(HeadwiseError, match="2 classes"):
        meta_test(model, method, known, shots=(1,), seeds=1)


def test_what_cannot_be_asked_is_said(trained):
    model, method, (known, _) = trained
    for wrong in ({"seeds": 0}, {"shots": ()}, {"shots": (0,)}, {"steps": -1}):
        with pytest.raises(HeadwiseError, match="1 or more"):
            meta_test(model, method, known, **{"shots": (8,), "seeds": 1, **wrong})
    with pytest.raises(HeadwiseError, match="rates for bla"):
        meta_test(model, method, known, shots=(8,), seeds=1, rates={"bla": 1})
    found = meta_test(model, method, known, shots=(8,), seeds=1, limit=24)
    for ask in (lambda: found.estimate(9), lambda: found.beats(found, 0)):
        with pytest.raises(HeadwiseError, match="unknown number of shots"):
            ask()


def test_the_best_rate_is_chosen_on_seen_pairs(trained):
    model, method, _ = trained
    assert best_rate(model, method, shots=8, seeds=1, rates=(1e-4, 1e3), steps=3, limit=24) == 1e-4


def test_what_stands_beside_the_model_comes_back(tmp_path):
    settings = {"gates": "concrete", "gates_each": "pair", "learn_rates": 0.1}
    model, method, (known, _) = made(tmp_path, trim={"prune": 0.25, "each": "task", "examples": 64}, **settings)
    back = MultiTaskModel.load(model.save_pretrained(tmp_path / "model"), pairs()[:2])
    again = Meta(support=8, rates=0.05, trim={"prune": 0.25, "each": "task", "examples": 64}, **settings)
    again.ready(back, tmp_path / "meta.safetensors")
    one, two = (meta_test(m, how, known, (8,), 2, limit=32) for m, how in ((model, method), (back, again)))
    assert one.to_record() == two.to_record()
    assert again.learner.gates.closed["mark_en"].sum() == 2


def test_another_model_leaves_the_trained_gates_and_rates():
    """Of a copy, too, the method knows no gates, and says so; it is as under a method that has trained nothing."""
    settings = {"gates": "sigmoid", "gate_lr": 0.5, "learn_rates": 0.5}
    model, method, (known, _) = made(**settings)
    kept = {name: value.clone() for name, value in method.state().items()}
    before, copied = meta_test(model, method, known, (8,), 2, limit=32), copy.deepcopy(model)
    with pytest.warns(HeadwiseWarning, match="fresh ones"):
        other = meta_test(copied, method, known, (8,), 2, limit=32)
    untrained = Meta(support=8, rates=0.05, **settings)
    assert other.to_record() == meta_test(copied, untrained, known, (8,), 2, limit=32).to_record()
    assert method.learner.model is model and all(torch.equal(method.state()[n], v) for n, v in kept.items())
    assert meta_test(model, method, known, (8,), 2, limit=32).to_record() == before.to_record()


def test_a_language_with_development_rows_alone_is_tested_on_half_of_them():
    """Its support comes from the other half; no row is on both sides, and every class has rows there."""
    (task,) = toy_tasks(1)
    rows = [{**row, "text": f"{row['text']} {i}"} for i, row in enumerate(task.rows("dev"))]
    lonely = replace(task, name="lonely_fr", source=Rows(dev=rows), _read={})
    made = with_support(lonely)
    texts = {split: {row["text"] for row in made.rows(split)} for split in ("train", "dev")}
    assert texts["train"] | texts["dev"] == {row["text"] for row in rows} and not texts["train"] & texts["dev"]
    assert "half" in made.note and with_support(task) is task
