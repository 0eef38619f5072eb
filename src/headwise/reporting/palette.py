"""The colours of page and figures: safe for colour-blind readers, the same everywhere.

``RAMP`` is that of `headwise.io.display`. ``TASKS`` starts with the seven hues of Okabe and Ito (their black is left to
the text, grey to shared heads); three more follow for larger studies.
"""

from __future__ import annotations

from collections.abc import Mapping

from headwise.io.display import RAMP

__all__ = ["RAMP", "TASKS", "task_class", "task_colour", "task_rules"]

TASKS = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#cc79a7",
    "#d55e00",
    "#56b4e9",
    "#f0e442",
    "#7a6fc4",
    "#9c6b43",
    "#93c9a8",
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
    """The task colours as style rules: ``.c3`` sets ``--c`` for what stands inside."""
    return "".join(f".c{i}{{--c:{colour}}}\n" for i, colour in enumerate(TASKS))
