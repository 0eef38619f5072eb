"""Verbs of the papers: recipe."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.cli.app import app
from headwise.cli.options import DataOption, DeviceOption, JsonOption, OutOption, named_folders, writable
from headwise.cli.records import AddressOption, EngineOption, RetriesOption, WorkersOption, list_jobs, run_jobs
from headwise.cli.screen import Screen, machine
from headwise.errors import HeadwiseError


@app.command()
def recipe(
    name: Annotated[str, typer.Argument(help="specialization, anatomy, stem_cell or mesh")],
    size: Annotated[str, typer.Option(help="smoke, small or full")] = "smoke",
    model: Annotated[list[str], typer.Option(help="a folder or Hub name, or name=folder; several may be given")] = [],  # noqa: B006
    seeds: Annotated[int | None, typer.Option(min=1, help="how many; the recipe's own without")] = None,
    seed: Annotated[int | None, typer.Option(help="the first of them; without --seeds the only one")] = None,
    data: DataOption = None,
    out: OutOption = None,
    only: Annotated[
        list[str], typer.Option(help="jobs whose title holds this, and what they stand on; several may be given")
    ] = [],  # noqa: B006
    pages: Annotated[Path | None, typer.Option(help="folder for the page (default: that of the run)")] = None,
    tables_out: Annotated[
        Path | None, typer.Option(help="also write every table as csv and LaTeX to this folder")
    ] = None,
    records: Annotated[
        Path | None, typer.Option(help="write the page from these records, a folder or a .parquet file; run nothing")
    ] = None,
    run: Annotated[bool, typer.Option("--run/--no-run", help="run what is missing, or only write the page")] = True,
    dry: Annotated[bool, typer.Option("--list", help="show the jobs, run none")] = False,
    engine: EngineOption = "local",
    workers: WorkersOption = None,
    address: AddressOption = None,
    retries: RetriesOption = 1,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a paper's experiments and set the tables beside the published ones.

    Example: headwise recipe specialization --size smoke --out runs/specialization
    """
    from headwise.io.records import Results
    from headwise.papers.recipe import Scale, recipes
    from headwise.papers.recipe import pages as write_pages

    made, folder, run = recipes[name], out or Path("runs") / f"{name}-{size}", run and records is None
    told: dict[str, Any] = {}
    if not dry:
        writable(pages or folder)
    if run or dry:
        several = tuple(range(seed or 0, (seed or 0) + (seeds or 1))) if seeds or seed is not None else ()
        scale = Scale(size, named_folders(model), str(data) if data else os.environ.get("HEADWISE_DATA"), several)
        jobs = _chosen(made.jobs(scale), only, f"headwise recipe {name} --size {size} --list")
        if dry:
            list_jobs(jobs, as_json)
            return
        how = {"engine": engine, "workers": workers, "address": address, "retries": retries, "device": device}
        told = run_jobs(jobs, folder, as_json, **how)
    if told.get("done", 1):  # also where some jobs failed: the page shows what is there
        page = write_pages(
            made,
            Results(records or folder / "records"),
            pages or folder,
            shlex.join(["headwise", *sys.argv[1:]]),
            writable(tables_out) if tables_out else None,
        )
        told["page"] = str(page)
        Screen(quiet=as_json).say(f"page: {page}")
    if as_json:
        print(machine(told))
    raise typer.Exit(int(bool(told.get("failed"))))


def _chosen(jobs: list[Any], only: list[str], listing: str) -> list[Any]:
    """The jobs whose titles hold any of these words, all without; words that no title holds are refused."""
    for words in only:
        if not any(words in job.title for job in jobs):
            some = "; ".join(list(dict.fromkeys(job.title for job in jobs))[:5])
            raise HeadwiseError(f"no job's title holds {words!r}", f"a part of one, such as: {some}", listing)
    return [job for job in jobs if not only or any(words in job.title for words in only)]
