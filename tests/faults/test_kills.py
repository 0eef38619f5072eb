"""Killed (-9) on its way, a work leaves the old or the new, never a part; done again, it is as if nothing had been.

A few kills in every run of the tests; ``make soak`` tries every moment a file is touched, and hundreds of random times.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

import numpy as np
import pytest
from killing import in_child
from scenes import SCENES, fresh, made_ready

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
