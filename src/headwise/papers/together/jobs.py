"""The jobs: every task alone, every two together, and one look at the untrained encoder, on several models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

from headwise.experiments.jobs import Job
from headwise.experiments.works import data_of, weights_of
from headwise.io.files import plain
from headwise.models.causality import pooling_by_name
from headwise.papers import recipe
from headwise.training.plan import Plan

BASE = Plan(epochs=3, lr=5e-5, head_lr=1e-3, clip=1.0, batch_size=32, evaluate_every=0, checkpoint_every=0)
TWELVE = ("cola", "mrpc", "rte", "stsb", "qnli", "mnli", "qqp", "sst2", "agnews", "trec", "subj", "scitail")


@dataclass(frozen=True)
class Size:
    """Which tasks, and how much of them."""

    tasks: tuple[str, ...]
    plan: Plan
    look: Plan
    """Of the output heads, before the untrained encoder is read."""
    examples: int = 512
    dev: int | None = 1000
    seeds: tuple[int, ...] = (0, 1, 2)
    max_length: int = 128


SIZES = {
    "smoke": Size(
        tasks=("corpus.entailment", "corpus.topic", "corpus.sentiment", "corpus.similarity"),
        plan=BASE.with_(steps=6, lr=2e-3, max_examples=96, batch_size=16),
        look=BASE.with_(steps=4, max_examples=96, batch_size=16, train="heads"),
        examples=32,
        dev=40,
        seeds=(0,),
        max_length=32,
    ),
    "small": Size(
        tasks=TWELVE,
        plan=BASE.with_(max_examples=2000, precision="bf16"),
        look=BASE.with_(steps=600, max_examples=2000, train="heads"),
        seeds=(0, 1),
    ),
    "full": Size(tasks=TWELVE, plan=BASE.with_(max_examples=10_000), look=BASE.with_(steps=1200, train="heads")),
}


class Build(recipe.Build):
    """The jobs of one model and one seed."""

    paper = "together"
    parts = ("signals", "alone", "pairs")

    def __init__(self, size: Size, model: str, at: Mapping[str, str], seed: int, seeds: Sequence[int]):
        super().__init__(size, model, at, seed, seeds)
        self.pooling = pooling_by_name(model, at[model])

    def signals(self) -> list[Job]:
        """What predicts gains: head maps, gradients and texts of all tasks in the untrained encoder."""
        config = self._config(self.size.tasks, self.size.look) | {"examples": self.size.examples}
        return [self._job("signals", "signals", config)]

    def alone(self) -> list[Job]:
        """Every task for itself."""
        return [self._job("trained", task, self._config([task], self.size.plan)) for task in self.size.tasks]

    def pairs(self) -> list[Job]:
        """Every two tasks together, each with as many updates as alone."""
        pairs = combinations(self.size.tasks, 2)
        return [self._job("trained", "+".join(pair), self._config(pair, self.size.plan)) for pair in pairs]

    def _config(self, tasks: Sequence[str], plan: Plan) -> dict[str, Any]:
        config = {"model": self.model, "weights": weights_of(self.model, self.at)}
        config |= {"tasks": {name: data_of(name, self.at) for name in tasks}, "dev": self.size.dev}
        config |= {"plan": plain(asdict(plan.with_(seed=self.seed)))}
        return config | {"pooling": self.pooling, "max_length": self.size.max_length}

    def _job(self, work: str, title: str, config: Mapping[str, Any]) -> Job:
        return self.job(work, f"{title} {self.model} seed {self.seed}", config)
