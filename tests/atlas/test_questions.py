"""Passages and a question: links lead from the question to the passage that answers it, controls to the others."""

from __future__ import annotations

import numpy as np

from headwise.atlas.measure import roles
from headwise.atlas.questions import NAME, asked
from headwise.atlas.weightings import CONTROL
from headwise.testing import no_dropout, tiny, tiny_tokenizer

WORDS = [f"w{i}" for i in range(20)] + [f"q{i}" for i in range(24)]
ROWS = [
    {
        "question": f"q{i} w1",
        "context": " ".join(f"w{(i * k) % 20}" for k in range(1, 9)) + f" q{i}",
        "answers": [f"q{i}"],
    }
    for i in range(24)
]


def test_links_cover_every_pair_of_the_question_and_a_passage():
    tokenizer = tiny_tokenizer(WORDS)
    for row, text in zip(ROWS, asked(tokenizer, ROWS, 64)):
        gold, wrong = text.links[NAME], text.links[NAME + CONTROL]
        words = tokenizer.convert_ids_to_tokens(text.ids.tolist())
        assert {words[i] for i in gold[:, 0]} == set(row["question"].split())
        assert [words[j] for j in np.unique(gold[:, 1])] == row["context"].split()
        assert len(wrong) == 3 * len(gold) and not set(map(tuple, gold)) & set(map(tuple, wrong))


def test_the_score_is_attention_to_the_right_passage_beside_the_others():
    model, tokenizer = no_dropout(tiny("bert")), tiny_tokenizer(WORDS)
    found = roles(model, tokenizer, ROWS, repeats=0)
    r = found.index(NAME)
    assert found.texts[r] == len(ROWS)
    assert (np.abs(found.score[r] - found.control[r]) < 0.2).all()  # a random model knows no answers
