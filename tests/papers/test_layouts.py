"""Every table and figure of every paper from its data as published: tiny files, a tiny BERT, the size of the paper."""

from __future__ import annotations

from dataclasses import replace

import layouts
import pytest

from headwise.experiments.jobs import in_order, perform
from headwise.io.records import Results
from headwise.papers.checklist import titles
from headwise.papers.pages import pages
from headwise.papers.recipe import Scale, recipes, tiny_encoder
from headwise.papers.specialization.glue import TESTS
from headwise.tasks import get

PAPERS = ("specialization", "anatomy", "stem_cell", "mesh")
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
TAGS = [(name, item.tag) for name in PAPERS for item in recipes[name].items if item.parts]
QUICK = {("specialization", "table-1"), ("specialization", "table-2"), ("anatomy", "table-1"), ("anatomy", "table-2")}
SHARDS = [pytest.param(*each, marks=[] if each in QUICK else [pytest.mark.slow]) for each in TAGS]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return layouts.write_all(tmp_path_factory.mktemp("published"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder for each paper: what two tags share is run once."""
    root = tmp_path_factory.mktemp("runs")
    return {name: root / name for name in PAPERS}


def shrunk(name: str):
    """A paper's recipe with the tasks of its published size, and fewer of everything else."""
    recipe = recipes[name]
    return replace(recipe, sizes={**recipe.sizes, "full": replace(recipe.sizes["full"], **FEWER[name])})


def scale(data, tag: str) -> Scale:
    return Scale("full", {"tiny": str(tiny_encoder())}, str(data), (0,) if tag in ONE_SEED else (0, 1), PLAN)


@pytest.mark.parametrize("name", PAPERS)
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
