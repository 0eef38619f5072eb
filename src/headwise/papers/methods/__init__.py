"""Methods of training against tuned baselines, column by column: our own experiment."""

from __future__ import annotations

from functools import partial

from headwise.papers.methods import tables
from headwise.papers.methods.jobs import SIZES, Build
from headwise.papers.methods.records import Records
from headwise.papers.recipe import Item, PaperRecipe, Part
from headwise.papers.specialization.settings import HUB


def _confirmed(records: Records) -> Part:
    text = "Learning rate, clipping and pooling were chosen for every method with the same number of candidates, on "
    text += (
        "held-out training rows. The comparisons are on other seeds. GLUE's mean hides what happens in its columns, "
    )
    text += "so each column is tested by itself."
    found = [tables.method_table(records, model, split) for model in records.models for split in ("dev", "test")]
    return Part("Methods against tuned plain training", text, [each for each in found if each])


def _untouched(records: Records) -> Part:
    text = "Whether training improves on the encoder as it is."
    found = tables.untouched_table(records)
    figures = {"trained and untouched similarity": partial(tables.drawn, records)} if found else {}
    return Part("Trained against untouched", text, [found] if found else [], figures)


def _chosen(records: Records) -> Part:
    found = tables.chosen_table(records)
    return Part("What was chosen", "Settings of every method.", [found] if found else [])


recipe = PaperRecipe(
    name="methods",
    title="Methods of training against tuned baselines",
    paper="An experiment of headwise; no paper has it.",
    hub=HUB,
    sizes=SIZES,
    build=Build,
    read=Records,
    sections=(_confirmed, _untouched, _chosen),
    items=(
        Item("together", "methods of training all tasks in one model", ("together",), ("Tuned methods", "Tuned sett")),
        Item("rivals", "updates of heads, combined gradients, MT-DNN", ("rivals",), ("Tuned methods", "Tuned sett")),
        Item("merged", "single-task models merged into one", ("merged",), ("Tuned methods",)),
        Item("alone", "every task in a model of its own", ("alone",), ("Tuned methods",)),
        Item("untouched", "cosines of the untouched encoder", ("untrained",), ("Similarity",)),
    ),
    contrast=Records.contrast,
)
