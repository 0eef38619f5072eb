"""The tables and figures of Li et al. 2023 as items to run, and what the recipe does in another way than the paper."""

from __future__ import annotations

from headwise.papers.recipe import Difference, Item

FMRI = "brain recordings of Pereira et al. 2018; with your own: headwise.dissociation.similarity.cnm"
SERVER = "the labels of GLUE's test sets, which its server alone has: the recipe writes the files to send"
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
    Item(
        "beyond",
        "methods and conditions beyond the paper",
        ("annealed", "own", "conditions", "five_iat", "compared"),
        ("IAT under other conditions", "Methods over all models", "D of the five tasks with"),
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
        "each drawn anew, with replacement (release); an epoch does not cover the data",
        "every row once an epoch",
        "release",
    ),
    Difference(
        "released program",
        "leaks gradients, turns dropout off, scores per token",
        "as the paper describes it; these departures one after another, without the four above",
        "release",
    ),
    Difference("α and δ of IAT", "the best of a grid for each model", "α = 0.3, δ = 0.1 for all", "appendix-f"),
    Difference("held rows of IAT", "query, key and value (release)", "the same; with the output rows", "table-7"),
    Difference("tests", "paired bootstrap over 30 draws of rows", "Student's t over trained models", "table-6"),
    Difference("GLUE test sets", "marked by the server", "files to send; development sets here", "table-5"),
    Difference(
        "TinyBERT",
        "distilled under a tuned BERT base, 2 + 3 epochs; IAT in that distillation",
        "the same, without IAT; for other models a student of every second layer",
        "table-5",
    ),
    Difference("CNM", "brain recordings", "not run: the recordings are not here"),
)
