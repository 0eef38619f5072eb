"""What a notebook shows: every number reachable, every text escaped."""

from __future__ import annotations

import re

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headwise.dissociation.result import Dissociation
from headwise.io.display import RAMP, heat_map, table
from headwise.io.records import Results
from headwise.scoring.importance import importance
from headwise.testing import toy_model


@given(st.lists(st.lists(st.floats(-1e6, 1e6) | st.just(float("nan")), min_size=3, max_size=3), min_size=1, max_size=4))
def test_a_map_has_a_cell_for_every_head_and_the_extremes_at_the_ends(rows):
    shown = heat_map(rows, digits=17)
    cells = re.findall(r"<td[^>]*title='([^']*)'", shown)
    assert len(cells) == 3 * len(rows) and cells.count("cut") == int(np.isnan(rows).sum())
    known = [v for row in rows for v in row if not np.isnan(v)]
    if known and min(known) < max(known):
        colours = {title.split(": ")[1]: c for c, title in re.findall(r"background:(#\w+)' title='([^']*)'", shown)}
        assert colours[f"{max(known):.17g}"] == RAMP[0] and colours[f"{min(known):.17g}"] == RAMP[-1]


def test_the_first_layer_is_at_the_bottom():
    assert re.findall(r"title='(\d)\.0", heat_map([[0.0], [1.0], [2.0]])) == ["2", "1", "0"]


HOSTILE = "<script>alert(1)</script>'\""


def test_texts_are_escaped():
    for shown in (heat_map([[1.0]], HOSTILE, HOSTILE), table([HOSTILE], [[HOSTILE]], HOSTILE, HOSTILE)):
        assert "<script" not in shown and "&lt;script" in shown


def test_results_show_themselves(tmp_path):
    model = toy_model()
    found = importance(model, "toy0", examples=16)
    assert found._repr_html_().count("<td") == found.scores.numel()
    apart = Dissociation.of(["a<b", "c"], [[1.0, 0.5, 0.9], [1.0, 0.8, 0.4]])
    assert "a&lt;b closed" in apart._repr_html_() and "90.000" in apart._repr_html_()
    results = Results(tmp_path)
    key = results.save("importance", {"task": HOSTILE}, {})
    assert key in results._repr_html_() and "<script" not in results._repr_html_()
