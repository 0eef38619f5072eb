"""Figures of probes."""

from __future__ import annotations

import numpy as np
import pytest

from headwise.probing import figures
from headwise.probing.roles import scatter
from headwise.probing.utilization import EffectOfN

RNG = np.random.default_rng(0)


MAPS = {
    f"x.{name}": RNG.random((4, 3)) for name in ("tree_depth", "bigram_shift", "past_present", "subj_number", "other")
}


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
