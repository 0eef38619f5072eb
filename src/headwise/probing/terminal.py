"""Heat maps as plain text: rows are layers, the first at the bottom (no torch)."""

from __future__ import annotations

from typing import Any

import numpy as np

STEPS = "▁▂▃▄▅▆▇█"
ABSENT = "·"


def heat_map(scores: Any, layers: Any = None) -> str:
    """Scores ``(L, H)`` as blocks from lowest to highest, with each layer's best head and the layer's own score.

    Example:
        >>> print(heat_map([[0.5, 0.6], [0.9, 0.7]]))
        layer 1  █▄  0.900
        layer 0  ▁▂  0.600
                 0.500 ▁ to █ 0.900; the best head of each layer at its right
    """
    scores = np.asarray(scores, float)
    known = scores[~np.isnan(scores)]
    if not known.size:
        return "(no heads)"
    low, high = float(known.min()), float(known.max())
    place = np.nan_to_num((scores - low) / ((high - low) or 1.0) * (len(STEPS) - 1)).round().astype(int)
    lines = []
    for layer in reversed(range(len(scores))):
        blocks = "".join(ABSENT if np.isnan(s) else STEPS[p] for s, p in zip(scores[layer], place[layer]))
        best = f"{np.nanmax(scores[layer]):.3f}" if not np.isnan(scores[layer]).all() else "–"
        whole = "" if layers is None else f"  (layer itself {float(layers[layer]):.3f})"
        lines.append(f"layer {layer:<2} {blocks}  {best}{whole}")
    legend = f"         {low:.3f} {STEPS[0]} to {STEPS[-1]} {high:.3f}; the best head of each layer at its right"
    return "\n".join([*lines, legend])
