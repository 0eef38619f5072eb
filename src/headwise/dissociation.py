"""How far tasks' heads come apart: lesion each task's heads, measure every task, compare (Li et al. 2023, Eq. 5-7).

Arrays: F fractions of heads, T tasks (rows), K lesions (columns: none, each task's heads, random controls), R draws.
All numbers are shares, not percent; only ``print`` shows percent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from headwise.display import table as html_table
from headwise.errors import HeadwiseError, unknown
from headwise.stats import Value, above_zero, adjust, interval, p_value, resample
from headwise.store import finite

DISTINCT = 0.10  # D from which a dissociation is called distinct, after Shallice 1988


class Counts(NamedTuple):
    """One task's additive statistics under every lesion, ``(n, F, K, s)``, and the metric's value function."""

    counts: np.ndarray
    value: Value


def relative(performance: np.ndarray) -> np.ndarray:
    """RP (Eq. 5): performance ``(..., T, K)`` over the unlesioned model's; NaN where that is not above zero."""
    base = performance[..., :1]
    return performance / np.where(base > 0, base, np.nan)


def pairwise(performance: np.ndarray) -> np.ndarray:
    """D_A(B) (Eq. 6) as ``(..., T, T)``, row A and column B: RP_A(H_B) - RP_A(H_A)."""
    tasks = performance.shape[-2]
    rp = relative(performance)[..., 1 : tasks + 1]
    return rp - np.diagonal(rp, axis1=-2, axis2=-1)[..., None]


def per_task(pairs: np.ndarray) -> np.ndarray:
    """D_i (Eq. 7) as ``(..., T)``: the mean of D_i(j) over the other tasks j."""
    return pairs.sum(-1) / (pairs.shape[-1] - 1)


def mean_defined(d: np.ndarray) -> np.ndarray:
    """D (Eq. 7): the mean over tasks, those whose D_i is not defined left out."""
    defined = ~np.isnan(d)
    total = np.where(defined, d, 0.0).sum(-1)
    return np.divide(total, defined.sum(-1), out=np.full(total.shape, np.nan), where=defined.any(-1))


def draws_for(tasks: int) -> int:
    """Bootstrap draws with which a pair's p-value can fall below 0.05 after Holm; past 22 tasks memory forbids it."""
    needed = 21 * math.comb(tasks, 2)
    return needed if 1000 < needed <= 5000 else 1000


def verdict(d_a: float, d_b: float) -> str:
    """``distinct`` or ``double``, ``single``, ``both negative`` or ``none`` (Li et al. 2023, Section 4.1).

    Example:
        >>> verdict(0.09, 0.12), verdict(0.05, 0.02), verdict(0.2, -0.01), verdict(0.05, -0.01)
        ('distinct', 'double', 'single', 'none')
    """
    if np.isnan(d_a + d_b):
        return "undefined"
    if min(d_a, d_b) > 0:
        return "distinct" if (d_a + d_b) / 2 >= DISTINCT else "double"
    if max(d_a, d_b) < 0:
        return "both negative"
    return "single" if max(d_a, d_b) > DISTINCT and min(d_a, d_b) < 0 else "none"


@dataclass(frozen=True)
class Dissociation:
    """Every task's performance under every lesion, and the dissociation scores that follow from it.

    Example:
        >>> d = Dissociation.of(["NLI", "topic"], [[0.8, 0.4, 0.7], [0.9, 0.8, 0.5]])
        >>> d.scores().round(3), d.pairs()["NLI", "topic"]["verdict"]
        (array([0.375, 0.333]), 'distinct')
    """

    tasks: tuple[str, ...]
    fractions: tuple[float, ...]
    performance: np.ndarray  # (F, T, K)
    samples: np.ndarray  # (R, F, T, K): the same over bootstrap draws of the examples; R = 0 without counts
    collapsed: np.ndarray  # (F, T, K) bool: the lesion drives all predictions into one class
    level: float
    on: Mapping[str, Dissociation] = field(default_factory=dict)  # the same lesions by other scores

    @classmethod
    def of(
        cls,
        tasks: Sequence[str],
        performance: Any = None,
        fractions: Sequence[float] = (0.3,),
        *,
        counts: Sequence[Counts] | None = None,
        collapsed: Any = False,
        resamples: int | None = None,
        seed: int = 0,
        level: float = 0.95,
        undefined: str = "refuse",
    ) -> Dissociation:
        """From performances ``(F, T, K)``, or from each task's counts, which bring intervals and p-values.

        A task that scores 0 or less without a lesion has no relative performance: an error, or (``undefined="leave"``)
        no D for it; the mean leaves it out.
        """
        values, samples = _cells(performance, counts, resamples or draws_for(len(tasks)), seed)
        if len(tasks) < 2 or values.shape[:-1] != (len(fractions), len(tasks)) or values.shape[-1] <= len(tasks):
            expected = f"({len(fractions)}, {len(tasks)}, none + {len(tasks)} + random lesions), for two tasks or more"
            raise HeadwiseError(f"performances of shape {values.shape}", expected)
        for task, base in zip(tasks, values[..., 0].min(0)):
            if not base > 0 and undefined != "leave":
                hint = "another metric, or train the task first"
                raise HeadwiseError(f"{task} scores {base:.4g} without a lesion", "a base above 0 to divide by", hint)
        if np.isnan(values).any():
            raise HeadwiseError("a performance that is NaN", "a number for every task and lesion")
        marks = np.broadcast_to(np.asarray(collapsed, bool), values.shape)
        return cls(tuple(tasks), tuple(map(float, fractions)), values, samples, marks, level)

    def beside(
        self,
        accuracy: Any = None,
        chance: Sequence[float] | None = None,
        *,
        counts: Sequence[Counts | None] | None = None,
        resamples: int | None = None,
        seed: int = 0,
    ) -> Dissociation:
        """This result with D on accuracy beside it, and on (accuracy - chance) / (1 - chance) where chance is given.

        A task without accuracy (a NaN row, or None for its counts) and a task not above chance have no D there;
        the mean leaves them out. With counts, above chance is what stays so in all but a fortieth of the draws:
        a little more than nothing is no measure of what a lesion takes away.
        """
        values, samples = _cells(accuracy, counts, resamples or draws_for(len(self.tasks)), seed)
        if values.shape != self.performance.shape:
            raise HeadwiseError(f"accuracies of shape {values.shape}", f"{self.performance.shape}")
        on = {"accuracy": replace(self, performance=values, samples=samples, on={})}
        if chance is not None:
            floor = np.asarray(chance, float)[:, None]
            if len(floor) != len(self.tasks) or not ((floor >= 0) & (floor < 1) | np.isnan(floor)).all():
                raise HeadwiseError(f"chance {chance}", "a number from 0 to below 1 for each task")
            lifted = [(part - floor) / (1 - floor) for part in (values, samples)]
            if len(samples):
                doubtful = (lifted[1][..., 0] <= 0).mean(0) > 0.025  # (fractions, tasks), of the whole model
                lifted = [np.where(doubtful[..., None], np.nan, part) for part in lifted]
            on["chance_corrected"] = replace(self, performance=lifted[0], samples=lifted[1], on={})
        return replace(self, on=on)

    @property
    def default(self) -> float:
        """The fraction shown first: the paper's 0.3, or the nearest."""
        return min(self.fractions, key=lambda fraction: abs(fraction - 0.3))

    @property
    def lesions(self) -> tuple[str, ...]:
        """The names of the columns."""
        random = self.performance.shape[-1] - len(self.tasks) - 1
        return ("none", *self.tasks, *(f"random {i + 1}" for i in range(random)))

    def at(self, fraction: float | None = None) -> int:
        """The place of a fraction; without one, of the default."""
        wanted = self.default if fraction is None else fraction
        near = np.flatnonzero(np.isclose(self.fractions, wanted))
        if not len(near):
            raise unknown("fraction", wanted, map(str, self.fractions))
        return int(near[0])

    def scores(self, fraction: float | None = None) -> np.ndarray:
        """D_i of every task (Eq. 7)."""
        return per_task(pairwise(self.performance[self.at(fraction)]))

    def mean(self, fraction: float | None = None) -> float:
        """D (Eq. 7)."""
        return float(mean_defined(self.scores(fraction)))

    def pairs(self, fraction: float | None = None) -> dict[tuple[str, str], dict[str, Any]]:
        """Every pair's D_A, D_B, D (Eq. 6), verdict, and the p-value of "no double dissociation".

        That p-value is the larger of the two one-sided ones (both must be above zero), Holm-adjusted over the pairs.
        """
        f = self.at(fraction)
        d = pairwise(self.performance[f])
        p = above_zero(d, pairwise(self.samples[:, f]))
        a, b = np.triu_indices(len(self.tasks), 1)
        found = {}
        for i, j, joint in zip(a, b, adjust(np.maximum(p[a, b], p[b, a]))):
            pair = {"d_a": d[i, j], "d_b": d[j, i], "d": (d[i, j] + d[j, i]) / 2, "p": joint}
            words = {"verdict": verdict(d[i, j], d[j, i])}
            found[self.tasks[i], self.tasks[j]] = {k: float(v) for k, v in pair.items()} | words
        return found

    def best(self) -> dict[str | tuple[str, str], float]:
        """The fraction with the highest D of each task and each pair (chosen on the data shown, so optimistic).

        Tasks and pairs without a D are left out.
        """
        d, (a, b) = pairwise(self.performance), np.triu_indices(len(self.tasks), 1)
        curves: dict = dict(zip(self.tasks, per_task(d).T))
        curves |= {(self.tasks[i], self.tasks[j]): d[:, i, j] + d[:, j, i] for i, j in zip(a, b)}
        return {name: self.fractions[np.nanargmax(d)] for name, d in curves.items() if not np.isnan(d).all()}

    def random_band(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Lowest, mean and highest RP over the random lesions, each ``(F, T)``."""
        draws = relative(self.performance)[..., len(self.tasks) + 1 :]
        if not draws.shape[-1]:
            raise HeadwiseError("no random lesions", "at least one random control")
        return draws.min(-1), draws.mean(-1), draws.max(-1)

    def permutation_test(self, null: np.ndarray, fraction: float | None = None) -> dict[str, Any]:
        """P-values of D and of each D_i against P_i(H'_j) of relabelled heads, ``(N, T, T)``.

        ``headwise.selection.relabelled`` deals the heads of the tasks anew; N deals are N * T lesions of one pass.
        """
        base = self.performance[self.at(fraction)][:, :1]
        null = np.asarray(null, float)
        if null.shape[1:] != (len(self.tasks),) * 2:
            raise HeadwiseError(f"null of shape {null.shape}", f"(draws, {len(self.tasks)}, {len(self.tasks)})")
        drawn = per_task(pairwise(np.concatenate([np.broadcast_to(base, (len(null), *base.shape)), null], -1)))
        p = p_value(self.scores(fraction), drawn)
        joint = p_value(self.mean(fraction), mean_defined(drawn))
        return {"mean": float(joint), "tasks": dict(zip(self.tasks, p.tolist()))}

    def to_record(self) -> dict[str, Any]:
        """Everything as plain lists and numbers; None where a number is undefined or, without counts, unknown."""
        return {
            "fractions": list(self.fractions),
            "default": self.default,
            "lesions": list(self.lesions),
            "performance": finite(self.performance),
            **dict(zip(("low", "high"), map(finite, interval(self.samples, self.level)))),
            "collapsed": self.collapsed.tolist(),
            "D": [self._d(fraction) for fraction in self.fractions],
            "on": {name: [other._d(fraction) for fraction in self.fractions] for name, other in self.on.items()},
        }

    def _d(self, fraction: float) -> dict[str, Any]:
        draws = per_task(pairwise(self.samples[:, self.at(fraction)]))
        each, mean = self.scores(fraction), self.mean(fraction)
        means = draws[:, ~np.isnan(each)].mean(-1) if each.size > np.isnan(each).sum() else np.full(len(draws), np.nan)
        rows = np.stack([each, *interval(draws, self.level)], -1)
        total = [mean, *interval(means, self.level), above_zero(mean, means)]
        return {
            "fraction": fraction,
            "tasks": {t: dict(zip(("value", "low", "high"), finite(row))) for t, row in zip(self.tasks, rows)},
            "mean": dict(zip(("value", "low", "high", "p"), finite(np.array(total)))),
            "pairs": [{"a": a, "b": b} | finite(pair) for (a, b), pair in self.pairs(fraction).items()],
        }

    def __str__(self) -> str:
        """The table at the default fraction, in percent; an asterisk marks a collapsed lesion."""
        f, named, d = self.at(), len(self.tasks) + 1, self._d(self.default)
        random = 100 * self.performance[f, :, named:]
        lines = [[f"α = {self.default:g}", *self.lesions[:named], *["random"][: random.shape[1]], "D"]]
        for task, cells, marks, drawn in zip(self.tasks, self.performance[f], self.collapsed[f], random):
            words = [f"{100 * cell:.2f}{'*' if mark else ''}" for cell, mark in zip(cells[:named], marks)]
            words += [f"{drawn.mean():.2f}{'*' if marks[named:].any() else ''}"] if len(drawn) else []
            lines.append([task, *words, _percent(d["tasks"][task])])
        widths = [max(map(len, column)) for column in zip(*lines)]
        table = ["  ".join(word.rjust(width) for word, width in zip(line, widths)) for line in lines]
        means = {"": d} | {f" on {name.replace('_', ' ')}": other._d(self.default) for name, other in self.on.items()}
        pairs = [f"{p['a']} × {p['b']}: {_percent({'value': p['d'], 'p': p['p']})}, {p['verdict']}" for p in d["pairs"]]
        note = ["* all predictions in one class"] if self.collapsed[f].any() else []
        mean = "; ".join(f"mean D{on}{_whose(other)} {_percent(other['mean'])}" for on, other in means.items())
        return "\n".join([*table, *note, mean, *pairs])

    def _repr_html_(self) -> str:
        f, named, d = self.at(), len(self.tasks) + 1, self._d(self.default)
        rows = [
            [task, *(100 * self.performance[f, i, :named]).tolist(), _percent(d["tasks"][task])]
            for i, task in enumerate(self.tasks)
        ]
        note = "; ".join(str(self).splitlines()[len(self.tasks) + 1 :])
        columns = ["task", *(f"{name} closed" if name != "none" else "intact" for name in self.lesions[:named]), "D"]
        return html_table(columns, rows, f"Performance in percent, α = {self.default:g}", note)


def _cells(performance: Any, counts: Any, resamples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Values ``(F, T, K)`` and draws ``(R, F, T, K)``; a task whose counts are None is NaN."""
    known = [c for c in counts or () if c is not None]
    if (performance is None) == (not known):
        raise HeadwiseError("performances and counts both given, or neither", "one of them")
    if performance is not None:
        values = np.asarray(performance, float)
        values = values[None] if values.ndim == 2 else values
        return values, np.empty((0, *values.shape))
    shape = known[0].counts.shape[1:3]
    rows = [(np.full(shape, np.nan), np.full((resamples, *shape), np.nan)) for _ in counts]
    for i, task in enumerate(counts):
        if task is not None:
            drawn = resample(task.counts, resamples, [seed, i])
            rows[i] = (task.value(np.sum(task.counts, 0, dtype=float)), task.value(drawn))
    return np.stack([row[0] for row in rows], -2), np.stack([row[1] for row in rows], -2)


def _whose(d: Mapping[str, Any]) -> str:
    """The tasks that a mean is of, where they are not all: means over different tasks are not to be compared."""
    known = [task for task, cell in d["tasks"].items() if cell["value"] is not None]
    return f" (of {', '.join(known)})" if 0 < len(known) < len(d["tasks"]) else ""


def _percent(cell: Mapping[str, Any]) -> str:
    if cell["value"] is None:
        return "undefined"
    text = f"{100 * cell['value']:.2f} %"
    if cell.get("low") is not None:
        text += f" [{100 * cell['low']:.2f}, {100 * cell['high']:.2f}]"
    return text if cell.get("p") is None else f"{text}, p = {cell['p']:.3g}"
