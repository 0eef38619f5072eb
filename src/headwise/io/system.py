"""What differs between operating systems, requests to stop included (no torch).

Ctrl-C stops, and SIGTERM, which batch systems and containers send before SIGKILL. The tests run on Linux. macOS takes
the same branches, except that folders cannot be exchanged in one step there. The Windows branches follow the
documentation of `msvcrt` and are tested against a stand-in, never on Windows.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import getpass
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

WINDOWS = sys.platform == "win32"
LOCK_POLL = 0.1  # seconds between attempts to lock on systems that cannot wait


def lock(path: Path, wait: bool) -> int:
    """Lock a file or an existing folder exclusively; closing the returned descriptor unlocks it.

    Raises:
        BlockingIOError: another process holds the lock and ``wait`` is False.
        OSError: the file system cannot lock, among other reasons.
    """
    if WINDOWS and path.is_dir():
        raise OSError(errno.ENOTSUP, "Windows cannot lock folders", str(path))
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT, 0o666)
    try:
        _lock(descriptor, wait)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


if sys.platform == "win32":

    def _lock(descriptor: int, wait: bool) -> None:
        while True:
            try:
                return msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
            except PermissionError as error:
                if not wait:
                    raise BlockingIOError(errno.EAGAIN, "another process holds the lock") from error
                time.sleep(LOCK_POLL)

else:

    def _lock(descriptor: int, wait: bool) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)


def sync(path: Path) -> None:
    """Flush a file or the entries of a folder to disk; Windows has no such call for folders."""
    if WINDOWS and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDWR if WINDOWS else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def exchange(a: Path, b: Path) -> bool:
    """Swap two folders atomically; False if the system or the file system cannot."""
    swap = None if WINDOWS else getattr(ctypes.CDLL(None), "renameat2", None)  # Linux only
    here, flag = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return swap is not None and swap(here, os.fsencode(a.absolute()), here, os.fsencode(b.absolute()), flag) == 0


def leave_process_group() -> None:
    """Keep this process from receiving the Ctrl-C of its terminal, on systems with process groups."""
    with contextlib.suppress(AttributeError):
        os.setpgrp()  # pyright: ignore[reportAttributeAccessIssue]


def user() -> str:
    """A name for the user that differs between users of one machine."""
    return getpass.getuser() if WINDOWS else str(os.getuid())


def memory_limits() -> list[int]:
    """Bytes that this process may still take under each limit set on it: by its container, by ulimit; [] without."""
    rest = []
    with contextlib.suppress(ImportError, OSError, ValueError, IndexError):
        import resource

        fields = Path("/proc/self/statm").read_text().split()
        for limit, used in ((resource.RLIMIT_AS, fields[0]), (resource.RLIMIT_DATA, fields[5])):
            most = resource.getrlimit(limit)[0]
            if most != resource.RLIM_INFINITY:
                rest.append(most - int(used) * resource.getpagesize())
    for group in _groups():
        with contextlib.suppress(OSError, ValueError):
            names = ("memory.max", "memory.current") if (group / "memory.max").exists() else OLD_NAMES
            most_text, used = ((group / name).read_text().strip() for name in names)
            if most_text.isdigit() and int(most_text) < UNLIMITED:
                rest.append(int(most_text) - int(used) + _dropped(group))
    return [max(0, each) for each in rest]


OLD_NAMES = ("memory.limit_in_bytes", "memory.usage_in_bytes")  # of the first version of control groups
UNLIMITED = 2**60


def _groups() -> list[Path]:
    """The control groups of this process that may limit its memory, its own first."""
    groups = []
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, kinds, own = line.split(":", 2)
            if kinds in ("", "memory"):
                root = Path("/sys/fs/cgroup") / kinds
                group = root / own.lstrip("/")
                groups += [each for each in (group, *group.parents) if each.is_relative_to(root)]
    return groups


def _dropped(group: Path) -> int:
    """Bytes of files in memory, which the system drops when it needs room."""
    stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    return int(stat.get("inactive_file", 0)) + int(stat.get("active_file", 0))


SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Terminated(KeyboardInterrupt):
    """A stop by SIGTERM; whatever handles Ctrl-C also handles this."""


def stop(number: int, message: str = "") -> KeyboardInterrupt:
    """The exception for a signal."""
    return Terminated(message) if number == signal.SIGTERM else KeyboardInterrupt(message)


@contextmanager
def handled(handler: Callable[[int, Any], None], *numbers: int) -> Iterator[None]:
    """Send signals to a handler inside the block; no effect outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, signal.SIG_DFL if previous is None else previous)


@contextmanager
def noted() -> Iterator[Callable[[], int]]:
    """Defer stops inside the block: the yielded function returns the signal (0: none); the same signal again raises.

    Only the same one, because a sweep forwards SIGTERM as Ctrl-C to processes that may also have received SIGTERM.

    Example:
        >>> with noted() as stopped:
        ...     while not stopped():
        ...         step()
    """
    seen: list[int] = []

    def note(number: int, frame: Any) -> None:
        if number in seen:
            raise stop(number)
        seen.append(number)

    with handled(note, *SIGNALS):
        yield lambda: seen[0] if seen else 0


@contextmanager
def raised() -> Iterator[None]:
    """Raise `Terminated` on SIGTERM inside the block; by default the process would end silently."""

    def terminate(number: int, frame: Any) -> None:
        raise stop(number, "terminated")

    with handled(terminate, signal.SIGTERM):
        yield
