"""Tuned baselines: every method has the same budget, and other seeds confirm."""

from __future__ import annotations

import importlib.util

import pytest

from headwise.experiments.jobs import in_order, perform
from headwise.io.records import Results
from headwise.papers.methods import recipe
from headwise.papers.methods.jobs import METHODS, MTDNN, RIVALS, SINGLE
from headwise.papers.methods.records import Records
from headwise.papers.pages import pages
from headwise.papers.recipe import Scale

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
    with_torchjd = importlib.util.find_spec("torchjd") is not None
    for job in in_order(recipe.jobs(Scale("smoke"))):
        if with_torchjd or "Grad" not in job.title:
            perform(job, tmp_path, "cpu")
    words = pages(recipe, Results(tmp_path / "records"), tmp_path / "page").with_suffix(".md").read_text()
    assert "merged: Fisher by head" in words and "updates per head" in words and "MT-DNN" in words
    assert "Tuned settings" in words and "untouched, cosine, mean pooling" in words and "single" in words
