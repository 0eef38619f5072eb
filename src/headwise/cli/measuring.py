"""Verbs that measure models: heads, tasks, importance, dissociate, probe, head."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.cli.app import Screen, app, machine
from headwise.cli.options import (
    ByOption,
    DataOption,
    DeviceOption,
    ExamplesOption,
    JsonOption,
    ModelArg,
    OutOption,
    OwnOption,
    StackOption,
    TasksOption,
    chosen_tasks,
    fractions_in,
    plain_encoder,
    trained_model,
    writable,
)
from headwise.errors import HeadwiseError

MODEL = "a folder of headwise train or study, or any checkpoint with its own classifier, by folder or Hub name"
SubjectArg = Annotated[str | None, typer.Argument(metavar="[MODEL]", help=MODEL)]
SubjectOption = Annotated[str | None, typer.Option("--model", "-m", help="the same as MODEL")]
CloseOption = Annotated[
    str, typer.Option("--close", help="what ablated heads return: zero, mean, resample (another example's) or optimal")
]


def measured_model(
    given: str | None, option: str | None, tasks: list[str], data: Path | None, device: str | None
) -> tuple[Any, list[str]]:
    """The model, given as argument or as ``--model``, on its device, and the names of the tasks to measure."""
    from headwise import tasks as catalog
    from headwise.models.device import default_device
    from headwise.models.loading import ABOUT
    from headwise.models.opening import open_subject
    from headwise.models.processes import join

    model = given or option
    if model is None or (given and option):
        raise HeadwiseError(f"{'two models' if model else 'no model'}", "one folder or Hub name", "--model FOLDER")
    join()  # processes of torchrun or accelerate launch share the work
    names = [spec.split("=")[0] for spec in tasks]
    own = [spec for spec in tasks if "=" in spec]
    if (Path(model) / ABOUT).exists():
        made = trained_model(Path(model), own, data, device, only=names)
        return made, names or list(made.tasks)
    chosen = [catalog.own(spec) if "=" in spec else catalog.get(spec, data) for spec in tasks]
    return open_subject(model, chosen).to(default_device(device)), names


@app.command()
def heads(model: ModelArg, stack: StackOption = None, as_json: JsonOption = False) -> None:
    """Show where a model's heads are and what can be done with them.

    Example: headwise heads bert-base-uncased
    """
    from headwise.heads.gates import Heads, stacks_of

    encoder, _ = plain_encoder(model)
    stacks = [Heads.of(encoder, stack=name) for name in ([stack] if stack else stacks_of(encoder))]
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
            "verified": h.verified,
            "uncovered": list(h.uncovered),
            "alive": h.alive.tolist(),
            "output_projections": [site.name for site in h.sites if site.module is not None],
        }
        for h in stacks
    ]
    print(machine(rows)) if as_json else Screen().head_maps(model, rows)


@app.command()
def tasks(
    command: Annotated[str, typer.Argument(help="list, or show")] = "list",
    name: Annotated[
        str | None,
        typer.Argument(help="the task to show, or one of your own: mine=reviews.csv:text,label; a part to list"),
    ] = None,
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
        if "=" not in name and Path(name).exists():
            hint = f"headwise tasks show mine={name}:text,label"
            raise HeadwiseError(f"file {name!r}", "a task, or name=file:columns", hint)
        task = catalog.own(name) if "=" in name else catalog.get(name, data)
        shown = {"about": catalog.describe(task), "statistics": catalog.statistics(task)}
        print(machine(shown)) if as_json else Screen().task(shown)
    elif command == "list":
        rows = [catalog.describe(n, data) for n in catalog.names() if not name or name in n]
        if not rows:
            raise HeadwiseError(f"no task with {name!r} in its name", hint="headwise tasks")
        print(machine(rows)) if as_json else Screen().task_list(rows)
    else:
        raise HeadwiseError(f"tasks {command!r}", "list or show", f"headwise tasks show {command}")


@app.command()
def importance(
    folder: SubjectArg = None,
    model: SubjectOption = None,
    task: Annotated[
        list[str], typer.Option(help="task of the model (default: all), or of your own: mine=reviews.csv:text,label")
    ] = [],  # noqa: B006
    by: ByOption = "gradient",
    examples: ExamplesOption = 10_000,
    seed: Annotated[int, typer.Option(help="random seed of the sample of examples")] = 0,
    data: DataOption = None,
    device: DeviceOption = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="write the scores as safetensors")] = None,
    as_json: JsonOption = False,
) -> None:
    """Score every head for a model's tasks, of a model that headwise trained or a checkpoint with its own classifier.

    Example: headwise importance runs/train/model --task sst2
    """
    from headwise.scoring.importance import importance as measure
    from headwise.scoring.result import ScoreFile

    if out and writable(out, file=True).suffix in (".json", ".csv"):
        hint = f"--out {out.with_suffix('.safetensors')}, or --json to print JSON"
        raise HeadwiseError(f"--out {out}", "a file that ends in .safetensors", hint)
    subject, names = measured_model(folder, model, task, data, device)
    screen, kept = Screen(quiet=as_json), ScoreFile(out, by, subject, {"examples": examples, "seed": seed})
    for name in names:
        if (before := kept.find(name)) is None:
            result = measure(subject, name, by, examples=examples, seed=seed)
            kept.add(name, result.scores, result.to_record(), str(result))
        else:
            screen.say(f"{name}: found in {out}")
        screen.score_map(*(kept.shown(name) if before is None else before))
    if as_json:
        print(machine(kept.records))


@app.command()
def dissociate(
    folder: SubjectArg = None,
    model: SubjectOption = None,
    fractions: Annotated[list[str], typer.Option(help="fractions of heads to ablate, comma-separated")] = ["0.3"],  # noqa: B006
    by: ByOption = "gradient",
    close: CloseOption = "zero",
    examples: ExamplesOption = 10_000,
    task: OwnOption = [],  # noqa: B006
    random: Annotated[
        int | None, typer.Option(min=0, help="random head sets per fraction, to compute p  [20 or more]")
    ] = None,
    dev: Annotated[int | None, typer.Option(min=1, help="development rows per task (default: all)")] = None,
    seed: Annotated[int, typer.Option(help="random seed")] = 0,
    data: DataOption = None,
    device: DeviceOption = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="write all of it as JSON")] = None,
    as_json: JsonOption = False,
) -> None:
    """Ablate each task's heads and measure how far the tasks dissociate.

    Example: headwise dissociate runs/train/model --fractions 0.1,0.3,0.5
    """
    from headwise.dissociation.lesions import dissociate as lesion
    from headwise.heads.selection import top
    from headwise.io.files import write_json
    from headwise.models.processes import first
    from headwise.scoring.importance import importance as measure

    screen, shares = Screen(quiet=as_json), fractions_in(fractions)
    if out:
        writable(out, file=True)
    subject, names = measured_model(folder, model, task, data, device)
    scores = {}
    for name in names:
        scores[name] = measure(subject, name, by, examples=examples, seed=seed)
        screen.say(str(scores[name]))
    how = {"random": random, "limit": dev, "seed": seed, "undefined": "leave"}  # the table says which
    result = lesion(subject, scores, shares, close=close, log=screen.say, **how)
    if out and first():
        write_json(out, result.to_record())
    closed = top(scores[result.tasks[0]].scores, result.default)
    screen.say(f"α = {result.default:g}: {int(closed.sum())} of {closed.numel()} heads closed in each lesion")
    print(machine(result.to_record()) if as_json else result)


@app.command()
def probe(
    model: ModelArg,
    tasks: TasksOption = [],  # noqa: B006
    task: OwnOption = [],  # noqa: B006
    data: DataOption = None,
    protocol: Annotated[str, typer.Option(help="sklearn, anatomy, mdl or control")] = "sklearn",
    position: Annotated[str | None, typer.Option(help="cls, last, mean or post_last")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="maximum training rows; a fifth of it for dev and test")
    ] = None,
    select_on: Annotated[str, typer.Option(help="split that selects heads: dev, or test as published")] = "dev",
    precision: Annotated[str, typer.Option(help="precision of the features: fp32, fp16 or bf16")] = "fp32",
    cache: Annotated[bool, typer.Option(help="keep features on disk")] = False,
    seed: Annotated[int, typer.Option(help="random seed")] = 0,
    device: DeviceOption = None,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Probe what every head encodes and draw heat maps.

    Tasks of words and relations (tags, entities, constituents, dependencies, roles) are probed without parameters.

    Example: headwise probe bert-base-uncased --tasks corpus.past_present,corpus.bigram_shift --out runs/probes
    """
    from headwise.heads.gates import Heads
    from headwise.models.device import default_device
    from headwise.models.loading import name_of
    from headwise.probing import probe as measure
    from headwise.probing import unlearnt
    from headwise.probing.parameterfree import WORDWISE
    from headwise.probing.splits import to_probe
    from headwise.reporting.heads import write_probes

    screen = Screen(quiet=as_json)
    if out:
        writable(out)
    every = chosen_tasks(tasks, task, data)
    free = [one for one in every if type(one.kind).__name__ in WORDWISE]
    chosen = [to_probe(one) for one in every if one not in free]  # all are looked at before the first is probed
    encoder, tokenizer = plain_encoder(model)
    encoder = encoder.to(default_device(device))
    how: dict[str, Any] = {"protocol": protocol, "at": position, "limit": limit, "select_on": select_on}
    how |= {"precision": precision, "cache": cache, "seed": seed}
    probes = {}
    for one in chosen:
        probes[one.name] = measure(encoder, one, tokenizer=tokenizer, log=screen.say, **how)
        screen.say(str(probes[one.name]))
    for one in free:
        split = "test" if "test" in one.splits else "dev"
        probes[one.name] = unlearnt(encoder, one, tokenizer=tokenizer, split=split, limit=limit)
        screen.say(str(probes[one.name]))
    made = {name: result.to_record() for name, result in probes.items()}
    h = Heads.of(encoder)
    about = {"name": name_of(model), "layers": h.num_layers, "heads": h.num_heads}
    page = write_probes(made, about, out) if out else None
    if as_json:
        print(machine({"probes": made, "page": str(page) if page else None}))
    elif page:
        screen.say(f"page: {page}")


@app.command()
def head(
    name: Annotated[str, typer.Argument(help="layer and head, counted from 0: 5.7")],
    study: Annotated[Path, typer.Argument(help="a study's folder, or its study.json")] = Path("runs/demo"),
    beside: Annotated[Path | None, typer.Option(help="a study of a second checkpoint")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show everything a study measured about one head.

    Example: headwise head 5.7 runs/demo
    """
    from headwise.reporting.heads import card
    from headwise.study.schema import read_study

    if Path(name).exists():
        raise HeadwiseError(f"{name} in place of a head", "layer.head first", f"headwise head {study.name} {name}")
    details = card(read_study(study), name, read_study(beside) if beside else None)
    print(machine(details)) if as_json else Screen().card(details)
