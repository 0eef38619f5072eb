"""Probes without parameters, on plants and on maps made by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from plants import marked, planted

from headwise.errors import HeadwiseError
from headwise.probing import nearest_centroid, probe, relations, word_centroids
from headwise.probing.parameterfree import _arg_max, low_constituents
from headwise.tasks import Constituents, Dependencies, Frames, Rows, Spans, Tag, Task
from headwise.testing import tiny, tiny_tokenizer

WORDS = ["the", "dog", "barks", "a", "cat", "sleeps"]
TOKENIZER = tiny_tokenizer(WORDS)


def task(kind, *rows):
    return Task("t", kind, Rows(rows, rows, rows), "accuracy")


def test_the_planted_head_has_the_nearest_centroid():
    model, tokenizer = planted(1, 2)
    found = nearest_centroid(probe(model, marked(300), tokenizer=tokenizer))
    assert np.unravel_index(found.argmax(), found.shape) == (1, 2) and found[1, 2] > 0.9


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


def test_word_attention_sums_keys_and_averages_queries():
    word_of = torch.tensor([[-1, 0, 0, 1, -1]])  # first token, two sub-words, one word, last token
    attention = torch.zeros(1, 1, 5, 5)
    attention[0, 0, 0, 3] = 1.0  # the first token attends to word 1
    attention[0, 0, 1] = torch.tensor([0.4, 0.0, 0.0, 0.6, 0.0])
    attention[0, 0, 2] = torch.tensor([0.8, 0.0, 0.0, 0.2, 0.0])  # word 0 on average: first 0.6, word 1 0.4
    attention[0, 0, 3] = torch.tensor([0.4, 0.3, 0.3, 0.0, 0.0])  # word 1: first 0.4, word 0 0.6
    assert _arg_max((attention,), word_of)[0, 0, 0].tolist() == [2, 0, 1]


def test_relations_count_either_direction_and_restore_the_kernel():
    model = tiny("bert")
    before = model.config._attn_implementation
    row = {"words": ["the", "dog", "barks"], "heads": [2, 3, 0], "labels": ["det", "nsubj", "root"]}
    found = relations(model, task(Dependencies(), row), tokenizer=TOKENIZER)
    assert model.config._attn_implementation == before and found.about["attention"] == "eager"
    with torch.no_grad():
        model.set_attn_implementation("eager")
        maps = model(**TOKENIZER("the dog barks", return_tensors="pt"), output_attentions=True).attentions
    for layer in range(2):
        for head in range(4):
            places = maps[layer][0, head, :4, :4].argmax(-1).tolist()  # the first token and three words
            for label, i, h in (("det", 1, 2), ("nsubj", 2, 3), ("root", 3, 0)):
                wanted = places[i] == h or places[h] == i
                assert found.by_label[found.labels.index(label), layer, head] == wanted


def test_an_argument_is_right_by_any_of_its_words():
    row = {"words": ["the", "dog", "barks"], "frames": [{"predicate": 2, "arguments": [[0, 2, "A0"]]}]}
    part = {"words": ["the", "dog", "barks"], "frames": [{"predicate": 2, "arguments": [[0, 1, "A0"]]}]}
    whole, one = (relations(tiny("bert"), task(Frames(), r), tokenizer=TOKENIZER).accuracy for r in (row, part))
    assert (whole >= one).all()


def test_other_kinds_are_refused():
    row = {"words": ["the", "dog"], "labels": ["D", "N"]}
    with pytest.raises(HeadwiseError, match="Dependencies, Frames"):
        relations(tiny("bert"), task(Tag(), row), tokenizer=TOKENIZER)
    with pytest.raises(HeadwiseError, match="Tag, Spans, Constituents"):
        word_centroids(tiny("bert"), task(Dependencies(), row | {"heads": [2, 0]}), tokenizer=TOKENIZER)
