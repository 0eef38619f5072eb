"""What a sweep leaves: the models asked for, no locks, and few files for many records."""

from __future__ import annotations

import pytest
from handiwork import job, notes

from headwise.errors import HeadwiseError
from headwise.experiments import tidying
from headwise.experiments.sweep import run

pytestmark = pytest.mark.usefixtures("importable")


def models(root):
    return sorted((path / "number").read_text() for path in (root / "models").iterdir())


@pytest.mark.parametrize(("keep", "left"), [("all", ["1", "2", "3"]), ("best", ["3"]), ("none", [])])
def test_models_are_kept_as_asked_for(tmp_path, keep, left):
    trained = [job("graded", n) for n in (2, 3, 1)]
    reads = [job("read", n, after=(one,), of=one.key) for n, one in enumerate(trained)]
    swept = run([*trained, *reads], tmp_path, workers=2, keep=keep)
    assert not swept.failed and models(tmp_path) == left
    assert [swept.results[one.key].result["number"] for one in reads] == ["2", "3", "1"], "read before they went"
    logs = {path.stem for path in (tmp_path / "logs").iterdir()}
    assert len(logs) == (6 if keep == "all" else len(left))
    assert list((tmp_path / "locks").iterdir()) == []
    run([*trained, *reads], tmp_path, workers=2, keep=keep)
    assert notes(tmp_path) == ["kept 1", "kept 2", "kept 3"], "what went is not made again"


def test_the_best_is_found_among_models_of_the_same_tasks(tmp_path):
    jobs = [job("graded", n, tasks=tasks) for n, tasks in ((1, ["a"]), (5, ["b"]), (2, ["a"]), (4, ["b"]))]
    run(jobs, tmp_path, workers=1, keep="best")
    assert models(tmp_path) == ["2", "5"]


def test_a_model_stays_while_a_job_that_needs_it_failed(tmp_path):
    kept = job("graded", 4)
    run([job("fail", 1, after=(kept,))], tmp_path, workers=1, retries=0, keep="none")
    assert models(tmp_path) == ["4"]


def test_many_records_move_into_few_files(tmp_path, monkeypatch):
    monkeypatch.setattr(tidying, "MANY", 5)
    jobs = [job("square", n) for n in range(6)]
    swept = run(jobs, tmp_path, workers=2)
    assert len(list((tmp_path / "records" / "parts").iterdir())) == 1
    assert [swept.results[one.key].result["square"] for one in jobs] == [n * n for n in range(6)]
    seen = []
    run([*jobs, job("square", 9)], tmp_path, workers=1, on_change=lambda one, state, word: seen.append(state))
    assert seen.count("found") == 6 and seen.count("done") == 1


def test_an_unknown_way_is_refused(tmp_path):
    with pytest.raises(HeadwiseError, match="models to keep"):
        run([job("square", 1)], tmp_path, keep="some")
