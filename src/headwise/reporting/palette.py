"""The colours of page and figures: safe for colour-blind readers, the same everywhere.

``RAMP`` is that of `headwise.io.display`. Neighbours in ``TASKS`` differ in lightness as well as in hue, so the first
four stay apart for readers who see no red or no green, and in a grey print.
"""

from __future__ import annotations

from collections.abc import Mapping

from headwise.io.display import RAMP

__all__ = ["RAMP", "TASKS", "task_class", "task_colour", "task_rules"]

TASKS = (
    "#1f5fbf",
    "#f0a41f",
    "#6fbf98",
    "#8c2a5c",
    "#d55e00",
    "#56b4e9",
    "#f0e442",
    "#7a6fc4",
    "#9c6b43",
    "#8a8f2a",
)


def task_colour(study: Mapping, name: str, otherwise: str = "#1d2126") -> str:
    """The colour of a task by its position in the study; the list repeats after ten."""
    names = [task["name"] for task in study["tasks"]]
    return TASKS[names.index(name) % len(TASKS)] if name in names else otherwise


def task_class(study: Mapping, name: str) -> str:
    """The style class that gives a task its colour; empty for a name that is no task of the study."""
    colour = task_colour(study, name, "")
    return f"c{TASKS.index(colour)}" if colour else ""


def task_rules() -> str:
    """The task colours as style rules: ``.c3`` sets ``--c``, and ``--on`` for letters on it."""
    return "".join(f".c{i}{{--c:{colour};--on:{_letters_on(colour)}}}\n" for i, colour in enumerate(TASKS))


def _letters_on(colour: str) -> str:
    """Black or white, whichever has the higher contrast (WCAG 2)."""
    red, green, blue = (_linear(int(colour[i : i + 2], 16) / 255) for i in (1, 3, 5))
    return "#ffffff" if 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.179 else "#14161b"


def _linear(value: float) -> float:
    return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
