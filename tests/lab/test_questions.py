"""A text as each kind of task reads it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.errors import HeadwiseError
from headwise.lab.questions import CHOICES, LONGEST, Ask, question, row_of, scores_of
from headwise.tasks.kinds.answer import Answer
from headwise.tasks.kinds.classify import Classify
from headwise.tasks.kinds.image import Picture
from headwise.tasks.kinds.tag import Tag
from headwise.tasks.prompts.prompted import prompted
from headwise.tasks.task import Rows, Task
from headwise.testing import toy_language_model, toy_model, toy_tasks


def task(kind) -> Task:
    return Task("t", kind, Rows(), "accuracy")


def test_rows_have_what_a_kind_asks_for():
    assert row_of(task(Classify(("a", "b"))), ("x y", "z")) == {"text": "x y", "text_b": "z", "label": "a"}
    assert "text_b" not in row_of(task(Classify(("a", "b"))), ("x y", " "))
    assert row_of(task(Tag(("N",))), ("x y", ""))["words"] == ["x", "y"]
    assert row_of(task(Answer()), ("who?", "he did"))["context"] == "he did"


@pytest.mark.parametrize(
    ("kind", "texts", "words"),
    [
        (Answer(), ("who?", ""), "context"),
        (Picture(("a", "b")), ("/etc/passwd", ""), "pictures"),
        (Tag(("N",)), (" ", ""), "no text"),
    ],
)
def test_what_cannot_be_read_is_refused(kind, texts, words):
    with pytest.raises(HeadwiseError, match=words):
        row_of(task(kind), texts)


def test_a_template_is_filled_and_own_prompts_are_taken_as_they_are():
    made = prompted(toy_tasks(1)[0])
    row = row_of(made, ("a fine film", ""))
    assert "a fine film" in row["prompt"] and row["choices"] == list(made.kind.choices)
    lm = toy_language_model()
    assert row_of(lm.tasks["short"], ("w1", ""), ["w2", "w3"]) == {"prompt": "w1", "choices": ["w2", "w3"], "label": 0}
    with pytest.raises(HeadwiseError, match="two choices"):
        row_of(lm.tasks["short"], ("w1", ""), ["w2"])
    with pytest.raises(HeadwiseError, match="continuation"):
        row_of(lm.tasks["after"], ("w1", ""))


def test_tasks_of_one_encoder_share_a_forward_and_copies_are_equal():
    model = toy_model(3).eval()
    found = question(model, ("w1 w2 w3", ""), ())
    assert len(found.groups) == 1 and len(found.groups[0]) == 3
    with torch.no_grad():
        once, thrice = scores_of(model, found.groups[0]), scores_of(model, found.groups[0], 3)
    for (_, _, one), (_, _, three) in zip(once, thrice):
        assert three.shape[0] == 3 and torch.allclose(three, one.expand_as(three), atol=1e-6)


OPEN = ((1.0, 1.0), (1.0, 1.0))


def test_an_ask_is_read_and_without_gates_all_heads_are_open():
    ask = Ask.read({"text": "a", "other": "b", "choices": ["x", "y"], "close": "mean", "seed": 3}, (2, 2))
    assert ask == Ask(("a", "b"), ("x", "y"), OPEN, "mean", 3) and ask.closed == 0
    assert Ask.read({"gates": [[0, 0.5], [1, 1]]}, (2, 2)).closed == 2


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], "a list"),
        ({"text": 1}, "text that is a int"),
        ({"text": "x" * (LONGEST + 1)}, f"{LONGEST} at most"),
        ({"choices": "a"}, "list"),
        ({"choices": ["a"] * (CHOICES + 1)}, "16"),
        ({"choices": [None]}, "choice"),
        ({"gates": [[1, 1]]}, "2 rows"),
        ({"gates": [[1, 1], [1]]}, "2 rows"),
        ({"gates": [[1, 1], [1, 2]]}, "0 to 1"),
        ({"gates": [[1, 1], [1, float("nan")]]}, "0 to 1"),
        ({"gates": [[1, 1], [1, True]]}, "0 to 1"),
        ({"gates": [[1, 1], [1, "0"]]}, "0 to 1"),
        ({"gates": {}}, "2 rows"),
        ({"close": "optimal"}, "zero"),
        ({"close": ["zero"]}, "zero"),
        ({"seed": -1}, "whole number"),
        ({"seed": 1.5}, "whole number"),
        ({"seed": 2**40}, "whole number"),
    ],
)
def test_anything_else_is_refused(data, words):
    with pytest.raises(HeadwiseError, match=words):
        Ask.read(data, (2, 2))


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60)
@given(
    st.fixed_dictionaries({}, optional={name: JSON for name in ("text", "other", "choices", "gates", "close", "seed")})
)
def test_no_json_breaks_it(data):
    try:
        ask = Ask.read(data, (2, 2))
    except HeadwiseError:
        return
    assert len(ask.gates) == 2 and all(0 <= gate <= 1 for row in ask.gates for gate in row)


def test_halves_of_characters_and_zeros_do_not_reach_tokenizers():
    assert Ask.read({"text": "a\ud800b\x00c"}, (2, 2)).texts[0] == "a?bc"
