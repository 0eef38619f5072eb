"""Rows are checked against the shape that their kind expects."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.errors import HeadwiseError
from headwise.tasks.readers.shape import check_heads

few = settings(max_examples=25, deadline=None)


@st.composite
def heads(draw, size: int) -> list[int]:
    order = draw(st.permutations(range(1, size + 1)))
    found = {order[0]: 0} | {order[i]: order[draw(st.integers(0, i - 1))] for i in range(1, size)}
    return [found[i] for i in range(1, size + 1)]


@few
@given(st.integers(1, 8).flatmap(heads))
def test_every_tree_of_heads_passes(found):
    check_heads(found)


@pytest.mark.parametrize(
    ("found", "message"),
    [([0, 0], "2 roots"), ([2, 1], "0 roots"), ([0, 3, 2], "circle"), ([0, 5], "head 5"), ([-1], "head -1")],
)
def test_heads_that_are_no_tree_are_refused(found, message):
    with pytest.raises(HeadwiseError, match=message):
        check_heads(found)
