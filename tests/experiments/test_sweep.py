"""Sweeps lose nothing and do nothing twice, whatever happens to the processes that run them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from importlib.util import find_spec

import pytest
from handiwork import job, notes
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.errors import HeadwiseError
from headwise.experiments import sweep as sweeping
from headwise.experiments.executors import log_of
from headwise.experiments.jobs import Job, in_order, perform
from headwise.experiments.sweep import _Queue, read, run
from headwise.io.files import digest
from headwise.io.records import Results
from headwise.testing import playground

ENGINES = [
    "local",
    pytest.param("ray", marks=pytest.mark.skipif(not find_spec("ray"), reason="the extra ray is absent")),
]


pytestmark = pytest.mark.usefixtures("importable")


def hashes(results: Results) -> dict[str, str]:
    """What every record says, time and versions apart."""
    return {r.key: digest(r.work, r.config, r.result, *[r.arrays[n] for n in sorted(r.arrays)]) for r in results}


def three(**config):
    """Two squares and their sum."""
    squares = tuple(job("square", n, **config) for n in (2, 3))
    return [job("total", 0, after=squares, of=[one.key for one in squares])]


# -- engines


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_gives_the_records_of_doing_it_by_hand(tmp_path, engine):
    jobs = three()
    for one in in_order(jobs):
        perform(one, tmp_path / "hand")
    swept = run(jobs, tmp_path / engine, engine, workers=2)
    assert not swept.failed and hashes(swept.results) == hashes(Results(tmp_path / "hand" / "records"))
    assert swept.results[jobs[0].key].result == {"total": 13}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_killed_worker_changes_nothing(tmp_path, engine):
    """A worker dies by kill -9 in the middle of a sweep: its job begins again, the records are those of no death."""
    whole = run([job("die_once", 5), *three()], tmp_path / "again", engine, workers=2)
    assert not whole.failed and (tmp_path / "again" / "died").exists()
    (tmp_path / "calm").mkdir()
    (tmp_path / "calm" / "died").write_text("")  # does not die
    for one in in_order([job("die_once", 5), *three()]):
        perform(one, tmp_path / "calm")
    assert hashes(whole.results) == hashes(Results(tmp_path / "calm" / "records"))
    assert notes(tmp_path / "again") == ["done 2", "done 3", "done 5"]


def test_what_is_done_is_not_done_again(tmp_path):
    run(three(), tmp_path, workers=2)
    seen = []
    run([*three(), job("square", 7)], tmp_path, workers=2, on_change=lambda one, state, word: seen.append(state))
    assert notes(tmp_path) == ["done 2", "done 3", "done 7"] and seen.count("found") == 3


def test_a_model_that_is_gone_is_made_again_when_a_job_asks_for_it(tmp_path):
    kept = job("keep", 5)
    run([job("read", 1, after=(kept,), of=kept.key)], tmp_path, workers=1)
    shutil.rmtree(tmp_path / "models")
    run([job("read", 1, after=(kept,), of=kept.key)], tmp_path, workers=1)
    assert notes(tmp_path) == ["kept 5"]  # nobody asks
    told = []
    swept = run(
        [job("read", n, after=(kept,), of=kept.key) for n in (1, 2)],
        tmp_path,
        workers=1,
        on_change=lambda one, state, word: told.append((one.key, word)) if state == "again" else None,
    )
    assert notes(tmp_path) == ["kept 5", "kept 5"] and not swept.failed and len(list(swept.results)) == 3
    assert [key for key, word in told if "its model no longer exists" in word] == [kept.key]


def test_memory_that_others_hold_is_waited_for(tmp_path):
    beside = [job("square", n, wait=wait) for n, wait in ((2, 0.8), (3, 1.6), (7, 2.4))]
    assert not run([*beside, job("crowded", 1)], tmp_path, workers=4).failed
    # Once when a job has ended, and not in between; more often than a job that fails by itself is tried.
    assert 2 < notes(tmp_path).count("trying") <= 4
    (tmp_path / "alone").mkdir()
    assert run([job("crowded", 1)], tmp_path / "alone", workers=2).failed
    assert notes(tmp_path / "alone").count("trying") == 2


def test_a_failure_is_kept_with_its_log_and_stops_only_what_stands_on_it(tmp_path):
    bad = job("fail", 1)
    after = job("total", 0, after=(bad,), of=[bad.key])
    last = job("total", 1, after=(after,), of=[after.key])
    states = {}
    everything = [bad, after, last, job("square", 4)]
    swept = run(everything, tmp_path, workers=2, on_change=lambda one, s, _: states.update({one.key: s}))
    assert [states[one.key] for one in everything] == ["failed", "skipped", "skipped", "done"]
    assert "no such luck" in swept.failed[bad.key][1] and len(swept.done) == 1
    assert "before the fall" in log_of(tmp_path, bad).read_text() and "Traceback" in log_of(tmp_path, bad).read_text()
    assert (tmp_path / "failed" / f"{bad.key}.json").exists()
    assert notes(tmp_path).count("failing") == 2  # tried twice
    run([bad], tmp_path, workers=1, retries=0)
    assert notes(tmp_path).count("failing") == 3  # and again when asked again


def test_an_error_about_a_name_that_is_no_text_is_kept_as_any_other(tmp_path):
    bad = job("fail_oddly")
    swept = run([bad, job("square", 4)], tmp_path, workers=1, retries=0)
    assert len(swept.done) == 1 and "no caf" in swept.failed[bad.key][1]
    assert "no caf" in (tmp_path / "failed" / f"{bad.key}.json").read_text()


def test_refused_input_is_not_tried_again(tmp_path):
    run([job("refuse")], tmp_path, workers=1, retries=3)
    assert notes(tmp_path) == ["refusing"]


def test_what_is_no_result_fails_and_leaves_a_folder_that_is_read_again(tmp_path):
    jobs = [job("give", what=what) for what in ("nothing", "list", "three")]
    for _ in range(2):
        swept = run([*jobs, job("square", 4)], tmp_path, workers=1)
        assert len(swept.done) == 1 and all("expected a dict" in error for _, error in swept.failed.values())
    assert len(list(Results(tmp_path / "records"))) == 1


def test_jobs_that_go_to_other_folders_lose_nothing_and_take_no_other_along(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    swept = run([job("wander", n) for n in range(3)], "out", workers=1)
    assert not swept.failed and notes(tmp_path / "out") == ["wandered"] * 3
    assert [one.result["began"] for one in Results(tmp_path / "out" / "records")] == [str(tmp_path)] * 3


def test_two_sweeps_on_one_folder_share_the_work(tmp_path):
    script = "from handiwork import job\nfrom headwise.experiments.sweep import run\nif __name__ == '__main__':\n"
    script += f"    swept = run([job('square', n, wait=0.4) for n in range(4)], {str(tmp_path)!r}, workers=2)\n"
    script += "    assert not swept.failed and len(swept.done) == 4\n"
    (tmp_path / "both.py").write_text(script)
    both = [subprocess.Popen([sys.executable, tmp_path / "both.py"]) for _ in range(2)]
    assert [one.wait(120) for one in both] == [0, 0]
    assert notes(tmp_path) == [f"done {n}" for n in range(4)]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_sweep_that_is_stopped_goes_on(tmp_path, how):
    """Stopped by hand or killed after some jobs: the next run does the rest, each job once."""
    script = "from handiwork import job\nfrom headwise.experiments.sweep import run\nif __name__ == '__main__':\n"
    script += f"    run([job('square', n, wait=0.3) for n in range(12)], {str(tmp_path)!r}, workers=2)\n"
    (tmp_path / "many.py").write_text(script)
    running = subprocess.Popen([sys.executable, tmp_path / "many.py"], stderr=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while len(notes(tmp_path)) < 3 and time.monotonic() < until:
        time.sleep(0.05)
    running.send_signal(how)
    running.wait(60)
    kept = [n for n in range(12) if Results(tmp_path / "records").find(*_as_kept(n))]
    assert 1 <= len(kept) < 12
    swept = run([job("square", n, wait=0.3) for n in range(12)], tmp_path, workers=2)
    done = notes(tmp_path)
    assert not swept.failed and {int(line.split()[1]) for line in done} == set(range(12))
    assert all(done.count(f"done {n}") == 1 for n in kept)  # what had a record was not done again
    assert len(done) <= 12 + 2  # of the two under way, each begins anew at most once


def test_a_sweep_leaves_its_process_as_it_was(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    before = dict(os.environ)
    run([job("square")], tmp_path, workers=1)
    assert dict(os.environ) == before


@pytest.mark.parametrize("workers", [0, -1])
def test_a_sweep_without_workers_is_refused(tmp_path, workers):
    with pytest.raises(HeadwiseError, match="1 or more"):
        run([job("square")], tmp_path, workers=workers)


def _as_kept(n: int) -> tuple[str, dict]:
    one = job("square", n, wait=0.3)
    return one.work, one.config


def test_an_unknown_engine_or_work_is_refused(tmp_path):
    with pytest.raises(HeadwiseError, match="Try: local"):
        run([job("square")], tmp_path, "locale")
    swept = run([job("nothing")], tmp_path, workers=1)
    assert "workers can import" in next(iter(swept.failed.values()))[1]


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_the_queue_gives_every_job_once_after_those_it_stands_on(data):
    jobs: list[Job] = []
    for i in range(data.draw(st.integers(1, 12))):
        under = data.draw(st.sets(st.integers(0, i - 1), max_size=3)) if i else set()
        jobs.append(Job("square", {"n": i}, after=tuple(jobs[j] for j in sorted(under))))
    queue, under_way = _Queue({job.key: job for job in jobs}), list[Job]()
    begun, done, failed, given_up, crowded = list[Job](), set(), set(), set(), list[Job]()
    while queue.left:
        while len(under_way) < 3 and (job := queue.next()):
            assert {one.key for one in job.after} <= done
            # nothing before it in the plan could have begun in its place
            able = [j for j in jobs if j.key in queue.left and {one.key for one in j.after} <= done]
            if not under_way:
                crowded.clear()  # nobody is left to wait for
            assert job is next(j for j in able if j not in under_way and j not in crowded)
            under_way.append(job)
            begun.append(job)
        job = under_way.pop(data.draw(st.integers(0, len(under_way) - 1)))
        ends = data.draw(st.sampled_from(["well", "badly", "again", "later"]))
        if ends in ("again", "later"):
            queue.again(job) if ends == "again" else queue.later(job)
            crowded += [job] if ends == "later" else []
            begun.remove(job)
        else:
            crowded.clear()
            given_up |= {one.key for one in queue.ended(job, ends == "badly")}
            (failed if ends == "badly" else done).add(job.key)
    assert len(begun) == len({job.key for job in begun}) and not queue.running
    bad = set(failed)
    for job in jobs:
        if any(one.key in bad for one in job.after):
            bad.add(job.key)
    assert given_up == bad - failed and done == {job.key for job in jobs} - bad


# -- files


TOML = """
work = "train"
[config]
model = "tiny"
tasks = ["reviews=reviews.csv:text,label", "news=news.csv:text,label"]
plan = {{ steps = 4, batch_size = 8, lr = 1e-3, evaluate_every = 0 }}
[grid]
"plan.seed" = [0, 1]
method = [{{ name = "plain" }}, {{ name = "iat", delta = 0.5, examples = 16 }}]
[at]
tiny = "{}"
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(playground(tmp_path))
    return tmp_path


def test_a_file_becomes_jobs_that_train(place):
    (place / "grid.toml").write_text(TOML.format("bert-tiny"))
    jobs = read("grid.toml")
    assert [one.title for one in jobs][:2] == [
        "plan.seed=0 method=plain",
        "plan.seed=0 method=iat,delta=0.5,examples=16",
    ]
    swept = run(jobs, place / "out", workers=2)
    assert not swept.failed, swept
    assert all(set(r.result["scores"]) == {"reviews", "news"} for r in swept.results)
    assert len({one.key for one in jobs}) == 4 and all((place / "out" / "models" / one.key).is_dir() for one in jobs)


def test_a_seed_in_place_of_the_files_takes_the_axis_of_seeds(place):
    (place / "grid.toml").write_text(TOML.format("bert-tiny"))
    jobs = read("grid.toml", seed=7)
    assert len({one.key for one in jobs}) == len(jobs) == 2 and not any("seed" in one.title for one in jobs)
    assert all(one.config["plan"]["seed"] == 7 for one in jobs)


@pytest.mark.parametrize(
    "change, word",
    [
        (("work", "wrok"), "Try: work"),
        (('"train"', '"trian"'), "Try: train"),
        (("steps", "step"), "Try: steps"),
        (("model =", "modle ="), "no model"),
        (("[grid]", "[grid"), "not TOML"),
        (("[0, 1]", "3"), "a list of values"),
        (
            ('tasks = ["reviews=reviews.csv:text,label", "news=news.csv:text,label"]', 'tasks = "sst2"'),
            "a list of names",
        ),
        (("plan = {", "plan = 3 # {"), "no field 'seed'"),
        (('work = "train"', "work = 3"), "work = 3"),
        (('"train"', '":"'), "module:function"),
        (('"train"', '".a:b"'), "module:function"),
        (('model = "tiny"', 'model = ["tiny"]'), "an axis"),
        (('"news=news.csv:text,label"]', "3]"), "a list of names"),
        (('tiny = "', 'data = 3\ntiny = "'), "data = 3"),
    ],
)
def test_mistakes_in_a_file_are_named(place, change, word):
    (place / "grid.toml").write_text(TOML.format("bert-tiny").replace(*change, 1))
    for seed in (None,) if change[0] == "[0, 1]" else (None, 7):  # a seed takes the place of that axis
        with pytest.raises(HeadwiseError, match=word):
            read("grid.toml", seed=seed)


@pytest.mark.parametrize("part", ["config", "grid", "at"])
def test_a_part_of_a_file_is_a_table(tmp_path, part):
    (tmp_path / "grid.toml").write_text(f"{part} = [3]")
    with pytest.raises(HeadwiseError, match=rf"a table \[{part}\]"):
        read(tmp_path / "grid.toml")


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
    monkeypatch.setattr(sweeping, "MANY", 5)
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
