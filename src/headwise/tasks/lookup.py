"""Tasks by name: the catalog, treebanks, probes, the corpus; and tasks from a user's own files (no torch to list)."""

from __future__ import annotations

import random
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

from headwise.errors import HeadwiseError, HeadwiseWarning, unknown
from headwise.tasks.catalog.known import Finder, Known, data_folder
from headwise.tasks.catalog.probes import PROPERTIES, build
from headwise.tasks.catalog.sentences import catalog
from headwise.tasks.catalog.words import universal
from headwise.tasks.labels import meaning, row_labels
from headwise.tasks.leakage import splits_of
from headwise.tasks.metrics import answer_f1, bio_spans
from headwise.tasks.readers.shape import row_texts
from headwise.tasks.readers.sources import Files, Layout
from headwise.tasks.task import SPLITS, Kind, Row, Task

KINDS = {  # named as text, so that listing tasks does not import torch
    "classify": "classify:Classify",
    "choice": "classify:Classify",
    "regress": "classify:Regress",
    "tag": "tag:Tag",
    "spans": "tag:Spans",
    "dependencies": "tree:Dependencies",
    "constituents": "tree:Constituents",
    "frames": "frames:Frames",
    "answer": "answer:Answer",
    "picture": "image:Picture",
}
LENGTH_BINS = (0, 1, 5, 10, 20, 40, 80, 160, 320)


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
    return catalog[name]


def get(name: str, data: str | Path | None = None, sources: tuple[str, ...] = ("folder", "hub")) -> Task:
    """A task by name.

    Args:
        name: from ``names()``; or ``ud.en_ewt.pos`` (any treebank), ``probing.en_ewt.bigram_shift`` (made from one),
            ``corpus.sentiment`` or ``corpus.sentiment.es`` (the corpus that needs no download).
        data: the folder of data; without it ``HEADWISE_DATA``.
        sources: where to look, in this order: ``folder``, ``hub``.

    Example:
        >>> get("corpus.sentiment").metric
        'accuracy'
    """
    if name.startswith("corpus."):
        return _corpus(name)
    if name.startswith("probing."):
        return _probe(name, data_folder(data), tuple(sources))
    entry = known(name)
    if isinstance(entry, Task):
        return entry
    source = Finder(entry, data_folder(data), tuple(sources))
    kind = make_kind(entry.kind, source.labels, entry.options)
    return Task(name, kind, source, entry.metric, entry.language, dict(entry.sizes), entry.note)


def is_known(name: str) -> bool:
    """Whether `get` knows a name, without looking for its data."""
    return name.startswith(("corpus.", "probing.", "ud.")) or name in catalog


def _corpus(name: str) -> Task:
    from headwise.tasks.corpus import tasks

    language = name.split(".")[2] if name.count(".") > 1 else "en"
    found = tasks(language)
    if name not in found:
        raise unknown("corpus task", name, found)
    return found[name]


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
    if (
        isinstance(task, str)
        and not task.startswith(("corpus.", "probing."))
        and isinstance(entry := known(task), Known)
    ):
        source = Finder(entry, data_folder(data), tuple(sources))
        return _described(entry.name, entry.kind, entry.language, entry.metric, entry.sizes, source.origin, entry.note)
    task = get(task, data, sources) if isinstance(task, str) else task
    kind = type(task.kind).__name__.lower()
    sizes = task.sizes or {split: len(task.rows(split)) for split in splits_of(task)}  # of one's own file
    return _described(task.name, kind, task.language, task.metric, sizes, task.source.origin, task.note)


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
    """Rows, label balance, lengths in words, empty texts, rows left out and examples of a split (the first if none)."""
    split = split or splits_of(task)[0]
    rows = task.rows(split)
    lengths = [sum(len(text.split()) for text in row_texts(row).values()) for row in rows]
    edges = [*LENGTH_BINS, max([*lengths, LENGTH_BINS[-1]]) + 1]
    histogram = [(low, high - 1, sum(low <= n < high for n in lengths)) for low, high in pairwise(edges)]
    counts = getattr(task.source, "counts", {}).get(split, {})
    chosen = sorted(random.Random(0).sample(range(len(rows)), min(examples, len(rows))))
    return {
        "split": split,
        "rows": len(rows),
        "published": task.sizes.get(split),
        "origin": task.source.origin,
        "labels": dict(Counter(label for row in rows for label in _labels(row)).most_common()),
        "lengths": [bin for bin in histogram if bin[2]],
        "empty": sum(not any(text.strip() for text in row_texts(row).values()) for row in rows),
        "left_out": sum(count for what, count in counts.items() if "left out" in what),
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


FEW = 20  # rows, from which on a label for nearly every one is no label
OWN_FORMATS = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".parquet": "parquet"}
OWN_PARTS: dict[str, tuple[str, str, str, dict[str, str]]] = {  # format, kind, metric, columns
    "pos": ("conllu", "tag", "tag_accuracy", {"words": "words", "labels": "upos"}),
    "dep": ("conllu", "dependencies", "las", {"words": "words", "heads": "heads", "labels": "deprels"}),
    "ner": ("columns", "spans", "span_f1", {"words": "words", "labels": "labels"}),
    "con": ("trees", "constituents", "bracket_f1", {"words": "words", "tree": "tree"}),
    "srl": ("conll2012", "frames", "srl_f1", {"words": "words", "frames": "frames"}),
    "qa": ("squad", "answer", "answer_f1", {name: name for name in ("id", "question", "context", "answers", "starts")}),
}


def own(spec: str, language: str = "en") -> Task:
    """A task from one's own files: ``name=file:columns``.

    Columns are ``text,label`` or ``text,text_b,label`` of a csv, tsv, jsonl or parquet file; or ``pos`` and ``dep`` of
    CoNLL-U, ``ner`` of word-per-line columns, ``con`` of bracketed trees, ``srl`` of CoNLL-2012, ``qa`` of SQuAD's
    json; a folder of pictures needs none. A language other than English follows a dot: ``qa.es`` compares answers by
    the rules of Spanish. ``reviews.dev.csv`` and ``reviews.test.csv`` beside ``reviews.csv`` are its other splits;
    without them the file is cut 80/10/10 by a seed.

    Example:
        >>> own("mine=reviews.csv:text,label").rows("dev")  # doctest: +SKIP
    """
    name, mark, rest = spec.partition("=")
    file, _, columns = rest.rpartition(":") if ":" in rest else (rest, "", "")
    if not (mark and name and file):
        raise HeadwiseError(f"task {spec!r}", "name=file:columns", "mine=reviews.csv:text,label")
    path = Path(file).expanduser()
    if not path.exists():
        raise HeadwiseError(f"no file {path}")
    if path.is_dir():
        return _own_pictures(name, path, language)
    part, _, code = columns.partition(".")
    if part in OWN_PARTS:
        form, kind, metric, fields = OWN_PARTS[part]
        layout, language = Layout(form, _beside(path), fields), code or language
        source = Files(layout, path.parent, kind)
        metric = answer_f1(language) if part == "qa" else metric
        return Task(name, kind_class(kind)(), source, metric, language)
    return _own_table(name, path, columns or "text,label", language)


def _beside(path: Path) -> dict[str, str]:
    stem = path.name.removesuffix(path.suffix).removesuffix(".train")
    others = {split: f"{stem}.{split}{path.suffix}" for split in ("dev", "test")}
    found = {split: other for split, other in others.items() if (path.parent / other).exists()}
    return {"train": path.name, **found} if found else {"all": path.name}


def _own_table(name: str, path: Path, columns: str, language: str) -> Task:
    fields = columns.split(",")
    if path.suffix.lower() not in OWN_FORMATS or len(fields) not in (2, 3):
        expected = f"a {', '.join(OWN_FORMATS)} file with text,label or text,text_b,label"
        raise HeadwiseError(f"{path.name} with columns {columns!r}", expected, f"{name}=reviews.csv:text,label")
    keys = ("text", "label") if len(fields) == 2 else ("text", "text_b", "label")
    layout = Layout(OWN_FORMATS[path.suffix.lower()], _beside(path), dict(zip(keys, fields)))
    source = Files(layout, path.parent, "classify")
    rows = {split: source.read(split) for split in source.splits}
    labels = sorted({row["label"] for part in rows.values() for row in part})
    _refuse_empty(source, fields[:-1])
    grades = _grades(labels)
    if len(set(grades or labels)) < 2:
        raise HeadwiseError(f"{path}: only one label, {labels}", "two labels or more")
    if grades:
        kind = kind_class("regress")(low=min(grades), high=max(grades))
        return Task(name, kind, Files(layout, path.parent, "regress"), "spearman", language)
    _check_labels(path, fields[-1], rows, labels)
    return Task(name, kind_class("classify")(tuple(labels)), source, "accuracy", language)


def _check_labels(path: Path, column: str, rows: Mapping[str, list[Row]], labels: list[str]) -> None:
    """Refuse a column that is no label, and tell of labels that are written in two ways or never trained."""
    count = sum(len(part) for part in rows.values())
    if count >= FEW and 2 * len(labels) > count:
        seen = f"{path}: {len(labels)} labels in {count} rows, such as {labels[0][:40]!r}"
        raise HeadwiseError(seen, f"classes in the column {column!r}, which is the last one named")
    spelled = {label: meaning(label) for label in labels}
    ways = Counter(spelled.values())
    alike = [label for label in labels if ways[spelled[label]] > 1]
    trained = {row["label"] for row in rows.get("train", [])}
    unseen = [label for label in labels if label not in trained]
    told = {
        "labels that differ only in spaces or case, or in how a number is written": alike,
        "labels that no training row has": unseen,
    }
    for what, found in ((what, found) for what, found in told.items() if found):
        warnings.warn(f"{path.name}: {what}: {found[:8]}", HeadwiseWarning, stacklevel=4)


def _refuse_empty(source: Files, texts: list[str]) -> None:
    """An error with the place of the first row that has nothing to read."""
    for split in (split for split, counts in source.counts.items() if counts["empty"]):
        for place, record in source.records(split):
            if record and not any((record[name] or "").strip() for name in texts):
                raise HeadwiseError(f"{place}: no {' nor '.join(texts)}", "a text on every row", "remove the row")


def _grades(labels: list[str]) -> list[float]:
    """The labels as numbers, where all are numbers and not all are whole."""
    try:
        grades = [float(label) for label in labels]
    except ValueError:
        return []
    return grades if any(not grade.is_integer() for grade in grades) else []


def _own_pictures(name: str, path: Path, language: str) -> Task:
    parts = {split: split for split in SPLITS if (path / split).is_dir()}
    layout = Layout("pictures", parts or {"all": "."}, {"path": "path", "label": "label"})
    source = Files(layout, path, "picture")
    labels = sorted({row["label"] for split in source.splits for row in source.read(split)})
    return Task(name, kind_class("picture")(labels=tuple(labels)), source, "accuracy", language)
