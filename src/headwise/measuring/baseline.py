"""What a task scores without reading its input: the baseline that a learned task must beat (no torch)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from headwise.tasks.metrics import metrics

if TYPE_CHECKING:
    from headwise.measuring.evaluate import Score

TAGS = ("tag_accuracy", "span_f1")
ARCS = ("las", "uas", "las_punct", "uas_punct")


def best_constant(metric: str, golds: Sequence[Any]) -> float:
    """The best score of answers that are the same for every input; 0 where no such answer is worth anything.

    Example:
        >>> best_constant("accuracy", [1, 1, 0])
        0.6666666666666666
    """
    return max((metrics[metric](answers, golds) for answers in _constants(metric, golds)), default=0.0)


def against_baseline(score: Score) -> dict[str, Any]:
    """A score with its interval and baseline; ``learned`` where the whole interval is above the baseline."""
    low, high = score.interval()
    baseline = best_constant(score.metric, score.golds)
    compared = {"metric": score.metric, "value": score.value, "low": low, "high": high, "n": score.examples}
    return compared | {"baseline": baseline, "learned": bool(low > baseline)}


def _constants(metric: str, golds: Sequence[Any]) -> Iterator[list[Any]]:
    """Answers of one class, one grade or one tag throughout; trees that hang every word on the word before it."""
    if metric in TAGS and golds and all(isinstance(tag, str) for gold in golds for tag in gold):
        for tag, _ in Counter(tag for gold in golds for tag in gold).most_common(20):
            yield [[tag] * len(gold) for gold in golds]
    elif metric in ARCS:
        labels = Counter(label for gold in golds for _, label in gold)
        label = labels.most_common(1)[0][0] if labels else ""
        yield [[(place, label) for place in range(len(gold))] for gold in golds]
    elif all(isinstance(gold, int) for gold in golds):
        for answer in sorted(set(golds)):
            yield [answer] * len(golds)
