"""What docs/results says is what its records say: every page is written again from them and compared."""

from __future__ import annotations

import random
import re
from importlib import import_module
from pathlib import Path

import pytest

from headwise.experiments.jobs import works
from headwise.io.records import Results
from headwise.io.storage import check, write_packed
from headwise.papers.pages import pages
from headwise.papers.recipe import recipes
from headwise.papers.registered import Registered, with_registered

ROOT = Path(__file__).parents[2]
HOME, RECORDS = ROOT / "docs" / "results", ROOT / "results"
PAGES = sorted(path.stem for path in RECORDS.glob("*.parquet"))
MOST = 8_000_000


def written_by(name):
    """What writes a page, and the commands the page names: a recipe, or a program among the examples."""
    plan = HOME / "registered" / f"{name}.toml"
    if plan.exists():  # its tests come first
        read = f"headwise recipe {name} --registered docs/results/registered/{name}.toml"
        command = f"{read} --records results/{name}.parquet --pages docs/results"
        return with_registered(recipes[name], Registered.read(plan)), command
    if name in recipes:
        return recipes[name], f"headwise recipe {name} --records results/{name}.parquet --pages docs/results"
    page = import_module(f"examples.{name}.page")
    return page.Page(), page.COMMAND


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_its_records_say(name, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(HOME.parent.parent)
    said = (HOME / f"{name}.md").read_text()
    command = re.search(r"```sh\n(.*?)\n```", said, re.DOTALL)
    recipe, wanted = written_by(name)
    assert command and command[1] == wanted
    pages(recipe, Results(RECORDS / f"{name}.parquet"), tmp_path, command[1])
    assert (tmp_path / f"{name}.md").read_text() == said
    drawn = {file.name for file in (tmp_path / name).iterdir()}
    assert {file.name for file in (HOME / name).iterdir()} == drawn, "figures are what the page shows"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", sorted(set(PAGES) & set(recipes)))
def test_some_of_the_records_give_some_of_a_page(name, seed, tmp_path):
    """A run may have stopped anywhere, or have run some of its jobs alone."""
    pytest.importorskip("matplotlib")
    rng = random.Random(f"{name} {seed}")
    records = list(Results(RECORDS / f"{name}.parquet"))
    some = rng.sample(records, rng.choice([1, 2, 3, 8, len(records) // 2]))
    pages(recipes[name], Results(write_packed(tmp_path / "some.parquet", some)), tmp_path / "out", "command")
    assert "## How to reproduce this page" in (tmp_path / "out" / f"{name}.md").read_text()


def test_every_page_is_summed_up_and_the_records_are_small():
    for words in ("README.md", "findings.md"):
        assert all(f"({name}.md)" in (HOME / words).read_text() for name in PAGES) and len(PAGES) >= 3, words
    assert sum(file.stat().st_size for file in RECORDS.glob("*")) < MOST


def test_every_record_is_intact_and_found_by_what_determined_it():
    count = 0
    for name in PAGES:
        results = Results(RECORDS / f"{name}.parquet")
        assert not list(check(results.root))
        for record in results:
            found = results.find(record.work, record.config, record.version)
            assert found is not None and found.key == record.key
            count += 1
    assert count >= 2198


def test_records_name_registered_works_and_each_other():
    """A work's name outlives the place of its code, and what a record stands on is among them."""
    for name in set(PAGES) & set(recipes):
        records = {record.key: record for record in Results(RECORDS / f"{name}.parquet")}
        for record in records.values():
            assert record.work in works, record.work
            of = record.config.get("of") or {}
            assert {*(of.values() if isinstance(of, dict) else [of])} <= {*records}
