"""Tasks by name: the catalog, treebanks, probes, the corpus; also as trained models remember them (no torch)."""

from __future__ import annotations

import random
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from headwise.errors import HeadwiseError, HeadwiseWarning, unknown
from headwise.io.files import plain
from headwise.io.identity import file_hash
from headwise.tasks.builders import copying
from headwise.tasks.catalog.known import NOT_FOUND, Finder, Known, blimp, data_folder
from headwise.tasks.catalog.probes import PROPERTIES, build
from headwise.tasks.catalog.sentences import catalog
from headwise.tasks.catalog.words import universal
from headwise.tasks.labels import label_text, row_labels
from headwise.tasks.metrics import bio_spans
from headwise.tasks.prompts.prompted import Halves, options_of, prompted
from headwise.tasks.readers.harness import PREFIX, harness_task
from headwise.tasks.readers.shape import row_texts
from headwise.tasks.readers.sources import Files, Layout
from headwise.tasks.readers.tables import TextTable
from headwise.tasks.task import SPLITS, Kind, Row, Task

KINDS = {  # named as text, so that listing tasks does not import torch
    "classify": "classify:Classify",
    "choice": "choice:Choice",
    "regress": "classify:Regress",
    "tag": "tag:Tag",
    "spans": "tag:Spans",
    "dependencies": "tree:Dependencies",
    "constituents": "tree:Constituents",
    "frames": "frames:Frames",
    "answer": "answer:Answer",
    "picture": "image:Picture",
    "sound": "sound:Sound",
    "transcript": "sound:Transcript",
}
LENGTH_BINS = (0, 1, 5, 10, 20, 40, 80, 160, 320)
FILES = (".csv", ".tsv", ".jsonl", ".json", ".parquet", ".arrow", ".conllu", ".txt")


def kind_class(name: str) -> Any:
    """The class of a kind by its name in the catalog."""
    module, attribute = KINDS[name].split(":")
    return getattr(import_module(f"headwise.tasks.kinds.{module}"), attribute)


def make_kind(name: str, labels: tuple[str, ...], options: Mapping[str, Any]) -> Kind:
    return kind_class(name)(**({"labels": labels} if labels else {}), **options)


def known(name: str) -> Known | Task:
    """The catalog's entry for a name; ``ud.en_ewt.pos`` names a part of any treebank."""
    if name.startswith("ud."):
        _, _, rest = name.partition(".")
        code, _, part = rest.rpartition(".")
        if not code or part not in ("pos", "xpos", "dep"):
            raise HeadwiseError(f"task {name!r}", "ud.TREEBANK.pos, .xpos or .dep", "ud.en_ewt.dep")
        return universal(code, part)
    if name.startswith("blimp."):
        return blimp(name)
    if name not in catalog and ("/" in name or name.endswith(FILES) or Path(name).exists()):
        hint = f"to use a file: --task NAME={name}:text,label"
        raise HeadwiseError(f"unknown task {name!r}", "a name that `headwise tasks` lists", hint)
    return catalog[name]


def get(name: str, data: str | Path | None = None, sources: tuple[str, ...] = ("folder", "hub")) -> Task:
    """A task by name.

    Args:
        name: from ``names()``; or ``ud.en_ewt.pos`` (any treebank), ``probing.en_ewt.bigram_shift`` (made from one),
            ``corpus.sentiment`` or ``corpus.sentiment.es`` (the corpus that needs no download),
            ``blimp.anaphor_agreement`` (a phenomenon or paradigm), ``copying``, ``lm-eval:arc_easy`` (any task of
            lm-evaluation-harness). ``sst2@prompt`` is a task for language models, with options as in
            ``sst2@prompt+shots4+seed1`` (see `headwise.tasks.prompted`).
        data: the folder of data; without it ``HEADWISE_DATA``.
        sources: where to look, in this order: ``folder``, ``hub``.

    Example:
        >>> get("corpus.sentiment").metric
        'accuracy'
    """
    refuse_data(name)
    if name.startswith(PREFIX):
        return harness_task(name, data_folder(data))
    base, at, options = name.partition("@")
    if at:
        return prompted(get(base, data, sources), name=name, **options_of(options))
    if name == "copying":
        return copying()
    if name.startswith("corpus."):
        from headwise.tasks.corpus import source as corpus

        return corpus.task(*_corpus(name))
    if name.startswith("probing."):
        return _probe(name, data_folder(data), tuple(sources))
    entry = known(name)
    if isinstance(entry, Task):
        return entry
    source: Any = _source(entry, data, sources)
    kind = make_kind(entry.kind, source.labels, entry.options)
    source = Halves(source, "test") if entry.kind == "choice" else source
    return Task(name, kind, source, entry.metric, entry.language, dict(entry.sizes), entry.note)


def _source(entry: Known, data: str | Path | None, sources: tuple[str, ...]) -> Finder | Paired:
    """Where a task's rows are: its own files, or those of the task that it is made from."""
    finder = Finder(entry, data_folder(data), tuple(sources))
    if entry.made_from and finder.origin == NOT_FOUND:
        original: Any = catalog[entry.made_from]
        return Paired(Finder(original, finder.data, finder.order), entry.labels)
    return finder


def refuse_data(name: Any) -> None:
    """Say how a table becomes a task, where one was given in place of a name."""
    if not isinstance(name, str):
        maker = "from_pandas" if hasattr(name, "iloc") else "from_dataset"
        raise HeadwiseError(f"a {type(name).__name__} in place of a task", "a task", f'Task.{maker}("NAME", data)')


def is_known(name: str) -> bool:
    """Whether `get` knows a name, without looking for its data."""
    name = name.partition("@")[0]
    return name.startswith(("corpus.", "probing.", "ud.", "blimp.", PREFIX)) or name == "copying" or name in catalog


def _corpus(name: str) -> tuple[str, str]:
    """The short name and the language of a corpus task."""
    known = [each for each in names() if each.startswith("corpus.")]
    if name not in known:
        raise unknown("corpus task", name, known)
    _, short, language = [*name.split("."), "en"][:3]
    return short, language


@dataclass(frozen=True)
class Paired:
    """AG-Pair's rows, made from those of AG's News where its own files are not there (Li et al. 2023)."""

    news: Finder
    labels: tuple[str, ...]

    @cached_property
    def made(self) -> dict[str, list[Row]]:
        from headwise.tasks.builders import ag_pair

        return {split: ag_pair(self.news.read(split)) for split in self.news.splits}

    def read(self, split: str) -> list[Row]:
        return list(self.made["test" if split == "dev" and "dev" not in self.made else split])

    @property
    def splits(self) -> list[str]:
        return self.news.splits

    @property
    def origin(self) -> str:
        there = self.news.origin
        return there if there == NOT_FOUND else f"made from {there}"


@dataclass(frozen=True)
class Probes:
    """The rows of a probing property, made from a treebank's sentences when first asked for."""

    treebank: Finder
    name: str

    @cached_property
    def made(self) -> dict[str, list[Row]]:
        return build(self.name, [row for split in self.treebank.splits for row in self.treebank.read(split)])

    def read(self, split: str) -> list[Row]:
        return self.made[split]

    @property
    def origin(self) -> str:
        return f"made from {self.treebank.origin}"


def _probe(name: str, data: Path | None, order: tuple[str, ...]) -> Task:
    _, code, property_name = [*name.split("."), "", ""][:3]
    if property_name not in PROPERTIES:
        raise unknown("probing property", property_name, PROPERTIES)
    bank = universal(code, "all", folder=FOLDERS.get(code, code), odd={"train": "train_from_dev"})
    source = Probes(Finder(bank, data, order), property_name)
    return Task(name, kind_class("classify")(), source, "accuracy", bank.language, note="made from a treebank")


FOLDERS = {"en_ewt": "ewt", "es_ancora": "ancora_es", "es_gsd": "gsd_es"}  # where they are packed under another name


def names() -> list[str]:
    """Every task by name, the corpus first (those of treebanks are made up of parts, see ``get``)."""
    from headwise.tasks.corpus import NAMES

    return [*(f"corpus.{name}{end}" for end in ("", ".es") for name in NAMES), *catalog]


def describe(
    task: Task | str, data: str | Path | None = None, sources: tuple[str, ...] = ("folder", "hub")
) -> dict[str, Any]:
    """What ``headwise tasks`` shows of a task; by name it needs neither data nor torch."""
    if isinstance(task, str) and task.startswith("corpus."):
        return _described_corpus(task)
    if isinstance(task, str) and not task.startswith(("probing.", PREFIX)) and isinstance(entry := known(task), Known):
        source = _source(entry, data, sources)
        return _described(entry.name, entry.kind, entry.language, entry.metric, entry.sizes, source.origin, entry.note)
    task = get(task, data, sources) if isinstance(task, str) else task
    kind = type(task.kind).__name__.lower()
    sizes = task.sizes or {split: len(task.rows(split)) for split in task.splits}  # of one's own file
    return _described(task.name, kind, task.language, task.metric, sizes, task.source.origin, task.note)


def _described_corpus(full: str) -> dict[str, Any]:
    from headwise.tasks.corpus import source as corpus

    name, language = _corpus(full)
    rows = corpus.Corpus(name, language)
    kind = corpus.KINDS.get(name, "classify")
    return _described(full, kind, language, corpus.metric(name, language), rows.sizes, rows.origin, "")


def _described(
    name: str, kind: str, language: str, metric: str, sizes: Mapping, origin: str, note: str
) -> dict[str, Any]:
    return {
        "name": name,
        "kind": kind,
        "language": language,
        "metric": metric,
        "sizes": dict(sizes),
        "origin": origin,
        "note": note,
    }


def statistics(task: Task, split: str = "", examples: int = 5) -> dict[str, Any]:
    """Rows, label balance, lengths in words, empty texts, skipped rows and examples of a split (the first if none)."""
    split = split or task.splits[0]
    rows = task.rows(split)
    table = isinstance(rows, TextTable)
    lengths = rows.lengths() if table else [sum(len(t.split()) for t in row_texts(row).values()) for row in rows]
    edges = [*LENGTH_BINS, max(int(np.max(lengths)), LENGTH_BINS[-1]) + 1]
    within = np.histogram(lengths, edges)[0].tolist()
    histogram = [(low, high - 1, count) for (low, high), count in zip(pairwise(edges), within)]
    labels = rows.label_counts() if table else Counter(label for row in rows for label in _labels(row))
    counts = getattr(task.source, "counts", {}).get(split, {})
    chosen = sorted(random.Random(0).sample(range(len(rows)), min(examples, len(rows))))
    return {
        "split": split,
        "rows": len(rows),
        "published": task.sizes.get(split),
        "origin": task.source.origin,
        "labels": {label_text(label): count for label, count in labels.most_common()},
        "lengths": [bin for bin in histogram if bin[2]],
        "empty": 0 if table else sum(not any(text.strip() for text in row_texts(row).values()) for row in rows),
        "skipped": sum(count for what, count in counts.items() if "skipped" in what),
        "examples": [rows[i] for i in chosen],
    }


def _labels(row: Row) -> list[str]:
    if "frames" in row:
        return [role for frame in row["frames"] for _, _, role in frame["arguments"]]
    if "answers" in row:
        return ["answered" if row["answers"] else "no answer"]
    if "tree" in row:
        return [label.strip("(") for label in row["tree"].replace(")", " ").split() if label.startswith("(")]
    if "labels" in row:
        labels = row_labels(row["labels"])
        entities = all(label == "O" or label[:2] in ("B-", "I-") for label in labels)
        return [label for _, _, label in bio_spans(labels)] or ["O"] if entities else labels
    return row_labels([row["label"]])


@dataclass(frozen=True)
class Absent:
    """The source of a task whose rows are not here: a model can predict without them, not be measured."""

    task: str
    origin: str

    def read(self, split: str) -> list[Row]:
        raise HeadwiseError(
            f"no rows of task {self.task!r} here (it was trained on: {self.origin})",
            "its data",
            f'model.add_data("{self.task}", "FILE:text,label"), or --task {self.task}=FILE:text,label',
        )

    @property
    def splits(self) -> list[str]:
        return []


def described(task: Task) -> dict[str, Any]:
    """A task in plain values, without its rows; its own files by name, columns and hash."""
    about = {"kind": plain(task.kind), "metric": task.metric, "language": task.language, "origin": task.source.origin}
    source = task.source
    if isinstance(source, Files):
        files = {path.name: file_hash(path) for split in (*SPLITS, "all") for path in source.paths(split)}
        place = {"root": str(source.root.absolute()), "kind": source.kind, "labels": list(source.labels)}
        about["files"] = {**place, "layout": plain(source.layout), "sha256": files}
    return about


def restored(name: str, about: Mapping[str, Any], data: str | Path | None = None) -> Task:
    """The task a model was trained on, with the labels it had: from its files, the catalog, or without rows."""
    kind = _kind(name, about["kind"])
    files = about.get("files") or {}
    source = _files(name, files) if files.get("root") else None  # on the Hub no folder is named
    if source is None and is_known(name):
        return replace(get(name, data), kind=kind, metric=about["metric"])
    return Task(name, kind, source or Absent(name, about["origin"]), about["metric"], about["language"])


def _kind(name: str, stored: Mapping[str, Any]) -> Kind:
    types = {place.partition(":")[2]: kind for kind, place in KINDS.items()}
    if stored["type"] not in types:
        seen = f"task {name!r} is of the kind {stored['type']!r}, which is not one of headwise"
        raise HeadwiseError(seen, "the task itself", "MultiTaskModel.load(path, tasks=[...])")
    kind = kind_class(types[stored["type"]])
    values = {field.name: stored[field.name] for field in fields(kind) if field.name in stored}
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in values.items()})


def _files(name: str, stored: Mapping[str, Any]) -> Files | None:
    """The task's own files where they still are; a changed one is used, with a warning."""
    layout = stored["layout"]
    parts = {field.name: layout[field.name] for field in fields(Layout) if field.name in layout}
    parts["files"] = {split: _tuples(file) for split, file in parts["files"].items()}
    parts["columns"] = {field: _tuples(column) for field, column in parts["columns"].items()}
    source = Files(Layout(**parts), Path(stored["root"]), stored["kind"], tuple(stored["labels"]))
    now = {path.name: file_hash(path) for split in (*SPLITS, "all") for path in source.paths(split)}
    if changed := [file for file, digest in stored["sha256"].items() if file in now and now[file] != digest]:
        seen = f"{', '.join(changed)} of task {name!r} changed since the model was trained; its labels stay"
        warnings.warn(seen, HeadwiseWarning, stacklevel=4)
    return source if now else None


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
