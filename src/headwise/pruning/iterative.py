"""Iterative pruning: importance is estimated again after every cut, which reveals redundant heads.

Scored once, two heads that can replace each other both look dispensable; without both, the task fails. Scored again
after the first was cut, the second is important (Michel et al. 2019 call this exact pruning).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from headwise.errors import HeadwiseError, unknown
from headwise.heads.gates import Heads, gated
from headwise.heads.selection import bottom, budget, top
from headwise.io.display import Shown, plot_curves
from headwise.measuring.evaluate import evaluate
from headwise.models.batching import encode
from headwise.models.multitask import MultiTaskModel
from headwise.scoring.importance import importance


@dataclass(frozen=True)
class Rounds(Shown):
    """The order in which heads were cut and every task's performance, compared with the same cuts scored once."""

    by: str
    first: str  # "least" or "most" important heads first
    order: tuple[tuple[int, int], ...]  # (layer, head), in the order of cutting
    scores: torch.Tensor  # (L, H), 0 to 1: rank in the order, most important highest; NaN if already cut
    fractions: tuple[float, ...]  # fraction of all heads cut, from 0
    curve: dict[str, list[float]]  # per task, performance at each fraction
    once: dict[str, list[float]]  # the same by the scores of the first round only

    def area(self, task: str) -> tuple[float, float]:
        """The mean performance over the fractions, by rounds and scored once (the area under either curve)."""
        if task not in self.curve:
            raise unknown("task of these rounds", task, self.curve)
        width = self.fractions[-1] - self.fractions[0]
        return tuple(float(np.trapezoid(c[task], self.fractions) / width) for c in (self.curve, self.once))  # type: ignore[return-value]

    def to_records(self) -> list[dict[str, Any]]:
        """One record per task and fraction of heads cut."""
        tasks = ((task, f, a, b) for task in self.curve for f, a, b in zip(self.fractions, *self._both(task)))
        return [{"task": task, "fraction": f, "rounds": a, "once": b} for task, f, a, b in tasks]

    def plot(self, ax: Any = None) -> Any:
        """Every task's performance in rounds over the fraction of heads cut; returns matplotlib axes."""
        names = {"xlabel": "fraction of heads cut", "ylabel": "performance"}
        return plot_curves(self.fractions, self.curve, None, ax, **names)

    def _both(self, task: str) -> tuple[list[float], list[float]]:
        return self.curve[task], self.once[task]

    def to_record(self) -> dict[str, Any]:
        scores = [[None if cell != cell else cell for cell in row] for row in self.scores.tolist()]
        about = {"by": self.by, "first": self.first, "order": [list(place) for place in self.order], "scores": scores}
        return about | {"fractions": list(self.fractions), "curve": self.curve, "once": self.once}

    def __str__(self) -> str:
        """Performance in percent at every fraction, by rounds / scored once."""
        lines = [["heads cut", *(f"{100 * f:.0f} %" for f in self.fractions)]]
        for task in self.curve:
            pairs = zip(self.curve[task], self.once[task])
            lines.append([task, *(f"{100 * a:.1f} / {100 * b:.1f}" for a, b in pairs)])
        widths = [max(map(len, column)) for column in zip(*lines)]
        table = ["  ".join(word.rjust(width) for word, width in zip(line, widths)) for line in lines]
        return "\n".join([*table, f"in rounds / scored once, {self.first} important first, by {self.by}"])


def cut_in_rounds(
    model: MultiTaskModel,
    tasks: str | Sequence[str],
    by: str = "gradient",
    *,
    step: float = 0.1,
    until: float = 0.9,
    first: str = "least",
    keep_per_layer: int = 0,
    examples: int = 10_000,
    limit: int | None = None,
    seed: int = 0,
    log: Callable[[str], None] = lambda line: None,
    **options: Any,
) -> Rounds:
    """Close a few heads at a time and score the remaining ones again after every cut; the model is not changed.

    Args:
        model: trained on the tasks.
        tasks: one task, or several, whose scores are normalized and added.
        by: importance estimator, with its ``options``.
        step: fraction of all heads closed per round.
        until: fraction closed at the end.
        first: "least" important heads first (to prune), or "most" important first (to lesion).
        keep_per_layer: minimum number of heads per layer.
        examples: number of examples per estimate.
        limit: evaluate on a seeded sample of this many development rows.
        seed: seed of the examples.
        log: called with a line for every round.

    Example:
        >>> rounds = cut_in_rounds(model, ["sst2", "qnli"], until=0.5)
        >>> smaller = prune(copy.deepcopy(model.encoder), bottom(rounds.scores, 0.5))
    """
    names, heads = [tasks] if isinstance(tasks, str) else list(tasks), Heads.of(model.encoder)
    shares = _shares(step, until, heads, keep_per_layer)
    if first not in ("least", "most"):
        raise unknown("end to begin with", first, ("least", "most"))
    if by == "random":
        raise HeadwiseError("by='random' in rounds", "an estimator that depends on the model")
    data = {name: encode(model.tasks[name], "train", model.tokenizer, model.max_length) for name in names}

    def score(gone: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(heads.shape, dtype=torch.float64)
        with gated(model.encoder, (~gone).float(), heads=heads) if gone.any() else nullcontext():
            for name in names:
                scores = importance(model, name, by, examples=examples, seed=seed, data=data[name], **options).scores
                scores = scores.double().cpu().masked_fill(gone, torch.nan)
                total = total + scores / scores.abs().nansum().clamp_min(1e-20)
        return total

    took, rounds = _cut(score, shares, heads, first, keep_per_layer, log)
    once = [_end(took[0], share, first, keep_per_layer) for share in shares]
    return _measured(model, names, by, first, (took, rounds, once), heads, limit)


def _shares(step: float, until: float, heads: Heads, keep: int) -> list[float]:
    """Increasing fractions of all heads, one per round, up to what the remaining heads allow."""
    if not 0 < step <= until <= 1:
        raise HeadwiseError(f"step={step}, until={until}", "0 < step <= until <= 1")
    total, free = heads.alive.numel(), int((heads.alive.sum(1) - keep).clamp_min(0).sum())
    counts = [min(budget(min(until, step * n), total), free) for n in range(1, int(until / step + 1 - 1e-9) + 1)]
    counts = [count for count in dict.fromkeys(counts) if count]
    if not counts:
        raise HeadwiseError(f"step={step}, until={until} of {total} heads", "at least one head to cut")
    return [count / total for count in counts]


def _end(scores: torch.Tensor, share: float, first: str, keep: int) -> torch.Tensor:
    return (bottom if first == "least" else top)(scores, share, keep_per_layer=keep)


def _cut(
    score: Callable[[torch.Tensor], torch.Tensor],
    shares: list[float],
    heads: Heads,
    first: str,
    keep: int,
    log: Callable[[str], None],
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Each round's scores and the heads cut after it."""
    gone, before, taken, scores = ~heads.alive, 0.0, [], []
    for share in shares:
        scores.append(score(gone))
        more = _end(scores[-1], share - before, first, keep)
        gone, before = gone | more, share
        taken.append(gone & heads.alive)
        log(f"{int(taken[-1].sum())} of {heads.alive.numel()} heads cut")
    return scores, taken


def _measured(
    model: MultiTaskModel, names: list[str], by: str, first: str, made: tuple, heads: Heads, limit: int | None
) -> Rounds:
    scores, rounds, once = made
    gates = torch.stack([torch.ones(heads.shape), *((~mask).float() for mask in [*rounds, *once])])
    values = {name: [s.value for s in evaluate(model, name, gates, limit=limit)] for name in names}
    fractions = (0.0, *(int(mask.sum()) / mask.numel() for mask in rounds))
    n = len(rounds)
    curve = {name: values_of[: n + 1] for name, values_of in values.items()}
    alone = {name: [values_of[0], *values_of[n + 1 :]] for name, values_of in values.items()}
    order, rest = _order(scores, rounds, first)
    places = order + rest if first == "least" else (order + rest)[::-1]
    ranks = torch.full(heads.shape, torch.nan)
    for place, (layer, head) in enumerate(places):
        ranks[layer, head] = place / max(1, len(places) - 1)
    return Rounds(by, first, tuple(order), ranks, fractions, curve, alone)


def _order(scores: list[torch.Tensor], rounds: list[torch.Tensor], first: str) -> tuple[list, list]:
    """Heads in the order of cutting, followed by the remaining ones in the order of their scores."""
    order: list[tuple[int, int]] = []
    before = torch.zeros_like(rounds[0])
    for scored, gone in zip([*scores, scores[-1]], [*rounds, ~scores[0].isnan()]):
        new = (gone & ~before).nonzero().tolist()
        new.sort(key=lambda at: float(scored[at[0], at[1]]), reverse=first == "most")
        order += [(layer, head) for layer, head in new]
        before = gone
    went = int(rounds[-1].sum())
    return order[:went], order[went:]
