"""What a page says first: numbers with intervals, in a table and in a figure, or nothing."""

from __future__ import annotations

import pytest

from headwise.papers.message import Claim, drawn, in_short, row


def test_rows_hold_means_with_students_interval():
    (found,) = row("trained", "measured", [1.0, 2.0, 3.0, None, float("nan")], "seeds")
    assert found.value == 2.0 and found.n == "3 seeds"
    assert found.low == pytest.approx(2 - 4.303 / 3**0.5, abs=1e-3) and found.high == pytest.approx(4 - found.low)
    assert row("nothing", "measured", []) == [] and row("one", "measured", [1.0])[0].low is None


def test_claims_without_numbers_are_not_said():
    kept = Claim("Heads differ.", "D", row("trained", "measured", [1.0, 2.0]))
    part = in_short([Claim("Nothing was run.", "D", []), None, kept])
    assert part.text == "1. Heads differ." and len(part.tables[0]["rows"]) == 1
    assert not in_short([None]).tables and not in_short([]).figures


def test_every_claim_has_a_panel_with_a_named_axis():
    pytest.importorskip("matplotlib")
    rows = [
        *row("ours", "measured", [1.0, 2.0]),
        *row("plain", "baseline", [0.5]),
        *row("random", "control", [0.1, 0.2]),
    ]
    figure = drawn([Claim("One.", "points", rows), Claim("Two.", "D, percent", rows[:1], None)])
    assert [axis.get_xlabel() for axis in figure.axes] == ["points", "D, percent"]
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["ours", "plain", "random"]
