"""The jobs: tune each method with the same budget, then run every method on other seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from headwise.experiments.jobs import Job
from headwise.experiments.works import RUNGS, data_of, weights_of
from headwise.io.files import plain
from headwise.papers import recipe
from headwise.training.plan import Plan

BASE = Plan(epochs=3, head_lr=1e-3, sampling="annealed", evaluate_every=0, checkpoint_every=0)
GLUE = ("cola", "mnli", "mrpc", "qnli", "qqp", "rte", "sst2", "stsb")
AXES: dict[str, list[Any]] = {"plan.lr": [2e-5, 5e-5, 1e-4], "plan.clip": [None, 1.0], "pooling": ["cls", "mean"]}
METHODS: dict[str, tuple[dict[str, Any] | None, dict[str, Any]]] = {  # method, and changes of the plan
    "plain": (None, {}),
    "balanced losses": (None, {"balance": "moving_average"}),
    "scales": ({"name": "scales", "lr": 0.03}, {}),
}
MIXED = {"window": "mixed"}  # every step has as many batches as there are tasks, so fewer steps at higher rates
RATES = {"plan.lr": [8e-5, 2e-4, 4e-4]}
RIVALS: dict[str, tuple[dict[str, Any] | None, dict[str, Any]]] = {
    "updates per head": ({"name": "updates"}, {}),
    "updates per layer": ({"name": "updates", "per": "layer"}, {}),
    "LoRA per task, encoder frozen": ({"name": "updates", "per": "layer", "factors": False}, {"train": "heads"}),
    "PCGrad per head": ({"name": "conflict", "by": "PCGrad", "per": "heads"}, MIXED),
    "PCGrad": ({"name": "conflict", "by": "PCGrad"}, MIXED),
    "UPGrad": ({"name": "conflict", "by": "UPGrad"}, MIXED),
    "mixed steps": (None, MIXED),
}
MTDNN = "MT-DNN"
MERGED = ("merged: mean", "merged: TIES", "merged: Fisher", "merged: Fisher by head")
SINGLE = "single"


@dataclass(frozen=True)
class Size:
    """Which tasks and settings, and how much of them."""

    tasks: tuple[str, ...]
    plan: Plan
    axes: Mapping[str, Sequence[Any]] = field(default_factory=lambda: AXES)
    rungs: tuple[float, ...] = RUNGS
    similarity: str = "stsb"
    """The task whose gold similarities cosines of the untouched encoder are compared with."""
    seeds: tuple[int, ...] = tuple(range(10, 20))
    """Seeds other than that of tuning, which is 0."""
    rates: Mapping[str, Sequence[Any]] = field(default_factory=lambda: RATES)
    """Axes that differ for mixed steps."""
    merged: tuple[float, ...] = (0.5, 1.0, 1.5)
    """How far to go along merged changes; chosen on held-out training rows."""
    max_length: int = 128


SIZES = {
    "smoke": Size(
        tasks=("corpus.entailment", "corpus.sentiment", "corpus.similarity"),
        plan=BASE.with_(steps=6, max_examples=96, batch_size=16),
        axes={"plan.lr": [1e-3, 1e-4], "pooling": ["cls", "mean"]},
        rungs=(0.3, 1.0),
        rates={"plan.lr": [2e-3, 5e-4]},
        merged=(0.5, 1.0),
        similarity="corpus.similarity",
        seeds=(10, 11),
        max_length=32,
    ),
    "small": Size(tasks=GLUE, plan=BASE.with_(max_examples=10_000, precision="bf16")),
    "full": Size(tasks=GLUE, plan=BASE),
}


class Build(recipe.Build):
    """The jobs of one model and one seed."""

    paper = "methods"
    parts = ("untrained", "together", "alone", "merged", "rivals")

    def untrained(self) -> list[Job]:
        """The encoder as it is."""
        config = {**self._config([self.size.similarity]), "task": self.size.similarity}
        return [self.job("untrained", f"untrained {self.model}", config)]

    def together(self) -> list[Job]:
        """Every method of training all tasks in one model."""
        return [self._confirmed(name, self._tuned(name, self.size.tasks), self.size.tasks) for name in METHODS]

    def alone(self) -> list[Job]:
        """Every task in a model of its own, its settings chosen with the same number of candidates."""
        return [self._confirmed(SINGLE, self._tuned(SINGLE, [task]), [task]) for task in self.size.tasks]

    def rivals(self) -> list[Job]:
        """Low-rank updates per head or layer, combined gradients, and MT-DNN with plain training's settings."""
        made = [self._confirmed(name, self._tuned(name, self.size.tasks), self.size.tasks) for name in RIVALS]
        return [*made, self._confirmed(MTDNN, self._tuned("plain", self.size.tasks), self.size.tasks)]

    def merged(self) -> list[Job]:
        """Merge single-task models into one encoder: means, TIES, Fisher by parameter and by head."""
        tuned = {task: self._tuned(SINGLE, [task]) for task in self.size.tasks}
        config = self._config(self.size.tasks) | {"tuned": {task: job.key for task, job in tuned.items()}}
        config |= {"scales": list(self.size.merged), "seed": self.seed}
        return [self.job("merged", f"merge {self.model} seed {self.seed}", config, *tuned.values())]

    def _tuned(self, method: str, tasks: Sequence[str]) -> Job:
        settings, changed = (METHODS | RIVALS).get(method, (None, {}))
        axes, plan = plain(dict(self.size.axes)), self.size.plan.with_(**changed)
        if plan.window == "mixed":
            axes, plan = axes | plain(dict(self.size.rates)), plan.with_(accumulate=len(tasks))
        config = self._config(tasks) | {"plan": plain(asdict(plan)), "method": settings}
        config |= {"pooling": "cls", "axes": axes, "rungs": list(self.size.rungs), "seed": 0}
        named = f" {tasks[0]}" if len(tasks) == 1 else ""
        return Job("tune", config, {**self.at, "title": f"tune {method}{named} {self.model}"})

    def _confirmed(self, method: str, tuned: Job, tasks: Sequence[str]) -> Job:
        config = self._config(tasks) | {"tuned": tuned.key, "name": method, "seed": self.seed}
        named = f" {tasks[0]}" if len(tasks) == 1 else ""
        return self.job("confirmed", f"confirm {method}{named} {self.model} seed {self.seed}", config, tuned)

    def _config(self, tasks: Sequence[str]) -> dict[str, Any]:
        config = {"model": self.model, "weights": weights_of(self.model, self.at), "max_length": self.size.max_length}
        return config | {"tasks": {name: data_of(name, self.at) for name in tasks}}
