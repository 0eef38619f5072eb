"""Find, measure and use the functional specialization of attention heads in multi-task Transformers."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_PLACES = {  # imported when first asked for
    "errors": ("HeadwiseError",),
    "heads": ("Heads", "gated", "captured"),
    "selection": ("top", "bottom"),
    "tasks": ("Task",),
    "model": ("MultiTaskModel",),
    "plan": ("Plan",),
    "train": ("fit",),
    "evaluate": ("evaluate",),
    "importance": ("importance",),
    "lesions": ("dissociate",),
    "probing": ("probe",),
    "prune": ("prune",),
    "exports": ("export", "load"),
    "report": ("report",),
}
_HOME = {name: module for module, names in _PLACES.items() for name in names}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'headwise' has no attribute {name!r}")
    return getattr(import_module(f"headwise.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
