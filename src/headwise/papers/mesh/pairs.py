"""The task-language pairs of MESH: four tasks in English and Spanish, and three more, with the splits that may train.

Where a language has no training file, what trains is a development set or a part of one, and an item that trains in one
language is held out in none: XNLI trains on dev and is measured on test, PAWS-X is cut by item, and questions are
measured on MLQA alone, whose texts are in no other set. SQuAD's development set never trains.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headwise.errors import unknown
from headwise.tasks import lookup
from headwise.tasks.readers.shape import normalised, row_texts
from headwise.tasks.task import Row, Rows, Task

TASKS = ("nli", "qa", "ner", "pa")  # Table I
MORE = ("sts", "pos", "dep")
LANGUAGES = ("en", "es")
CORPUS = {"nli": "entailment", "qa": "qa", "ner": "ner", "pa": "paraphrase", "sts": "similarity"}
CORPUS |= {"pos": "pos", "dep": "dep"}


@dataclass(frozen=True)
class Sides:
    """Which rows of the catalog train a pair and which measure it."""

    train: tuple[str, str]  # task and split
    dev: tuple[str, str]
    by_item: tuple[str, ...] = ()  # parallel tasks whose dev is cut together

    @property
    def note(self) -> str:
        if self.by_item:
            return f"trained on {self.train[0]} and 80 % of the items of its dev, measured on the other 20 %"
        return f"trained on {'/'.join(self.train)}, measured on {'/'.join(self.dev)}"


def _as_published(name: str, dev: str = "dev") -> Sides:
    return Sides((name, "train"), (name, dev))


def _by_item(name: str, *parallel: str) -> Sides:
    return Sides((name, "train"), (name, "dev"), parallel)


COMMON = {
    **{f"ner_{language}": _as_published(f"wikiann_{language}") for language in LANGUAGES},
    "sts_en": _as_published("stsb"),
    "sts_es": _as_published("stsb_es"),
    "pos_en": _as_published("ewt_pos"),
    "pos_es": _as_published("gsd_es_pos"),
    "dep_en": _as_published("ewt_dep"),
    "dep_es": _as_published("gsd_es_dep"),
}
SAMPLES: Mapping[str, Sides] = {  # where only small files are at hand
    "nli_en": _as_published("xnli_en", "test"),
    "nli_es": Sides(("xnli_es", "dev"), ("xnli_es", "test")),
    "qa_en": Sides(("tydiqa_en", "train"), ("mlqa_en", "dev")),
    "qa_es": Sides(("xquad_es", "test"), ("mlqa_es", "dev")),
    **{f"pa_{a}": _by_item(f"pawsx_{a}", f"pawsx_{b}") for a, b in (("en", "es"), ("es", "en"))},
    **COMMON,
}
PUBLISHED: Mapping[str, Sides] = {  # with XTREME's training files
    **{f"nli_{language}": _as_published(f"xnli_{language}") for language in LANGUAGES},
    **{f"pa_{language}": _as_published(f"pawsx_{language}") for language in LANGUAGES},
    "qa_en": Sides(("squad_v11", "train"), ("mlqa_en", "dev")),
    "qa_es": Sides(("xquad_es", "test"), ("mlqa_es", "dev")),
    **COMMON,
}


def pair(name: str, source: str = "samples", data: str | None = None, size: Mapping[str, int] | None = None) -> Task:
    """A task-language pair: ``nli_es`` from the corpus, from samples, or from the published files.

    Args:
        name: nli, qa, ner, pa, sts, pos or dep, and en or es.
        source: corpus, samples or published.
        data: the folder of data.
        size: rows per split of the corpus.

    Example:
        >>> pair("nli_es", "corpus", size={"train": 30, "dev": 30}).language
        'es'
    """
    if name not in SAMPLES:
        raise unknown("task-language pair", name, SAMPLES)
    if source == "corpus":
        return _from_corpus(name, size)
    if source not in ("samples", "published"):
        raise unknown("source of pairs", source, ("corpus", "samples", "published"))
    return _cut(name, (SAMPLES if source == "samples" else PUBLISHED)[name], data)


def _from_corpus(name: str, size: Mapping[str, int] | None) -> Task:
    from headwise.tasks.corpus import tasks

    task, language = name.split("_")
    full = f"corpus.{CORPUS[task]}" + ("" if language == "en" else f".{language}")
    found = tasks(language, size)[full]
    metric = "accuracy" if task == "pa" else found.metric  # as PAWS-X is measured
    return replace(found, name=name, metric=metric, note="the embedded corpus")


def _cut(name: str, sides: Sides, data: str | None) -> Task:
    if sides.by_item:
        return _cut_by_item(name, sides, data)
    train, dev = lookup.get(sides.train[0], data), lookup.get(sides.dev[0], data)
    if sides.train[0] == sides.dev[0] and (sides.train[1], sides.dev[1]) == ("train", "dev"):
        return replace(train, name=name, note=sides.note)
    rows = Rows(train=train.rows(sides.train[1]), dev=dev.rows(sides.dev[1]))
    return replace(train, name=name, source=rows, metric=dev.metric, sizes={}, note=sides.note)


def _cut_by_item(name: str, sides: Sides, data: str | None) -> Task:
    """Four fifths of the items of dev join what trains; items that share a text in any language stay together."""
    every = {one: lookup.get(one, data) for one in sorted((sides.train[0], *sides.by_item))}
    own = every[sides.train[0]]
    held = _held_out([row for task in every.values() for row in task.rows("dev")])
    mine = own.rows("dev")
    train = [*(own.rows("train") if "train" in own.splits else []), *(r for r in mine if r["item"] not in held)]
    rows = Rows(train=train, dev=[row for row in mine if row["item"] in held])
    return replace(own, name=name, source=rows, sizes={}, note=sides.note)


def _held_out(rows: Sequence[Row], share: float = 0.2, seed: int = 0) -> set[str]:
    """A share of the items of parallel rows, in whole groups: rows of one item, or with a text in common."""
    group: dict[str, str] = {}

    def root(name: str) -> str:
        while group.setdefault(name, name) != name:
            group[name] = name = group[group[name]]
        return name

    for row in rows:
        for text in row_texts(row).values():
            group[root(f"text {normalised(text)}")] = root(f"item {row['item']}")
    items = sorted({row["item"] for row in rows})
    groups: dict[str, list[str]] = {}
    for item in items:
        groups.setdefault(root(f"item {item}"), []).append(item)
    order = list(groups.values())
    random.Random(seed).shuffle(order)
    held: set[str] = set()
    for found in order:
        held |= set(found) if len(held) + len(found) <= share * len(items) else set()
    return held
