"""Do groups of tasks dissociate? For languages: close the heads of a language and measure every language's tasks.

A group's heads are the top ones by the mean of its tasks' importances, each as a fraction of its sum; its performance
is the mean of its tasks' metrics. All of `Dissociation` then reads as for single tasks.

Legend: F fractions, K lesions (none, each group's heads, random ones), n examples, s counts of a metric.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from headwise.dissociation.lesions import lesion_counts, lesion_masks
from headwise.dissociation.result import Counts, Dissociation
from headwise.dissociation.significance import random_sets
from headwise.errors import HeadwiseError
from headwise.measuring.evaluate import evaluate
from headwise.measuring.stats import Value
from headwise.models.multitask import MultiTaskModel
from headwise.papers.mesh.trim import together
from headwise.scoring.importance import Importance


def dissociate_groups(
    model: MultiTaskModel,
    scores: Mapping[str, torch.Tensor | Importance],
    groups: Mapping[str, str],
    fractions: float | Sequence[float] = 0.3,
    *,
    random: int | None = None,
    split: str = "dev",
    limit: int | None = None,
    resamples: int | None = None,
    seed: int = 0,
    log: Callable[[str], None] = lambda line: None,
) -> Dissociation:
    """The dissociation between groups of a model's tasks.

    Args:
        model: trained on the tasks.
        scores: each task's importance, ``{task: (L, H)}``.
        groups: each task's group, such as its language or its base task; two groups or more.
        fractions: fractions of the heads to close.
        random: random sets of as many heads, closed at every fraction: what p-values are over. The default grows with
            the number of groups, from 20 to 100.
        split, limit: measured on these rows.
        resamples: bootstrap draws over the examples of every task; without it enough for so many groups.
        seed: of controls and bootstrap.
        log: called with a line for every task measured.

    Example:
        >>> languages = {name: task.language for name, task in model.tasks.items()}
        >>> print(dissociate_groups(model, scores, languages))  # are there language heads?
    """
    maps = {task: one.scores if isinstance(one, Importance) else one for task, one in scores.items()}
    if set(groups) != set(maps):
        raise HeadwiseError(f"groups of {sorted(groups)}", f"a group for each of {sorted(maps)}")
    names = list(dict.fromkeys(groups.values()))
    grid = [float(f) for f in ([fractions] if isinstance(fractions, (int, float)) else fractions)]
    random = random_sets(len(names)) if random is None else random
    joint = [together([maps[task] for task in maps if groups[task] == name]) for name in names]
    masks = lesion_masks(joint, grid, random, 0, seed)  # (F, K-1, L, H)
    gates = torch.cat([torch.ones(1, *joint[0].shape), (~masks.flatten(0, 1)).float()])
    by_group: dict[str, list[Counts]] = {name: [] for name in names}
    for task in maps:
        lesions = evaluate(model, task, gates, split=split, limit=limit)
        log(f"{lesions[0]}; {len(gates) - 1} lesions")
        by_group[groups[task]].append(lesion_counts(lesions, len(grid)))
    counts = [side_by_side(tasks) for tasks in by_group.values()]
    return Dissociation.of(names, fractions=grid, counts=counts, resamples=resamples, seed=seed)


def side_by_side(tasks: Sequence[Counts]) -> Counts:
    """Several tasks as one whose metric is the mean of theirs: every task's counts (n, F, K, s) in columns of its own,
    and one more that counts its examples.

    A task none of whose examples was drawn has no metric, and that draw is skipped.
    """
    widths = [task.counts.shape[-1] + 1 for task in tasks]
    ends = np.cumsum([0, *widths])
    rows = []
    for task, start, end in zip(tasks, ends, ends[1:]):
        wide = np.zeros((*task.counts.shape[:-1], ends[-1]))
        wide[..., start : end - 1], wide[..., end - 1] = task.counts, 1.0
        rows.append(wide)

    def value(sums: np.ndarray) -> np.ndarray:
        each: list[Value] = [task.value for task in tasks]
        values = [
            np.where(sums[..., b - 1], one(sums[..., a : b - 1]), np.nan) for one, a, b in zip(each, ends, ends[1:])
        ]
        return np.mean(values, 0)

    return Counts(np.concatenate(rows), value)
