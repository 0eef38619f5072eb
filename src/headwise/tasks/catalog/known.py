"""The known tasks as data, and the source that locates their rows (no torch)."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from headwise.errors import HeadwiseError, HeadwiseWarning, unknown
from headwise.io.files import read_json
from headwise.tasks.readers.sources import Files, Hub, Layout
from headwise.tasks.task import SPLITS, Row

NOT_FOUND = "not found"
_warned: set[tuple] = set()


@dataclass(frozen=True)
class Known:
    """A task of the catalog as data: its kind, labels, metric, published sizes and possible locations of its rows.

    Attributes:
        kind: the name of a kind, see ``headwise.tasks.readers.shape``.
        sizes: published number of rows per split.
        dev: the split that serves as dev if there is none.
        parallel: tasks with the same value contain the same items in several languages.
        options: further arguments of the kind.
        made_from: the task whose rows it is made from, where its own files are not there.
    """

    name: str
    kind: str
    metric: str
    layouts: tuple[Layout, ...]
    labels: tuple[str, ...] = ()
    hub: Layout | None = None
    language: str = "en"
    sizes: Mapping[str, int] = field(default_factory=dict)
    dev: str = "dev"
    parallel: str = ""
    note: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    made_from: str = ""


@dataclass(frozen=True)
class Finder:
    """The source of a known task: the first of the user's locations that has it."""

    known: Known
    data: Path | None = None
    order: tuple[str, ...] = ("folder", "hub")
    differs: dict[str, tuple[int, int]] = field(default_factory=dict, repr=False, compare=False)  # found and published

    @cached_property
    def place(self) -> Files | Hub:
        tried = []
        for name in self.order:
            if name not in ("folder", "hub"):
                raise unknown("source", name, ("folder", "hub"))
            source = self._folder(tried) if name == "folder" else self._hub(tried)
            if source is not None:
                return source
        raise HeadwiseError(f"{self.known.name}: {'; '.join(tried)}", "", "give the folder by --data or HEADWISE_DATA")

    def _folder(self, tried: list[str]) -> Files | None:
        if self.data is None:
            tried.append("no data folder was named")
            return None
        if not self.data.is_dir():
            raise HeadwiseError(f"no folder {self.data}", "the folder that holds the data")
        for layout in self.known.layouts:
            files = Files(layout, self.data, self.known.kind, self.labels)
            if files.splits:
                return files
        patterns = [str(next(iter(layout.files.values()))) for layout in self.known.layouts]
        tried.append(f"not in {self.data} (looked for {', '.join(patterns)})")
        return None

    def _hub(self, tried: list[str]) -> Hub | None:
        if self.known.hub is None:
            tried.append("it is not on the Hub in a form we know")
            return None
        return Hub(self.known.hub, self.known.kind, self.labels, "".join(f"{place}; " for place in tried))

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The label names: the catalog's, or those of a manifest beside the data."""
        if self.known.labels or self.known.kind != "classify" or self.data is None:
            return self.known.labels
        return manifest_labels(self.data, self.known.name.replace(".", "/"))

    def read(self, split: str) -> list[Row]:
        there = self.place.splits
        part = self.known.dev if split == "dev" and "dev" not in there else split
        rows = self.place.read(part)
        if self.known.parallel:
            for i, row in enumerate(rows):
                row["item"] = f"{self.known.parallel}/{row.get('id', f'{part}/{i}')}"
        self._compare(split, part, len(rows))
        return rows

    def _compare(self, split: str, part: str, count: int) -> None:
        if "all" in self.place.layout.files and part not in self.place.layout.files:
            split, part, count = "all", "all", sum(len(self.place.read(each)) for each in self.place.splits)
        published = {**self.known.sizes, **self.place.layout.sizes}.get(part)
        if published is None or published == count:
            return
        self.differs[split] = (count, published)
        mark = (self.known.name, split, count, self.origin)
        if mark not in _warned:
            _warned.add(mark)
            text = f"{self.known.name}/{split} has {count} rows, the published split {published} ({self.origin})"
            warnings.warn(text, HeadwiseWarning, stacklevel=4)

    @property
    def splits(self) -> list[str]:
        """The splits that exist as such."""
        return self.place.splits

    @property
    def counts(self) -> dict[str, Counter]:
        return self.place.counts

    @property
    def origin(self) -> str:
        try:
            return self.place.origin
        except HeadwiseError:
            return NOT_FOUND


def manifest_labels(data: Path, task: str) -> tuple[str, ...]:
    """Label names of a task in the ``manifest.json`` beside the data, if any."""
    path = data / "manifest.json"
    tasks = read_json(path).get("tasks", {}) if path.is_file() else {}
    given = tasks.get(task, {}).get("labels")
    if isinstance(given, dict) and "names" in given:
        return tuple(given["names"])
    return tuple(given[key] for key in sorted(given, key=int)) if isinstance(given, dict) else ()


def data_folder(data: str | Path | None = None) -> Path | None:
    """The data folder: the argument, or ``HEADWISE_DATA``."""
    given = data or os.environ.get("HEADWISE_DATA")
    return Path(given).expanduser() if given else None


Columns = Mapping[str, Any]
NONE: Mapping = MappingProxyType({})


def one(text: str | tuple[str, ...], label: str = "label") -> dict[str, Any]:
    """The columns of a text and its label."""
    return {"text": text, "label": label}


def two(text: str | tuple[str, ...], text_b: str | tuple[str, ...], label: str = "label") -> dict[str, Any]:
    """The columns of a pair of texts and its label."""
    return {"text": text, "text_b": text_b, "label": label}


PACKED = two("text_a", "text_b")


def sizes(train: int | None = None, dev: int | None = None, test: int | None = None) -> dict[str, int]:
    return {split: size for split, size in zip(SPLITS, (train, dev, test)) if size is not None}


def per_split(pattern: str, train: str = "train", dev: str = "dev", test: str = "test") -> dict[str, str]:
    """The same path for each split, with the split's word filled in."""
    return {split: pattern.replace("{split}", word) for split, word in zip(SPLITS, (train, dev, test)) if word}


def parquet(
    folder: str,
    columns: Columns = PACKED,
    without: str = "",
    size: tuple = (),
    odd: Mapping = NONE,
    where: Mapping = NONE,
) -> Layout:
    """``<folder>/<split>.parquet``; ``odd`` maps a split to a file name (or path) that differs.

    Rows where the column ``without`` is null are skipped; rows without the values of ``where`` belong to another task.
    """

    def file(split: str) -> str:
        name = f"{folder}/{split}.parquet"
        if split not in odd:
            return name
        return f"{name}|{odd[split] if '/' in odd[split] else f'{folder}/{odd[split]}'}.parquet"

    files = {split: file(split) for split in SPLITS}
    left_out = {without: (None,)} if without else {}
    return Layout("parquet", files, columns, where=dict(where), leave_out=left_out, sizes=sizes(*size))


def by_index(layout: Layout, labels: Sequence[str]) -> Layout:
    """A layout whose numbers are indices into ``labels``, although these are numbers themselves."""
    return replace(layout, names={str(place): label for place, label in enumerate(labels)})


def table(
    files: Mapping, columns: Columns, *header: str, format: str = "tsv", names: Mapping = NONE, **rest: Any
) -> Layout:
    """Text columns; ``header`` names them if the file has no header line."""
    return Layout(format, files, columns, dict(names), {"header": header} if header else {}, **rest)


def glue(folder: str, columns: Columns, *header: str, dev: str = "dev", lenient: bool = False) -> Layout:
    """GLUE's folders of tab-separated files; its test sets carry no labels, so there is no test split."""
    files = {"train": f"{folder}/train.tsv", "dev": f"{folder}/{dev}.tsv"}
    return Layout("tsv", files, columns, options={"header": header or None, "lenient": lenient})


def hub(path: str, config: str | None, columns: Columns, branch: bool = False, **rest: Any) -> Layout:
    """A data set of the Hub; ``branch`` reads its parquet branch, for data sets that used to need a script."""
    options = {"path": path, "config": config, "parquet_branch": branch}
    files = rest.pop("files", {"train": "train", "dev": "validation", "test": "test"})
    return Layout("hub", files, columns, options=options, **rest)


ROWS = 1000  # pairs of a paradigm
PHENOMENA = {
    "anaphor_agreement": "anaphor_gender_agreement anaphor_number_agreement",
    "argument_structure": "causative drop_argument inchoative intransitive passive_1 passive_2 transitive",
    "binding": """
        principle_A_c_command principle_A_case_1 principle_A_case_2 principle_A_domain_1 principle_A_domain_2
        principle_A_domain_3 principle_A_reconstruction""",
    "control_raising": """
        existential_there_object_raising existential_there_subject_raising expletive_it_object_raising
        tough_vs_raising_1 tough_vs_raising_2""",
    "determiner_noun_agreement": """
        determiner_noun_agreement_1 determiner_noun_agreement_2 determiner_noun_agreement_irregular_1
        determiner_noun_agreement_irregular_2 determiner_noun_agreement_with_adj_2
        determiner_noun_agreement_with_adj_irregular_1 determiner_noun_agreement_with_adj_irregular_2
        determiner_noun_agreement_with_adjective_1""",
    "ellipsis": "ellipsis_n_bar_1 ellipsis_n_bar_2",
    "filler_gap_dependency": """
        wh_questions_object_gap wh_questions_subject_gap wh_questions_subject_gap_long_distance wh_vs_that_no_gap
        wh_vs_that_no_gap_long_distance wh_vs_that_with_gap wh_vs_that_with_gap_long_distance""",
    "irregular_forms": "irregular_past_participle_adjectives irregular_past_participle_verbs",
    "island_effects": """
        adjunct_island complex_NP_island coordinate_structure_constraint_complex_left_branch
        coordinate_structure_constraint_object_extraction left_branch_island_echo_question
        left_branch_island_simple_question sentential_subject_island wh_island""",
    "npi_licensing": """
        matrix_question_npi_licensor_present npi_present_1 npi_present_2 only_npi_licensor_present only_npi_scope
        sentential_negation_npi_licensor_present sentential_negation_npi_scope""",
    "quantifiers": """
        existential_there_quantifiers_1 existential_there_quantifiers_2 superlative_quantifiers_1
        superlative_quantifiers_2""",
    "s-selection": "animate_subject_passive animate_subject_trans",
    "subject_verb_agreement": """
        distractor_agreement_relational_noun distractor_agreement_relative_clause
        irregular_plural_subject_verb_agreement_1 irregular_plural_subject_verb_agreement_2
        regular_plural_subject_verb_agreement_1 regular_plural_subject_verb_agreement_2""",
}
PARADIGMS = tuple(name for names in PHENOMENA.values() for name in names.split())
PAIRS = {"good": "sentence_good", "bad": "sentence_bad", "number": "pair_id"}


def blimp(name: str) -> Known:
    """``blimp``, or ``blimp.`` and a phenomenon or paradigm."""
    part = name.removeprefix("blimp").removeprefix(".")
    where = {"term": part} if part in PHENOMENA else {"uid": part} if part else {}
    if part and part not in (*PHENOMENA, *PARADIGMS):
        raise unknown("phenomenon or paradigm of BLiMP", part, (*PHENOMENA, *PARADIGMS))
    paradigms = PHENOMENA[part].split() if part in PHENOMENA else PARADIGMS if not part else (part,)
    return Known(
        name,
        "choice",
        "accuracy",
        (parquet("blimp", PAIRS, where=where),),
        sizes=sizes(None, None, ROWS * len(paradigms)),
        dev="test",
        note="which of a minimal pair is likelier",
    )
