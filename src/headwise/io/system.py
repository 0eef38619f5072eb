"""The calls that differ between operating systems (no torch).

The tests run on Linux. macOS takes the same branches, except that folders cannot be exchanged in one step there. The
Windows branches follow the documentation of `msvcrt` and are tested against a stand-in, never on Windows.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import getpass
import os
import sys
import time
from pathlib import Path

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
    with contextlib.suppress(OSError, ValueError, IndexError):
        own = Path("/proc/self/cgroup").read_text().splitlines()[-1].split(":", 2)[2]
        group = Path("/sys/fs/cgroup") / own.lstrip("/")
        for each in (group, *group.parents):
            if each.is_relative_to("/sys/fs/cgroup") and (each / "memory.max").exists():
                most_text = (each / "memory.max").read_text().strip()
                if most_text != "max":
                    rest.append(int(most_text) - _used(each))
    return [max(0, each) for each in rest]


def _used(group: Path) -> int:
    """What a control group holds, without files that can be dropped from memory."""
    cached = 0
    with contextlib.suppress(OSError, ValueError):
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        cached = int(stat.get("inactive_file", 0)) + int(stat.get("active_file", 0))
    return int((group / "memory.current").read_text()) - cached
