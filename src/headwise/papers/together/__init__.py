"""Which tasks help each other, foretold from one backward pass over an untrained encoder: our own experiment."""

from __future__ import annotations

from functools import partial

from headwise.papers.recipe import Item, PaperRecipe, Part
from headwise.papers.specialization.settings import HUB
from headwise.papers.together import tables
from headwise.papers.together.jobs import SIZES, Build
from headwise.papers.together.tables import Records


def _foretold(records: Records) -> Part:
    text = (
        "Before anything is trained but output heads, briefly: how alike two tasks' heads are (shared top heads, rank "
    )
    text += (
        "correlation of importance, signed gradients of gates, gradients in each head's own weights), and baselines "
    )
    text += "that know no heads (gradient of the whole encoder, texts, number of rows, number of classes). After that, "
    text += "every two tasks are trained together and each alone, with equally many updates of its own."
    found = [tables.held_out_table(records), tables.signals_table(records)]
    figures = {"measured and foretold gains": partial(tables.drawn, records)} if records.models else {}
    return Part("Can gains be foretold?", text, [each for each in found if each], figures)


def _gains(records: Records) -> Part:
    text = "What each task gains or loses beside each other one."
    return Part("What tasks gain from each other", text, [tables.gains_table(records, m) for m in records.models])


recipe = PaperRecipe(
    name="together",
    title="Which tasks help each other",
    paper="An experiment of headwise; no paper has it.",
    hub=HUB,
    sizes=SIZES,
    build=Build,
    read=Records,
    sections=(_foretold, _gains),
    items=(
        Item("foretold", "gains foretold from head maps", titles=("Foretold gains", "Single signals", "measured and")),
        Item("gains", "gains of every two tasks", ("signals", "alone", "pairs"), ("What tasks gain",)),
    ),
)
