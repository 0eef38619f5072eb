"""Bracketed trees."""

from __future__ import annotations

from hypothesis import strategies as st

from headwise.tasks.readers import brackets
from headwise.tasks.readers.formats import formats

SPACES = ("Cc", "Cs", "Zs", "Zl", "Zp")


word = st.text(st.characters(exclude_categories=SPACES, exclude_characters="\ufeff"), min_size=1, max_size=8)


words = st.lists(word, min_size=1, max_size=7)


@st.composite
def node(draw, leaves: list[brackets.Node]) -> brackets.Node:
    """A bracket over some leaves: cut in one to three parts, each a bracket or a leaf."""
    cuts = sorted(draw(st.sets(st.integers(1, len(leaves) - 1), max_size=2))) if len(leaves) > 1 else []
    parts = [leaves[a:b] for a, b in zip([0, *cuts], [*cuts, len(leaves)])]
    done = all(len(part) == 1 for part in parts) or len(parts) == 1
    below = [part if done or len(part) == 1 else [draw(node(part))] for part in parts]
    return brackets.Node(draw(st.sampled_from(["S", "NP", "VP"])), tuple(child for part in below for child in part))


@st.composite
def tree(draw, found: list[str], tags: list[str]) -> str:
    leaves = [brackets.Node(t, (), brackets.escape(w)) for w, t in zip(found, tags)]
    return brackets.write(brackets.Node("TOP", (draw(node(leaves)),)))


def test_penn_trees_lose_traces_and_function_tags(tmp_path):
    path = tmp_path / "wsj.mrg"
    path.write_text("\n( (S (NP-SBJ=1 (-NONE- *T*) )\n  (VP (VB Go)\n   (PRT|ADVP (RP on))) (-LRB- -LRB-) (. .)) )\n")
    [(start, record)] = formats["trees"].read(path)
    assert start == 2
    assert record["tree"] == "(TOP (S (VP (VB Go) (PRT (RP on))) (-LRB- -LRB-) (. .)))"
    assert record["words"] == ["Go", "on", "(", "."]
