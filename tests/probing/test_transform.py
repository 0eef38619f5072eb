"""Heads' vectors in scikit-learn and as sentence vectors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from plants import marked, planted
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline

import headwise
from headwise.errors import HeadwiseError
from headwise.probing import HeadFeatures, Reader, probe

TASK = marked(150)
TEXTS = [row["text"] for row in TASK.rows("train")]
LABELS = [row["label"] for row in TASK.rows("train")]


@pytest.fixture(scope="module")
def plant():
    return planted(1, 2)


def test_top_heads_are_the_features_side_by_side_in_rank_order(plant):
    found = probe(plant[0], TASK, tokenizer=plant[1])
    top = found.top(3)
    vectors = Reader.of(*plant).read(TASK.rows("test")).heads
    wanted = torch.cat([vectors[head] for head in found.best(3)], -1).numpy()
    np.testing.assert_allclose(top.encode([row["text"] for row in TASK.rows("test")]), wanted, atol=1e-5)
    assert top.heads[0] == (1, 2) and top.get_sentence_embedding_dimension() == 18
    assert top.get_feature_names_out()[0] == "layer1_head2_0"


def test_n_may_exceed_the_heads_of_a_layer(plant):
    assert probe(plant[0], TASK, tokenizer=plant[1]).top(8).encode(["w1", "w2"]).shape == (2, 48)


def test_encode_is_as_sentence_transformers(plant):
    top = HeadFeatures(*plant, heads=[(0, 1), (1, 2)])
    assert top.encode("w1 yes").shape == (12,) and top.encode(["w1 yes"]).shape == (1, 12)
    assert isinstance(top.encode(["w1"], convert_to_tensor=True), torch.Tensor)
    np.testing.assert_allclose(
        np.linalg.norm(top.encode(["w1", "w2"], normalize_embeddings=True), axis=1), 1, rtol=1e-5
    )
    np.testing.assert_allclose(top.encode(["w1", "w2 w3 w4"])[0], top.encode("w1"), atol=1e-5)


def test_pairs(plant):
    single, paired = HeadFeatures(*plant, heads=[(1, 2)]), HeadFeatures(*plant, heads=[(1, 2)])
    a, b = single.encode(["w1", "w2"])
    np.testing.assert_allclose(paired.encode([("w1", "w2")])[0], np.concatenate([abs(a - b), a * b]), atol=1e-5)


def test_fits_in_a_pipeline_and_chooses_the_planted_head(plant):
    pipeline = make_pipeline(HeadFeatures(*plant, n=1), LogisticRegression())
    pipeline.fit(TEXTS, LABELS)
    assert pipeline[0].heads_ == [(1, 2)] and pipeline[0].scores_.shape == (2, 4)
    rows = TASK.rows("test")
    assert pipeline.score([row["text"] for row in rows], [row["label"] for row in rows]) > 0.9


def test_fits_in_a_grid_search_that_shares_the_model(plant):
    features = HeadFeatures(*plant)
    assert clone(features).model is features.model and clone(features).get_params() == features.get_params()
    search = GridSearchCV(
        make_pipeline(features, LogisticRegression()),
        {"headfeatures__n": [1, 4], "headfeatures__at": ["cls", "mean"]},
        cv=2,
    )
    search.fit(np.array(TEXTS[:80]), np.array(LABELS[:80]))
    assert search.best_score_ > 0.8 and set(search.best_params_) == {"headfeatures__n", "headfeatures__at"}


def test_grades_choose_heads_too(plant):
    grades = np.array([3.25 if label == "yes" else 1.5 for label in LABELS])
    assert HeadFeatures(*plant, n=2).fit(TEXTS, grades).heads_[0] == (1, 2)


def test_bad_input_is_told(plant):
    with pytest.raises(HeadwiseError, match="n=9"):
        HeadFeatures(*plant, n=9).fit(TEXTS, LABELS)
    with pytest.raises(HeadwiseError, match="labels to choose"):
        HeadFeatures(*plant).fit(TEXTS)
    with pytest.raises(HeadwiseError, match=r"head \(2, 0\)"):
        HeadFeatures(*plant, heads=[(2, 0)]).fit(TEXTS)
    with pytest.raises(HeadwiseError, match="one class"):
        HeadFeatures(*plant).fit(TEXTS, ["a"] * len(TEXTS))
    with pytest.raises(HeadwiseError, match="a list of texts"):
        HeadFeatures(*plant, heads=[(0, 0)]).transform("one text")
    with pytest.raises(HeadwiseError, match="one or more"):
        HeadFeatures(*plant, heads=[(0, 0)]).encode([])
    with pytest.raises(HeadwiseError, match="pair of texts"):
        HeadFeatures(*plant, heads=[(0, 0)]).encode([("a", "b", "c")])
    with pytest.raises(NotFittedError):
        HeadFeatures(*plant).transform(TEXTS)


FEW_TASK = marked(60)
FEW_TEXTS = [row["text"] for row in FEW_TASK.rows("train")]
FEW_LABELS = [row["label"] for row in FEW_TASK.rows("train")]


def test_a_planted_head_is_chosen_first_and_classifies(plant):
    few = headwise.FewHeads(*plant, heads=1).fit(FEW_TEXTS, FEW_LABELS)
    assert few.heads_ == [(1, 2)] and few.scores_[0] > 0.9
    test = FEW_TASK.rows("test")
    assert few.score([row["text"] for row in test], [row["label"] for row in test]) > 0.9


def test_one_head_votes_for_the_class_whose_mean_output_is_nearest(plant):
    few = headwise.FewHeads(*plant, heads=1).fit(FEW_TEXTS, FEW_LABELS)
    z_ND = Reader.of(*plant).read([{"text": text} for text in FEW_TEXTS]).heads[few.heads_[0]].double()
    means_CD = torch.stack([z_ND[[label == c for label in FEW_LABELS]].mean(0) for c in few.classes_])
    near = torch.nn.functional.cosine_similarity(z_ND[:, None], means_CD[None], dim=-1)
    assert (few.classes_[near.argmax(1)] == few.predict(FEW_TEXTS)).all()
    proba = few.predict_proba(FEW_TEXTS)
    assert proba.shape == (len(FEW_TEXTS), 2) and np.allclose(proba.sum(1), 1)


def test_labels_without_a_pattern_score_chance_though_heads_were_chosen_on_them(plant):
    """Each text is left out of the centroid that judges it, so that choosing among heads is all that can mislead."""
    shuffled = np.random.default_rng(0).permutation(FEW_LABELS)
    assert headwise.FewHeads(*plant, heads=3).fit(FEW_TEXTS, shuffled).scores_.max() < 0.75


def test_it_is_an_estimator(plant):
    few = headwise.FewHeads(*plant, heads=1)
    assert clone(few).model is few.model and few.get_params()["heads"] == 1
    assert cross_val_score(few, FEW_TEXTS, FEW_LABELS, cv=2).mean() > 0.8


@pytest.mark.parametrize(
    ("texts", "labels", "heads", "message"),
    [
        (FEW_TEXTS[:4], FEW_LABELS[:3], 2, "a label for each text"),
        (FEW_TEXTS[:4], ["a"] * 4, 2, "two classes"),
        (FEW_TEXTS[:4], ["a", "b", "b", "b"], 2, "two texts of each"),
        (FEW_TEXTS[:4], ["a", "a", "b", "b"], 99, "heads=99"),
        ([], [], 2, "no texts"),
    ],
)
def test_what_cannot_be_learned_is_refused(plant, texts, labels, heads, message):
    with pytest.raises(HeadwiseError, match=message):
        headwise.FewHeads(*plant, heads=heads).fit(texts, labels)
