"""The jobs of the specialization recipe: what is trained, lesioned, transferred and compared, at three sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from headwise.dissociation.lesions import GRID
from headwise.experiments.jobs import Job
from headwise.experiments.works import lesioning, training
from headwise.io.files import plain
from headwise.models.causality import pooling_by_name
from headwise.papers.recipe import Scale
from headwise.papers.specialization.mtdnn import PLAN as MTDNN_PLAN
from headwise.papers.specialization.transfer import PLAN as SHOT_PLAN
from headwise.papers.specialization.transfer import SHOTS
from headwise.training.plan import Plan

ESTIMATORS = (
    *("gradient", "token", "batch", "weight", "fisher", "taylor", "ablation", "mean_ablation", "all_but_one", "l0"),
    *("random", "magnitude", "confidence"),
)
RELEASED: dict[str, dict[str, Any]] = {  # from the paper's method to the released program, one departure after another
    "gradients zeroed": {"freeze": "grad", "by": "gradient", "leak": False, "dropout": True},
    "+ scored per token": {"freeze": "grad", "by": "token", "last_layer": "tokens", "leak": False, "dropout": True},
    "+ last layer undivided": {"freeze": "grad", "by": "token", "last_layer": "none", "leak": False, "dropout": True},
    "+ dropout off": {"freeze": "grad", "by": "token", "last_layer": "none", "leak": False, "dropout": False},
    "+ gradients left over": {"freeze": "grad", "by": "token", "last_layer": "none", "leak": True, "dropout": False},
}
CONTROLS: dict[str, dict[str, Any]] = {  # of the released program, where all heads are trained on
    "dropout off alone": {"alpha": 1.0, "freeze": "grad", "by": "gradient", "leak": False, "dropout": False},
}
OWN: dict[str, dict[str, Any]] = {  # beyond the paper
    "a rate per head and task": {"name": "rates", "power": 1.0, "start": 0.2},
    "a factor per head and task": {"name": "scales", "lr": 0.003},
    "a factor per head and task, faster": {"name": "scales", "lr": 0.03},
    "a factor per layer and task, faster": {"name": "scales", "lr": 0.03, "tied": "heads"},
    "a factor per head, faster": {"name": "scales", "lr": 0.03, "tied": "tasks"},
}
STARTS = ("multi", "iat", "random heads", "ticket-share", "mt-dnn")  # of few-shot transfer
BASE = Plan(evaluate_every=0, checkpoint_every=0)


@dataclass(frozen=True)
class Size:
    """What a size of the recipe trains on, and how much of it."""

    five: tuple[str, ...]
    glue: tuple[str, ...]
    few: tuple[str, ...]
    texts: str  # whose sentences the similarity of tasks is measured on
    plan: Plan
    other: tuple[str, str, str] = ("", "", "")  # AG, AG-Pair, and a task of pairs to train either with
    mismatched: tuple[str, str] = ("", "")  # another development set, and the task whose output head answers it
    seeds: tuple[int, ...] = (0, 1, 2)
    more: tuple[int, ...] = ()  # seeds of plain training, IAT and our own methods alone
    examples: int = 10_000
    fractions: tuple[float, ...] = GRID
    dev: int | None = None
    estimators: tuple[str, ...] = ESTIMATORS
    estimate: int = 500  # examples of the comparison of estimators
    draws: int = 99
    null_dev: int | None = 400
    sentences: int = 1000
    onto: Mapping[str, Any] = field(default_factory=lambda: {"epochs": 1, "max_examples": 1000})
    shots: tuple[int, ...] = SHOTS
    few_seeds: int = 30
    few_dev: int | None = 1000
    shot_plan: Plan = SHOT_PLAN
    alphas: tuple[float, ...] = (0.1, 0.3, 0.5, 0.7, 0.9)
    deltas: tuple[float, ...] = (0.05, 0.1, 0.15, 0.2, 0.3)
    conditions: tuple[Mapping[str, Any], ...] = ()  # changes of the plan under which IAT is tried as well
    own: tuple[Mapping[str, Any], ...] = ({},)  # those under which our own methods are
    max_length: int = 128


FIVE = ("mnli", "qqp", "qnli", "agnews", "sst2")
GLUE = ("cola", "mnli", "mrpc", "qnli", "qqp", "rte", "sst2", "stsb")
REAL: dict[str, Any] = {"five": FIVE, "glue": GLUE, "few": ("scitail", "imdb"), "other": ("agnews", "agpair", "qnli")}
CORPUS_FIVE = ("corpus.entailment", "corpus.entailment.es", "corpus.topic", "corpus.sentiment")  # four will do there
CORPUS_GLUE = ("corpus.acceptability", "corpus.entailment", "corpus.sentiment", "corpus.similarity")
SIZES = {
    "smoke": Size(
        five=CORPUS_FIVE,
        glue=CORPUS_GLUE,
        few=("corpus.topic",),
        other=("corpus.topic", "corpus.entailment", "corpus.entailment.es"),
        texts="corpus",
        plan=BASE.with_(steps=20, lr=2e-3, head_lr=5e-3, max_examples=240, batch_size=16),
        seeds=(0,),
        examples=48,
        fractions=(0.1, 0.3, 0.5),
        dev=60,
        estimators=("gradient", "token", "ablation", "random"),
        estimate=32,
        draws=9,
        null_dev=40,
        sentences=40,
        onto={"steps": 4},
        shots=(4, 8),
        few_seeds=3,
        few_dev=80,
        shot_plan=SHOT_PLAN.with_(steps=4, lr=1e-3),
        alphas=(0.1, 0.3),
        deltas=(0.1, 0.3),
        conditions=({"lr": 1e-3},),
        max_length=32,
    ),
    "small": Size(
        **REAL,
        mismatched=("mnli_mm", "mnli"),
        texts="xquad_en",
        plan=BASE.with_(epochs=3, lr=5e-5, head_lr=1e-3, max_examples=10_000, precision="bf16"),
        more=(3, 4),
        examples=2000,
        dev=1000,
        shot_plan=SHOT_PLAN.with_(lr=5e-5, head_lr=1e-3),
        conditions=(
            *({"max_examples": rows, "lr": lr} for rows in (2000, 10_000) for lr in (2e-5, 5e-5, 1e-4)),
            {"clip": 1.0},
            {"schedule": "constant"},  # linear decay leaves the last tenth of training a twentieth of the rate
        ),
        own=({}, {"clip": 1.0}),
    ),
    "full": Size(**REAL, mismatched=("mnli_mm", "mnli"), texts="squad_v11", plan=BASE, max_length=256, few_dev=None),
}
HUB = {  # the paper's models
    "bert-base": "google-bert/bert-base-uncased",
    "gpt": "openai-community/openai-gpt",
    "gpt2-medium": "openai-community/gpt2-medium",
    "tinybert": "huawei-noah/TinyBERT_General_6L_768D",
    "bert-large": "google-bert/bert-large-uncased",
    "roberta-base": "FacebookAI/roberta-base",
    "deberta-v3-base": "microsoft/deberta-v3-base",
}


def jobs(scale: Scale) -> list[Job]:
    """Everything to run at a scale; the paper's other models take part in the pairs and in GLUE only.

    Part after part, each with all its seeds: a run that is stopped early has whole tables.
    """
    made: list[Job] = []
    size, seeds = SIZES[scale.size], scale.seeds or SIZES[scale.size].seeds
    for number, (model, where) in enumerate(scale.encoders(HUB).items()):
        at = {**scale.at, model: where}
        builds = [Build(size, model, seed, seeds, at) for seed in seeds]
        parts = [build.everything() if scale.size != "full" or not number else build.published() for build in builds]
        made += [job for part in zip(*parts) for of_seed in part for job in of_seed]
        for seed in () if scale.seeds else size.more:
            made += Build(size, model, seed, seeds, at).compared()
    return made


class Build:
    """The jobs of one model and one seed."""

    def __init__(self, size: Size, model: str, seed: int, seeds: Sequence[int], at: Mapping[str, str]):
        self.size, self.model, self.seed, self.seeds, self.at = size, model, seed, seeds, at
        self.plan = size.plan.with_(seed=seed)
        self.pooling = pooling_by_name(model, at[model])

    def everything(self) -> list[list[Job]]:
        """All parts, the main results first."""
        first = [self._inventory(), self.five(), self.frozen(), self.pairs(), self.main("annealed")]
        return [*first, self.alike(), self.glue(), self.few_shot()]

    def _inventory(self) -> list[Job]:
        """Tables 1 and 2, once for a model."""
        if self.seed != self.seeds[0]:
            return []
        used = self.train("inventory", dict.fromkeys((*self.size.five, *self.size.glue, *self.size.few))).config
        return [self._job("inventory", "inventory", weights=used["weights"], tasks=used["tasks"])]

    def published(self) -> list[list[Job]]:
        """What the paper has for every model: the pairs, and GLUE plain and with IAT (not for decoders)."""
        decoder = self.pooling == "last"
        tables = [] if decoder else [self.main(s) for s in ("proportional", "annealed")]
        return [self.pairs(), *tables]

    def compared(self) -> list[Job]:
        """Plain training, IAT and our own methods."""
        return self._with_mismatched([*(job for change in self.size.own for job in self._under(change)), *self._own()])

    # -- training and lesions

    def train(self, part: str, tasks: Iterable[str], plan: Plan | None = None, **rest: Any) -> Job:
        tasks = list(tasks)
        named = f" {'+'.join(tasks)}" if len(tasks) < 3 else ""
        at = {**self.at, "title": f"{part} {self.model}{named} seed {self.seed}"}
        shape = {"pooling": self.pooling, "max_length": self.size.max_length}
        return training(self.model, tasks, plan or self.plan, at=at, **shape, **rest)

    def lesion(self, job: Job, **options: Any) -> Job:
        s = self.size
        given = {"examples": s.examples, "fractions": s.fractions, "dev": s.dev, "seed": self.seed}
        return lesioning(job, **{**given, **options})

    def pairs(self) -> list[Job]:
        """Figure 2 and Table 9; and Table 4, which pairs AG-Pair with a task of pairs and one of single texts."""
        s = self.size
        sets = [*combinations(s.five, 2), *((s.other[1], task) for task in (s.other[2], s.five[-1]) if s.other[1])]
        return [self.lesion(self.train("pairs", pair)) for pair in sets]

    def frozen(self) -> list[Job]:
        """The control: output heads trained on an encoder that stays as it is."""
        plan = self.plan.with_(train="heads")
        sets = [*combinations(self.size.five, 2), self.size.five]
        return [self.lesion(self.train("frozen", tasks, plan)) for tasks in sets]

    def five(self) -> list[Job]:
        """Tables 3, 10 and 11, Figures 4 and 8; estimators, permutations and rounds on the same model."""
        s, job = self.size, self._five()
        held = self.train("five IAT", s.five, method=self._iat(), branch=job)
        lesions, common = self.lesion(job), {"of": job.key, "training": job.config}
        made = [lesions, self.lesion(held)]
        made += [
            self._job("estimator", f"estimator {by}", job, **common, by=by, examples=s.estimate, dev=s.null_dev,
                      fractions=list(s.fractions), seed=self.seed)
            for by in s.estimators
        ]  # fmt: skip
        null = {"lesions": lesions.key, "fraction": 0.3, "draws": s.draws, "dev": s.null_dev, "seed": self.seed}
        made.append(self._job("relabelling", "permutation", job, lesions, **common, **null))
        cut = {"by": "gradient", "step": 0.1, "until": 0.9, "examples": s.estimate, "dev": s.null_dev}
        return [*made, self._job("rounds", "rounds", job, **common, **cut)]

    def _five(self) -> Job:
        return self.train("five", self.size.five, marks=(0.1,))

    def alike(self) -> list[Job]:
        """Figures 3 and 5 to 7: similarity of tasks by single-task models, and by transfer between them."""
        s, alone = self.size, {name: self._single(name) for name in self.size.five}
        trainings = {"trainings": {name: job.config for name, job in alone.items()}}
        of = {name: job.key for name, job in alone.items()}
        common = {"of": of, **trainings, "texts": s.texts, "count": s.sentences, "seed": self.seed}
        made = [self._job("likeness", "similarity", *alone.values(), **common)]
        plan = plain(asdict(self.plan.with_(**s.onto)))
        for target in s.five:
            sources = {name: key for name, key in of.items() if name != target}
            config = {"target": target, "of": sources, **trainings, "plan": plan, "dev": s.dev, "seed": self.seed}
            made.append(self._job("onto", f"similarity onto {target}", *alone.values(), **config))
        return made

    def _single(self, task: str) -> Job:
        return self.train("single", [task])

    # -- GLUE

    def glue(self) -> list[Job]:
        """Tables 5, 7, 12 and 13, Figures 9 and 10, and the released code step by step."""
        made = [job for sampling in ("proportional", "annealed") for job in self.main(sampling)]
        made += [self._single(task) for task in self.size.glue]
        made += [*self.baselines().values(), *self._sweeps(), *self._released(), *self._conditions(), *self._own()]
        made += [self._glue(f"IAT {c} {f}", self._iat(choose=c, freeze=f)) for c, f in _VARIANTS]
        return self._with_mismatched(made) + self._submission()

    def main(self, sampling: str) -> list[Job]:
        """Plain training and important-head training."""
        return [self._plain(sampling), self._glue("IAT", self._iat(), sampling)]

    def _glue_plan(self, sampling: str = "annealed") -> Plan:
        return self.plan.with_(sampling=sampling)

    def _plain(self, sampling: str = "annealed") -> Job:
        marks = tuple(dict.fromkeys((0.1, *self.size.deltas)))
        return self.train(f"glue {sampling} plain", self.size.glue, self._glue_plan(sampling), marks=marks)

    def _glue(self, what: str, method: dict[str, Any], sampling: str = "annealed", **change: Any) -> Job:
        """A training by a method that branches off from plain training where its last part begins."""
        branch = self._plain(sampling) if method.get("delta", 1.0) < 1.0 and not change else None
        plan = self._glue_plan(sampling).with_(**change)
        return self.train(f"glue {sampling} {what}", self.size.glue, plan, method=method, branch=branch)

    def _iat(self, alpha: float = 0.3, delta: float = 0.1, **rest: Any) -> dict[str, Any]:
        given = {"choose": "top", "freeze": "update", **rest}
        return {"name": "iat", "alpha": alpha, "delta": delta, "examples": self.size.examples, **given}

    def baselines(self) -> dict[str, Job]:
        """Ticket-Share, pruning, MT-DNN and the distilled student."""
        least = {"name": "prune_least", "alpha": 0.3, "delta": 0.1, "examples": self.size.examples}
        plan, config = self._glue_plan(), self._plain().config
        shape = {"weights": config["weights"], "tasks": config["tasks"], "pooling": self.pooling}
        shape |= {"max_length": self.size.max_length, "mismatched": list(self.size.mismatched)}
        own = plain(asdict(plan.with_(clip=MTDNN_PLAN.clip, sampling=MTDNN_PLAN.sampling)))
        teacher = self._plain()
        taught = {"plan": plain(asdict(plan)), "of": teacher.key, "training": teacher.config, "share": 0.4}
        return {
            "ticket-share": self._glue("ticket-share", self._iat(delta=1.0)),
            "prune-least": self._glue("prune least", least),
            "mt-dnn": self._job("mtdnn", "glue mt-dnn", **shape, plan=own),
            "distilled": self._job("distilled", "glue distilled", teacher, **shape, **taught),
        }

    def _sweeps(self) -> list[Job]:
        """Figure 9: δ at α = 0.5; Figure 10: α at δ = 0.1."""
        over = [self._iat(alpha=0.5, delta=delta) for delta in self.size.deltas]
        over += [self._iat(alpha=alpha) for alpha in self.size.alphas]
        return [self._glue(f"IAT α {m['alpha']} δ {m['delta']}", m) for m in over]

    def _released(self) -> list[Job]:
        common = {"name": "iat_released", "alpha": 0.3, "delta": 0.1, "examples": self.size.examples}
        every = RELEASED | CONTROLS
        return [self._glue(f"released: {what}", {**common, **switches}) for what, switches in every.items()]

    def _own(self) -> list[Job]:
        every = [(change, what) for change in self.size.own for what in OWN]
        return [self._glue(f"{what}{_told(change)}", OWN[what], **change) for change, what in every]

    def _conditions(self) -> list[Job]:
        """When does important-head training help? Plain and IAT under other learning rates and amounts of data."""
        usual = self._glue_plan()
        changes = [change for change in self.size.conditions if usual.with_(**change) != usual]
        return [job for change in changes for job in self._under(change)]

    def _under(self, change: Mapping[str, Any]) -> list[Job]:
        """Plain training and important-head training with a changed plan."""
        if not change:
            return self.main("annealed")
        plan, told = self._glue_plan().with_(**change), _told(change)
        plain_job = self.train(f"glue{told} plain", self.size.glue, plan, marks=(0.1,))
        held = self.train(f"glue{told} IAT", self.size.glue, plan, method=self._iat(), branch=plain_job)
        return [plain_job, held]

    def _with_mismatched(self, jobs: Iterable[Job]) -> list[Job]:
        return [other for job in jobs for other in (job, *self._mismatched(job))]

    def _mismatched(self, job: Job) -> list[Job]:
        task, head = self.size.mismatched
        if not task or head not in job.config["tasks"] or job.work != "train":
            return []
        config = {"of": job.key, "training": job.config, "task": task, "head": head}
        return [self._job("mismatched", f"{job.title} on {task}", job, **config)]

    def _submission(self) -> list[Job]:
        """Files for the GLUE server, where GLUE's own folder with its test sets is the data."""
        if not self.at.get("data") or not (Path(self.at["data"]) / "CoLA" / "test.tsv").is_file():
            return []
        made = [job for sampling in ("proportional", "annealed") for job in self.main(sampling)]
        return [self._job("submission", f"submit {j.title}", j, of=j.key, training=j.config) for j in made]

    def few_shot(self) -> list[Job]:
        """Tables 6 and 8: every starting point, its few-shot seeds shared out over the seeds of the trainings."""
        s, others = self.size, self.baselines()
        random = self._glue("IAT random update", self._iat(choose="random"))
        iat = self._glue("IAT", self._iat())
        starts = dict(zip(STARTS, (self._plain(), iat, random, others["ticket-share"], others["mt-dnn"])))
        turns = list(range(list(self.seeds).index(self.seed), s.few_seeds, len(self.seeds)))
        common = {"shots": list(s.shots), "seeds": turns, "plan": plain(asdict(s.shot_plan)), "dev": s.few_dev}
        return [
            self._job("few_shot", f"few-shot {task} from {name}", job, of=job.key, training=job.config, start=name,
                      task=task, data=self._single(task).config["tasks"][task], **common)
            for task in s.few
            for name, job in starts.items()
        ]  # fmt: skip

    # -- jobs of this recipe's own works

    def _job(self, work: str, title: str, *after: Job, **config: Any) -> Job:
        at = {**self.at, "title": f"{title} {self.model} seed {self.seed}"}
        return Job(f"specialization.{work}", {"model": self.model, **config}, at, after)


_VARIANTS = (("random", "update"), ("bottom", "update"), ("top", "grad"))


def _told(change: Mapping[str, Any]) -> str:
    return "".join(f" {name} {value if isinstance(value, str) else f'{value:g}'}" for name, value in change.items())
