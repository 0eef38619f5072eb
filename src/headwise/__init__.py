"""Find, measure and use the functional specialization of attention heads in multi-task Transformers."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
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
    if name == "__version__":
        return import_module("headwise.io.records").code_version()
    if name not in _HOME:
        raise AttributeError(f"module 'headwise' has no attribute {name!r}")
    return getattr(import_module(f"headwise.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])


class _Package(ModuleType):
    """Keeps `headwise.importance` and the like for the verbs: importing the module of that name would take them."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
