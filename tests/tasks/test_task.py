"""Copies of a task share what was read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headwise import tasks
from headwise.tasks.kinds.classify import Classify
from headwise.tasks.task import Rows, Task


def one(text: str, label) -> dict:
    return {"text": text, "text_b": None, "label": label}


def test_copies_of_a_task_share_what_was_read_and_a_new_source_is_read():
    class Once(Rows):
        def read(self, split):
            asked.append(split)
            return super().read(split)

    asked, rows = [], [[one(a, "x"), one(b, "y")] for a, b in ("ab", "cd")]
    task = Task("t", Classify(), Once(rows[0], rows[0]), "accuracy")
    ready = task.ready()
    assert task.rows("dev") is ready.rows("dev") and asked == ["train", "dev"]
    for other in (replace(task, source=Rows(rows[1], rows[1])), task, ready):
        assert other.rows("dev") == rows[other.source is not task.source]
    assert asked == ["train", "dev"]


@pytest.mark.parametrize("name", sorted(tasks._HOME))
def test_every_public_name_is_there(name):
    assert getattr(tasks, name) is not None
