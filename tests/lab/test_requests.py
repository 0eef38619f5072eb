"""Requests name tasks, layers and rows that exist, and pages by short names."""

from __future__ import annotations

import asyncio

import pytest

from headwise.errors import HeadwiseError
from headwise.lab.requests import EXAMPLES, Desk


@pytest.fixture(scope="module")
def desk(opened):
    made = Desk(opened)
    yield made
    made.close()


def ask(desk, name, **data):
    return asyncio.run(desk.ask(name, {"client": "c", **data}))


def test_examples_are_development_rows(desk, opened):
    found = ask(desk, "examples", task="toy0", start=40)
    rows = opened.subject.tasks["toy0"].rows("dev")
    assert [row["text"] for row in found["rows"]] == [row["text"] for row in rows[40:]] and found["of"] == len(rows)
    assert len(ask(desk, "examples", task="toy0")["rows"]) == EXAMPLES


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("examples", {"task": "nope"}, "unknown task"),
        ("examples", {"task": "toy0", "start": -1}, "0 or more"),
        ("examples", {"task": "toy0", "start": True}, "0 or more"),
        ("why", {"task": ["toy0"]}, "unknown task"),
        ("why", {"task": "next word"}, "unknown task"),
        ("attention", {"layer": 2}, "below 2"),
        ("attention", {"layer": "0"}, "below 2"),
        ("masks", {"what": "shell"}, "python"),
        ("answers", {"client": "a b"}, "no client"),
        ("answers", {"client": None}, "no client"),
    ],
)
def test_what_does_not_exist_is_refused(desk, name, data, words):
    with pytest.raises(HeadwiseError, match=words):
        ask(desk, name, **{"text": "w1", **data})
