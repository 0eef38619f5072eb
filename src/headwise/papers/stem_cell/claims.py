"""Which tasks claim which heads, from gates that runs have learned; and how heads' profiles change with training.

Arrays: R runs (seeds), T tasks, L layers, H heads, K labels of probes. Gates are those of evaluation, from 0 to 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np

from headwise.errors import HeadwiseError, unknown
from headwise.measuring.stats import Estimate, p_value, paired_bootstrap
from headwise.papers.summary import pearson

OPEN = 1e-3  # a gate above this is open (as released)
SHUFFLES = ("layers", "all")


@dataclass(frozen=True)
class Claims:
    """The gates that tasks learned, each in several runs.

    Example:
        >>> claims = Claims.of({"pos": pos_gates, "ner": ner_gates})  # (R, L, H) each
        >>> claims.per_head()  # (L, H): how many tasks claim each head
        >>> print(claims.stem_cells())
        34 of 144 heads claimed by 3 or more of 5 tasks; chance within layers 21.3, p = 0.0001; over all 9.8, p = 0.0001
    """

    tasks: tuple[str, ...]
    gates: np.ndarray = field(repr=False)  # (R, T, L, H)
    alive: np.ndarray | None = field(default=None, repr=False)  # bool (L, H): the heads that were not cut

    @classmethod
    def of(cls, gates: Mapping[str, Any], alive: Any = None) -> Claims:
        """From each task's gates ``(R, L, H)``; joint training may stand among the tasks under a name of its own.

        Of a model that has lost heads ``alive`` names the others, bool ``(L, H)``: chance gives nothing to cut ones.
        """
        arrays = {task: np.asarray(value, float) for task, value in gates.items()}
        shapes = {task: array.shape for task, array in arrays.items()}
        if not arrays or len(set(shapes.values())) != 1 or next(iter(arrays.values())).ndim != 3:
            raise HeadwiseError(f"gates of shapes {shapes}", "(runs, layers, heads), the same for every task")
        stacked = np.stack(list(arrays.values()), 1)
        if not ((stacked >= 0) & (stacked <= 1)).all():
            raise HeadwiseError("gates below 0, above 1 or NaN", "the gates of evaluation", "gates.settled()")
        living = None if alive is None else np.asarray(alive, bool)
        if living is not None and (living.shape != stacked.shape[2:] or stacked[..., ~living].any()):
            raise HeadwiseError(f"living heads of shape {living.shape}", f"{stacked.shape[2:]}, with all open gates")
        return cls(tuple(arrays), stacked, living)

    def claimed(self, runs: int | None = None) -> np.ndarray:
        """Bool (T, L, H): the heads a task opens in at least so many of its runs; in more than half by default."""
        total = len(self.gates)
        needed = total // 2 + 1 if runs is None else runs
        if not 1 <= needed <= total:
            raise HeadwiseError(f"runs={runs}", f"1 to {total}, the runs there are")
        return (self.gates > OPEN).sum(0) >= needed

    def per_head(self, runs: int | None = None) -> np.ndarray:
        """How many tasks claim each head, (L, H)."""
        return self.claimed(runs).sum(0)

    def average(self) -> np.ndarray:
        """The mean gate of each head over all tasks and runs, (L, H)."""
        return self.gates.mean((0, 1))

    def overlap(self, task: str) -> RunOverlap:
        """How far a task's runs claim the same heads."""
        return RunOverlap(task, self.gates[:, self._place(task)])

    def correlation(self, reliability: str = "pairwise") -> np.ndarray:
        """Pearson's r between tasks' run-averaged gates, (T, T), with each task's reliability on the diagonal.

        Args:
            reliability: "pairwise", the mean r between two runs; "average", what that makes of the average of all runs
                (Spearman-Brown), the most an off-diagonal r can be expected to reach; or "released", the square root
                of the adjusted R² of the last run regressed on the others.

        NaN where a task's gates are all alike.
        """
        if reliability not in RELIABILITIES:
            raise unknown("reliability", reliability, RELIABILITIES)
        correlation = pearson(self.gates.mean(0).reshape(len(self.tasks), -1))
        each = [
            RELIABILITIES[reliability](self.gates[:, t].reshape(len(self.gates), -1)) for t in range(len(correlation))
        ]
        np.fill_diagonal(correlation, each)
        return correlation

    def stem_cells(
        self, most: int | None = None, runs: int | None = None, resamples: int = 9999, seed: int = 0
    ) -> StemCells:
        """Heads claimed by most tasks, and whether they are more than chance gives.

        Chance deals each task's claims anew among the heads of their own layer, so that tasks which all like the same
        layers do not pass for tasks which like the same heads; or among all heads.

        Args:
            most: from how many tasks on a head counts; more than half by default.
            runs: see `claimed`.
            resamples: shuffles.
            seed: of the shuffles.
        """
        claimed = self.claimed(runs)
        needed = len(self.tasks) // 2 + 1 if most is None else most
        if not 2 <= needed <= len(self.tasks):
            raise HeadwiseError(f"most={needed} of {len(self.tasks)} tasks", "two tasks or more, and no more than all")
        heads = claimed.sum(0) >= needed
        rng = np.random.default_rng(seed)
        null = {how: (dealt(claimed, how, resamples, rng, self.alive).sum(1) >= needed).sum((1, 2)) for how in SHUFFLES}
        chance = {how: float(counts.mean()) for how, counts in null.items()}
        p = {how: float(p_value(heads.sum(), counts)) for how, counts in null.items()}
        return StemCells(heads, needed, len(self.tasks), chance, p)

    def to_record(self) -> dict[str, Any]:
        return {"tasks": list(self.tasks), "gates": self.gates.tolist()}

    def _place(self, task: str) -> int:
        if task not in self.tasks:
            raise unknown("task with claims", task, self.tasks)
        return self.tasks.index(task)


@dataclass(frozen=True)
class RunOverlap:
    """The heads that the runs of one task claim, jointly and separately."""

    task: str
    gates: np.ndarray = field(repr=False)  # (R, L, H)

    @property
    def rgb(self) -> np.ndarray:
        """A colour for each head, (L, H, 3): black where all three runs claim it, white where none does."""
        if len(self.gates) != 3:
            raise HeadwiseError(f"{len(self.gates)} runs", "three, one for each of red, green and blue")
        return np.moveaxis(1 - self.gates, 0, -1)

    @property
    def open(self) -> np.ndarray:
        """Heads open in each run, (R,)."""
        return (self.gates > OPEN).sum((1, 2))

    @property
    def all(self) -> int:
        """Heads open in every run."""
        return int((self.gates > OPEN).all(0).sum())

    @property
    def any(self) -> int:
        """Heads open in one run or more."""
        return int((self.gates > OPEN).any(0).sum())

    @property
    def r(self) -> np.ndarray:
        """Pearson's r between the runs' gates, (R, R)."""
        return pearson(self.gates.reshape(len(self.gates), -1))

    def __str__(self) -> str:
        runs = "/".join(map(str, self.open))
        return f"{self.task}: {runs} heads open, {self.all} in all runs, {self.any} in any"


@dataclass(frozen=True)
class StemCells:
    """Heads claimed by most tasks, against chance."""

    heads: np.ndarray = field(repr=False)  # bool (L, H)
    most: int
    tasks: int
    chance: dict[str, float]  # how many heads chance gives: claims dealt within layers, or over all heads
    p: dict[str, float]  # fraction of shuffles with as many

    @property
    def count(self) -> int:
        return int(self.heads.sum())

    def to_record(self) -> dict[str, Any]:
        settled = {"most": self.most, "tasks": self.tasks, "chance": self.chance, "p": self.p}
        return {"heads": self.heads.tolist(), "count": self.count, **settled}

    def __str__(self) -> str:
        said = [f"{self.chance[how]:.1f}, p = {self.p[how]:.2g}" for how in SHUFFLES]
        claimed = f"{self.count} of {self.heads.size} heads claimed by {self.most} or more of {self.tasks} tasks"
        return f"{claimed}; chance within layers {said[0]}; over all {said[1]}"


def dealt(
    claimed: np.ndarray, how: str, resamples: int, rng: np.random.Generator, alive: np.ndarray | None = None
) -> np.ndarray:
    """Tasks' claims ``(T, L, H)`` dealt anew within layers or over all heads, ``(resamples, T, L, H)``.

    Tasks are dealt independently; each keeps its number of heads, of every layer or of the model. Only heads that are
    ``alive`` are dealt to.
    """
    if how not in SHUFFLES:
        raise unknown("shuffle", how, SHUFFLES)
    cards = claimed if how == "layers" else claimed.reshape(len(claimed), -1)
    many = np.broadcast_to(cards, (resamples, *cards.shape)).copy()
    if alive is None or alive.all():
        return rng.permuted(many, axis=-1, out=many).reshape(resamples, *claimed.shape)
    for deck, living in zip(np.moveaxis(many, 2, 0), alive) if how == "layers" else [(many, alive.ravel())]:
        deck[..., living] = rng.permuted(deck[..., living], axis=-1)
    return many.reshape(resamples, *claimed.shape)


# -- correlation and reliability


def _pairwise(runs: np.ndarray) -> float:
    """The mean r between two runs; NaN for a single run."""
    return float(pearson(runs)[np.triu_indices(len(runs), 1)].mean()) if len(runs) > 1 else math.nan


def _average(runs: np.ndarray) -> float:
    r = _pairwise(runs)
    return len(runs) * r / (1 + (len(runs) - 1) * r) if r > 0 or math.isnan(r) else r


def _released(runs: np.ndarray) -> float:
    """sqrt(adjusted R²) of the last run on the others and a constant; 0 where that R² is not above zero."""
    *others, last = runs
    residue = len(last) - len(others) - 1
    if not others or residue < 1 or np.ptp(last) == 0:
        return math.nan
    known = np.column_stack([np.ones(len(last)), *others])
    left = last - known @ np.linalg.lstsq(known, last, rcond=None)[0]
    adjusted = 1 - (left @ left / residue) / (np.square(last - last.mean()).sum() / (len(last) - 1))
    return math.sqrt(max(0.0, adjusted))


RELIABILITIES = {"pairwise": _pairwise, "average": _average, "released": _released}


# -- profiles: the labels that each head predicts, before and after


@dataclass(frozen=True)
class Shift:
    """How heads' profiles, scores of K labels, differ between two stages of training."""

    before: np.ndarray = field(repr=False)  # (K, L, H)
    after: np.ndarray = field(repr=False)

    @property
    def best(self) -> np.ndarray:
        """The gain of each label's best head, (K,)."""
        return _flat(self.after).max(1) - _flat(self.before).max(1)

    @property
    def moved(self) -> np.ndarray:
        """Bool (K,): whether the label's best head changed."""
        return _flat(self.after).argmax(1) != _flat(self.before).argmax(1)

    @property
    def kept(self) -> np.ndarray:
        """Pearson's r of each head's profile with what it was, (L, H); labels are first centred over the heads, or the
        easy ones would make all profiles alike."""
        before, after = (_flat(p - p.mean((1, 2), keepdims=True)).T for p in (self.before, self.after))
        correlations = [pearson(np.stack(pair))[0, 1] for pair in zip(before, after)]
        return np.array(correlations).reshape(self.before.shape[1:])

    @property
    def selective(self) -> np.ndarray:
        """Change of each head's selectivity, (L, H): above zero, it has become more of a specialist."""
        return selectivity(self.after) - selectivity(self.before)

    def gain(self, resamples: int = 10_000, seed: int = 0) -> Estimate:
        """The mean gain of the labels' best heads, with an interval over labels and the p-value of "no gain"."""
        return paired_bootstrap(_flat(self.after).max(1), _flat(self.before).max(1), resamples=resamples, seed=seed)


def shifts(stages: Mapping[str, Any]) -> dict[tuple[str, str], Shift]:
    """What changes from each stage to every later one, from profiles ``(K, L, H)`` in the order of training.

    Example:
        >>> changes = shifts({"pretrained": static, "single": single, "joint": joint})
        >>> print(changes["single", "joint"].gain())
    """
    arrays = {name: np.asarray(value, float) for name, value in stages.items()}
    shapes = {name: array.shape for name, array in arrays.items()}
    if len(arrays) < 2 or len(set(shapes.values())) != 1 or any(a.ndim != 3 for a in arrays.values()):
        raise HeadwiseError(f"profiles of shapes {shapes}", "(labels, layers, heads) alike, of two stages or more")
    if not all(np.isfinite(array).all() for array in arrays.values()):
        raise HeadwiseError("profiles with NaN", "a score for every label and head")
    return {(a, b): Shift(arrays[a], arrays[b]) for a, b in combinations(arrays, 2)}


def selectivity(profile: np.ndarray) -> np.ndarray:
    """How far each head's best label stands out of its others, (L, H): (best - mean of others) / (best + that mean).

    From 0, good for all labels alike, to 1, good for one alone; scores are shares, from 0 to 1.
    """
    if len(profile) < 2:
        raise HeadwiseError(f"a profile of {len(profile)} labels", "two or more")
    best = profile.max(0)
    others = (profile.sum(0) - best) / (len(profile) - 1)
    total = best + others
    return np.divide(best - others, total, out=np.zeros_like(total), where=total > 0)


def _flat(profile: np.ndarray) -> np.ndarray:
    return profile.reshape(len(profile), -1)
