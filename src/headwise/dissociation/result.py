"""Dissociation of tasks by lesions of their heads (Li et al. 2023, Eq. 5-7).

Arrays: F fractions of heads, T tasks (rows), K lesions (columns: none, each task's heads, random controls), R draws.
All numbers are fractions; only ``print`` shows percent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from headwise.dissociation.significance import (
    NEEDED,
    Counts,
    HeadTests,
    RowTests,
    draws_for,
    mean_defined,
    over_layers,
    over_random,
    pairwise,
    per_task,
    relative,
    verdict,
)
from headwise.errors import HeadwiseError, unknown
from headwise.io.display import Shown, plot_matrix
from headwise.io.display import table as html_table
from headwise.io.files import finite
from headwise.measuring.stats import FEW, adjust, p_value

MANY = 100  # tasks from which on a record keeps the matrices alone, and of the pairs those with the largest D
SHOWN = 1000


@dataclass(frozen=True)
class Dissociation(Shown):
    """Every task's performance under every lesion, and the dissociation scores that follow from it.

    Example:
        >>> d = Dissociation.of(["NLI", "topic"], [[0.8, 0.4, 0.7], [0.9, 0.8, 0.5]])
        >>> d.scores().round(3), d.pairs()["NLI", "topic"]["verdict"]
        (array([0.375, 0.333]), 'distinct')
    """

    tasks: tuple[str, ...]
    fractions: tuple[float, ...]
    performance: np.ndarray  # (F, T, K)
    rows: RowTests  # uncertainty over rows
    collapsed: np.ndarray  # (F, T, K) bool: the lesion drives all predictions into one class
    level: float
    matched: np.ndarray  # (T, T, M): at the default fraction, under M sets with each task's number of heads per layer
    tied: np.ndarray  # (F, T) bool: scores tie at the cut, so the task's top heads are undefined
    default: float  # the fraction shown first
    on: Mapping[str, Dissociation] = field(default_factory=dict)  # the same lesions by other metrics

    @classmethod
    def of(
        cls,
        tasks: Sequence[str],
        performance: Any = None,
        fractions: Sequence[float] = (0.3,),
        *,
        counts: Sequence[Counts] | None = None,
        collapsed: Any = False,
        matched: Any = None,
        tied: Any = False,
        default: float | None = None,
        resamples: int | None = None,
        seed: int = 0,
        level: float = 0.95,
        undefined: str = "refuse",
    ) -> Dissociation:
        """Build from performances ``(F, T, K)``, or from each task's counts, which add intervals and tests over rows.

        A task that scores 0 or less without a lesion has no relative performance: this raises, or with
        ``undefined="leave"`` the task has no D and is excluded from the mean. The default fraction is 0.3 or the
        nearest; ``matched`` sets belong to it.
        """
        if len(tasks) < 2:
            raise HeadwiseError(f"{len(tasks)} task", "two tasks or more")
        values, rows = _measured(performance, counts, resamples or draws_for(len(tasks)), seed, level)
        if values.shape[:-1] != (len(fractions), len(tasks)) or values.shape[-1] <= len(tasks):
            expected = f"({len(fractions)}, {len(tasks)}, none + {len(tasks)} + random lesions), for two tasks or more"
            raise HeadwiseError(f"performances of shape {values.shape}", expected)
        for task, base in zip(tasks, values[..., 0].min(0)):
            if not base > 0 and undefined != "leave":
                hint = "another metric, or train the task first"
                raise HeadwiseError(f"{task} scores {base:.4g} without a lesion", "a base above 0 to divide by", hint)
        if np.isnan(values).any():
            raise HeadwiseError("a performance that is NaN", "a number for every task and lesion")
        marks = np.broadcast_to(np.asarray(collapsed, bool), values.shape)
        same = np.broadcast_to(np.asarray(tied, bool), values.shape[:2])
        layers = np.empty((len(tasks), len(tasks), 0)) if matched is None else np.asarray(matched, float)
        grid = tuple(map(float, fractions))
        shown = min(grid, key=lambda f: abs(f - (0.3 if default is None else default)))
        return cls(tuple(tasks), grid, values, rows, marks, level, layers, same, shown)

    def beside(
        self,
        accuracy: Any = None,
        chance: Sequence[float] | None = None,
        *,
        counts: Sequence[Counts | None] | None = None,
        matched: Any = None,
        resamples: int | None = None,
        seed: int = 0,
    ) -> Dissociation:
        """This result plus D on accuracy and, given chance, on (accuracy - chance) / (1 - chance).

        Tasks without accuracy (a NaN row, None as counts) or not above chance (in 97.5 % of draws) have no D there.
        """
        how = (resamples or draws_for(len(self.tasks)), seed, self.level)
        values, rows = _measured(accuracy, counts, *how)
        if values.shape != self.performance.shape:
            raise HeadwiseError(f"accuracies of shape {values.shape}", f"{self.performance.shape}")
        layers = self.matched[..., :0] if matched is None else np.asarray(matched, float)
        on: dict[str, Dissociation] = {"accuracy": replace(self, performance=values, rows=rows, matched=layers, on={})}
        if chance is not None:
            on["chance_corrected"] = on["accuracy"]._above(np.asarray(chance, float), counts, how)
        return replace(self, on=on)

    def _above(self, chance: np.ndarray, counts: Sequence[Counts | None] | None, how: tuple) -> Dissociation:
        """The same of accuracies above chance."""
        if len(chance) != len(self.tasks) or not ((chance >= 0) & (chance < 1) | np.isnan(chance)).all():
            raise HeadwiseError(f"chance {chance}", "a number from 0 to below 1 for each task")
        floor = chance[:, None]
        layers = (self.matched - floor[..., None]) / (1 - floor[..., None])
        lifted = [_lifted(task, base) for task, base in zip(counts or [None] * len(chance), chance)]
        if not any(lifted):
            values = (self.performance - floor) / (1 - floor)
            return replace(self, performance=values, rows=RowTests.unknown(values), matched=layers)
        return self._measured_by(lifted, layers, how)

    def beside_margins(
        self, counts: Sequence[Counts | None], matched: np.ndarray, *, resamples: int | None = None, seed: int = 0
    ) -> Dissociation:
        """This result with D on margins beside it, in nats; tasks without choices have None for their counts."""
        how = (resamples or draws_for(len(self.tasks)), seed, self.level)
        return replace(self, on={**self.on, "margin": self._measured_by(counts, matched, how)})

    def _measured_by(self, counts: Sequence[Counts | None], matched: np.ndarray, how: tuple) -> Dissociation:
        """The same lesions by other metrics, for tasks that are significantly above zero without a lesion."""
        values, rows = _measured(None, counts, *how)
        doubtful = (rows.whole <= 0).mean(0) > 0.025  # (fractions, tasks), of the whole model
        kept = np.where(doubtful[..., None], np.nan, values)
        return replace(self, performance=kept, rows=rows, matched=matched, on={})

    @property
    def random(self) -> int:
        """How many random head sets were closed."""
        return self.performance.shape[-1] - len(self.tasks) - 1

    @property
    def lesions(self) -> tuple[str, ...]:
        """The names of the columns."""
        return ("none", *self.tasks, *(f"random {i + 1}" for i in range(self.random)))

    def at(self, fraction: float | None = None) -> int:
        """The index of a fraction (default: the default fraction)."""
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

    def pairs(self, fraction: float | None = None, most: int | None = None) -> dict[tuple[str, str], dict[str, Any]]:
        """Every pair's D_A, D_B, D (Eq. 6), verdict, and p-values of "no double dissociation"; or the ``most`` largest.

        ``p`` is over random head sets of the same size, ``p_layers`` over sets with as many heads of each layer,
        ``p_rows`` over examples. Each is the larger of the two one-sided ones (both must be above zero),
        Holm-adjusted over the pairs.
        """
        f = self.at(fraction)
        d, (a, b) = pairwise(self.performance[f]), np.triu_indices(len(self.tasks), 1)
        heads, layers = self._heads(f)
        tests = {"p": heads.pairs, "p_rows": self.rows.pairs(f), "p_layers": layers.pairs}
        joint = {name: adjust(self._testable(f, np.maximum(p, p.T))[a, b]) for name, p in tests.items()}
        pairs_of = {}
        for number in _largest((d[a, b] + d[b, a]) / 2, most):
            i, j = a[number], b[number]
            d_a, d_b = float(d[i, j]), float(d[j, i])
            tests_of = {name: float(p[number]) for name, p in joint.items()}
            words = {"verdict": verdict(d_a, d_b)}
            pairs_of[self.tasks[i], self.tasks[j]] = {"d_a": d_a, "d_b": d_b, "d": (d_a + d_b) / 2} | tests_of | words
        return pairs_of

    def withheld(self, fraction: float | None = None) -> dict[str, str]:
        """Tasks without p-values, and why."""
        f, reasons = self.at(fraction), {}
        for i, task in enumerate(self.tasks):
            if not self.performance[f, i, 0] > 0:
                reasons[task] = "its score without a lesion is not above 0"
            elif self.rows.few[i]:
                reasons[task] = f"only {self.rows.n[i]} rows; {FEW} are needed"
            elif self.tied[f, i]:
                reasons[task] = "importance scores tie at the cut, so its top heads are undefined"
            elif self.random < NEEDED:
                reasons[task] = f"only {self.random} random head sets were closed; {NEEDED} are needed"
        return reasons

    def _testable(self, f: int, p: np.ndarray) -> np.ndarray:
        """P-values (T,) or (T, T), NaN for tasks with few rows or ties at the cut and for pairs with them."""
        silent = self.rows.few | self.tied[f]
        return np.where(silent if p.ndim == 1 else silent[:, None] | silent, np.nan, p)

    @cached_property
    def _tests(self) -> dict[int, tuple[HeadTests, HeadTests]]:
        return {}

    def _heads(self, f: int) -> tuple[HeadTests, HeadTests]:
        """Tests over random head sets and, at the default fraction, over sets matched by layer."""
        if f not in self._tests:
            tasks, rp = len(self.tasks), relative(self.performance[f])[:, 1:]
            base = self.performance[f][:, :1, None]
            sets = self.matched / np.where(base > 0, base, np.nan)
            here = self.fractions[f] == self.default
            self._tests[f] = over_random(rp), over_layers(rp[:, :tasks], sets if here else sets[..., :0])
        return self._tests[f]

    def best(self) -> dict[str | tuple[str, str], float]:
        """The fraction with the highest D of each task and each pair (chosen on the data shown, so optimistic).

        Tasks and pairs without a D are omitted.
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

        ``headwise.heads.selection.relabelled`` reassigns the heads of the tasks; N draws are N * T lesions in one pass.
        """
        base = self.performance[self.at(fraction)][:, :1]
        null = np.asarray(null, float)
        if null.shape[1:] != (len(self.tasks),) * 2:
            raise HeadwiseError(f"null of shape {null.shape}", f"(draws, {len(self.tasks)}, {len(self.tasks)})")
        drawn = per_task(pairwise(np.concatenate([np.broadcast_to(base, (len(null), *base.shape)), null], -1)))
        p = p_value(self.scores(fraction), drawn)
        joint = p_value(self.mean(fraction), mean_defined(drawn))
        return {"mean": float(joint), "tasks": dict(zip(self.tasks, p.tolist()))}

    def to_records(self) -> list[dict[str, Any]]:
        """One record per fraction, task and lesion: the performance, and whether all answers are one class."""
        cells = np.ndindex(*self.performance.shape)
        names = [{"fraction": self.fractions[f], "task": self.tasks[t], "lesion": self.lesions[k]} for f, t, k in cells]
        values = zip(self.performance.ravel().tolist(), self.collapsed.ravel().tolist())
        return [{**name, "performance": value, "collapsed": mark} for name, (value, mark) in zip(names, values)]

    def plot(self, ax: Any = None, fraction: float | None = None) -> Any:
        """How much each task changes under each task's lesion; returns matplotlib axes."""
        f, named = self.at(fraction), len(self.tasks) + 1
        change = self.performance[f, :, 1:named] - self.performance[f, :, :1]
        return plot_matrix(change, self.tasks, self.lesions[1:named], f"heads ablated: {self.fractions[f]:g}", ax)

    def to_record(self) -> dict[str, Any]:
        """Everything as plain lists and numbers; None where a number is undefined or, without counts, unknown."""
        return {
            "fractions": list(self.fractions),
            "default": self.default,
            "lesions": list(self.lesions),
            "n": {task: int(n) or None for task, n in zip(self.tasks, self.rows.n)},
            "random": self.random,
            "matched": self.matched.shape[-1],
            "matched_performance": finite(self.matched),
            "null": "random heads" if self.random >= NEEDED else None,
            "withheld": self.withheld(),
            "performance": finite(self.performance),
            "low": finite(self.rows.low),
            "high": finite(self.rows.high),
            "collapsed": self.collapsed.tolist(),
            "cells": [self._cells(f) for f in range(len(self.fractions))] if len(self.tasks) <= MANY else None,
            "D": [self._d(fraction) for fraction in self.fractions],
            "on": {name: [other._d(fraction) for fraction in self.fractions] for name, other in self.on.items()},
        }

    def _cells(self, f: int) -> dict[str, dict[str, Any]]:
        """The change of every task under every task's lesion, on the same rows."""
        value, low, high, p = self.rows.change[:, f]
        together = np.stack([value, low, high, p, adjust(p.ravel()).reshape(p.shape)], -1)
        names = ("change", "low", "high", "p", "p_holm")
        return {
            task: {lesion: dict(zip(names, finite(cell))) for lesion, cell in zip(self.tasks, row)}
            for task, row in zip(self.tasks, together)
        }

    def _d(self, fraction: float) -> dict[str, Any]:
        f = self.at(fraction)
        d, base, (heads, layers) = self.scores(fraction), self.performance[f, :, 0], self._heads(f)
        most = SHOWN if len(self.tasks) > MANY else None
        each, mean = self.rows.tasks(d, base, f, self.level), self.rows.mean(d, base, f, self.level)
        p, silent = self._testable(f, heads.tasks), (self.rows.few | self.tied[f])[~np.isnan(d)].any()
        columns = [d, each.low, each.high, p, adjust(p), self._testable(f, each.p), self._testable(f, layers.tasks)]  # type: ignore[arg-type]
        over = [math.nan] * 3 if silent else [heads.mean, mean.p, layers.mean]
        names = ("value", "low", "high", "p", "p_holm", "p_rows", "p_layers")
        total = dict(zip((*names[:4], *names[5:]), finite(np.array([mean.value, mean.low, mean.high, *over], float))))
        return {
            "fraction": fraction,
            "tasks": {t: dict(zip(names, finite(row))) for t, row in zip(self.tasks, np.stack(columns, -1))},
            "mean": total,
            "pairs": [{"a": a, "b": b} | finite(pair) for (a, b), pair in self.pairs(fraction, most).items()],
        }

    def __str__(self) -> str:
        """The table at the default fraction, in percent; an asterisk marks a collapsed lesion."""
        f, named, d = self.at(), len(self.tasks) + 1, self._d(self.default)
        random = 100 * self.performance[f, :, named:]
        lines = [[f"α = {self.default:g}", *self.lesions[:named], *["random"][: random.shape[1]], "D"]]
        for task, cells, marks, drawn in zip(self.tasks, self.performance[f], self.collapsed[f], random):
            words = [f"{100 * cell:.2f}{'*' if mark else ''}" for cell, mark in zip(cells[:named], marks)]
            words += [f"{drawn.mean():.2f}{'*' if marks[named:].any() else ''}"] if len(drawn) else []
            lines.append([task, *words, _percent(d["tasks"][task] | {"p": None})])
        widths = [max(map(len, column)) for column in zip(*lines)]
        table = ["  ".join(word.rjust(width) for word, width in zip(line, widths)) for line in lines]
        means = {"": d} | {f" on {name.replace('_', ' ')}": other._d(self.default) for name, other in self.on.items()}
        pairs = [f"{p['a']} × {p['b']}: {_percent({'value': p['d'], 'p': p['p']})}, {p['verdict']}" for p in d["pairs"]]
        note = ["* all predictions in one class"] if self.collapsed[f].any() else []
        mean = "; ".join(f"mean D{on}{_whose(other)} {_percent(other['mean'])}" for on, other in means.items())
        return "\n".join([*table, *note, mean, *pairs, *self._about_p(d)])

    def _about_p(self, d: Mapping[str, Any]) -> list[str]:
        """The null hypothesis of the p-values, and the tasks without one."""
        without = [f"no p for {task}: {why}" for task, why in self.withheld().items() if self.rows.n.any()]
        if all(cell["p"] is None for cell in (d["mean"], *d["pairs"])):
            return without
        return [f"p: one-sided, over {self.random} random head sets of the same size; of pairs after Holm", *without]

    def _repr_html_(self) -> str:
        f, named, d = self.at(), len(self.tasks) + 1, self._d(self.default)
        rows = [
            [task, *(100 * self.performance[f, i, :named]).tolist(), _percent(d["tasks"][task] | {"p": None})]
            for i, task in enumerate(self.tasks)
        ]
        note = "; ".join(str(self).splitlines()[len(self.tasks) + 1 :])
        columns = ["task", *(f"{name} closed" if name != "none" else "intact" for name in self.lesions[:named]), "D"]
        return html_table(columns, rows, f"Performance in percent, α = {self.default:g}", note)


def _measured(performance: Any, counts: Any, resamples: int, seed: int, level: float) -> tuple[np.ndarray, RowTests]:
    """Performances ``(F, T, K)`` and their uncertainty over rows; a task whose counts are None is NaN."""
    known = [c for c in counts or () if c is not None]
    if (performance is None) == (not known):
        raise HeadwiseError("performances and counts both given, or neither", "one of them")
    if performance is None:
        return RowTests.of(counts, resamples, seed, level)
    values = np.asarray(performance, float)
    values = values[None] if values.ndim == 2 else values
    return values, RowTests.unknown(values)


def _largest(d: np.ndarray, most: int | None) -> list[int]:
    """The places of the largest numbers, in their order; of all, if no number is given."""
    if most is None or len(d) <= most:
        return list(range(len(d)))
    return sorted(np.argsort(-np.nan_to_num(d, nan=-np.inf), kind="stable")[:most].tolist())


def _lifted(task: Counts | None, chance: float) -> Counts | None:
    """Accuracy above chance; None without chance."""
    if task is None or np.isnan(chance):
        return None
    return Counts(task.counts, lambda sums: (task.value(sums) - chance) / (1 - chance))


def _whose(d: Mapping[str, Any]) -> str:
    """Names the tasks of a mean if not all have one: means over different tasks are not comparable."""
    known = [task for task, cell in d["tasks"].items() if cell["value"] is not None]
    return f" (of {', '.join(known)})" if 0 < len(known) < len(d["tasks"]) else ""


def _percent(cell: Mapping[str, Any]) -> str:
    if cell["value"] is None:
        return "undefined"
    text = f"{100 * cell['value']:.2f} %"
    if cell.get("low") is not None:
        text += f" [{100 * cell['low']:.2f}, {100 * cell['high']:.2f}]"
    return text if cell.get("p") is None else f"{text}, p = {cell['p']:.3g}"
