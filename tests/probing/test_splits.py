"""Sides of a probe: no shared sentences, enough rows on each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headwise.errors import HeadwiseError, HeadwiseWarning
from headwise.probing.splits import splits
from headwise.tasks import Classify, Regress, Rows, Task
from headwise.testing import toy_tasks


def rows(*texts, label=lambda i: "ab"[i % 2]):
    return [{"text": text, "label": label(i)} for i, text in enumerate(texts)]


def words(prefix, count):
    return [f"{prefix}{i}" for i in range(count)]


TASK = Task(
    "t", Classify(("a", "b")), Rows(rows(*words("x", 20)), rows(*words("y", 6)), rows(*words("z", 6))), "accuracy"
)


def leaky():
    train = rows(*words("x", 20), "Y1 !", "z 2", "z3")
    return replace(TASK, source=Rows(train, rows(*words("y", 6), "z0"), rows(*words("z", 6))), _read={})


def test_sides_never_share_a_sentence():
    with pytest.warns(HeadwiseWarning, match="dropped"):
        found = splits(leaky())
    assert found.sizes == {"train": 20, "dev": 6, "test": 6}
    assert len(found.notes) == 2 and "3 of 23 train rows" in " ".join(found.notes)
    with pytest.raises(HeadwiseError, match="without shared texts"):
        splits(leaky(), shared="refuse")
    with pytest.warns(HeadwiseWarning, match="kept"):
        assert splits(leaky(), shared="keep").sizes["train"] == 23


def test_without_test_rows_dev_judges_and_training_rows_choose():
    found = splits(toy_tasks(1)[0])
    assert found.sizes == {"train": 86, "dev": 10, "test": 48} and "dev judges" in found.notes[0]
    assert splits(toy_tasks(1)[0]).key == found.key != splits(toy_tasks(1)[0], seed=1).key
    with pytest.raises(HeadwiseError, match="dev or test"):
        splits(replace(TASK, source=Rows(TASK.rows("train")), _read={}))


def test_a_limit_keeps_a_fifth_on_the_other_sides():
    assert splits(TASK, limit=10).sizes == {"train": 10, "dev": 2, "test": 2}


@pytest.mark.parametrize(
    ("kind", "train", "message"),
    [
        (Classify(("a", "b")), rows(*words("x", 6), label=lambda i: "a"), "one class"),
        (Classify(tuple("abcdefghij")), rows(*words("x", 6)), "10 classes for 6"),
        (Regress(), rows(*words("x", 6), label=lambda i: 2.0), "identical"),
    ],
)
def test_what_cannot_be_probed_is_refused(kind, train, message):
    held = rows(*words("y", 3), label=(lambda i: float(i)) if isinstance(kind, Regress) else lambda i: "ab"[i % 2])
    task = Task("t", kind, Rows(train, held, [r | {"text": r["text"] + "z"} for r in held]), "accuracy")
    with pytest.raises(HeadwiseError, match=message):
        splits(task)
