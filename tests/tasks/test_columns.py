"""Ragged columns are the lists they were made of: taken, padded, stored and read back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwise import tasks
from headwise.tasks.columns import Ragged, from_arrays, stepped, to_arrays
from headwise.tasks.kinds.classify import Classify
from headwise.tasks.task import Rows, Task

lists = st.lists(st.lists(st.integers(0, 99), max_size=5), min_size=1, max_size=6)


@given(lists, st.data())
def test_taken_rows_are_the_lists_in_the_order_asked_for(rows, data):
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=8))
    taken = Ragged.of(rows).take(chosen)
    assert len(taken) == len(chosen)
    assert [taken[i].tolist() for i in range(len(taken))] == [rows[i] for i in chosen]
    assert taken.lengths.tolist() == [len(rows[i]) for i in chosen]


@given(lists, st.integers(1, 4))
def test_padding_fills_on_the_right_and_never_beyond_the_longest_row(rows, grain):
    padded = Ragged.of(rows).padded(range(len(rows)), fill=-1, grain=grain)
    assert padded.shape[1] == max(map(len, rows)), "all rows are there, so the longest is"
    for row, line in zip(rows, padded.tolist(), strict=True):
        assert line == row + [-1] * (len(line) - len(row))


@given(lists)
def test_columns_come_back_from_flat_arrays(rows):
    columns = {"ids": Ragged.of(rows), "label": np.arange(len(rows))}
    back = from_arrays(to_arrays(columns))
    assert list(back) == list(columns)
    assert [back["ids"][i].tolist() for i in range(len(rows))] == rows
    assert back["label"].tolist() == columns["label"].tolist()


def test_rows_may_hold_tuples():
    spans = Ragged.of([[(0, 2, 1)], [], [(1, 1, 0), (3, 4, 2)]], width=3)
    assert spans.padded([2, 1]).tolist() == [[[1, 1, 0], [3, 4, 2]], [[-1, -1, -1], [-1, -1, -1]]]


@pytest.mark.parametrize(
    ("width", "grain", "most", "wanted"), [(5, 4, 99, 8), (8, 4, 99, 8), (9, 4, 10, 10), (0, 4, 9, 0)]
)
def test_widths_go_up_in_steps(width, grain, most, wanted):
    assert stepped(width, grain, most) == wanted


# -- copies of a task share what was read


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
