"""Maps of scores side by side."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from headwise.errors import HeadwiseError
from headwise.probing import figures
from headwise.probing.roles import across, centre, change, profiles, scatter, shared_range, sorted_map
from headwise.probing.utilization import EffectOfN

RNG = np.random.default_rng(0)
MAPS = {
    f"x.{name}": RNG.random((4, 3)) for name in ("tree_depth", "bigram_shift", "past_present", "subj_number", "other")
}


@given(arrays(float, (3, 4), elements=st.floats(0, 1)))
@settings(max_examples=20, deadline=None)
def test_sorting_keeps_layers_and_their_values(scores):
    found = sorted_map(scores)
    assert (np.diff(found, axis=1) <= 0).all()
    assert np.array_equal(np.sort(found, 1), np.sort(scores, 1))


def test_cut_heads_sort_last():
    assert np.isnan(sorted_map([[np.nan, 0.2, 0.9]])[0]).tolist() == [False, False, True]
    assert shared_range([[[np.nan, 0.2]], [[0.7, 0.1]]]) == (0.1, 0.7)


def test_change_tells_gain_and_kept_pattern():
    before = MAPS["x.other"]
    found = change(before, before + 0.1)
    assert found.mean == pytest.approx(0.1) and found.raised == 1 and found.pattern.r == pytest.approx(1)
    assert found.moved_up == pytest.approx(0)
    assert change(before, -before).pattern.r == pytest.approx(-1)


def test_the_centre_of_scores():
    assert centre([[0, 0], [1, 1], [0, 0]]) == 1
    assert centre([[1, 1], [0, 0]]) == 0 and centre([[1, 1], [1, 1]]) == 0.5


def test_scatter_is_the_mean_over_each_group():
    found = scatter(MAPS)
    assert found.groups == {
        "syntactic": ("x.tree_depth", "x.bigram_shift"),
        "semantic": ("x.past_present", "x.subj_number"),
    }
    np.testing.assert_allclose(found.x, (MAPS["x.tree_depth"] + MAPS["x.bigram_shift"]).ravel() / 2)
    assert found.layer.tolist() == sorted([0, 1, 2, 3] * 3) and len(found.y) == 12
    assert found.fit.r == pytest.approx(np.corrcoef(found.x, found.y)[0, 1])
    with pytest.raises(HeadwiseError, match="no syntactic task"):
        scatter({"x.past_present": MAPS["x.other"]})


def test_planted_kinds_of_heads_are_clustered():
    kinds = np.array([[0, 1, 0], [1, 0, 1]])
    maps = {"a": 0.5 + 0.3 * kinds + 0.01 * RNG.random((2, 3)), "b": 0.8 - 0.3 * kinds + 0.01 * RNG.random((2, 3))}
    found = profiles(maps, kinds=2)
    assert len(set(zip(found.cluster.tolist(), kinds.ravel().tolist()))) == 2
    assert (found.similarity[np.equal.outer(kinds.ravel(), kinds.ravel())] > 0.9).all()
    assert "kind 1" in str(found) and found.to_record()["tasks"] == ["a", "b"]
    with pytest.raises(HeadwiseError, match="kinds"):
        profiles(maps, kinds=99)


def test_models_of_any_shape_are_compared_by_depth():
    rising = {"t": np.repeat(np.linspace(0.5, 0.9, 6)[:, None], 4, 1)}
    taller = {"t": np.repeat(np.linspace(0.5, 0.9, 12)[:, None], 8, 1), "only here": np.ones((12, 8))}
    falling = {"t": rising["t"][::-1]}
    found = across({"small": rising, "tall": taller, "other": falling})
    assert (
        found.tasks == ("t",)
        and found.similarity[0, 1] == pytest.approx(1)
        and found.similarity[0, 2] == pytest.approx(-1)
    )
    assert found.depth[0, 0] == pytest.approx(found.depth[1, 0], abs=0.05) and "small" in str(found)
    with pytest.raises(HeadwiseError, match="without a common task"):
        across({"a": {"x": rising["t"]}, "b": {"y": rising["t"]}})


def test_maps_of_other_shapes_are_refused():
    with pytest.raises(HeadwiseError, match="one shape"):
        profiles({"a": np.ones((2, 2)), "b": np.ones((2, 3))})
    with pytest.raises(HeadwiseError, match="layers, heads"):
        sorted_map(np.ones(3))


# -- figures of probes


def test_figures_share_a_range_where_asked():
    pytest.importorskip("matplotlib")
    maps = {"before": np.zeros((2, 3)) + 0.2, "after": np.ones((2, 3))}
    alone, shared = (figures.heat_maps(maps, shared=s) for s in (False, True))

    def ranges(figure):
        return [axis.collections[0].get_clim() for axis in figure.axes if axis.get_xlabel() == "head"]

    assert len(set(ranges(shared))) == 1 and ranges(shared)[0] == (0.2, 1.0) and len(set(ranges(alone))) == 2
    assert {axis.collections[0].get_cmap().name for axis in shared.axes if axis.get_xlabel()} == {"plasma"}
    assert figures.heat_maps(maps, ordered=True).axes[0].get_xlabel() == "heads, best first"
    assert len(figures.scatters({"m": scatter(MAPS)}).axes) == 2
    both = figures.heat_maps(maps, ordered=None).axes
    assert [axis.get_xlabel() for axis in both if axis.get_xlabel()] == ["heads, best first"] * 2 + ["head"] * 2
    effect = EffectOfN("t", (1, 2), (0.5, 0.6), (0.5, 0.7))
    drawn = figures.curves({"a": [effect], "b": [effect]})
    assert [axis.get_xscale() for axis in drawn.axes] == ["log", "log"] and len(drawn.legends) == 1
