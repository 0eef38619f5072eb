"""The catalog: complete, consistent, cheap to list; and the real samples load as their manifest says."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from pathlib import Path

import pytest

from headwise.errors import HeadwiseError
from headwise.tasks import Task, get, names
from headwise.tasks.catalog.known import (
    NOT_FOUND,
    Finder,
    Known,
    by_index,
    glue,
    hub,
    one,
    parquet,
    per_split,
    sizes,
    table,
    two,
)
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


def test_a_split_may_have_a_file_of_its_own():
    plain = parquet("rte", two("premise", "hypothesis"), size=(10, 5))
    assert plain.files == {split: f"rte/{split}.parquet" for split in ("train", "dev", "test")}
    assert plain.sizes == {"train": 10, "dev": 5} == sizes(10, 5)
    odd = parquet("mnli", odd={"dev": "matched", "test": "other/file"})
    assert odd.files["dev"] == "mnli/dev.parquet|mnli/matched.parquet"
    assert odd.files["test"] == "mnli/test.parquet|other/file.parquet"
    assert parquet("sst", one("text"), without="label").leave_out == {"label": (None,)}


def test_patterns_name_the_splits_there_are():
    assert per_split("{split}.txt", dev="valid", test="") == {"train": "train.txt", "dev": "valid.txt"}


def test_glue_has_no_labels_to_test_with():
    assert set(glue("SST-2", one("sentence")).files) == {"train", "dev"}
    assert glue("CoLA", one("text"), "id", "label").options["header"] == ("id", "label")


def test_hub_splits_have_names_of_their_own():
    layout = hub("nyu-mll/glue", "rte", one("text"), files={"train": "train"})
    assert layout.options == {"path": "nyu-mll/glue", "config": "rte", "parquet_branch": False}
    assert layout.files == {"train": "train"}
    assert hub("x", None, one("text")).files["dev"] == "validation"


def test_numbers_may_be_places_in_a_list_of_numbers():
    layout = by_index(table({"train": "a.tsv"}, one("text")), ("3", "1"))
    assert layout.names == {"0": "3", "1": "1"}
