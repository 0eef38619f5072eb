"""Classify and grade texts and pairs."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from kindlaws import batch_of, check_one_by_one, letters, overfit

from headwise.errors import HeadwiseError
from headwise.tasks.kinds.classify import Classify, Regress
from headwise.tasks.task import Kind

ROWS = [{"text": "the dog " * (i + 1), "text_b": None, "label": "abc"[i % 3]} for i in range(8)]
PAIRS = [{"text": "dogs " * (8 - i), "text_b": "a cat", "label": "yes" if i % 2 else "no"} for i in range(8)]
GRADES = [{"text": "dog", "text_b": "cat " * (i + 1), "label": i / 2} for i in range(8)]
CASES = [
    (Classify(dropout=0).ready(ROWS), ROWS, "accuracy"),
    (Classify(dropout=0, inner=True).ready(PAIRS), PAIRS, "mcc"),
    (Regress(dropout=0), GRADES, "spearman"),
]


@pytest.mark.parametrize(("kind", "rows", "metric"), CASES, ids=["classes", "pairs", "grades"])
class TestAll:
    def test_batches_equal_one_by_one(self, kind, rows, metric):
        assert isinstance(kind, Kind)
        check_one_by_one(kind, rows)

    def test_learns_its_training_rows_by_heart(self, kind, rows, metric):
        assert overfit(kind, rows, metric, steps=200) == pytest.approx(1, abs=1e-6)

    def test_cut_counts_the_sub_words_that_did_not_fit(self, kind, rows, metric):
        whole = kind.encode(rows, letters(), 100)
        short = kind.encode(rows, letters(), 8)
        assert not whole["cut"].any()
        assert short["cut"].any()
        assert np.array_equal(whole["input_ids"].lengths - short["input_ids"].lengths, short["cut"])


def test_gold_scores_have_no_loss_and_decode_to_themselves():
    kind = CASES[0][0]
    batch = batch_of(kind, ROWS)
    scores = 50 * torch.nn.functional.one_hot(batch["label"], 3).float()
    assert kind.loss(scores, batch).max() < 1e-6
    assert kind.decode(scores, batch) == kind.gold(ROWS)
    grade = CASES[2][0]
    batch = batch_of(grade, GRADES)
    assert not grade.loss(batch["label"][:, None], batch).any()
    assert grade.decode(batch["label"][:, None], batch) == pytest.approx(grade.gold(GRADES))


def test_segments_are_told_apart_only_in_pairs():
    assert "token_type_ids" in batch_of(CASES[1][0], PAIRS)
    assert "token_type_ids" not in batch_of(CASES[0][0], ROWS)


def test_an_empty_text_is_kept():
    batch = batch_of(CASES[0][0], [{"text": "", "label": "a"}])
    assert batch["input_ids"].shape == (1, 2)


def test_bad_rows_are_refused():
    kind = CASES[0][0]
    for row, message in [
        ({"text": None, "label": "a"}, "text is None"),
        ({"text": "x", "text_b": 3, "label": "a"}, "text_b is 3"),
        ({"text": "x", "label": "d"}, "unknown label"),
        ({"text": "x"}, "without a label"),
    ]:
        with pytest.raises(HeadwiseError, match=message):
            kind.check(row)
    for label in (math.nan, -0.1, 5.1, "3", None):
        with pytest.raises(HeadwiseError, match="a number from"):
            Regress().check({"text": "x", "label": label})
    with pytest.raises(HeadwiseError, match="only one label"):
        Classify().ready(ROWS[:1])


def test_two_texts_stay_two_where_a_tokenizer_puts_nothing_between_them():
    """A decoder would read dogs and cats as one word."""
    from headwise.testing import tiny_tokenizer

    apart = tiny_tokenizer(["dogs", "cats"])
    row = [{"text": "dogs", "text_b": "cats", "label": "a"}]
    asked = []

    class Joined:
        def num_special_tokens_to_add(self, pair):
            return 0

        def __call__(self, texts, others, **options):
            asked.append((texts, others))
            return apart(texts, others, **options)

    Classify(("a", "b")).encode(row, Joined(), 16)
    Classify(("a", "b")).encode([{"text": "dogs", "text_b": None, "label": "a"}], Joined(), 16)
    assert asked == [(["dogs"], ["\ncats"]), (["dogs"], None)]
