"""Records of the stem-cell recipe, found by what they are and put together over seeds."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np

from headwise.io.records import Record, Results
from headwise.papers.stem_cell.claims import Claims, pearson
from headwise.papers.stem_cell.published import STAGES, TASKS
from headwise.papers.stem_cell.stages import Profile

ALL = "+".join(TASKS)
UNTRAINED = (STAGES[0], "random")  # stages that no seed of training belongs to


class Trained(NamedTuple):
    """A training in a few words."""

    model: str
    tasks: str  # joined by +
    seed: int
    gates: bool
    frozen: bool
    random: bool
    times: int = 1  # updates beside the usual number
    each: bool = False  # every task has gates of its own

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Trained:
        plan, tasks = config["plan"], "+".join(config["short"])
        how = bool(config["method"]), plan["train"] == "heads", config["random"]
        each = not (config["method"] or {}).get("shared", True)
        return cls(config["model"], tasks, plan["seed"], *how, config.get("times", 1), each)


class Records:
    """All records of a folder that are this recipe's, read once."""

    def __init__(self, results: Results):
        self.trained: dict[Trained, Record] = {}
        self.probed: list[Record] = []
        for record in results:
            if record.work == "stem_cell.trained":
                self.trained[Trained.of(record.config)] = record
            elif record.work == "stem_cell.probed":
                self.probed.append(record)

    def models(self) -> list[str]:
        """Model names in the order in which they came: trained first, then those of which heads alone were probed."""
        return list(dict.fromkeys(config["model"] for config in self._configs))

    @property
    def real(self) -> bool:
        """Whether these are sentences that people wrote: only then do published numbers stand beside ours."""
        return not any(name.startswith("corpus.") for name in self._names.values())

    def scores(
        self, model: str, gates: bool, frozen: bool = False, equal: bool = False, each: bool = False
    ) -> dict[tuple[str, str], dict[int, float]]:
        """(tasks trained together, task) to seed to score; ``equal``: with as many updates as all tasks together."""
        scores: dict[tuple[str, str], dict[int, float]] = {}
        for one, record in self.trained.items():
            way = (one.model, one.gates, one.frozen, one.random, one.times > 1, one.each)
            if way == (model, gates, frozen, False, equal, each):
                for short, score in zip(record.config["short"], record.result["scores"].values()):
                    scores.setdefault((one.tasks, short), {})[one.seed] = score["value"]
        return scores

    def examples(self) -> str:
        """The number of test sentences behind each task's scores."""
        counts = {
            short: score["n"]
            for record in self.trained.values()
            for short, score in zip(record.config["short"], record.result["scores"].values())
        }
        return ", ".join(f"{task.upper()} {counts[task]}" for task in TASKS if task in counts)

    def gates(self, model: str, tasks: str, frozen: bool = False, random: bool = False) -> np.ndarray | None:
        """The gates of every seed, (R, L, H)."""
        wanted = (model, tasks, True, frozen, random)
        by_seed = {
            one.seed: record.arrays["gates"]
            for one, record in self.trained.items()
            if (one.model, one.tasks, one.gates, one.frozen, one.random) == wanted and not one.each
        }
        return np.stack([by_seed[seed] for seed in sorted(by_seed)]) if by_seed else None

    def claims(self, model: str, frozen: bool = False) -> Claims | None:
        """The gates of the five tasks, each trained alone."""
        by_task = {task: self.gates(model, task, frozen) for task in TASKS}
        if any(gates is None for gates in by_task.values()):
            return None
        runs = min(len(gates) for gates in by_task.values() if gates is not None)
        return Claims.of({task: gates[:runs] for task, gates in by_task.items() if gates is not None})

    def snapshots(self, model: str, tasks: str) -> tuple[np.ndarray, np.ndarray] | None:
        """Steps and gates (steps, L, H) on the way, of the first seed that kept them."""
        for one, record in self.trained.items():
            if (one.model, one.tasks, one.gates, one.frozen, one.random) == (model, tasks, True, False, False):
                if one.each:
                    continue
                arrays = record.arrays
                if "snapshots" in arrays:
                    return arrays["steps"], arrays["snapshots"]
        return None

    # -- probes

    def profiles(self, model: str, fit_on: str) -> dict[str, dict[int, Profile]]:
        """Profiles by stage and seed: pretrained, random, single (each task by its own model), pairs and all five."""
        profiles: dict[str, dict[int, Profile]] = {}
        single: dict[int, list[Profile]] = {}
        for record in self.probed:
            one = Trained.of(record.config["training"])
            if (one.model, record.config["fit_on"]) != (model, fit_on):
                continue
            made = self._profile(record)
            if record.config["of"] is None:
                profiles.setdefault(UNTRAINED[one.random], {})[one.seed] = made
            elif "+" not in one.tasks:
                single.setdefault(one.seed, []).append(made)
            else:
                profiles.setdefault(STAGES[2] if one.tasks == ALL else one.tasks, {})[one.seed] = made
        if single:
            profiles[STAGES[1]] = {seed: joined(sorted(parts, key=_place)) for seed, parts in single.items()}
        return profiles

    def _profile(self, record: Record) -> Profile:
        short = {name: task for task, name in self._names.items()}
        tasks = tuple(short[name] for name in record.result["tasks"])
        counts = np.array(record.result["counts"])
        return Profile(tasks, tuple(record.result["labels"]), counts, record.arrays["right"] / counts[:, None, None])

    @cached_property
    def _names(self) -> dict[str, str]:
        """The catalog's names by the recipe's."""
        return {short: name for config in self._configs for short, name in zip(config["short"], config["tasks"])}

    @cached_property
    def _configs(self) -> list[dict[str, Any]]:
        """Of all trainings, also of those that a probe only names."""
        return [one.config for one in self.trained.values()] + [one.config["training"] for one in self.probed]


def _place(part: Profile) -> int:
    return TASKS.index(part.tasks[0])


def joined(parts: list[Profile]) -> Profile:
    """Several tasks' labels as one profile."""
    tasks = tuple(task for part in parts for task in part.tasks)
    labels = tuple(label for part in parts for label in part.labels)
    return Profile(tasks, labels, np.concatenate([p.counts for p in parts]), np.concatenate([p.scores for p in parts]))


def alike(profiles: Mapping[int, Profile]) -> dict[int, Profile]:
    """The profiles that have all labels, by seed; seeds that lack a task are skipped."""
    first = max(profiles.values(), key=lambda p: len(p.labels))
    return {seed: p for seed, p in sorted(profiles.items()) if (p.tasks, p.labels) == (first.tasks, first.labels)}


def best_heads(profiles: Mapping[int, Profile]) -> Profile:
    """Each label's best head of every seed, averaged over seeds, as a profile of one head.

    The best comes before the mean: that of an averaged map is lower, and pretraining has but one map.
    """
    same = list(alike(profiles).values())
    best = np.mean([p.best for p in same], 0)
    return Profile(same[0].tasks, same[0].labels, same[0].counts, best[:, None, None])


def shared(stages: Mapping[str, Mapping[int, Profile]]) -> dict[str, dict[int, Profile]]:
    """The same profiles, restricted to the labels they have in common."""
    every = [set(zip(p.tasks, p.labels)) for each in stages.values() for p in each.values()]
    both = set.intersection(*every) if every else set()
    return {stage: {seed: _cut(p, both) for seed, p in each.items()} for stage, each in stages.items()}


def _cut(profiles: Profile, wanted: set[tuple[str, str]]) -> Profile:
    kept = [i for i, pair in enumerate(zip(profiles.tasks, profiles.labels)) if pair in wanted]
    names = tuple(profiles.tasks[i] for i in kept), tuple(profiles.labels[i] for i in kept)
    return Profile(*names, profiles.counts[kept], profiles.scores[kept])


# -- gates of single runs


def between_runs(claims: Claims) -> np.ndarray:
    """The mean r between the gates of two single runs, (T, T): of two tasks, and on the diagonal of one.

    Two runs of one task differ in their seed, so two tasks' runs are taken of different seeds as well, if there are
    any; NaN on the diagonal of a single run.
    """
    runs, tasks = claims.gates.shape[:2]
    correlations = pearson(claims.gates.reshape(runs * tasks, -1)).reshape(runs, tasks, runs, tasks)
    if runs == 1:
        return np.where(np.eye(tasks, dtype=bool), np.nan, correlations[0, :, 0])
    return np.mean([correlations[i, :, j] for i, j in permutations(range(runs), 2)], 0)
