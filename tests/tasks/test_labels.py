"""A label means the same in every file format and kind: a number is a label's name before it is an index."""

from __future__ import annotations

import json
from itertools import permutations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwise.errors import HeadwiseError
from headwise.tasks.kinds.classify import Classify
from headwise.tasks.kinds.frames import Frames
from headwise.tasks.kinds.image import Picture
from headwise.tasks.kinds.tag import Spans, Tag
from headwise.tasks.kinds.tree import Dependencies
from headwise.tasks.labels import LabelNames, label_text
from headwise.tasks.lookup import get, statistics
from headwise.tasks.own_files import own
from headwise.tasks.readers.shape import SHAPES
from headwise.tasks.readers.sources import Files, Layout
from headwise.tasks.task import Rows, Task

STARS = ("1", "2", "3", "4", "5")
COLUMNS = {"text": "text", "label": "label"}


def written(folder, suffix: str, labels: list) -> Files:
    """A file with one row for each label."""
    path = folder / f"reviews.{suffix}"
    records = [{"text": f"text {i}", "label": label} for i, label in enumerate(labels)]
    if suffix == "parquet":
        pq.write_table(pa.Table.from_pylist(records), path)
    elif suffix == "jsonl":
        path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    else:
        mark = {"csv": ",", "tsv": "\t"}[suffix]
        path.write_text("".join(f"{a}{mark}{b}\n" for a, b in [("text", "label"), *(r.values() for r in records)]))
    return Files(Layout(suffix, {"train": path.name}, COLUMNS), folder, "classify", STARS)


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet"])
@pytest.mark.parametrize("number", [int, float, str])
def test_numbers_that_are_labels_mean_those_labels_in_every_format(tmp_path, suffix, number):
    rows = written(tmp_path, suffix, [number(label) for label in STARS]).read("train")
    assert [row["label"] for row in rows] == list(STARS)


@pytest.mark.parametrize("labels", [*permutations("012"), ("1", "0"), ("-1", "0", "1"), ("10", "9"), ("2.5", "0.5")])
@pytest.mark.parametrize("number", [int, float, np.int64, np.float32, np.float64])
def test_no_order_of_labels_remaps_numbers(labels, number):
    if any("." in label for label in labels) and number in (int, np.int64):
        return
    assert tuple(LabelNames(labels).of(number(float(label))) for label in labels) == labels


@pytest.mark.parametrize("raw", [1, 1.0, "1", "1.0", np.int64(1), np.float32(1)])
def test_a_number_is_an_index_where_no_label_is_a_number(raw):
    assert LabelNames(("bad", "good")).of(raw) == "good"


WRONG = [
    (STARS, 0, "unknown label 0"),
    (STARS, 6, "unknown label 6"),
    (STARS, -1, "hidden"),
    (STARS, 1.5, "unknown label 1.5"),
    (("1", "many"), 0, "unknown label 0"),  # half of the labels are numbers: no index is meant
    (("bad", "good"), 2, "out of range; expected 0 to 1"),
    (("bad", "good"), 0.5, "unknown label 0.5"),
    (("bad", "good"), True, "write the name of the label"),
    (("0", "1"), True, "write the name of the label"),
    (("1", "1.0"), 1.0, "could mean 1 or 1.0"),
    (("bad", "good"), float("nan"), "on every row"),
    (("bad", "good"), ["good"], "one label"),
    (("bad", "good"), np.array([1, 2]), "one label"),
    (("bad", "good"), None, "on every row"),
]


@pytest.mark.parametrize(("labels", "raw", "message"), WRONG)
def test_what_could_mean_two_labels_or_none_is_refused(labels, raw, message):
    with pytest.raises(HeadwiseError, match=message):
        LabelNames(labels).of(raw)


def test_truth_values_mean_labels_of_that_name():
    assert [LabelNames(("false", "true")).of(raw) for raw in (True, False, np.bool_(True), "true")] == [
        "true", "false", "true", "true",
    ]  # fmt: skip


def test_the_words_of_a_file_win_over_values_and_indices():
    names = LabelNames(("World", "Sports"), {"1": "World", "2": "Sports"})
    assert [names.of(raw) for raw in (1, "1", 2.0, "Sports")] == ["World", "World", "Sports", "Sports"]
    with pytest.raises(HeadwiseError, match="unknown label 0"):
        names.of(0)


def test_without_a_label_set_whole_numbers_are_written_without_a_fraction():
    assert [label_text(raw) for raw in (1, 1.0, "1", 0.5, True, np.float32(2))] == ["1", "1", "1", "0.5", "True", "2"]


def test_kinds_read_numbers_of_python_rows_as_the_labels_they_name():
    tag = Tag(("2", "1"))
    row = {"words": ["a", "b", "c"], "labels": [1, 2.0, "1"], "heads": [0, 1, 1]}
    tag.check(row)
    assert tag.gold([row]) == [["1", "2", "1"]]
    dependencies = Dependencies(("2", "1"))
    dependencies.check(row)
    assert dependencies.gold([row]) == [[(0, "1"), (1, "2"), (1, "1")]]
    assert Classify(("1", "0")).gold([{"text": "a", "label": raw} for raw in (0, 1, 1.0, "0")]) == [1, 0, 0, 1]
    assert Picture(("1", "0")).gold([{"path": "a.png", "label": 0}]) == [1]
    with pytest.raises(HeadwiseError, match="label 7"):
        Spans(("1",)).check({"words": ["a"], "labels": [7]})


def test_kinds_learn_one_label_from_all_ways_to_write_it():
    rows = [{"text": "a", "label": raw} for raw in (1, 1.0, "1", 2)]
    assert Classify().ready(rows).labels == ("1", "2")
    assert Tag().ready([{"words": ["a", "b"], "labels": [1, "2"]}]).labels == ("1", "2")


def test_an_index_is_not_guessed_in_python_rows():
    with pytest.raises(HeadwiseError, match="unknown label 0"):
        Classify(("bad", "good")).check({"text": "a", "label": 0})


@pytest.mark.parametrize(
    ("kind", "labels", "record", "meant"),
    [
        ("tag", ("2", "1"), {"words": ["a", "b"], "labels": [1, 2]}, {"labels": ["1", "2"]}),
        (
            "dependencies",
            ("2", "1"),
            {"words": ["a", "b"], "heads": [2, 0], "labels": [1.0, "2"]},
            {"labels": ["1", "2"]},
        ),
        (
            "frames",
            ("2", "1"),
            {"words": ["a", "b"], "frames": [{"predicate": 0, "arguments": [[0, 1, "V"], [1, 2, 1]]}]},
            {"frames": [{"predicate": 0, "arguments": [[1, 2, "1"]]}]},
        ),
        ("picture", ("2", "1"), {"path": "a.png", "label": 1}, {"label": "1"}),
    ],
)
def test_every_kind_with_labels_reads_numbers_by_name(kind, labels, record, meant):
    row = SHAPES[kind](record, {field: field for field in record}, LabelNames(labels))
    assert {field: row[field] for field in meant} == meant
    if kind == "frames":
        Frames(labels).check(row)


def test_own_files_of_numbers_keep_their_labels(tmp_path):
    lines = [{"text": f"text {i}", "label": i % 5 + 1} for i in range(40)]
    (tmp_path / "stars.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    task = own(f"stars={tmp_path}/stars.jsonl:text,label")
    assert task.kind.labels == STARS
    rows = [row for split in ("train", "dev", "test") for row in task.rows(split)]
    assert {row["text"]: row["label"] for row in rows} == {line["text"]: str(line["label"]) for line in lines}


def test_a_number_written_in_two_ways_is_reported(tmp_path):
    lines = [f"text {i},{('1', '1.0', '2')[i % 3]}\n" for i in range(30)]
    (tmp_path / "mine.csv").write_text("".join(["text,label\n", *lines]))
    with pytest.warns(UserWarning, match=r"how a number is written: \['1', '1.0'\]"):
        own(f"mine={tmp_path}/mine.csv:text,label")


def test_packed_depths_are_indices_by_their_layout(tmp_path):
    folder = tmp_path / "probing_gold/tree_depth"
    folder.mkdir(parents=True)
    rows = [{"text_a": f"text {i}", "text_b": None, "label": i % 7} for i in range(14)]
    table = pa.Table.from_pylist(rows, pa.schema({"text_a": pa.string(), "text_b": pa.string(), "label": pa.int64()}))
    pq.write_table(table, folder / "dev.parquet")
    with pytest.warns(UserWarning, match="published"):
        found = get("probing_gold.tree_depth", tmp_path).rows("dev")
    assert [row["label"] for row in found] == [str(4 + i % 7) for i in range(14)]


def test_statistics_count_labels_that_are_numbers():
    rows = [{"words": ["a", "b"], "labels": [1, 2]}]
    task = Task("mine", Tag(("1", "2")), Rows(train=rows), "tag_accuracy")
    assert statistics(task, "train")["labels"] == {"1": 1, "2": 1}
