"""A clock that jumps, and other processes at work in the same folder, change nothing."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import scenes
import torch
from scenes import in_child
from typer.testing import CliRunner

from headwise.cli import app
from headwise.errors import HeadwiseError
from headwise.io.records import Results
from headwise.testing import toy_model
from headwise.training import checkpoint
from headwise.training.loop import fit
from headwise.training.methods.method import Method

SUPPORT = Path(__file__).parents[1] / "support"


@pytest.fixture
def jumping(monkeypatch):
    """The clock of the day goes back an hour every time it is asked."""
    hours = itertools.count()
    monkeypatch.setattr(time, "time", lambda: 2e9 - 3600 * next(hours))


def test_records_are_all_found_when_the_clock_goes_back(tmp_path, jumping):
    results = Results(tmp_path / "records")
    keys = [results.save("square", {"n": n}, {"square": n * n}) for n in range(5)]
    for age, key in enumerate(keys):  # each seems older than the one before, the last as old as the world
        os.utime(tmp_path / "records" / key / "record.json", (1e9 - 1e6 * age,) * 2)
    os.utime(tmp_path / "records" / keys[-1] / "record.json", (0, 0))
    assert {record.key for record in results} == set(keys)
    assert [results.find("square", {"n": n}).result["square"] for n in range(5)] == [0, 1, 4, 9, 16]
    listed = CliRunner().invoke(app, ["ls", str(tmp_path), "--json"])
    assert {row["key"] for row in json.loads(listed.output)} == set(keys)


def test_training_goes_on_from_the_last_step_whatever_the_clock_said(tmp_path, jumping):
    class Crash(Method):
        def before_step(self, run):
            if run.step == 5:
                raise RuntimeError("crash")

    with pytest.raises(RuntimeError, match="crash"):
        fit(toy_model(), scenes.PLAN, Crash(), out=tmp_path)
    kept = checkpoint.list_all(tmp_path / "checkpoints")
    for age, path in enumerate(kept):
        for file in [path, *path.iterdir()]:
            os.utime(file, (1e9 - 1e6 * age,) * 2)
    assert checkpoint.newest(tmp_path / "checkpoints")[1]["step"] == 4
    model = toy_model()
    history = fit(model, scenes.PLAN, out=tmp_path)
    assert history.seconds >= 0
    assert all(torch.equal(value, scenes.trained()[name]) for name, value in model.state_dict().items())


def together(work, folder: Path, number: int) -> list[tuple[int, str]]:
    """The same work in several processes that start at once."""
    gate = folder.parent / "gate"
    gate.unlink(missing_ok=True)

    def waiting() -> None:
        while not gate.exists():
            time.sleep(0.0005)
        work()

    def crowd() -> None:
        children = []
        for _ in range(number):
            child = os.fork()
            if not child:
                try:
                    waiting()
                    os._exit(0)
                except BaseException as error:
                    (folder.parent / f"error-{os.getpid()}").write_text(repr(error))
                finally:
                    os._exit(1)
            children.append(child)
        gate.write_text("")
        assert [os.waitpid(child, 0)[1] for child in children] == [0] * number

    code, said = in_child(crowd)
    errors = [file.read_text() for file in folder.parent.glob("error-*")]
    assert code == 0, f"{errors} {said}"


def test_a_second_training_in_a_folder_is_refused_and_the_first_goes_on(tmp_path):
    class Meanwhile(Method):
        def before_step(self, run):
            if run.step == 2:
                with pytest.raises(HeadwiseError, match=r"another process is training in .*--out OTHER"):
                    fit(toy_model(), scenes.PLAN, out=tmp_path)

    history = fit(toy_model(), scenes.PLAN, Meanwhile(), out=tmp_path)
    assert history.steps == scenes.PLAN.steps
    assert fit(toy_model(), scenes.PLAN, out=tmp_path).steps == history.steps, "when it is done, the folder is free"


@pytest.mark.parametrize("name", ["records", "models", "pages", "features", "tokens", "jobs"])
def test_several_processes_that_write_the_same_at_once_leave_it_whole(tmp_path, name, monkeypatch):
    monkeypatch.syspath_prepend(str(SUPPORT))
    scenes.made_ready(name)
    scene = scenes.SCENES[name]
    for _ in range(3):
        folder = scenes.fresh(tmp_path / "here", scene)
        together(lambda folder=folder: scene.act(folder), folder, 4)
        scene.whole(folder)


def test_a_reader_beside_a_writer_sees_whole_records_only(tmp_path):
    """A model folder is replaced over and over; whoever opens it finds one of the two, never none."""
    scenes.made_ready("models")
    scenes.first_model(tmp_path)

    def replaced() -> None:
        for _ in range(10):
            scenes.second_model(tmp_path)
            scenes.first_model(tmp_path)

    def watched() -> None:
        child = os.fork()
        if not child:
            try:
                replaced()
            finally:
                os._exit(0)
        looks = 0
        while not os.waitpid(child, os.WNOHANG)[0]:
            assert (tmp_path / "model" / "headwise.json").exists()
            looks += 1
        assert looks > 10

    code, said = in_child(watched)
    assert code == 0, said


@pytest.mark.soak
def test_sweeps_that_are_killed_over_and_over_lose_nothing(tmp_path, record_property, monkeypatch):
    """The whole program dies at a random time, with its workers; what had a record then is never done again."""
    path = os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")])
    script = tmp_path / "sweep.py"
    script.write_text(
        "import sys\nfrom handiwork import job\nfrom headwise.experiments.sweep import run\n"
        "if __name__ == '__main__':\n"
        "    jobs = [job('square', n, wait=0.05) for n in range(40)]\n"
        "    sys.exit(bool(run([job('total', 0, after=tuple(jobs), of=[j.key for j in jobs])], sys.argv[1],"
        " workers=2).failed))\n"
    )
    rng, kills, command = np.random.default_rng(0), 0, [sys.executable, str(script), str(tmp_path / "out")]
    for _ in range(40):
        running = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path})
        try:
            if running.wait(float(rng.uniform(0.5, 4))) == 0:
                break
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGKILL)
            running.wait()
            kills += 1
        done = {r.config["n"] for r in Results(tmp_path / "out" / "records") if "square" in r.result}
        assert done <= set(range(40))
    assert subprocess.run(command, env={**os.environ, "PYTHONPATH": path}).returncode == 0
    records = list(Results(tmp_path / "out" / "records"))
    assert len(records) == 41 and {"total": sum(n * n for n in range(40))} in [r.result for r in records]
    notes = (tmp_path / "out" / "notes.txt").read_text().split()
    assert len(notes) // 2 <= 40 + 2 * kills  # at most the two under way are done again
    record_property("kills", kills)
