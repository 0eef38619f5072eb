"""What a page may ask is bounded, and everything else is refused with the reason."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.errors import HeadwiseError
from headwise.lab.asks import CHOICES, LONGEST, Ask

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
