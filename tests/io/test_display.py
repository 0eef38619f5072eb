"""What a notebook shows: every number reachable, every text escaped."""

from __future__ import annotations

import re
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwise.atlas.result import Roles
from headwise.dissociation.lesions import LesionCurve
from headwise.dissociation.result import Dissociation
from headwise.dissociation.similarity import Similarity
from headwise.errors import HeadwiseError
from headwise.io.display import RAMP, heat_map, table
from headwise.io.records import Results
from headwise.measuring.evaluate import evaluate
from headwise.pruning.iterative import Rounds
from headwise.scoring.importance import importance
from headwise.testing import toy_model
from headwise.training.loop import fit
from headwise.training.plan import Plan


@pytest.fixture(autouse=True)
def closed():
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


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
    found = {"importance": scores, "score": evaluate(model, "toy0"), "history": history, "dissociation": closed}
    return found | {"predictions": model.predict("toy0", ["w1"] * 30), **others()}


def others() -> dict:
    """Results made of numbers."""
    random = np.array([[0.8, 0.7], [0.6, 0.5]])
    curve = LesionCurve("a", "accuracy", (0.1, 0.5), 0.9, np.array([0.6, 0.3]), random, 50)
    alike = Similarity("dse", ("a", "b"), np.array([[np.nan, 0.25], [0.25, np.nan]]))
    rounds = Rounds("gradient", "least", ((0, 0),), np.zeros((1, 2)), (0.0, 0.5), {"a": [0.9, 0.8]}, {"a": [0.9, 0.6]})
    ones = np.full((1, 1, 2), 0.5)
    roles = Roles(("previous",), ("",), np.array([30]), ones, ones / 9, ones / 9, ones / 50, np.array([0.1]), ones / 9)
    return {"curve": curve, "similarity": alike, "rounds": rounds, "roles": roles}


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


def test_results_made_of_curves_and_matrices_are_plotted():
    pyplot, found = pytest.importorskip("matplotlib.pyplot"), others()
    own, random = found["curve"].plot().lines
    assert own.get_ydata().tolist() == [0.9, 0.6, 0.3] and random.get_ydata().tolist() == [0.9, 0.75, 0.55]
    assert [text.get_text() for text in found["similarity"].plot().texts] == ["", "0.25", "0.25", ""]
    assert found["rounds"].plot().lines[0].get_ydata().tolist() == [0.9, 0.8]
    assert found["roles"].plot("previous").get_title() == "previous"
    with pytest.raises(HeadwiseError, match="unknown role"):
        found["roles"].plot("next")
    score = evaluate(toy_model(1), "toy0")
    assert score.plot().lines[0].get_ydata().tolist() == [score.value]
    assert len(pyplot.get_fignums()) >= 5, "figures that a notebook shows"


def test_frames_and_tables_are_the_records():
    pandas = pytest.importorskip("pandas")
    for name, result in results().items():
        frame = result.to_frame()
        assert isinstance(frame, pandas.DataFrame) and len(frame) == len(result.to_records())
        assert "<table" in result._repr_html_(), name
    assert "10 more" in results()["predictions"]._repr_html_()


def test_without_pandas_a_frame_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(HeadwiseError, match=r"a DataFrame needs the package 'pandas'.*plots.*to_records"):
        Dissociation.of(["a", "b"], [[0.8, 0.4, 0.7], [0.9, 0.8, 0.5]]).to_frame()
