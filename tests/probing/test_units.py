"""Words, constituents and arguments as the units of parameter-free probes."""

from __future__ import annotations

from headwise.probing import relations, word_centroids
from headwise.probing.units import low_constituents
from headwise.tasks import Constituents, Frames, Rows, Spans, Tag, Task
from headwise.testing import tiny, tiny_tokenizer

WORDS = ["the", "dog", "barks", "a", "cat", "sleeps"]


TOKENIZER = tiny_tokenizer(WORDS)


def task(kind, *rows):
    return Task("t", kind, Rows(rows, rows, rows), "accuracy")


def test_words_are_named_by_their_centroid():
    rows = [
        {"words": [d, n, v], "labels": ["D", "N", "V"]} for d, n, v in (("the", "dog", "barks"), ("a", "cat", "sleeps"))
    ]
    found = word_centroids(tiny("bert"), task(Tag(), *rows), tokenizer=TOKENIZER)
    assert found.by_label.shape == (3, 2, 4) and found.counts.tolist() == [2, 2, 2]
    assert found.accuracy.max() > 0.6 and set(found.best()) == {"D", "N", "V"}
    assert found.to_record()["about"]["fit_on"] == "train"


def test_a_unit_alone_in_its_label_is_always_right():
    rows = [{"words": ["the", "dog", "barks"], "tree": "(S (NP (DT the) (NN dog)) (VP (VBZ barks)))"}]
    found = word_centroids(tiny("bert"), task(Constituents(), *rows), tokenizer=TOKENIZER, fit_on="test")
    assert found.labels == ("NP", "VP") and (found.accuracy == 1).all() and "nearest centroid" in str(found)
    spans = [{"words": ["the", "dog", "barks"], "labels": ["B-X", "I-X", "O"]}]
    assert (word_centroids(tiny("bert"), task(Spans(), *spans), tokenizer=TOKENIZER).accuracy == 1).all()


def test_low_constituents_stand_directly_above_tags():
    tree = "(S (NP (NP (DT a) (NN b)) (PP (IN c) (NP (NN d)))) (VP (VB e)))"
    assert low_constituents(tree) == [(0, 2, "NP"), (3, 4, "NP"), (4, 5, "VP")]


def test_an_argument_is_right_by_any_of_its_words():
    row = {"words": ["the", "dog", "barks"], "frames": [{"predicate": 2, "arguments": [[0, 2, "A0"]]}]}
    part = {"words": ["the", "dog", "barks"], "frames": [{"predicate": 2, "arguments": [[0, 1, "A0"]]}]}
    whole, one = (relations(tiny("bert"), task(Frames(), r), tokenizer=TOKENIZER).accuracy for r in (row, part))
    assert (whole >= one).all()
