"""What a notebook shows: every number reachable, every text escaped."""

from __future__ import annotations

import re
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwise.dissociation.result import Dissociation
from headwise.errors import HeadwiseError
from headwise.io.display import RAMP, heat_map, table
from headwise.io.records import Results
from headwise.measuring.evaluate import evaluate
from headwise.scoring.importance import importance
from headwise.testing import toy_model
from headwise.training.loop import fit
from headwise.training.plan import Plan


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


# -- records, DataFrames and plots


def results() -> dict:
    model = toy_model(2, rows=24).eval()
    history = fit(toy_model(2, rows=24), Plan(steps=4, batch_size=8, evaluate_every=2))
    closed = Dissociation.of(["a", "b"], [[0.8, 0.4, 0.7], [0.9, 0.8, 0.5]])
    scores = importance(model, "toy0", examples=16)
    return {"importance": scores, "score": evaluate(model, "toy0"), "history": history, "dissociation": closed}


def test_every_result_has_flat_records_that_say_what_was_measured():
    found = {name: result.to_records() for name, result in results().items()}
    for records in found.values():
        assert records and all(record.keys() == records[0].keys() for record in records)
        assert not any(isinstance(value, list | dict) for record in records for value in record.values())
    assert found["importance"][5].keys() >= {"task", "layer", "head", "score", "stderr", "signed"}
    assert (found["importance"][5]["layer"], found["importance"][5]["head"]) == (1, 1)
    assert len(found["score"]) == 12
    assert {record["what"] for record in found["history"]} == {"loss", "score"}
    cells = {(r["task"], r["lesion"]): r["performance"] for r in found["dissociation"]}
    assert cells["a", "none"] == 0.8 and cells["a", "a"] == 0.4 and cells["b", "b"] == 0.5


def test_plots_return_axes_with_every_number():
    pytest.importorskip("matplotlib")
    found = results()
    shown = found["importance"].plot()
    assert shown.get_title() == "toy0" and len(shown.collections[0].get_array().ravel()) == 8
    assert shown.figure.get_axes()[1].get_ylabel() == "importance (gradient)"
    again = found["importance"].plot(shown.figure.add_axes((0, 0, 0.1, 0.1)))
    assert again is not shown and again.figure is shown.figure
    assert {line.get_label() for line in found["history"].plot().lines} == {"toy0", "toy1"}
    texts = [text.get_text() for text in found["dissociation"].plot().texts]
    assert texts == ["-40.0", "-10.0", "-10.0", "-40.0"]


def test_frames_are_the_records():
    pandas = pytest.importorskip("pandas")
    for result in results().values():
        frame = result.to_frame()
        assert isinstance(frame, pandas.DataFrame) and len(frame) == len(result.to_records())


def test_without_pandas_a_frame_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(HeadwiseError, match=r"a DataFrame needs the package 'pandas'.*plots.*to_records"):
        Dissociation.of(["a", "b"], [[0.8, 0.4, 0.7], [0.9, 0.8, 0.5]]).to_frame()
