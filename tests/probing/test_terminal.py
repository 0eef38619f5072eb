"""Maps of heads as text."""

from __future__ import annotations

import numpy as np

from headwise.probing.terminal import heat_map


def test_a_terminal_map_has_the_first_layer_at_the_bottom():
    lines = heat_map([[0.5, np.nan], [0.9, 0.7]]).splitlines()
    assert lines[0].startswith("layer 1") and "█" in lines[0] and lines[1].split()[2] == "▁·"
