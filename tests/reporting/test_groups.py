"""Studies of many tasks: groups of tasks that behave alike, and a page for each."""

from __future__ import annotations

import numpy as np
import pytest

from headwise.dissociation.result import MANY, SHOWN, Dissociation
from headwise.reporting import report
from headwise.reporting.groups import MOST, grouped
from headwise.study.schema import relative

KINDS, RANDOM = 5, 12


def study(tasks: int = 60) -> dict:
    """Planted: task i is of kind i modulo five, and only lesions of its own kind harm it."""
    rng = np.random.default_rng(0)
    kind, intact = np.arange(tasks) % KINDS, rng.uniform(0.7, 0.95, (tasks, 1))
    left = 1 - 0.04 * rng.random((tasks, tasks + RANDOM))
    left[:, :tasks] -= 0.3 * (kind[:, None] == kind)
    names = [f"k{kind[i]}-{i}" for i in range(tasks)]
    found = Dissociation.of(names, np.concatenate([intact, intact * left], 1))
    scores = {name: {"scores": rng.random((2, 4)).tolist()} for name in names}
    return {
        "model": {"name": "m", "layers": 2, "heads": 4},
        "tasks": [{"name": name} for name in names],
        "importance": scores,
        "dissociation": {**found.to_record(), "tasks": names},
    }


@pytest.fixture(scope="module")
def many() -> dict:
    return study()


def test_groups_are_the_planted_kinds(many):
    overview, groups = grouped(many, KINDS)
    assert len(overview["tasks"]) == KINDS
    kinds = [{task["name"][:2] for task in part["tasks"]} for part in groups.values()]
    assert sorted(map(sorted, kinds)) == [[f"k{kind}"] for kind in range(KINDS)]


def test_a_group_is_the_mean_of_its_tasks_and_is_not_tested(many):
    overview, groups = grouped(many, KINDS)
    part, rp = overview["dissociation"], np.array(relative(many["dissociation"], 0))
    where = [[many["dissociation"]["tasks"].index(t["name"]) for t in one["tasks"]] for one in groups.values()]
    for g, rows in enumerate(where):
        for h, columns in enumerate(where):
            assert part["performance"][0][g][1 + h] == pytest.approx(rp[np.ix_(rows, np.add(columns, 1))].mean())
    assert part["null"] is None and all(pair["p"] is None for pair in part["D"][0]["pairs"])


def test_a_groups_study_has_the_numbers_of_its_tasks(many):
    _, groups = grouped(many, KINDS)
    whole = many["dissociation"]
    for part in (one["dissociation"] for one in groups.values()):
        for i, name in enumerate(part["tasks"]):
            row = whole["performance"][0][whole["tasks"].index(name)]
            chosen = [whole["lesions"].index(lesion) for lesion in part["lesions"]]
            assert part["performance"][0][i] == pytest.approx([row[k] for k in chosen])
        assert part["null"] == "random heads"


def test_the_page_of_many_tasks_links_to_a_page_for_each_group(many, tmp_path):
    page = report(many, tmp_path / "report.html")
    text, others = page.read_text(), sorted((tmp_path / "report-groups").glob("*.html"))
    assert others and all(f'href="report-groups/{other.name}"' in text for other in others)
    assert sum(f'"name":"{task["name"]}"' in other.read_text() for task in many["tasks"] for other in others) == 60
    assert len(text) < 400_000
    few = study(MOST)
    report(few, tmp_path / "few.html")
    assert not (tmp_path / "few-groups").exists()


def test_records_of_many_tasks_keep_matrices_and_the_largest_pairs():
    rng = np.random.default_rng(0)
    found = Dissociation.of([f"t{i}" for i in range(MANY + 1)], rng.uniform(0.4, 0.9, (MANY + 1, MANY + 2)))
    record = found.to_record()
    assert record["cells"] is None and len(record["D"][0]["pairs"]) == SHOWN
    every = found.pairs()
    kept = {(pair["a"], pair["b"]): pair["d"] for pair in record["D"][0]["pairs"]}
    left = [pair["d"] for names, pair in every.items() if names not in kept]
    assert min(kept.values()) >= max(left) and all(every[names]["d"] == d for names, d in kept.items())
