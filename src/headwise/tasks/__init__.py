"""Tasks, the sources of their rows, and the catalog of known tasks.

Example:
    >>> from headwise import tasks
    >>> tasks.get("corpus.acceptability").rows("dev")[0]["label"]  # doctest: +SKIP
    'acceptable'
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_PLACES = {  # imported when first asked for: torch comes only with the kinds
    "task": ("Task", "Kind", "Source", "Rows", "SPLITS"),
    "predictions": ("Predictions", "Predicts"),
    "kinds.classify": ("Classify", "Regress"),
    "kinds.tag": ("Tag", "Spans"),
    "kinds.tree": ("Dependencies", "Constituents"),
    "kinds.frames": ("Frames",),
    "kinds.answer": ("Answer",),
    "kinds.image": ("Picture",),
    "kinds.sound": ("Sound", "Transcript"),
    "kinds.choice": ("Choice",),
    "kinds.generation": ("Continuation", "Generation"),
    "kinds.reading": ("Reading",),
    "prompts.prompted": ("prompted",),
    "prompts.known": ("Template",),
    "corpus": ("Corpus",),
    "readers.sources": ("Files", "Hub", "Layout"),
    "lookup": ("get", "names", "describe", "statistics"),
    "own_files": ("own",),
    "leakage": ("split_by_item",),
    "builders": ("ag_pair", "ag_pair_task"),
}
_HOME = {name: module for module, names in _PLACES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
