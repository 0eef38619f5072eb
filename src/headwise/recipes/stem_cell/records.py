"""Records of the stem-cell recipe, found by what they are and put together over seeds."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from headwise.claims import Claims
from headwise.probing.stages import Profile
from headwise.recipes.stem_cell.published import STAGES, TASKS
from headwise.results import Record, Results

ALL = "+".join(TASKS)


class Trained(NamedTuple):
    """A training in a few words."""

    model: str
    tasks: str  # joined by +
    seed: int
    gates: bool
    frozen: bool
    random: bool

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Trained:
        plan, tasks = config["plan"], "+".join(config["short"])
        how = bool(config["method"]), plan["train"] == "heads", config["random"]
        return cls(config["model"], tasks, plan["seed"], *how)


class Records:
    """All records of a folder that are this recipe's, read once."""

    def __init__(self, results: Results):
        self.trained: dict[Trained, Record] = {}
        self.probed: list[Record] = []
        for record in results:
            if record.kind.endswith("stem_cell.works:trained"):
                self.trained[Trained.of(record.config)] = record
            elif record.kind.endswith("stem_cell.works:probed"):
                self.probed.append(record)

    def models(self) -> list[str]:
        """Model names in the order in which they came."""
        return list(dict.fromkeys(one.model for one in self.trained))

    @property
    def real(self) -> bool:
        """Whether these are sentences that people wrote: only then do published numbers stand beside ours."""
        return not any(name.startswith("corpus.") for name in self._names.values())

    def scores(self, model: str, gates: bool, frozen: bool = False) -> dict[tuple[str, str], dict[int, float]]:
        """(tasks trained together, task) to seed to score."""
        found: dict[tuple[str, str], dict[int, float]] = {}
        for one, record in self.trained.items():
            if (one.model, one.gates, one.frozen, one.random) == (model, gates, frozen, False):
                for short, score in zip(record.config["short"], record.result["scores"].values()):
                    found.setdefault((one.tasks, short), {})[one.seed] = score["value"]
        return found

    def examples(self) -> str:
        """How many test sentences each task's scores stand on."""
        found = {
            short: score["n"]
            for record in self.trained.values()
            for short, score in zip(record.config["short"], record.result["scores"].values())
        }
        return ", ".join(f"{task.upper()} {found[task]}" for task in TASKS if task in found)

    def gates(self, model: str, tasks: str, frozen: bool = False, random: bool = False) -> np.ndarray | None:
        """The gates of every seed, (R, L, H)."""
        wanted = (model, tasks, True, frozen, random)
        found = {
            one.seed: record.arrays["gates"]
            for one, record in self.trained.items()
            if (one.model, one.tasks, one.gates, one.frozen, one.random) == wanted
        }
        return np.stack([found[seed] for seed in sorted(found)]) if found else None

    def claims(self, model: str, frozen: bool = False) -> Claims | None:
        """The gates of the five tasks, each trained alone."""
        found = {task: self.gates(model, task, frozen) for task in TASKS}
        if any(gates is None for gates in found.values()):
            return None
        runs = min(len(gates) for gates in found.values() if gates is not None)
        return Claims.of({task: gates[:runs] for task, gates in found.items() if gates is not None})

    def snapshots(self, model: str, tasks: str) -> tuple[np.ndarray, np.ndarray] | None:
        """Steps and gates (steps, L, H) on the way, of the first seed that kept them."""
        for one, record in self.trained.items():
            if (one.model, one.tasks, one.gates, one.frozen, one.random) == (model, tasks, True, False, False):
                arrays = record.arrays
                if "snapshots" in arrays:
                    return arrays["steps"], arrays["snapshots"]
        return None

    # -- probes

    def profiles(self, model: str, fit_on: str) -> dict[str, list[Profile]]:
        """Profiles by stage: pretrained, random, single (each task by its own model), pairs and all five."""
        found: dict[str, list[Profile]] = {}
        single: dict[int, list[Profile]] = {}
        for record in self.probed:
            one = Trained.of(record.config["training"])
            if (one.model, record.config["fit_on"]) != (model, fit_on):
                continue
            made = self._profile(record)
            if record.config["of"] is None:
                found.setdefault("random" if one.random else STAGES[0], []).append(made)
            elif "+" not in one.tasks:
                single.setdefault(one.seed, []).append(made)
            else:
                found.setdefault(STAGES[2] if one.tasks == ALL else one.tasks, []).append(made)
        if single:
            found[STAGES[1]] = [joined(sorted(parts, key=_place)) for parts in single.values()]
        return found

    def _profile(self, record: Record) -> Profile:
        short = {name: task for task, name in self._names.items()}
        tasks = tuple(short[name] for name in record.result["tasks"])
        counts = np.array(record.result["counts"])
        return Profile(tasks, tuple(record.result["labels"]), counts, record.arrays["scores"].astype(float))

    @cached_property
    def _names(self) -> dict[str, str]:
        """The catalog's names by the recipe's."""
        every = [one.config for one in self.trained.values()] + [one.config["training"] for one in self.probed]
        return {short: name for config in every for short, name in zip(config["short"], config["tasks"])}


def _place(part: Profile) -> int:
    return TASKS.index(part.tasks[0])


def joined(parts: list[Profile]) -> Profile:
    """Several tasks' labels as one profile."""
    tasks = tuple(task for part in parts for task in part.tasks)
    labels = tuple(label for part in parts for label in part.labels)
    return Profile(tasks, labels, np.concatenate([p.counts for p in parts]), np.concatenate([p.scores for p in parts]))


def alike(profiles: list[Profile]) -> list[Profile]:
    """The profiles that have all labels; those of seeds that lack a task are left out."""
    most = max(len(p.labels) for p in profiles)
    first = next(p for p in profiles if len(p.labels) == most)
    return [p for p in profiles if (p.tasks, p.labels) == (first.tasks, first.labels)]


def averaged(profiles: list[Profile]) -> Profile:
    """The mean over seeds."""
    same = alike(profiles)
    return Profile(same[0].tasks, same[0].labels, same[0].counts, np.mean([p.scores for p in same], 0))
