"""The command line: each verb parses, calls one function and prints."""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from headwise.errors import HeadwiseError
from headwise.options import (
    ByOption,
    DataOption,
    DeviceOption,
    ExamplesOption,
    JsonOption,
    ModelArg,
    ModelOption,
    OutOption,
    OwnOption,
    StackOption,
    TasksOption,
    chosen_tasks,
    names_in,
    pairs_in,
    plain_encoder,
    shares_in,
    trained_model,
    with_plan,
)
from headwise.screen import Screen


class Verbs(TyperGroup):
    """The verbs; typer would swallow a stop by hand and what it says."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            raise Stopped(str(stop) or "stopped") from stop


class Stopped(Exception):
    """Ctrl-C."""


app = typer.Typer(
    cls=Verbs,
    help="Find, measure and use the functional specialization of attention heads.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="show tracebacks; may stand anywhere")] = False,
) -> None:
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from transformers.utils import logging

    logging.disable_progress_bar()
    warnings.formatwarning = lambda message, *_, **__: f"headwise: note: {message}\n"


@app.command()
@with_plan
def study(
    model: ModelOption,
    tasks: TasksOption = "",
    task: OwnOption = [],  # noqa: B006
    data: DataOption = None,
    out: OutOption = None,
    alpha: Annotated[float, typer.Option(help="share of heads that count as a task's own")] = 0.3,
    delta: Annotated[float, typer.Option(help="share of training held by important-head training")] = 0.1,
    by: ByOption = "gradient",
    examples: ExamplesOption = 10_000,
    dev: Annotated[int | None, typer.Option(help="development rows per task in lesions")] = None,
    pooling: Annotated[str, typer.Option(help="cls, mean or last")] = "cls",
    max_length: Annotated[int, typer.Option(help="longest input in sub-words")] = 128,
    probes: Annotated[str, typer.Option(help="properties to probe every head for, with commas")] = "",
    skip: Annotated[str, typer.Option(help="stages to leave out, with commas")] = "",
    device: DeviceOption = None,
    as_json: JsonOption = False,
    *,
    plan: Any,
) -> None:
    """Train tasks together, find each task's heads, lesion them, and write the page.

    Example: headwise study --model bert-base-uncased --tasks sst2,qnli,mnli --data data/
    """
    from headwise.study import Settings, Study

    chosen = chosen_tasks(tasks, task, data)
    settings = Settings(plan, alpha, delta, by, examples, dev=dev, pooling=pooling, max_length=max_length)
    settings = replace(settings, probes=names_in(probes), skip=names_in(skip))
    folder = out or Path("runs") / f"{Path(model).name}-{'-'.join(t.name for t in chosen)}"[:100]
    screen = Screen(quiet=as_json)
    made = Study(model, chosen, settings, folder, screen.told, screen.progress(), device)
    made.command = "headwise " + " ".join(sys.argv[1:])
    _finish(screen, made.run(), folder, as_json)


@app.command()
def demo(
    quick: Annotated[bool, typer.Option(help="a smaller story, under two minutes")] = False,
    data: DataOption = None,
    out: OutOption = None,
    seed: Annotated[int, typer.Option(help="of everything random")] = 0,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """The whole story on a real pretrained encoder, without a network.

    Example: headwise demo --quick
    """
    from headwise.demo import demo_study

    screen = Screen(quiet=as_json)
    folder = out or Path("runs") / ("demo-quick" if quick else "demo")
    made = demo_study(folder, quick, data, seed, screen.told, screen.progress(), device)
    made.command = "headwise " + " ".join(sys.argv[1:])
    _finish(screen, made.run(), folder, as_json)


@app.command()
def heads(model: ModelArg, stack: StackOption = None, as_json: JsonOption = False) -> None:
    """Show where a model's heads are and what can be done with them.

    Example: headwise heads bert-base-uncased
    """
    from headwise.heads import Heads, stacks_of

    encoder, _ = plain_encoder(model)
    found = [Heads.of(encoder, stack=name) for name in ([stack] if stack else stacks_of(encoder))]
    rows = [
        {
            "stack": h.stack,
            "family": h.family,
            "layers": h.num_layers,
            "heads": h.num_heads,
            "head_dim": h.head_dim,
            "kv_heads": h.num_kv_heads,
            "gate": True,
            "capture": True,
            "train_and_cut": h.exact,
            "alive": h.alive.tolist(),
            "output_projections": [site.name for site in h.sites],
        }
        for h in found
    ]
    print(json.dumps(rows)) if as_json else Screen().head_maps(model, rows)


@app.command()
def tasks(
    command: Annotated[str, typer.Argument(help="list, or show")] = "list",
    name: Annotated[str | None, typer.Argument(help="the task to show")] = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the known tasks, or show one: `headwise tasks show sst2`.

    Example: headwise tasks show corpus.sentiment
    """
    from headwise import tasks as catalog

    if command == "show":
        if name is None:
            raise HeadwiseError("no task named", "a name", "headwise tasks show corpus.sentiment")
        task = catalog.get(name, data)
        shown = {"about": catalog.describe(task), "statistics": catalog.statistics(task)}
        print(json.dumps(shown, ensure_ascii=False)) if as_json else Screen().task(shown)
    elif command == "list":
        rows = [catalog.describe(n, data) for n in catalog.names()]
        print(json.dumps(rows, ensure_ascii=False)) if as_json else Screen().task_list(rows)
    else:
        raise HeadwiseError(f"tasks {command!r}", "list or show", "headwise tasks")


@app.command()
@with_plan
def train(
    model: ModelOption,
    tasks: TasksOption = "",
    task: OwnOption = [],  # noqa: B006
    data: DataOption = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="folder for the model and its checkpoints")] = Path(
        "runs/train"
    ),
    method: Annotated[str, typer.Option(help="plain or iat")] = "plain",
    alpha: Annotated[float, typer.Option(help="iat: share of heads a task may move")] = 0.3,
    delta: Annotated[float, typer.Option(help="iat: share of training, at its end, in which the rest is held")] = 0.1,
    freeze: Annotated[str, typer.Option(help="iat: update (truly held) or grad (as published)")] = "update",
    pooling: Annotated[str, typer.Option(help="cls, mean or last")] = "cls",
    max_length: Annotated[int, typer.Option(help="longest input in sub-words")] = 128,
    device: DeviceOption = None,
    as_json: JsonOption = False,
    *,
    plan: Any,
) -> None:
    """Train tasks together in one model; the same command goes on where it stopped.

    Example: headwise train --model bert-base-uncased --tasks sst2,qnli --method iat --epochs 3 --out runs/iat
    """
    from headwise.methods import methods
    from headwise.model import MultiTaskModel
    from headwise.train import fit

    screen = Screen(quiet=as_json)
    made = MultiTaskModel.from_pretrained(
        model, chosen_tasks(tasks, task, data), seed=plan.seed, pooling=pooling, max_length=max_length
    )
    settings = {"alpha": alpha, "delta": delta, "freeze": freeze} if method == "iat" else {}
    history = fit(made, plan, methods[method](**settings), out=out, device=device, progress=screen.progress())
    made.save_pretrained(out / "model")
    last = history.scores[-1]["scores"] if history.scores else {}
    shown = {"model": str(out / "model"), "steps": history.steps, "seconds": history.seconds, "scores": last}
    print(json.dumps(shown)) if as_json else screen.scores(last, f"model in {out / 'model'}")


@app.command()
def importance(
    model: Annotated[Path, typer.Argument(help="a model folder written by headwise train or study")],
    task: Annotated[
        list[str], typer.Option(help="one of its tasks, all without; one of your own: mine=reviews.csv:text,label")
    ] = [],  # noqa: B006
    by: ByOption = "gradient",
    examples: ExamplesOption = 10_000,
    seed: Annotated[int, typer.Option(help="of the draw of examples")] = 0,
    data: DataOption = None,
    device: DeviceOption = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="write the scores as safetensors")] = None,
    as_json: JsonOption = False,
) -> None:
    """Score every head for a model's tasks.

    Example: headwise importance runs/train/model --task sst2
    """
    from headwise.importance import importance as measure
    from headwise.store import write_arrays

    made = trained_model(model, [spec for spec in task if "=" in spec], data, device)
    names = [spec.split("=")[0] for spec in task] or list(made.tasks)
    found = {name: measure(made, name, by, examples=examples, seed=seed) for name in names}
    if out:
        write_arrays(out, {name: f.scores.numpy() for name, f in found.items()}, {"by": by})
    if as_json:
        print(json.dumps({name: f.to_record() for name, f in found.items()}))
    else:
        Screen().score_maps({name: f.scores for name, f in found.items()}, found)


@app.command()
def dissociate(
    model: Annotated[Path, typer.Argument(help="a model folder written by headwise train or study")],
    fractions: Annotated[str, typer.Option(help="shares of heads to close, with commas")] = "0.3",
    by: ByOption = "gradient",
    examples: ExamplesOption = 10_000,
    task: OwnOption = [],  # noqa: B006
    random: Annotated[int, typer.Option(help="random lesions per share")] = 3,
    dev: Annotated[int | None, typer.Option(help="development rows per task")] = None,
    seed: Annotated[int, typer.Option(help="of everything random")] = 0,
    data: DataOption = None,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Close each task's heads and measure how far the tasks come apart.

    Example: headwise dissociate runs/train/model --fractions 0.1,0.3,0.5
    """
    from headwise.importance import importance as measure
    from headwise.lesions import dissociate as lesion

    shares = shares_in(fractions)
    made = trained_model(model, task, data, device)
    scores = {name: measure(made, name, by, examples=examples, seed=seed) for name in made.tasks}
    found = lesion(made, scores, shares, random=random, limit=dev, seed=seed)
    print(json.dumps(found.to_record()) if as_json else found)


@app.command()
def prune(
    model: ModelArg,
    out: Annotated[Path, typer.Argument(help="folder to write")],
    mask: Annotated[Path, typer.Option(help="safetensors or JSON with a (layers, heads) mask: true is cut")],
    form: Annotated[str, typer.Option(help="masked, compact, sliced or onnx")] = "sliced",
    stack: StackOption = None,
    as_json: JsonOption = False,
) -> None:
    """Cut heads and write a model that is checked against the masked one.

    Example: headwise prune bert-base-uncased runs/small --mask mask.json --form sliced
    """
    from headwise.exports import export, read_mask

    cut = read_mask(mask)
    encoder, tokenizer = plain_encoder(model)
    before = sum(p.numel() for p in encoder.parameters())
    path = export(encoder, cut, out, form, tokenizer=tokenizer, stack=stack)
    shown = {"path": str(path), "form": form, "heads_cut": int(cut.sum()), "heads": cut.numel(), "parameters": before}
    print(json.dumps(shown)) if as_json else Screen().say(
        f"{shown['heads_cut']} of {cut.numel()} heads cut, {form}: {path}"
    )


@app.command(name="report")
def report_page(
    studies: Annotated[list[Path], typer.Argument(help="study.json files, or their folders")],
    out: Annotated[Path, typer.Option("--out", "-o", help="the page to write")] = Path("report.html"),
    as_json: JsonOption = False,
) -> None:
    """Write the page of one study, or of several with a switch between them.

    Example: headwise report runs/demo --out page.html
    """
    from headwise.report import report
    from headwise.store import read_json

    found = [read_json(path / "study.json" if path.is_dir() else path) for path in studies]
    page = report(found if len(found) > 1 else found[0], out)
    print(json.dumps({"page": str(page)})) if as_json else Screen().say(f"page: {page}")


@app.command(name="ls")
def list_records(
    folder: Annotated[Path, typer.Argument(help="a results folder, or a study's")] = Path("runs"),
    where: Annotated[list[str], typer.Option(help="name=value, e.g. kind=importance or task=sst2")] = [],  # noqa: B006
    export: Annotated[Path | None, typer.Option(help="write all records as .csv or .parquet")] = None,
    as_json: JsonOption = False,
) -> None:
    """List stored results.

    Example: headwise ls runs/demo --where kind=importance
    """
    from headwise.results import Results

    roots = sorted({p.parent.parent for p in folder.rglob("record.json")})
    if not roots:
        raise HeadwiseError(f"no records under {folder}", "a folder that headwise wrote results to")
    wanted = pairs_in(where)
    found = [(root, record) for root in roots for record in Results(root).where(**wanted)]
    if export and len(roots) > 1:
        raise HeadwiseError(f"{len(roots)} results folders under {folder}", "one to export", f"headwise ls {roots[0]}")
    if export:
        Screen(quiet=as_json).say(f"table: {Results(roots[0]).export(export)}")
    rows = [
        {"key": r.key, "kind": r.kind, "created": r.about.get("created", ""), "folder": str(root)} for root, r in found
    ]
    print(json.dumps(rows)) if as_json else Screen().records(rows)


@app.command()
def doctor(as_json: JsonOption = False) -> None:
    """Show versions, devices, attention kernels, and what each extra would add.

    Example: headwise doctor
    """
    from headwise.doctor import examine

    found = examine()
    print(json.dumps(found)) if as_json else Screen().doctor(found)


def _finish(screen: Screen, study: dict[str, Any], folder: Path, as_json: bool) -> None:
    made = {"study": str(folder / "study.json"), "page": str(folder / "report.html")}
    print(json.dumps({"verdict": study["verdict"], **made})) if as_json else screen.verdict(study, folder)


def main() -> None:
    """Run the command line; mistakes of use end in one line and exit code 2, failures in one line and 1."""
    try:
        app(args=[word for word in sys.argv[1:] if word != "--debug"] or ["--help"], standalone_mode=False)
    except HeadwiseError as error:
        _stop(str(error), 2)
    except Stopped as error:
        _stop(str(error), 130)
    except Exception as error:
        if said := getattr(error, "format_message", None):  # a mistake in the options
            _stop(f"{said()} Try: headwise --help", 2)
        _stop(f"{type(error).__name__}: {error}", 1)


def _stop(message: str, code: int) -> None:
    if "--debug" in sys.argv:
        traceback.print_exc()
    print(f"headwise: {message}", file=sys.stderr)
    sys.exit(code)
