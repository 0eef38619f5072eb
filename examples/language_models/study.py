"""Heads of two language models as they are: which tasks need which heads, and what the wording of a prompt changes.

Nothing is trained. Tasks are minimal pairs, prompts with examples, questions and copying; heads are scored by one
backward pass, closed in three ways, and pushed open and closed by causal head gating. Three seeds draw the examples of
the prompts and choose their wording.

    python -m examples.language_models --model NAME=FOLDER ... --data FOLDER --out runs/language_models
    python -m examples.language_models --records results/language_models.parquet --pages docs/results  # the page alone

Records that exist are not made again, so an interrupted run resumes where it stopped. With --processes 4 several
processes share an accelerator; each takes the next job that nobody has.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from headwise.io.records import Results
from headwise.tasks.builders import copying
from headwise.tasks.kinds.generation import Continuation
from headwise.tasks.lookup import get
from headwise.tasks.task import Row, Source, Task

BLIMP = ("blimp.subject_verb_agreement", "blimp.filler_gap_dependency", "blimp.npi_licensing")
PROMPTED = {"sst2": 4, "agnews": 4, "rte": 2}  # and how many examples a prompt shows at most
QUESTIONS = ("xquad_en", "xquad_es")
CLOSE = ("zero", "mean", "resample")
SEEDS = (1, 2, 3)


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    train: int | None  # training rows, which scores, examples of prompts and means come from; None is all
    intact: int | None  # rows of a task without lesions
    examples: int  # training rows for importance
    lesioned: int  # rows of a task under lesions
    fractions: tuple[float, ...]  # closed in the first seed by zero and mean; elsewhere ALPHA alone
    random: int  # random head sets
    matched: int  # random head sets with as many heads in every layer, for each task; first seed, zero and mean
    shots: int
    steps: int  # of causal head gating; 0 leaves it out
    seeds: tuple[int, ...] = SEEDS
    tasks: tuple[str, ...] = ()  # all of them
    close: tuple[str, ...] = CLOSE
    short: int = 1000  # characters of the longest text that is asked about
    closed: tuple[str, ...] = ()  # tasks under lesions; all of them


ALPHA = 0.1
QUICK = 6  # tasks with short prompts, whose gates are fitted before the other seeds are measured
TOKENS = 4096  # in a pass on an accelerator, whose memory several processes share: 16 GB for gemma's gradients
FEW = (*BLIMP, "sst2", "agnews", *QUESTIONS, "copying")  # rte is left out: neither model answers it
SIZES = {
    "full": Size(4000, None, 2000, 400, (0.05, 0.1, 0.2), 30, 20, 4, 150),
    "medium": Size(2000, None, 512, 200, (0.1,), 20, 5, 4, 100),
    "small": Size(64, 32, 32, 32, (0.1,), 12, 0, 0, 0, SEEDS, FEW, short=500),
    "tiny": Size(8, 16, 8, 8, (0.1,), 2, 0, 0, 2, (1, 2)),
}
SIZES["least"] = replace(SIZES["small"], seeds=SEEDS[:1], closed=(*BLIMP, "sst2", "agnews", "copying"))


class Job(NamedTuple):
    """One record to make."""

    name: str
    make: Callable[[], Any]
    needs: str = ""  # another job, which some other process may be at


@dataclass(frozen=True)
class FewToTrain:
    """A task's rows with a few of training, drawn evenly over the file."""

    source: Source
    rows: int

    def read(self, split: str) -> list[Row]:
        rows = self.source.read(split)
        return rows[:: max(1, len(rows) // self.rows)][: self.rows] if split == "train" else rows

    @property
    def splits(self) -> list[str]:
        return ["train", "dev"]

    @property
    def origin(self) -> str:
        return f"{self.source.origin}; {self.rows} training rows"


@dataclass(frozen=True)
class RightAnswers:
    """Questions about short texts whose right answer is a text that may follow: how likely is it?"""

    source: Source
    short: int  # characters of the longest text

    def read(self, split: str) -> list[Row]:
        rows = [row for row in self.source.read(split) if len(row["context"]) <= self.short]
        return [{"prompt": row["prompt"], "target": row["answers"][0]} for row in rows]

    @property
    def splits(self) -> list[str]:
        return ["train", "dev"]

    @property
    def origin(self) -> str:
        return f"{self.source.origin}; texts of at most {self.short} characters"


def tasks_of(seed: int, size: Size, data: Path) -> list[Task]:
    """The tasks with one seed's wording and examples; minimal pairs are the same for all seeds."""
    how = f"@prompt+phrasing{seed}"
    made = [get(name, data) for name in BLIMP]
    for name, most in PROMPTED.items():
        shots = min(most, size.shots)
        shown = f"+shots{shots}+seed{seed}" if shots else ""
        made.append(replace(get(f"{name}{how}+calibrated{shown}", data), name=name))
    for name in QUESTIONS:
        asked = get(f"{name}{how}", data)
        answers = RightAnswers(asked.source, size.short)
        made.append(Task(name, Continuation("token"), answers, "token_probability", asked.language))
    made.append(replace(copying(seed=seed), name="copying"))
    made = [task for task in made if not size.tasks or task.name in size.tasks]
    return made if size.train is None else [replace(t, source=FewToTrain(t.source, size.train), _read={}) for t in made]


class Study:
    """The records of one model, made where they are missing."""

    def __init__(self, name: str, folder: str, results: Results, size: Size, data: Path, device: str, dtype: str):
        self.name, self.results, self.size, self.data = name, results, size, data
        self.folder, self.device, self.dtype = folder, device, dtype
        self.tokens = None if device == "cpu" else TOKENS
        self.subjects: dict[int, Any] = {}
        self.known: dict[int, Any] = {}  # identities, which take a second each

    def subject(self, seed: int) -> Any:
        from headwise.models.language import LanguageModel

        if seed not in self.subjects:
            long = {"long": "left"}  # a few texts are long: their beginning is cut, and the record says how many
            tasks = tasks_of(seed, self.size, self.data)
            model = opened(self.folder, self.device, self.dtype)
            self.subjects[seed] = LanguageModel(*model, tasks, reading=long, max_length=1024)
        return self.subjects[seed]

    def recorded(self, work: str, seed: int, more: dict[str, Any], make: Callable[[], Any]) -> Any:
        from headwise.io.identity import identity

        subject = self.subject(seed)
        if seed not in self.known:
            parts = {"model": subject, "form": subject.form, "tokenizer": subject.tokenizer}
            self.known[seed] = identity({**parts, "data": dict(subject.tasks)})
        config = {"model": self.name, "seed": seed, "dtype": self.dtype, **more, "of": self.known[seed]}
        record = self.results.find(work, config)
        if record is None:
            start = time.perf_counter()
            result, arrays = make()
            beside = {"seconds": round(time.perf_counter() - start, 1)}
            print(f"{self.name} {seed} {work} {more}: {beside['seconds']} s", flush=True)
            self.results.save(work, config, result, arrays, beside=beside)
            record = self.results.find(work, config)
        return record

    def intact(self, seed: int) -> None:
        def make() -> Any:
            from headwise.measuring.evaluate import evaluate
            from headwise.study.evidence import against_baseline

            subject, scores = self.subject(seed), {}
            for task in subject.tasks:
                score = evaluate(subject, task, limit=self.size.intact, tokens=self.tokens)
                scores[task] = against_baseline(score) | {"answers": [list(pair) for pair in score.answers.values()]}
                if score.answers:
                    scores[task]["margin"] = score.on("margin").value
            return scores, {}

        self.recorded("intact", seed, {"rows": self.size.intact}, make)

    def scores(self, seed: int) -> dict[str, Any]:
        import torch

        def make() -> Any:
            from headwise.scoring.importance import importance

            subject, measured = self.subject(seed), {}
            for task in subject.tasks:
                measured[task] = importance(subject, task, examples=self.size.examples, tokens=self.tokens, log=print)
            arrays = {}
            for task, result in measured.items():
                arrays |= {f"{task}/scores": result.scores.numpy(), f"{task}/signed": result.signed.numpy()}
                arrays[f"{task}/signed_stderr"] = result.signed_stderr.numpy()
            about = {
                task: {"examples": r.examples, "harmful": int(r.harmful.sum()), "split_half": r.split_half(ALPHA)}
                for task, r in measured.items()
            }
            return {"heads": list(self.subject(seed).attention.shape), "tasks": about}, arrays

        record = self.recorded("importance", seed, {"examples": self.size.examples}, make)
        return {task: torch.from_numpy(record.arrays[f"{task}/scores"].copy()) for task in self.subject(seed).tasks}

    def lesions(self, seed: int, close: str) -> None:
        size, scores = self.size, self.scores(seed)
        main = seed == size.seeds[0] and close != "resample"
        fractions, matched = (size.fractions, size.matched) if main else ((ALPHA,), 0)

        def make() -> Any:
            from headwise.dissociation.lesions import dissociate

            how = {"random": size.random, "matched": matched, "alpha": ALPHA, "limit": size.lesioned, "log": print}
            own = {task: scores[task] for task in size.closed or scores}
            made = dissociate(self.subject(seed), own, fractions, close=close, undefined="leave", **how)
            return made.to_record() | {"tasks": list(made.tasks)}, {}

        more = {"close": close, "rows": size.lesioned, "fractions": fractions, "random": size.random}
        more |= {"tasks": list(size.closed)} if size.closed else {}
        self.recorded("lesions", seed, more | {"matched": matched, "alpha": ALPHA}, make)

    def gating(self, seed: int, task: str) -> None:
        def make() -> Any:
            from headwise.scoring.importance import importance

            how = {"steps": self.size.steps, "tokens": self.tokens, "log": print}
            gates: Any = importance(self.subject(seed), task, "causal_gating", **how)
            names = ("signed", "signed_stderr", "opened", "closed")
            return {"roles": gates.roles()}, {name: getattr(gates, name).numpy() for name in names}

        self.recorded("gating", seed, {"task": task, "steps": self.size.steps}, make)

    def jobs(self) -> list[Job]:
        """What is to be done, the most telling first."""
        first, *others = self.size.seeds
        due = self._measured(first)
        due += [self._job(first, "lesions", self.lesions, close) for close in self.size.close]
        tasks = sorted(tasks_of(first, self.size, self.data), key=_length)
        gated, rest = [self._job(first, "gating", self.gating, t.name) for t in tasks if self.size.steps], []
        for seed in others:
            rest += [*self._measured(seed), self._job(seed, "lesions", self.lesions, "zero")]
        return [*due, *gated[:QUICK], *rest, *gated[QUICK:]]

    def _measured(self, seed: int) -> list[Job]:
        return [self._job(seed, "scores", self.scores), self._job(seed, "intact", self.intact)]

    def _job(self, seed: int, work: str, make: Callable[..., Any], *more: str) -> Job:
        here = f"{self.name}-{self.size.lesioned}-{seed}"
        return Job("-".join([here, work, *more]), partial(make, seed, *more), f"{here}-scores" * (work == "lesions"))


def _length(task: Task) -> float:
    """Characters of a task's first prompts, which say how long it takes."""
    rows = task.rows("dev")[:16]
    return sum(len(str(row)) for row in rows) / len(rows)


@cache
def opened(folder: str, device: str, dtype: str) -> tuple[Any, Any]:
    """A model and its tokenizer, loaded once in a process."""
    import torch

    from headwise.models.loading import load_language_model

    model, tokenizer = load_language_model(folder)
    return model.to(device=device, dtype=getattr(torch, dtype)), tokenizer
