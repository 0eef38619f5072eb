"""The jobs of the stem-cell recipe: five tasks alone, in pairs and together, with and without gates, and probes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from headwise.experiments.jobs import Job
from headwise.experiments.works import training
from headwise.papers import recipe
from headwise.papers.stem_cell.published import TASKS
from headwise.training.plan import Plan

Sets = Sequence[tuple[str, ...]]
HUB = {
    "bert-base": "google-bert/bert-base-cased",
    "roberta-base": "FacebookAI/roberta-base",
    "electra-base": "google/electra-base-discriminator",
    "deberta-base": "microsoft/deberta-base",
}
# The released settings: rates of encoder and output heads, sampling, balance, clipping, sub-words left out.
BASE = Plan(
    epochs=30,
    lr=5e-5,
    head_lr=1e-3,
    clip=1.0,
    word_dropout=0.2,
    tokens=6400,
    sampling="temperature",
    temperature=0.8,
    balance="moving_average",
    window="mixed",
    patience=15,
)
RELEASED = {"pos": 0.01, "ner": 0.0002, "dep": 0.01, "con": 0.01, "srl": 0.001}  # what an open head costs
TOGETHER = 0.001
WAYS = ("train", "test")  # whose sentences centroids come from
BATCHES = {"pos": 2, "ner": 1, "dep": 1, "con": 2, "srl": 4}  # in one step; four for tasks together


@dataclass(frozen=True)
class Size:
    """What a size of the recipe trains on, and how much of it."""

    tasks: Mapping[str, str]  # the catalog's names by those of TASKS
    plan: Plan
    gate: Mapping[str, Any] = field(default_factory=lambda: {"init": "xavier", "snapshots": 5000})  # of all gates
    gate_plan: Mapping[str, Any] = field(default_factory=dict)  # where training with gates differs
    cost: Mapping[str, float] = field(default_factory=lambda: RELEASED)
    together: float = TOGETHER
    accumulate: Mapping[str, int] = field(default_factory=dict)
    seeds: tuple[int, ...] = (0, 1, 2)
    fewer: tuple[int, ...] = (0, 1, 2)  # seeds of all but gates on a trained encoder
    pairs: bool = True  # gates for pairs too, and probes
    control: bool = True  # single tasks with as many updates as joint training
    test: int | None = None
    probe: int | None = None  # sentences of a side
    max_length: int = 512


CORPUS = {task: f"corpus.{task}" for task in TASKS}
EWT = {task: f"ewt_{task}" for task in TASKS} | {"pos": "ewt_xpos"}
ONTONOTES = {task: f"ontonotes_{task}" for task in TASKS}
SIZES = {
    "smoke": Size(
        tasks=CORPUS,
        plan=BASE.with_(steps=8, lr=1e-3, tokens=None, batch_size=8, max_examples=48, patience=None).with_(
            evaluate_every=0, checkpoint_every=0
        ),
        gate={"init": "open", "lr": 0.7, "snapshots": 4},
        cost=dict.fromkeys(TASKS, 0.3),
        together=0.3,
        fewer=(0,),
        pairs=False,
        test=24,
        probe=48,
        max_length=32,
    ),
    "small": Size(
        tasks=EWT,
        plan=BASE.with_(epochs=12, patience=None, evaluate_every=0, precision="bf16"),
        gate={"init": "open", "lr": 0.1, "warmup": 0.2, "snapshots": 100},
        cost={task: 3 * cost for task, cost in RELEASED.items()},
        together=3 * TOGETHER,
        probe=1000,
        max_length=256,
    ),
    "full": Size(
        tasks=ONTONOTES, plan=BASE, gate_plan={"lr": 1e-5, "epochs": 100, "patience": 100}, accumulate=BATCHES
    ),
}


MAIN: Sets = (TASKS, *((task,) for task in TASKS))
PAIRS: Sets = tuple(combinations(TASKS, 2))


class Build(recipe.Build):
    """The jobs of one model and one seed: all tasks together and each alone first, then the pairs."""

    paper = "stem_cell"
    parts = (
        *("plain", "gated", "static", "untrained", "pretrained", "probes", "plain_pairs", "gated_pairs", "probe_pairs"),
        *("equal", "each"),
    )

    @classmethod
    def seeds_of(cls, part: str, size: Size, given: Sequence[int]) -> tuple[int, ...]:
        every = tuple(given) or (size.seeds if part.startswith("gated") else size.fewer)
        return every[:1] if part == "pretrained" else every

    def plain(self) -> list[Job]:
        """Scores without gates: together, and alone."""
        return [self.train(tasks) for tasks in MAIN]

    def plain_pairs(self) -> list[Job]:
        """Scores of every two tasks."""
        return [self.train(tasks) for tasks in PAIRS]

    def equal(self) -> list[Job]:
        """The control of joint training: each task alone with as many updates as all five have together."""
        return [self.train((task,), times=len(TASKS)) for task in TASKS] if self.size.control else []

    def gated(self) -> list[Job]:
        """Gates with the encoder trained (dynamic)."""
        return [self.train(tasks, True) for tasks in MAIN]

    def gated_pairs(self) -> list[Job]:
        """The same for every two tasks."""
        return [self.train(tasks, True) for tasks in PAIRS] if self.size.pairs else []

    def each(self) -> list[Job]:
        """A remedy of the dilemma: all five together, with gates of their own for every task."""
        return [self.train(TASKS, True, each=True)]

    def static(self) -> list[Job]:
        """Gates with the encoder at rest."""
        return [self.train(tasks, True, "heads") for tasks in MAIN]

    def untrained(self) -> list[Job]:
        """Gates on an encoder with random weights."""
        return [self.train(TASKS, True, random=True)]

    def pretrained(self) -> list[Job]:
        """The heads of the pretrained encoder, and of one with random weights."""
        before = [self.train(TASKS, random=random) for random in (False, True)]
        return [self.probe(job, TASKS, fit_on, False) for fit_on in WAYS for job in before]

    def probes(self) -> list[Job]:
        """The heads of every training, for the labels of its tasks, by centroids of training and of test data."""
        return self._probes(MAIN)

    def probe_pairs(self) -> list[Job]:
        """The same for every two tasks."""
        return self._probes(PAIRS) if self.size.pairs else []

    def _probes(self, sets: Sets) -> list[Job]:
        trained = [(self.train(tasks), tasks) for tasks in sets]
        return [self.probe(job, tasks, fit_on) for fit_on in WAYS for job, tasks in trained]

    def train(
        self,
        tasks: Sequence[str],
        gates: bool = False,
        train: str = "all",
        random: bool = False,
        times: int = 1,
        each: bool = False,
    ) -> Job:
        """One training; its model is saved unless it has gates, for the probes."""
        s = self.size
        plan = s.plan.with_(**{**(s.gate_plan if gates else {}), "seed": self.seed, "train": train})
        plan = plan.with_(accumulate=max(s.accumulate.get(task, 1) for task in tasks))
        plan = plan if len(tasks) > 1 else plan.with_(balance="none")
        if times > 1:
            plan = plan.with_(**({"steps": times * plan.steps} if plan.steps else {"epochs": times * plan.epochs}))
        cost = s.cost[tasks[0]] if len(tasks) == 1 else s.together
        method = {"name": "l0", "weight": cost, **s.gate, **({"shared": False} if each else {})} if gates else None
        names = [s.tasks[task] for task in tasks]
        job = training(self.model, names, plan, method, at=self.at, max_length=s.max_length)
        words = [
            self.model,
            "+".join(tasks),
            "gates" * gates,
            "of each task" * each,
            "frozen" * (train == "heads"),
            "random" * random,
        ]
        words += [f"{times} times the updates" * (times > 1), f"seed {self.seed}"]
        more = {"short": list(tasks), "random": random, "test": s.test, "keep": not gates}
        more |= {"times": times, "keep": False} if times > 1 else {}
        return self._job("trained", words, {**job.config, **more})

    def probe(self, job: Job, tasks: Iterable[str], fit_on: str, after: bool = True) -> Job:
        """Parameter-free probes of a training's heads, or of those before it."""
        config = {"of": job.key if after else None, "training": job.config, "fit_on": fit_on, "split": "test"}
        config |= {"tasks": [self.size.tasks[task] for task in tasks], "limit": self.size.probe}
        words = ["probes of", job.title if after else f"{self.model}{' random' * job.config['random']}", fit_on]
        return self._job("probed", words, config, (job,) if after else ())

    def _job(self, work: str, words: Sequence[str], config: dict[str, Any], after: tuple[Job, ...] = ()) -> Job:
        return self.job(work, " ".join(word for word in words if word), config, *after)
