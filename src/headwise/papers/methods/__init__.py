"""Training methods against tuned baselines, column by column: our own experiment."""

from __future__ import annotations

from functools import partial

from headwise.papers.message import Claim, Row, in_short
from headwise.papers.methods import tables
from headwise.papers.methods.jobs import SIZES, Build
from headwise.papers.methods.records import Records
from headwise.papers.recipe import Item, PaperRecipe, Part
from headwise.papers.specialization.settings import HUB

OURS = ("scales", "updates per head", "PCGrad per head", "merged: Fisher by head")


def _in_short(records: Records) -> Part:
    claims = []
    for model in records.models:
        for split in ("test", "dev"):
            one_axis = [title for title in tables.SETS if title != "Merged models"]  # far below the others
            shown = [tables.method_table(records, model, split, title) for title in one_axis]
            rows = [r for each in shown if each for r in each["rows"] if r[1] == "mean" and r[4] is not None]
            own = [Row(r[0], _kind(r[0]), r[4], r[5], r[6], f"{r[-1]} seeds") for r in rows]
            first = next((r for r in own if r.kind == "measured"), None)
            interval = f" [{first.low:.2f}, {first.high:.2f}]" if first and first.low is not None else ""
            gain = f"{first.what} {first.value:+.2f}{interval} points" if first else "no method of ours"
            tested = ", tasks with labelled test rows" if split == "test" else ""
            says = f"{model} on {split} rows{tested}: {gain} against tuned plain training."
            claims.append(Claim(says, "points of the mean over tasks", own))
    return in_short(claims)


def _kind(method: str) -> str:
    return "measured" if method in OURS else "baseline"


def _confirmed(records: Records) -> Part:
    text = (
        "Learning rate, clipping and pooling were tuned for every method with the same number of candidates, on "
        "held-out training rows. The comparisons use other seeds. GLUE's mean hides differences between its tasks, so "
        "each one is tested separately."
    )
    every = [(model, split, title) for title in tables.SETS for model in records.models for split in ("dev", "test")]
    shown = [tables.method_table(records, *each) for each in every]
    return Part("Methods against tuned plain training", text, [each for each in shown if each])


def _untouched(records: Records) -> Part:
    text = "Does training improve on the pretrained encoder?"
    shown = tables.untouched_table(records)
    figures = {"trained and untouched similarity": partial(tables.drawn, records)} if shown else {}
    return Part("Trained against untouched", text, [shown] if shown else [], figures)


def _chosen(records: Records) -> Part:
    shown = tables.chosen_table(records)
    return Part("What was chosen", "The settings chosen for each method.", [shown] if shown else [])


recipe = PaperRecipe(
    name="methods",
    title="Training methods against tuned baselines",
    paper="An experiment of headwise, not from a paper.",
    hub=HUB,
    sizes=SIZES,
    build=Build,
    read=Records,
    sections=(_in_short, _confirmed, _untouched, _chosen),
    items=(
        Item("together", "training methods for all tasks in one model", ("together",), ("Tuned methods", "Tuned sett")),
        Item("rivals", "updates of heads, combined gradients, MT-DNN", ("rivals",), ("Updates and",)),
        Item("merged", "single-task models merged into one", ("merged",), ("Merged models",)),
        Item("alone", "one model per task", ("alone",), ("Tuned methods",)),
        Item("untouched", "cosines of the untouched encoder", ("untrained",), ("Similarity",)),
    ),
    contrast=Records.contrast,
)
