"""Executors: workers that die, stop, share an accelerator or are missing."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import psutil
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
needs_ray = pytest.mark.skipif(not find_spec("ray"), reason="the extra ray is absent")
pytestmark = pytest.mark.usefixtures("importable")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("engine", ENGINES)
def test_jobs_under_way_save_what_they_can_when_a_sweep_is_stopped(tmp_path, engine, how):
    script = "from handiwork import job\nfrom headwise.experiments.sweep import run\nif __name__ == '__main__':\n"
    script += f"    run([job('stoppable')], {str(tmp_path)!r}, {engine!r}, workers=1)\n"
    (tmp_path / "one.py").write_text(script)
    running = subprocess.Popen([sys.executable, tmp_path / "one.py"], stderr=subprocess.DEVNULL)
    until = time.monotonic() + 150
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


@needs_ray
def test_small_jobs_in_bundles_survive_lost_workers(tmp_path):
    """A lost worker costs no try of a job, least of all of those that waited behind the one under way."""
    jobs = [job("die_at_times", n, every=9) for n in range(60)]
    swept = run(jobs, tmp_path, "ray", workers=2, retries=0)
    assert not swept.failed and len(swept.results) == 60
    assert notes(tmp_path) == sorted(f"done {n}" for n in range(60))
    assert len(list((tmp_path / "deaths").iterdir())) == 7


def kill_workers(every: float, stop: threading.Event, killed: list[int]) -> None:
    """Kill a random worker of this process's own cluster again and again."""
    draw = random.Random(0)
    while not stop.wait(every):
        workers = []
        for process in psutil.Process().children(recursive=True):
            try:
                workers += [process] if process.cmdline()[:1] == ["ray::work_all"] else []
            except psutil.Error:
                continue
        if workers:
            chosen = draw.choice(workers)
            chosen.kill()
            killed.append(chosen.pid)


@needs_ray
@pytest.mark.soak
def test_ten_thousand_tiny_jobs_outlive_random_kills(tmp_path, record_property):
    """Each has its record, and none that had one is run again: only those under way at a kill may have begun twice."""
    count, every = int(os.environ.get("HEADWISE_JOBS", 10_000)), float(os.environ.get("HEADWISE_KILL_EVERY", 5))
    stop, killed = threading.Event(), []
    threading.Thread(target=kill_workers, args=(every, stop, killed), daemon=True).start()
    began = time.perf_counter()
    swept = run([job("square", n) for n in range(count)], tmp_path, "ray", workers=2)
    seconds = time.perf_counter() - began
    stop.set()
    times = Counter(notes(tmp_path))
    twice = sum(n > 1 for n in times.values())
    record_property("seen", f"{count / seconds:.1f} jobs a second, {len(killed)} kills, {twice} begun twice")
    print(f"{count} jobs, {count / seconds:.1f} a second, {len(killed)} workers killed, {twice} noted twice")
    assert killed and not swept.failed and len(swept.results) == len(times) == count
    assert twice <= len(killed) and max(times.values()) == 2 if twice else max(times.values()) == 1


NODES = {"head": "10.231.7.2", "one": "10.231.7.3", "two": "10.231.7.4"}
NAMES = {name: f"hw{os.getpid()}{name}"[:15] for name in NODES}
STARTED: list[subprocess.Popen[str]] = []
SWEEP = """
import sys
from handiwork import job, notes
from headwise.experiments.sweep import run

if __name__ == "__main__":
    swept = run([job("square", n, wait=0.3) for n in range(90)], sys.argv[1], "ray", workers=3, address=sys.argv[2])
    print(len(swept.results), "results", swept.failed)
"""


def inside(name: str, *command: str | Path, **named) -> subprocess.Popen[str]:
    """A process in one of the namespaces."""
    STARTED.append(subprocess.Popen(["ip", "netns", "exec", NAMES[name], *map(str, command)], text=True, **named))
    return STARTED[-1]


def end(name: str) -> None:
    """Kill all that runs in a namespace, and cut its wire: nobody hears that it is gone."""
    subprocess.run(["ip", "link", "set", f"v{NAMES[name]}"[:15], "down"], check=False)
    for pid in subprocess.run(["ip", "netns", "pids", NAMES[name]], capture_output=True, text=True).stdout.split():
        os.kill(int(pid), signal.SIGKILL)


@pytest.fixture
def network() -> Iterator[None]:
    """Three machines on one wire, as network namespaces: they reach each other and nothing else."""
    if os.geteuid() or not shutil.which("ip"):
        pytest.skip("needs root and iproute2, to make network namespaces")
    bridge, commands = f"hwb{os.getpid()}"[:15], []
    commands += [f"link add {bridge} type bridge", f"link set {bridge} up"]
    for name, address in NODES.items():
        space, wire = NAMES[name], f"v{NAMES[name]}"[:15]
        commands += [f"netns add {space}", f"link add {wire} type veth peer name e0 netns {space}"]
        commands += [f"link set {wire} master {bridge} up", f"-n {space} addr add {address}/24 dev e0"]
        commands += [f"-n {space} link set e0 up", f"-n {space} link set lo up"]
    try:
        for command in commands:
            subprocess.run(["ip", *command.split()], check=True)
        yield
    finally:
        for name in NODES:
            end(name)
            subprocess.run(["ip", "netns", "del", NAMES[name]], check=False)
        subprocess.run(["ip", "link", "del", bridge], check=False)
        for process in STARTED:
            process.wait(30)


@needs_ray
@pytest.mark.soak
def test_a_sweep_outlives_a_node_of_its_cluster(network, tmp_path):
    """Three Ray nodes in network namespaces; one is killed, its wire cut, while all work."""
    ray, address = shutil.which("ray", path=str(Path(sys.executable).parent)), f"{NODES['head']}:6379"
    env = {
        **os.environ,
        "RAY_AUTH_MODE": "disabled",
        "RAY_health_check_period_ms": "1000",
        "RAY_health_check_failure_threshold": "3",
    }
    common = ("--num-cpus=1", "--object-store-memory=80000000", "--disable-usage-stats", "--block")
    quiet = {"env": env, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    ip = "--node-ip-address="
    inside(
        "head", ray, "start", "--head", "--port=6379", "--include-dashboard=false", ip + NODES["head"], *common, **quiet
    )
    until = time.monotonic() + 90
    while inside("head", ray, "status", "--address", address, **quiet).wait() and time.monotonic() < until:
        time.sleep(1)
    for name in ("one", "two"):
        inside(name, ray, "start", f"--address={address}", ip + NODES[name], *common, **quiet)
    (tmp_path / "sweep.py").write_text(SWEEP)
    out = tmp_path / "out"
    sweep = inside("head", sys.executable, tmp_path / "sweep.py", out, address, env=env, stdout=subprocess.PIPE)
    while len(notes(out)) < 20 and time.monotonic() < until + 60:
        time.sleep(0.1)
    assert subprocess.run(["ip", "netns", "pids", NAMES["two"]], capture_output=True).stdout, "the node is at work"
    end("two")
    said, _ = sweep.communicate(timeout=240)
    assert "90 results {}" in said
    times = Counter(notes(out))
    assert len(times) == 90 and sum(times.values()) <= 90 + 64, "at most what was under way there began twice"


def test_of_a_lost_bundle_the_first_job_without_a_record_is_to_blame(tmp_path):
    jobs = [job("square", n) for n in range(4)]
    perform(jobs[0], tmp_path)
    pool = object.__new__(Ray)
    pool.root = tmp_path
    assert pool._failed(jobs, "why") == ["", f"{LOST}why"]
    assert pool._failed(jobs[:1], "why") == [""]


def test_without_the_extra_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(HeadwiseError, match=r"\.\[ray\]"):
        run([job("square")], tmp_path, "ray")
