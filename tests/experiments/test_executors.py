"""Executors: workers that die, stop, share an accelerator or are missing."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from importlib.util import find_spec

import pytest
from handiwork import job, notes

from headwise.errors import HeadwiseError
from headwise.experiments.executors import LOST, ROUND, SHARE, Local, Ray
from headwise.experiments.jobs import perform
from headwise.experiments.sweep import run

ENGINES = [
    "local",
    pytest.param("ray", marks=pytest.mark.skipif(not find_spec("ray"), reason="the extra ray is absent")),
]
pytestmark = pytest.mark.usefixtures("importable")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("engine", ENGINES)
def test_jobs_under_way_save_what_they_can_when_a_sweep_is_stopped(tmp_path, engine, how):
    script = "from handiwork import job\nfrom headwise.experiments.sweep import run\nif __name__ == '__main__':\n"
    script += f"    run([job('stoppable')], {str(tmp_path)!r}, {engine!r}, workers=1)\n"
    (tmp_path / "one.py").write_text(script)
    running = subprocess.Popen([sys.executable, tmp_path / "one.py"], stderr=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while not notes(tmp_path) and time.monotonic() < until:
        time.sleep(0.05)
    running.send_signal(how)
    running.wait(60)
    assert notes(tmp_path) == ["begun", "saved"]


def test_a_worker_that_died_while_it_was_idle_is_replaced(tmp_path):
    pool = Local(tmp_path, 1, "cpu", None)
    try:
        for n in (2, 3):
            pool.submit(job("square", n))
            while pool.busy:
                assert not [error for _, error in pool.finished() if error]
            pool.idle[0].process.kill()
            pool.idle[0].process.join()
    finally:
        pool.stop()
    assert notes(tmp_path) == ["done 2", "done 3"]


def test_the_death_of_a_worker_is_seen_while_its_children_live(tmp_path):
    began = time.monotonic()
    swept = run([job("die_and_leave_a_child")], tmp_path, workers=1, retries=0)
    assert next(iter(swept.failed.values()))[1] == "its process ended with code -9"
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(("asked", "workers", "found"), [(None, 16, "25"), (None, 3, "100"), ("40", 16, "40")])
def test_workers_share_an_accelerator_by_parts(tmp_path, monkeypatch, asked, workers, found):
    monkeypatch.setenv(SHARE, asked) if asked else monkeypatch.delenv(SHARE, raising=False)
    swept = run([job("around")], tmp_path, workers=workers)
    (record,) = swept.results
    assert record.result["environment"][SHARE] == found
    assert record.result["environment"]["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize(("asked", "found"), [(None, ("1", "high")), ("0", ("0", "highest"))])
def test_workers_round_float32_products_unless_told_not_to(tmp_path, monkeypatch, asked, found):
    monkeypatch.setenv(ROUND, asked) if asked else monkeypatch.delenv(ROUND, raising=False)
    (record,) = run([job("around")], tmp_path, workers=1).results
    assert (record.result["environment"][ROUND], record.result["products"]) == found


@pytest.mark.skipif(not find_spec("ray"), reason="the extra ray is absent")
def test_small_jobs_in_bundles_survive_lost_workers(tmp_path):
    """A lost worker costs no try of a job, least of all of those that waited behind the one under way."""
    jobs = [job("die_at_times", n, every=9) for n in range(60)]
    swept = run(jobs, tmp_path, "ray", workers=2, retries=0)
    assert not swept.failed and len(swept.results) == 60
    assert notes(tmp_path) == sorted(f"done {n}" for n in range(60))
    assert len(list((tmp_path / "deaths").iterdir())) == 7


def test_of_a_lost_bundle_the_first_job_without_a_record_is_to_blame(tmp_path):
    jobs = [job("square", n) for n in range(4)]
    perform(jobs[0], tmp_path)
    pool = object.__new__(Ray)
    pool.root = tmp_path
    assert pool._told(jobs, "why") == ["", f"{LOST}why"]
    assert pool._told(jobs[:1], "why") == [""]


def test_without_the_extra_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(HeadwiseError, match=r"\.\[ray\]"):
        run([job("square")], tmp_path, "ray")
