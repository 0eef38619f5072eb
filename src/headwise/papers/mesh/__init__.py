"""MESH (Gupta, Patel, Singh): one model for tasks in several languages, few examples, few heads."""

from __future__ import annotations

from functools import partial
from typing import Any

from headwise.experiments.jobs import Job
from headwise.io.records import Results
from headwise.papers.mesh import figures
from headwise.papers.mesh import jobs as build
from headwise.papers.mesh import tables as shown
from headwise.papers.mesh.tables import Records
from headwise.papers.recipe import Part, Scale


class Mesh:
    """Meta-learning across tasks and languages with head gates and pruning."""

    name = "mesh"
    title = "Meta-learning across tasks and languages with fewer heads"
    paper = "Gupta, Patel, Singh: MESH, Multi-head Efficiency in XTREME with Multilingual Specialization and Pruning"

    def jobs(self, scale: Scale) -> list[Job]:
        """Everything to run."""
        return build.jobs(scale)

    def parts(self, results: Results) -> list[Part]:
        """Every section that the records there can fill."""
        records = Records(results)
        made = [make(records) for make in (_pairs, _table_one, _recovery, _meta_tests, _apart)]
        return [part for part in made if part.tables]


def _pairs(records: Records) -> Part:
    text = "Four tasks in English and Spanish. Spanish has little training data outside of machine translation: which "
    text += "rows train and which measure is said here, and an item that trains in one language is held out in none."
    return Part("Task-language pairs", text, _kept([shown.pairs_table(records, m) for m in records.models()]))


def _table_one(records: Records) -> Part:
    text = (
        "All eight pairs trained together; then with the least important heads closed for the last part of training, "
    )
    text += (
        "or with a share of the heads alone moving there, random or the most important for each pair, and with both, "
    )
    text += "as the paper's conclusion has it."
    return Part("Fewer heads", text, _kept([shown.table_one(records, m) for m in records.models()]))


def _recovery(records: Records) -> Part:
    text = (
        "Heads of the trained model closed at once, at random, the least or the most important first, or in a third of "
    )
    text += "the layers alone; then ten epochs (fewer at smaller sizes) without them. Does a multilingual model, with "
    text += "fewer heads for each language, suffer more than a monolingual one?"
    tables = _kept([shown.recovery_table(records, m) for m in records.models()])
    drawn = {"recovery": partial(figures.recovery, records)} if tables else {}
    return Part("Pruning and recovery", text, [*tables, *_kept([shown.models_table(records)])], drawn)


def _meta_tests(records: Records) -> Part:
    tables, drawn = [], {}
    for model in records.models():
        found = _kept([shown.meta_table(records, model, what) for what in build.HELD])
        tables += found
        if found:
            drawn[f"meta-tests {model}"] = partial(figures.meta_tests, records, model)
    text = (
        "Pairs held out from training are learned from a handful of examples, from starts that were trained in several "
    )
    text += "ways. The paper leaves open which order its gradients have: first (fomaml), second (maml) and Reptile are "
    text += "side by side, with multi-task training, which never adapts while it trains, as the baseline."
    return Part("Learning a new pair from few examples", text, tables, drawn)


def _apart(records: Records) -> Part:
    tables = _kept([shown.groups_table(records), shown.relations_table(records)])
    text = "Are there heads of languages as there are heads of tasks? The heads of a language, or of a task in both "
    text += "languages, are closed, and all pairs measured."
    return Part("Heads of languages, heads of tasks", text, tables)


def _kept(tables: list[dict[str, Any] | None]) -> list[dict[str, Any]]:
    return [table for table in tables if table is not None]


recipe = Mesh()
