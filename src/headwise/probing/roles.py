"""Compare maps of probe scores: change, groups of properties, clusters of heads, several models (no torch).

A map is any ``(layers, heads)`` array of scores; a `Probe` is taken as its test scores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.cluster.hierarchy import fcluster, leaves_list, linkage

from headwise.errors import HeadwiseError
from headwise.io.files import plain
from headwise.measuring.correlation import Correlation, correlation

SURFACE = ("sentence_length", "word_content")
SYNTACTIC = ("tree_depth", "top_constituents", "bigram_shift")  # Jo and Myaeng 2020, 6.2
SEMANTIC = ("past_present", "subj_number", "obj_number", "odd_man_out", "coordination_inversion")
Maps = Mapping[str, Any]


def score_map(source: Any) -> np.ndarray:
    """A probe's test scores, or an array, as ``(layers, heads)``."""
    scores = np.asarray(getattr(source, "accuracy", source), float)
    if scores.ndim != 2 or not scores.size:
        raise HeadwiseError(f"scores of shape {scores.shape}", "(layers, heads)")
    return scores


def stacked(maps: Maps) -> np.ndarray:
    """Maps of one shape as ``(tasks, layers, heads)``."""
    arrays = [score_map(each) for each in maps.values()]
    if not arrays or len({each.shape for each in arrays}) > 1:
        raise HeadwiseError(f"maps of shapes {[each.shape for each in arrays]}", "one or more maps of one shape")
    return np.stack(arrays)


def sorted_map(source: Any) -> np.ndarray:
    """Every layer's scores in descending order, cut heads last (Jo and Myaeng 2020, Figures 3 and 6)."""
    return -np.sort(-score_map(source), axis=1)


def shared_range(maps: Sequence[Any]) -> tuple[float, float]:
    """The lowest and the highest score of several maps, for one colour scale."""
    scores = np.concatenate([score_map(each).ravel() for each in maps])
    return float(np.nanmin(scores)), float(np.nanmax(scores))


# -- before and after


@dataclass(frozen=True)
class Change:
    """The change of a map, for example by training."""

    difference: np.ndarray  # (L, H), after minus before
    pattern: Correlation  # of the two maps: 1 where the order of heads is kept
    mean: float
    raised: float  # fraction of heads that gained
    moved_up: float  # shift of the centre of the scores above the lowest, in layers

    def to_record(self) -> dict[str, Any]:
        return plain(self.__dict__)

    def __str__(self) -> str:
        return f"mean change {self.mean:+.4f}, {self.raised:.0%} of heads gained, pattern {self.pattern}"


def change(before: Any, after: Any) -> Change:
    """Two maps of the same heads, before and after fine-tuning (Jo and Myaeng 2020, Figure 4)."""
    a, b = stacked({"before": before, "after": after})
    both = ~np.isnan(a) & ~np.isnan(b)
    difference = b - a
    gained = difference[both]
    climb = centre(b) - centre(a)
    return Change(difference, correlation(a[both], b[both]), float(gained.mean()), float((gained > 0).mean()), climb)


def centre(values: Any, floor: float | None = None) -> float:
    """The mean layer, weighted by the scores above the floor (default: the lowest score)."""
    scores = score_map(values)
    above = np.nan_to_num(np.maximum(scores - (np.nanmin(scores) if floor is None else floor), 0))
    weight = above.sum(1)
    if weight.sum() == 0:
        return (len(scores) - 1) / 2
    return float((np.arange(len(scores)) * weight).sum() / weight.sum())


# -- syntactic and semantic


@dataclass(frozen=True)
class Scatter:
    """Each head's mean score on two groups of properties, and their correlation."""

    x: np.ndarray  # (heads,)
    y: np.ndarray
    layer: np.ndarray
    head: np.ndarray
    groups: dict[str, tuple[str, ...]]  # the tasks of x and of y
    fit: Correlation

    def to_record(self) -> dict[str, Any]:
        return plain(self.__dict__)

    def __str__(self) -> str:
        x, y = self.groups
        return f"{x} against {y} over {len(self.x)} heads: {self.fit}"


def scatter(
    maps: Maps, x: Sequence[str] = SYNTACTIC, y: Sequence[str] = SEMANTIC, names=("syntactic", "semantic")
) -> Scatter:
    """Syntactic against semantic scores of all heads (Jo and Myaeng 2020, Figure 5).

    Args:
        maps: one map per task; a task belongs to a group by the last part of its name (``corpus.bigram_shift``).
        x: properties of the first group; those without a map are skipped.
        y: properties of the second group.
        names: names of the two groups.
    """
    groups = {name: tuple(t for t in maps if t.split(".")[-1] in wanted) for name, wanted in zip(names, (x, y))}
    for (name, scores), wanted in zip(groups.items(), (x, y)):
        if not scores:
            raise HeadwiseError(f"no {name} task among {', '.join(maps)}", f"one of: {', '.join(wanted)}")
    sides = [stacked({task: maps[task] for task in scores}).mean(0) for scores in groups.values()]
    layer, head = np.nonzero(~np.isnan(sides[0] + sides[1]))
    points = [side[layer, head] for side in sides]
    return Scatter(points[0], points[1], layer, head, groups, correlation(*points))


# -- kinds of heads


@dataclass(frozen=True)
class Profiles:
    """Heads by what they encode: z-scores over tasks, similarity and clusters."""

    tasks: tuple[str, ...]
    heads: tuple[tuple[int, int], ...]
    profile: np.ndarray  # (heads, tasks), standardized over heads
    similarity: np.ndarray  # (heads, heads), cosine of profiles
    cluster: np.ndarray  # (heads,), numbered from 0
    order: np.ndarray  # heads in the order of the tree, so that alike ones lie side by side

    def to_record(self) -> dict[str, Any]:
        return plain({k: v for k, v in self.__dict__.items() if k != "similarity"})

    def __str__(self) -> str:
        lines = []
        for number in range(self.cluster.max() + 1):
            inside = self.cluster == number
            mean = self.profile[inside].mean(0)
            high = ", ".join(f"{self.tasks[t]} {mean[t]:+.1f}" for t in np.argsort(-mean)[:3])
            lines.append(f"kind {number}: {inside.sum()} heads, highest {high}")
        return "\n".join(lines)


def profiles(maps: Maps, kinds: int = 6) -> Profiles:
    """Cluster the heads by their scores over tasks (Ward's method on z-scores)."""
    scores = stacked(maps)
    layer, head = np.nonzero(~np.isnan(scores).any(0))
    rows = scores[:, layer, head].T
    if len(maps) < 2 or not 2 <= kinds <= len(rows):
        raise HeadwiseError(
            f"{len(maps)} tasks, {len(rows)} heads and {kinds} kinds", "two tasks, and 2 kinds to as many as heads"
        )
    spread = rows.std(0)
    profile = (rows - rows.mean(0)) / np.where(spread > 0, spread, 1.0)
    length = np.linalg.norm(profile, axis=1, keepdims=True)
    unit = profile / np.where(length > 0, length, 1.0)
    tree = linkage(profile, "ward")
    cluster = fcluster(tree, kinds, "maxclust") - 1
    heads = tuple(zip(layer.tolist(), head.tolist()))
    return Profiles(tuple(maps), heads, profile, unit @ unit.T, cluster, leaves_list(tree))


# -- models side by side

DEPTHS = 25


@dataclass(frozen=True)
class Across:
    """Several models: at what depth each encodes a property, and how similar their layers' scores are."""

    models: tuple[str, ...]
    tasks: tuple[str, ...]
    best: np.ndarray  # (models, tasks): the best head's score
    depth: np.ndarray  # (models, tasks): where the centre of scores lies, 0 first layer, 1 last
    similarity: np.ndarray  # (models, models): mean over tasks of the correlation of scores by depth

    def to_record(self) -> dict[str, Any]:
        return plain(self.__dict__)

    def __str__(self) -> str:
        wide = max(map(len, self.models)) + 2
        lines = [" " * wide + "  ".join(f"{task[-14:]:>14}" for task in self.tasks)]
        for m, model in enumerate(self.models):
            cells = [f"{b:.3f} at {d:.2f}" for b, d in zip(self.best[m], self.depth[m])]
            lines.append(f"{model:{wide}}" + "  ".join(f"{cell:>14}" for cell in cells))
        return "\n".join(lines)


def across(models: Mapping[str, Maps]) -> Across:
    """Compare models of any shape on the tasks they share (Jo and Myaeng 2020, 4.3)."""
    tasks = tuple(t for t in next(iter(models.values())) if all(t in maps for maps in models.values()))
    if not tasks:
        raise HeadwiseError("models without a common task", "maps of the same tasks")
    arrays = [[score_map(maps[task]) for task in tasks] for maps in models.values()]
    best = np.array([[np.nanmax(each) for each in row] for row in arrays])
    depth = np.array([[centre(each) / max(1, len(each) - 1) for each in row] for row in arrays])
    curves = np.array([[_by_depth(each) for each in row] for row in arrays])  # (M, T, DEPTHS)
    curves -= curves.mean(-1, keepdims=True)
    length = np.linalg.norm(curves, axis=-1, keepdims=True)
    unit = curves / np.where(length > 0, length, 1.0)
    return Across(tuple(models), tasks, best, depth, np.einsum("atd,btd->ab", unit, unit) / len(tasks))


def _by_depth(scores: np.ndarray) -> np.ndarray:
    """The mean score of a layer's heads, at evenly spaced depths."""
    mean = np.nanmean(scores, axis=1)
    known = ~np.isnan(mean)
    places = np.linspace(0, 1, len(mean)) if len(mean) > 1 else np.zeros(1)
    return np.interp(np.linspace(0, 1, DEPTHS), places[known], mean[known])
