"""Locks, syncing and exchange on this system, and the Windows branches against a stand-in for msvcrt."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
import types
from contextlib import nullcontext
from importlib.util import module_from_spec, spec_from_file_location

import pytest
import torch

from headwise.errors import HeadwiseWarning
from headwise.io import files, system
from headwise.io.system import Terminated
from headwise.testing import toy_model
from headwise.training import checkpoint
from headwise.training.loop import Run, fit
from headwise.training.methods.method import Method
from headwise.training.plan import Plan


@pytest.fixture(params=["posix", "windows"])
def platform(request, monkeypatch):
    """`headwise.io.system` as it is, and as Windows would load it; files uses it too."""
    if request.param == "posix":
        return system

    def locking(descriptor: int, mode: int, count: int) -> None:
        assert mode == 2 and count == 1
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PermissionError(13, "Permission denied") from None  # as msvcrt says it

    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setitem(sys.modules, "msvcrt", types.SimpleNamespace(LK_NBLCK=2, locking=locking))
    spec = spec_from_file_location("windows_system", system.__file__)
    windows = module_from_spec(spec)
    spec.loader.exec_module(windows)
    monkeypatch.setattr(files, "system", windows)
    assert windows.WINDOWS and not hasattr(windows, "fcntl")
    return windows


def test_a_file_is_locked_by_one_holder_at_a_time(platform, tmp_path):
    first = platform.lock(tmp_path / "a.lock", wait=False)
    with pytest.raises(BlockingIOError):
        platform.lock(tmp_path / "a.lock", wait=False)
    os.close(first)
    os.close(platform.lock(tmp_path / "a.lock", wait=True))


@pytest.mark.parametrize("platform", ["windows"], indirect=True)
def test_who_waits_gets_the_lock_when_it_is_free(platform, tmp_path, monkeypatch):
    first = platform.lock(tmp_path / "a.lock", wait=False)
    monkeypatch.setattr(platform.time, "sleep", lambda seconds: os.close(first))
    os.close(platform.lock(tmp_path / "a.lock", wait=True))


def test_a_folder_is_locked_by_one_holder_at_a_time(platform, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    monkeypatch.setenv("USERNAME", "somebody")
    run = tmp_path / "run"
    run.mkdir()

    def hold():
        return files.locked(run, wait=False)

    with pytest.warns(HeadwiseWarning) if platform is not system else nullcontext():
        with hold(), pytest.raises(BlockingIOError), hold():
            pass
        with hold():
            pass


def test_a_folder_takes_the_place_of_another(platform, tmp_path):
    """Windows has no exchange in one step: the old folder steps aside first."""
    for text in ("old", "new"):
        with files.folder(tmp_path / "model", replace=True) as scratch:
            files.write(scratch / "config.json", text)
    assert (tmp_path / "model/config.json").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_exchange_swaps_folders_or_says_that_it_cannot(platform, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    swapped = platform.exchange(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a/b").exists() == swapped
    assert not (swapped and platform is not system)


def test_systems_without_process_groups_are_no_error(monkeypatch):
    monkeypatch.delattr(os, "setpgrp")
    system.leave_process_group()


PLAN = Plan(epochs=2, lr=3e-3, batch_size=16, checkpoint_every=4, evaluate_every=0, clip=1.0, weight_decay=0.01)


def weights(model) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)], ids=["SIGINT", "SIGTERM"]
)
def test_a_stop_keeps_a_checkpoint_and_goes_on(tmp_path, number, error):
    class Interrupt(Method):
        def before_step(self, run: Run) -> None:
            if run.step == 5:
                os.kill(os.getpid(), number)
                time.sleep(0.01)

    whole, before = toy_model(), signal.getsignal(number)
    fit(whole, PLAN)
    with pytest.raises(error, match="same command to resume"):
        fit(toy_model(), PLAN, Interrupt(), out=tmp_path)
    assert checkpoint.load(checkpoint.list_all(tmp_path / "checkpoints")[-1])[1]["step"] == 6
    resumed = toy_model()
    fit(resumed, PLAN, out=tmp_path)
    assert same(weights(whole), weights(resumed))

    assert signal.getsignal(number) is before
