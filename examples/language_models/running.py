"""Runs the study's jobs in one process or several, and packs their records while it runs."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from examples.language_models import study
from examples.language_models.page import COMMAND, Page
from examples.language_models.study import SIZES, Job, Size, Study

from headwise.io.records import Results
from headwise.papers.pages import pages

PACKED = "language_models.parquet"
EVERY = 10  # seconds between two looks at the other processes


def jobs_of(models: dict[str, str], results: Results, sizes: list[Size], args: argparse.Namespace) -> list[Job]:
    """The jobs of all models in turn, size by size."""
    how = (args.data, args.device, args.dtype)
    made = []
    for size in sizes:
        each = (Study(name, folder, results, size, *how).jobs() for name, folder in models.items())
        made += chain.from_iterable(zip(*each, strict=True))
    return made


def taken(jobs: list[Job], claims: Path) -> Iterator[Job]:
    """The jobs that no other process has taken, each once what it needs is there."""
    waiting = list(jobs)
    while waiting:
        waiting = [job for job in waiting if not (claims / job.name).exists()]
        ready = [job for job in waiting if not job.needs or (claims / f"{job.needs}.done").exists()]
        if waiting and not ready:
            time.sleep(1)
        for job in ready[:1]:
            try:
                (claims / job.name).touch(exist_ok=False)
            except FileExistsError:
                continue
            yield job
            (claims / f"{job.name}.done").touch()


def work(jobs: list[Job], claims: Path, until: float | None, device: str) -> bool:
    """Do the jobs that are left; false if time ran out or a job failed."""
    import torch

    if device == "cuda":
        torch.set_float32_matmul_precision("high")
    whole = True
    for job in taken(jobs, claims):
        if until and time.time() > until:
            return False
        try:
            job.make()
        except Exception as error:  # the others are independent of it; run again to try again
            whole = False
            print(f"{job.name} failed: {type(error).__name__}: {error}", flush=True)
    return whole


def measure(models: dict[str, str], out: Path, sizes: list[Size], args: argparse.Namespace) -> Path:
    """All jobs; their records are packed while they are made, and all stops after ``args.seconds``."""
    results, packed = Results(out / "records"), out / PACKED
    until = time.time() + args.seconds if args.seconds else None
    for record in Results(args.resume) if args.resume else ():
        made = (record.work, record.config, record.result, dict(record.arrays))
        results.save(*made, beside=record.about, version=record.version)
    if args.processes > 1:
        whole = beside(args.processes, results, packed, until)
    else:
        with tempfile.TemporaryDirectory() as claims:
            whole = work(jobs_of(models, results, sizes, args), Path(claims), until, args.device)
    results.pack(packed)
    print("complete" if whole else "not complete: run again to resume", flush=True)
    return packed


def beside(processes: int, results: Results, packed: Path, until: float | None) -> bool:
    """This command in several processes, which share the jobs; false if time ran out or a job failed."""
    command = [sys.executable, "-m", "examples.language_models", *sys.argv[1:], "--processes", "1"]
    with tempfile.TemporaryDirectory() as claims:
        started = [subprocess.Popen([*command, "--claims", claims]) for _ in range(processes)]
        count = 0
        try:
            while any(process.poll() is None for process in started) and (until is None or time.time() < until):
                time.sleep(EVERY)
                if len(results) > count:
                    count = len(results)
                    results.pack(packed)
            return all(process.poll() == 0 for process in started)
        finally:
            for process in started:
                process.kill()
                process.wait()


def main() -> None:
    about = study.__doc__ or ""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--model", action="append", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--data", type=Path, help="the folder of data sets")
    parser.add_argument("--out", type=Path, default=Path("runs/language_models"))
    parser.add_argument("--size", choices=SIZES, nargs="+", default=["full"], help="one after the other")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--seconds", type=float, help="stop after so many seconds")
    parser.add_argument("--processes", type=int, default=1, help="processes that share the work")
    parser.add_argument("--claims", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--resume", type=Path, help="a file of records to start from")
    parser.add_argument("--records", type=Path, help="write the page of these records instead")
    parser.add_argument("--pages", type=Path)
    args = parser.parse_args()
    if args.records:
        print(pages(Page(), Results(args.records), args.pages, COMMAND))
        return
    models, sizes = dict(entry.split("=", 1) for entry in args.model), [SIZES[name] for name in args.size]
    if args.claims:
        results = Results(args.out / "records")
        sys.exit(not work(jobs_of(models, results, sizes, args), args.claims, None, args.device))
    else:
        print(measure(models, args.out, sizes, args))
