"""Executors of a sweep: local processes, or tasks on a Ray cluster."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Protocol

from headwise.errors import HeadwiseError, missing_extra
from headwise.experiments.jobs import Job, is_done, perform
from headwise.io import system
from headwise.io.files import plain
from headwise.registry import Registry

# One thread per job: the same sums on every machine, and no competition for cores. No bars in logs.
ALONE = {"OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1", "TOKENIZERS_PARALLELISM": "false"}
LOST = "its worker was lost: "  # what the error of a job begins with that may not be the reason for it
UNBEGUN = "not begun"  # the error of a job that waited behind another one on a worker that was lost
MOMENT, MOST = 0.5, 64  # seconds and jobs of a bundle
SHARE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"  # fraction of an accelerator's processors; only read under NVIDIA MPS
ROUND = "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"  # TF32 products; only on NVIDIA
# A node whose wire is cut says no goodbye, and ray waits seven minutes for its answers.
NOTICED = {"RAY_grpc_client_keepalive_time_ms": "10000", "RAY_grpc_client_keepalive_timeout_ms": "10000"}


class Engine(Protocol):
    """Runs jobs."""

    def free(self) -> bool:
        """Whether another job can be submitted now."""
        ...

    def submit(self, job: Job) -> None: ...

    def finished(self) -> Iterator[tuple[Job, str]]:
        """Jobs that ended since the last call, each with its error or ""; waits briefly if there are none."""
        ...

    def stop(self) -> None:
        """Stop all jobs; running ones save what they can."""
        ...


def surroundings(workers: int) -> dict[str, str]:
    """Environment variables of one of several workers that share an accelerator.

    A kernel of a small encoder occupies all processors for a few microseconds while kernels of other jobs wait. With a
    part of the processors for each job (about four jobs per processor), fifteen trainings of MiniLM's size reached
    1,180 steps a second on one H200 instead of 666. Float32 products use TF32: they dominate lesions and structured
    output heads, and full precision does not use the tensor cores.
    """
    share = os.environ.get(SHARE) or str(max(1, min(100, 400 // workers)))
    return ALONE | {SHARE: share, ROUND: os.environ.get(ROUND) or "1"}


def log_of(root: Path, job: Job) -> Path:
    return root / "logs" / f"{job.key}.log"


def work(record: Mapping[str, Any], root: str, device: str | None) -> str:
    """Run one job in this process, with output to its log; returns the error, or ""."""
    job = Job(record["work"], record["config"], record["at"])
    with _logged(log_of(Path(root), job)), contextlib.chdir("."):  # the next job starts in the same folder
        print(f"{time.strftime('%F %T')} {job.title}", flush=True)
        try:
            perform(job, root, device)
        except KeyboardInterrupt:
            return "KeyboardInterrupt: stopped"
        except Exception:
            traceback.print_exc()
            # File names may contain bytes that cannot be encoded as text.
            return traceback.format_exc().encode(errors="backslashreplace").decode()
        finally:
            release_memory()
    return ""


_released = 0.0


def release_memory() -> None:
    """Free the memory of a job: this process runs the next job, and others share the accelerator.

    It takes as long as many a small job, so jobs within a moment share one release.
    """
    global _released
    if time.monotonic() - _released < MOMENT:
        return
    gc.collect()  # models, optimizers and recordings are in reference cycles
    _released = time.monotonic()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


@contextlib.contextmanager
def _logged(path: Path) -> Iterator[None]:
    """Redirect all output of this process to a file, that of compiled code included."""
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
    """Local processes, each running one job after another."""

    def __init__(self, root: Path, workers: int, device: str | None, address: str | None):
        if address:
            raise HeadwiseError(f"address={address!r} with the local engine", 'engine="ray"', "--engine ray")
        self.root, self.workers, self.device = root.absolute(), workers, device  # jobs may change the working directory
        self.around = surroundings(workers)
        self.idle: list[_Process] = []
        self.busy: dict[Any, tuple[_Process, Job]] = {}

    def free(self) -> bool:
        return len(self.busy) < self.workers

    def submit(self, job: Job) -> None:
        process = self._sent(job.to_record())
        self.busy[process.pipe] = (process, job)

    def _sent(self, record: dict[str, Any]) -> _Process:
        """Send the job to an idle process; processes that died while idle are skipped."""
        while self.idle:
            process = self.idle.pop()
            with contextlib.suppress(ConnectionError):
                process.pipe.send(record)
                return process
        process = _Process(self.root, self.device, self.around)
        process.pipe.send(record)
        return process

    def finished(self) -> Iterator[tuple[Job, str]]:
        spoken = wait(list(self.busy), timeout=1.0)
        # A child process of a job may keep the pipe open after its worker died.
        dead = [pipe for pipe, (process, _) in self.busy.items() if not process.process.is_alive()]
        for pipe in dict.fromkeys([*spoken, *dead]):
            process, job = self.busy.pop(pipe)
            yield job, self._heard(process)

    def _heard(self, process: _Process) -> str:
        """The error of a finished job, or the exit code of its process."""
        with contextlib.suppress(EOFError, ConnectionError):
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
    def __init__(self, root: Path, device: str | None, around: Mapping[str, str]):
        context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other, str(root), device, os.getpid()), daemon=True)
        with _environment(around):
            self.process.start()
        other.close()

    def interrupt(self) -> None:
        """Stop as Ctrl-C would: a training writes a checkpoint."""
        if self.process.pid and self.process.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGINT)


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables inside the block, for child processes; restored afterwards."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _serve(pipe: Any, root: str, device: str | None, parent: int) -> None:
    """The main function of a worker: runs jobs from the pipe until it closes or the parent dies."""
    system.leave_process_group()  # only the parent receives Ctrl-C; it forwards it

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    with contextlib.suppress(EOFError, KeyboardInterrupt, ConnectionError):
        while True:
            pipe.send(work(pipe.recv(), root, device))


class Ray:
    """Tasks on a Ray cluster: the one at ``address``, or a temporary one.

    Jobs that take less than a moment are sent in bundles. Processes are reused, on accelerators too, so that a bundle
    finds the model that the one before loaded. A lost worker does not count against its jobs: see `LOST` and `UNBEGUN`.
    """

    def __init__(self, root: Path, workers: int, device: str | None, address: str | None):
        for name, value in NOTICED.items():
            os.environ.setdefault(name, value)
        try:
            import ray
        except ImportError:
            raise missing_extra("ray", "ray", "the engine ray") from None
        self.ray, self.root, self.device, self.workers = ray, root.resolve(), device, workers
        self.started = not ray.is_initialized()
        if self.started:
            own = {} if address else {"num_cpus": workers, "include_dashboard": False}
            # Without "local" ray would join a cluster that happens to run on this machine.
            ray.init(address=address or "local", log_to_driver=False, configure_logging=False, **own)
        share = 0.0 if device == "cpu" or not ray.cluster_resources().get("GPU") else 1 / workers
        around = {"env_vars": surroundings(workers)}
        how = {"num_cpus": 1, "num_gpus": share, "max_retries": 0, "max_calls": 0, "runtime_env": around}
        self.task = ray.remote(**how)(work_all)
        self.waiting: list[Job] = []
        self.busy: dict[Any, list[Job]] = {}
        self.bundle = 1

    def free(self) -> bool:
        return len(self.waiting) < (self.workers - len(self.busy)) * self.bundle

    def submit(self, job: Job) -> None:
        self.waiting.append(job)

    def finished(self) -> Iterator[tuple[Job, str]]:
        self._send()
        ready, _ = self.ray.wait(list(self.busy), timeout=1.0) if self.busy else ([], [])
        for reference in ready:
            jobs = self.busy.pop(reference)
            try:
                errors, seconds = self.ray.get(reference)
                self.bundle = max(1, min(MOST, round(MOMENT * len(errors) / max(seconds, 1e-3)), 4 * self.bundle))
            except self.ray.exceptions.RayError as lost:  # a worker or node was lost
                errors = self._failed(jobs, f"{type(lost).__name__}: {str(lost).splitlines()[0]}")
            yield from zip(jobs, [*errors, *[UNBEGUN] * (len(jobs) - len(errors))])

    def _send(self) -> None:
        while self.waiting and len(self.busy) < self.workers:
            each = min(self.bundle, -(-len(self.waiting) // (self.workers - len(self.busy))))
            jobs, self.waiting = self.waiting[:each], self.waiting[each:]
            records = [plain(job.to_record()) for job in jobs]
            self.busy[self.task.remote(records, str(self.root), self.device)] = jobs

    def _failed(self, jobs: list[Job], why: str) -> list[str]:
        """The errors of a lost bundle: none of jobs that had ended, `LOST` of the one under way."""
        ended = list(takewhile(lambda job: is_done(job, self.root), jobs))
        return [*[""] * len(ended), *([f"{LOST}{why}"] if len(ended) < len(jobs) else [])]

    def stop(self) -> None:
        for reference in self.busy:
            self.ray.cancel(reference)
        if self.busy:  # cancelling is like Ctrl-C: a training writes a checkpoint
            self.ray.wait(list(self.busy), num_returns=len(self.busy), timeout=30)
        if self.started:
            self.ray.shutdown()


def work_all(records: Sequence[Mapping[str, Any]], root: str, device: str | None) -> tuple[list[str], float]:
    """Run jobs one after the other: their errors, of those that were begun, and the seconds they took."""
    errors, began = [], time.perf_counter()
    for record in records:
        errors.append(work(record, root, device))
        if errors[-1].startswith("KeyboardInterrupt"):
            break
    return errors, time.perf_counter() - began


engines: Registry[Callable[[Path, int, str | None, str | None], Engine]] = Registry("engine")
engines.add("local", Local)
engines.add("ray", Ray)
