"""Cutting in rounds: importance is estimated anew after every cut, so that heads which back each other up are seen.

Scored once, two heads that can each do the other's work both look dispensable; cut both and the task is gone. Scored
again after the first of them went, the second has become important (Michel et al. 2019 call this exact pruning).
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
from headwise.measuring.evaluate import evaluate
from headwise.models.batching import encode
from headwise.models.multitask import MultiTaskModel
from headwise.scoring.importance import importance


@dataclass(frozen=True)
class Rounds:
    """The order in which heads went, and every task's performance on the way, beside the same cuts scored once."""

    by: str
    first: str  # "least" or "most" important heads went first
    order: tuple[tuple[int, int], ...]  # (layer, head), the first to go first
    scores: torch.Tensor  # (L, H), 0 to 1: where in the order a head stands, the most important highest; NaN if cut
    fractions: tuple[float, ...]  # share of all heads gone, from 0 on
    curve: dict[str, list[float]]  # per task, performance at each fraction
    once: dict[str, list[float]]  # the same, by the scores of the first round alone

    def area(self, task: str) -> tuple[float, float]:
        """The mean performance over the fractions, by rounds and scored once (the area under either curve)."""
        if task not in self.curve:
            raise unknown("task of these rounds", task, self.curve)
        width = self.fractions[-1] - self.fractions[0]
        return tuple(float(np.trapezoid(c[task], self.fractions) / width) for c in (self.curve, self.once))  # type: ignore[return-value]

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
    """Close heads a few at a time, scoring those that are left after every cut; the model itself is not changed.

    Args:
        model: trained on the tasks.
        tasks: one task, or several whose scores are added, each scaled to sum 1.
        by: the importance estimator, with its ``options``.
        step: share of all heads closed in a round.
        until: share closed in the end.
        first: "least" important heads first (to prune), or "most" important first (to lesion).
        keep_per_layer: heads of each layer that stay.
        examples: for each estimate.
        limit: measured on a seeded sample of this many development rows.
        seed: of the examples.
        log: called with a line for every round.

    Example:
        >>> found = cut_in_rounds(model, ["sst2", "qnli"], until=0.5)
        >>> smaller = prune(copy.deepcopy(model.encoder), bottom(found.scores, 0.5))
    """
    names, heads = [tasks] if isinstance(tasks, str) else list(tasks), Heads.of(model.encoder)
    shares = _shares(step, until, heads, keep_per_layer)
    if first not in ("least", "most"):
        raise unknown("end to begin with", first, ("least", "most"))
    if by == "random":
        raise HeadwiseError("by='random' in rounds", "an estimator that looks at the model anew")
    data = {name: encode(model.tasks[name], "train", model.tokenizer, model.max_length) for name in names}

    def score(gone: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(heads.shape, dtype=torch.float64)
        with gated(model.encoder, (~gone).float(), heads=heads) if gone.any() else nullcontext():
            for name in names:
                found = importance(model, name, by, examples=examples, seed=seed, data=data[name], **options).scores
                found = found.double().cpu().masked_fill(gone, torch.nan)
                total = total + found / found.abs().nansum().clamp_min(1e-20)
        return total

    took, rounds = _cut(score, shares, heads, first, keep_per_layer, log)
    once = [_end(took[0], share, first, keep_per_layer) for share in shares]
    return _measured(model, names, by, first, (took, rounds, once), heads, limit)


def _shares(step: float, until: float, heads: Heads, keep: int) -> list[float]:
    """Growing shares of all heads, one per round, up to what the living heads allow."""
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
    """Each round's scores and the heads gone after it."""
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
    curve = {name: found[: n + 1] for name, found in values.items()}
    alone = {name: [found[0], *found[n + 1 :]] for name, found in values.items()}
    order, rest = _order(scores, rounds, first)
    places = order + rest if first == "least" else (order + rest)[::-1]
    ranks = torch.full(heads.shape, torch.nan)
    for place, (layer, head) in enumerate(places):
        ranks[layer, head] = place / max(1, len(places) - 1)
    return Rounds(by, first, tuple(order), ranks, fractions, curve, alone)


def _order(scores: list[torch.Tensor], rounds: list[torch.Tensor], first: str) -> tuple[list, list]:
    """Heads as they went, and those that stayed in the order in which they would have gone next."""
    order: list[tuple[int, int]] = []
    before = torch.zeros_like(rounds[0])
    for found, gone in zip([*scores, scores[-1]], [*rounds, ~scores[0].isnan()]):
        new = (gone & ~before).nonzero().tolist()
        new.sort(key=lambda at: float(found[at[0], at[1]]), reverse=first == "most")
        order += [(layer, head) for layer, head in new]
        before = gone
    went = int(rounds[-1].sum())
    return order[:went], order[went:]
