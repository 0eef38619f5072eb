"""The benchmarks' page says what the saved tables say, and a goal is read as it is written."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def run(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import run

    return run


def test_the_page_is_written_from_the_saved_tables(run):
    text = (ROOT / "docs" / "benchmarks.md").read_text()
    assert run.page() == text, "run: python benchmarks/run.py --page"
    assert "| training |" in text and "| importance |" in text


@pytest.mark.parametrize(
    "ratio, goal, met",
    [(2.0, "<= 2.25", True), (2.3, "<= 2.25", False), (61, ">= 60", True), (59, "≥ 60", False), (0.9, 1.0, True)],
)
def test_a_goal_is_met_or_not(run, ratio, goal, met):
    assert run.met({"ratio": ratio, "goal": goal}) is met and run.met({"ratio": ratio, "goal": ""}) is None


def test_a_saved_file_keeps_what_was_not_run_again(run, tmp_path):
    file = tmp_path / "cores.json"
    run.saved(file, "cores", {"a": [{"what": "x", "ratio": 1.0, "met": None}], "b": []})
    run.saved(file, "cores", {"b": [{"what": "y", "ratio": 2.0, "met": True}]})
    text = run.markdown(run.json.loads(file.read_text()))
    assert "| a | x | 1 |" in text and "| b | y | 2 |" in text and "met" in text
