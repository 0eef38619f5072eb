"""Functional specialization of attention heads under multi-task learning (Li et al. 2023): jobs, tables, figures."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from headwise.papers.message import Claim, Row, in_short, row
from headwise.papers.recipe import Difference, Item, PaperRecipe, Part
from headwise.papers.specialization import estimating, figures, news, ours, sweeps, training
from headwise.papers.specialization import tables as apart
from headwise.papers.specialization.estimating import head_set_table
from headwise.papers.specialization.jobs import Build
from headwise.papers.specialization.records import Records
from headwise.papers.specialization.settings import HUB, SIZES
from headwise.papers.specialization.similarity import similarities, similarity_table

FMRI = "brain recordings of Pereira et al. 2018; with your own: headwise.dissociation.similarity.cnm"
SERVER = "the labels of GLUE's test sets, which only its server has: the recipe writes the files to submit"
ITEMS = (
    Item("table-1", "tasks and their rows", ("inventory",), ("Tasks",)),
    Item("table-2", "models, their layers and heads", ("inventory",), ("Models",)),
    Item(
        "figure-2",
        "D of every two tasks trained together, by model",
        ("pairs", "frozen"),
        ("pairs", "Mean D over pairs"),
    ),
    Item("table-3", "performance of five tasks under each other's lesions", ("five",), ("All tasks under lesions",)),
    Item("table-4", "AG against AG-Pair", ("paired_news",), ("AG against AG-Pair",)),
    Item("figure-3", "similarity of tasks by brain recordings (CNM) against D", missing=FMRI),
    Item(
        "table-5",
        "GLUE's test sets, annealed sampling",
        ("singles", "ticket_share", "annealed", "distilled", "submission", "mtdnn"),
        ("GLUE, annealed sampling", "Test sets of GLUE, annealed sampling"),
        SERVER,
    ),
    Item("table-6", "few-shot transfer to SciTail and IMDB", ("few_shot",), ("Few-shot transfer", "few-shot")),
    Item(
        "table-7",
        "which heads to train, or prune, in the last tenth",
        ("annealed", "prune_least", "variants", "strict"),
        ("What the last tenth",),
    ),
    Item("table-8", "4-shot transfer by start", ("few_shot",), ("Few-shot transfer", "few-shot")),
    Item("table-9", "D_A and D_B of every two tasks", ("pairs", "frozen"), ("D after",)),
    Item("table-10", "D of every two of five tasks trained together", ("five",), ("D of every two tasks",)),
    Item("figure-4", "top heads by layer", ("five",), ("Top heads per layer", "layers")),
    Item("table-11", "top heads that tasks share", ("five",), ("Overlap of top heads",)),
    Item("figure-5", "DSE similarity against D", ("five", "alike"), ("Similarity of tasks", "similarity")),
    Item("figure-6", "AHP similarity against D", ("five", "alike"), ("Similarity of tasks", "similarity")),
    Item("figure-7", "CRA similarity against D", ("five", "alike"), ("Similarity of tasks", "similarity")),
    Item("figure-8", "D of GLUE's tasks with and without IAT", ("glue_lesions",), ("D on GLUE",)),
    Item("figure-9", "IAT by δ", ("annealed", "sweep_delta"), ("IAT by δ", "sweeps")),
    Item("figure-10", "IAT by α", ("annealed", "sweep_alpha"), ("IAT by α", "sweeps")),
    Item("appendix-f", "IAT over the grid of δ and α", ("annealed", "grid"), ("IAT over the grid",)),
    Item(
        "table-12",
        "GLUE's test sets, proportional sampling",
        ("proportional", "submission"),
        ("GLUE, proportional sampling", "Test sets of GLUE, proportional sampling"),
        SERVER,
    ),
    Item("table-13", "GLUE's development sets, both samplings", ("annealed", "proportional"), ("GLUE, ",)),
    Item(
        "release",
        "the released program step by step, and its settings that the paper does not name",
        ("annealed", "released", "unsaid"),
        ("The released code", "Settings of the release"),
    ),
    Item(
        "estimators",
        "importance estimators side by side",
        ("five", "estimators", "permutation", "rounds"),
        ("Importance estimators", "Agreement of estimators", "Pruning in rounds", "Permutation test"),
    ),
    Item("closings", "lesions by mean and resampling", ("five", "closings"), ("D by what closed",)),
    Item(
        "beyond",
        "methods and conditions beyond the paper",
        ("annealed", "own", "conditions", "five", "five_iat", "compared", "untuned"),
        ("IAT under other conditions", "Methods of our own", "D of the five tasks with"),
    ),
)
PUBLISHED = {  # Appendix A and the released scripts
    **{"epochs": 5, "lr": 2e-5, "batch_size": 32, "warmup": 0.1, "schedule": "linear", "clip": None},
    **{"optimizer": "adamw", "weight_decay": 0.0, "precision": "fp32", "max_examples": None, "head_lr": None},
    **{"seeds": (0, 1, 2), "max_length": 256, "few_seeds": 30},
}
DIFFERENCES = (
    Difference(
        "output heads",
        "BERT's pretrained pooler under each head, RoBERTa's classification head (release)",
        "one linear layer on the first token's last state",
        "release",
    ),
    Difference(
        "STS-B", "trained on grades from 0 to 5 (release)", "grades scaled to 0–1: its loss weighs 1/25", "release"
    ),
    Difference("warm-up", "0.1 of the steps (paper); none (release)", "0.1 of the steps", "release"),
    Difference(
        "batches",
        "each sampled anew, with replacement (release); an epoch does not cover the data",
        "every row once an epoch",
        "release",
    ),
    Difference(
        "released program",
        "leaks gradients, turns dropout off, scores per token",
        "as in the paper; these departures added one by one, without the four above",
        "release",
    ),
    Difference("α and δ of IAT", "the best of a grid for each model", "α = 0.3, δ = 0.1 for all", "appendix-f"),
    Difference("held rows of IAT", "query, key and value (release)", "the same; with the output rows", "table-7"),
    Difference("tests", "paired bootstrap over 30 draws of rows", "Student's t over trained models", "table-6"),
    Difference("GLUE test sets", "scored by the server", "files to submit; development sets here", "table-5"),
    Difference(
        "TinyBERT",
        "distilled from a tuned BERT base, 2 + 3 epochs; IAT during distillation",
        "the same, without IAT; for other models a student of every second layer",
        "table-5",
    ),
    Difference("CNM", "brain recordings", "not run: the recordings are not available"),
)


WORDS = {
    "Tasks and models": """The tasks and the models trained on them. Published numbers are shown beside ours
        throughout; they are from the paper's own models, trained on its full data.""",
    "All encoders": """Do tasks dissociate in every model? All tasks trained together, each task's top 30 % of heads
        closed; details are in the sections below.""",
    "Two tasks": """Every two tasks trained together, each task's top 30 % of heads closed in turn (Figure 2, Table 9).
        A double dissociation has D_A and D_B above zero; distinct means 10 % or more. A lesion that drives all
        predictions into one class makes F1 jump or vanish: compare D on accuracy, and D above chance.""",
    "All tasks": """All tasks trained together: the performance of each under each lesion, D of each task (Eq. 7), how
        many heads tasks share and in which layers (Tables 3, 10 and 11, Figure 4). The frozen encoder is the control:
        its heads were never trained for these tasks.""",
    "AG and AG-Pair": """Does the task matter, or the form of its input? The same news as single texts and as pairs
        (Table 4): if the form mattered, D against a task of pairs would be lower for news in pairs.""",
    "Similarity of tasks": """Do similar tasks share heads? Similarity by the vectors of single-task models
        (DSE, CRA), by transfer between them (AHP), by shared top heads and by ranks, against D of each pair
        (Figures 3 and 5 to 7), on accuracy, because F1 jumps when a lesion shifts answers.""",
    "Training important heads": """GLUE's tasks trained together: plainly, with important-head training (IAT) and its
        variants, and by the baselines (Tables 5, 7, 12 and 13, Figures 8 to 10). Scores are on development sets; only
        the server has the test labels, and headwise.papers.specialization.glue writes the files for it. A method is
        compared with plain training seed by seed.""",
    "Few-shot transfer": """A new task learned from a handful of rows, starting from models trained on GLUE in different
        ways (Tables 6 and 8): 20 epochs, paired seeds.""",
    "Estimators of importance": """Which estimator should be the default? All of them on the same models, and pruning
        with importance re-estimated after every cut.""",
}


def _claims(records: Records) -> Part:
    every = apart.encoders(records)
    by_model = {model: training.method_gaps(records, model) for model in records.alike_on_glue()}

    def gaps(name: str) -> list[float]:
        return [gap for each in by_model.values() for gap in each.get(name, [])]

    frozen = {model: records.five(model, frozen=True) for model in every}
    rows = row("trained encoders", "measured", [apart.mean_d(one) for one in every.values()], "models")
    rows += row("lesions off the floor", "measured", [apart.mean_d(one, True) for one in every.values()], "models")
    rows += row("frozen encoders", "control", [apart.mean_d(one) for one in frozen.values() if one], "models")
    says = "Tasks depend on different heads: over models the mean D is above zero (on accuracy, 30 % of heads closed)."
    held = row("most important heads (IAT)", "measured", gaps("iat"), "trainings")
    held += [Row("published, BERT base", "published", 0.77)] if held else []
    held += row("random heads", "control", gaps("random heads"), "trainings")
    held += row("least important heads", "control", gaps("bottom heads"), "trainings")
    name = "a factor per head and task, faster"
    own = row("per head and task", "measured", gaps(name), "trainings")
    own += row("per layer and task", "control", gaps("a factor per layer and task, faster"), "trainings")
    own += row("per head, all tasks alike", "control", gaps("a factor per head, faster"), "trainings")
    factors = (
        "Learned per-head factors raise GLUE when gradients are not clipped and the baseline is not tuned; for a "
        "tuned baseline, see methods."
    )
    axis = "points of GLUE's mean against plain training"
    return in_short(
        [
            Claim(says, "D, percent of the whole score", rows if len(every) > 1 else []),
            Claim("Training only important heads at the end does not raise GLUE here.", axis, held),
            Claim(factors, axis, own),
        ]
    )


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
    rows = {model: apart.d_of_pairs(records, model) for model, one in trained.items() if one}
    tables = [*trained.values(), *frozen, apart.rise_table(records), apart.paradigm_table(records)]
    return _part("Two tasks", tables, {"pairs": partial(figures.pairs, rows)} if rows else {})


def _five(records: Records) -> Part:
    tables: list[dict[str, Any] | None] = []
    five = {model: lesioned for model in records.models() if (lesioned := records.five(model))}
    for model in records.models():
        tables += [apart.five_table(records, model), apart.five_table(records, model, frozen=True)]
        tables += [make(records, model) for make in (apart.mutual_table, apart.share_table)]
        tables += [make(records, model) for make in (apart.overlap_table, apart.layer_table)]
    drawn = {"layers": partial(figures.layers, five), "shares": partial(figures.shares, five)} if five else {}
    closing = estimating.closing_table(records)
    return _part("All tasks", [*tables, head_set_table(records), estimating.permutation_table(records), closing], drawn)


def _paired_news(records: Records) -> Part:
    tables = [make(records, model) for model in records.models() for make in (news.ag_pair_table, news.news_test)]
    return _part("AG and AG-Pair", tables)


def _similarity(records: Records) -> Part:
    models = [model for model in records.models() if records.five(model)]
    measures = {model: similarities(records, model) for model in models}
    drawn = {
        f"similarity by {by}": partial(
            figures.scatter, records, [model for model in models if by in measures[model]], by
        )
        for by in dict.fromkeys(by for each in measures.values() for by in each)
    }
    return _part("Similarity of tasks", [similarity_table(records, model) for model in models], drawn)


def _glue(records: Records) -> Part:
    tables, drawn = [], {}
    for model in records.models():
        tables += [training.glue_table(records, model, sampling) for sampling in ("annealed", "proportional")]
        tables += [training.ablation_table(records, model), training.condition_table(records, model)]
        tables += [*ours.own_tables(records, model), ours.direct_table(records, model)]
        tables += [training.released_table(records, model), training.unsaid_table(records, model)]
        tables += [*sweeps.sweep_tables(records, model), sweeps.grid_table(records, model)]
        tables.append(sweeps.glue_d_table(records, model))
        base, swept = sweeps.sweep_points(records, model)
        if len(gaps := training.method_gaps(records, model)) > 2:
            drawn[f"methods {model}"] = partial(figures.gains, gaps)
        if swept:
            drawn[f"sweeps {model}"] = partial(figures.sweeps, base, swept)
    if raised := {model: d for model in records.models() if (d := sweeps.on_glue(records, model))}:
        drawn["D on GLUE"] = partial(figures.raised, raised)
    tables = [table for table in (*tables, ours.pooled_table(records), sweeps.raised_table(records)) if table]
    return _part("Training important heads", [*tables, *training.server_tables()] if tables else [], drawn)


def _few_shot(records: Records) -> Part:
    by_model = {model: training.few_shot(records, model) for model in records.models()}
    drawn = {f"few-shot {model}": partial(figures.shots, one) for model, one in by_model.items() if one}
    return _part("Few-shot transfer", [training.few_shot_table(records, model) for model in by_model], drawn)


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
    sections=(_claims, _inventory, _encoders, _pairs, _five, _paired_news, _similarity, _glue, _few_shot, _estimators),
    items=ITEMS,
    differences=DIFFERENCES,
    published=PUBLISHED,
)
