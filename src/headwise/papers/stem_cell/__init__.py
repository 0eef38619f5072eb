"""The stem cell hypothesis (He and Choi 2021): five structured tasks, learned head gates, probes without parameters."""

from __future__ import annotations

from functools import partial

from headwise.experiments.jobs import Job
from headwise.io.records import Results
from headwise.papers.recipe import Part, Scale
from headwise.papers.stem_cell import figures, tables
from headwise.papers.stem_cell import jobs as build
from headwise.papers.stem_cell.published import ERRATA, STAGES, TASKS
from headwise.papers.stem_cell.records import ALL, Records, alike
from headwise.papers.summary import sentence


class StemCell:
    """Do tasks claim the same heads, and does joint training make them generalists?"""

    name = "stem_cell"
    title = "The stem cell hypothesis"
    paper = "He and Choi 2021, The Stem Cell Hypothesis: Dilemma behind Multi-Task Learning with Transformer Encoders"

    def jobs(self, scale: Scale) -> list[Job]:
        """Everything to run."""
        return build.jobs(scale)

    def parts(self, results: Results) -> list[Part]:
        """Every section that the records there can fill."""
        records = Records(results)
        made = [make(records) for make in (_scores, _kept, _claims, _static, _training)]
        return [part for part in made if part.tables]


def _scores(records: Records) -> Part:
    found = [tables.score_table(records, model, *way) for model in records.models() for way in tables.WAYS]
    text = "POS, NER, DEP, CON and SRL, each trained alone, beside every other one, and with all. The paper found that "
    text += "joint training loses on every task; its table of scores is not to be had, so nothing stands beside ours. "
    text += "The last row of each table is that comparison."
    return Part("Scores", text, [each for each in found if each])


def _kept(records: Records) -> Part:
    found = [tables.kept_table(records, model) for model in records.models()]
    drawn = {}
    for model in records.models():
        for tasks in (*TASKS[:1], ALL):
            if kept := records.snapshots(model, tasks):
                name = "all five" if tasks == ALL else tasks.upper()
                drawn[f"gates on the way {name} {model}"] = partial(figures.closing, *kept)
    text = "Hard-concrete gates learn which heads a task needs: with the encoder trained beside them (dynamic), with "
    text += "the encoder at rest (static), and, as a control, on an encoder with random weights. "
    text += f"{sentence(ERRATA['gates'])}; ours start open at the sizes smoke and small."
    return Part("Heads kept", text, [each for each in found if each], drawn)


def _claims(records: Records) -> Part:
    found = [tables.stem_table(records), *(tables.correlation_table(records, model) for model in records.models())]
    drawn = {}
    for model in records.models():
        claims, every = records.claims(model), tables.with_joint(records, model)
        if claims is not None and every is not None:
            drawn[f"claims {model}"] = partial(figures.claimed, claims, every)
            if len(every.gates) == 3:
                drawn[f"overlap of runs {model}"] = partial(figures.overlaps, every)
    text = "Stem cells are heads claimed by most tasks. Tasks that like the same layers share heads by chance, so "
    text += "claims are dealt anew within layers as well as over all heads. Of the published figure, "
    text += f"{ERRATA['15 models average']}; ours has all of them."
    return Part("Which tasks claim which heads", text, [each for each in found if each], drawn)


def _static(records: Records) -> Part:
    made, drawn = [], {}
    for model in records.models():
        made.append(tables.way_table(records, model))
        static = records.profiles(model, "train").get(STAGES[0])
        if static:
            drawn[f"labels by layer {model}"] = partial(figures.layers, next(iter(alike(static).values())))
    text = "Each head's accuracy for every label without training anything: the nearest centroid of head outputs for "
    text += "POS, NER and CON, the arg-max of attention in either direction for DEP and SRL. "
    text += f"In the released code {ERRATA['probes']}; ours takes them from training data, and both are shown."
    return Part("What heads encode", text, [each for each in made if each], drawn)


def _training(records: Records) -> Part:
    made, drawn = [], {}
    for model in records.models():
        made.append(tables.change_table(records, model))
        made += [tables.label_table(records, model, task) for task in TASKS]
        profiles = records.profiles(model, "train")
        if STAGES[1] in profiles and len(profiles) > 1:
            drawn[f"change against single {model}"] = partial(figures.against_single, profiles)
    text = "The hypothesis: single-task training turns pretrained heads into specialists, joint training does not. It "
    text += "holds where selectivity rises from pretrained to single and falls from single to all five. The random "
    text += "encoder says how much of a score its shape alone gives."
    return Part("What training changes", text, [each for each in made if each], drawn)


recipe = StemCell()
