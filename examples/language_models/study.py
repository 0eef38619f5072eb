"""Heads of two language models as they are: which tasks need which heads, and what the wording of a prompt changes.

Nothing is trained. Tasks are minimal pairs, prompts with examples, questions and copying; heads are scored by one
backward pass, closed in three ways, and pushed open and closed by causal head gating. Three seeds draw the examples of
the prompts and choose their wording.

    python -m examples.language_models --model NAME=FOLDER ... --data FOLDER --out runs/language_models
    python -m examples.language_models --records results/language_models.parquet --pages docs/results  # the page alone

Records that exist are not made again, so an interrupted run resumes where it stopped.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from examples.language_models.page import COMMAND, Page

from headwise.io.records import Results
from headwise.papers.pages import pages
from headwise.tasks.kinds.continuation import Continuation
from headwise.tasks.lookup import get
from headwise.tasks.prompts.copying import copying
from headwise.tasks.task import Row, Source, Task

BLIMP = ("blimp.subject_verb_agreement", "blimp.filler_gap_dependency", "blimp.npi_licensing")
PROMPTED = ("sst2", "agnews", "rte")
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
    fractions: tuple[float, ...]
    random: int  # random head sets
    matched: int  # random head sets with as many heads in every layer, for each task
    shots: int
    steps: int  # of causal head gating
    seeds: tuple[int, ...] = SEEDS


ALPHA = 0.1
SIZES = {
    "full": Size(None, None, 2000, 400, (0.05, 0.1, 0.2), 30, 10, 4, 150),
    "small": Size(24, 32, 16, 16, (0.1,), 10, 0, 0, 20, (1,)),
    "tiny": Size(8, 16, 8, 8, (0.1,), 2, 0, 0, 2, (1, 2)),
}


@dataclass(frozen=True)
class FewToTrain:
    """A task's rows with a few of training, drawn evenly over the file."""

    source: Source
    rows: int

    def read(self, split: str) -> list[Row]:
        found = self.source.read(split)
        return found[:: max(1, len(found) // self.rows)][: self.rows] if split == "train" else found

    @property
    def splits(self) -> list[str]:
        return ["train", "dev"]

    @property
    def origin(self) -> str:
        return f"{self.source.origin}; {self.rows} training rows"


@dataclass(frozen=True)
class RightAnswers:
    """Questions whose right answer is a text that may follow: how likely is it?"""

    source: Source

    def read(self, split: str) -> list[Row]:
        return [{"prompt": row["prompt"], "target": row["answers"][0]} for row in self.source.read(split)]

    @property
    def splits(self) -> list[str]:
        return ["train", "dev"]

    @property
    def origin(self) -> str:
        return self.source.origin


def tasks_of(seed: int, size: Size, data: Path) -> list[Task]:
    """The tasks with one seed's wording and examples; minimal pairs are the same for all seeds."""
    how = f"@prompt+phrasing{seed}"
    shown = f"{how}+shots{size.shots}+seed{seed}" if size.shots else how
    made = [get(name, data) for name in BLIMP]
    made += [replace(get(f"{name}{shown}", data), name=name) for name in PROMPTED]
    for name in QUESTIONS:
        asked = get(f"{name}{how}", data)
        answers = RightAnswers(asked.source)
        made.append(Task(name, Continuation("token"), answers, "token_probability", asked.language))
    made.append(replace(copying(seed=seed), name="copying"))
    return made if size.train is None else [replace(t, source=FewToTrain(t.source, size.train), _read={}) for t in made]


class Study:
    """The records of one model, made where they are missing."""

    def __init__(self, name: str, folder: str, results: Results, size: Size, data: Path, device: str, dtype: str):
        from headwise.models.loading import load_language_model

        self.name, self.results, self.size, self.data = name, results, size, data
        model, self.tokenizer = load_language_model(folder)
        self.dtype = dtype
        self.model = model.to(device=device, dtype=_dtypes()[dtype])
        self.subjects: dict[int, Any] = {}
        self.known: dict[int, Any] = {}  # identities, which take a second each

    def subject(self, seed: int) -> Any:
        from headwise.models.language import LanguageModel

        if seed not in self.subjects:
            long = {"long": "left"}  # a few texts are long: their beginning is cut, and the record says how many
            tasks = tasks_of(seed, self.size, self.data)
            self.subjects[seed] = LanguageModel(self.model, self.tokenizer, tasks, reading=long, max_length=1024)
        return self.subjects[seed]

    def recorded(self, work: str, seed: int, more: dict[str, Any], make: Callable[[], Any]) -> Any:
        from headwise.io.identity import identity

        subject = self.subject(seed)
        if seed not in self.known:
            parts = {"model": subject, "form": subject.form, "tokenizer": self.tokenizer}
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
            from headwise.measuring.baseline import against_baseline
            from headwise.measuring.evaluate import evaluate

            subject, found = self.subject(seed), {}
            for task in subject.tasks:
                score = evaluate(subject, task, limit=self.size.intact)
                found[task] = against_baseline(score) | {"answers": [list(pair) for pair in score.answers.values()]}
                if score.answers:
                    found[task]["margin"] = score.on("margin").value
            return found, {}

        self.recorded("intact", seed, {"rows": self.size.intact}, make)

    def scores(self, seed: int) -> dict[str, Any]:
        import torch

        def make() -> Any:
            from headwise.scoring.importance import importance

            subject, found = self.subject(seed), {}
            for task in subject.tasks:
                found[task] = importance(subject, task, examples=self.size.examples, log=print)
            arrays = {}
            for task, result in found.items():
                arrays |= {f"{task}/scores": result.scores.numpy(), f"{task}/signed": result.signed.numpy()}
                arrays[f"{task}/signed_stderr"] = result.signed_stderr.numpy()
            about = {
                task: {"examples": r.examples, "harmful": int(r.harmful.sum()), "split_half": r.split_half(ALPHA)}
                for task, r in found.items()
            }
            return {"heads": list(self.subject(seed).attention.shape), "tasks": about}, arrays

        record = self.recorded("importance", seed, {"examples": self.size.examples}, make)
        return {task: torch.from_numpy(record.arrays[f"{task}/scores"].copy()) for task in self.subject(seed).tasks}

    def lesions(self, seed: int, close: str) -> None:
        scores, size = self.scores(seed), self.size

        def make() -> Any:
            from headwise.dissociation.lesions import dissociate

            how = {"random": size.random, "matched": size.matched, "alpha": ALPHA, "limit": size.lesioned}
            made = dissociate(self.subject(seed), scores, size.fractions, close=close, undefined="leave", **how)
            return made.to_record() | {"tasks": list(made.tasks)}, {}

        more = {"close": close, "rows": size.lesioned, "fractions": size.fractions, "random": size.random}
        self.recorded("lesions", seed, more | {"matched": size.matched, "alpha": ALPHA}, make)

    def gating(self, seed: int, task: str) -> None:
        def make() -> Any:
            from headwise.scoring.importance import importance

            found: Any = importance(self.subject(seed), task, "causal_gating", steps=self.size.steps, log=print)
            names = ("signed", "signed_stderr", "opened", "closed")
            return {"roles": found.roles()}, {name: getattr(found, name).numpy() for name in names}

        self.recorded("gating", seed, {"task": task, "steps": self.size.steps}, make)

    def jobs(self) -> Iterator[Callable[[], Any]]:
        """What is to be done, the most telling first."""
        first, *others = self.size.seeds
        yield lambda: self.intact(first)
        yield lambda: self.scores(first)
        for close in CLOSE:
            yield lambda close=close: self.lesions(first, close)
        for task in self.subject(first).tasks:
            yield lambda task=task: self.gating(first, task)
        for seed in others:
            yield lambda seed=seed: (self.intact(seed), self.scores(seed))
            yield lambda seed=seed: self.lesions(seed, "zero")


def _dtypes() -> dict[str, Any]:
    import torch

    return {"float32": torch.float32, "bfloat16": torch.bfloat16}


def measure(models: dict[str, str], out: Path, size: Size, args: argparse.Namespace) -> Path:
    """All models, job by job in turn; what is there is packed after every job, and nothing begins past the deadline."""
    import torch

    if args.device == "cuda":
        torch.set_float32_matmul_precision("high")
    results, start = Results(out / "records"), time.perf_counter()
    packed = out / "language_models.parquet"
    for record in Results(args.resume) if args.resume else ():
        made = (record.work, record.config, record.result, dict(record.arrays))
        results.save(*made, beside=record.about, version=record.version)
    studies = [Study(*each, results, size, args.data, args.device, args.dtype) for each in models.items()]
    for turn in zip(*(study.jobs() for study in studies), strict=True):
        for job in turn:
            if args.seconds and time.perf_counter() - start > args.seconds:
                print("out of time: run again to resume", flush=True)
                return packed
            try:
                job()
            except Exception as error:  # the others are independent of it; run again to try again
                print(f"failed: {type(error).__name__}: {error}", flush=True)
            results.pack(packed)
    print("complete", flush=True)
    return packed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", action="append", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--data", type=Path, help="the folder of data sets")
    parser.add_argument("--out", type=Path, default=Path("runs/language_models"))
    parser.add_argument("--size", choices=SIZES, default="full")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--seconds", type=float, help="begin no job after so many seconds")
    parser.add_argument("--resume", type=Path, help="a file of records to start from")
    parser.add_argument("--records", type=Path, help="write the page of these records instead")
    parser.add_argument("--pages", type=Path)
    args = parser.parse_args()
    if args.records:
        print(pages(Page(), Results(args.records), args.pages, COMMAND))
        return
    models = dict(entry.split("=", 1) for entry in args.model)
    print(measure(models, args.out, SIZES[args.size], args))


if __name__ == "__main__":
    main()
