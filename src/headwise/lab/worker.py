"""One fair worker: a page's newest request replaces its older ones, and short work goes first.

Work is a generator. The worker takes the next step of the most urgent one, hands on what it yields, and puts it back;
so a measurement of minutes never holds up an answer for longer than one of its steps.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from headwise.errors import HeadwiseError

URGENCY = {"answers": 0, "why": 1, "attention": 1, "examples": 1, "masks": 2, "flip": 3, "scores": 4}
SECONDS = {"answers": 30, "why": 60, "attention": 30, "examples": 30, "masks": 300, "flip": 300, "scores": 900}
WAITING = 64  # asks of all pages together
IDLE = 0.2  # seconds between two looks whether the lab is closing


class Busy(HeadwiseError):
    """Too many pages send requests."""


class Replaced(HeadwiseError):
    """A newer request of the same page replaced this one."""


class Late(HeadwiseError):
    """A request exceeded its time limit."""


@dataclass(order=True)
class _Task:
    urgency: int
    number: int
    steps: Iterator[Any] = field(compare=False)
    out: asyncio.Queue = field(compare=False)
    loop: asyncio.AbstractEventLoop = field(compare=False)
    until: float = field(compare=False)
    key: tuple[str, str] = field(compare=False)
    cancelled: bool = field(default=False, compare=False)

    def send(self, kind: str, value: Any = None) -> None:
        try:
            self.loop.call_soon_threadsafe(self.out.put_nowait, (kind, value))
        except RuntimeError:  # the loop has ended: nobody waits
            self.cancelled = True


class Worker:
    """Run steps of work in a separate thread."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._waiting: list[_Task] = []
        self._newest: dict[tuple[str, str], _Task] = {}
        self._numbers = itertools.count()
        self._open = True
        self._thread = threading.Thread(target=self._run, name="headwise-lab", daemon=True)
        self._thread.start()

    async def stream(self, client: str, kind: str, start: Callable[[], Iterator[Any]]) -> AsyncIterator[Any]:
        """Yield the results of the work; leaving the loop cancels it."""
        task = self._add(client, kind, start)
        try:
            while True:
                what, value = await task.out.get()
                if what == "end":
                    return
                if what == "error":
                    raise value
                yield value
        finally:
            self._drop(task)

    async def result(self, client: str, kind: str, run: Callable[[], Any]) -> Any:
        """The result of one call."""
        async for value in self.stream(client, kind, lambda: _once(run)):
            return value
        raise HeadwiseError("no result")

    def close(self) -> None:
        """Stop after the current step."""
        with self._lock:
            self._open = False
            self._lock.notify_all()
        self._thread.join(timeout=10)

    def _add(self, client: str, kind: str, start: Callable[[], Iterator[Any]]) -> _Task:
        loop, out = asyncio.get_running_loop(), asyncio.Queue[Any]()
        until = time.monotonic() + SECONDS[kind]
        task = _Task(URGENCY[kind], next(self._numbers), start(), out, loop, until, (client, kind))
        with self._lock:
            older = self._newest.get(task.key)
            if older is not None:
                self._end(older, Replaced("replaced by a newer request of this page"))
            if len(self._waiting) >= WAITING:
                raise Busy(f"{WAITING} asks are waiting", "fewer pages at once")
            self._newest[task.key] = task
            self._waiting.append(task)
            self._lock.notify()
        return task

    def _end(self, task: _Task, error: Exception | None = None) -> None:
        """End a task; the lock must be held."""
        task.cancelled = True
        if task in self._waiting:
            self._waiting.remove(task)
        if self._newest.get(task.key) is task:
            del self._newest[task.key]
        task.send("error", error) if error else task.send("end")

    def _drop(self, task: _Task) -> None:
        with self._lock:
            if not task.cancelled:
                self._end(task)

    def _run(self) -> None:
        while True:
            with self._lock:
                while self._open and not self._waiting:
                    self._lock.wait(IDLE)
                if not self._open:
                    return
                task = min(self._waiting)
                self._waiting.remove(task)
            self._step(task)

    def _step(self, task: _Task) -> None:
        if time.monotonic() > task.until:
            error: Exception | None = Late("this took too long", f"{SECONDS[task.key[1]]} seconds at most")
        else:
            try:
                value = next(task.steps)
                error = None
            except StopIteration:
                with self._lock:
                    if not task.cancelled:
                        self._end(task)
                return
            except Exception as problem:
                error = problem
        with self._lock:
            if task.cancelled:
                return
            if error is not None:
                self._end(task, error)
                return
            task.number = next(self._numbers)  # behind those of its urgency that wait
            self._waiting.append(task)
        task.send("value", value)


def _once(run: Callable[[], Any]) -> Iterator[Any]:
    yield run()
