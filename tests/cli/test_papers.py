"""`headwise recipe` on small recipes of these tests."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest
from handiwork import job

from headwise import cli
from headwise.papers.recipe import Part, recipes


@pytest.fixture
def headwise(tmp_path, monkeypatch, capsys):
    """Run a line in an empty folder: (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)

    def run(line: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["headwise", *shlex.split(line)])
        capsys.readouterr()
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        output = capsys.readouterr()
        return code, output.out, output.err

    return run


def refused(result, *words, code=2):
    """Nothing on standard output, one line of error with these words."""
    assert result[0] == code and not result[1]
    assert result[2].count("\n") == 1 and all(word in result[2] for word in words), result[2]


class Halves:
    """A recipe of which one job fails."""

    name, title, paper = "halves", "Halves", "none"

    def jobs(self, scale):
        return [job("square", seed) for seed in scale.seeds or (0, 1)] + [job("refuse")]

    def parts(self, results):
        table = {"title": "How many, square", "columns": ["records"], "rows": [[len(list(results))]]}
        return [Part("Records", str(len(list(results))), [table])]


def test_a_recipe_shows_what_is_there_and_ends_with_1_where_a_job_failed(headwise, importable, monkeypatch):
    monkeypatch.setitem(recipes._entries, "halves", Halves())
    code, out, _ = headwise("recipe halves --workers 1 --out runs/halves --json")
    told = json.loads(out)
    assert code == 1 and told["done"] == 2 and len(told["failed"]) == 1 and Path(told["page"]).exists()
    code, out, _ = headwise("recipe halves --no-run --out runs/halves --json")
    assert code == 0 and json.loads(out) == {"page": told["page"]}
    assert not list(Path("runs").rglob("*.csv"))
    assert headwise("recipe halves --no-run --out runs/halves --tables-out tables")[0] == 0
    assert Path("tables/how-many-square.csv").read_text().splitlines() == ["records", "2"]
    assert "2" in Path("tables/how-many-square.tex").read_text()


@pytest.mark.parametrize(("line", "seeds"), [("", [0, 1]), ("--seed 5", [5]), ("--seeds 3 --seed 4", [4, 5, 6])])
def test_seeds_of_a_recipe(headwise, monkeypatch, line, seeds):
    monkeypatch.setitem(recipes._entries, "halves", Halves())
    rows = json.loads(headwise(f"recipe halves --list --json {line}")[1])
    assert [row["key"] for row in rows[:-1]] == [job("square", seed).key for seed in seeds]


@pytest.mark.parametrize("line", ["--only nosuchtitle", "--only square --only nosuchtitle --list"])
def test_titles_that_no_job_of_a_recipe_has_are_refused(headwise, monkeypatch, line):
    monkeypatch.setitem(recipes._entries, "halves", Halves())
    told = ("'nosuchtitle'", job("square", 0).title, "headwise recipe halves --size smoke --list")
    refused(headwise(f"recipe halves {line}"), *told)
    assert len(json.loads(headwise("recipe halves --only square --list --json")[1])) == 2
