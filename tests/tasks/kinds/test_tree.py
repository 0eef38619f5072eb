"""Dependencies and constituents, and bracketed trees as lists of brackets."""

from __future__ import annotations

import pytest
import torch
from kindlaws import batch_of, check_one_by_one, overfit

from headwise.errors import HeadwiseError
from headwise.tasks.kinds.bracketing import Tree
from headwise.tasks.kinds.tree import Arcs, Brackets, Constituents, Dependencies, fence_posts
from headwise.tasks.metrics import metrics
from headwise.tasks.task import Hidden, Kind

ARCS = [
    {"words": ["the", "dog", "barks"], "heads": [2, 3, 0], "labels": ["det", "nsubj", "root"]},
    {"words": ["bark"], "heads": [0], "labels": ["root"]},
    {
        "words": ["a", "cat", "sees", "Rex", "."],
        "heads": [2, 3, 0, 3, 3],
        "labels": ["det", "nsubj", "root", "obj", "punct"],
    },
    {"words": ["dogs", "bark"], "heads": [2, 0], "labels": ["nsubj", "root"]},
    {"words": ["see", "the", "cat"], "heads": [0, 3, 1], "labels": ["root", "det", "obj"]},
    {"words": ["Rex", "barks", "."], "heads": [2, 0, 2], "labels": ["nsubj", "root", "punct"]},
    {
        "words": ["old", "dogs", "see", "old", "cats"],
        "heads": [2, 3, 0, 5, 3],
        "labels": ["amod", "nsubj", "root", "amod", "obj"],
    },
    {"words": ["the", "cat"], "heads": [2, 0], "labels": ["det", "root"]},
]
CROSSING = {"words": ["a", "b", "c", "d"], "heads": [3, 4, 0, 3], "labels": ["x", "x", "root", "x"]}
TREES = [
    {"words": ["the", "dog", "barks"], "tree": "(TOP (S (NP (DT the) (NN dog)) (VP (VBZ barks))))"},
    {"words": ["bark"], "tree": "(S (VP (VB bark)))"},
    {
        "words": ["a", "cat", "sees", "Rex", "."],
        "tree": "(S (NP (DT a) (NN cat)) (VP (VBZ sees) (NP (NNP Rex))) (. .))",
    },
    {"words": ["dogs", "bark"], "tree": "(S (NP-SBJ (NNS dogs)) (VP (VBP bark)))"},
    {"words": ["old", "dogs"], "tree": "(NP (JJ old) (NNS dogs))"},
    {"words": ["Rex", "(", "dog", ")"], "tree": "(NP (NP (NNP Rex)) (PRN (-LRB- -LRB-) (NP (NN dog)) (-RRB- -RRB-)))"},
    {"words": ["see", "the", "old", "cat"], "tree": "(S (VP (VB see) (NP (DT the) (JJ old) (NN cat))))"},
    {"words": ["dog", "cat", "Rex"], "tree": "(TOP (NN dog) (NN cat) (NNP Rex))"},
]
DEPENDENCIES = [Dependencies(dropout=0, projective=way).ready(ARCS) for way in (True, False)]
CONSTITUENTS = [Constituents(dropout=0, training=way).ready(TREES) for way in ("crf", "span")]


@pytest.mark.parametrize(
    ("kind", "rows", "metric"),
    [(DEPENDENCIES[0], ARCS, "las_punct"), (DEPENDENCIES[1], ARCS, "las_punct")]
    + [(kind, TREES, "bracket_f1") for kind in CONSTITUENTS],
    ids=["eisner", "chu-liu-edmonds", "crf", "span"],
)
class TestBoth:
    def test_batches_equal_one_by_one(self, kind, rows, metric):
        assert isinstance(kind, Kind)
        check_one_by_one(kind, rows)

    def test_learns_its_training_rows_by_heart(self, kind, rows, metric):
        assert overfit(kind, rows, metric) == 1


# -- dependencies


def perfect_arcs(kind, batch) -> Arcs:
    heads, labels = batch["heads"].clamp(min=0), batch["labels"].clamp(min=0)
    size = heads.shape[1]
    arcs = 50 * torch.nn.functional.one_hot(heads, size + 1).float()
    names = 50 * torch.nn.functional.one_hot(labels, len(kind.labels)).float()
    return Arcs(arcs, names[:, :, None].expand(-1, -1, size + 1, -1))


@pytest.mark.parametrize("kind", DEPENDENCIES, ids=["eisner", "chu-liu-edmonds"])
def test_gold_arcs_have_no_loss_and_decode_to_themselves(kind):
    batch = batch_of(kind, ARCS)
    scores = perfect_arcs(kind, batch)
    assert kind.loss(scores, batch).max() < 1e-6
    assert kind.decode(scores, batch) == kind.gold(ARCS)


def test_only_chu_liu_edmonds_gives_crossing_arcs():
    free, flat = Dependencies(("root", "x"), projective=False), Dependencies(("root", "x"))
    batch = batch_of(free, [CROSSING])
    assert free.decode(perfect_arcs(free, batch), batch) == free.gold([CROSSING])
    assert flat.decode(perfect_arcs(flat, batch), batch) != flat.gold([CROSSING])


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ([0, 0], "roots"),
        ([2, 1], "roots"),
        ([0, 3, 2], "in a circle"),
        ([0, 5], "head 5"),
        ([0, None], "head None"),
    ],
)
def test_what_is_no_tree_is_refused(heads, message):
    row = {"words": ["w"] * len(heads), "heads": heads, "labels": ["x"] * len(heads)}
    with pytest.raises(HeadwiseError, match=message):
        Dependencies().check(row)


def test_a_label_outside_the_given_ones_is_refused():
    with pytest.raises(HeadwiseError, match="unknown label"):
        Dependencies(("root",)).check(ARCS[0])


# -- constituents


def perfect_brackets(kind, batch) -> Brackets:
    posts = int(batch["spans"][..., :2].max()) + 1
    spans, labels = torch.zeros(len(batch["spans"]), posts, posts), torch.zeros(len(batch["spans"]), posts, posts, 1)
    labels = labels.repeat(1, 1, 1, len(kind.labels) + 1)
    labels[..., 0] = 50
    for i, tree in enumerate(batch["spans"].tolist()):
        for start, end, label in tree:
            if start >= 0:
                spans[i, start, end] = 50
                labels[i, start, end, label] = 100
    return Brackets(spans if kind.training == "crf" else None, labels)


@pytest.mark.parametrize("kind", CONSTITUENTS, ids=["crf", "span"])
def test_gold_trees_have_no_loss_and_decode_to_themselves(kind):
    batch = batch_of(kind, TREES)
    scores = perfect_brackets(kind, batch)
    assert kind.loss(scores, batch).max() < 1e-4
    found = kind.decode(scores, batch)
    for brackets, row in zip(found, TREES):
        assert sorted(brackets) == sorted(b for b in Tree.read(row["tree"]).brackets() if b[2] != ".")
    assert metrics["bracket_f1"](found, kind.gold(TREES)) == 1


def test_the_crf_loss_is_the_surprise_of_the_gold_tree():
    kind, rows = CONSTITUENTS[0], TREES[:1]
    batch = batch_of(kind, rows)
    scores = Brackets(torch.zeros(1, 4, 4), torch.zeros(1, 4, 4, len(kind.labels) + 1))
    expected = torch.tensor(2.0).log() / 3 + torch.tensor(len(kind.labels) + 1.0).log()  # one of two trees, any label
    torch.testing.assert_close(kind.loss(scores, batch), expected[None])


def test_fence_posts_take_half_of_each_neighbour():
    rows = [{"words": ["dog", "cat"], "tree": "(NP (NN dog) (NN cat))"}, {"words": ["dog"], "tree": "(NP (NN dog))"}]
    batch = batch_of(CONSTITUENTS[0], rows)
    states = torch.arange(8.0).view(2, 4, 1).repeat(1, 1, 2)  # row 0: CLS 0, dog 1, cat 2, SEP 3; row 1: 4, 5, SEP 6
    posts = fence_posts(Hidden(states, torch.tensor([[10.0, 10], [20, 20]])), batch, "mean")
    assert posts[0].tolist() == [[10, 1], [1, 2], [2, 3]]
    assert posts[1, :2].tolist() == [[20, 5], [5, 6]]


def test_bad_trees_are_refused():
    kind = Constituents()
    for tree, message in [
        ("(S (NP (NN dog))", "closed"),
        ("(S (NP (NN cat)))", "over"),
        ("(S (NP (NN dog) (NN dog)))", "over"),
        (None, "bracketed tree"),
    ]:
        with pytest.raises(HeadwiseError, match=message):
            kind.check({"words": ["dog"], "tree": tree})
    with pytest.raises(HeadwiseError, match="crf, span"):
        Constituents(training="margin")
    with pytest.raises(HeadwiseError, match="unknown label"):
        Constituents(("NP",)).check(TREES[0])


def test_an_unseen_chain_is_told_and_has_no_label_loss():
    row = {"words": ["dog"], "tree": "(S (NP (NN dog)))"}
    kind = CONSTITUENTS[0]
    kind.check(row)
    with pytest.warns(UserWarning, match=r"S\+NP \(1\)"):
        batch = batch_of(kind, [row])
    assert kind.loss(Brackets(torch.zeros(1, 2, 2), torch.randn(1, 2, 2, len(kind.labels) + 1)), batch).item() == 0
