"""Protocols, by name: how probes are fitted and scored, for many heads at once.

A protocol takes the vectors and labels of the three splits and returns, for each vector, the development score, the
test score and the L2 strength chosen by the development score.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from headwise.errors import HeadwiseError
from headwise.probing.descent import GRADED, Classes, Grades, Rule, descend, expected_grade, pearson
from headwise.probing.exact import Linear, logistic, ridge
from headwise.probing.fitting import PRINTED, RELEASED, SIDES, Fit, Labels, Vectors, protocols

PORTIONS = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.0625, 0.125, 0.25, 0.5, 1.0)  # Voita and Titov 2020


@protocols("sklearn")
def sklearn(
    vectors: Vectors,
    labels: Labels,
    l2: tuple[float, ...] = PRINTED,
    folds: int | None = None,
    standardize: bool = True,
    seed: int = 0,
) -> Fit:
    """Converged probes, as scikit-learn's: logistic regression for classes, ridge regression for grades.

    Features are standardized on the training rows, as by StandardScaler: one L2 strength means the same for heads and
    layers of any scale. ``folds`` chooses by cross-validation on training and development rows together, then trains
    on all of them.
    """
    vectors = vectors.standardized() if standardize else vectors
    if folds is not None:
        return _folded(vectors, labels, l2, folds, seed)
    linear = _solved(vectors.train, labels.on("train", vectors.train.device)[None], l2, labels.classes)
    dev, test = (_scores(linear, x, labels)[:, 0] for x in (vectors.dev, vectors.test))
    return replace(_chosen(dev, test, labels, l2), unsettled=_unsettled(linear))


@protocols("control")
def control(
    vectors: Vectors,
    labels: Labels,
    l2: tuple[float, ...] = PRINTED,
    controls: int = 3,
    standardize: bool = True,
    seed: int = 0,
) -> Fit:
    """Probe the task, and the same task with shuffled labels (Hewitt and Liang 2019).

    ``control`` is the score with shuffled labels, ``selectivity`` the difference.
    """
    vectors = vectors.standardized() if standardize else vectors
    device, generator = vectors.train.device, np.random.default_rng([seed, 6])
    shuffled = [{side: generator.permutation(getattr(labels, side)) for side in SIDES} for _ in range(controls)]
    every = [labels, *(replace(labels, **sides) for sides in shuffled)]
    train = torch.stack([each.on("train", device) for each in every])
    linear = _solved(vectors.train, train, l2, labels.classes)
    dev, test = _scores(linear, vectors.dev, labels), _scores(linear, vectors.test, labels)
    fits = [_chosen(dev[:, t], test[:, t], each, l2) for t, each in enumerate(every)]
    return replace(fits[0].beyond(tuple(fits[1:])), unsettled=_unsettled(linear))


@protocols("mdl")
def mdl(
    vectors: Vectors,
    labels: Labels,
    l2: tuple[float, ...] = PRINTED,
    portions: tuple[float, ...] = PORTIONS,
    standardize: bool = True,
    seed: int = 0,
) -> Fit:
    """Online code length (Voita and Titov 2020) of the training labels, each portion coded by a probe of those before.

    ``code`` is the number of bits, including those that name the L2 strength; ``compression`` is the ratio to a uniform
    code. Each portion's probe reserves one example's worth of probability for all classes equally, so an unseen class
    costs many bits, not infinitely many.
    """
    if labels.graded:
        raise HeadwiseError("a code length for grades", "a task with classes", 'protocol="sklearn"')
    vectors = vectors.standardized() if standardize else vectors
    device, rows = vectors.train.device, len(labels.train)
    order = torch.from_numpy(np.random.default_rng([seed, 7]).permutation(rows)).to(device)
    x, y = vectors.train[:, order], labels.on("train", device)[order]
    ends = sorted({min(rows, max(labels.classes + 1, round(portion * rows))) for portion in portions})
    uniform = math.log2(labels.classes)
    bits = x.new_full((len(x), len(l2)), ends[0] * uniform, dtype=torch.float64)
    for end, further in pairwise(ends):
        probe = _solved(x[:, :end], y[None, :end], l2, labels.classes)
        predicted = probe.at(x[:, end:further])[:, 0].double().softmax(2)  # (P, K, C, n)
        right = predicted.gather(2, y[end:further].expand(*predicted.shape[:2], 1, -1))
        bits -= ((end * right + 1 / labels.classes) / (end + 1)).log2().sum((2, 3))
    code = bits.amin(1) + math.log2(len(l2))
    result = sklearn(vectors, labels, l2, standardize=False)  # done above
    return replace(result, more={"code": code, "compression": rows * uniform / code})


@protocols("anatomy")
def anatomy(
    vectors: Vectors,
    labels: Labels,
    l2: tuple[float, ...] | None = None,
    folds: int | None = None,
    lr: float | None = None,
    batch: int | None = None,
    every: int | None = None,
    tenacity: int = 3,
    max_epochs: int | None = None,
    seed: int = 0,
) -> Fit:
    """Jo and Myaeng 2020: RMSprop with early stopping and L2 as weight decay; Adam on soft labels for grades.

    Defaults are those of the released code: lr 0.01 (the paper says 0.1), four L2 strengths (the paper: five; none for
    grades), an evaluation every second epoch. The released code retrains with the chosen strength, which gives the same
    probe because the seed is the same. ``folds`` is the cross-validation of the paper's A.2.
    """
    changes = {"lr": lr, "batch": batch, "every": every, "max_epochs": max_epochs}
    rule = replace(
        GRADED if labels.graded else Rule(),
        tenacity=tenacity,
        seed=seed,
        **{k: v for k, v in changes.items() if v is not None},
    )
    strengths = l2 or ((0.0,) if labels.graded else RELEASED)
    if folds is not None:
        return _folded_descent(vectors, labels, strengths, folds, rule)
    dev, test = _descended(vectors, labels, strengths, rule)
    return _chosen(dev, test, labels, strengths)


# -- what protocols share


def _solved(x: Tensor, y_TN: Tensor, l2: tuple[float, ...], classes: int, weight: Tensor | None = None) -> Linear:
    return logistic(x, y_TN, list(l2), classes, weight) if classes else ridge(x, y_TN, list(l2), weight)


def _unsettled(linear: Linear) -> int:
    return int((~linear.settled).sum())


def _scores(linear: Linear, x: Tensor, labels: Labels) -> Tensor:
    """Answers ``(P, T, K, N)``: classes, or grades."""
    return linear.at(x)[..., 0, :] if labels.graded else linear.classes(x)


def judged(answers: Tensor, gold: Tensor, graded: bool) -> Tensor:
    """Accuracy, or Pearson's r for grades, along the last axis."""
    return pearson(answers, gold) if graded else (answers == gold).double().mean(-1)


def _chosen(dev: Tensor, test: Tensor, labels: Labels, l2: tuple[float, ...], score: Tensor | None = None) -> Fit:
    """For each head, the L2 strength with the best development score; the weaker one on ties.

    ``dev`` and ``test`` are answers ``(P, K, N)``; ``score`` ``(P, K)`` replaces the score of the development answers.
    """
    device = test.device
    score = judged(dev, labels.on("dev", device), labels.graded) if score is None else score
    best = score.argmax(1)
    head = torch.arange(len(score), device=device)
    answers = test[head, best]
    strength = torch.tensor(l2, dtype=torch.float64, device=device)[best]
    return Fit(score[head, best], judged(answers, labels.on("test", device), labels.graded), strength, answers)


def fold_numbers(y: np.ndarray, folds: int, seed: int, classes: int) -> np.ndarray:
    """The fold of every row; classes are distributed evenly."""
    if not 2 <= folds <= len(y):
        raise HeadwiseError(f"{folds} folds of {len(y)} rows", "2 or more folds, and a row for each")
    order = np.random.default_rng([seed, 8]).permutation(len(y))
    if classes:
        order = order[np.argsort(y[order], kind="stable")]
    numbers = np.empty(len(y), np.int64)
    numbers[order] = np.arange(len(y)) % folds
    return numbers


def _pooled(vectors: Vectors, labels: Labels) -> tuple[Tensor, np.ndarray]:
    return torch.cat([vectors.train, vectors.dev], 1), np.concatenate([labels.train, labels.dev])


def _folded(vectors: Vectors, labels: Labels, l2: tuple[float, ...], folds: int, seed: int) -> Fit:
    """Fit all folds and the final probe together: a fold's held-out rows have weight 0."""
    x, y = _pooled(vectors, labels)
    numbers = torch.from_numpy(fold_numbers(y, folds, seed, labels.classes)).to(x.device)
    gold = torch.from_numpy(y).to(x.device)
    weight = torch.stack([numbers != fold for fold in [*range(folds), -1]]).to(x)
    linear = _solved(x, gold.expand(folds + 1, -1), l2, labels.classes, weight)
    answers = _scores(linear, x, labels)
    held = [judged(answers[:, f][..., numbers == f], gold[numbers == f], labels.graded) for f in range(folds)]
    test = _scores(linear, vectors.test, labels)[:, -1]
    return replace(_chosen(test, test, labels, l2, torch.stack(held).mean(0)), unsettled=_unsettled(linear))


def _descended(vectors: Vectors, labels: Labels, l2: tuple[float, ...], rule: Rule) -> tuple[Tensor, Tensor]:
    """Answers of trained probes on the development and test rows, (P, K, N)."""
    device = vectors.train.device
    train, dev = labels.on("train", device), labels.on("dev", device)
    target = Grades(train, dev) if labels.graded else Classes(train, dev, labels.classes)
    trained = descend(vectors.train, vectors.dev, target, list(l2), rule)
    linear = Linear(trained.weight[:, None], trained.bias[:, None], torch.ones(0))
    scores = [linear.at(x)[:, 0] for x in (vectors.dev, vectors.test)]
    dev_scores, test_scores = ((expected_grade(s) if labels.graded else s.argmax(-2)) for s in scores)
    return dev_scores, test_scores


def _folded_descent(vectors: Vectors, labels: Labels, l2: tuple[float, ...], folds: int, rule: Rule) -> Fit:
    """Each fold stops early on its held-out rows, the final probe on a random twentieth of all rows."""
    x, y = _pooled(vectors, labels)
    numbers = fold_numbers(y, folds, rule.seed, labels.classes)
    held = fold_numbers(y, min(20, len(y)), rule.seed + 1, labels.classes) == 0
    scores, test = [], torch.empty(0)
    for out in [*(numbers == fold for fold in range(folds)), held]:
        rows = [torch.from_numpy(np.flatnonzero(part)).to(x.device) for part in (~out, out)]
        part = Vectors(x[:, rows[0]], x[:, rows[1]], vectors.test)
        dev, test = _descended(part, Labels(y[~out], y[out], labels.test, labels.classes), l2, rule)
        scores.append(judged(dev, torch.from_numpy(y[out]).to(x.device), labels.graded))
    return _chosen(test, test, labels, l2, torch.stack(scores[:-1]).mean(0))
