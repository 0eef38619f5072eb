"""Verbs of the papers: recipe."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.cli.app import Screen, app, machine
from headwise.cli.options import (
    DataOption,
    DeviceOption,
    JsonOption,
    OutOption,
    OwnOption,
    TasksOption,
    chosen_tasks,
    head_scores,
    method_settings,
    named_folders,
    names_in,
    trained_model,
    with_plan,
    writable,
)
from headwise.cli.records import AddressOption, EngineOption, RetriesOption, WorkersOption, list_jobs, run_jobs
from headwise.errors import HeadwiseError, unknown


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
    seed: Annotated[int | None, typer.Option(help="first seed (the only one without --seeds)")] = None,
    languages: Annotated[list[str], typer.Option(help="languages of the tasks, comma-separated: en,fr,de (mesh)")] = [],  # noqa: B006
    settings: Annotated[
        list[str],
        typer.Option("--set", help="an amount of the recipe's size, such as dev=300 or fractions=[0.3]; repeatable"),
    ] = [],  # noqa: B006
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
    run: Annotated[bool, typer.Option("--run/--no-run", help="run missing jobs, or only write the page")] = True,
    registered: Annotated[
        Path | None, typer.Option(help="a file of tests registered before the run; only its endpoints are primary")
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
    """Run a paper's experiments and compare the tables with the published ones.

    Flags of the training plan change every training of the recipe, --set the amounts of everything else.

    Example: headwise recipe specialization --only table-9 --model bert-base-uncased --precision bf16
    """
    from headwise.io.records import Results
    from headwise.papers.pages import pages as write_pages
    from headwise.papers.recipe import Scale, recipes

    several = tuple(range(seed or 0, (seed or 0) + (seeds or 1))) if seeds or seed is not None else ()
    where = str(data) if data else os.environ.get("HEADWISE_DATA")
    scale = Scale(size, named_folders(model), where, several, plan, names_in(languages), method_settings(settings))
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
    """The recipe and scale of a registered plan, which is stored with the run."""
    from headwise.papers.recipe import recipes
    from headwise.papers.registered import Registered, with_registered

    plan = Registered.read(path)
    if plan.recipe != name or (scale.seeds and scale.seeds != plan.seeds) or scale.plan or scale.settings:
        seen = f"--registered {path} with another recipe, other seeds, --set or flags of the training plan"
        raise HeadwiseError(seen, "what the plan says", f"headwise recipe {plan.recipe} --registered {path}")
    if scale.models and (missing := [model for model in plan.models if model not in scale.models]):
        raise HeadwiseError(f"no --model for {', '.join(missing)}", "every model of the plan", "--model NAME=FOLDER")
    folder = out or Path("runs") / f"{name}-{plan.size}"
    when = plan.remember(folder) if run else ""
    paper: Any = recipes[name]
    return with_registered(paper, plan, when), replace(scale, size=plan.size, seeds=plan.seeds)


def _chosen(recipe: Any, scale: Any, only: list[str]) -> list[Any]:
    """All jobs, or those of the named tables and figures and those whose titles contain one of the words."""
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
    from headwise.papers.recipe import PaperRecipe, recipes

    chosen = [recipes[each] for each in (recipes if name == "all" else [name])]
    rows = [row for each in chosen if isinstance(each, PaperRecipe) for row in listed(each, scale, records)]
    if pages:
        path = checklist(rows, writable(pages))
        Screen(quiet=as_json).say(f"page: {path}")
    print(machine(rows)) if as_json else Screen().items(rows)


HOW = ("adapt", "fine-tune")
ModelsArg = Annotated[
    list[str], typer.Argument(help="model folders of headwise train, or name=folder; the first is the baseline")
]


@app.command()
def metatest(
    models: ModelsArg,
    tasks: TasksOption = [],  # noqa: B006
    task: OwnOption = [],  # noqa: B006
    data: DataOption = None,
    how: Annotated[
        str,
        typer.Option(
            help="adapt: steps of SGD from the output head of the same task in another language, or a fresh one; "
            "fine-tune: 20 epochs under a fresh output head"
        ),
    ] = "adapt",
    shots: Annotated[list[str], typer.Option(help="numbers of rows to learn from, comma-separated")] = ["4,8,16,32"],  # noqa: B006
    draws: Annotated[int, typer.Option(min=1, help="random sets of rows of each size, the same for every model")] = 5,
    steps: Annotated[int | None, typer.Option(min=0, help="adapt: steps of SGD  [default: the method's]")] = None,
    rate: Annotated[
        float | None, typer.Option(help="adapt: learning rate of these steps  [default: the method's]")
    ] = None,
    prune: Annotated[
        float,
        typer.Option(min=0, max=0.99, help="adapt: fraction of heads to close, least important for the new rows first"),
    ] = 0.0,
    settings: Annotated[
        list[str],
        typer.Option("--set", help="a setting of --method meta as trained, such as gates=sigmoid; repeatable"),
    ] = [],  # noqa: B006
    limit: Annotated[int | None, typer.Option(min=1, help="measure on a sample of this many rows")] = 500,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Learn a new task from a few rows, from one start or several side by side.

    Beside a model of --method meta, gates and learned rates are read from meta.safetensors of its run.

    Example: headwise metatest plain=runs/plain/model meta=runs/meta/model --task new=new.csv:text,label --shots 8,16
    """
    if how not in HOW:
        raise unknown("way to learn", how, HOW)
    screen, numbers = Screen(quiet=as_json), tuple(int(n) for n in names_in(shots))
    starts = {name: trained_model(path, [], data, device) for name, path in _named(models).items()}
    results: dict[str, Any] = {}
    for new in chosen_tasks(tasks, task, data):
        if how == "adapt":
            options = {"steps": steps, "rates": rate, "limit": limit, "prune": prune}
            results[new.name] = _adapted(screen, starts, _named(models), new, numbers, draws, settings, options)
        elif steps is not None or rate is not None or settings or prune:
            raise HeadwiseError(
                "--steps, --rate, --prune or --set with --how fine-tune", "the default way", "--how adapt"
            )
        else:
            results[new.name] = _fine_tuned(screen, starts, new, numbers, draws, limit)
    if as_json:
        print(machine(results))


def _named(models: list[str]) -> dict[str, Path]:
    """Folders by name; a folder without a name has its own."""
    folders = {}
    for given in models:
        name, mark, folder = given.rpartition("=")
        folders[name if mark else given] = Path(folder)
    if len(folders) < len(models):
        raise HeadwiseError(f"models {', '.join(models)}", "a name for each", "plain=runs/a/model iat=runs/b/model")
    return folders


def _adapted(
    screen: Screen, starts: Any, folders: Any, new: Any, shots: Any, draws: int, settings: list[str], options: Any
) -> Any:
    """Meta-test every start and compare it with the first."""
    from headwise.papers.mesh.meta import Meta
    from headwise.papers.mesh.metatest import meta_test

    tested, first = {}, next(iter(starts))
    for name, model in starts.items():
        learned = folders[name].parent / "meta.safetensors"
        method = Meta(**(method_settings(settings) if learned.exists() else {}))
        if learned.exists():
            method.ready(model, learned)
        tested[name] = meta_test(model, method, new, shots, draws, **options)
        screen.say(f"{name}: {tested[name]}")
        if name != first:
            gains = [f"{n} shots {100 * tested[name].beats(tested[first], n).value:+.1f}" for n in shots]
            screen.say(f"  over {first}: {', '.join(gains)}")
    return {name: one.to_record() for name, one in tested.items()}


def _fine_tuned(screen: Screen, starts: Any, new: Any, shots: Any, draws: int, limit: int | None) -> Any:
    """Few-shot transfer of every start (Li et al. 2023, Table 6)."""
    from headwise.papers.specialization.transfer import transfer

    result = transfer(starts, new, shots, draws, limit=limit)
    screen.say(str(result))
    return result.to_record()


@app.command()
def similarity(
    models: Annotated[list[str], typer.Argument(help="models of one task each, or name=folder")] = [],  # noqa: B006
    by: Annotated[list[str], typer.Option(help="dse, cra (of models); overlap, rank (of --scores)")] = [],  # noqa: B006
    texts: Annotated[str | None, typer.Option(help="sentences: a task's name, or a file with a text per line")] = None,
    count: Annotated[int, typer.Option(min=3, help="number of sentences")] = 1000,
    scores: Annotated[
        Path | None, typer.Option(help="a study, or scores of headwise importance --out, in place of models")
    ] = None,
    fraction: Annotated[float, typer.Option(min=0.01, max=1, help="overlap: the top heads")] = 0.3,
    data: DataOption = None,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compute how similar tasks are, from vectors of single-task models or from the heads they use.

    Example: headwise similarity sst2=runs/sst2/model qnli=runs/qnli/model --texts corpus --by dse,cra
    """
    from headwise.dissociation.similarity import similarity as measures

    if bool(models) == bool(scores):
        raise HeadwiseError(
            "no models or scores" if not models else "models and --scores",
            "one of the two",
            "headwise similarity --scores runs/demo",
        )
    able = ("overlap", "rank") if scores else ("dse", "cra")
    chosen = names_in(by) or able
    for name in chosen:
        if name not in able:
            raise unknown(f"measure of {'--scores' if scores else 'models'}", name, able)
    similarities = []
    if scores:
        from headwise.heads.selection import top

        maps = head_scores(scores)
        inputs = {"rank": maps, "overlap": {task: top(one, fraction) for task, one in maps.items()}}
        similarities = [measures[name](inputs[name]) for name in chosen]
    else:
        vectors = _vectors(models, _sentences(texts, count, data), data, device)
        similarities = [measures[name](vectors) for name in chosen]
    print(machine([one.to_record() for one in similarities])) if as_json else Screen().say(
        "\n\n".join(map(str, similarities))
    )


def _vectors(models: list[str], sentences: list[str], data: Path | None, device: str | None) -> dict[str, Any]:
    """Each task's vectors of the same sentences."""
    from headwise.measuring.evaluate import sentence_vectors

    vectors = {}
    for name, folder in _named(models).items():
        model = trained_model(folder, [], data, device)
        if len(model.tasks) > 1:
            raise HeadwiseError(f"{folder} has the tasks {', '.join(model.tasks)}", "a model of one task")
        vectors[name if name != str(folder) else next(iter(model.tasks))] = sentence_vectors(model, sentences)
    return vectors


def _sentences(texts: str | None, count: int, data: Path | None) -> list[str]:
    """The first sentences of a file, or of a task's development rows; by default those of the embedded corpus."""
    from itertools import islice

    from headwise.tasks.readers.formats import text_lines
    from headwise.tasks.readers.shape import row_texts

    if texts in (None, "corpus"):
        from headwise.tasks.corpus import sentences

        return [sentence.text for sentence in islice(sentences("en"), count)]
    if texts is not None and Path(texts).is_file():
        return [line for _, line in text_lines(Path(texts)) if line.strip()][:count]
    from headwise import tasks as catalog

    rows = catalog.get(str(texts), data).rows("dev")
    return list(dict.fromkeys(text for row in rows for text in row_texts(row).values()))[:count]


@app.command()
def submit(
    model: Annotated[Path, typer.Argument(help="a model folder with GLUE's tasks, as headwise train wrote it")],
    glue: Annotated[Path, typer.Argument(help="the folder glue_data with CoLA/test.tsv and the others")],
    out: Annotated[Path, typer.Argument(help="the zip to write")],
    fill: Annotated[bool, typer.Option(help="answer tasks the model lacks (WNLI) with one class")] = False,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Answer GLUE's test sets and write the zip its server takes.

    Example: headwise submit runs/glue/model glue_data submission.zip --fill
    """
    from headwise.papers.specialization.glue import TESTS
    from headwise.papers.specialization.glue import submit as write

    out = writable(out, file=True)
    made = trained_model(model, [], glue, device)
    path = write(made, glue, out, fill=fill)
    missing = sorted({name for name, test in TESTS.items() if test.task not in made.tasks})
    if as_json:
        print(machine({"file": str(path), "filled": missing}))
        return
    Screen().say(f"{len(TESTS)} tables{f', {chr(44).join(missing)} with one class' if missing else ''}: {path}")
