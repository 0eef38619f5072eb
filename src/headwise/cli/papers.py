"""Verbs of the papers: recipe."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.cli.app import app
from headwise.cli.options import (
    DataOption,
    DeviceOption,
    JsonOption,
    OutOption,
    named_folders,
    names_in,
    with_plan,
    writable,
)
from headwise.cli.records import AddressOption, EngineOption, RetriesOption, WorkersOption, list_jobs, run_jobs
from headwise.cli.screen import Screen, machine
from headwise.errors import HeadwiseError


@app.command()
@with_plan
def recipe(
    name: Annotated[
        str,
        typer.Argument(help="specialization, anatomy, stem_cell, mesh, together or methods; with --tables also all"),
    ],
    size: Annotated[str, typer.Option(help="smoke, small or full")] = "smoke",
    model: Annotated[list[str], typer.Option(help="a folder or Hub name, or name=folder; may be repeated")] = [],  # noqa: B006
    seeds: Annotated[int | None, typer.Option(min=1, help="number of seeds (default: the recipe's)")] = None,
    seed: Annotated[int | None, typer.Option(help="the first seed; without --seeds the only one")] = None,
    languages: Annotated[list[str], typer.Option(help="of the tasks, comma-separated: en,fr,de (mesh)")] = [],  # noqa: B006
    data: DataOption = None,
    out: OutOption = None,
    only: Annotated[
        list[str],
        typer.Option(help="a table or figure, such as table-9, or a part of a job's title; may be repeated"),
    ] = [],  # noqa: B006
    tables: Annotated[bool, typer.Option("--tables", help="list the paper's tables and figures, run nothing")] = False,
    pages: Annotated[Path | None, typer.Option(help="folder for the page (default: that of the run)")] = None,
    tables_out: Annotated[
        Path | None, typer.Option(help="also write every table as csv and LaTeX to this folder")
    ] = None,
    records: Annotated[
        Path | None, typer.Option(help="write the page from these records, a folder or a .parquet file; run nothing")
    ] = None,
    run: Annotated[bool, typer.Option("--run/--no-run", help="run what is missing, or only write the page")] = True,
    registered: Annotated[
        Path | None, typer.Option(help="a plan of tests named before the run; only its endpoints are primary")
    ] = None,
    dry: Annotated[bool, typer.Option("--list", help="list the jobs, run nothing")] = False,
    engine: EngineOption = "local",
    workers: WorkersOption = None,
    address: AddressOption = None,
    retries: RetriesOption = 1,
    device: DeviceOption = None,
    as_json: JsonOption = False,
    *,
    plan: Any,
) -> None:
    """Run a paper's experiments and set the tables beside the published ones.

    Flags of the training plan change every training of the recipe.

    Example: headwise recipe specialization --only table-9 --model bert-base-uncased --precision bf16
    """
    from headwise.io.records import Results
    from headwise.papers.pages import pages as write_pages
    from headwise.papers.recipe import Scale, recipes

    several = tuple(range(seed or 0, (seed or 0) + (seeds or 1))) if seeds or seed is not None else ()
    where = str(data) if data else os.environ.get("HEADWISE_DATA")
    scale = Scale(size, named_folders(model), where, several, plan, names_in(languages))
    if tables:
        _list_items(name, scale, records, pages, as_json)
        return
    chosen, run = recipes[name], run and records is None
    if registered:
        chosen, scale = _registered(registered, name, scale, None if records else out, run and not dry)
    folder = out or Path("runs") / f"{name}-{scale.size}"
    result: dict[str, Any] = {}
    if not dry:
        writable(pages or folder)
    if run or dry:
        jobs = _chosen(chosen, scale, only)
        if dry:
            list_jobs(jobs, as_json)
            return
        how = {"engine": engine, "workers": workers, "address": address, "retries": retries, "device": device}
        result = run_jobs(jobs, folder, as_json, **how)
    if result.get("done", 1):  # also where some jobs failed: the page shows what is there
        page = write_pages(
            chosen,
            Results(records or folder / "records"),
            pages or folder,
            shlex.join(["headwise", *sys.argv[1:]]),
            writable(tables_out) if tables_out else None,
        )
        result["page"] = str(page)
        Screen(quiet=as_json).say(f"page: {page}")
    if as_json:
        print(machine(result))
    raise typer.Exit(int(bool(result.get("failed"))))


def _registered(path: Path, name: str, scale: Any, out: Path | None, run: bool) -> tuple[Any, Any]:
    """The recipe and scale of a registered plan, which is remembered beside the run."""
    from headwise.papers.recipe import recipes
    from headwise.papers.registered import Registered, with_registered

    plan = Registered.read(path)
    if plan.recipe != name or (scale.seeds and scale.seeds != plan.seeds) or scale.plan:
        seen = f"--registered {path} with another recipe, other seeds or flags of the training plan"
        raise HeadwiseError(seen, "what the plan says", f"headwise recipe {plan.recipe} --registered {path}")
    if scale.models and (missing := [model for model in plan.models if model not in scale.models]):
        raise HeadwiseError(f"no --model for {', '.join(missing)}", "every model of the plan", "--model NAME=FOLDER")
    folder = out or Path("runs") / f"{name}-{plan.size}"
    when = plan.remember(folder) if run else ""
    paper: Any = recipes[name]
    return with_registered(paper, plan, when), replace(scale, size=plan.size, seeds=plan.seeds)


def _chosen(recipe: Any, scale: Any, only: list[str]) -> list[Any]:
    """All jobs, or those of the tables and figures named, and those whose titles hold one of the words."""
    tags = [word for word in only if word in {item.tag for item in getattr(recipe, "items", ())}]
    words = [word for word in only if word not in tags]
    jobs = recipe.jobs(scale, tags) if tags else []
    if words or not only:
        every = recipe.jobs(scale)
        for word in words:
            if not any(word in job.title for job in every):
                some = "; ".join(list(dict.fromkeys(job.title for job in every))[:3])
                known = ", ".join(item.tag for item in getattr(recipe, "items", ())) or "none"
                expected = f"a table or figure ({known}), or a part of a job's title, such as: {some}"
                listing = f"headwise recipe {recipe.name} --size {scale.size} --list"
                raise HeadwiseError(f"no table, figure or job of {recipe.name} named {word!r}", expected, listing)
        jobs += [job for job in every if not only or any(word in job.title for word in words)]
    return jobs


def _list_items(name: str, scale: Any, records: Path | None, pages: Path | None, as_json: bool) -> None:
    """The tables and figures of a paper, or of all, with command, jobs and hours; as a page with ``pages``."""
    from headwise.papers.checklist import checklist, listed
    from headwise.papers.recipe import recipes

    chosen = [recipes[each] for each in (recipes if name == "all" else [name])]
    rows = [row for each in chosen for row in listed(each, scale, records)]
    if pages:
        path = checklist(rows, writable(pages))
        Screen(quiet=as_json).say(f"page: {path}")
    print(machine(rows)) if as_json else Screen().items(rows)
