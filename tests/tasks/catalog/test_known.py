"""The catalog: complete, consistent, cheap to list; and the real samples load as their manifest says."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from headwise.errors import HeadwiseError
from headwise.tasks import Rows, Task, describe, get, names, statistics
from headwise.tasks.catalog.known import NOT_FOUND, Finder, Known
from headwise.tasks.catalog.sentences import catalog
from headwise.tasks.lookup import KINDS, kind_class
from headwise.tasks.metrics import metrics
from headwise.tasks.readers.formats import formats
from headwise.tasks.readers.shape import SHAPES
from headwise.tasks.task import SPLITS, Kind

ENTRIES = [entry for name in catalog if isinstance(entry := catalog[name], Known)]
NAMED = """cola sst2 mrpc qqp stsb mnli mnli_mm qnli rte agnews agpair scitail imdb snli sick trec mr cr subj xnli_es
    pawsx_en squad_v11 xquad_es mlqa_en tydiqa_en ewt_pos ewt_dep ewt_con ewt_srl ewt_ner gum_con ancora_es_pos
    gsd_es_dep conll2003 wnut17 wikiann_es ontonotes_srl senteval.bigram_shift probing_gold.top_constituents
    xprobe_es.tree_depth"""


@pytest.mark.parametrize("name", NAMED.split())
def test_the_papers_tasks_are_there(name):
    assert name in names()


@pytest.mark.parametrize("entry", ENTRIES, ids=[entry.name for entry in ENTRIES])
def test_every_entry_is_consistent(entry):
    assert entry.metric in metrics
    assert entry.kind in SHAPES and entry.kind in KINDS
    assert isinstance(kind_class(entry.kind)(**entry.options), Kind)
    assert len(set(entry.labels)) == len(entry.labels) != 1
    assert all(layout.format in formats for layout in entry.layouts)
    assert entry.dev in SPLITS
    assert set(entry.sizes) <= {*SPLITS, "all"}
    assert pickle.loads(pickle.dumps(entry)) == entry  # tasks travel to workers


@pytest.mark.parametrize(
    ("name", "metric"), [("qqp", "f1"), ("mrpc", "f1"), ("cola", "mcc"), ("stsb", "spearman"), ("sst2", "accuracy")]
)
def test_the_papers_metrics(name, metric):
    assert get(name).metric == metric


def test_ten_properties_in_each_full_suite():
    for suite in ("senteval", "probing_gold"):
        assert sum(name.startswith(f"{suite}.") for name in names()) == 10


def test_unknown_names_are_told_with_the_nearest():
    with pytest.raises(HeadwiseError, match=r"unknown task 'squad'.*squad_v11"):
        get("squad")
    with pytest.raises(HeadwiseError, match=r"ud\.TREEBANK\.pos"):
        get("ud.en_ewt")
    with pytest.raises(HeadwiseError, match="unknown probing property 'depth'"):
        get("probing.en_ewt.depth")


def test_listing_needs_no_torch_and_no_data():
    code = (
        "import sys; from headwise import tasks\n"
        "rows = [tasks.describe(name) for name in tasks.names() if not name.startswith('corpus.')]\n"
        "assert len(rows) > 200 and not {'torch', 'transformers', 'pyarrow', 'datasets'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_describe_says_the_same_by_name_and_by_task(tmp_path):
    by_name, by_task = describe("rte", tmp_path), describe(get("rte", tmp_path))
    assert by_name == by_task
    assert by_name["kind"] == "classify"
    assert by_name["sizes"] == {"train": 2490, "dev": 277}
    assert by_name["origin"] == "Hugging Face Hub, nyu-mll/glue (rte)"


def test_a_task_literal_can_be_added_to_the_catalog():
    rows = [{"text": "a b", "label": "x"}, {"text": "", "label": "y"}]
    task = Task("test_only.added", kind_class("classify")(("x", "y")), Rows(train=rows), "accuracy")
    catalog.add(task.name, task)
    try:
        assert get(task.name) is task
        assert describe(task.name)["origin"] == "Python rows"
    finally:
        del catalog._entries[task.name]


def test_statistics_count_rows_labels_lengths_and_empties():
    rows = [{"text": "w " * n, "text_b": None, "label": "x" if n else "y"} for n in (0, 3, 3, 12)]
    task = Task("t", kind_class("classify")(("x", "y")), Rows(train=rows), "accuracy", sizes={"train": 9})
    found = statistics(task)
    assert found["split"] == "train"
    assert (found["rows"], found["published"], found["empty"], found["left_out"]) == (4, 9, 1, 0)
    assert found["labels"] == {"x": 3, "y": 1}
    assert found["lengths"] == [(0, 0, 1), (1, 4, 2), (10, 19, 1)]
    assert len(found["examples"]) == 4


@pytest.mark.parametrize(
    ("row", "labels"),
    [
        ({"words": ["a", "b"], "labels": ["B-PER", "O"]}, {"PER": 1}),
        ({"words": ["a", "b"], "labels": ["NOUN", "NOUN"]}, {"NOUN": 2}),
        ({"words": ["a"], "tree": "(S (NP (NN a)))"}, {"S": 1, "NP": 1, "NN": 1}),
        ({"words": ["a"], "frames": [{"predicate": 0, "arguments": [[0, 1, "ARG0"]]}]}, {"ARG0": 1}),
        ({"id": "1", "question": "q", "context": "c", "answers": ["c"], "starts": [0]}, {"answered": 1}),
    ],
)
def test_statistics_know_every_kind_of_row(row, labels):
    class Anything:
        labels = ("x",)

        def check(self, row):
            pass

    task = Task("t", Anything(), Rows(train=[row]), "accuracy")  # type: ignore[arg-type]
    assert statistics(task, "train")["labels"] == labels


# -- real samples


def packed_files(folder: Path) -> dict[str, list[tuple[Known, str]]]:
    """Which known tasks read which packed file, as which split."""
    found: dict[str, list[tuple[Known, str]]] = {}
    for entry in ENTRIES:
        finder = Finder(entry, folder, ("folder",))
        if finder.origin != NOT_FOUND:
            for split in finder.splits:
                for path in finder.place.paths(split):  # type: ignore[union-attr]
                    found.setdefault(str(path.relative_to(folder)), []).append((entry, split))
    return found


HIDDEN = "tydiqa_en/dev.parquet"  # its answers are empty, as in the published test sets


@pytest.mark.realdata
@pytest.mark.filterwarnings("ignore::headwise.errors.HeadwiseWarning")
def test_every_packed_file_loads_with_the_counts_of_the_manifest(data_folder):
    manifest = json.loads((data_folder / "manifest.json").read_text(encoding="utf-8"))["tasks"]
    readers = packed_files(data_folder)
    seen = 0
    for about in manifest.values():
        for part in about["splits"].values():
            for entry, split in readers[part["file"]]:
                seen += 1
                if part["file"] != HIDDEN:
                    check_split(get(entry.name, data_folder), entry, split, part, about)
    assert seen >= 170


def check_split(task: Task, entry: Known, split: str, part: dict, about: dict) -> None:
    rows = task.source.read(split)
    dropped = list(entry.layouts[0].leave_out)
    assert len(rows) == (part["non_null"][dropped[0]] if dropped and "non_null" in part else part["rows"]), task.name
    check_labels(rows, part, about)
    for row in rows[:: max(1, len(rows) // 100)]:
        task.kind.check(row)


@pytest.mark.realdata
def test_hidden_answers_are_told(data_folder):
    with pytest.raises(HeadwiseError, match="these are hidden"):
        get("tydiqa_en", data_folder).rows("dev")


def check_labels(rows: list[dict], part: dict, about: dict) -> None:
    """The manifest's own names for the labels give the manifest's own counts."""
    given = about.get("labels")
    if (
        "label_counts" in part
        and isinstance(given, dict)
        and isinstance(rows[0]["label"], str)
        and "uid" not in rows[0]
    ):
        expected = Counter({given[key]: count for key, count in part["label_counts"].items()})
        assert Counter(row["label"] for row in rows) == expected


@pytest.mark.realdata
@pytest.mark.filterwarnings("ignore::headwise.errors.HeadwiseWarning")
def test_labels_the_manifest_lists_are_known_before_training(data_folder):
    task = get("xprobe_en.word_content", data_folder)
    assert len(task.kind.labels) == 1000  # one of them is in dev but not in train
    assert task.rows("dev")[0]["label"] in task.kind.labels
    for row in task.rows("test")[:200]:
        assert row["label"].lower() in row["text"].lower()


@pytest.mark.realdata
def test_a_minimal_pair_hides_its_good_side(data_folder):
    rows = get("blimp", data_folder).rows("test")
    assert Counter(row["label"] for row in rows) == {0: 33500, 1: 33500}


@pytest.mark.parametrize("name", ["corpus.sentiment", "corpus.pos.es"])
def test_tasks_of_the_corpus_come_by_the_same_door(name):
    assert name in names()
    task = get(name)
    assert (task.name, task.language) == (name, "es" if name.endswith(".es") else "en")
    assert "corpus" in describe(name)["origin"]
    with pytest.raises(HeadwiseError, match="unknown corpus task"):
        get("corpus.sentimant")
