"""Probe all heads of a model at once, and use the best ones.

Example:
    >>> from headwise.probing import probe
    >>> print(probe(model, "probing_gold.bigram_shift", tokenizer=tokenizer))  # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_PLACES = {  # imported when first asked for
    "measure": ("probe", "Probe"),
    "features": ("Reader", "Features"),
    "transform": ("FewHeads", "HeadFeatures"),
    "utilization": ("utilize", "table", "effect_of_n", "fine_tune"),
    "roles": ("scatter", "change", "profiles", "across"),
    "parameterfree": ("nearest_centroid", "word_centroids", "relations", "unlearnt"),
}
_HOME = {name: module for module, names in _PLACES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
