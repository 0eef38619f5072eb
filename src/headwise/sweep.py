"""Many jobs: on this machine's cores and accelerator, or on a Ray cluster; what is done is never done again."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
import tomllib
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Protocol

from headwise.errors import HeadwiseError, missing_extra, unknown
from headwise.jobs import Job, grid, in_order, perform
from headwise.registry import Registry
from headwise.results import Results
from headwise.store import plain, write_json

Told = Callable[[Job, str, str], None]
"""Called when a job changes: the job, one of `STATES`, and a word more."""
# One thread to a job: the same sums on every machine, and no cores fought over. Logs hold no bars.
ALONE = {"OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1", "TOKENIZERS_PARALLELISM": "false"}
STATES = ("waiting", "found", "running", "done", "again", "failed", "skipped")


@dataclass
class Swept:
    """What a sweep left: its records, and the jobs that failed, with their logs."""

    results: Results
    done: list[Job] = field(default_factory=list)
    failed: dict[str, tuple[Job, str]] = field(default_factory=dict)
    """By key: the job, and the last line of its error."""

    def __str__(self) -> str:
        lines = [f"{len(self.done)} jobs done, {len(self.failed)} not: records in {self.results.root}"]
        return "\n".join([*lines, *(f"  {job.title}: {error}" for job, error in self.failed.values())])


class Engine(Protocol):
    """Where jobs run."""

    def free(self) -> bool:
        """Whether it takes one more job now."""
        ...

    def submit(self, job: Job) -> None: ...

    def finished(self) -> Iterator[tuple[Job, str]]:
        """Jobs that ended since, each with its error or ""; waits a moment where there are none."""
        ...

    def stop(self) -> None:
        """End all work; jobs under way save what they can."""
        ...


def run(
    jobs: Sequence[Job],
    out: str | Path,
    engine: str = "local",
    *,
    workers: int | None = None,
    retries: int = 1,
    device: str | None = None,
    address: str | None = None,
    told: Told = lambda job, state, word: None,
) -> Swept:
    """Run all jobs, and those they stand on; those whose records are there are not run again.

    Args:
        jobs: from a recipe, or `read`.
        out: folder for records, models, logs and failures.
        engine: "local" processes, or "ray".
        workers: jobs at a time; one for every core, or eight that share an accelerator.
        retries: how often a job whose process died, or that failed by something else than its own input, begins again.
        device: "cpu" keeps jobs off the accelerator.
        address: of a running Ray cluster; one is started for the occasion without.
        told: hears of every change.

    Example:
        >>> swept = run(read("grid.toml"), out="runs/grid")
    """
    root, everything = Path(out), in_order(jobs)
    if engine not in engines:
        raise unknown("engine", engine, engines)
    if workers is not None and workers < 1:
        raise HeadwiseError(f"{workers} workers", "1 or more")
    swept = Swept(Results(root / "records"))
    left, tries = _unfinished(everything, swept, told), dict.fromkeys((job.key for job in everything), 0)
    if not left:
        return swept
    pool = engines[engine](root, _workers(device) if workers is None else workers, device, address)
    under_way: set[str] = set()
    try:
        while left:
            for job in _ready(left, under_way, swept, told):
                if pool.free():
                    pool.submit(job)
                    under_way.add(job.key)
                    told(job, "running", "")
            for job, error in pool.finished():
                under_way.discard(job.key)
                tries[job.key] += 1
                if error and tries[job.key] <= retries and not _final(error):
                    told(job, "again", _last_line(error))
                    continue
                del left[job.key]
                _note(root, job, error, swept, told)
    finally:
        pool.stop()
    return swept


def _unfinished(everything: Sequence[Job], swept: Swept, told: Told) -> dict[str, Job]:
    left = {}
    for job in everything:
        if swept.results.find(job.work, job.config):
            swept.done.append(job)
            told(job, "found", "")
        else:
            left[job.key] = job
            told(job, "waiting", "")
    return left


def _ready(left: dict[str, Job], under_way: set[str], swept: Swept, told: Told) -> list[Job]:
    """Jobs whose predecessors are done; those whose predecessors failed are given up."""
    why = "left out: a job it stands on failed"
    for job in [job for job in left.values() if any(before.key in swept.failed for before in job.after)]:
        del left[job.key]
        swept.failed[job.key] = (job, why)
        told(job, "skipped", why)
    return [j for j in left.values() if j.key not in under_way and not any(b.key in left for b in j.after)]


def _note(root: Path, job: Job, error: str, swept: Swept, told: Told) -> None:
    """Keep the news of a job that ended."""
    paper = root / "failed" / f"{job.key}.json"
    if not error:
        paper.unlink(missing_ok=True)
        swept.done.append(job)
        told(job, "done", "")
        return
    swept.failed[job.key] = (job, _last_line(error))
    write_json(paper, {"job": job.to_record(), "error": error, "log": str(log_of(root, job))})
    told(job, "failed", _last_line(error))


def _final(error: str) -> bool:
    """Whether trying again would bring the same: the job's own input was refused."""
    return _last_line(error).startswith(("headwise.errors.", "HeadwiseError"))


def _last_line(error: str) -> str:
    return error.strip().splitlines()[-1] if error.strip() else ""


def log_of(root: Path, job: Job) -> Path:
    return root / "logs" / f"{job.key}.log"


def _workers(device: str | None) -> int:
    import torch

    if device != "cpu" and torch.cuda.is_available():
        return min(8, os.cpu_count() or 1)  # small encoders leave most of an accelerator idle
    return os.cpu_count() or 1


def work(record: Mapping[str, Any], root: str, device: str | None) -> str:
    """Do one job in this process, its output going to its log; the error, or ""."""
    job = Job(record["work"], record["config"], record["at"])
    with _logged(log_of(Path(root), job)):
        print(f"{time.strftime('%F %T')} {job.title}", flush=True)
        try:
            perform(job, root, device)
        except KeyboardInterrupt:
            return "KeyboardInterrupt: stopped"
        except Exception:
            traceback.print_exc()
            return traceback.format_exc()
    return ""


@contextlib.contextmanager
def _logged(path: Path) -> Iterator[None]:
    """Everything this process prints goes to a file, also what compiled code prints."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = [os.dup(1), os.dup(2)]
    try:
        with path.open("a") as log:
            sys.stdout.flush()
            for number in (1, 2):
                os.dup2(log.fileno(), number)
            yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, old in zip((1, 2), kept):
            os.dup2(old, number)
            os.close(old)


class Local:
    """Processes of this machine, each ready for one job after the other."""

    def __init__(self, root: Path, workers: int, device: str | None, address: str | None):
        if address:
            raise HeadwiseError(f"address={address!r} with the local engine", 'engine="ray"', "--engine ray")
        self.root, self.workers, self.device = root, workers, device
        self.idle: list[_Process] = []
        self.busy: dict[Any, tuple[_Process, Job]] = {}

    def free(self) -> bool:
        return len(self.busy) < self.workers

    def submit(self, job: Job) -> None:
        process = self._sent(job.to_record())
        self.busy[process.pipe] = (process, job)

    def _sent(self, record: dict[str, Any]) -> _Process:
        """The process that has the job now; one that died while it was idle is passed over."""
        while self.idle:
            process = self.idle.pop()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                process.pipe.send(record)
                return process
        process = _Process(self.root, self.device)
        process.pipe.send(record)
        return process

    def finished(self) -> Iterator[tuple[Job, str]]:
        spoken = wait(list(self.busy), timeout=1.0)
        # A process that a job started may hold the pipe open after its worker died.
        dead = [pipe for pipe, (process, _) in self.busy.items() if not process.process.is_alive()]
        for pipe in dict.fromkeys([*spoken, *dead]):
            process, job = self.busy.pop(pipe)
            yield job, self._heard(process)

    def _heard(self, process: _Process) -> str:
        """The error of a job that ended, or how its process did."""
        with contextlib.suppress(EOFError, ConnectionResetError):
            if process.pipe.poll():
                error = process.pipe.recv()
                self.idle.append(process)
                return error
        process.process.join()
        return f"its process ended with code {process.process.exitcode}"

    def stop(self) -> None:
        for process, _ in self.busy.values():
            process.interrupt()
        for process in [*self.idle, *(process for process, _ in self.busy.values())]:
            process.pipe.close()
            process.process.join(30)
            if process.process.is_alive():
                process.process.kill()


class _Process:
    def __init__(self, root: Path, device: str | None):
        context = multiprocessing.get_context("spawn")  # a fork of a process that has used CUDA is broken
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other, str(root), device, os.getpid()), daemon=True)
        with _environment(ALONE):
            self.process.start()
        other.close()

    def interrupt(self) -> None:
        """As by Ctrl-C: a training writes a checkpoint."""
        if self.process.pid and self.process.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGINT)


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Inside, these variables are set: what starts inherits them, and this process has its own back."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _serve(pipe: Any, root: str, device: str | None, parent: int) -> None:
    """A worker's life: jobs come through the pipe until it closes, or the parent is gone."""
    os.setpgrp()  # Ctrl-C reaches the parent alone, which passes it on

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    with contextlib.suppress(EOFError, KeyboardInterrupt, BrokenPipeError):
        while True:
            pipe.send(work(pipe.recv(), root, device))


class Ray:
    """Tasks of a Ray cluster: a running one by its address, else one started for the occasion."""

    def __init__(self, root: Path, workers: int, device: str | None, address: str | None):
        try:
            import ray
        except ImportError:
            raise missing_extra("ray", "ray", "the engine ray") from None
        self.ray, self.root, self.device, self.workers = ray, root.resolve(), device, workers
        self.started = not ray.is_initialized()
        if self.started:
            own = {} if address else {"num_cpus": workers, "include_dashboard": False}
            ray.init(address=address, log_to_driver=False, configure_logging=False, **own)
        share = 0.0 if device == "cpu" or not ray.cluster_resources().get("GPU") else 1 / workers
        task = ray.remote(num_cpus=1, num_gpus=share, max_retries=0, runtime_env={"env_vars": ALONE})(work)
        self.task, self.busy = task, {}

    def free(self) -> bool:
        return len(self.busy) < self.workers

    def submit(self, job: Job) -> None:
        self.busy[self.task.remote(plain(job.to_record()), str(self.root), self.device)] = job

    def finished(self) -> Iterator[tuple[Job, str]]:
        ready, _ = self.ray.wait(list(self.busy), timeout=1.0) if self.busy else ([], [])
        for reference in ready:
            job = self.busy.pop(reference)
            try:
                yield job, self.ray.get(reference)
            except self.ray.exceptions.RayError as lost:  # a worker or a node went away
                yield job, f"{type(lost).__name__}: {str(lost).splitlines()[0]}"

    def stop(self) -> None:
        for reference in self.busy:
            self.ray.cancel(reference)
        if self.busy:  # cancelled is as by Ctrl-C: a training writes a checkpoint
            self.ray.wait(list(self.busy), num_returns=len(self.busy), timeout=30)
        if self.started:
            self.ray.shutdown()


engines: Registry[Callable[[Path, int, str | None, str | None], Engine]] = Registry("engine")
engines.add("local", Local)
engines.add("ray", Ray)


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
    try:
        said = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise HeadwiseError(f"no sweep at {path}") from None
    except (ValueError, RecursionError, IsADirectoryError) as error:
        raise HeadwiseError(f"{path} is no TOML ({error})", 'lines such as: work = "train"') from None
    for name in said:
        if name not in ("work", "config", "grid", "at"):
            raise unknown(f"part of {path}", name, ("work", "config", "grid", "at"))
        if name != "work" and not isinstance(said[name], dict):
            raise HeadwiseError(f"{name} = {said[name]!r} in {path}", f"a table [{name}]")
    from headwise.works import asked

    at = {**said.get("at", {}), **({"data": data} if data else {})}
    work = said.get("work", "train")
    axes = {name: values for name, values in said.get("grid", {}).items() if seed is None or name != "plan.seed"}
    configs = grid(said.get("config", {}), axes)
    if seed is not None:
        configs = [{**one, "plan": {**one.get("plan", {}), "seed": seed}} for one in configs]
    combinations = product(*axes.values())
    names = [" ".join(f"{name}={_word(value)}" for name, value in zip(axes, one)) or work for one in combinations]
    return [asked(work, config, {**at, "title": name}) for config, name in zip(configs, names)]


def _word(value: Any) -> str:
    if not isinstance(value, Mapping):
        return str(value)
    return ",".join(str(v) if k == "name" else f"{k}={_word(v)}" for k, v in value.items())
