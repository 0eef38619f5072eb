"""Texts as tokens: what is known of words is known of their sub-words, and repeats are random."""

from __future__ import annotations

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from headwise.atlas.measure import roles
from headwise.atlas.texts import NAME, annotated, asked, batched, common_relations, link_names, repeated, shuffled
from headwise.atlas.weightings import CONTROL
from headwise.testing import no_dropout, tiny, tiny_tokenizer

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


def test_words_of_one_entity_are_linked_and_so_are_its_other_mentions():
    words = ["Ada", "Lovelace", "met", "Mary", "and", "Lovelace", "left"]
    row = {"words": words, "labels": ["B-PER", "I-PER", "O", "B-PER", "O", "B-PER", "O"]}
    [text] = annotated(tiny_tokenizer(words), [row], (), 32)
    linked = {(int(a) - 1, int(b) - 1) for a, b in text.links["same entity"]}  # behind [CLS]
    assert linked == {(0, 1), (1, 0), (0, 5), (1, 5), (5, 0), (5, 1)}
    assert common_relations([row] * 9, 1) == ()


def test_links_of_words_are_links_of_all_their_sub_words():
    row = {"words": ["the", "cats", "ran"], "links": {"who": [(2, 1)], "cut": [(2, 9)]}}
    [text] = annotated(pieces(), [row], (), 16)
    assert text.links["who"].tolist() == [[3, 1], [3, 2]] and text.links["cut"].shape == (0, 2)
    assert link_names([text] * 3, 3) == ("who",) and link_names([text], 2) == ()
    [batch] = batched([text, *annotated(pieces(), ["the cats"], (), 16)], 0, False, "cpu")
    assert batch.links["who"].nonzero().tolist() == [[1, 3, 1], [1, 3, 2]]  # the shorter text comes first


def test_shuffled_texts_keep_their_tokens_and_their_special_ones_in_place():
    texts = annotated(tiny_tokenizer(WORDS), ["the cat saw a dog and ran"], (), 16)
    [mixed] = shuffled(texts, seed=1)
    assert sorted(mixed.ids) == sorted(texts[0].ids) and (mixed.ids != texts[0].ids).any()
    assert (mixed.ids[mixed.special] == texts[0].ids[mixed.special]).all()


QUESTIONS_WORDS = [f"w{i}" for i in range(20)] + [f"q{i}" for i in range(24)]
ROWS = [
    {
        "question": f"q{i} w1",
        "context": " ".join(f"w{(i * k) % 20}" for k in range(1, 9)) + f" q{i}",
        "answers": [f"q{i}"],
    }
    for i in range(24)
]


def test_links_cover_every_pair_of_the_question_and_a_passage():
    tokenizer = tiny_tokenizer(QUESTIONS_WORDS)
    for row, text in zip(ROWS, asked(tokenizer, ROWS, 64)):
        gold, wrong = text.links[NAME], text.links[NAME + CONTROL]
        words = tokenizer.convert_ids_to_tokens(text.ids.tolist())
        assert {words[i] for i in gold[:, 0]} == set(row["question"].split())
        assert [words[j] for j in np.unique(gold[:, 1])] == row["context"].split()
        assert len(wrong) == 3 * len(gold) and not set(map(tuple, gold)) & set(map(tuple, wrong))


def test_the_score_is_attention_to_the_right_passage_beside_the_others():
    model, tokenizer = no_dropout(tiny("bert")), tiny_tokenizer(QUESTIONS_WORDS)
    found = roles(model, tokenizer, ROWS, repeats=0)
    r = found.index(NAME)
    assert found.texts[r] == len(ROWS)
    assert (np.abs(found.score[r] - found.control[r]) < 0.2).all()  # a random model knows no answers
