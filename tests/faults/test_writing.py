"""Killed, without room or without the right to write: what was there stays whole, and errors say what is wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from scenes import SCENES, fresh, in_child, made_ready

from headwise.errors import HeadwiseError, HeadwiseWarning
from headwise.testing import playground, toy_model
from headwise.training.loop import fit
from headwise.training.plan import Plan

WRITERS = ("records", "models", "exports", "features", "pages", "training")
ROOT = os.geteuid() == 0
NOBODY = 65534


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("bytes_", [0, 700])
def test_files_that_may_not_grow_are_told_and_leave_nothing_half_written(tmp_path, name, bytes_):
    made_ready(name)
    scene = SCENES[name]
    folder = fresh(tmp_path / "here", scene)
    code, said = in_child(lambda: scene.act(folder), largest=bytes_)
    assert code == 1 and ("File too large" in said or "os error 27" in said), said
    scene.safe(folder)
    assert in_child(lambda: scene.act(folder))[0] == 0
    scene.whole(folder)


@contextmanager
def mounted(folder: Path, options: str):
    folder.mkdir(exist_ok=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"cannot mount a small disk here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.skipif(not ROOT, reason="mounting a small disk needs root")
@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("left", [0, 8192])
def test_a_full_disk_is_told_and_leaves_nothing_half_written(tmp_path, name, left):
    made_ready(name)
    scene = SCENES[name]
    with mounted(tmp_path / "disk", "size=2m"):
        folder = fresh(tmp_path / "disk" / "here", scene)
        filler = tmp_path / "disk" / "filler"
        free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
        filler.write_bytes(b"\0" * max(0, free - left))
        code, said = in_child(lambda: scene.act(folder))
        assert code == 1 and ("No space left" in said or "os error 28" in said or "enough free space" in said), said
        scene.safe(folder)
        filler.unlink()
        assert in_child(lambda: scene.act(folder)) == (0, "")
        scene.whole(folder)


@pytest.mark.parametrize("name", WRITERS)
def test_a_folder_that_may_not_be_written_to_is_told(tmp_path, name):
    made_ready(name)
    scene = SCENES[name]
    folder = fresh(tmp_path / "here", scene)
    for path in [tmp_path, *tmp_path.parents]:
        if "pytest" in str(path):
            path.chmod(path.stat().st_mode | 0o055)
    folder.chmod(0o555)
    code, said = in_child(lambda: scene.act(folder), user=NOBODY if ROOT else None)
    folder.chmod(0o755)
    assert code == 1 and "Permission denied" in said and str(folder) in said, said
    scene.safe(folder)


def test_a_cache_that_may_not_be_written_to_costs_time_and_not_the_run(tmp_path, monkeypatch):
    (tmp_path / "cache").write_text("a file where a folder should be")
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path / "cache"))
    with pytest.warns(HeadwiseWarning, match="tokens are not cached"):
        history = fit(toy_model(), Plan(steps=1, evaluate_every=0))
    assert history.steps == 1


def test_training_finds_out_before_the_first_step(tmp_path, monkeypatch):
    """Hours of work must not end in a folder that cannot be written to."""
    (tmp_path / "file").write_text("")
    steps = []
    monkeypatch.setattr("headwise.training.loop._step", lambda run: steps.append(1))
    with pytest.raises(OSError, match="file"):
        fit(toy_model(), Plan(steps=3), out=tmp_path / "file" / "run")
    assert not steps


def test_the_command_line_says_it_in_one_line(tmp_path):
    place = playground(tmp_path)
    (place / "file").write_text("")
    command = [sys.executable, "-m", "headwise", "report", "study.json", "--out", "file/report.html"]
    (place / "study.json").write_text(
        '{"model": {"name": "m", "layers": 1, "heads": 1}, "tasks": [{"name": "a"}],'
        ' "importance": {"a": {"scores": [[0.5]]}}}'
    )
    done = subprocess.run(command, cwd=place, capture_output=True, text=True)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert done.stderr.startswith("headwise: ") and "file" in done.stderr and done.stderr.count("\n") == 1


def test_an_export_never_goes_over_what_is_there(tmp_path):
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "precious").write_text("kept")
    from scenes import cut

    from headwise.pruning.export import export

    with pytest.raises(HeadwiseError, match="already exists"):
        export(*cut(), tmp_path / "small", "sliced")
    assert (tmp_path / "small" / "precious").read_text() == "kept"


EVERY = ("records", "models", "exports", "features", "tokens", "pages", "jobs", "training")
KILLED = -signal.SIGKILL


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "support"))


def killed_at(name: str, number: int, folder: Path) -> bool:
    """Kill a scene before the n-th touch of a file; False when it ended before that. Then do it again, undisturbed."""
    scene = SCENES[name]
    fresh(folder, scene)
    code, said = in_child(lambda: scene.act(folder), at=(number, folder))
    assert code in (0, KILLED), said
    scene.safe(folder)
    again, said = in_child(lambda: scene.act(folder))
    assert again == 0, said
    scene.whole(folder)
    return code == KILLED


def moments(name: str, folder: Path) -> int:
    """How often a scene touches a file."""
    fresh(folder, SCENES[name])
    code, said = in_child(lambda: SCENES[name].act(folder), at=(0, folder))
    assert code == 0, said
    return int(said)


@pytest.mark.parametrize("name", EVERY)
def test_a_few_kills_lose_nothing(tmp_path, name, record_property):
    made_ready(name)
    number = moments(name, tmp_path / "count")
    few = {"training": [number // 2], "exports": [number - 1], "models": [number - 2]}.get(name, [2, number // 2])
    assert all(killed_at(name, moment, tmp_path / "here") for moment in few)
    record_property("kills", len(few))


@pytest.mark.soak
@pytest.mark.parametrize("name", EVERY)
def test_a_kill_at_every_touch_of_a_file_loses_nothing(tmp_path, name, record_property):
    made_ready(name)
    number = moments(name, tmp_path / "count")
    tried = range(1, number + 1) if number <= 80 else np.linspace(1, number, 80).astype(int).tolist()
    for moment in tried:
        assert killed_at(name, moment, tmp_path / "here")
    record_property("kills", len(tried))


@pytest.mark.soak
@pytest.mark.parametrize("name", EVERY)
def test_kills_at_random_times_one_after_the_other_lose_nothing(tmp_path, name, record_property):
    """The same folder is killed on and on, as a machine that keeps losing power."""
    made_ready(name)
    scene, rng, kills = SCENES[name], np.random.default_rng(0), 0
    began = time.monotonic()
    assert in_child(lambda: scene.act(fresh(tmp_path / "calm", scene)))[0] == 0
    length = time.monotonic() - began
    folder = fresh(tmp_path / "here", scene)
    for _ in range(60):
        code, said = in_child(lambda f=folder: scene.act(f), after=float(rng.uniform(0, 1.2 * length)))
        assert code in (0, KILLED), said
        kills += code == KILLED
        scene.safe(folder)
        if code == 0:
            scene.whole(folder)
            folder = fresh(tmp_path / "here", scene)
    assert in_child(lambda: scene.act(folder))[0] == 0
    scene.whole(folder)
    record_property("kills", kills)
