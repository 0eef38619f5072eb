"""The atlas says of every head what roles, tasks and probes say of it, and where two models differ."""

from __future__ import annotations

import json

import numpy as np
import pytest

from headwise.atlas.cards import atlas
from headwise.atlas.result import Moments, Roles, from_record, joined
from headwise.errors import HeadwiseError


def roles(holder: tuple[int, int], name: str = "previous") -> Roles:
    """Two layers of three heads, of which one has a role, and 1.2 does not exist."""
    rng = np.random.default_rng(0)
    score, control = rng.uniform(0.1, 0.3, (2, 30, 2, 3))
    score[(slice(None), *holder)] = 0.9
    score[:, 1, 2] = control[:, 1, 2] = np.nan
    squares = ((score**2).sum(0)[None], ((score - control) ** 2).sum(0)[None])
    return Roles.of(
        [name], ["the token before"], Moments(np.array([30]), score.sum(0)[None], control.sum(0)[None], *squares)
    )


def test_cards_hold_what_was_measured():
    needs, encodes = np.arange(6.0).reshape(2, 3), np.full((2, 3), 0.5)
    record = atlas({"m": roles((0, 1))}, {"m": {"sst2": needs}}, {"m": {"depth": encodes}}, share=0.2)
    [model] = record["models"]
    cards = {(card["layer"], card["head"]): card for card in model["heads"]}
    assert set(cards) == {(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)}
    assert cards[0, 1]["role"] == "previous" and cards[0, 0]["role"] is None
    found = roles((0, 1))
    assert cards[0, 1]["roles"][0]["score"] == pytest.approx(found.score[0, 0, 1], abs=1e-3)
    assert cards[1, 1]["needed"] == [] and cards[1, 1]["needs"]["sst2"] == 4  # 1.2 takes the one place of five heads
    assert atlas({"m": roles((0, 1))}, {"m": {"sst2": -needs}})["models"][0]["heads"][0]["needed"] == ["sst2"]
    assert cards[0, 0]["encodes"] == {"depth": 0.5}
    assert json.loads(json.dumps(record, allow_nan=False)) == record


def test_models_of_one_shape_are_compared():
    record = atlas({"before": roles((0, 1)), "after": roles((1, 0))})
    assert record["changes"] == [
        {"model": "after", "layer": 0, "head": 1, "before": "previous", "after": None},
        {"model": "after", "layer": 1, "head": 0, "before": None, "after": "previous"},
    ]
    wide = roles((0, 1))
    wide = from_record(
        {**wide.to_record(), **{n: np.zeros((1, 4, 3)) for n in ("score", "control", "stderr", "p", "shuffled")}}
    )
    assert atlas({"before": roles((0, 1)), "wide": wide})["changes"] == []


def test_records_come_back_and_join():
    found = roles((0, 1))
    again = from_record(json.loads(json.dumps(found.to_record())))
    np.testing.assert_array_equal(again.score, found.score)
    both = joined([found, roles((1, 1), "next")])
    assert both.names == ("previous", "next") and both.strongest()[1, 1] == 1 and both.strongest()[0, 1] == 0
    with pytest.raises(HeadwiseError, match="different roles"):
        joined([found, found])
    with pytest.raises(HeadwiseError, match="unreadable roles"):
        from_record({"names": []})


def test_what_does_not_fit_is_refused():
    with pytest.raises(HeadwiseError, match="no model"):
        atlas({})
    with pytest.raises(HeadwiseError, match="needs of other"):
        atlas({"m": roles((0, 1))}, {"other": {}})
    with pytest.raises(HeadwiseError, match=r"shape \(3, 3\)"):
        atlas({"m": roles((0, 1))}, {"m": {"t": np.zeros((3, 3))}})
