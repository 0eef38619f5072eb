"""Roles and utilization of attention heads (Jo and Myaeng 2020): probes of all heads, and uses of the best ones."""

from __future__ import annotations

from functools import partial
from typing import Any

from headwise.papers.anatomy import tables
from headwise.papers.anatomy.jobs import HUB, SIZES, Build
from headwise.papers.anatomy.published import ERRATA
from headwise.papers.anatomy.tables import Records, property_of, suite_of
from headwise.papers.message import Claim, Row, in_short, row
from headwise.papers.recipe import Difference, Item, PaperRecipe, Part
from headwise.papers.summary import sentence
from headwise.probing import figures
from headwise.probing.utilization import EffectOfN


def _claims(records: Records) -> Part:
    gaps = tables.control_gaps(records)
    rows = [
        each for model, by_control in gaps.items() for each in _over(model, by_control, "random heads", "mixed layers")
    ]
    best = [
        each
        for model, by_control in gaps.items()
        for each in _over(model, by_control, "best layer", "best layer, mean")
    ]
    axis = "lead of the chosen heads in points, mean over tasks (standardized, converged probes)"
    chosen = f"Heads chosen for a property, as many as a layer has: better than {_sure(rows)}."
    less = f"The same heads against the best layer: better than {_sure(best)}."
    return in_short([Claim(chosen, axis, rows), Claim(less, axis, best)])


def _sure(rows: list[Row]) -> str:
    """What the chosen heads beat by the whole interval, and in how many models."""
    leads = {
        name: [row for row in rows if row.what.endswith(f"over {name}")] for name in dict.fromkeys(map(_other, rows))
    }
    counts = {name: sum(row.low is not None and row.low > 0 for row in each) for name, each in leads.items()}
    return ", ".join(f"{name} in {counts[name]} of {len(each)} models" for name, each in leads.items())


def _other(row: Row) -> str:
    return row.what.partition(": over ")[2]


def _over(model: str, gaps: dict[str, list[float]], *names: str) -> list[Row]:
    kinds = ("measured", "control")
    return [e for name, kind in zip(names, kinds) for e in row(f"{model}: over {name}", kind, gaps[name], "tasks")]


def _inventory(records: Records) -> Part:
    entries = [tables.model_table(records), tables.task_table(records)]
    text = "Models and probing tasks. Published numbers are shown beside ours throughout."
    return Part("Models and tasks", text, [each for each in entries if each])


def _probes(records: Records) -> Part:
    entries = [tables.probing_table(records, *bench, way) for bench in records.benches() for way in (False, True)]
    entries = [each for each in (*entries, tables.selection_table(records)) if each]
    text = (
        "Linear probes on the last layer, on the best layer and on the best heads, as many as a layer has. "
        f"{sentence(ERRATA['section 3.3'])}; here they are chosen on development data, and the effect of the other "
        f"choice is shown. {sentence(ERRATA['appendix A.2'])}. The published rule stops a probe when development "
        "accuracy no longer rises; converged probes reach the optimum of their regularized loss, with a strength "
        "chosen on development data."
    )
    return Part("Heads against layers", text, entries)


def _controls(records: Records) -> Part:
    benches = dict.fromkeys((model, suite_of(task)) for model, task in records.controlled)
    entries = [tables.controls_table(records, *bench) for bench in benches]
    text = (
        "The same comparison, independent of scale: standardized features and converged probes. Controls for the best "
        "heads: as many random heads, as many random values of all layers, and the mean over all tokens in place of "
        "one."
    )
    return Part("Heads against controls", text, [each for each in entries if each])


def _maps(records: Records) -> Part:
    drawn = {}
    for model, suite in records.benches():
        maps = {property_of(task): scores for task, scores in records.maps(model, suite).items()}
        drawn[f"heads {model} {suite}"] = partial(figures.heat_maps, maps, ordered=None)
    for suite in dict.fromkeys(suite for _, suite in records.benches()):
        points = {model: scatter for (model, other), scatter in tables.scatters(records).items() if other == suite}
        if points:
            drawn[f"syntactic and semantic {suite}"] = partial(figures.scatters, points)
    entries = [tables.roles_table(records), tables.depth_table(records)]
    text = (
        "Probing accuracy of every head, first layer at the bottom: heads sorted within their layer as in Figures 3 "
        "and 6, and unsorted as in Figure 7; syntactic against semantic accuracy as in Figure 5."
    )
    return Part("What each head encodes", text, [each for each in entries if each], drawn)


def _effect(records: Records) -> Part:
    entries = [tables.effect_table(records, *bench) for bench in records.benches()]
    by_suite: dict[str, dict[str, list[EffectOfN]]] = {}
    for model, suite in records.benches():
        by_suite.setdefault(suite, {})[model] = records.effects(model, suite)
    drawn = {f"effect of n {suite}": partial(figures.curves, effects) for suite, effects in by_suite.items()}
    text = "From one head to all of them: how many heads to concatenate."
    return Part("How many heads", text, entries, drawn)


AFTER = {"before": "before", "after": "fine-tuned", "after_top": "with top heads"}


def _tuning(records: Records) -> Part:
    entries = [tables.tuning_table(records), tables.change_table(records), tables.along_table(records)]
    drawn, columns = {}, dict[str, int]()
    for model in dict.fromkeys(model for model, _ in records.along):
        points = {task: tables.along_maps(record) for (other, task), record in records.along.items() if other == model}
        maps = {f"{task}, {fraction:.0%}": scores for task, each in points.items() for fraction, scores in each}
        width = max(map(len, points.values()))
        drawn[f"along a training {model}"] = partial(figures.heat_maps, maps, ordered=True, shared="row", columns=width)
    tuned: dict[str, dict[str, Any]] = {}
    for (model, task), each in records.tunings().items():
        arrays = each[0].arrays
        known = {end: name for end, name in AFTER.items() if f"test_{end}" in arrays}
        tuned.setdefault(model, {}).update({f"{task}, {n}": arrays[f"test_{e}"] for e, n in known.items()})
        columns[model] = min(len(known), columns.get(model, len(known)))
    for model, maps in tuned.items():
        how = {"ordered": True, "shared": "row", "columns": columns[model]}
        drawn[f"before and after {model}"] = partial(figures.heat_maps, maps, **how)
    text = (
        "Encoder and classifier fine-tuned on the last layer, the best layer and the top heads (Table 4), and every "
        "head probed before and after (Figure 4, first seed, one colour range per task). "
        f"{sentence(ERRATA['table 4'])}."
    )
    return Part("Fine-tuning", text, [each for each in entries if each], drawn)


def _printed(records: Records) -> Part:
    text = "The relative gains printed in the paper, recomputed from the accuracies printed beside them. "
    text += f"{sentence(ERRATA['table 5, gpt2, OddManOut'])}. {sentence(ERRATA['section 4.1'])}."
    return Part("The printed numbers", text, [tables.recomputed_table()])


ITEMS = (
    Item("table-1", "the encoders", ("inventory",), ("Table 1",)),
    Item("table-2", "the probing tasks", ("inventory",), ("Table 2",)),
    Item("figure-3", "every head's accuracy, sorted in its layer", ("probes",), ("heads ",)),
    Item("table-3", "last layer, best layer and top heads", ("probes", "converged"), ("Tables 3 and 5",)),
    Item("controls", "top heads beside random ones, values and means", ("controlled",), ("Controls: ",)),
    Item("table-4", "fine-tuning on them", ("tunings",), ("Table 4",)),
    Item(
        "figure-4", "heads before and after fine-tuning", ("tunings",), ("before and after", "Heads before and after")
    ),
    Item("figure-5", "syntactic against semantic accuracy", ("probes",), ("syntactic and semantic", "Roles of heads")),
    Item("figure-6", "every head's accuracy, sorted, all encoders", ("probes",), ("heads ",)),
    Item("figure-7", "every head's accuracy in its own order", ("probes",), ("heads ",)),
    Item("table-5", "last layer, best layer and top heads, all encoders", ("probes", "converged"), ("Tables 3 and 5",)),
    Item("along", "heads during training (beyond the paper)", ("along",), ("Heads along", "along a training")),
    Item("table-5-gains", "the printed gains, recomputed", titles=("The printed Table 5",)),
    Item("appendix-a.4", "the effect of the number of heads", ("probes",), ("Effect of n", "effect of n")),
)
PUBLISHED = {"seeds": (0, 1, 2, 3, 4), "max_examples": None, "limit": None, "epochs": 3, "split": "dev"}
DIFFERENCES = (
    Difference("choice of heads", "on test rows (release)", "on development rows; both are shown", "table-3"),
    Difference("probe", "learning rate 0.01, four L2 strengths, no folds (release)", "the same", "table-3"),
    Difference("converged probes", "none", "converged probes as well", "table-3"),
    Difference("controls", "none", "standardized probes beside random heads, mixed layers, mean pooling"),
    Difference("input of GPT's probes", "one position after the last token (release)", "the same for GPT and GPT-2"),
    Difference("fine-tuning", "classifier not trained (release)", "trained with the encoder", "table-4"),
    Difference("Figure 4", "BERT base, three tasks", "every model, first seed", "figure-4"),
)

recipe = PaperRecipe(
    name="anatomy",
    title="Roles and utilization of attention heads",
    paper="Jo and Myaeng 2020, Roles and Utilization of Attention Heads in Transformer-based Neural Language Models",
    hub=HUB,
    sizes=SIZES,
    build=Build,
    read=Records,
    sections=(_claims, _inventory, _probes, _controls, _maps, _effect, _tuning, _printed),
    items=ITEMS,
    differences=DIFFERENCES,
    published=PUBLISHED,
)
