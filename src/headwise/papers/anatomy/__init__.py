"""Roles and utilization of attention heads (Jo and Myaeng 2020): probes of all heads, and the best put to work."""

from __future__ import annotations

from functools import partial

from headwise.experiments.jobs import Job
from headwise.io.records import Results
from headwise.papers.anatomy import jobs as build
from headwise.papers.anatomy import tables
from headwise.papers.anatomy.published import ERRATA
from headwise.papers.anatomy.records import Records, property_of
from headwise.papers.recipe import Part, Scale
from headwise.papers.summary import sentence
from headwise.probing import figures


class Anatomy:
    """What does each head encode, and do the best heads make better sentence vectors than the layers do?"""

    name = "anatomy"
    title = "Roles and utilization of attention heads"
    paper = "Jo and Myaeng 2020, Roles and Utilization of Attention Heads in Transformer-based Neural Language Models"

    def jobs(self, scale: Scale) -> list[Job]:
        """Everything to run."""
        return build.jobs(scale)

    def parts(self, results: Results) -> list[Part]:
        """Every section that the records there can fill, and the printed Table 5 computed again."""
        records = Records(results)
        made = [make(records) for make in (_inventory, _probes, _maps, _effect, _tuning, _printed)]
        return [part for part in made if part.tables]


def _inventory(records: Records) -> Part:
    found = [tables.model_table(records), tables.task_table(records)]
    text = "What was probed, and for what. Published numbers stand beside ours throughout."
    return Part("Models and tasks", text, [each for each in found if each])


def _probes(records: Records) -> Part:
    found = [tables.probing_table(records, *bench, way) for bench in records.benches() for way in (False, True)]
    found = [each for each in (*found, tables.selection_table(records)) if each]
    text = (
        "A linear probe on the last layer, on the best layer and on as many of the best heads as a layer has, side by "
    )
    text += f"side. {sentence(ERRATA['section 3.3'])}; here development data choose, and what the other choice adds "
    text += f"is shown. {sentence(ERRATA['appendix A.2'])}. The published rule stops a probe when development accuracy "
    text += "no longer rises; converged probes are at the optimum of their regularised loss, its strength chosen on "
    text += "development data."
    return Part("Heads against layers", text, found)


def _maps(records: Records) -> Part:
    drawn = {}
    for model, suite in records.benches():
        maps = {property_of(task): scores for task, scores in records.maps(model, suite).items()}
        drawn[f"heads sorted {model} {suite}"] = partial(figures.heat_maps, maps, ordered=True)
        drawn[f"heads {model} {suite}"] = partial(figures.heat_maps, maps)
    for suite in dict.fromkeys(suite for _, suite in records.benches()):
        points = {model: found for (model, other), found in tables.scatters(records).items() if other == suite}
        if points:
            drawn[f"syntactic and semantic {suite}"] = partial(figures.scatters, points)
    found = [tables.roles_table(records), tables.depth_table(records)]
    text = "The accuracy of a probe on every single head, the first layer at the bottom: heads of a layer sorted as in "
    text += (
        "Figures 3 and 6, and in their own order as in Figure 7; syntactic against semantic accuracy as in Figure 5."
    )
    return Part("What each head encodes", text, [each for each in found if each], drawn)


def _effect(records: Records) -> Part:
    found = [tables.effect_table(records, *bench) for bench in records.benches()]
    drawn = {
        f"effect of n {model} {suite}": partial(figures.curves, records.effects(model, suite))
        for model, suite in records.benches()
    }
    text = "From one head to all of them: how many heads to put side by side."
    return Part("How many heads", text, found, drawn)


def _tuning(records: Records) -> Part:
    found = [tables.tuning_table(records), tables.change_table(records)]
    drawn = {}
    for (model, task), each in records.tunings().items():
        arrays = each[0].arrays
        maps = {"before": arrays["test_before"], "after fine-tuning": arrays["test_after"]}
        drawn[f"before and after {task} {model}"] = partial(figures.heat_maps, maps, ordered=True, shared=True)
    text = (
        "Encoder and classifier trained on the last layer, the best layer and the top heads (Table 4), and every head "
    )
    text += f"probed before and after (Figure 4, first seed, one colour range). {sentence(ERRATA['table 4'])}."
    return Part("Fine-tuning", text, [each for each in found if each], drawn)


def _printed(records: Records) -> Part:
    text = "The relative gains that the paper prints, computed again from the accuracies it prints beside them. "
    text += f"{sentence(ERRATA['table 5, gpt2, OddManOut'])}. {sentence(ERRATA['section 4.1'])}."
    return Part("The printed numbers", text, [tables.recomputed_table()])


recipe = Anatomy()
