"""Tuned baselines with equal budgets, merging, and updates per head."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from headwise.errors import HeadwiseError
from headwise.experiments.jobs import in_order, perform
from headwise.heads.gates import Heads
from headwise.io.records import Results
from headwise.models.batching import encode
from headwise.papers.methods import merging, recipe
from headwise.papers.methods.jobs import METHODS, MTDNN, RIVALS, SINGLE
from headwise.papers.methods.records import Records
from headwise.papers.methods.updates import Updates, Written
from headwise.papers.pages import pages
from headwise.papers.recipe import Scale
from headwise.testing import toy_model
from headwise.training.loop import fit
from headwise.training.plan import Plan

CHOSEN = {"chosen": {}, "changes": {"plan.lr": 1e-4}, "rungs": [{"candidates": [{"mean": 0.8}]}]}


def put(results: Results, method: str, seed: int, dev: dict[str, float]) -> None:
    results.save("tune", {"method": method}, CHOSEN)
    key = Results.key("tune", {"method": method}, 1)
    scores = {task: {"value": value} for task, value in dev.items()}
    config = {"model": "m", "name": method, "seed": seed, "tuned": key, "tasks": dict.fromkeys(dev)}
    results.save("methods.confirmed", config, {"dev": scores, "test": {}})


def test_every_method_has_the_same_candidates_and_other_seeds_than_the_tuning():
    made = in_order(recipe.jobs(Scale("small", {"m": "no/such-model"})))
    tuned = [job for job in made if job.work == "tune"]
    budgets = {tuple(map(len, job.config["axes"].values())) for job in tuned}
    assert len(budgets) == 1 and len(tuned) == len(METHODS) + len(RIVALS) + 8
    confirmed = [job for job in made if job.work == "methods.confirmed"]
    assert all(job.after[0].key == job.config["tuned"] and job.config["seed"] >= 10 for job in confirmed)
    assert {job.config["name"] for job in confirmed} == {*METHODS, *RIVALS, MTDNN, SINGLE}
    assert {job.config["seed"] for job in tuned} == {0}


def test_columns_are_tested_one_by_one(tmp_path):
    results = Results(tmp_path)
    for seed in range(6):
        noise = 0.001 * (seed % 3)
        put(results, "plain", seed, {"mnli": 0.70 + noise, "stsb": 0.80})
        put(results, "scales", seed, {"mnli": 0.72 + 2 * noise, "stsb": 0.80 - noise})
    records = Records(results)
    mine, base = records.contrast("m", "scales", "plain", "mean")
    assert set(mine) == set(range(6)) and base[0] == pytest.approx(75)
    table = next(t for part in recipe.parts(results) for t in part.tables if t["title"].startswith("Tuned methods"))
    rows = {(row[0], row[1]): row for row in table["rows"]}
    assert rows["scales", "mnli"][4] == pytest.approx(2.1) and rows["scales", "mnli"][8] < 0.01
    assert rows["scales", "stsb"][4] < 0 and rows["plain", "mnli"][4] is None


def test_a_seed_without_all_columns_is_in_no_mean(tmp_path):
    results = Results(tmp_path)
    put(results, "plain", 0, {"mnli": 0.7, "stsb": 0.8})
    put(results, "single", 0, {"mnli": 0.7})
    assert Records(results).contrast("m", "single", "plain", "mean")[0] == {}


@pytest.mark.slow
def test_smoke_runs_whole(tmp_path):
    needs = {"PCGrad": ("torchjd",), "UPGrad": ("torchjd", "qpsolvers")}
    absent = [n for n, modules in needs.items() if any(importlib.util.find_spec(each) is None for each in modules)]
    for job in in_order(recipe.jobs(Scale("smoke"))):
        if not any(name in job.title for name in absent):
            perform(job, tmp_path, "cpu")
    words = pages(recipe, Results(tmp_path / "records"), tmp_path / "page").with_suffix(".md").read_text()
    assert "merged: Fisher by head" in words and "updates per head" in words and "MT-DNN" in words
    assert "Tuned settings" in words and "untouched, cosine, mean pooling" in words and "single" in words


# -- merging: against values worked out by hand, and a planted head that one task alone needs

A, B = {"w": torch.tensor([4.0, 1.0, -3.0, 0.5, 0.0])}, {"w": torch.tensor([2.0, -0.1, 5.0, 0.4, 0.0])}


def test_means_and_weights():
    assert merging.mean([A, B])["w"].tolist() == [3.0, 0.44999998807907104, 1.0, 0.44999998807907104, 0.0]
    weights = [{"w": torch.full((5,), 3.0)}, {"w": torch.ones(5)}]
    assert torch.allclose(merging.weighted([A, B], weights)["w"], (3 * A["w"] + B["w"]) / 4)


def test_ties_trims_elects_and_averages_what_agrees():
    """Two of five are kept in each: 4 and -3, 2 and 5; the third has the sign of 5 and is 5, not their mean."""
    assert merging.ties([A, B], kept=0.4)["w"].tolist() == [3.0, 0.0, 5.0, 0.0, 0.0]


def test_a_head_that_one_task_needs_is_that_tasks():
    start = toy_model().encoder
    state = start.state_dict()
    heads = Heads.of(start)
    floats = {name: tensor for name, tensor in state.items() if tensor.is_floating_point()}
    vectors = [{name: torch.full_like(tensor, value) for name, tensor in floats.items()} for value in (1.0, -1.0)]
    needed = [torch.ones(heads.shape), torch.ones(heads.shape)]
    needed[1][1, 2] = 1e-9
    needed[1] *= 1 / needed[1].mean()
    merged = merging.by_heads(vectors, needed, start)
    names = {id(p): n for n, p in start.named_parameters()}
    part = heads.sites[1].parts["q"]
    found = merged[names[id(part.module.weight)]]
    assert torch.allclose(found[part.rows[2]], torch.tensor(1.0), atol=1e-3)
    assert found[part.rows[1]].abs().max() < 0.1 and merged["embeddings.word_embeddings.weight"].abs().max() < 1e-6


def test_the_whole_change_of_one_task_is_that_task():
    start, end = toy_model().encoder.state_dict(), toy_model().encoder
    torch.nn.init.normal_(end.embeddings.word_embeddings.weight)
    made = merging.applied(start, merging.changes(end.state_dict(), start))
    assert all(torch.allclose(made[name], value, atol=1e-6) for name, value in end.state_dict().items())


# -- low-rank updates of the output projection: they start at nothing, belong to one task, and are what they say

PLAN = Plan(steps=12, lr=1e-3, batch_size=16, evaluate_every=0)


@pytest.mark.parametrize("per", ["head", "layer"])
def test_they_start_at_nothing_and_a_rate_of_zero_is_plain_training(per):
    plain, still = toy_model(), toy_model()
    fit(plain, PLAN)
    fit(still, PLAN, Updates(lr=0.0, per=per, times=0.0))
    for name, value in plain.state_dict().items():
        assert torch.equal(value, still.state_dict()[name]), name


def test_a_head_writes_its_update_for_its_task_alone():
    """Against output projections changed by hand: W_O + u vᵀ in a head's own columns."""
    model, by_hand = toy_model().eval(), toy_model().eval()
    batch = encode(model.tasks["toy0"], "dev", model.tokenizer).batch(range(4))
    with torch.no_grad():
        before = model("toy1", batch).scores
        model.updates = written = Written(model, "head", seed=0)
        for values in (*written.into.values(), *written.out.values()):
            values.normal_()
        for values in (v for key, v in written.out.items() if key.startswith("toy1 ")):
            values.zero_()
        for site in Heads.of(by_hand.encoder).sites:
            part, key = site.parts["o"], f"toy0 {site.layer}"
            for head, columns in enumerate(part.rows):
                part.module.weight[:, columns] += torch.outer(written.out[key][head], written.into[key][head])
        assert torch.allclose(model("toy0", batch).scores, by_hand("toy0", batch).scores, atol=1e-5)
        assert torch.equal(model("toy1", batch).scores, before)


def test_updates_of_layers_have_no_fewer_parameters_than_those_of_heads():
    sizes = {per: sum(p.numel() for p in Written(toy_model(), per, 0).parameters()) for per in ("head", "layer")}
    assert 1.0 <= sizes["layer"] / sizes["head"] < 1.25


def test_they_learn_and_are_clipped_with_the_model():
    model = toy_model()
    fit(model, PLAN.with_(clip=1.0), Updates())
    assert all((values != 0).any() for values in model.updates.out.values())
    with pytest.raises(HeadwiseError, match="shape of updates"):
        Updates(per="row")
