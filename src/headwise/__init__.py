"""Find, measure and use the functional specialization of attention heads in multi-task Transformers."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_PLACES = {  # imported on first use
    "errors": ("HeadwiseError",),
    "heads.gates": ("Heads", "gated", "captured"),
    "heads.selection": ("top", "bottom"),
    "tasks": ("Task",),
    "models.multitask": ("MultiTaskModel",),
    "models.language": ("LanguageModel",),
    "training.plan": ("Plan",),
    "training.loop": ("fit",),
    "measuring.evaluate": ("evaluate",),
    "scoring.importance": ("importance",),
    "atlas.measure": ("roles",),
    "dissociation.lesions": ("dissociate",),
    "probing": ("FewHeads", "probe"),
    "heads.cutting": ("prune",),
    "pruning.export": ("export",),
    "models.loading": ("load",),
    "reporting": ("report",),
}
_HOME = {name: module for module, names in _PLACES.items() for name in names}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("headwise.io.records").code_version()
    if name not in _HOME:
        raise AttributeError(f"module 'headwise' has no attribute {name!r}")
    return getattr(import_module(f"headwise.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
