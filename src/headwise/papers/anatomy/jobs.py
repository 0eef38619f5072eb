"""The jobs of the anatomy recipe: ten probing tasks on every model, fine-tuning on three, at three sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from headwise.experiments.jobs import Job
from headwise.experiments.works import data_of, weights_of
from headwise.io.files import plain
from headwise.papers import recipe
from headwise.papers.anatomy.published import TASKS
from headwise.probing.utilization import TUNING
from headwise.training.plan import Plan

PROPERTIES = tuple(name for name, _, _ in TASKS.values())
TEN = {suite: tuple(f"{suite}.{name}" for name in PROPERTIES) for suite in ("probing_gold", "senteval")}
EIGHT = tuple(f"xprobe_en.{name}" for name in PROPERTIES if name not in ("top_constituents", "odd_man_out"))
QUICK = tuple(  # quickly generated tasks of the embedded corpus
    f"corpus.{name}" for name in ("bigram_shift", "past_present", "subj_number", "obj_number", "odd_man_out")
)
HUB = {
    "gpt": "openai-community/openai-gpt",
    "gpt2": "openai-community/gpt2",
    "bert-base": "google-bert/bert-base-uncased",
    "bert-large": "google-bert/bert-large-uncased",
    "electra-small": "google/electra-small-discriminator",
    "electra-base": "google/electra-base-discriminator",
    "electra-large": "google/electra-large-discriminator",
}
POSITION = {"gpt": "post_last", "gpt2": "post_last"}  # as released: one place after the last token


@dataclass(frozen=True)
class Size:
    """Data and amounts of probing and fine-tuning at one size of the recipe."""

    probes: tuple[str, ...]
    tuning: tuple[str, ...]
    plan: Plan = TUNING
    protocol: str = "anatomy"
    converged: bool = True  # also converged probes: the published rule stops some long before their optimum
    options: Mapping[str, Any] = field(default_factory=dict)
    standardized: Mapping[str, Any] = field(default_factory=lambda: {"standardize": True})  # of probes with controls
    draws: int = 20  # of each control
    along: tuple[float, ...] = (0.0, 0.125, 0.25, 0.5, 1.0)  # fractions of a fine-tuning at which heads are probed
    limit: int | None = None  # training rows of a probe
    tuning_limit: int | None = None
    split: str | None = "dev"  # on which fine-tuning is evaluated
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    max_length: int = 128


SIZES = {
    "smoke": Size(
        probes=QUICK,
        tuning=("corpus.sentiment", "corpus.similarity"),
        plan=TUNING.with_(steps=6, lr=1e-3, max_examples=120),
        protocol="sklearn",
        converged=False,
        options={"l2": [1e-4, 1e-2]},
        standardized={"standardize": True, "l2": [1e-4, 1e-2]},
        draws=4,
        limit=240,
        tuning_limit=120,
        seeds=(0, 1),
        max_length=32,
    ),
    "small": Size(
        probes=(*TEN["probing_gold"], *EIGHT),
        tuning=("mrpc", "stsb", "sst2"),
        plan=TUNING.with_(max_examples=5000),
        tuning_limit=5000,
    ),
    "full": Size(probes=TEN["senteval"], tuning=("mrpc", "stsb", "sst2")),
}


class Build(recipe.Build):
    """The jobs of one model and one seed; heads and layer are chosen by the same probe for all seeds."""

    paper = "anatomy"
    parts = ("inventory", "probes", "converged", "controlled", "tunings", "along")

    @classmethod
    def seeds_of(cls, part: str, size: Size, given: Sequence[int]) -> tuple[int, ...]:
        every = tuple(given) or size.seeds
        return every[:1] if part == "along" else every

    def inventory(self) -> list[Job]:
        """Tables 1 and 2."""
        tasks = {name: data_of(name, self.at, whole=True) for name in self.size.probes}
        common = {"model": self.model, "weights": weights_of(self.model, self.at)}
        return [self._job("inventory", "inventory", common | {"tasks": tasks, "limit": self.size.limit})]

    def probes(self) -> list[Job]:
        """Tables 3 and 5, Figures 3 and 5 to 7."""
        return [self._job("probed", f"probe {task}", self._common(task, self.size.limit)) for task in self.size.probes]

    def converged(self) -> list[Job]:
        """The same probes at their optimum."""
        if not self.size.converged:
            return []
        way = {"protocol": "sklearn", "options": {}}
        common = {task: self._common(task, self.size.limit) | way for task in self.size.probes}
        return [self._job("probed", f"converged probe {task}", config) for task, config in common.items()]

    def controlled(self) -> list[Job]:
        """Standardized, converged probes of the best heads and of their controls."""
        way = {"protocol": "sklearn", "options": dict(self.size.standardized), "draws": self.size.draws}
        return [
            self._job("controlled", f"controlled probe {task}", self._common(task, self.size.limit) | way)
            for task in self.size.probes
        ]

    def tunings(self) -> list[Job]:
        """Table 4 and Figure 4."""
        made = []
        for task in self.size.tuning:
            plan = plain(asdict(self.size.plan.with_(seed=self.seed)))
            config = self._common(task, self.size.tuning_limit) | {"plan": plan, "split": self.size.split}
            made.append(self._job("tuned", f"fine-tune {task} seed {self.seed}", config))
        return made

    def along(self) -> list[Job]:
        """Beyond the paper: Figure 4 at several points of a training, in its first seed."""
        made = []
        for task in self.size.tuning:
            plan = plain(asdict(self.size.plan.with_(seed=self.seed)))
            config = self._common(task, self.size.tuning_limit) | {"plan": plan, "fractions": list(self.size.along)}
            made.append(self._job("along", f"heads along fine-tuning {task} seed {self.seed}", config))
        return made

    def _common(self, task: str, limit: int | None) -> dict[str, Any]:
        s, rows = self.size, data_of(task, self.at, whole=True)  # probes are evaluated on test rows
        config = {"model": self.model, "weights": weights_of(self.model, self.at), "task": task, "data": rows}
        way = {"protocol": s.protocol, "options": dict(s.options), "at": POSITION.get(self.model), "seed": 0}
        return config | way | {"limit": limit, "max_length": s.max_length}

    def _job(self, work: str, title: str, config: dict[str, Any]) -> Job:
        return self.job(work, f"{self.model} {title}", config)
