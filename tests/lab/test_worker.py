"""One worker: the newest ask wins, short work goes first, nothing runs on when nobody waits."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from headwise.lab import worker as module
from headwise.lab.worker import Busy, Late, Replaced, Worker


@pytest.fixture
def worker():
    made = Worker()
    yield made
    made.close()
    assert not made._thread.is_alive()


def test_an_answer_comes_between_the_steps_of_a_measurement(worker):
    order = []

    def long():
        for i in range(20):
            time.sleep(0.01)
            order.append(i)
            yield i

    async def both():
        async def measure():
            return [i async for i in worker.stream("a", "scores", long)]

        measuring = asyncio.create_task(measure())
        await asyncio.sleep(0.03)
        await worker.result("b", "answers", lambda: order.append("answer"))
        return await measuring

    assert asyncio.run(both()) == list(range(20))
    assert 0 < order.index("answer") < 15


def test_the_newest_ask_of_a_page_replaces_its_older_one_and_no_other(worker):
    gate, ran = threading.Event(), []

    async def run():
        first = asyncio.create_task(worker.result("x", "answers", gate.wait))
        await asyncio.sleep(0.05)
        calls = [("a", 1), ("a", 2), ("b", 3), ("a", 4)]
        later = [asyncio.create_task(worker.result(who, "answers", lambda n=n: ran.append(n) or n)) for who, n in calls]
        await asyncio.sleep(0.05)
        gate.set()
        return await asyncio.gather(first, *later, return_exceptions=True)

    _, one, two, three, four = asyncio.run(run())
    assert isinstance(one, Replaced) and isinstance(two, Replaced) and (three, four) == (3, 4) and ran == [3, 4]


def test_work_ends_when_the_page_hangs_up(worker):
    steps = []

    def endless():
        while True:
            time.sleep(0.002)
            steps.append(1)
            yield len(steps)

    async def run():
        results = worker.stream("a", "scores", endless)
        async for count in results:
            if count == 3:
                break
        await results.aclose()
        await asyncio.sleep(0.05)
        seen = len(steps)
        await asyncio.sleep(0.1)
        assert len(steps) == seen

    asyncio.run(run())


def test_errors_late_work_and_crowds_are_told(worker, monkeypatch):
    def broken():
        yield 1
        raise KeyError("x")

    async def run():
        found = []
        with pytest.raises(KeyError):
            async for value in worker.stream("a", "scores", broken):
                found.append(value)
        assert found == [1]
        monkeypatch.setitem(module.SECONDS, "flip", -1)
        with pytest.raises(Late, match="too long"):
            await worker.result("a", "flip", lambda: 1)
        monkeypatch.setattr(module, "WAITING", 0)
        with pytest.raises(Busy):
            await worker.result("a", "answers", lambda: 1)
        monkeypatch.setattr(module, "WAITING", 64)
        assert await worker.result("a", "answers", lambda: 5) == 5

    asyncio.run(run())
    assert not worker._waiting and not worker._newest, "nothing is left behind"
