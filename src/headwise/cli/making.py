"""Verbs that make models: train, prune."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from shutil import copy
from typing import Annotated, Any

import typer

from headwise.cli.app import Screen, app, machine
from headwise.cli.options import (
    DataOption,
    DeviceOption,
    JsonOption,
    ModelArg,
    ModelOption,
    OwnOption,
    PlanOption,
    PoolingOption,
    StackOption,
    TasksOption,
    chosen_tasks,
    head_scores,
    method_settings,
    names_in,
    plain_encoder,
    planned,
    trained_model,
    with_plan,
    writable,
)
from headwise.errors import HeadwiseError, HeadwiseWarning

# Written out, as the registry would import torch; a test compares the two.
METHODS = (
    "plain, iat, iat_released, released_settings, prune_least, conflict, distill, rates, scales, l0, updates or meta"
)


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
    method: Annotated[str, typer.Option(help=f"training method: {METHODS}")] = "plain",
    alpha: Annotated[
        float | None,
        typer.Option(help="iat: fraction of heads a task trains; prune_least: fraction to ablate  [0.3]"),
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="iat, prune_least: final fraction of training in which this applies  [0.1]")
    ] = None,
    freeze: Annotated[
        str | None, typer.Option(help="iat: update (parameters stay fixed) or grad (as published)  [update]")
    ] = None,
    settings: Annotated[
        list[str],
        typer.Option("--set", help="any setting of the method, name=value; repeatable: --set algorithm=maml"),
    ] = [],  # noqa: B006
    teacher: Annotated[Path | None, typer.Option(help="distill: the trained model to learn from")] = None,
    pooling: PoolingOption = None,
    max_length: Annotated[int, typer.Option(min=1, help="longest input in sub-words")] = 128,
    output_heads: Annotated[
        str, typer.Option(help="linear; or native: those of transformers, which headwise export opens there")
    ] = "linear",
    track: Annotated[
        list[str], typer.Option(help="also log to wandb, tensorboard, trackio or mlflow, comma-separated or repeated")
    ] = [],  # noqa: B006
    device: DeviceOption = None,
    as_json: JsonOption = False,
    plan_file: PlanOption = None,
    *,
    plan: dict[str, Any],
) -> None:
    """Train tasks together in one model; the same command resumes an interrupted training.

    A model that headwise trained keeps its output heads; starting from its encoder/ folder gives new ones.

    Example: headwise train --model bert-base-uncased --tasks sst2,qnli --method iat --epochs 3 --out runs/iat
    """
    from headwise.experiments.works import method_of
    from headwise.io.files import require_replaceable, write_json
    from headwise.training.history import check_trackers
    from headwise.training.loop import fit
    from headwise.training.methods.prune_least import PruneLeast

    screen, out, schedule = Screen(quiet=as_json), writable(out), planned(plan_file, plan)
    require_replaceable(out / "model")
    check_trackers(names_in(track), out)
    progress = screen.progress()
    options = {"pooling": pooling, "max_length": max_length, "output_heads": output_heads}
    subject = _start(screen, model, chosen_tasks(tasks, task, data), schedule.seed, **options)
    given = {"alpha": alpha, "delta": delta, "freeze": freeze} | method_settings(settings)
    if teacher is not None:
        given["teacher"] = trained_model(teacher, task, data, device)
    chosen = method_of({"name": method, **{name: value for name, value in given.items() if value is not None}})
    history = fit(subject, schedule, chosen, out=out, device=device, progress=progress, track=names_in(track))
    subject.save_pretrained(out / "model")
    if progress.first == history.steps:
        screen.say(f"nothing to train: all {history.steps} steps of {out} are done")
    last: dict[str, Any] = history.scores[-1] if history.scores else {"scores": {}}
    _show_scores(screen, {name: task.metric for name, task in subject.tasks.items()}, last, schedule.lr)
    screen.say(f"model in {out / 'model'}")
    if isinstance(chosen, PruneLeast) and chosen.closed is not None:
        mask, count = write_json(out / "closed.json", chosen.closed.tolist()), int(chosen.closed.sum())
        screen.say(f"{count} of {chosen.closed.numel()} heads are ablated: {mask}, for headwise prune --mask")
    summary = {"model": str(out / "model"), "steps": history.steps, "trained": history.steps - progress.first}
    summary |= {"seconds": history.seconds, "scores": last["scores"], "one_class": last.get("one_class", [])}
    if as_json:
        print(machine(summary))


def _start(screen: Screen, model: str, tasks: list[Any], seed: int, **options: Any) -> Any:
    """The model to train: one of headwise with its output heads, or an encoder with new ones."""
    from headwise.models.loading import is_trained
    from headwise.models.multitask import MultiTaskModel

    if not is_trained(model):
        return MultiTaskModel.from_pretrained(model, tasks, seed=seed, **options)
    trained = MultiTaskModel.continued(model, tasks, seed=seed)
    changed = [name for name, value in options.items() if value is not None and value != getattr(trained, name)]
    if changed:
        kept = ", ".join(f"{name} {getattr(trained, name)}" for name in changed)
        screen.say(f"using the trained model's {kept}")
    return trained


def _show_scores(screen: Screen, metrics: dict[str, str], last: dict[str, Any], rate: float) -> None:
    """A line for each task's last score, and a hint where nothing was learned."""
    collapsed = last.get("one_class", [])
    for name, value in last["scores"].items():
        more = ", the same answer for every row" if name in collapsed else ""
        screen.say(f"  {name}: {metrics[name]} {100 * value:.2f} (n = {last['examples'][name]}{more})")
    if collapsed and len(collapsed) == len(last["scores"]):
        screen.say(f"no task was learned: try longer training, --clip 1, or a learning rate other than {rate:g}")


@app.command()
def prune(
    model: ModelArg,
    out: Annotated[Path, typer.Argument(help="folder to write")],
    mask: Annotated[
        Path | None, typer.Option(help="safetensors or JSON with a (layers, heads) mask: true is pruned")
    ] = None,
    scores: Annotated[
        Path | None, typer.Option(help="a study, or scores of headwise importance --out; with --fraction")
    ] = None,
    fraction: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="with --scores: the least important heads to prune"),
    ] = None,
    form: Annotated[str, typer.Option(help="masked, compact, sliced or onnx")] = "sliced",
    stack: StackOption = None,
    repair: Annotated[
        str | None,
        typer.Option(
            help="refit the remaining weights to the whole model's outputs on texts: a file with one per line, "
            "or the word corpus"
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Prune heads and save a model that is checked against the masked one, with the output heads of a trained one.

    Example: headwise prune runs/demo/model runs/small --scores runs/demo --fraction 0.3
    """
    from headwise.heads.cutting import prune as remove
    from headwise.heads.gates import Heads

    out = writable(out)
    chosen, texts = _chosen_heads(mask, scores, fraction, form), _texts(repair)
    encoder, tokenizer = plain_encoder(model)
    heads, before = Heads.of(encoder, stack=stack), sum(p.numel() for p in encoder.parameters())
    cut = chosen(heads)
    path = _write(model, encoder, tokenizer, cut, out, form, stack, texts)
    newly, earlier = int((cut & heads.alive).sum()), int((~heads.alive).sum())
    if form != "masked":  # which keeps its shapes
        remove(encoder, cut, stack)
    after = sum(p.numel() for p in encoder.parameters())
    summary = {"path": str(path), "form": form, "heads_cut": int(cut.sum()), "heads": cut.numel()}
    summary |= {"heads_newly_cut": newly, "parameters_before": before, "parameters_after": after}
    words = f"{newly} of {cut.numel()} heads pruned" + (f" ({earlier} were pruned before)" if earlier else "")
    line = f"{words}, {before:,} parameters to {after:,}, {form}: {path}"
    print(machine(summary)) if as_json else Screen().say(line)


def _texts(repair: str | None) -> list[str] | bool:
    """Read the lines of a file; True for the embedded corpus, False for no repair."""
    if repair is None or repair == "corpus":
        return repair == "corpus"
    if not Path(repair).is_file():
        raise HeadwiseError(f"--repair {repair}: no such file", "a file with one text per line, or the word corpus")
    return [line for line in Path(repair).read_text(encoding="utf-8").splitlines() if line.strip()]


def _chosen_heads(mask: Path | None, scores: Path | None, fraction: float | None, form: str) -> Callable[[Any], Any]:
    """What gives the mask of a model's heads: that of a file, or the least important by stored scores.

    The form compact can lose whole groups of heads with one key-value head only.
    """
    from headwise.pruning.cost import least_needed
    from headwise.pruning.export import read_mask

    if (mask is None) == (scores is None) or (scores is None) != (fraction is None):
        raise HeadwiseError(
            "no heads to prune", "--mask, or --scores and --fraction", "--scores runs/demo --fraction 0.3"
        )
    if scores is None or fraction is None:
        cut = read_mask(mask or Path())
        return lambda heads: cut
    importance = head_scores(scores)
    return lambda heads: least_needed(
        importance, fraction, heads.num_kv_heads if form == "compact" else heads.num_heads
    )


def _write(
    model: str, encoder: Any, tokenizer: Any, cut: Any, out: Path, form: str, stack: str | None, repair: Any
) -> Path:
    """The pruned encoder, with the output heads where a trained model has them."""
    from headwise.models.loading import BESIDE, is_trained
    from headwise.pruning.export import export, export_whole

    rest = [file for file in Path(model).iterdir() if file.name in BESIDE] if is_trained(model) else []
    if rest and form != "onnx":
        save_rest = lambda to: [copy(file, to) for file in rest]  # noqa: E731
        return export_whole(save_rest, encoder, cut, out, form, tokenizer, stack, repair)
    if rest:
        others = " and ".join(sorted(file.name for file in rest if file.suffix == ".safetensors"))
        warnings.warn(f"only the encoder is exported as onnx, without {others}", HeadwiseWarning, stacklevel=1)
    return export(encoder, cut, out, form, tokenizer=tokenizer, stack=stack, repair=repair)
