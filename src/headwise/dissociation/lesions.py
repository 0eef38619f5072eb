"""Lesion each task's heads and measure every task: the passes behind a dissociation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from headwise.dissociation.result import Counts, Dissociation
from headwise.dissociation.significance import NEEDED, layer_sets, random_sets
from headwise.errors import HeadwiseError
from headwise.heads.selection import matched_heads, random_heads, relabelled, ties, top
from headwise.io.display import Shown, plot_curves
from headwise.io.files import finite
from headwise.measuring.evaluate import Score, chance, evaluate
from headwise.measuring.stats import adjust
from headwise.models.subject import Subject
from headwise.scoring.result import Importance
from headwise.tasks.metrics import metrics

GRID = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
ScoreMaps = Mapping[str, torch.Tensor | Importance]


def dissociate(
    model: Subject,
    scores: ScoreMaps,
    fractions: float | Sequence[float] = 0.3,
    *,
    close: str = "zero",
    random: int | None = None,
    matched: int | None = None,
    alpha: float = 0.3,
    keep_per_layer: int = 0,
    split: str = "dev",
    limit: int | None = None,
    resamples: int | None = None,
    seed: int = 0,
    undefined: str = "refuse",
    log: Callable[[str], None] = lambda line: None,
) -> Dissociation:
    """Measure every task while each task's top heads, or random ones, are closed; one pass over each task's data.

    Args:
        model: trained on the tasks.
        scores: each task's importance, ``{task: (L, H)}``; two tasks or more.
        fractions: fractions of heads to close; several give D(α) and lesion curves from the same pass.
        close: what closed heads return: "zero", their "mean" output, "resample" or "optimal" (see `evaluate`). Where
            zero drives a task to chance, gentler references can show specialization that the floor hides.
        random: number of random sets of the same size, closed at every fraction, for p-values. The default grows with
            the number of tasks, from 20 to 100, so that a pair's p-value can fall below 0.05 after Holm.
        matched: number of random sets with each task's number of heads per layer, closed at ``alpha`` only; they test
            whether more than the layer matters. The default grows from 20 too; 0 if there are too few random sets.
        alpha: the fraction of the main test, or the nearest of ``fractions``.
        keep_per_layer: heads per layer that random controls keep open (the released code keeps one).
        split: the split to measure on.
        limit: use a seeded sample of this many rows.
        resamples: bootstrap draws over examples (default: enough for the number of tasks).
        seed: of the random controls and the bootstrap.
        undefined: what to do with a task that scores 0 without a lesion: "refuse", or "leave" it without D.
        log: called with a line for every task measured.

    Example:
        >>> scores = {task: importance(model, task) for task in model.tasks}
        >>> print(dissociate(model, scores, fractions=(0.1, 0.3, 0.5)))
    """
    grid = [float(f) for f in ([fractions] if isinstance(fractions, (int, float)) else fractions)]
    tasks, maps = list(scores), [score.scores if isinstance(score, Importance) else score for score in scores.values()]
    if len(tasks) < 2:
        raise HeadwiseError(f"one task, {tasks}", "two tasks or more")
    random = random_sets(len(tasks)) if random is None else random
    matched = (layer_sets(len(tasks)) if random >= NEEDED else 0) if matched is None else matched
    if not grid or random < 0 or matched < 0:
        seen = f"fractions={grid}, random={random}, matched={matched}"
        raise HeadwiseError(seen, "a fraction or more, and random and matched of 0 or more")
    shape = model.attention.shape
    for task, scoring in zip(tasks, maps):
        if tuple(scoring.shape) != shape:
            raise HeadwiseError(f"scores of {task!r} have shape {tuple(scoring.shape)}", f"{shape}, the model's heads")
    masks = lesion_masks(maps, grid, random, keep_per_layer, seed)  # (F, K-1, L, H)
    default = min(grid, key=lambda fraction: abs(fraction - alpha))
    layered = layer_masks(maps, default, matched, seed)  # (T, M, L, H)
    closed = torch.cat([masks.flatten(0, 1), layered.flatten(0, 1)])
    gates = torch.cat([torch.ones(1, *shape), (~closed).float()])
    measured = {}
    for task in tasks:
        scores_of = evaluate(model, task, gates, close, split=split, limit=limit, seed=seed)
        measured[task] = _Measured.of(scores_of, len(grid), len(tasks), matched)
        log(f"{scores_of[0]}; {len(gates) - 1} lesions")
    tied = [[ties(scoring, fraction) > 0 for scoring in maps] for fraction in grid]
    how = {"resamples": resamples, "seed": seed, "undefined": undefined, "tied": tied, "default": default}
    return _assembled(measured, grid, how)


def lesion_masks(maps: list[torch.Tensor], grid: list[float], random: int, keep: int, seed: int) -> torch.Tensor:
    """Each map's top heads and random controls at every fraction, (F, maps + random, L, H)."""
    alive = ~maps[0].isnan()
    rows = []
    for fraction in grid:
        drawn = [random_heads(maps[0].shape, fraction, 1000 * seed + i, keep, alive) for i in range(random)]  # type: ignore[arg-type]
        rows.append(torch.stack([top(scores.cpu(), fraction) for scores in maps] + drawn))
    return torch.stack(rows)


def layer_masks(maps: list[torch.Tensor], fraction: float, matched: int, seed: int) -> torch.Tensor:
    """For each map, random sets with as many heads in every layer as its top heads have, (maps, matched, L, H)."""
    alive, tops = ~maps[0].isnan(), [top(scores.cpu(), fraction) for scores in maps]
    drawn = torch.zeros(len(tops), matched, *alive.shape, dtype=torch.bool)
    for place, mask in enumerate(tops):
        for i in range(matched):
            drawn[place, i] = matched_heads(mask, (1000 * seed + i) * len(tops) + place, alive)
    return drawn


class _Measured(NamedTuple):
    """What is kept of a task's answers under all lesions: counts by metric, a byte or so for each row and lesion."""

    metric: str
    counts: dict[str, Counts]
    matched: dict[str, np.ndarray]  # (T, M): performance under sets matched by layer
    collapsed: np.ndarray  # (F, K)
    chance: float

    @classmethod
    def of(cls, scores: list[Score], fractions: int, tasks: int, matched: int) -> _Measured:
        split_at = len(scores) - tasks * matched
        own, beside, first = scores[:split_at], scores[split_at:], scores[0]
        classes = all(isinstance(p, int) for p in first.predictions)
        margins = all(hasattr(p, "margin") for p in first.predictions)
        names = dict.fromkeys([first.metric, *["accuracy"] * classes, *["margin"] * margins])
        floor = chance(first.golds) if classes else np.nan  # with one class there is nothing above chance
        return cls(
            first.metric,
            {name: lesion_counts(own, fractions, name) for name in names},
            {name: _values(beside, name).reshape(tasks, matched) for name in names},
            _laid([score.collapsed for score in own], fractions),
            floor if floor < 1 else np.nan,
        )

    def by(self, metric: str) -> tuple[Counts | None, np.ndarray]:
        """By another metric; of a task that it does not fit, no counts and the matched sets by its own."""
        return self.counts.get(metric), self.matched.get(metric, self.matched[self.metric])


def _values(scores: list[Score], metric: str) -> np.ndarray:
    return np.array([score.value if score.metric == metric else score.on(metric).value for score in scores], float)


def _assembled(measured: dict[str, _Measured], grid: list[float], how: dict[str, Any]) -> Dissociation:
    """The dissociation of every task's scores under all lesions."""
    tasks, each = list(measured), list(measured.values())
    counts, matched = [one.counts[one.metric] for one in each], np.stack([one.matched[one.metric] for one in each])
    collapsed = np.stack([one.collapsed for one in each], 1)
    result = Dissociation.of(tasks, fractions=grid, counts=counts, collapsed=collapsed, matched=matched, **how)
    draws = {"resamples": how["resamples"], "seed": how["seed"]}
    accuracy, sets = zip(*(one.by("accuracy") for one in each))
    if not any(accuracy):
        return result
    result = result.beside(counts=accuracy, chance=[one.chance for one in each], matched=np.stack(sets), **draws)
    margins, sets = zip(*(one.by("margin") for one in each))
    return result.beside_margins(margins, np.stack(sets), **draws) if any(margins) else result


def _laid(values: list, fractions: int) -> np.ndarray:
    """Values as (F, K), with that of no lesion first in every row."""
    rest = np.asarray(values[1:]).reshape(fractions, -1, *np.shape(values[0]))
    first = np.broadcast_to(np.asarray(values[0]), (fractions, 1, *np.shape(values[0])))
    return np.concatenate([first, rest], 1)


def lesion_counts(scores: list[Score], fractions: int, name: str | None = None) -> Counts:
    """A task's counts under every lesion, (n, F, K, s)."""
    metric = metrics[name or scores[0].metric]
    each = [metric.counts(score.predictions, score.golds) for score in scores]
    if len({count.shape[-1] for count in each}) > 1:  # some class only occurs under some lesions: one table
        golds = scores[0].golds
        every = metric.counts([p for score in scores for p in score.predictions], golds * len(scores))
        each = list(every.reshape(len(scores), len(golds), -1))
    return Counts(_small(np.moveaxis(_laid(each, fractions), 2, 0)), metric.value)


def _small(counts: np.ndarray) -> np.ndarray:
    """Whole numbers in the smallest type that holds them."""
    whole = counts.size and (counts >= 0).all() and (counts == counts.round()).all()
    return counts.astype(np.min_scalar_type(int(counts.max()))) if whole else counts


def null_matrices(
    model: Subject,
    scores: ScoreMaps,
    fraction: float = 0.3,
    draws: int = 99,
    *,
    close: str = "zero",
    split: str = "dev",
    limit: int | None = None,
    seed: int = 0,
) -> np.ndarray:
    """Performances ``(draws, T, T)`` with the tasks' heads reassigned: the null of `Dissociation.permutation_test`."""
    maps = [score.scores if isinstance(score, Importance) else score for score in scores.values()]
    masks = torch.stack([top(scores, fraction) for scores in maps])
    dealt = torch.stack([relabelled(masks, 1000 * seed + i) for i in range(draws)])  # (draws, T, L, H)
    gates = (~dealt.flatten(0, 1)).float()
    rows = [
        [s.value for s in evaluate(model, task, gates, close, split=split, limit=limit, seed=seed)] for task in scores
    ]
    return np.asarray(rows).reshape(len(maps), draws, len(maps)).transpose(1, 0, 2)


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
