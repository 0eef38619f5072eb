"""Verbs that make models: study, demo, train, prune."""

from __future__ import annotations

import shlex
import sys
import traceback
import warnings
from dataclasses import replace
from pathlib import Path
from shutil import copy
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwise.cli.app import app
from headwise.cli.options import (
    ByOption,
    DataOption,
    DeviceOption,
    ExamplesOption,
    JsonOption,
    ModelArg,
    ModelOption,
    OutOption,
    OwnOption,
    PoolingOption,
    StackOption,
    TasksOption,
    chosen_tasks,
    names_in,
    plain_encoder,
    with_plan,
    writable,
)
from headwise.cli.screen import Screen, machine
from headwise.errors import HeadwiseWarning
from headwise.io.files import require_replaceable, write_json
from headwise.study.stages import STAGES, Settings

if TYPE_CHECKING:
    from headwise.study.study import Study

SKIPPABLE = ", ".join(stage.name for stage in STAGES.values() if stage.skippable)
# Written out, as the registry would import torch; a test compares the two.
METHODS = "plain, iat, iat_released, prune_least, conflict, rates, scales, l0 or meta"


@app.command()
@with_plan
def study(
    model: ModelOption,
    tasks: TasksOption = [],  # noqa: B006
    task: OwnOption = [],  # noqa: B006
    data: DataOption = None,
    out: OutOption = None,
    alpha: Annotated[float, typer.Option(help="fraction of heads that count as a task's own")] = 0.3,
    delta: Annotated[float, typer.Option(help="final fraction of training with important-head training")] = 0.1,
    by: ByOption = "gradient",
    examples: ExamplesOption = 10_000,
    dev: Annotated[int | None, typer.Option(min=1, help="development rows per task (default: all)")] = None,
    pooling: PoolingOption = None,
    max_length: Annotated[int, typer.Option(min=1, help="longest input in sub-words")] = 128,
    probes: Annotated[list[str], typer.Option(help="properties to probe every head for, comma-separated")] = [],  # noqa: B006
    skip: Annotated[list[str], typer.Option(help=f"stages to skip, comma-separated or repeated: {SKIPPABLE}")] = [],  # noqa: B006
    device: DeviceOption = None,
    as_json: JsonOption = False,
    *,
    plan: Any,
) -> None:
    """Train tasks together, find each task's heads, lesion them, and write the page.

    Example: headwise study --model bert-base-uncased --tasks sst2,qnli,mnli --data data/
    """
    from headwise.study.study import Study

    chosen = chosen_tasks(tasks, task, data)
    settings = Settings(plan, alpha, delta, by, examples, dev=dev, pooling=pooling, max_length=max_length)
    settings = replace(settings, probes=names_in(probes), skip=names_in(skip))
    folder = writable(out or Path("runs") / f"{Path(model).name}-{'-'.join(t.name for t in chosen)}"[:100])
    screen = Screen(quiet=as_json)
    _finish(screen, Study(model, chosen, settings, folder, **_shown_on(screen), device=device), as_json)


@app.command()
def demo(
    quick: Annotated[bool, typer.Option(help="use fewer examples and lesions")] = False,
    data: DataOption = None,
    out: OutOption = None,
    seed: Annotated[int, typer.Option(help="of everything random")] = 0,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """The whole story on a real pretrained encoder, without a network.

    Example: headwise demo --quick
    """
    from headwise.study.demo import demo_study

    screen = Screen(quiet=as_json)
    folder = writable(out or Path("runs") / ("demo-quick" if quick else "demo"))
    _finish(screen, demo_study(folder, quick, data, seed, **_shown_on(screen), device=device), as_json)


@app.command()
@with_plan
def train(
    model: ModelOption,
    tasks: TasksOption = [],  # noqa: B006
    task: OwnOption = [],  # noqa: B006
    data: DataOption = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="folder for the model and its checkpoints")] = Path(
        "runs/train"
    ),
    method: Annotated[str, typer.Option(help=f"{METHODS}, with their own defaults")] = "plain",
    alpha: Annotated[
        float | None, typer.Option(help="iat: share of heads a task may move; prune_least: share closed  [0.3]")
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="iat, prune_least: the share of training, at its end, that goes so  [0.1]")
    ] = None,
    freeze: Annotated[
        str | None, typer.Option(help="iat: update (truly held) or grad (as published)  [update]")
    ] = None,
    pooling: PoolingOption = None,
    max_length: Annotated[int, typer.Option(min=1, help="longest input in sub-words")] = 128,
    output_heads: Annotated[
        str, typer.Option(help="linear; or native: those of transformers, which headwise export opens there")
    ] = "linear",
    device: DeviceOption = None,
    as_json: JsonOption = False,
    *,
    plan: Any,
) -> None:
    """Train tasks together in one model; the same command goes on where it stopped.

    A model that headwise trained, cut or not, goes on with its output heads; its encoder/ starts with fresh ones.

    Example: headwise train --model bert-base-uncased --tasks sst2,qnli --method iat --epochs 3 --out runs/iat
    """
    from headwise.experiments.works import method_of
    from headwise.training.loop import fit
    from headwise.training.methods.prune_least import PruneLeast

    screen, out = Screen(quiet=as_json), writable(out)
    require_replaceable(out / "model")
    progress = screen.progress()
    how = {"pooling": pooling, "max_length": max_length, "output_heads": output_heads}
    made = _begun(screen, model, chosen_tasks(tasks, task, data), plan.seed, **how)
    given = {"alpha": alpha, "delta": delta, "freeze": freeze}
    chosen = method_of({"name": method, **{name: value for name, value in given.items() if value is not None}})
    history = fit(made, plan, chosen, out=out, device=device, progress=progress)
    made.save_pretrained(out / "model")
    if progress.first == history.steps:
        screen.say(f"nothing was trained: all {history.steps} steps of {out} were done before")
    last: dict[str, Any] = history.scores[-1] if history.scores else {"scores": {}}
    _tell_scores(screen, {name: task.metric for name, task in made.tasks.items()}, last, plan.lr)
    screen.say(f"model in {out / 'model'}")
    if isinstance(chosen, PruneLeast) and chosen.closed is not None:
        mask, many = write_json(out / "closed.json", chosen.closed.tolist()), int(chosen.closed.sum())
        screen.say(f"{many} of {chosen.closed.numel()} heads are closed: {mask}, for headwise prune")
    shown = {"model": str(out / "model"), "steps": history.steps, "trained": history.steps - progress.first}
    shown |= {"seconds": history.seconds, "scores": last["scores"], "one_class": last.get("one_class", [])}
    if as_json:
        print(machine(shown))


def _begun(screen: Screen, model: str, tasks: list[Any], seed: int, **options: Any) -> Any:
    """What training starts from: a model of headwise with its output heads, or an encoder with fresh ones."""
    from headwise.models.folders import is_trained
    from headwise.models.multitask import MultiTaskModel

    if not is_trained(model):
        return MultiTaskModel.from_pretrained(model, tasks, seed=seed, **options)
    made = MultiTaskModel.continued(model, tasks, seed=seed)
    changed = [name for name, value in options.items() if value is not None and value != getattr(made, name)]
    if changed:
        screen.say(f"as the model was trained: {', '.join(f'{name} {getattr(made, name)}' for name in changed)}")
    return made


def _tell_scores(screen: Screen, metrics: dict[str, str], last: dict[str, Any], rate: float) -> None:
    """A line for each task's last score, and a word where nothing was learned."""
    alike = last.get("one_class", [])
    for name, value in last["scores"].items():
        more = ", the same answer to all" if name in alike else ""
        screen.say(f"  {name}: {metrics[name]} {100 * value:.2f} (n = {last['examples'][name]}{more})")
    if alike and len(alike) == len(last["scores"]):
        screen.say(f"no task was learned: try longer training, --clip 1, or a learning rate other than {rate:g}")


@app.command()
def prune(
    model: ModelArg,
    out: Annotated[Path, typer.Argument(help="folder to write")],
    mask: Annotated[Path, typer.Option(help="safetensors or JSON with a (layers, heads) mask: true is cut")],
    form: Annotated[str, typer.Option(help="masked, compact, sliced or onnx")] = "sliced",
    stack: StackOption = None,
    as_json: JsonOption = False,
) -> None:
    """Cut heads and write a model that is checked against the masked one; output heads of a trained one go with it.

    Example: headwise prune bert-base-uncased runs/small --mask mask.json --form sliced
    """
    from headwise.heads.cutting import prune as remove
    from headwise.heads.gates import Heads
    from headwise.models.folders import BESIDE, is_trained
    from headwise.pruning.export import export, export_whole, read_mask

    cut, out = read_mask(mask), writable(out)
    encoder, tokenizer = plain_encoder(model)
    rest = [file for file in Path(model).iterdir() if file.name in BESIDE] if is_trained(model) else []
    if rest and form == "onnx":
        beside = " and ".join(sorted(file.name for file in rest if file.suffix == ".safetensors"))
        seen = f"the encoder alone is written as onnx: {beside} of the trained model stay where they are"
        warnings.warn(seen, HeadwiseWarning, stacklevel=1)
    if rest and form != "onnx":
        path = export_whole(lambda to: [copy(file, to) for file in rest], encoder, cut, out, form, tokenizer, stack)
    else:
        path = export(encoder, cut, out, form, tokenizer=tokenizer, stack=stack)
    alive, before = Heads.of(encoder, stack=stack).alive, sum(p.numel() for p in encoder.parameters())
    newly, gone = int((cut & alive).sum()), int((~alive).sum())
    if form != "masked":  # which keeps its shapes
        remove(encoder, cut, stack)
    after = sum(p.numel() for p in encoder.parameters())
    shown = {"path": str(path), "form": form, "heads_cut": int(cut.sum()), "heads": cut.numel()}
    shown |= {"heads_newly_cut": newly, "parameters_before": before, "parameters_after": after}
    words = f"{newly} of {cut.numel()} heads" + (f" newly cut ({gone} were cut before)" if gone else " cut")
    said = f"{words}, {before:,} parameters to {after:,}, {form}: {path}"
    print(machine(shown)) if as_json else Screen().say(said)


def _shown_on(screen: Screen) -> dict[str, Any]:
    """What a study reports to: the terminal, and in its report the command."""
    command = shlex.join(["headwise", *sys.argv[1:]])
    return {"log": screen.detail, "on_stage": screen.stage, "progress": screen.progress(), "command": command}


def _finish(screen: Screen, study: Study, as_json: bool) -> None:
    """Run the study, write its report and print the verdict; exit code 1 if a stage failed."""
    from headwise.reporting import report

    data = study.run()
    page = report(data, study.out / "report.html")
    summary = {"verdict": data["verdict"], "failed": data.get("failed", {})}
    summary |= {"study": str(study.out / "study.json"), "page": str(page)}
    print(machine(summary)) if as_json else screen.verdict(data["verdict"], page)
    for stage, error in study.errors.items():
        if "--debug" in sys.argv:
            traceback.print_exception(error)
        print(f"headwise: stage {stage!r} failed: {data['failed'][stage]}", file=sys.stderr)
    if study.errors:
        raise typer.Exit(1)
