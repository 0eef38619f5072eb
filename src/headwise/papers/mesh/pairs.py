"""The task-language pairs of MESH: four tasks in English and Spanish, and three more, with the splits that may train.

Where a language has no training file, what trains is a development set or a part of one, and an item that trains in one
language is held out in none: XNLI trains on dev and is measured on test, PAWS-X is cut by item, and questions are
measured on MLQA alone, whose texts are in no other set. SQuAD's development set never trains.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from headwise.errors import unknown
from headwise.tasks import lookup
from headwise.tasks.catalog.sentences import PAWSX, XNLI
from headwise.tasks.catalog.words import MLQA, PANX, TYDI, UDPOS, XQUAD
from headwise.tasks.readers.shape import normalized, row_texts
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
SAMPLES: Mapping[str, Sides] = {  # if only small files are available
    "nli_en": _as_published("xnli_en", "test"),
    "nli_es": Sides(("xnli_es", "dev"), ("xnli_es", "test")),
    "qa_en": Sides(("tydiqa_en", "train"), ("mlqa_en", "dev")),
    "qa_es": Sides(("xquad_es", "test"), ("mlqa_es", "dev")),
    **COMMON,
}
PUBLISHED: Mapping[str, Sides] = {  # with XTREME's training files, and its translations of them
    "nli_en": _as_published("xnli_en"),
    "pa_en": _as_published("pawsx_en"),
    "qa_en": Sides(("squad_v11", "train"), ("mlqa_en", "dev")),
    **COMMON,
}


def sides_of(name: str, source: str, languages: Sequence[str] = LANGUAGES) -> Sides | None:
    """Which rows of the catalog train a pair and which measure it; None where its language has no data for the task.

    Example:
        >>> sides_of("qa_de", "published").note
        'trained on squad_translated_de/train, measured on mlqa_de/dev'
    """
    task, _, language = name.partition("_")
    if source == "samples" and task == "pa" and language in PAWSX.split():
        return _by_item(f"pawsx_{language}", *(f"pawsx_{o}" for o in languages if o != language and o in PAWSX.split()))
    table = SAMPLES if source == "samples" else PUBLISHED
    return table.get(name) or (OTHERS[task](language, source) if task in OTHERS else None)


def _nli(language: str, source: str) -> Sides | None:
    if language not in XNLI.split():
        return None
    small = Sides((f"xnli_{language}", "dev"), (f"xnli_{language}", "test"))
    return (
        small if source == "samples" else Sides((f"xnli_translated_{language}", "train"), (f"xnli_{language}", "dev"))
    )


def _pa(language: str, source: str) -> Sides | None:
    there = language in PAWSX.split()
    return Sides((f"pawsx_translated_{language}", "train"), (f"pawsx_{language}", "dev")) if there else None


def _qa(language: str, source: str) -> Sides | None:
    """Measured on MLQA, else on XQuAD, else on TyDi QA; rows that measure train no pair."""
    mlqa, xquad, tydi = (language in known.split() for known in (MLQA, XQUAD, TYDI))
    measured = (f"mlqa_{language}", "dev") if mlqa else (f"xquad_{language}", "test") if xquad else None
    if xquad and source != "samples" and language != "ro":
        return Sides((f"squad_translated_{language}", "train"), measured or ("", ""))
    if tydi:
        return Sides((f"tydiqa_{language}", "train"), measured or (f"tydiqa_{language}", "dev"))
    return Sides((f"xquad_{language}", "test"), measured or ("", "")) if mlqa and xquad else None


def _ner(language: str, source: str) -> Sides | None:
    return _as_published(f"wikiann_{language}") if language in PANX.split() else None


def _pos(language: str, source: str) -> Sides | None:
    return _as_published(f"udpos_{language}") if language in UDPOS.split() else None


OTHERS: Mapping[str, Callable[[str, str], Sides | None]] = {
    **{"nli": _nli, "pa": _pa, "qa": _qa, "ner": _ner, "pos": _pos},
}


def pairs_of(languages: Sequence[str], source: str = "published") -> tuple[str, ...]:
    """The pairs of Table I's tasks with some languages, as far as there are data: French has none for questions.

    Example:
        >>> pairs_of(("en", "fr"))
        ('nli_en', 'nli_fr', 'qa_en', 'ner_en', 'ner_fr', 'pa_en', 'pa_fr')
    """
    if source == "corpus":
        return tuple(f"{task}_{language}" for task in TASKS for language in languages)
    names = (f"{task}_{language}" for task in TASKS for language in languages)
    return tuple(name for name in names if sides_of(name, source, languages) is not None)


def pair(
    name: str,
    source: str = "samples",
    data: str | None = None,
    size: Mapping[str, int] | None = None,
    languages: Sequence[str] = LANGUAGES,
) -> Task:
    """A task-language pair: ``nli_es`` from the corpus, from samples, or from the published files.

    Args:
        name: nli, qa, ner, pa, sts, pos or dep, and a language: XTREME's, of the corpus en or es.
        source: corpus, samples or published.
        data: the folder of data.
        size: rows per split of the corpus.
        languages: those that train beside it: items of parallel data are held out in all of them.

    Example:
        >>> pair("nli_es", "corpus", size={"train": 30, "dev": 30}).language
        'es'
    """
    if source not in ("corpus", "samples", "published"):
        raise unknown("source of pairs", source, ("corpus", "samples", "published"))
    known = [f"{task}_{language}" for task in (*TASKS, *MORE) for language in LANGUAGES]
    sides = sides_of(name, source, languages) if source != "corpus" else None
    if sides is None and (source != "corpus" or name not in known):
        raise unknown("task-language pair", name, known if source == "corpus" else pairs_of(XNLI.split(), source))
    return _cut(name, sides, data) if sides else _from_corpus(name, size)


def _from_corpus(name: str, size: Mapping[str, int] | None) -> Task:
    from headwise.tasks.corpus import tasks

    task, language = name.split("_")
    full = f"corpus.{CORPUS[task]}" + ("" if language == "en" else f".{language}")
    whole = tasks(language, size)[full]
    metric = "accuracy" if task == "pa" else whole.metric  # as PAWS-X is measured
    return replace(whole, name=name, metric=metric, note="the embedded corpus")


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
    """A fraction of the items of parallel rows, in whole groups: rows of one item, or with a text in common."""
    group: dict[str, str] = {}

    def root(name: str) -> str:
        while group.setdefault(name, name) != name:
            group[name] = name = group[group[name]]
        return name

    for row in rows:
        for text in row_texts(row).values():
            group[root(f"text {normalized(text)}")] = root(f"item {row['item']}")
    items = sorted({row["item"] for row in rows})
    groups: dict[str, list[str]] = {}
    for item in items:
        groups.setdefault(root(f"item {item}"), []).append(item)
    order = list(groups.values())
    random.Random(seed).shuffle(order)
    held: set[str] = set()
    for members in order:
        held |= set(members) if len(held) + len(members) <= share * len(items) else set()
    return held
