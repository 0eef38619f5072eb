"""Tasks are found by name, described and counted."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headwise.errors import HeadwiseError
from headwise.models.multitask import MultiTaskModel
from headwise.tasks import Rows, Task, describe, get, names, own, statistics
from headwise.tasks.catalog.sentences import catalog
from headwise.tasks.lookup import kind_class


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
    assert (found["rows"], found["published"], found["empty"], found["skipped"]) == (4, 9, 1, 0)
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


@pytest.mark.parametrize("name", ["corpus.sentiment", "corpus.pos.es"])
def test_tasks_of_the_corpus_come_by_the_same_door(name):
    assert name in names()
    task = get(name)
    assert (task.name, task.language) == (name, "es" if name.endswith(".es") else "en")
    assert "corpus" in describe(name)["origin"]
    with pytest.raises(HeadwiseError, match="unknown corpus task"):
        get("corpus.sentimant")


@pytest.mark.parametrize("name", ["reviews.csv", "data/sst2.csv", "data/sst2"])
def test_a_file_in_place_of_a_name_says_how_files_are_given(name):
    with pytest.raises(HeadwiseError, match=rf"to use a file: --task NAME={name}:text,label"):
        get(name)


def test_a_table_in_place_of_a_name_says_how_it_becomes_a_task():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"text": ["a", "b"], "label": ["x", "y"]})
    for call in (get, own, lambda given: MultiTaskModel.from_pretrained("bert-tiny", given)):
        with pytest.raises(HeadwiseError, match=r'Task\.from_pandas\("NAME", data\)'):
            call(frame)
    with pytest.raises(HeadwiseError, match=r'a dict in place of a task.*Task\.from_dataset\("NAME", data\)'):
        MultiTaskModel.from_pretrained("bert-tiny", {"train": frame})
