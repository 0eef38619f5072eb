"""Which tasks help each other, predicted from one backward pass over an untrained encoder: our own experiment."""

from __future__ import annotations

from functools import partial

from headwise.papers.message import Claim, Row, in_short
from headwise.papers.recipe import Item, PaperRecipe, Part
from headwise.papers.specialization.settings import HUB
from headwise.papers.together import tables
from headwise.papers.together.jobs import SIZES, Build
from headwise.papers.together.tables import Records


def _in_short(records: Records) -> Part:
    shown = tables.held_out_table(records)
    rows = []
    for held, signals, value, low, high, *_ in shown["rows"] if shown else []:
        kind = "baseline" if signals == "baselines" else "measured"
        rows.append(Row(f"{signals}, {held}", kind, value, low, high, f"{len(records.models)} models"))
    above = [each.what for each in rows if each.low is not None and each.low > 0]
    says = "Whether two tasks help each other, predicted from an untrained encoder for unseen models or tasks: "
    says += f"above chance by {', '.join(above)}." if above else "no set of signals is above chance."
    return in_short([Claim(says, "correlation of predicted and measured gains (intervals over tasks)", rows)])


def _predicted(records: Records) -> Part:
    text = (
        "Signals come from before training, with only output heads trained briefly: how similar two tasks' heads are "
        "(shared top heads, rank correlation of importance, signed gradients of gates, gradients in each head's own "
        "weights), and baselines without heads (gradient of the whole encoder, texts, number of rows, number of "
        "classes). Then every two tasks are trained together and each alone, with the same number of updates per task."
    )
    shown = [tables.held_out_table(records), tables.signals_table(records)]
    figures = {"measured and predicted gains": partial(tables.drawn, records)} if records.models else {}
    return Part("Can gains be predicted?", text, [each for each in shown if each], figures)


def _gains(records: Records) -> Part:
    text = "What each task gains or loses when trained with each other task."
    return Part("What tasks gain from each other", text, [tables.gains_table(records, m) for m in records.models])


recipe = PaperRecipe(
    name="together",
    title="Which tasks help each other",
    paper="An experiment of headwise, not from a paper.",
    hub=HUB,
    sizes=SIZES,
    build=Build,
    read=Records,
    sections=(_in_short, _predicted, _gains),
    items=(
        Item(
            "predicted", "gains predicted from head maps", titles=("Predicted gains", "Single signals", "measured and")
        ),
        Item("gains", "gains of every two tasks", ("signals", "alone", "pairs"), ("What tasks gain",)),
    ),
)
