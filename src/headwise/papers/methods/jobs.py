"""The jobs: settings chosen for each method with one budget, then every method on seeds that chose nothing."""

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
    """Other seeds than the tuning's, which is 0."""
    max_length: int = 128


SIZES = {
    "smoke": Size(
        tasks=("corpus.entailment", "corpus.sentiment", "corpus.similarity"),
        plan=BASE.with_(steps=6, max_examples=96, batch_size=16),
        axes={"plan.lr": [1e-3, 1e-4], "pooling": ["cls", "mean"]},
        rungs=(0.3, 1.0),
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
    parts = ("untrained", "together", "alone")

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

    def _tuned(self, method: str, tasks: Sequence[str]) -> Job:
        settings, changed = METHODS.get(method, (None, {}))
        config = self._config(tasks) | {"plan": plain(asdict(self.size.plan.with_(**changed))), "method": settings}
        config |= {"pooling": "cls", "axes": plain(dict(self.size.axes)), "rungs": list(self.size.rungs), "seed": 0}
        named = f" {tasks[0]}" if len(tasks) == 1 else ""
        return Job("tune", config, {**self.at, "title": f"tune {method}{named} {self.model}"})

    def _confirmed(self, method: str, tuned: Job, tasks: Sequence[str]) -> Job:
        config = self._config(tasks) | {"tuned": tuned.key, "name": method, "seed": self.seed}
        named = f" {tasks[0]}" if len(tasks) == 1 else ""
        return self.job("confirmed", f"confirm {method}{named} {self.model} seed {self.seed}", config, tuned)

    def _config(self, tasks: Sequence[str]) -> dict[str, Any]:
        config = {"model": self.model, "weights": weights_of(self.model, self.at), "max_length": self.size.max_length}
        return config | {"tasks": {name: data_of(name, self.at) for name in tasks}}
