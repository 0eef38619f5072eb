"""Run many jobs locally or on a Ray cluster; finished jobs are never run again."""

from __future__ import annotations

import math
import os
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import product
from pathlib import Path
from typing import Any

from headwise.errors import HeadwiseError, unknown
from headwise.experiments.executors import LOST, UNBEGUN, Engine, engines, log_of
from headwise.experiments.jobs import Job, Place, grid, in_order
from headwise.io.display import Shown, plot_curves
from headwise.io.files import locked, write_json
from headwise.io.records import Results, scores_of
from headwise.io.system import raised
from headwise.io.text import read_toml

LOSSES = 10  # workers of a cluster that a job may lose before that counts as its failure

OnChange = Callable[[Job, str, str], None]
"""Called when a job changes state: the job, one of `STATES`, and a detail."""
STATES = ("waiting", "found", "running", "done", "again", "failed", "skipped")


@dataclass
class Swept(Shown):
    """The result of a sweep: its records and the jobs that failed."""

    results: Results
    done: list[Job] = field(default_factory=list)
    failed: dict[str, tuple[Job, str]] = field(default_factory=dict)
    """The failed jobs by key, with the last line of the error."""

    @property
    def scores(self) -> dict[str, dict[str, float]]:
        """What each finished job scored, by its title; jobs that measure nothing are not in it."""
        by_title = {job.title: scores_of(self.results[job.key]) for job in self.done}
        return {title: scores for title, scores in by_title.items() if scores}

    def to_records(self) -> list[dict[str, Any]]:
        """One record per job that scored."""
        return [{"job": title, **scores} for title, scores in self.scores.items()]

    def plot(self, ax: Any = None) -> Any:
        """The scores of every job, a line for each task; returns matplotlib axes."""
        tasks = dict.fromkeys(task for scores in self.scores.values() for task in scores)
        curves = {task: [scores.get(task, math.nan) for scores in self.scores.values()] for task in tasks}
        return plot_curves(list(self.scores), curves, None, ax, ylabel="score")

    def __str__(self) -> str:
        lines = [f"{len(self.done)} jobs done, {len(self.failed)} not: records in {self.results.root}"]
        return "\n".join([*lines, *(f"  {job.title}: {error}" for job, error in self.failed.values())])


def run(
    jobs: Sequence[Job],
    out: str | Path,
    engine: str = "local",
    *,
    workers: int | None = None,
    retries: int = 1,
    device: str | None = None,
    address: str | None = None,
    keep: str = "all",
    on_change: OnChange = lambda job, state, word: None,
) -> Swept:
    """Run all jobs and their dependencies; jobs with a record are not run again.

    Args:
        jobs: from a recipe or `read`.
        out: folder for records, models, logs and failures.
        engine: "local" (processes) or "ray".
        workers: parallel jobs (default: one per core, or eight sharing an accelerator).
        retries: how often a job is retried after its process died or it failed for a reason other than its input. On
            Ray, jobs also survive ten lost workers or nodes each.
        device: "cpu" keeps jobs off the accelerator.
        address: of a running Ray cluster (default: a temporary one is started).
        keep: the models to keep once no job needs them: all, none, or the best of those trained on the same tasks, by
            mean score. With best and none, checkpoints and logs of finished jobs are removed too.
        on_change: called for every change of state.

    Example:
        >>> swept = run(read("grid.toml"), out="runs/grid")
    """
    root, everything = Path(out), in_order(jobs)
    if engine not in engines:
        raise unknown("engine", engine, engines)
    if workers is not None and workers < 1:
        raise HeadwiseError(f"{workers} workers", "1 or more")
    swept = Swept(Results(root / "records"))
    tidying = Tidying(root, keep, everything)
    queue = _Queue(_unfinished(everything, swept, on_change))
    finished = {job.key for job in swept.done}
    for job in swept.done:
        tidying.done(job, finished)
    if queue.left:
        pool = engines[engine](root, _workers(device) if workers is None else workers, device, address)
        _work_off(pool, queue, root, retries, swept, tidying, on_change)
    tidying.finish({job.key for job in swept.done})
    return swept


def _work_off(
    pool: Engine, queue: _Queue, root: Path, retries: int, swept: Swept, tidying: Tidying, on_change: OnChange
) -> None:
    """Run the jobs of a queue."""
    tries, lost, finished = Counter[str](), Counter[str](), {job.key for job in swept.done}
    with ExitStack() as stack:
        stack.callback(pool.stop)
        stack.enter_context(raised())
        while queue.left:
            while pool.free() and (job := queue.next()):
                pool.submit(job)
                on_change(job, "running", "")
            for job, error in pool.finished():
                crowded = len(queue.running) > 1 and "OutOfMemoryError" in _last_line(error)
                lost[job.key] += error.startswith(LOST)
                free = error == UNBEGUN or (error.startswith(LOST) and lost[job.key] <= LOSSES)
                tries[job.key] += not crowded and not free
                if error and (free or tries[job.key] <= retries) and not _final(error):
                    on_change(job, "again", _last_line(error))
                    queue.later(job) if crowded else queue.again(job)
                    continue
                _note(root, job, error, swept, on_change)
                if not error:
                    finished.add(job.key)
                    tidying.done(job, finished)
                for given_up in queue.ended(job, bool(error)):
                    why = "skipped: a dependency failed"
                    swept.failed[given_up.key] = (given_up, why)
                    on_change(given_up, "skipped", why)


def _unfinished(everything: Sequence[Job], swept: Swept, on_change: OnChange) -> dict[str, Job]:
    """Jobs without a record, and jobs whose model is required by them but no longer exists."""
    asked, left, rerun = set(), {}, set()
    for job in reversed(everything):
        known = job.key in swept.results  # a million records are not read to see that they are there
        if not known or (job.key in asked and Place(job, swept.results.root.parent).lost(swept.results[job.key])):
            left[job.key] = job
            asked |= {before.key for before in job.after}
            if known:
                rerun.add(job.key)
    for job in everything:
        if job.key not in left:
            swept.done.append(job)
        if job.key in rerun:
            on_change(job, "again", "its model no longer exists and another job needs it; its record is kept")
        on_change(job, "waiting" if job.key in left else "found", "")
    return {job.key: job for job in everything if job.key in left}


class _Queue:
    """Unfinished jobs in order, and which of them can start."""

    def __init__(self, jobs: Mapping[str, Job]):
        self.left, self.running = dict(jobs), set[str]()
        self._place = {key: place for place, key in enumerate(jobs)}
        self._behind: dict[str, list[Job]] = {}
        for job in jobs.values():
            for before in dict.fromkeys(one.key for one in job.after):
                self._behind.setdefault(before, []).append(job)
        self._able = [place for key, place in self._place.items() if not self._waits(jobs[key])]  # sorted, hence a heap
        self._crowded: list[Job] = []
        self._jobs = list(jobs.values())

    def _waits(self, job: Job) -> bool:
        return any(before.key in self.left for before in job.after)

    def next(self) -> Job | None:
        """Take the first job whose dependencies are done; it is now running."""
        if not self.running:
            self._make_way()
        if not self._able:
            return None
        job = self._jobs[heappop(self._able)]
        self.running.add(job.key)
        return job

    def again(self, job: Job) -> None:
        """Make a job available, for the first time or again."""
        self.running.discard(job.key)
        heappush(self._able, self._place[job.key])

    def later(self, job: Job) -> None:
        """Make a job available again after another job has ended and freed its memory."""
        self.running.discard(job.key)
        self._crowded.append(job)

    def _make_way(self) -> None:
        crowded, self._crowded = self._crowded, []
        for job in crowded:
            self.again(job)

    def ended(self, job: Job, failed: bool) -> list[Job]:
        """Remove a job; if it failed, remove and return all jobs that depend on it."""
        del self.left[job.key]
        self.running.discard(job.key)
        self._make_way()
        dependents = [dependent for dependent in self._behind.get(job.key, ()) if dependent.key in self.left]
        if not failed:
            for dependent in dependents:
                if not self._waits(dependent):
                    self.again(dependent)
            return []
        given_up: list[Job] = []
        for dependent in dependents:
            if dependent.key in self.left:  # not already removed
                given_up += [dependent, *self.ended(dependent, True)]
        return given_up


def _note(root: Path, job: Job, error: str, swept: Swept, on_change: OnChange) -> None:
    """Record the outcome of a job."""
    paper = root / "failed" / f"{job.key}.json"
    if not error:
        paper.unlink(missing_ok=True)
        swept.done.append(job)
        on_change(job, "done", "")
        return
    swept.failed[job.key] = (job, _last_line(error))
    write_json(paper, {"job": job.to_record(), "error": error, "log": str(log_of(root, job))})
    on_change(job, "failed", _last_line(error))


def _final(error: str) -> bool:
    """Whether a retry is pointless because the job's input was rejected."""
    return _last_line(error).startswith(("headwise.errors.", "HeadwiseError"))


def _last_line(error: str) -> str:
    return error.strip().splitlines()[-1] if error.strip() else ""


def _workers(device: str | None) -> int:
    import torch

    if device != "cpu" and torch.cuda.is_available():
        return min(8, os.cpu_count() or 1)  # small encoders use a fraction of an accelerator
    return os.cpu_count() or 1


def read(path: str | Path, data: str | None = None, seed: int | None = None) -> list[Job]:
    """The jobs of a TOML file: a ``work``, its ``[config]``, the axes of a ``[grid]`` and folders under ``[at]``.

    Example file:
        work = "train"
        [config]
        model = "bert-base-uncased"
        tasks = ["sst2", "qnli"]
        plan = { epochs = 1 }
        [grid]
        "plan.seed" = [0, 1, 2]
    """
    said = read_toml(path, "sweep", 'work = "train"')
    for name in said:
        if name not in ("work", "config", "grid", "at"):
            raise unknown(f"part of {path}", name, ("work", "config", "grid", "at"))
        if name != "work" and not isinstance(said[name], dict):
            raise HeadwiseError(f"{name} = {said[name]!r} in {path}", f"a table [{name}]")
    from headwise.experiments.works import asked

    at = {**said.get("at", {}), **({"data": data} if data else {})}
    work = said.get("work", "train")
    for name, value in {"work": work, **at}.items():
        if not isinstance(value, str):
            raise HeadwiseError(f"{name} = {value!r} in {path}", "a text", f'{name} = "…"')
    axes = {name: values for name, values in said.get("grid", {}).items() if seed is None or name != "plan.seed"}
    configs = grid(said.get("config", {}), axes if seed is None else {**axes, "plan.seed": [seed]})
    combinations = product(*axes.values())
    names = [" ".join(f"{name}={_word(value)}" for name, value in zip(axes, one)) or work for one in combinations]
    return [asked(work, config, {**at, "title": name}) for config, name in zip(configs, names)]


def _word(value: Any) -> str:
    if not isinstance(value, Mapping):
        return str(value)
    return ",".join(str(v) if k == "name" else f"{k}={_word(v)}" for k, v in value.items())


KEEP = ("all", "best", "none")
MANY = 1000  # records, a folder each, from which on they are moved into Parquet files


class Tidying:
    """Removes a job's model, checkpoints and log when every job that depends on it is done.

    Args:
        root: of the sweep.
        keep: all; none; or the best model of those trained on the same tasks, by its mean score.
        jobs: of the sweep, with all they depend on.
    """

    def __init__(self, root: Path, keep: str, jobs: Sequence[Job]):
        if keep not in KEEP:
            raise unknown("models to keep", keep, KEEP)
        self.root, self.keep, self.jobs = root, keep, {job.key: job for job in jobs}
        self.results = Results(root / "records")
        self.best: dict[str, tuple[float, str]] = {}
        self.dependents: dict[str, list[str]] = {}
        for job in jobs:
            for before in job.after:
                self.dependents.setdefault(before.key, []).append(job.key)

    def done(self, job: Job, finished: Collection[str]) -> None:
        """A job is done: remove what no job needs any more."""
        if self.keep == "all":
            return
        for key in (job.key, *(before.key for before in job.after)):
            if key in finished and all(dependent in finished for dependent in self.dependents.get(key, ())):
                self._release(key)

    def _release(self, key: str) -> None:
        job, score = self.jobs[key], self._score(key)
        if self.keep == "best" and score is not None:
            group = f"{job.work} {sorted(job.config.get('tasks') or ())}"
            best = self.best.get(group)
            if best is not None and best[1] != key and score <= best[0]:
                self._remove(key)
            else:
                self.best[group] = score, key
                if best is not None and best[1] != key:
                    self._remove(best[1])
        elif self.keep == "none" or score is None:
            self._remove(key)

    def _score(self, key: str) -> float | None:
        """A model's mean score; None for jobs that keep no model or report no score."""
        if not (self.root / "models" / key).is_dir():
            return None
        scores = scores_of(self.results[key]).values()
        return sum(scores) / len(scores) if scores else None

    def _remove(self, key: str) -> None:
        for folder in ("models", "work"):
            shutil.rmtree(self.root / folder / key, ignore_errors=True)
        log_of(self.root, self.jobs[key]).unlink(missing_ok=True)

    def finish(self, finished: Collection[str]) -> None:
        """After the sweep: locks of finished jobs go, and many records move into few files."""
        for key in finished:
            path = self.root / "locks" / key
            if path.exists():
                try:
                    with locked(path, wait=False):  # who waits for it finds the record
                        path.unlink(missing_ok=True)
                except BlockingIOError:
                    continue
        if sum(1 for _ in zip(self.results.root.glob("*/record.json"), range(MANY))) >= MANY:
            self.results.compact()
