"""Progress sees every batch and evaluation."""

from __future__ import annotations

from headwise.io.progress import Progress
from headwise.testing import toy_model
from headwise.training.loop import fit
from headwise.training.plan import Plan

PLAN = Plan(steps=8, lr=3e-3, batch_size=16, evaluate_every=4)


def test_progress_sees_every_batch_and_evaluation():
    class Seen(Progress):
        def __init__(self):
            self.events = []

        def start(self, total, done, tasks):
            self.events.append(("start", total, done, tuple(tasks)))

        def advance(self, step, task, loss, tokens):
            self.events.append(("batch", step, tokens > 0))

        def scores(self, step, scores):
            self.events.append(("scores", step))

        def stop(self):
            self.events.append(("stop",))

    seen = Seen()
    fit(toy_model(), PLAN.with_(accumulate=2), progress=seen)
    assert seen.events[0] == ("start", 8, 0, ("toy0", "toy1")) and seen.events[-1] == ("stop",)
    assert [e[1] for e in seen.events if e[0] == "batch"] == [step for step in range(1, 9) for _ in range(2)]
    assert [e[1] for e in seen.events if e[0] == "scores"] == [4, 8]
