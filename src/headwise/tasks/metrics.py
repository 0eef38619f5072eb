"""Metrics: additive counts per example, and a value of their sums (no torch).

Because counts are additive, ``value(counts.sum(0))`` is the score, and its bootstrap is one matrix product.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from headwise.errors import HeadwiseError
from headwise.registry import Registry

Span = tuple[int, int, str]


@dataclass(frozen=True)
class Metric:
    """A named score; larger is better, in [0, 1] or [-1, 1].

    Example:
        >>> metrics["accuracy"]([1, 0, 1], [1, 1, 1])
        0.6666666666666666
    """

    name: str
    counts: Callable[[Sequence, Sequence], np.ndarray]  # (examples, s): adding rows adds examples
    value: Callable[[np.ndarray], np.ndarray]  # (..., s) -> (...)

    def __call__(self, predictions: Sequence, golds: Sequence) -> float:
        if len(predictions) != len(golds):
            raise HeadwiseError(f"{len(predictions)} predictions for {len(golds)} answers", "one for each")
        if not len(golds):
            raise HeadwiseError(f"{self.name} of no examples", "one or more")
        return float(self.value(self.counts(predictions, golds).sum(0)))


metrics: Registry[Metric] = Registry("metric")


def metric(name: str, value: Callable[[np.ndarray], np.ndarray]) -> Callable:
    """Register a function ``(predictions, golds) -> counts`` as a metric."""

    def register(counts: Callable) -> Callable:
        metrics.add(name, Metric(name, counts, value))
        return counts

    return register


def ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Division that returns 0 for a zero denominator."""
    part, whole = np.broadcast_arrays(np.asarray(part, float), np.asarray(whole, float))
    return np.divide(part, whole, out=np.zeros(whole.shape), where=whole > 0)


def share(sums: np.ndarray) -> np.ndarray:
    """``(right, all)`` -> right / all."""
    return ratio(sums[..., 0], sums[..., 1])


def f_score(sums: np.ndarray) -> np.ndarray:
    """``(matched, predicted, gold)`` -> F1."""
    return ratio(2 * sums[..., 0], sums[..., 1] + sums[..., 2])


# -- classes and grades


def _classes(predictions: Sequence, golds: Sequence) -> tuple[np.ndarray, np.ndarray]:
    pair = np.asarray(predictions), np.asarray(golds)
    for side in pair:
        if not np.issubdtype(side.dtype, np.integer) or side.min(initial=0) < 0:
            raise HeadwiseError(f"classes such as {side[:3].tolist()}", "class numbers 0, 1, ...")
    return pair


@metric("accuracy", share)
def accuracy(predictions: Sequence, golds: Sequence) -> np.ndarray:
    predicted, gold = _classes(predictions, golds)
    return np.stack([predicted == gold, np.ones(len(gold))], -1).astype(float)


@metric("f1", f_score)
def positive_f1(predictions: Sequence, golds: Sequence) -> np.ndarray:
    """F1 of class 1 against class 0 (GLUE's F1)."""
    predicted, gold = _classes(predictions, golds)
    if max(predicted.max(initial=0), gold.max(initial=0)) > 1:
        raise HeadwiseError("f1 of more than two classes", "classes 0 and 1", "macro_f1")
    return np.stack([predicted & gold, predicted, gold], -1).astype(float)


def _mean_f1(sums: np.ndarray) -> np.ndarray:
    by_class = sums.reshape(*sums.shape[:-1], -1, 3)
    seen = (by_class[..., 1] + by_class[..., 2]) > 0  # absent classes are skipped, as in scikit-learn
    return ratio((f_score(by_class) * seen).sum(-1), seen.sum(-1))


@metric("macro_f1", _mean_f1)
def macro_f1(predictions: Sequence, golds: Sequence) -> np.ndarray:
    predicted, gold = _classes(predictions, golds)
    every = np.arange(1 + max(predicted.max(initial=0), gold.max(initial=0)))
    predicted, gold = predicted[:, None] == every, gold[:, None] == every
    return np.stack([predicted & gold, predicted, gold], -1).reshape(len(gold), -1).astype(float)


def _mcc(sums: np.ndarray) -> np.ndarray:
    size = round(sums.shape[-1] ** 0.5)
    table = sums.reshape(*sums.shape[:-1], size, size)
    total, hits = table.sum((-1, -2)), np.trace(table, axis1=-2, axis2=-1)
    gold, predicted = table.sum(-1), table.sum(-2)
    spread = (total**2 - (gold**2).sum(-1)) * (total**2 - (predicted**2).sum(-1))
    return ratio(hits * total - (gold * predicted).sum(-1), np.sqrt(spread))


@metric("mcc", _mcc)
def confusion(predictions: Sequence, golds: Sequence) -> np.ndarray:
    """Matthews' correlation, for two or more classes: counts are the cells of the confusion table."""
    predicted, gold = _classes(predictions, golds)
    size = 1 + max(predicted.max(initial=0), gold.max(initial=0))
    return np.eye(size * size)[gold * size + predicted]


def _correlation(sums: np.ndarray) -> np.ndarray:
    n, x, y, xx, yy, xy = np.moveaxis(sums, -1, 0)
    spread_x, spread_y = n * xx - x**2, n * yy - y**2
    level = (spread_x <= 1e-12 * n * xx) | (spread_y <= 1e-12 * n * yy)  # all grades the same: nothing correlates
    slope = ratio(n * xy - x * y, np.sqrt(np.where(level, 1.0, spread_x * spread_y)))
    return np.where(level, 0.0, np.clip(slope, -1, 1))


@metric("pearson", _correlation)
def moments(predictions: Sequence, golds: Sequence) -> np.ndarray:
    """Pearson's r; 0 if one side is constant."""
    x, y = np.asarray(predictions, float), np.asarray(golds, float)
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise HeadwiseError("a grade is not a finite number")
    return np.stack([np.ones(len(x)), x, y, x * x, y * y, x * y], -1)


@metric("spearman", _correlation)
def rank_moments(predictions: Sequence, golds: Sequence) -> np.ndarray:
    """Spearman's rho; ranks are computed once over all examples, so a bootstrap resamples ranks."""
    from scipy.stats import rankdata  # not above: listing tasks takes a second less without it

    moments(predictions, golds)  # refuses what is not finite
    return moments(rankdata(predictions), rankdata(golds))


# -- choices and continuations of a language model


@metric("margin", share)
def margins(predictions: Sequence, golds: Sequence) -> np.ndarray:
    """The mean margin of the right choice over the best wrong one, in nats."""
    return np.array([(p.margin(gold), 1.0) for p, gold in zip(predictions, golds)], float).reshape(-1, 2)


@metric("choice_probability", share)
def choice_probabilities(predictions: Sequence, golds: Sequence) -> np.ndarray:
    """The mean probability of the right choice, among the choices of its row."""
    from scipy.special import softmax  # not above, for the time it takes

    return np.array([(softmax(p.scores)[gold], 1.0) for p, gold in zip(predictions, golds)], float).reshape(-1, 2)


@metric("continuation_match", share)
def continuations_matched(predictions: Sequence, golds: Sequence) -> np.ndarray:
    """The fraction of continuations that greedy decoding says, token by token."""
    return np.array([(p.exact, 1.0) for p in predictions], float).reshape(-1, 2)


@metric("token_probability", lambda sums: np.exp(ratio(sums[..., 0], sums[..., 1])))
def token_probabilities(predictions: Sequence, golds: Sequence) -> np.ndarray:
    """The geometric mean of the probabilities of all tokens: one over the perplexity."""
    return np.array([(p.total, p.tokens) for p in predictions], float).reshape(-1, 2)


# -- words and spans


def _same_length(predicted: Sequence, gold: Sequence, number: int) -> None:
    if len(predicted) != len(gold):
        raise HeadwiseError(f"example {number}: {len(predicted)} words predicted for {len(gold)}", "as many")


@metric("tag_accuracy", share)
def tags_right(predictions: Sequence[Sequence[str]], golds: Sequence[Sequence[str]]) -> np.ndarray:
    counts = []
    for number, (predicted, gold) in enumerate(zip(predictions, golds)):
        _same_length(predicted, gold, number)
        counts.append((sum(p == g for p, g in zip(predicted, gold)), len(gold)))
    return np.array(counts, float).reshape(-1, 2)


def bio_spans(tags: Sequence[str]) -> list[Span]:
    """Spans ``(start, end, type)`` of BIO, IOB or BIOES tags, with invalid sequences read as conlleval does.

    Example:
        >>> bio_spans(["B-PER", "I-PER", "I-LOC", "O"])
        [(0, 2, 'PER'), (2, 3, 'LOC')]
    """
    spans: list[Span] = []
    start, before, kind = 0, "O", ""
    for i, tag in enumerate([*tags, "O"]):
        place, _, name = tag.partition("-")
        breaks = place in {"O", "B", "S"} or before in {"O", "E", "S"} or name != kind
        if before != "O" and breaks:
            spans.append((start, i, kind))
        if place != "O" and breaks:
            start = i
        before, kind = place, name
    return spans


def matched(predicted: Iterable, gold: Iterable) -> tuple[int, int, int]:
    """Matched, predicted and gold items, as multisets."""
    predicted, gold = Counter(predicted), Counter(gold)
    return (predicted & gold).total(), predicted.total(), gold.total()


def _as_spans(item: Iterable) -> list[Span]:
    item = list(item)
    return bio_spans(item) if item and isinstance(item[0], str) else [(s, e, label) for s, e, label in item]


@metric("span_f1", f_score)
def spans_matched(predictions: Sequence, golds: Sequence) -> np.ndarray:
    """conlleval's F1 over typed spans; examples are BIO tags or ``(start, end, label)`` spans."""
    return np.array([matched(_as_spans(p), _as_spans(g)) for p, g in zip(predictions, golds)], float).reshape(-1, 3)


# -- trees


def _arcs_right(predictions: Sequence, golds: Sequence, labelled: bool, punctuation: bool) -> np.ndarray:
    counts = []
    for number, (predicted, gold) in enumerate(zip(predictions, golds)):
        _same_length(predicted, gold, number)
        pairs = [(p, g) for p, g in zip(predicted, gold) if punctuation or g[1].partition(":")[0] != "punct"]
        counts.append((sum(p[0] == g[0] and (not labelled or p[1] == g[1]) for p, g in pairs), len(pairs)))
    return np.array(counts, float).reshape(-1, 2)


for _name, _labelled, _punctuation in [
    ("las", True, False),  # words whose gold label is punct (or a subtype) are skipped
    ("uas", False, False),
    ("las_punct", True, True),  # every word counts
    ("uas_punct", False, True),
]:
    metric(_name, share)(partial(_arcs_right, labelled=_labelled, punctuation=_punctuation))


PUNCTUATION_TAGS = frozenset({",", ":", "``", "''", ".", "PUNCT"})  # EVALB's COLLINS.prm, and UD's own tag
ROOT_LABELS = frozenset({"", "TOP", "ROOT", "S1"})


def bracket_label(label: str) -> str:
    """A label as compared by EVALB: without function tags, PRT as ADVP."""
    label = re.split("[-=]", label)[0]
    return "ADVP" if label == "PRT" else label


def _brackets(spans: Iterable[Span], position: np.ndarray) -> list[Span]:
    moved = ((int(position[s]), int(position[e]), bracket_label(label)) for s, e, label in spans)
    return [b for b in moved if b[0] < b[1] and b[2] not in ROOT_LABELS and b[2] not in PUNCTUATION_TAGS]


@metric("bracket_f1", f_score)
def brackets_matched(predictions: Sequence, golds: Sequence) -> np.ndarray:
    """EVALB's labelled F1. Gold brackets ``(i, i + 1, tag)`` with a punctuation tag delete word i on both sides."""
    counts = []
    for predicted, gold in zip(predictions, golds):
        kept = np.ones(max((e for _, e, _ in [*predicted, *gold]), default=0), int)
        kept[[s for s, _, label in gold if label in PUNCTUATION_TAGS]] = 0
        position = np.concatenate([[0], kept.cumsum()])
        counts.append(matched(_brackets(predicted, position), _brackets(gold, position)))
    return np.array(counts, float).reshape(-1, 3)


# -- frames


def _arguments(frames: Iterable[tuple[int, int, int, str]]) -> Counter:
    """Arguments as in srl-eval.pl: C-X continues the preceding X, and V is not an argument."""
    whole: list[list] = []
    latest: dict[tuple[int, str], list] = {}
    for predicate, start, end, role in sorted(frames):
        name = role.removeprefix("C-")
        if role == name or (predicate, name) not in latest:
            latest[predicate, name] = [predicate, name]
            whole.append(latest[predicate, name])
        latest[predicate, name].append((start, end))
    return Counter(tuple(argument) for argument in whole if argument[1] != "V")


def _roles_matched(predictions: Sequence, golds: Sequence, given: bool) -> np.ndarray:
    counts = []
    for predicted, gold in zip(predictions, golds):
        known = {item[0] for item in gold}
        counts.append(matched(_arguments(p for p in predicted if not given or p[0] in known), _arguments(gold)))
    return np.array(counts, float).reshape(-1, 3)


metric("srl_f1", f_score)(partial(_roles_matched, given=False))  # end to end: frames of wrong predicates count
metric("srl_f1_given", f_score)(partial(_roles_matched, given=True))  # srl-eval.pl: only gold predicates' frames


# -- answers

ARTICLES = {  # what MLQA's evaluation script drops in each of its languages; Hindi and Chinese have none
    "en": r"\b(a|an|the)\b",
    "es": r"\b(un|una|unos|unas|el|la|los|las)\b",
    "de": r"\b(ein|eine|einen|einem|eines|einer|der|die|das|den|dem|des)\b",
    "vi": r"\b(của|là|cái|chiếc|những)\b",
    "ar": "ال",
    "hi": "",
    "zh": "",
    "plain": "",  # every other language: case, punctuation and spaces only
}


def answer_f1(language: str) -> str:
    """The name of the answer F1 for a language: SQuAD's for English, MLQA's for its other languages.

    Example:
        >>> answer_f1("en"), answer_f1("es"), answer_f1("zh-Hans"), answer_f1("fi")
        ('answer_f1', 'answer_f1_es', 'answer_f1_zh', 'answer_f1_plain')
    """
    code = re.split("[-_]", language.lower())[0]
    return "answer_f1" if code == "en" else f"answer_f1_{code if code in ARTICLES else 'plain'}"


def plain_words(text: str, language: str | None = None) -> list[str]:
    """The words of an answer, without case, punctuation and articles: SQuAD's rules, or MLQA's for a language."""
    text = text.lower()
    if language is None:
        text = "".join(c for c in text if c not in string.punctuation)
    else:
        text = "".join(c for c in text if c not in string.punctuation and unicodedata.category(c)[0] != "P")
    articles = ARTICLES[language or "en"]
    text = re.sub(articles, " ", text) if articles else text
    return re.sub("([一-龥])", r" \1 ", text).split() if language == "zh" else text.split()


def _exact(predicted: list[str], gold: list[str]) -> float:
    return float(predicted == gold)


def _overlap(predicted: list[str], gold: list[str]) -> float:
    if not predicted or not gold:
        return float(predicted == gold)
    common, n, m = matched(predicted, gold)
    return 2 * common / (n + m)


def _answers_right(predictions: Sequence[str], golds: Sequence[Sequence[str]], score: Callable, language: str | None):
    best = [
        max((score(plain_words(p, language), plain_words(g, language)) for g in gold), default=0.0)
        for p, gold in zip(predictions, golds)
    ]
    return np.stack([np.array(best, float), np.ones(len(best))], -1)


for _language in (None, *ARTICLES):  # em and answer_f1 are SQuAD's; em_es, answer_f1_es, ... are MLQA's
    _suffix = f"_{_language}" if _language else ""
    metric("em" + _suffix, share)(partial(_answers_right, score=_exact, language=_language))
    metric("answer_f1" + _suffix, share)(partial(_answers_right, score=_overlap, language=_language))
