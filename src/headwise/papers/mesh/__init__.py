"""MESH (Gupta, Patel, Singh): one model for tasks in several languages, few examples, few heads."""

from __future__ import annotations

from functools import partial
from typing import Any

from headwise.papers.mesh import figures
from headwise.papers.mesh import tables as shown
from headwise.papers.mesh.jobs import HUB, SIZES, WHAT, Build
from headwise.papers.mesh.tables import Records
from headwise.papers.message import Claim, Row, in_short
from headwise.papers.recipe import Difference, Item, PaperRecipe, Part


def _pairs(records: Records) -> Part:
    text = (
        "Four tasks in English and Spanish, or other languages. Spanish has little training data beyond machine "
        "translations: the table says which rows are used for training and which for evaluation, and no item used for "
        "training in one language is held out in another."
    )
    return Part("Task-language pairs", text, _kept([shown.pairs_table(records, m) for m in records.models()]))


def _table_one(records: Records) -> Part:
    text = (
        "All eight pairs trained together; then, for the last part of training, with the least important heads "
        "closed, with only a fraction of the heads trained (random, or the most important for each pair), and with "
        "both, as in the paper's conclusion."
    )
    return Part("Fewer heads", text, _kept([shown.table_one(records, m) for m in records.models()]))


def _in_short(records: Records) -> Part:
    groups = shown.groups_table(records)
    rows = []
    for model, between, value, low, high, _, _, _, seeds in groups["rows"] if groups else []:
        kind = "measured" if between == "tasks" else "control"
        rows.append(Row(f"{model}: between {between}", kind, value, low, high, f"{seeds} seeds"))
    says = (
        "Heads belong to tasks rather than to languages: closing a task's heads costs its own pairs more, closing a "
        "language's heads hardly does."
    )
    return in_short([Claim(says, "D, percent of the whole score", rows)])


def _recovery(records: Records) -> Part:
    text = (
        "Heads of the trained model are closed in one step (random, least important, most important, or only in one "
        "third of the layers); then it is trained without them for ten epochs (fewer at smaller sizes). Does a "
        "multilingual model, with fewer heads for each language, suffer more than a monolingual one?"
    )
    tables = _kept([shown.recovery_table(records, m) for m in records.models()])
    drawn = {"recovery": partial(figures.recovery, records)} if tables else {}
    return Part("Pruning and recovery", text, [*tables, *_kept([shown.models_table(records)])], drawn)


def _meta_tests(records: Records) -> Part:
    tables, drawn = [], {}
    for model in records.models():
        tested = _kept([shown.meta_table(records, model, what) for what in WHAT])
        tables += [*tested, *_kept([shown.beyond_table(records, model, what) for what in WHAT])]
        if tested:
            drawn[f"meta-tests {model}"] = partial(figures.meta_tests, records, model)
    text = (
        "Pairs held out from training are learned from a handful of examples, starting from models trained in several "
        "ways. The paper does not state the order of its gradients: first order (fomaml), second order (maml) and "
        "Reptile are shown side by side; the baseline is multi-task training, which never adapts during training. Its "
        "future work names finer gates and dynamic pruning: here, gates computed from the input, and heads pruned by "
        "a new pair's own examples."
    )
    return Part("Learning a new pair from few examples", text, tables, drawn)


def _apart(records: Records) -> Part:
    tables = _kept([shown.groups_table(records), shown.relations_table(records)])
    tables += _kept([shown.retrieval_table(records)])
    text = (
        "Are there language heads as there are task heads? The heads of a language, or of a task in both languages, "
        "are closed, and all pairs are evaluated."
    )
    return Part("Heads of languages, heads of tasks", text, tables)


def _kept(tables: list[dict[str, Any] | None]) -> list[dict[str, Any]]:
    return [table for table in tables if table is not None]


FILES = "the files of Tatoeba and BUCC, which are not available"
ITEMS = (
    Item("table-1", "accuracy of pairs by pruning and training setting", ("table",), ("Table I",)),
    Item("table-2", "tasks, languages and their rows", ("table",), ("Pairs",)),
    Item("recovery", "pruning and ten more epochs (Introduction)", ("recovery",), ("Pruning and recovery", "recovery")),
    Item("meta-test", "Algorithm 3: a new pair from few examples", ("meta_tests",), ("Meta-test", "meta-tests")),
    Item(
        "retrieval", "Tatoeba and BUCC: translations by their vectors", ("retrieval",), ("Translations found",), FILES
    ),
    Item(
        "beyond",
        "gates by input, heads pruned by the new pair's own examples (Future work)",
        ("beyond",),
        ("Beyond the paper",),
    ),
    Item("dissociation", "Eq. 2: D of languages and of tasks", ("apart",), ("D between languages", "Two pairs")),
)
PUBLISHED = {"optimizer": "sgd", "clip": 1.0, "epochs": None, "source": "published", "precision": "fp32"}
DIFFERENCES = (
    Difference("optimizer", "SGD in both loops", "AdamW outside, SGD inside"),
    Difference("encoder", "multilingual BERT, uncased", "multilingual BERT, cased"),
    Difference("rows of Table I", "nested loops of Algorithms 1 and 2", "multi-task training", "table-1"),
    Difference("metric of QA and NER", "printed as accuracy", "F1, as in XTREME", "table-1"),
    Difference("second language", "French in the text, Spanish in the tables", "Spanish; others by --languages"),
    Difference("order of gradients", "not said", "first, second and Reptile side by side", "meta-test"),
    Difference("± of Table I", "copied from another paper's table", "omitted"),
    Difference(
        "Spanish training rows", "machine translations", "size small: development rows or parts of them", "table-2"
    ),
)

recipe = PaperRecipe(
    name="mesh",
    title="Meta-learning across tasks and languages with fewer heads",
    paper="Gupta, Patel, Singh: MESH, Multi-head Efficiency in XTREME with Multilingual Specialization and Pruning",
    hub=HUB,
    sizes=SIZES,
    build=Build,
    read=Records,
    sections=(_in_short, _pairs, _table_one, _recovery, _meta_tests, _apart),
    items=ITEMS,
    differences=DIFFERENCES,
    published=PUBLISHED,
)
