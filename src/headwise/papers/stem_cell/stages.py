"""What every head predicts, label by label, at each stage of training: untrained, pretrained, single task, joint.

Legend: K labels of all tasks together, L layers, H heads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from headwise.errors import HeadwiseError
from headwise.io.files import plain
from headwise.papers.stem_cell.claims import Shift, shifts
from headwise.probing.parameterfree import Unlearnt, unlearnt
from headwise.tasks.task import Task


@dataclass(frozen=True)
class Profile:
    """Scores of parameter-free probes, one map for every label that was asked for."""

    tasks: tuple[str, ...]  # (K,): whose label each is
    labels: tuple[str, ...]
    counts: np.ndarray  # (K,)
    scores: np.ndarray = field(repr=False)  # (K, L, H)

    @classmethod
    def of(cls, probes: Iterable[Unlearnt]) -> Profile:
        """From the probes of several tasks."""
        kept = [(each, i) for each in probes for i in np.flatnonzero(each.counts)]
        if not kept:
            raise HeadwiseError("a profile of no probe", "one task or more")
        scores = np.stack([each.by_label[i] for each, i in kept])
        names = tuple(each.task for each, _ in kept), tuple(each.labels[i] for each, i in kept)
        return cls(*names, np.array([each.counts[i] for each, i in kept]), scores)

    @property
    def best(self) -> np.ndarray:
        """Each label's best score over all heads, (K,)."""
        return np.nanmax(self.scores, (1, 2))

    @property
    def layer(self) -> np.ndarray:
        """The layer of each label's best head, (K,)."""
        flat = self.scores.reshape(len(self.scores), -1)
        return np.nanargmax(flat, 1) // self.scores.shape[2]

    def of_task(self, task: str) -> Profile:
        """One task's labels."""
        mine = [i for i, name in enumerate(self.tasks) if name == task]
        labels = tuple(self.labels[i] for i in mine)
        return Profile((task,) * len(mine), labels, self.counts[mine], self.scores[mine])

    def to_record(self) -> dict[str, Any]:
        return plain({**self.__dict__, "best": self.best, "layer": self.layer})


def profile(model: Any, tasks: Iterable[Task], *, tokenizer: Any = None, **options: Any) -> Profile:
    """Probe a model without parameters for the labels of several word-level tasks.

    Args:
        model: a Hugging Face encoder with its tokenizer, or a `MultiTaskModel`.
        tasks: of kinds Tag, Spans, Constituents, Dependencies, Frames.
        tokenizer: the tokenizer of a Hugging Face model.
        options: split, limit, and fit_on for those with centroids.

    Example:
        >>> before, after = (profile(m, tasks, limit=500) for m in (pretrained, trained))
        >>> print(changes({"pretrained": before, "trained": after})["pretrained", "trained"].gain())  # doctest: +SKIP
    """
    return Profile.of(unlearnt(model, task, tokenizer=tokenizer, **options) for task in tasks)


def changes(stages: Mapping[str, Profile]) -> dict[tuple[str, str], Shift]:
    """What changes from each stage to every later one, over the labels all stages share."""
    labels = {name: set(zip(each.tasks, each.labels)) for name, each in stages.items()}
    shared = sorted(set.intersection(*labels.values())) if labels else []
    if not shared:
        raise HeadwiseError(f"stages {', '.join(stages)} with no label in common", "profiles of the same tasks")
    scores = {}
    for name, each in stages.items():
        place = {label: i for i, label in enumerate(zip(each.tasks, each.labels))}
        scores[name] = each.scores[[place[label] for label in shared]]
    return shifts(scores)


def untrained(encoder: Any, seed: int = 0) -> Any:
    """An encoder of the same configuration with random weights, as a control."""
    from transformers import AutoModel

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = AutoModel.from_config(deepcopy(encoder.config))  # attention maps switch the kernel of the model
    return made.to(encoder.device, encoder.dtype).eval()
