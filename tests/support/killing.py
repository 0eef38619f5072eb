"""Children that die: at a chosen moment on the way of their files, after some time, or for want of room."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree")


def in_child(
    work: Callable[[], object],
    *,
    at: tuple[int, Path] | None = None,
    after: float | None = None,
    largest: int | None = None,
    user: int | None = None,
    seconds: float = 120,
) -> tuple[int, str]:
    """Do something in a forked process: its exit code (-9 when killed), and what it said of its error.

    Args:
        work: what to do.
        at: kill -9 before the n-th time it touches something under a folder; with 0, the count is what it says.
        after: kill -9 after so many seconds.
        largest: bytes a file may have.
        user: whose rights the child has.
        seconds: a child that takes longer hangs.
    """
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forking beside threads, which these children do not use
        child = os.fork()
    if not child:
        os.close(read)
        _live(work, write, at, largest, user)
    os.close(write)
    try:
        code = _wait(child, after, seconds)
        with os.fdopen(read, errors="replace") as said:
            return code, said.read()
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise


def _live(work: Callable[[], object], say: int, at: tuple[int, Path] | None, largest: int | None, user: int | None):
    """A child's life; it never returns to its parent's code."""
    try:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1), os.dup2(quiet, 2)
        if largest is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
        if user is not None:
            os.setuid(user)
        touched = _die_at(*at) if at is not None else None
        work()
        os.write(say, str(len(touched)).encode() if touched is not None else b"")
        os._exit(0)
    except BaseException:
        os.write(say, traceback.format_exc()[-4000:].encode())
    finally:
        os._exit(1)


def _die_at(number: int, folder: Path) -> list[str]:
    """Kill this process before the n-th touch; the touches so far."""
    touched: list[str] = []
    prefix = str(folder)

    def hook(event: str, args: tuple) -> None:
        if event in EVENTS and args and str(args[0]).startswith(prefix):
            touched.append(event)
            if len(touched) == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    return touched


def _wait(child: int, after: float | None, seconds: float) -> int:
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if after is not None and time.monotonic() - began > after:
            os.kill(child, signal.SIGKILL)
            after = None
        time.sleep(0.002)
    raise AssertionError(f"a child has not ended after {seconds} s")
