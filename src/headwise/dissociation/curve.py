"""One task's lesion curve: its score as more of its own heads are closed, compared with random heads.

Arrays: F fractions of heads, R random sets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from headwise.dissociation.lesions import GRID, lesion_masks
from headwise.errors import HeadwiseError
from headwise.io.display import Shown, plot_curves
from headwise.io.files import finite
from headwise.measuring.evaluate import evaluate
from headwise.measuring.stats import adjust
from headwise.models.subject import Subject
from headwise.scoring.result import Importance


@dataclass(frozen=True)
class LesionCurve(Shown):
    """A task's score with all heads, without its own heads, and without random heads.

    Example:
        >>> curve = lesion_curve(model, "sst2", importance(model, "sst2"))
        >>> curve.p  # per fraction: how often random sets harm as much, Holm-adjusted
    """

    task: str
    metric: str
    fractions: tuple[float, ...]
    intact: float
    own: np.ndarray  # (F,)
    random: np.ndarray  # (F, R)
    examples: int

    @property
    def p(self) -> np.ndarray:
        """One-sided p-values that own heads matter more than random ones, (F,), Holm-adjusted over fractions."""
        as_bad = (self.random <= self.own[:, None]).sum(1)
        return adjust((1 + as_bad) / (1 + self.random.shape[1]))

    def to_records(self) -> list[dict[str, Any]]:
        """One record per fraction."""
        shares = zip(self.fractions, self.own, self.random, self.p)
        return [
            {"task": self.task, "fraction": f, "own": own, "random": random.mean(), "low": random.min()}
            | {"high": random.max(), "p": p, "intact": self.intact}
            for f, own, random, p in shares
        ]

    def plot(self, ax: Any = None) -> Any:
        """The score without own heads, beside the range of random ones; returns matplotlib axes."""
        x, whole = [0.0, *self.fractions], np.full((1, self.random.shape[1]), self.intact)
        random = np.concatenate([whole, self.random])
        curves = {f"heads of {self.task}": [self.intact, *self.own], "random heads, mean": random.mean(1)}
        names = {"xlabel": "fraction of heads ablated", "ylabel": self.metric, "title": self.task}
        return plot_curves(x, curves, ("random heads, range", random.min(1), random.max(1)), ax, **names)

    def to_record(self) -> dict[str, Any]:
        return {
            "task": self.task,
            "metric": self.metric,
            "fractions": list(self.fractions),
            "intact": self.intact,
            "own": finite(self.own),
            "random": finite(self.random),
            "p": finite(self.p),
            "examples": self.examples,
        }

    def __str__(self) -> str:
        lines = [f"{self.task}: {self.metric} {100 * self.intact:.2f} with all heads (n = {self.examples})"]
        for fraction, own, random, p in zip(self.fractions, self.own, self.random, self.p):
            band = f"{100 * random.mean():.2f} [{100 * random.min():.2f}, {100 * random.max():.2f}]"
            lines.append(f"  {fraction:>4.0%} closed: own {100 * own:.2f}, random {band}, p = {p:.3g}")
        return "\n".join(lines)


def lesion_curve(
    model: Subject,
    task: str,
    scores: torch.Tensor | Importance,
    fractions: Sequence[float] = GRID,
    *,
    close: str = "zero",
    random: int = 20,
    split: str = "dev",
    limit: int | None = None,
    seed: int = 0,
    log: Callable[[str], None] = lambda line: None,
) -> LesionCurve:
    """Close a task's top heads, or random ones, at every fraction; one pass over its data.

    Args:
        model: a model with this task.
        task: its name.
        scores: its importance, ``(L, H)``.
        fractions: of all heads, to close.
        close: what closed heads return (see `evaluate`).
        random: number of random sets of the same size, at every fraction.
        split: which split is measured.
        limit: use a seeded sample of this many rows.
        seed: of the random sets.
        log: called with one line at the end.
    """
    values = scores.scores if isinstance(scores, Importance) else scores
    shape = model.attention.shape
    if tuple(values.shape) != shape:
        raise HeadwiseError(f"scores of {task!r} have shape {tuple(values.shape)}", f"{shape}, the model's heads")
    if not fractions or random < 1:
        raise HeadwiseError(f"fractions={list(fractions)}, random={random}", "a fraction or more, and 1 or more")
    masks = lesion_masks([values], list(fractions), random, 0, seed)  # (F, 1 + R, L, H)
    gates = torch.cat([torch.ones(1, *shape), (~masks.flatten(0, 1)).float()])
    results = evaluate(model, task, gates, close, split=split, limit=limit, seed=seed)
    under = np.array([score.value for score in results[1:]]).reshape(len(fractions), 1 + random)
    whole = results[0]
    log(f"{whole}; {len(gates) - 1} lesions")
    grid = tuple(map(float, fractions))
    return LesionCurve(task, whole.metric, grid, whole.value, under[:, 0], under[:, 1:], whole.examples)
