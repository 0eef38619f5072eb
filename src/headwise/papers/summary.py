"""Numbers over seeds as cells of tables (no torch)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from headwise.io.files import finite
from headwise.measuring.stats import Estimate, paired_t


def mean_sd(values: Iterable[float | None]) -> tuple[float | None, float | None]:
    """Mean and sample standard deviation; None without values."""
    kept = np.array([value for value in values if value is not None], float)
    kept = kept[~np.isnan(kept)]
    return float(kept.mean()) if len(kept) else None, float(kept.std(ddof=1)) if len(kept) > 1 else None


def over_seeds(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Estimate | None:
    """The mean difference over the seeds that both have, by Student's paired t; None for fewer than two."""
    both = sorted({*ours} & {*theirs})
    if len(both) < 2:
        return None
    return paired_t(np.array([ours[seed] for seed in both]), np.array([theirs[seed] for seed in both]))


def student(values: Iterable[float | None]) -> tuple[Any, Any]:
    """Student's interval of the mean over seeds; None for one seed."""
    kept = dict(enumerate(value for value in values if value is not None))
    difference = over_seeds(kept, dict.fromkeys(kept, 0.0))
    return (difference.low, difference.high) if difference else (None, None)


def student_p(values: Iterable[float | None]) -> float:
    """Student's two-sided p-value that the mean over seeds is zero; NaN for one seed."""
    kept = dict(enumerate(value for value in values if value is not None))
    difference = over_seeds(kept, dict.fromkeys(kept, 0.0))
    return float(difference.p) if difference else math.nan  # type: ignore[arg-type]


def over_models(means: Sequence[float | None]) -> str:
    """A sentence on the mean over models, each of which counts once: it generalizes to other models."""
    low, high = student(means)
    if low is None:
        return ""
    words = f"Over {len(means)} models: {mean_sd(means)[0]:.1f} [{low:.1f}, {high:.1f}], p = {student_p(means):.2g} by "
    return f"{words}Student's t over models."


def table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], note: str = "", published: Any = None
) -> dict[str, Any]:
    """A table in the form of `headwise.reporting.tables`: plain numbers, None for NaN and for what is not published."""
    beside = None if published is None else finite(published)
    if beside is not None and not any(value is not None for row in beside for value in row):
        beside = None
    return {"title": title, "note": note, "columns": list(columns), "rows": finite(rows), "published": beside}


def less(a: float | None, b: float | None) -> float | None:
    """The difference; None unless both exist."""
    return None if a is None or b is None else a - b


def sentence(text: str) -> str:
    """Capitalize the first letter."""
    return text[:1].upper() + text[1:]


def pearson(rows: np.ndarray) -> np.ndarray:
    """Pearson's r between rows, (n, n); NaN for a row without spread."""
    apart = rows - rows.mean(1, keepdims=True)
    length = np.sqrt(np.square(apart).sum(1))
    scale = np.outer(length, length)
    return np.divide(apart @ apart.T, scale, out=np.full(scale.shape, math.nan), where=scale > 1e-12)
