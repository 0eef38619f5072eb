"""The jobs of the MESH recipe: Table I, pruning and recovery, meta-tests, and languages against tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from headwise.errors import HeadwiseError
from headwise.experiments.jobs import Job
from headwise.experiments.works import weights_of
from headwise.io.files import plain
from headwise.io.identity import data
from headwise.models.causality import pooling_by_name
from headwise.papers import recipe
from headwise.papers.mesh.pairs import LANGUAGES, pairs_of
from headwise.papers.mesh.retrieval import translations
from headwise.papers.mesh.works import found_pair
from headwise.training.plan import Plan

Pairs = tuple[str, ...]
ROWS: dict[str, dict[str, Any] | None] = {  # Table I, and the combination described in the text
    "multi-task": None,
    "prune least important 30 %": {"prune": 0.3},
    "train random 30 %": {"train": 0.3, "train_by": "random"},
    "train most important 30 %": {"train": 0.3},
    "prune least 30 %, train most important 30 %": {"prune": 0.3, "train": 0.3},
}
WHAT = ("a new pair", "a new language", "a new task", "a new task and language")


def held(languages: Sequence[str] = LANGUAGES, source: str = "published") -> dict[str, tuple[Pairs, Pairs]]:
    """Pairs to train on and pairs held out for the meta-test; the last language is the new one.

    Example:
        >>> held()["a new task and language"]
        (('nli_en', 'qa_en', 'ner_en'), ('pa_es',))
    """
    pairs, new = pairs_of(languages, source), f"_{languages[-1]}"
    old, pa = (tuple(p for p in pairs if not p.endswith(new)), tuple(p for p in pairs if p.startswith("pa_")))
    splits = {
        "a new pair": (tuple(p for p in pairs if p != f"nli{new}"), (f"nli{new}",)),
        "a new language": (old, (f"nli{new}", f"ner{new}")),
        "a new task": (tuple(p for p in pairs if p not in pa), pa),
        "a new task and language": (tuple(p for p in old if p not in pa), (f"pa{new}",)),
    }
    there = {what: (trained, tuple(p for p in out if p in pairs)) for what, (trained, out) in splits.items()}
    return {what: (trained, out) for what, (trained, out) in there.items() if trained and out}


STARTS: dict[str, dict[str, Any]] = {  # starting points of meta-tests
    "multi-task": {"algorithm": "multitask"},
    "fomaml": {"algorithm": "fomaml"},
    "reptile": {"algorithm": "reptile"},
    "anil": {"algorithm": "anil"},
    "maml": {"algorithm": "maml"},
    "fomaml, gates": {"algorithm": "fomaml", "gates": "sigmoid", "gates_each": "language"},
    "fomaml, gates, pruned": {
        **{"algorithm": "fomaml", "gates": "sigmoid", "gates_each": "language"},
        **{"trim": {"prune": 0.3, "train": 0.3, "each": "language"}},
    },
}
BEYOND: dict[str, dict[str, Any]] = {  # after the paper's future work, and what each is set against
    "fomaml": STARTS["fomaml"],
    "fomaml, pruned by support": {"algorithm": "fomaml", "support": {"prune": 0.3}},
    "fomaml, gates": STARTS["fomaml, gates"],
    "fomaml, gates by input": {"algorithm": "fomaml", "gates": "input", "gates_each": "language"},
}
BASE = Plan(evaluate_every=0, checkpoint_every=0, sampling="temperature", clip=1.0)


@dataclass(frozen=True)
class Size:
    """How much of everything."""

    source: str
    plan: Plan
    outer: Plan  # of meta-training
    recovery: Mapping[str, Any]  # of the plan, after pruning
    inner: Mapping[str, Any] = field(default_factory=lambda: {"steps": 3, "support": 16, "rates": 1e-2})
    rows: Mapping[str, int] | None = None
    starts: tuple[str, ...] = tuple(STARTS)
    beyond: tuple[str, ...] = WHAT[:2]  # how pairs are held out where more than the paper's is tried
    held: tuple[str, ...] = WHAT
    languages: tuple[str, ...] = LANGUAGES
    seeds: tuple[int, ...] = (0, 1, 2)
    delta: float = 0.3
    examples: int = 10_000
    dev: int | None = None
    fractions: tuple[float, ...] = (0.1, 0.3, 0.5)
    pruned: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    prune_by: tuple[str, ...] = ("least", "random", "most")
    thirds: float = 0.2
    shots: tuple[int, ...] = (4, 8, 16, 32)
    sets: int = 10
    adapt: Mapping[str, Any] = field(default_factory=lambda: {"steps": 20, "tuning": 2, "rates": [1e-3, 1e-2, 1e-1]})
    adapt_dev: int | None = 500
    max_length: int = 128


SIZES = {
    "smoke": Size(
        source="corpus",
        rows={"train": 96, "dev": 24},
        plan=BASE.with_(steps=30, lr=3e-3, head_lr=1e-2, batch_size=16),
        outer=BASE.with_(steps=8, lr=2e-3, head_lr=5e-3, batch_size=12, accumulate=2, window="mixed"),
        recovery={"steps": 3},
        inner={"steps": 2, "support": 6, "rates": 1e-2},
        starts=("multi-task", "fomaml", "maml", "fomaml, gates, pruned"),
        beyond=WHAT[:1],
        held=("a new pair", "a new task and language"),
        seeds=(0,),
        examples=24,
        dev=24,
        fractions=(0.3,),
        pruned=(0.3, 0.6),
        prune_by=("least", "random"),
        shots=(4, 8),
        sets=2,
        adapt={"steps": 3, "tuning": 1, "rates": [1e-2, 1e-1]},
        adapt_dev=24,
        max_length=48,
    ),
    "small": Size(
        source="samples",
        plan=BASE.with_(epochs=3, lr=5e-5, head_lr=1e-3, max_examples=4000, precision="bf16"),
        outer=BASE.with_(
            steps=200, lr=5e-5, head_lr=1e-3, accumulate=4, window="mixed", max_examples=4000, precision="bf16"
        ),
        recovery={"epochs": 10, "max_examples": 400},
        starts=("multi-task", "fomaml", "reptile", "anil", "maml", "fomaml, gates, pruned"),
        pruned=(0.1, 0.3, 0.5, 0.7, 0.9),
        examples=1000,
        dev=1000,
        sets=5,
        adapt={"steps": 20, "tuning": 1, "rates": [1e-3, 1e-2, 1e-1]},
        adapt_dev=300,
        max_length=192,
    ),
    "full": Size(
        source="published",
        plan=BASE.with_(epochs=3),
        outer=BASE.with_(epochs=3, lr=1e-5, accumulate=8, window="mixed"),
        recovery={"epochs": 10},
        max_length=256,
    ),
}
HUB = {"bert": "google-bert/bert-base-uncased", "mbert": "google-bert/bert-base-multilingual-cased"}


class Build(recipe.Build):
    """The jobs of one model and one seed."""

    paper = "mesh"
    parts = ("table", "recovery", "meta_tests", "apart", "retrieval", "beyond")

    @property
    def pairs(self) -> Pairs:
        """All existing task-language pairs."""
        return pairs_of(self.size.languages, self.size.source)

    def table(self) -> list[Job]:
        """Table I: all pairs trained together, plainly and with heads closed or frozen."""
        return [self._row(name) for name in ROWS]

    def _row(self, name: str) -> Job:
        trim = ROWS[name]
        closing = {"trim": self._trim(**trim, delta=self.size.delta)} if trim else {}
        method = {"algorithm": "multitask", **closing}
        return self._train("table", name, self.pairs, self.size.plan, method, keep=not trim)

    def recovery(self) -> list[Job]:
        """Close heads of the trained model, then train ten epochs without them."""
        base, plan = self._row("multi-task"), self.size.plan.with_(**self.size.recovery)
        trims = [{"prune": f, "prune_by": by} for by in self.size.prune_by for f in self.size.pruned]
        trims += [{"prune": self.size.thirds, "where": where} for where in ("bottom", "middle", "top")]
        jobs = []
        for trim in trims:
            name = " ".join(str(value) for value in trim.values())
            method = {"algorithm": "multitask", "trim": self._trim(**trim, delta=1.0)}
            jobs.append(self._train("recovery", name, self.pairs, plan, method, start=base))
        return jobs

    def meta_tests(self) -> list[Job]:
        """Every starting point with every choice of held-out pairs."""
        return self._from({name: STARTS[name] for name in self.size.starts}, self.size.held)

    def beyond(self) -> list[Job]:
        """Beyond the paper: gates that depend on the input, heads pruned by the new pair's own examples."""
        return self._from({"multi-task": STARTS["multi-task"], **BEYOND}, self.size.beyond)

    def _from(self, starts: Mapping[str, Mapping[str, Any]], ways: Sequence[str]) -> list[Job]:
        jobs = []
        out = held(self.size.languages, self.size.source)
        for what in (what for what in ways if what in out):
            pairs, new = out[what]
            for name, start in starts.items():
                settings = dict(start)
                if "trim" in settings:
                    settings["trim"] = self._trim(**settings["trim"], delta=self.size.delta)
                few = settings.pop("support", {})
                method = {**self.size.inner, **settings}
                jobs.append(self._train("meta", f"{what}: {name}", pairs, self.size.outer, method, held=new, few=few))
        return jobs

    def apart(self) -> list[Job]:
        """Languages and tasks, in the model trained on all pairs."""
        s, base = self.size, self._row("multi-task")
        config = {"of": base.key, "training": base.config, "examples": s.examples, "fractions": list(s.fractions)}
        config |= {"random": None, "dev": s.dev, "seed": self.seed, "model": self.model}
        return [self.job("apart", f"languages and tasks {self.model} seed {self.seed}", config, base)]

    def retrieval(self) -> list[Job]:
        """XTREME's sentence retrieval, where its files lie in the data folder."""
        translated = translations(self.at.get("data"), self.size.languages)
        if not translated:
            return []
        rows = {each.name: each.digest for each in translated}
        config = {"model": self.model, "weights": weights_of(self.model, self.at), "data": rows, "seed": self.seed}
        config |= {"languages": list(self.size.languages), "max_length": self.size.max_length}
        return [self.job("retrieved", f"retrieval {self.model} seed {self.seed}", config)]

    def _trim(self, **trim: Any) -> dict[str, Any]:
        return {**trim, "examples": self.size.examples}

    def _train(
        self,
        part: str,
        name: str,
        pairs: Sequence[str],
        plan: Plan,
        method: Mapping[str, Any],
        held: Sequence[str] = (),
        start: Job | None = None,
        keep: bool = False,
        few: Mapping[str, Any] | None = None,
    ) -> Job:
        s = self.size
        config: dict[str, Any] = {
            "part": part,
            "name": name,
            "model": self.model,
            "weights": weights_of(self.model, self.at),
        }
        config |= {"source": s.source, "rows": dict(s.rows) if s.rows else None}
        config |= {} if s.languages == LANGUAGES else {"languages": list(s.languages)}  # keys of en and es stay
        config |= {"pairs": self._digests(pairs, config), "held": self._digests(held, config)}
        config |= {"plan": plain(asdict(plan.with_(seed=self.seed))), "method": dict(method), "keep": keep}
        config |= {
            "pooling": pooling_by_name(self.model, self.at[self.model]),
            "max_length": s.max_length,
            "dev": s.dev,
            "start": start.key if start else None,
        }
        adapt = {**s.adapt, "shots": list(s.shots), "sets": s.sets, "dev": s.adapt_dev, **(few or {})}
        config |= {"adapt": adapt} if held else {}
        title = f"{part} {name} {self.model} seed {self.seed}"
        return self.job("train", title, config, *((start,) if start else ()))

    def _digests(self, pairs: Sequence[str], config: Mapping[str, Any]) -> dict[str, str | None]:
        return {name: digest_of(name, config, self.at) for name in pairs}


_digests: dict[tuple, str | None] = {}


def digest_of(name: str, config: Mapping[str, Any], at: Mapping[str, str]) -> str | None:
    """The hash of a pair's rows, read once; None for data that is not on this machine."""
    where = (name, config["source"], at.get("data"), str(config["rows"]), str(config.get("languages")))
    if where not in _digests:
        try:
            _digests[where] = data(found_pair(name, config, at))
        except HeadwiseError:
            _digests[where] = None
    return _digests[where]
