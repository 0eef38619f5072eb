"""A planted head is among the few that vote; votes are those of centroids; what cannot be learned is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from plants import marked, planted
from sklearn.base import clone
from sklearn.model_selection import cross_val_score

import headwise
from headwise.errors import HeadwiseError
from headwise.probing import Reader

TASK = marked(60)
TEXTS = [row["text"] for row in TASK.rows("train")]
LABELS = [row["label"] for row in TASK.rows("train")]


@pytest.fixture(scope="module")
def plant():
    return planted(1, 2)


def test_a_planted_head_is_chosen_first_and_classifies(plant):
    few = headwise.FewHeads(*plant, heads=1).fit(TEXTS, LABELS)
    assert few.heads_ == [(1, 2)] and few.scores_[0] > 0.9
    test = TASK.rows("test")
    assert few.score([row["text"] for row in test], [row["label"] for row in test]) > 0.9


def test_one_head_votes_for_the_class_whose_mean_output_is_nearest(plant):
    few = headwise.FewHeads(*plant, heads=1).fit(TEXTS, LABELS)
    z_ND = Reader.of(*plant).read([{"text": text} for text in TEXTS]).heads[few.heads_[0]].double()
    means_CD = torch.stack([z_ND[[label == c for label in LABELS]].mean(0) for c in few.classes_])
    near = torch.nn.functional.cosine_similarity(z_ND[:, None], means_CD[None], dim=-1)
    assert (few.classes_[near.argmax(1)] == few.predict(TEXTS)).all()
    proba = few.predict_proba(TEXTS)
    assert proba.shape == (len(TEXTS), 2) and np.allclose(proba.sum(1), 1)


def test_labels_without_a_pattern_score_chance_though_heads_were_chosen_on_them(plant):
    """Each text is left out of the centroid that judges it, so that choosing among heads is all that can mislead."""
    shuffled = np.random.default_rng(0).permutation(LABELS)
    assert headwise.FewHeads(*plant, heads=3).fit(TEXTS, shuffled).scores_.max() < 0.75


def test_it_is_an_estimator(plant):
    few = headwise.FewHeads(*plant, heads=1)
    assert clone(few).model is few.model and few.get_params()["heads"] == 1
    assert cross_val_score(few, TEXTS, LABELS, cv=2).mean() > 0.8


@pytest.mark.parametrize(
    ("texts", "labels", "heads", "message"),
    [
        (TEXTS[:4], LABELS[:3], 2, "a label for each text"),
        (TEXTS[:4], ["a"] * 4, 2, "two classes"),
        (TEXTS[:4], ["a", "b", "b", "b"], 2, "two texts of each"),
        (TEXTS[:4], ["a", "a", "b", "b"], 99, "heads=99"),
        ([], [], 2, "no texts"),
    ],
)
def test_what_cannot_be_learned_is_refused(plant, texts, labels, heads, message):
    with pytest.raises(HeadwiseError, match=message):
        headwise.FewHeads(*plant, heads=heads).fit(texts, labels)
