"""Long estimates say how long they take, before they start and while they run."""

from __future__ import annotations

from headwise.scoring.importance import importance
from headwise.scoring.meter import Meter
from headwise.testing import toy_model


def test_an_estimate_before_and_the_time_left_after():
    lines, now = [], [0.0]
    meter = Meter("shapley", lines.append, lambda: now[0])
    meter.start(forwards=100, examples=32, seconds=2.0)
    assert lines == ["shapley: 100 forwards of 32 examples, about 3 min"]
    now[0] = 50.0
    meter.tick(32 * 25)
    assert lines[1] == "shapley: 25 %, about 2 min left"
    meter.tick(32)
    assert len(lines) == 2, "no more than a line in a while"


def test_a_short_one_says_nothing():
    lines: list[str] = []
    meter = Meter("ablation", lines.append)
    meter.start(100, 32, 0.01)
    meter.tick(3200)
    assert lines == []


def test_estimators_of_many_forwards_count_all_of_them(monkeypatch):
    model, counts = toy_model(1, rows=20), []
    monkeypatch.setattr(Meter, "tick", lambda self, examples: counts.append(examples))
    importance(model, "toy0", "ablation", tokens=60)
    assert sum(counts) - counts[0] == 9 * 20, "one forward to measure its time, then the model and eight lesions"
