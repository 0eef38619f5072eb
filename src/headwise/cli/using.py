"""Verbs that use a trained model: predict, export, push."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.cli.app import Screen, app, machine
from headwise.cli.options import (
    DataOption,
    DeviceOption,
    JsonOption,
    OwnOption,
    TasksOption,
    head_scores,
    names_in,
    pairs_in,
    trained_model,
    writable,
)
from headwise.errors import HeadwiseError

HIDDEN = ("plan", "type")  # of plan.json, on a card


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(help="a model folder written by headwise train, study or prune")],
    file: Annotated[Path, typer.Argument(help="a .csv, .tsv, .jsonl or .parquet file, or a .txt with a text per line")],
    task: Annotated[str | None, typer.Option(help="one of its tasks (default: its only one)")] = None,
    column: Annotated[list[str], typer.Option(help="field=column if column names differ, e.g. text=review")] = [],  # noqa: B006
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="write .csv, .tsv, .jsonl or .parquet (default: print)")
    ] = None,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Predict a task's answers for every row of a file.

    Example: headwise predict runs/train/model reviews.csv --task reviews --out predictions.csv
    """
    from headwise.tasks.predictions import WRITERS

    if out and writable(out, file=True).suffix not in WRITERS:
        raise HeadwiseError(f"--out {out}", f"a file that ends in {', '.join(WRITERS)}", f"--out {out.stem}.csv")
    rows = _read(file)
    name, made = _one_task(model, task, device)
    predictions = made.predict(name, rows, columns=pairs_in(column))
    if out:
        predictions.write(out, rows)
        Screen(quiet=as_json).say(f"{len(predictions)} predictions: {out}")
    if as_json:
        print(machine({"out": str(out)} if out else predictions.to_records()))
    elif not out:
        Screen().rows(predictions.to_records())


@app.command()
def export(
    model: Annotated[Path, typer.Argument(help="a model folder written by headwise train, study or prune")],
    out: Annotated[Path, typer.Argument(help="folder to write")],
    task: Annotated[str | None, typer.Option(help="one of its tasks (default: its only one)")] = None,
    mask: Annotated[
        Path | None,
        typer.Option(help="safetensors or JSON with a (layers, heads) mask: true is pruned (default: none)"),
    ] = None,
    form: Annotated[str, typer.Option(help="masked, compact, sliced or onnx")] = "masked",
    as_json: JsonOption = False,
) -> None:
    """Write one task of a model as the class transformers has for it, with the labels' names.

    Example: headwise export runs/train/model runs/sst2 --task sst2
    """
    from headwise.pruning.export import export as write
    from headwise.pruning.export import read_mask

    cut, out = read_mask(mask) if mask else None, writable(out)
    name, made = _one_task(model, task, "cpu")
    path = write(made, cut, out, form, task=name)
    opened = {"sliced": "headwise.load", "onnx": "onnxruntime"}.get(form, "transformers (AutoModelFor...)")
    shown = {"path": str(path), "task": name, "form": form, "opened_by": opened}
    print(machine(shown)) if as_json else Screen().say(f"{name} as {form}, opened by {opened}: {path}")


@app.command()
def push(
    model: Annotated[Path, typer.Argument(help="a model folder written by headwise train, study or prune")],
    repo: Annotated[str, typer.Argument(help="user/name on the Hugging Face Hub; created if missing")],
    evaluate: Annotated[bool, typer.Option(help="measure every task, for the card")] = False,
    base: Annotated[str, typer.Option(help="the checkpoint that training started from, for the card")] = "",
    private: Annotated[bool, typer.Option(help="keep a new repository private")] = False,
    data: DataOption = None,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Push a model to the Hub, with a card of its tasks, data, scores and heads.

    Example: headwise push runs/train/model me/reviews --evaluate --base bert-base-uncased
    """
    from headwise.integrations.hub import push_to_hub
    from headwise.io.files import read_json
    from headwise.measuring.evaluate import evaluate as measure

    made, screen = trained_model(model, [], data, device), Screen(quiet=as_json)
    scores = {name: measure(made, name) for name in made.tasks} if evaluate else None
    for score in (scores or {}).values():
        screen.say(str(score))
    plan = model.parent / "plan.json"  # beside the model of headwise train
    trained = _flat(read_json(plan)) if plan.is_file() else None
    address = push_to_hub(made, repo, scores=scores, plan=trained, base=base, private=private)
    print(machine({"commit": address})) if as_json else screen.say(f"pushed: {address}")


def _flat(trained: dict[str, Any]) -> dict[str, Any]:
    """The plan that headwise train keeps, and its method, as one table."""
    return {name: value for part in (trained["plan"], trained) for name, value in part.items() if name not in HIDDEN}


def _one_task(model: Path, task: str | None, device: str | None) -> tuple[str, Any]:
    """A trained model and the task that was named, or its only one."""
    made = trained_model(model, [], None, device, only=[task] if task else [])
    if task is None and len(made.tasks) > 1:
        first = next(iter(made.tasks))
        raise HeadwiseError(f"{model} has {len(made.tasks)} tasks", "one of them", f"--task {first}")
    return task or next(iter(made.tasks)), made


def _read(file: Path) -> list[dict[str, Any]]:
    """The records of a file; each line of a .txt is a text."""
    from headwise.tasks.readers.formats import formats

    readers = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".parquet": "parquet", ".txt": "lines"}
    if file.suffix.lower() not in readers:
        raise HeadwiseError(f"{file}", f"a file that ends in {', '.join(readers)}")
    name = readers[file.suffix.lower()]
    return list(_texts(formats[name].read(file), name == "lines"))


def _texts(records: Any, lines: bool) -> Iterator[dict[str, Any]]:
    for _, record in records:
        yield {"text": record["text"]} if lines else record


@app.command()
def lab(
    target: Annotated[
        str,
        typer.Argument(help="a folder of headwise study, demo or train, or a model by folder or Hub name"),
    ],
    tasks: TasksOption = [],  # noqa: B006
    task: OwnOption = [],  # noqa: B006
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="the model, for a study that trained none, by folder or Hub name"),
    ] = None,
    scores: Annotated[
        Path | None, typer.Option(help="importance of the model's heads: a study, or a file of headwise importance")
    ] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="port; 0 picks a free one")] = None,
    host: Annotated[str, typer.Option(help="address to listen on; others than loopback are open to the network")] = (
        "127.0.0.1"
    ),
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="open the page in a browser")] = True,
    exports: Annotated[
        Path | None, typer.Option(help="folder for pruned models (default: lab/ in the run's folder)")
    ] = None,
    static: Annotated[
        Path | None, typer.Option(help="write a page that needs no server to this folder and exit")
    ] = None,
    runtime: Annotated[Path, typer.Option(help="the npm package onnxruntime-web, for --static")] = Path(
        "node_modules/onnxruntime-web"
    ),
    data: DataOption = None,
    device: DeviceOption = None,
) -> None:
    """Serve a page to close heads and watch every answer change, until Ctrl-C.

    Example: headwise lab runs/demo
    """
    from headwise import tasks as catalog
    from headwise.lab.opening import open_lab
    from headwise.lab.server import serve
    from headwise.lab.static import write_static

    chosen = [catalog.get(name, data) for name in names_in(tasks)] + [catalog.own(spec) for spec in task]
    folder = writable(exports) if exports else None
    known = {name: values.tolist() for name, values in head_scores(scores).items()} if scores else None
    opened = open_lab(target, chosen, data, model, "cpu" if static else device, folder, known)
    if static:
        print(f"any web server can serve it: {write_static(opened, writable(static), runtime) / 'lab.html'}")
        return
    serve(opened, host, port, browser, lambda line: print(line, flush=True))  # whole addresses, however narrow
