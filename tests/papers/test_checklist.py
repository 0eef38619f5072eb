"""Every table and figure of the papers is an item, and every item is run by jobs and shown by the page."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import layouts
import pytest

from headwise.errors import HeadwiseError
from headwise.experiments.jobs import in_order, perform
from headwise.io.records import Results
from headwise.papers.checklist import checklist, differences, hours, listed, titles
from headwise.papers.pages import pages
from headwise.papers.recipe import Scale, known_as, recipes, tiny_encoder
from headwise.papers.specialization.glue import TESTS
from headwise.tasks import get

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


LAYOUTS_PAPERS = ("specialization", "anatomy", "stem_cell", "mesh")
PLAN = {"steps": 3, "epochs": 1, "batch_size": 24, "evaluate_every": 0, "checkpoint_every": 0, "patience": None}
FEWER = {  # amounts alone: tasks, splits and kinds of jobs are those of the paper
    "specialization": {
        **{"fractions": (0.3, 0.5), "examples": 16, "dev": 24, "estimate": 8, "draws": 3, "null_dev": 16},
        **{"sentences": 24, "onto": {"steps": 2}, "shots": (4,), "few_seeds": 2, "few_dev": 16, "max_length": 24},
        **{"alphas": (0.1, 0.3), "deltas": (0.1, 0.3), "grid": ((0.1, 0.15), (0.1, 0.3))},
        **{"estimators": ("gradient", "attribution", "integrated_gradients", "shapley", "random")},
        "own": ({},),
    },
    "anatomy": {"protocol": "sklearn", "options": {"l2": [1e-2]}, "limit": 96, "tuning_limit": 48, "max_length": 24},
    "stem_cell": {"test": 16, "probe": 24, "max_length": 24, "gate_plan": {}},
    "mesh": {
        **{"inner": {"steps": 1, "support": 8, "rates": 1e-2}, "recovery": {"steps": 2}, "examples": 16, "dev": 16},
        **{"fractions": (0.3,), "pruned": (0.3,), "shots": (4, 8), "sets": 2, "adapt_dev": 16, "max_length": 32},
        "adapt": {"steps": 1, "tuning": 1, "rates": [1e-2]},
    },
}
ONE_SEED = {"appendix-a.4", "control"}  # the others have two, for tests over seeds
TAGS = [(name, item.tag) for name in LAYOUTS_PAPERS for item in recipes[name].items if item.parts]
QUICK = {("specialization", "table-1"), ("specialization", "table-2"), ("anatomy", "table-1"), ("anatomy", "table-2")}
SHARDS = [pytest.param(*each, marks=[] if each in QUICK else [pytest.mark.slow]) for each in TAGS]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return layouts.write_all(tmp_path_factory.mktemp("published"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder for each paper: what two tags share is run once."""
    root = tmp_path_factory.mktemp("runs")
    return {name: root / name for name in LAYOUTS_PAPERS}


def shrunk(name: str):
    """A paper's recipe with the tasks of its published size, and fewer of everything else."""
    recipe = recipes[name]
    return replace(recipe, sizes={**recipe.sizes, "full": replace(recipe.sizes["full"], **FEWER[name])})


def scale(data, tag: str) -> Scale:
    return Scale("full", {"tiny": str(tiny_encoder())}, str(data), (0,) if tag in ONE_SEED else (0, 1), PLAN)


@pytest.mark.parametrize("name", LAYOUTS_PAPERS)
def test_every_task_of_a_paper_is_read_from_its_published_layout(name, data):
    """Rows of the splits that train and measure, from files alone; what no split has fails here."""
    jobs = in_order(shrunk(name).jobs(scale(data, "")))
    named = {"tasks": [], "pairs": [], "task": []}
    for job in jobs:
        for field, found in named.items():
            value = job.config.get(field)
            found += [value] if isinstance(value, str) else list(value or ())
            if isinstance(value, dict):
                assert all(value.values()), f"{job.title}: {[n for n, digest in value.items() if not digest]} not found"
    for task in {*named["tasks"], *named["task"]} - {""}:
        assert get(task, data, sources=("folder",)).rows("dev"), task
    assert sum(map(len, named.values())) > 10


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "tag"), SHARDS)
def test_every_item_runs_and_is_on_the_page(name, tag, data, runs, monkeypatch, tmp_path):
    for test, told in list(TESTS.items()):
        monkeypatch.setitem(TESTS, test, told._replace(rows=layouts.ROWS))
    recipe = shrunk(name)
    item = next(item for item in recipe.items if item.tag == tag)
    jobs = in_order(recipe.jobs(scale(data, tag), [tag]))
    for job in jobs:
        perform(job, runs[name], "cpu")
    results = Results(runs[name] / "records")
    assert {job.key for job in jobs} <= {record.key for record in results}
    shown = titles(recipe, results)
    missing = [start for start in item.titles if not any(title.startswith(start) for title in shown)]
    assert not missing, f"{tag} has no {missing} among {shown}"
    tables = [t for part in recipe.parts(results) for t in part.tables if t["title"].startswith(item.titles)]
    for table in tables:
        assert table["rows"] and all(len(row) == len(table["columns"]) for row in table["rows"]), table["title"]
    pages(recipe, results, tmp_path, "command")
    page = (tmp_path / f"{name}.md").read_text()
    assert f"[{tag}]" in page or f"{tag}," in page or f", {tag}]" in page
