"""Every table and figure of the papers is an item, and every item is run by jobs and shown by the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headwise.errors import HeadwiseError
from headwise.io.records import Results
from headwise.papers.amounts import hours
from headwise.papers.checklist import checklist, differences, listed, titles
from headwise.papers.recipe import Scale, known_as, recipes

ROOT = Path(__file__).parents[2]
PAPERS = ("anatomy", "mesh", "specialization", "stem_cell")
EXPECTED = {
    "anatomy": [*(f"table-{i}" for i in range(1, 6)), *(f"figure-{i}" for i in range(3, 8))],
    "mesh": ["table-1", "table-2"],
    "specialization": [*(f"table-{i}" for i in range(1, 14)), *(f"figure-{i}" for i in range(2, 11)), "appendix-f"],
    "stem_cell": ["table-1", "table-2", *(f"figure-{i}" for i in range(1, 5))],
}


@pytest.mark.parametrize("name", PAPERS)
def test_every_table_and_figure_is_an_item(name):
    tags = [item.tag for item in recipes[name].items]
    assert set(EXPECTED[name]) <= set(tags) and len(tags) == len(set(tags))


@pytest.mark.parametrize("name", PAPERS)
def test_items_name_parts_of_the_recipe_and_all_of_them(name):
    recipe = recipes[name]
    parts = {part for item in recipe.items for part in item.parts}
    assert parts == set(recipe.build.parts)
    for item in recipe.items:
        assert item.parts or item.missing or item.titles, item.tag
        jobs = recipe.jobs(Scale("smoke"), [item.tag]) if item.parts else []
        assert bool(jobs) == bool(set(item.parts) - {"submission"}), item.tag
        assert all(hours(job) >= 0 for job in jobs)


@pytest.mark.parametrize("name", PAPERS)
def test_the_jobs_of_all_items_are_the_recipe(name):
    recipe, scale = recipes[name], Scale("smoke")
    every = {job.key for job in recipe.jobs(scale)}
    assert every == {job.key for item in recipe.items if item.parts for job in recipe.jobs(scale, [item.tag])}
    with pytest.raises(HeadwiseError, match="item of this paper"):
        recipe.jobs(scale, ["table-99"])


@pytest.mark.parametrize("name", PAPERS)
def test_titles_of_items_are_titles_of_the_page(name):
    """What was run is on the page under the titles the items name; what was not is waiting."""
    recipe = recipes[name]
    shown = titles(recipe, Results(ROOT / "results" / f"{name}.parquet"))
    rows = {row["item"]: row for row in listed(recipe, Scale("smoke"), ROOT / "results")}
    for item in recipe.items:
        found = [title for title in shown if item.titles and title.startswith(item.titles)]
        expected = "run" if found else "registered" if item.parts else "cannot"
        assert rows[item.tag]["status"].startswith(expected), item.tag


def test_the_checklist_is_up_to_date(tmp_path):
    rows = [row for name in recipes for row in listed(recipes[name], Scale("smoke"), ROOT / "results")]
    written = checklist(rows, tmp_path).read_text()
    assert written == (ROOT / "docs" / "results" / "checklist.md").read_text()
    assert all(re.search(rf"\| {name} \| {tag} \|", written) for name in PAPERS for tag in EXPECTED[name])


@pytest.mark.parametrize("name", PAPERS)
def test_settings_that_differ_come_from_the_sizes(name):
    recipe = recipes[name]
    (settings, others) = differences(recipe).tables
    assert len(others["rows"]) == len(recipe.differences) >= 6
    for setting, paper, *here in settings["rows"]:
        assert any(value != paper for value in here), setting
    known = {item.tag for item in recipe.items}
    assert {each.row for each in recipe.differences} - {""} <= known


def test_plan_flags_change_every_training_and_nothing_else():
    recipe = recipes["specialization"]
    plain, changed = (recipe.jobs(Scale("smoke", plan=plan)) for plan in ({}, {"precision": "bf16"}))
    assert [job.title for job in plain] == [job.title for job in changed]
    for before, after in zip(plain, changed):
        plan = after.config.get("plan")
        if after.work == "train" and plan:
            assert plan["precision"] == "bf16" and {**plan, "precision": "fp32"} == before.config["plan"]


@pytest.mark.parametrize(
    ("name", "folder", "known"),
    [
        ("bert-base-uncased", "models/bert-base-uncased", "bert-base"),
        ("x", "google-bert/bert-base-uncased", "bert-base"),
        ("bert-large-uncased", "google-bert/bert-large-uncased", "bert-large"),
        ("openai-gpt", "openai-community/openai-gpt", "gpt"),
        ("minilm-l6", "somewhere/minilm", "minilm-l6"),
    ],
)
def test_models_are_known_by_their_hub_and_folder_names(name, folder, known):
    assert known_as(name, folder, recipes["specialization"].hub) == known
