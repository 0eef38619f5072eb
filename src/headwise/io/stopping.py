"""Requests to stop: Ctrl-C, and SIGTERM, which batch systems and containers send before SIGKILL."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

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
