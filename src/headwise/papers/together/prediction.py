"""Predict what training two tasks together does to each: signals of an untrained encoder against measured gains.

Legend: T tasks; a gain (T, T) is what the row's task gains, in points, when the column's task is trained with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.stats import rankdata, spearmanr

from headwise.measuring.stats import p_value

OURS = ("head overlap", "head rank", "signed heads", "gradient per head")
BASELINES = ("whole gradient", "texts", "rows of the other", "same number of classes")
RIDGE = 1.0
DRAWS = 2000


@dataclass(frozen=True)
class Model:
    """One model's measured gains and what is known beforehand."""

    name: str
    tasks: tuple[str, ...]
    gain: np.ndarray  # (T, T), NaN on the diagonal
    noise: np.ndarray  # (T, T), its standard deviation over seeds
    signals: Mapping[str, np.ndarray]  # (T, T) each

    @cached_property
    def apart(self) -> np.ndarray:
        """The places of ordered pairs, (2, n)."""
        return np.stack(np.nonzero(~np.eye(len(self.tasks), dtype=bool) & ~np.isnan(self.gain)))

    def column(self, name: str) -> np.ndarray:
        return self.signals[name][tuple(self.apart)]


def signals_of(
    arrays: Mapping[str, np.ndarray], result: Mapping[str, Any], fraction: float = 0.3
) -> dict[str, np.ndarray]:
    """Every signal of every ordered pair, from the record of one encoder."""
    alive = np.array(result["alive"], bool)
    scores, signed = arrays["scores"][:, alive], arrays["signed"][:, alive]
    count = max(1, round(fraction * scores.shape[1]))
    chosen = np.zeros(scores.shape, bool)
    np.put_along_axis(chosen, np.argsort(-scores, axis=1, kind="stable")[:, :count], True, 1)
    rows = np.log([result["rows"][task] for task in result["tasks"]])
    classes = np.array([result["classes"][task] for task in result["tasks"]])
    return {
        "head overlap": (chosen[:, None] & chosen).sum(-1) / count,
        "head rank": np.corrcoef(rankdata(scores, axis=1)),
        "signed heads": _cosine(signed),
        "gradient per head": arrays["heads"][:, :, alive].mean(-1),
        "whole gradient": arrays["whole"],
        "texts": _cosine(arrays["texts"] - arrays["texts"].mean(0)),
        "rows of the other": np.broadcast_to(rows, (len(rows), len(rows))),
        "same number of classes": (classes[:, None] == classes).astype(float),
    }


def _cosine(rows: np.ndarray) -> np.ndarray:
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return unit @ unit.T


def correlated(model: Model, signal: str, draws: int = DRAWS, seed: int = 0) -> tuple[float, float]:
    """Spearman's correlation of a signal with the gains over ordered pairs, and p by relabelled tasks (Mantel 1967)."""
    values, places = model.signals[signal], tuple(model.apart)
    gains = model.gain[places]  # gains stay in their places: some may be missing, signals are whole

    def r(order: np.ndarray) -> float:
        return _spearman(values[np.ix_(order, order)][places], gains)

    generator = np.random.default_rng([seed, 1])
    observed = r(np.arange(len(model.tasks)))
    null = np.array([r(generator.permutation(len(model.tasks))) for _ in range(draws)])
    return observed, float(p_value(abs(observed), np.abs(null)))


def predicted(models: Sequence[Model], names: Sequence[str], leave: str) -> list[np.ndarray]:
    """Gains predicted by ridge regression on signals, each from data without its model, or without its tasks.

    ``leave="model"``: from the other models. ``leave="task"``: for the gains of a task, from pairs (of all models) in
    which it does not occur. Signals and gains are standardized within each model, which uses no gain of another pair
    beyond their common mean and spread.
    """
    xs = [np.stack([_standard(m.column(name)) for name in names], 1) for m in models]
    ys = [_standard(m.gain[tuple(m.apart)]) for m in models]
    predictions = [np.full(len(y), np.nan) for y in ys]
    if leave == "model":
        for i in range(len(models)):
            others = [j for j in range(len(models)) if j != i]
            weights = _ridge(np.concatenate([xs[j] for j in others]), np.concatenate([ys[j] for j in others]))
            predictions[i] = xs[i] @ weights
        return predictions
    for task in dict.fromkeys(task for m in models for task in m.tasks):
        names_of = [np.array(m.tasks)[m.apart] for m in models]  # (2, n)
        with_it = [(each == task).any(0) for each in names_of]
        weights = _ridge(
            np.concatenate([x[~gone] for x, gone in zip(xs, with_it)]),
            np.concatenate([y[~gone] for y, gone in zip(ys, with_it)]),
        )
        for x, each, out in zip(xs, names_of, predictions):
            own = each[0] == task
            out[own] = x[own] @ weights
    return predictions


def held_out(
    models: Sequence[Model], names: Sequence[str], leave: str, draws: int = 1000, seed: int = 0
) -> dict[str, Any]:
    """Spearman's correlation of predicted and measured gains, mean over models, with an interval over tasks."""
    predictions = predicted(models, names, leave)
    gains = [m.gain[tuple(m.apart)] for m in models]
    values = [_spearman(f, g) for f, g in zip(predictions, gains)]
    generator, means = np.random.default_rng([seed, 2]), []
    for _ in range(draws):  # tasks are drawn again: pairs that share one are not independent
        drawn = []
        for m, f, g in zip(models, predictions, gains):
            times = np.bincount(generator.integers(len(m.tasks), size=len(m.tasks)), minlength=len(m.tasks))
            again = np.repeat(np.arange(len(f)), times[m.apart[0]] * times[m.apart[1]])
            drawn.append(_spearman(f[again], g[again]) if len(np.unique(again)) > 2 else np.nan)
        means += [] if np.isnan(drawn).all() else [np.nanmean(drawn)]
    low, high = np.percentile(means, (2.5, 97.5))
    return {
        "r": float(np.mean(values)),
        "low": float(low),
        "high": float(high),
        "models": dict(zip([m.name for m in models], values)),
    }


def ceiling(gains: np.ndarray) -> float:
    """How well one half of the seeds predicts the other: r of gains (seeds, pairs), stepped up to all seeds.

    No signal can be expected to do better than its square root.
    """
    if len(gains) < 2:
        return float("nan")
    half = len(gains) // 2
    r = _spearman(gains[:half].mean(0), gains[half : 2 * half].mean(0))
    times = len(gains) / half
    return float(times * r / (1 + (times - 1) * r)) if r > 0 else 0.0


def _ridge(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.linalg.solve(x.T @ x + RIDGE * np.eye(x.shape[1]), x.T @ y)


def _standard(values: np.ndarray) -> np.ndarray:
    spread = values.std()
    return (values - values.mean()) / spread if spread > 1e-12 else np.zeros(len(values))


def _spearman(a: np.ndarray, b: np.ndarray) -> float:
    """0 where either side is constant: it orders nothing."""
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    result: Any = spearmanr(a, b)
    return float(result.statistic)
