"""Tasks from a person's own data: files, folders of `datasets`, DataFrames and Datasets (no torch until they are made).

| what | how |
|---|---|
| a table | ``mine=reviews.csv:text,label``, also tsv, jsonl, parquet, and shards such as train-00000-of-00001.parquet |
| words with labels | ``mine=train.jsonl:tokens,ner_tags``; numbers mean the names of a ClassLabel where there is one |
| questions | ``mine=squad.parquet:question,context,answers``, or SQuAD's json as ``mine=squad.json:qa`` |
| annotated sentences | ``pos`` and ``dep`` of CoNLL-U, ``ner`` of columns, ``con`` of trees, ``srl`` of CoNLL-2012 |
| recordings | ``mine=clips.csv:path,text``, where paths end in .wav: what is said in each |
| a folder | of `save_to_disk`, of splits as files, or of pictures or .wav files in a folder for each class |
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from headwise.errors import HeadwiseError, HeadwiseWarning
from headwise.io.files import read_json
from headwise.tasks.labels import meaning
from headwise.tasks.lookup import kind_class, refuse_data
from headwise.tasks.metrics import answer_f1
from headwise.tasks.prompts.prompted import options_of, prompted
from headwise.tasks.readers.formats import class_names, decoded
from headwise.tasks.readers.shape import Reading, reading
from headwise.tasks.readers.sources import Files, Layout, feature_names, portions, rows_of
from headwise.tasks.readers.tables import TextTable
from headwise.tasks.task import SPLITS, Row, Rows, Task, items_of

FEW = 20  # rows, from which on a label for nearly every one is no label
HEAD = 1000  # records that are looked at to tell tags from entities
SUFFIXES = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".parquet": "parquet", ".arrow": "arrow"}
NAMES = {"train": ("train",), "dev": ("validation", "valid", "val", "dev"), "test": ("test",)}
SHARD = re.compile(r"(?P<split>\w+?)-\d{5}-of-\d{5}")
PARTS: dict[str, tuple[str, str, str, dict[str, str]]] = {  # format, kind, metric, columns
    "pos": ("conllu", "tag", "tag_accuracy", {"words": "words", "labels": "upos"}),
    "dep": ("conllu", "dependencies", "las", {"words": "words", "heads": "heads", "labels": "deprels"}),
    "ner": ("columns", "spans", "span_f1", {"words": "words", "labels": "labels"}),
    "con": ("trees", "constituents", "bracket_f1", {"words": "words", "tree": "tree"}),
    "srl": ("conll2012", "frames", "srl_f1", {"words": "words", "frames": "frames"}),
    "qa": ("squad", "answer", "answer_f1", {name: name for name in ("id", "question", "context", "answers", "starts")}),
}


def own(spec: str, language: str = "en") -> Task:
    """A task from one's own files: ``name=file:columns``, or ``name=folder``.

    Columns are named in the order text, label (or text, text_b, label); a table whose columns can be read in one way
    only needs none. A language other than English follows a dot: ``qa.es`` compares answers by the rules of Spanish.
    ``reviews.dev.csv`` and ``reviews.test.csv`` beside ``reviews.csv`` are its other splits; without them the file is
    cut 80/10/10 by a seed. ``mine@prompt=reviews.csv:text,label`` is a task for language models.

    Example:
        >>> own("mine=reviews.csv:text,label").rows("dev")  # doctest: +SKIP
    """
    refuse_data(spec)
    name, mark, rest = spec.partition("=")
    base, at, options = name.partition("@")
    if at:
        return prompted(own(f"{base}={rest}", language), name=name, **options_of(options))
    file, _, columns = rest.rpartition(":") if ":" in rest else (rest, "", "")
    if not (mark and name and file):
        raise HeadwiseError(f"task {spec!r}", "name=file:columns", "mine=reviews.csv:text,label")
    path = Path(file).expanduser()
    if not path.exists():
        raise HeadwiseError(f"no file {path}")
    part, _, code = columns.partition(".")
    if path.is_file() and part in PARTS:
        form, kind, metric, fields = PARTS[part]
        layout, language = Layout(form, _beside(path), fields), code or language
        metric = answer_f1(language) if part == "qa" else metric
        return Task(name, kind_class(kind)(), Files(layout, path.parent, kind), metric, language)
    form, root, files = _files(name, path)
    if form in ("pictures", "sounds"):
        return _labelled(name, form, root, files, language)
    options = {"classes": True} if form in ("parquet", "arrow") else {}
    source = Files(Layout(form, files, {}, options=options), root, "classify")
    return _of_files(name, source, columns.split(",") if columns else (), language)


def from_data(name: str, data: Any, columns: Any = (), language: str = "en") -> Task:
    """A task from a Dataset or a DatasetDict, a DataFrame, records, a mapping from splits to these, or a folder."""
    if isinstance(data, str | Path):
        joined = ",".join(columns) if not isinstance(columns, Mapping) else ""
        return own(f"{name}={data}" + (f":{joined}" if joined else ""), language)
    parts = {_split(key): part for key, part in data.items()} if _has_splits(data) else {"all": data}
    coded = {column: words for part in parts.values() for column, words in _class_names(part).items()}
    records = {split: _records(part, coded) for split, part in parts.items()}
    first = next((part[0] for part in records.values() if part), None)
    if first is None:
        raise HeadwiseError(f"no rows for task {name!r}", "one or more")
    way = reading(first, _listed(columns), list(coded))
    labels = tuple(coded.get(way.columns.get("labels", way.columns.get("label", "")), ()))
    kind, layout = _kind_of(way, (r for part in records.values() for r in part)), Layout("rows", {}, _fields(way))
    labels = labels if kind in ("classify", "tag") else ()
    counts: Counter = Counter()
    numbered = {split: ((f"{split} row {i}", r) for i, r in enumerate(part)) for split, part in records.items()}
    rows = {split: rows_of(part, layout, split, kind, labels, counts) for split, part in numbered.items()}
    return _task(name, kind, Rows(**_splits(rows)), labels, language, f"task {name!r}", way)


def _of_files(name: str, source: Files, columns: Sequence[str], language: str) -> Task:
    """A task from tables: their first records say how they are read."""
    head = [record for split in source.splits[:1] for _, record in islice(source.records(_part(source, split)), HEAD)]
    if not head or head[0] is None:
        raise HeadwiseError(f"no rows in {source.origin}", "one or more")
    path = source.paths(_part(source, source.splits[0]))[0]
    coded = class_names(path) if source.layout.format in ("parquet", "arrow") else {}
    try:
        way = reading(head[0], columns, list(coded))
    except HeadwiseError as error:
        raise HeadwiseError(f"{path}: {error.seen}", error.expected, error.hint) from None
    kind = _kind_of(way, head)
    layout = Layout(source.layout.format, source.layout.files, _fields(way), options=source.layout.options)
    labels = tuple(coded.get(way.columns.get("label") or way.columns.get("labels", ""), ()))
    labels = labels if kind in ("classify", "tag") else ()
    return _task(name, kind, Files(layout, source.root, kind, labels), labels, language, str(path), way)


def _task(name: str, kind: str, source: Any, labels: tuple[str, ...], language: str, where: str, way: Reading) -> Task:
    if kind != "classify":
        metrics = {"tag": "tag_accuracy", "spans": "span_f1", "transcript": "token_probability"}
        options = {"labels": labels} if labels else {}
        if kind == "transcript" and isinstance(source, Files):
            options = {"folder": str(source.root)}
        return Task(name, kind_class(kind)(**options), source, metrics.get(kind) or answer_f1(language), language)
    splits = getattr(source, "splits", None) or [split for split in SPLITS if getattr(source, split)]
    rows = {split: source.read(split) for split in splits}
    observed = sorted({label for part in rows.values() for label in _labels_in(part)})
    texts = [column for field, column in way.columns.items() if field != "label"]
    if isinstance(source, Files):
        _refuse_empty(source, texts)
    grades = _grades(observed) if not labels else []
    if len(set(grades or observed)) < 2:
        raise HeadwiseError(f"{where}: only one label, {observed}", "two labels or more")
    if grades:
        graded = Files(source.layout, source.root, "regress") if isinstance(source, Files) else _as_grades(rows)
        return Task(name, kind_class("regress")(low=min(grades), high=max(grades)), graded, "spearman", language)
    _check_labels(where, way.columns["label"], rows, observed)
    return Task(name, kind_class("classify")(labels or tuple(observed)), source, "accuracy", language)


def _as_grades(rows: Mapping[str, list[Row]]) -> Rows:
    return Rows(**{split: [{**row, "label": float(row["label"])} for row in part] for split, part in rows.items()})


def _kind_of(way: Reading, records: Iterable[Any]) -> str:
    """Entities are labelled in BIO; every other label of words is a tag."""
    if way.shape != "words":
        return {"texts": "classify", "answers": "answer", "recordings": "transcript"}[way.shape]
    column = way.columns["labels"]
    seen = {label for record in islice(records, HEAD) if record for label in record.get(column) or ()}
    entities = {label for label in seen if isinstance(label, str) and label[:2] in ("B-", "I-")}
    return "spans" if entities and seen - entities <= {"O"} else "tag"


def _fields(way: Reading) -> dict[str, str]:
    return {"id": "id", "starts": "starts", **way.columns} if way.shape == "answers" else way.columns


# -- files


def _files(name: str, path: Path) -> tuple[str, Path, dict[str, str]]:
    """The format, the folder and the files of each split, for a file or a folder."""
    if path.is_file():
        form = SUFFIXES.get(path.suffix.lower())
        if form is None:
            expected = f"a {', '.join(SUFFIXES)} file with text,label or text,text_b,label"
            hint = (
                f"{name}=reviews.csv:text,label, or {name}={path.name}:qa (pos, dep, ner, con, srl) of annotated files"
            )
            raise HeadwiseError(f"{path.name}", expected, hint)
        return form, path.parent, _beside(path)
    if (path / "dataset_dict.json").is_file():
        there = read_json(path / "dataset_dict.json").get("splits", [])
        return "arrow", path, {_split(split): f"{split}/*.arrow" for split in there}
    if (path / "state.json").is_file():
        return "arrow", path, {"all": "*.arrow"}
    for root in (path, path / "data"):
        for suffix, form in SUFFIXES.items():
            patterns = [
                (s, f"{n}{tail}{suffix}") for s, names in NAMES.items() for n in names for tail in ("", "-*-of-*")
            ]
            files = {split: pattern for split, pattern in patterns if any(root.glob(pattern))}
            if files:
                return form, root, {"all": files["train"]} if set(files) == {"train"} else files
    parts = {split: split for split in SPLITS if (path / split).is_dir()}
    return "sounds" if any(path.rglob("*.wav")) else "pictures", path, parts or {"all": "."}


def _beside(path: Path) -> dict[str, str]:
    """A file and the other splits beside it; without any it is cut."""
    if shard := SHARD.match(path.name):
        tail = path.name[shard.end() :]
        named = [(split, f"{n}-*-of-*{tail}") for split, names in NAMES.items() for n in names]
        files = {split: pattern for split, pattern in named if any(path.parent.glob(pattern))}
        own_part = _split(shard["split"]) if shard["split"] in sum(NAMES.values(), ()) else "train"
        files.setdefault(own_part, f"{shard['split']}-*-of-*{tail}")
        return {"all": files["train"]} if set(files) == {"train"} else files
    stem = path.name.removesuffix(path.suffix).removesuffix(".train")
    others = {split: f"{stem}.{split}{path.suffix}" for split in ("dev", "test")}
    files = {split: other for split, other in others.items() if (path.parent / other).exists()}
    return {"train": path.name, **files} if files else {"all": path.name}


def _part(source: Files, split: str) -> str:
    return split if split in source.layout.files else "all"


def _labelled(name: str, form: str, path: Path, files: dict[str, str], language: str) -> Task:
    """A task of pictures or recordings in a folder for each class."""
    kind = form.removesuffix("s")
    source = Files(Layout(form, files, {"path": "path", "label": "label"}), path, kind)
    labels = sorted({row["label"] for split in source.splits for row in source.read(split)})
    if not labels:
        expected = "pictures or .wav files in a folder for each label, train.csv or the like, or save_to_disk's folder"
        raise HeadwiseError(f"no data in {path}", expected, f"{name}=FILE:text,label")
    return Task(name, kind_class(kind)(labels=tuple(labels)), source, "accuracy", language)


# -- data in memory


def _has_splits(data: Any) -> bool:
    return isinstance(data, Mapping) and bool(data) and not hasattr(data, "iloc")


def _split(name: Any) -> str:
    matches = [split for split, names in NAMES.items() if str(name) in names]
    if not matches:
        raise HeadwiseError(f"a split named {name!r}", "train, validation (or dev) and test")
    return matches[0]


def _splits(rows: Mapping[str, list[Row]]) -> dict[str, list[Row]]:
    if "all" in rows:
        return portions(rows["all"])
    rows = {split: part for split, part in rows.items() if part}
    if "train" in rows and "dev" not in rows:
        warnings.warn("no validation split: a tenth of the training rows is held out", HeadwiseWarning, stacklevel=4)
        cut = portions(rows["train"])
        rows = {**rows, "train": cut["train"] + cut["test"], "dev": cut["dev"]}
    return dict(rows)


def _class_names(part: Any) -> dict[str, list[str]]:
    """The names behind the numbers of ClassLabel columns (datasets) and of categories (pandas)."""
    by_column = {}
    for column, feature in dict(getattr(part, "features", None) or {}).items():
        if names := feature_names(feature):
            by_column[column] = list(names)
    return by_column


def _records(part: Any, coded: Mapping[str, list[str]]) -> list[dict]:
    """Records with names for numbers; rows whose label is hidden (-1) are skipped."""
    return [decoded(dict(record), coded) for record in items_of(part) if not _hidden(record, coded)]


def _hidden(record: Mapping, coded: Mapping[str, list[str]]) -> bool:
    return any(record.get(column) == -1 for column in coded)


def _listed(columns: Any) -> Any:
    return columns.split(",") if isinstance(columns, str) else columns or ()


# -- labels


def _check_labels(where: str, column: str, rows: Mapping[str, list[Row]], labels: list[str]) -> None:
    """Refuse a column that is no label; warn of labels that are written in two ways or never trained."""
    count = sum(len(part) for part in rows.values())
    if count >= FEW and 2 * len(labels) > count:
        seen = f"{where}: {len(labels)} labels in {count} rows, such as {labels[0][:40]!r}"
        raise HeadwiseError(seen, f"classes in the column {column!r}, which is the last one named")
    spelled = {label: meaning(label) for label in labels}
    ways = Counter(spelled.values())
    alike = [label for label in labels if ways[spelled[label]] > 1]
    trained = _labels_in(rows.get("train", []))
    unseen = [label for label in labels if label not in trained]
    notes = {
        "labels that differ only in spaces or case, or in how a number is written": alike,
        "labels that no training row has": unseen,
    }
    for what, concerned in ((what, concerned) for what, concerned in notes.items() if concerned):
        warnings.warn(f"{Path(where).name}: {what}: {concerned[:8]}", HeadwiseWarning, stacklevel=4)


def _labels_in(rows: Sequence[Row]) -> set[Any]:
    return set(rows.label_counts()) if isinstance(rows, TextTable) else {row["label"] for row in rows}


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
