"""Requests to stop: Ctrl-C, and SIGTERM, which batch systems and containers send before they kill."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Terminated(KeyboardInterrupt):
    """A stop by SIGTERM: what handles Ctrl-C handles this one too."""


def stop(number: int, message: str = "") -> KeyboardInterrupt:
    """The exception for a signal."""
    return Terminated(message) if number == signal.SIGTERM else KeyboardInterrupt(message)


@contextmanager
def handled(handler: Callable[[int, Any], None], *numbers: int) -> Iterator[None]:
    """Inside, signals go to a handler; outside of the main thread, where Python takes no handlers, nothing happens."""
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
    """Inside, a stop is only noted, and the function given returns its signal (0: none); the same again raises.

    The same, as a sweep passes SIGTERM on as Ctrl-C to processes that may have had SIGTERM as well.

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
    """Inside, SIGTERM raises `Terminated` where the system would end the process without a word."""

    def terminate(number: int, frame: Any) -> None:
        raise stop(number, "terminated")

    with handled(terminate, signal.SIGTERM):
        yield
