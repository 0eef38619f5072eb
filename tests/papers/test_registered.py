"""Registered tests: only what was named is primary, and a plan cannot follow its results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headwise.errors import HeadwiseError
from headwise.io.records import Results
from headwise.papers.methods import recipe
from headwise.papers.methods.tables import Records
from headwise.papers.registered import Registered, with_registered

PLAN = """
recipe = "methods"
models = ["m"]
seeds = [10, 11, 12]

[[endpoints]]
method = "scales"
against = "plain"
column = "mnli"
direction = "greater"

[[endpoints]]
method = "scales"
against = "plain"
column = "stsb"
"""


def plan(folder: Path, text: str = PLAN) -> Registered:
    (folder / "plan.toml").write_text(text)
    return Registered.read(folder / "plan.toml")


def put(results: Results, seeds: list[int], gap: float = 0.05) -> None:
    for seed in seeds:
        for method, more in (("plain", 0.0), ("scales", gap + 0.001 * seed)):
            scores = {"mnli": {"value": 0.7 + more}, "stsb": {"value": 0.8 + 0.01 * (seed % 2) * bool(more)}}
            config = {"model": "m", "name": method, "seed": seed, "tuned": "0", "tasks": {}}
            results.save("methods.confirmed", config, {"dev": scores, "test": {}})


def verdicts(made: Registered, results: Results) -> list[tuple]:
    rows = made.part(Records(results)).tables[0]["rows"]
    return [(row[-2], row[-1], row[6]) for row in rows]


def test_an_endpoint_waits_for_all_its_seeds(tmp_path):
    made, results = plan(tmp_path), Results(tmp_path / "records")
    put(results, [10, 11])
    assert [verdict for _, verdict, _ in verdicts(made, results)] == ["waiting for seeds"] * 2
    put(results, [12, 13])  # 13 is not in the plan and may not help
    found = verdicts(made, results)
    assert found[0][:2] == ("3 of 3", "confirmed") and found[1][1] == "not confirmed"


def test_a_direction_that_was_not_foreseen_is_not_confirmed(tmp_path):
    made, results = plan(tmp_path), Results(tmp_path / "records")
    put(results, [10, 11, 12], gap=-0.2)
    _, verdict, p = verdicts(made, results)[0]
    assert verdict == "not confirmed" and p > 0.99


def test_the_correction_is_over_the_plan(tmp_path):
    both, results = plan(tmp_path), Results(tmp_path / "records")
    put(results, [10, 11, 12])
    row = both.part(Records(results)).tables[0]["rows"][0]
    assert row[7] == pytest.approx(2 * row[6])
    one = plan(tmp_path, PLAN.rpartition("[[endpoints]]")[0])
    row = one.part(Records(results)).tables[0]["rows"][0]
    assert row[7] == pytest.approx(row[6])


def test_all_other_tables_are_exploratory(tmp_path):
    results = Results(tmp_path / "records")
    put(results, [10, 11, 12])
    parts = with_registered(recipe, plan(tmp_path), "today").parts(results)
    assert parts[0].title == "Registered tests" and "registered today" in parts[0].tables[0]["note"]
    assert all(t["note"].startswith("Exploratory.") for part in parts[1:] for t in part.tables)
    assert not any("Exploratory" in t["note"] for part in recipe.parts(results) for t in part.tables)


def test_a_plan_cannot_follow_its_results(tmp_path):
    made = plan(tmp_path)
    when = made.remember(tmp_path / "run")
    assert made.remember(tmp_path / "run") == when
    changed = plan(tmp_path, PLAN.replace("mnli", "rte"))
    changed.remember(tmp_path / "run")  # nothing was run yet: plans may change
    put(Results(tmp_path / "run" / "records"), [10])
    with pytest.raises(HeadwiseError, match="changed after 2 records"):
        made.remember(tmp_path / "run")
    put(Results(tmp_path / "late" / "records"), [10])
    with pytest.raises(HeadwiseError, match="older than the plan"):
        made.remember(tmp_path / "late")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('recipe = "methods"', 'recipe = "mesh"', "one of: methods"),
        ("seeds = [10, 11, 12]", "seeds = [10]", "two or more"),
        ('column = "mnli"', 'colum = "mnli"', "field of an endpoint"),
        ('direction = "greater"', 'direction = "up"', "direction"),
        ('models = ["m"]', "", "no models"),
        ('models = ["m"]', 'models = ["m"]\nseed = 1', "field of a registered plan"),
    ],
)
def test_a_wrong_plan_is_refused_before_anything_runs(tmp_path, old, new, words):
    with pytest.raises(HeadwiseError, match=words):
        plan(tmp_path, PLAN.replace(old, new))


def test_the_registered_plan_of_the_repository_can_be_read():
    path = Path(__file__).parents[2] / "docs" / "results" / "registered" / "methods.toml"
    made = Registered.read(path)
    assert len(made.seeds) == 10 and not np.isin(made.seeds, [0]).any()
