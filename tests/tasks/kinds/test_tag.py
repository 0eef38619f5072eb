"""Words and sub-words, one label per word, labelled spans."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kindlaws import batch_of, byte_level, check_one_by_one, letters, overfit
from tokenizers import Regex, Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from headwise.errors import HeadwiseError
from headwise.tasks.kinds.tag import Spans, Tag, flat
from headwise.tasks.kinds.wordlevel import encode_words, needs_space, words
from headwise.tasks.task import Kind

ROWS = [
    {"words": ["the", "dog", "barks"], "labels": ["B-X", "I-X", "O"]},
    {"words": ["dogs"], "labels": ["B-Y"]},
    {"words": ["a", "strange", "cat", "sees", "Rex", "."], "labels": ["O", "O", "B-X", "O", "B-Y", "O"]},
    {"words": ["cat", "dog"], "labels": ["O", "O"]},
    {"words": ["Rex", "Max", "bark"], "labels": ["B-Y", "B-Y", "O"]},
    {"words": ["the", "very", "old", "dog", "."], "labels": ["B-Y", "I-Y", "I-Y", "I-Y", "O"]},
    {"words": ["sees", "the", "cat"], "labels": ["O", "B-X", "I-X"]},
    {"words": ["bark"], "labels": ["O"]},
]
KINDS = [Tag(dropout=0).ready(ROWS), Spans(dropout=0).ready(ROWS)]


# -- words and sub-words


def test_word_states_are_means_or_firsts_of_their_sub_words():
    states = torch.arange(12.0).view(1, 6, 2)
    batch = {"word_of": torch.tensor([[-1, 0, 1, 1, 1, -1]]), "word_mask": torch.ones(1, 2)}
    assert words(states, batch).tolist() == [[[2, 3], [6, 7]]]
    assert words(states, batch, "first").tolist() == [[[2, 3], [4, 5]]]


@pytest.mark.parametrize("pool", ["mean", "first"])
def test_word_states_do_not_see_padding(pool):
    states, word_of = torch.randn(2, 5, 3), torch.tensor([[-1, 0, 0, 1, -1], [-1, 0, -1, -1, -1]])
    together = words(states, {"word_of": word_of, "word_mask": torch.ones(2, 3)}, pool)
    alone = words(states[1:, :3], {"word_of": word_of[1:, :3], "word_mask": torch.ones(1, 1)}, pool)
    torch.testing.assert_close(together[1, :1], alone[0])
    assert not together[1, 1:].any()


def test_a_word_of_nothing_becomes_the_unknown_token():
    columns = encode_words([{"words": ["dog", "\u200b", "", "cat"]}], letters(), 16)
    assert letters().convert_ids_to_tokens(columns["input_ids"][0]) == [
        "[CLS]",
        "dog",
        "[UNK]",
        "[UNK]",
        "cat",
        "[SEP]",
    ]
    assert columns["word_of"][0].tolist() == [-1, 0, 1, 2, 3, -1]


def test_byte_level_words_get_the_space_they_have_in_a_text():
    assert needs_space(byte_level())
    assert not needs_space(letters())
    columns = encode_words([{"words": ["the", "dog"]}], byte_level(), 16)
    assert columns["input_ids"][0].tolist() == byte_level()("the dog")["input_ids"]


def test_no_space_is_put_between_words_whose_alphabet_has_none():
    model = WordLevel({"[UNK]": 0, "C": 1, "(": 2, ")": 3}, unk_token="[UNK]")
    smiles = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model), unk_token="[UNK]")
    smiles.backend_tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    assert not needs_space(smiles)
    columns = encode_words([{"words": ["C", "(", "C", ")"]}], smiles, 16)
    assert columns["input_ids"][0].tolist() == smiles("C(C)")["input_ids"] == [1, 2, 1, 3]


# -- both kinds


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: type(kind).__name__)
def test_batches_equal_one_by_one(kind):
    assert isinstance(kind, Kind)
    check_one_by_one(kind, ROWS)


@pytest.mark.parametrize(("kind", "metric"), [(KINDS[0], "tag_accuracy"), (KINDS[0], "span_f1"), (KINDS[1], "span_f1")])
def test_learns_its_training_rows_by_heart(kind, metric):
    assert overfit(kind, ROWS, metric) == 1


@pytest.mark.parametrize("kind", [Tag, Spans])
def test_bad_rows_are_refused(kind):
    for row in ({"words": []}, {"words": ["a"], "labels": []}, {"words": ["a", 3], "labels": ["O", "O"]}, {}):
        with pytest.raises(HeadwiseError):
            kind().check(row)
    with pytest.raises(HeadwiseError, match="unknown label"):
        kind(("Z",)).check(ROWS[0])
    with pytest.raises(HeadwiseError, match="unknown pool"):
        kind(pool="last")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: type(kind).__name__)
def test_labels_unseen_in_training_are_told_and_left_out_of_the_loss(kind):
    strange = {"words": ["the", "dog"], "labels": ["B-Q", "O"]}
    kind.check(strange)
    with pytest.warns(UserWarning, match=r"not seen in training.*Q \(1\)"):
        batch = batch_of(kind, [strange])
    words_only = isinstance(kind, Tag)
    scores = torch.randn(1, 2, len(kind.labels)) if words_only else torch.randn(1, 2, 2, 1 + len(kind.labels))
    moved = scores.clone()
    moved[(0, 0) if words_only else (0, 0, 0)] = torch.randn(scores.shape[-1])
    torch.testing.assert_close(kind.loss(moved, batch), kind.loss(scores, batch))


# -- one label per word


def test_gold_tags_have_no_loss_and_decode_to_themselves():
    kind, batch = KINDS[0], batch_of(KINDS[0], ROWS)
    scores = 50 * torch.nn.functional.one_hot(batch["labels"].clamp(min=0), len(kind.labels)).float()
    assert kind.loss(scores, batch).max() < 1e-6
    assert kind.decode(scores, batch) == kind.gold(ROWS)


# -- spans


def test_gold_spans_have_no_loss_and_decode_to_themselves():
    kind, batch = KINDS[1], batch_of(KINDS[1], ROWS)
    scores = torch.zeros(len(ROWS), 6, 6, 3)
    scores[..., 0] = 50
    for i, spans in enumerate(kind.gold(ROWS)):
        for start, end, label in spans:
            scores[i, start, end - 1, 1 + kind.labels.index(label)] = 100
    assert kind.loss(scores, batch).max() < 1e-6
    assert kind.decode(scores, batch) == kind.gold(ROWS)


def test_impossible_spans_have_no_part():
    kind, batch = KINDS[1], batch_of(KINDS[1], ROWS[:2])
    scores = torch.randn(2, 3, 3, 3)
    other = scores.clone()
    other[:, 2, 0] = 99  # ends before it starts
    other[1, :, 1:] = 99  # beyond the sentence
    torch.testing.assert_close(kind.loss(other, batch), kind.loss(scores, batch))
    assert kind.decode(other, batch) == kind.decode(scores, batch)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 4), st.integers(-3, 9)), min_size=1, max_size=12))
@settings(max_examples=60, deadline=None)
def test_flat_spans_are_the_greedy_choice(spans):
    start, end, gain = (torch.tensor(column) for column in zip(*((s, s + w, g) for s, w, g in spans)))
    taken = flat(gain.float()[None], start[None], end[None])[0]
    chosen: list[int] = []
    for i in sorted(range(len(spans)), key=lambda i: (-int(gain[i]), i)):
        free = all(end[i] <= start[j] or end[j] <= start[i] for j in chosen)
        if gain[i] > 0 and free:
            chosen.append(i)
    assert sorted(chosen) == taken.nonzero()[:, 0].tolist()
