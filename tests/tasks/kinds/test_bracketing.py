"""Constituent trees as labelled binary trees and back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.tasks.kinds.bracketing import Tree


def test_reading_drops_what_is_no_constituent():
    tree = Tree.read("( (S (NP-SBJ=1 (-NONE- *)) (VP (VB go) (ADVP (-NONE- *T*) (RB home))) (. .)))")
    assert tree.words == ["go", "home", "."]
    assert tree.brackets() == [(0, 3, "S"), (0, 2, "VP"), (1, 2, "ADVP"), (2, 3, ".")]
    assert tree.spells(["go", "home", "."])


def test_penn_names_of_marks_spell_the_marks():
    tree = Tree.read("(NP (`` ``) (-LRB- -LRB-) (UH :-RRB-) (CD 1\\/2) ('' ''))")
    assert tree.spells(['"', "(", ":)", "1/2", '"'])
    assert not tree.spells(['"', "(", ":)", "1/2"])


def test_binary_trees_are_made_from_the_left_with_chains_joined():
    tree = Tree.read("(TOP (S (VP (A a) (B b) (NP (C c)) (D d))))")
    assert tree.binary() == [(0, 1, ""), (0, 2, ""), (0, 3, ""), (0, 4, "S+VP"), (1, 2, ""), (2, 3, "NP"), (3, 4, "")]


@st.composite
def penn(draw, depth=4) -> str:
    if depth == 0 or draw(st.booleans()):
        return f"({draw(st.sampled_from(['NN', 'VB', '.']))} w)"
    children = draw(st.lists(penn(depth=depth - 1), min_size=1, max_size=4))
    return f"({draw(st.sampled_from(['S', 'NP', 'VP']))} {' '.join(children)})"


@given(penn())
@settings(max_examples=60, deadline=None)
def test_a_binary_tree_keeps_every_constituent(text):
    tree = Tree.read(text)
    binary = tree.binary()
    assert len(binary) == 2 * len(tree.words) - 1
    opened = sorted((s, e, name) for s, e, label in binary for name in label.split("+") if name)
    assert opened == sorted(bracket for bracket in tree.brackets() if bracket[2] != ".")


@pytest.mark.realdata
@pytest.mark.parametrize("name", ["ewt/dev", "gum_con/dev"])
def test_real_trees_fit_their_words(data_folder, name):
    from pyarrow import parquet

    rows = parquet.read_table(data_folder / f"{name}.parquet", columns=["tokens", "tree"]).to_pylist()
    trees = [(Tree.read(row["tree"]), row["tokens"]) for row in rows if row["tree"]]
    assert trees
    assert all(tree.spells(tokens) and len(tree.binary()) == 2 * len(tokens) - 1 for tree, tokens in trees)
