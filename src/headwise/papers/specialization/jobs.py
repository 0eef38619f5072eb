"""The jobs of the specialization recipe: what is trained, lesioned, transferred and compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import Any

from headwise.experiments.jobs import Job
from headwise.experiments.works import lesioning, training
from headwise.io.files import plain
from headwise.models.causality import pooling_by_name
from headwise.papers import recipe
from headwise.papers.specialization.mtdnn import PLAN as MTDNN_PLAN
from headwise.papers.specialization.settings import CONTROLS, HUB, OWN, RELEASED, STARTS, UNSAID, Size
from headwise.training.plan import Plan


class Build(recipe.Build):
    """The jobs of one model and one seed."""

    paper = "specialization"
    parts = (
        *("inventory", "five", "five_iat", "estimators", "permutation", "closings", "rounds", "frozen", "pairs"),
        *(
            "paired_news",
            "annealed",
            "alike",
            "proportional",
            "singles",
            "ticket_share",
            "prune_least",
            "mtdnn",
            "distilled",
        ),
        *("sweep_delta", "sweep_alpha", "released", "conditions", "own", "variants", "glue_lesions", "few_shot"),
        *("grid", "untuned", "strict", "unsaid", "submission", "compared"),
    )

    def __init__(self, size: Size, model: str, at: Mapping[str, str], seed: int, seeds: Sequence[int]):
        super().__init__(size, model, at, seed, seeds)
        self.plan = size.plan.with_(seed=seed)
        self.pooling = pooling_by_name(model, at[model])

    @classmethod
    def seeds_of(cls, part: str, size: Size, given: Sequence[int]) -> tuple[int, ...]:
        if part == "compared":
            return () if given else size.more
        every = tuple(given) or size.seeds
        return every[:1] if part == "inventory" else every

    def inventory(self) -> list[Job]:
        """Tables 1 and 2, once for a model."""
        used = self.train("inventory", dict.fromkeys((*self.size.five, *self.size.glue, *self.size.few))).config
        return [self._job("inventory", "inventory", weights=used["weights"], tasks=used["tasks"])]

    def compared(self) -> list[Job]:
        """Plain training, IAT and our own methods, over more seeds."""
        return self._with_mismatched([*(job for change in self.size.own for job in self._under(change)), *self._own()])

    # -- training and lesions

    def train(self, part: str, tasks: Iterable[str], plan: Plan | None = None, **rest: Any) -> Job:
        tasks = list(tasks)
        named = f" {'+'.join(tasks)}" if len(tasks) < 3 else ""
        at = {**self.at, "title": f"{part} {self.model}{named} seed {self.seed}"}
        shape = {"pooling": self.pooling, "max_length": self.size.max_length, "dev": self.size.measured}
        return training(self.model, tasks, plan or self.plan, at=at, **shape, **rest)

    def lesion(self, job: Job, **options: Any) -> Job:
        s = self.size
        given = {"examples": s.examples, "fractions": s.fractions, "dev": s.dev, "random": s.random, "seed": self.seed}
        return lesioning(job, **{**given, **options})

    def pairs(self) -> list[Job]:
        """Figure 2 and Table 9."""
        return [self.lesion(self.train("pairs", pair)) for pair in combinations(self.size.five, 2)]

    def paired_news(self) -> list[Job]:
        """Table 4: the same news as single texts and as pairs, each with a task of pairs and one of single texts."""
        single, paired, two = self.size.other
        sets = [(news, task) for task in (two, self.size.five[-1]) for news in (single, paired) if news]
        order = {frozenset(pair): pair for pair in combinations(self.size.five, 2)}
        return [self.lesion(self.train("pairs", order.get(frozenset(pair), pair))) for pair in sets]

    def frozen(self) -> list[Job]:
        """The control: output heads trained on an encoder that stays as it is."""
        plan = self.plan.with_(train="heads")
        sets = [*combinations(self.size.five, 2), self.size.five]
        return [self.lesion(self.train("frozen", tasks, plan)) for tasks in sets]

    def five(self) -> list[Job]:
        """Tables 3, 10 and 11, Figure 4."""
        return [self.lesion(self._five())]

    def five_iat(self) -> list[Job]:
        """The same after important-head training."""
        return [self.lesion(self.train("five IAT", self.size.five, method=self._iat(), branch=self._five()))]

    def estimators(self) -> list[Job]:
        """Every importance estimator on the model of all tasks."""
        s, job = self.size, self._five()
        common = {"of": job.key, "training": job.config, "examples": s.estimate, "dev": s.null_dev}
        common |= {"fractions": list(s.fractions), "seed": self.seed}
        return [self._job("estimator", f"estimator {by}", job, **common, by=by) for by in s.estimators]

    def permutation(self) -> list[Job]:
        """The permutation test of D: the tasks' heads dealt anew."""
        s, job, (lesions,) = self.size, self._five(), self.five()
        null = {"lesions": lesions.key, "fraction": 0.3, "draws": s.draws, "dev": s.null_dev, "seed": self.seed}
        return [self._job("relabelling", "permutation", job, lesions, of=job.key, training=job.config, **null)]

    def closings(self) -> list[Job]:
        """The same lesions with heads closed to zero, to their mean output and to another row's."""
        job, (lesions,) = self._five(), self.five()
        how = {"closes": ["zero", "mean", "resample"], "fraction": 0.3, "dev": self.size.null_dev, "seed": self.seed}
        return [
            self._job("closings", "closings", job, lesions, of=job.key, training=job.config, lesions=lesions.key, **how)
        ]

    def rounds(self) -> list[Job]:
        """Pruning with importance estimated anew after every cut."""
        s, job = self.size, self._five()
        cut = {"by": "gradient", "step": 0.1, "until": 0.9, "examples": s.estimate, "dev": s.null_dev}
        ways = {"rounds": cut, "rounds, most important first": cut | {"first": "most"}}
        return [self._job("rounds", name, job, of=job.key, training=job.config, **way) for name, way in ways.items()]

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

    def annealed(self) -> list[Job]:
        """Plain training and IAT with annealed sampling: Tables 5, 7 and 13."""
        return self._with_mismatched(self._main("annealed"))

    def proportional(self) -> list[Job]:
        """The same with proportional sampling: Tables 12 and 13."""
        return self._with_mismatched(self._main("proportional"))

    def _main(self, sampling: str) -> list[Job]:
        return [self._plain(sampling), self._glue("IAT", self._iat(), sampling)]

    def singles(self) -> list[Job]:
        """Every task of GLUE alone: Table 5."""
        return self._with_mismatched([self._single(task) for task in self.size.glue])

    def variants(self) -> list[Job]:
        """Table 7: random and least important heads in place of the most important, and gradients zeroed."""
        return self._with_mismatched([self._glue(f"IAT {c} {f}", self._iat(choose=c, freeze=f)) for c, f in _VARIANTS])

    def glue_lesions(self) -> list[Job]:
        """Figure 8: D of GLUE's tasks at α = 0.3, with and without IAT."""
        return [self.lesion(job, fractions=(0.3,)) for job in self._main("annealed")]

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

    def ticket_share(self) -> list[Job]:
        """Ticket-Share, which is IAT from the first step on."""
        return self._with_mismatched([self._glue("ticket-share", self._iat(delta=1.0))])

    def prune_least(self) -> list[Job]:
        """Table 7: the least important heads pruned for the last part of training."""
        least = {"name": "prune_least", "alpha": 0.3, "delta": 0.1, "examples": self.size.examples}
        return self._with_mismatched([self._glue("prune least", least)])

    def mtdnn(self) -> list[Job]:
        """MT-DNN, a start of few-shot transfer."""
        plan = self._glue_plan().with_(clip=MTDNN_PLAN.clip, sampling=MTDNN_PLAN.sampling)
        return [self._job("mtdnn", "glue mt-dnn", **self._shape(), plan=plain(asdict(plan)))]

    def distilled(self) -> list[Job]:
        """A student of every second layer, taught by the plainly trained model; TinyBERT by a tuned BERT base."""
        teacher = self._teacher()._plain()
        taught = {"plan": plain(asdict(self._glue_plan())), "of": teacher.key, "training": teacher.config, "share": 0.4}
        taught |= {"whole": True} if self.model in STUDENTS else {}
        return [self._job("distilled", "glue distilled", teacher, **self._shape(), **taught)]

    def _teacher(self) -> Build:
        """The jobs of the model that teaches this one: of another where the paper prescribes it."""
        name = STUDENTS.get(self.model, self.model)
        at = {**self.at, name: self.at.get(name, HUB.get(name, name))}
        return type(self)(self.size, name, at, self.seed, self.seeds)

    def _shape(self) -> dict[str, Any]:
        config = self._plain().config
        shape = {"weights": config["weights"], "tasks": config["tasks"], "pooling": self.pooling}
        return shape | {"max_length": self.size.max_length, "mismatched": list(self.size.mismatched)}

    def sweep_delta(self) -> list[Job]:
        """Figure 9: δ at α = 0.5."""
        return self._swept(self._iat(alpha=0.5, delta=delta) for delta in self.size.deltas)

    def sweep_alpha(self) -> list[Job]:
        """Figure 10: α at δ = 0.1."""
        return self._swept(self._iat(alpha=alpha) for alpha in self.size.alphas)

    def grid(self) -> list[Job]:
        """Appendix F: every δ with every α, of which the paper takes the best for each model."""
        return self._swept(self._iat(alpha=a, delta=d) for d in self.size.grid[0] for a in self.size.grid[1])

    def _swept(self, methods: Iterable[dict[str, Any]]) -> list[Job]:
        named = [self._glue(f"IAT α {m['alpha']} δ {m['delta']}", m) for m in methods]
        return self._with_mismatched(named)

    def untuned(self) -> list[Job]:
        """IAT whose α and δ come from importance and from when it settles, in place of a grid."""
        method = self._iat() | {"alpha": "half", "delta": "settled"}
        plan = self._glue_plan()
        return self._with_mismatched([self.train("glue annealed IAT untuned", self.size.glue, plan, method=method)])

    def strict(self) -> list[Job]:
        """The strict reading of IAT: the rows of the output projection are held as well."""
        return self._with_mismatched([self._glue("IAT qkvo", self._iat(params="qkvo"))])

    def released(self) -> list[Job]:
        """The released program's departures from the paper, one after another."""
        common = {"name": "iat_released", "alpha": 0.3, "delta": 0.1, "examples": self.size.examples}
        every = RELEASED | CONTROLS
        jobs = [self._glue(f"released: {what}", {**common, **switches}) for what, switches in every.items()]
        return self._with_mismatched(jobs)

    def unsaid(self) -> list[Job]:
        """Plain training and IAT under settings of the released program that the paper does not name."""
        return self._with_mismatched([job for name in UNSAID for job in self._unsaid(name)])

    def _unsaid(self, name: str) -> list[Job]:
        setting, plan = UNSAID[name], self._glue_plan().with_(**UNSAID[name].get("plan", {}))
        common = {"name": "released_settings", "examples": self.size.examples, **setting.get("method", {})}
        shape, made = setting.get("shape", {}), list[Job]()
        for what, alpha in (("plain", 1.0), ("IAT", 0.3)):
            branch = {"branch": made[0]} if made else {"marks": (0.1,)}
            method = {**common, "alpha": alpha, **({"delta": 0.1} if made else {})}
            title = f"glue annealed {name}: {what}"
            made.append(self.train(title, self.size.glue, plan, method=method, **shape, **branch))
        return made

    def own(self) -> list[Job]:
        """Methods beyond the paper."""
        return self._with_mismatched(self._own())

    def _own(self) -> list[Job]:
        every = [(change, what) for change in self.size.own for what in OWN]
        return [self._glue(f"{what}{_named(change)}", OWN[what], **change) for change, what in every]

    def conditions(self) -> list[Job]:
        """When does IAT help? Plain training and IAT with other learning rates, schedules and amounts of data."""
        usual = self._glue_plan()
        changes = [change for change in self.size.conditions if usual.with_(**change) != usual]
        return self._with_mismatched([job for change in changes for job in self._under(change)])

    def _under(self, change: Mapping[str, Any]) -> list[Job]:
        """Plain training and important-head training with a changed plan."""
        if not change:
            return self._main("annealed")
        plan, suffix = self._glue_plan().with_(**change), _named(change)
        plain_job = self.train(f"glue{suffix} plain", self.size.glue, plan, marks=(0.1,))
        held = self.train(f"glue{suffix} IAT", self.size.glue, plan, method=self._iat(), branch=plain_job)
        return [plain_job, held]

    def _with_mismatched(self, jobs: Iterable[Job]) -> list[Job]:
        return [other for job in jobs for other in (job, *self._mismatched(job))]

    def _mismatched(self, job: Job) -> list[Job]:
        task, head = self.size.mismatched
        if not task or head not in job.config["tasks"] or job.work != "train":
            return []
        config = {"of": job.key, "training": job.config, "task": task, "head": head}
        return [self._job("mismatched", f"{job.title} on {task}", job, **config)]

    def submission(self) -> list[Job]:
        """Files for the GLUE server, where GLUE's own folder with its test sets is the data."""
        if not self.at.get("data") or not (Path(self.at["data"]) / "CoLA" / "test.tsv").is_file():
            return []
        made = [job for sampling in ("proportional", "annealed") for job in self._main(sampling)]
        return [self._job("submission", f"submit {j.title}", j, of=j.key, training=j.config) for j in made]

    def few_shot(self) -> list[Job]:
        """Tables 6 and 8: every starting point, its few-shot seeds shared out over the seeds of the trainings."""
        s = self.size
        random = self._glue("IAT random update", self._iat(choose="random"))
        iat, (mtdnn,) = self._glue("IAT", self._iat()), self.mtdnn()
        ticket = self._glue("ticket-share", self._iat(delta=1.0))
        starts = dict(zip(STARTS, (self._plain(), iat, random, ticket, mtdnn)))
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
        config = {"model": self.model, **config}
        return self.job(work, f"{title} {self.model} seed {self.seed}", config, *after)


STUDENTS = {"tinybert": "bert-base"}  # models that are distilled under another
_VARIANTS = (("random", "update"), ("bottom", "update"), ("top", "grad"))


def _named(change: Mapping[str, Any]) -> str:
    return "".join(f" {name} {value if isinstance(value, str) else f'{value:g}'}" for name, value in change.items())
