"""Texts as tokens: what is known of words is known of their sub-words, and repeats are random."""

from __future__ import annotations

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from headwise.atlas.texts import annotated, batched, common_relations, repeated
from headwise.testing import tiny_tokenizer

WORDS = ["the", "cat", "saw", "a", "dog", "and", "ran"]
ROW = {"words": ["the", "cats", "ran", "."], "heads": [2, 3, 0, 3], "labels": ["det", "nsubj", "root", "punct"]}


def pieces() -> PreTrainedTokenizerFast:
    """A tokenizer that parts cats into cat and s."""
    vocabulary = {piece: i for i, piece in enumerate(["[PAD]", "[UNK]", "the", "cat", "##s", "ran", "."])}
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]")


def test_sub_words_know_their_word_its_head_and_its_relation():
    [text] = annotated(pieces(), [ROW], ["nsubj", "det"], 16)
    assert text.word.tolist() == [0, 1, 1, 2, 3]
    assert text.head.tolist() == [1, 2, 2, -2, 2]
    assert text.relation.tolist() == [1, 0, 0, -1, -1]
    assert text.punctuation.tolist() == [False, False, False, False, True]


def test_plain_texts_know_no_relations():
    [text] = annotated(pieces(), ["the cats ran"], ["nsubj"], 16)
    assert (text.relation == -1).all() and (text.head < 0).all() and text.word.tolist() == [0, 1, 1, 2]


def test_common_relations_leave_out_the_root_and_punctuation():
    assert common_relations([ROW, ROW, "a text"], 2) == ("det", "nsubj")
    assert common_relations([ROW], 2) == ()


def test_every_text_comes_once_and_never_alone():
    texts = annotated(pieces(), ["the cats ran " * n for n in range(1, 12)], (), 64)
    sizes = [len(batch.ids_BT) for batch in batched(texts, 0, False, "cpu", 40)]
    assert sum(sizes) == len(texts) and min(sizes) >= 2
    lengths = sorted(int(n) for batch in batched(texts, 0, False, "cpu", 40) for n in batch.mask_BT.sum(1))
    assert lengths == sorted(len(text.ids) for text in texts)


def test_repeats_are_of_random_ordinary_tokens_and_say_where_each_stood():
    tokenizer = tiny_tokenizer(WORDS)
    for each in repeated(tokenizer, 5, 64):
        again = each.copy >= 0
        assert (each.ids[again] == each.ids[each.copy[again]]).all() and again.sum() >= 4
        assert not each.special[again].any() and not each.special[each.copy[again]].any()
        assert each.special[0] and each.special[-1]
