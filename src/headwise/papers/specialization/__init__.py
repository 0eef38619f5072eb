"""Functional specialization of attention heads under multi-task learning (Li et al. 2023): jobs, tables, figures."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from headwise.papers.recipe import PaperRecipe, Part
from headwise.papers.specialization import estimating, figures, news, ours, raised, sweeps, training
from headwise.papers.specialization import tables as apart
from headwise.papers.specialization.headsets import head_set_table
from headwise.papers.specialization.items import DIFFERENCES, ITEMS, PUBLISHED
from headwise.papers.specialization.jobs import Build
from headwise.papers.specialization.records import Records
from headwise.papers.specialization.settings import HUB, SIZES
from headwise.papers.specialization.similarity import similarity_table

WORDS = {
    "Tasks and models": """What was trained on, and what was trained. Published numbers stand beside ours
        throughout; they are of the paper's own models, trained on its full data.""",
    "All encoders": """Do tasks come apart in every model? All tasks trained together, each task's top 30 % of heads
        closed; the sections below have the details.""",
    "Two tasks": """Every two tasks trained together, each task's top 30 % of heads closed in turn (Figure 2, Table 9).
        A double dissociation has D_A and D_B above zero; it is distinct from 10 % on. A lesion that drives all
        predictions into one class makes F1 jump or vanish: compare D on accuracy, and D above chance.""",
    "All tasks": """All tasks trained together: the performance of each under each lesion, D of each task (Eq. 7), how
        many heads tasks share and in which layers (Tables 3, 10 and 11, Figure 4). The frozen encoder is the control:
        its heads were never trained for these tasks.""",
    "AG and AG-Pair": """Is it the task or the form of its input? The same news as single texts and as pairs (Table 4):
        if the form decided, D against a task of pairs would fall where the news come in pairs.""",
    "Similarity of tasks": """Do tasks that are alike share heads? Similarity by the vectors of single-task models
        (DSE, CRA), by transfer between them (AHP), by shared top heads and by ranks, against D of each pair
        (Figures 3 and 5 to 7), on accuracy as F1 jumps when a lesion shifts answers.""",
    "Training important heads": """GLUE's tasks trained together: plainly, with important-head training (IAT) and its
        variants, and by the baselines (Tables 5, 7, 12 and 13, Figures 8 to 10). Scores are on development sets; files
        for the server, which alone has the test labels, come from headwise.papers.specialization.glue. A method is
        set against plain training seed by seed.""",
    "Few-shot transfer": """A new task learned from a handful of rows, starting from models trained on GLUE in different
        ways (Tables 6 and 8): 20 epochs, paired seeds.""",
    "Estimators of importance": """Which estimator should be the default? All of them on the same models, and pruning
        with importance estimated anew after every cut.""",
}


def _part(title: str, tables: Sequence[dict[str, Any] | None], drawn: dict[str, Any] | None = None) -> Part:
    return Part(title, " ".join(WORDS[title].split()), [table for table in tables if table], drawn or {})


def _inventory(records: Records) -> Part:
    return _part("Tasks and models", [*training.inventory_tables(records), apart.fell_table(records)])


def _encoders(records: Records) -> Part:
    every = apart.encoders(records)
    table = apart.encoders_table(every)
    return _part("All encoders", [table], {"all encoders": partial(figures.encoders, every)} if table else {})


def _pairs(records: Records) -> Part:
    models = records.models()
    trained = {model: apart.pair_table(records, model, frozen=False) for model in models}
    frozen = [apart.pair_table(records, model, frozen=True) for model in models]
    rows = {m: [(f"{r[0]}–{r[1]}", r[4]) for r in one["rows"][:-1]] for m, one in trained.items() if one}
    tables = [*trained.values(), *frozen, apart.rise_table(records), apart.paradigm_table(records)]
    return _part("Two tasks", tables, {"pairs": partial(figures.bars, rows)} if rows else {})


def _five(records: Records) -> Part:
    tables, drawn = [], {}
    for model in records.models():
        tables += [apart.five_table(records, model), apart.five_table(records, model, frozen=True)]
        tables += [make(records, model) for make in (apart.mutual_table, apart.share_table)]
        tables += [make(records, model) for make in (apart.overlap_table, apart.layer_table)]
        if found := records.five(model):
            drawn[f"layers {model}"] = partial(figures.layers, found)
            drawn[f"shares {model}"] = partial(figures.shares, found)
    return _part("All tasks", [*tables, head_set_table(records), estimating.permutation_table(records)], drawn)


def _paired_news(records: Records) -> Part:
    tables = [make(records, model) for model in records.models() for make in (news.ag_pair_table, news.news_test)]
    return _part("AG and AG-Pair", tables)


def _similarity(records: Records) -> Part:
    models = [model for model in records.models() if records.five(model)]
    drawn = {f"similarity {model}": partial(figures.scatter, records, model) for model in models}
    return _part("Similarity of tasks", [similarity_table(records, model) for model in models], drawn)


def _glue(records: Records) -> Part:
    tables, drawn = [], {}
    for model in records.models():
        tables += [training.glue_table(records, model, sampling) for sampling in ("annealed", "proportional")]
        tables += [training.ablation_table(records, model), training.condition_table(records, model)]
        tables += [*ours.own_tables(records, model), ours.direct_table(records, model)]
        tables += [training.released_table(records, model), training.unsaid_table(records, model)]
        tables += [*sweeps.sweep_tables(records, model), sweeps.grid_table(records, model)]
        tables.append(raised.glue_d_table(records, model))
        base, swept = sweeps.sweep_points(records, model)
        if d := raised.on_glue(records, model):
            drawn[f"D on GLUE {model}"] = partial(figures.raised, d)
        if found := training.method_gaps(records, model):
            drawn[f"methods {model}"] = partial(figures.gains, found)
        if swept:
            drawn[f"sweeps {model}"] = partial(figures.sweeps, base, swept)
    tables = [table for table in (*tables, ours.pooled_table(records), raised.raised_table(records)) if table]
    return _part("Training important heads", [*tables, *training.server_tables()] if tables else [], drawn)


def _few_shot(records: Records) -> Part:
    found = {model: training.few_shot(records, model) for model in records.models()}
    drawn = {f"few-shot {model}": partial(figures.shots, one) for model, one in found.items() if one}
    return _part("Few-shot transfer", [training.few_shot_table(records, model) for model in found], drawn)


def _estimators(records: Records) -> Part:
    makers = (estimating.estimator_table, estimating.agreement_table)
    makers += (estimating.rounds_table, estimating.most_table)
    return _part("Estimators of importance", [make(records, model) for model in records.models() for make in makers])


recipe = PaperRecipe(
    name="specialization",
    title="Functional specialization of attention heads",
    paper="After Li et al. 2023, Interpreting and Exploiting Functional Specialization in Multi-Head Attention under "
    "Multi-task Learning.",
    hub=HUB,
    sizes=SIZES,
    build=Build,
    read=Records,
    sections=(_inventory, _encoders, _pairs, _five, _paired_news, _similarity, _glue, _few_shot, _estimators),
    items=ITEMS,
    differences=DIFFERENCES,
    published=PUBLISHED,
)
