"""What verbs take: options they share, every field of a plan as a flag, and the tasks and models options name."""

from __future__ import annotations

import inspect
import os
import typing
from collections.abc import Callable, Collection, Sequence
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.errors import HeadwiseError, unknown
from headwise.training.plan import CHOICES, Plan
from headwise.training.sampling import samplers

PANEL = "Training plan"


def _device(asked: str | None) -> str | None:
    """The device asked for, if it is there: told before any work."""
    if asked:
        from headwise.models.multitask import default_device

        default_device(asked)
    return asked


ModelArg = Annotated[str, typer.Argument(help="a folder written by save_pretrained, or a name on the Hugging Face Hub")]
ModelOption = Annotated[str, typer.Option("--model", "-m", help="a folder or a name on the Hugging Face Hub")]
TasksOption = Annotated[
    list[str], typer.Option("--tasks", "-t", help="names of tasks, with commas; `headwise tasks` lists them")
]
OwnOption = Annotated[list[str], typer.Option("--task", help="a task of your own: mine=reviews.csv:text,label")]
DataOption = Annotated[Path | None, typer.Option("--data", help="folder of task data (default: $HEADWISE_DATA)")]
OutOption = Annotated[Path | None, typer.Option("--out", "-o", help="folder to write to")]
DeviceOption = Annotated[
    str | None,
    typer.Option(
        "--device", help="device, e.g. cpu, cuda:1 or mps (default: the accelerator if available)", callback=_device
    ),
]
PoolingOption = Annotated[
    str | None, typer.Option("--pooling", help="cls, mean or last (default: last for causal models, else cls)")
]
JsonOption = Annotated[bool, typer.Option("--json", help="print JSON")]
StackOption = Annotated[
    str | None, typer.Option("--stack", help="attention stack, e.g. encoder, decoder, cross, text, vision or audio")
]
# Choices are written out where their registries would import torch; a test holds them to those.
ESTIMATORS = (
    "ablation, all_but_one, attribution, batch, causal_gating, confidence, fisher, gradient, integrated_gradients, "
    "l0, magnitude, mean_ablation, random, shapley, taylor, token or weight"
)
ByOption = Annotated[str, typer.Option("--by", help=f"importance estimator: {ESTIMATORS}")]
ExamplesOption = Annotated[int, typer.Option("--examples", min=1, help="training examples for importance")]


def with_plan(verb: Callable[..., None]) -> Callable[..., None]:
    """Give a verb ``--plan FILE`` and one flag per field of `Plan`; it receives ``plan=``."""
    hints = typing.get_type_hints(verb, include_extras=True)
    own = [
        p.replace(annotation=hints.get(n, p.annotation))
        for n, p in inspect.signature(verb).parameters.items()
        if n != "plan"
    ]
    kinds = typing.get_type_hints(Plan)
    file = typer.Option("--plan", help="a TOML file with any of these fields", rich_help_panel=PANEL)
    flags = [_parameter("plan_file", Path | None, file)]
    for item in fields(Plan):
        kind = list[str] if item.name == "order" else kinds[item.name]
        option = typer.Option(f"--{item.name.replace('_', '-')}", help=_help(item.name), rich_help_panel=PANEL)
        flags.append(_parameter(f"plan_{item.name}", kind | None if item.name != "order" else list[str] | None, option))

    @wraps(verb)
    def wrapped(**given: Any) -> None:
        changes = {n.removeprefix("plan_"): given.pop(n) for n in [f.name for f in flags]}
        file = changes.pop("file")
        plan = Plan.read(file) if file else Plan()
        verb(**given, plan=plan.with_(**{n: v for n, v in changes.items() if v is not None and v != []}))

    wrapped.__signature__ = inspect.Signature([*own, *flags])  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in [*own, *flags]}
    del wrapped.__wrapped__  # type: ignore[attr-defined]
    return wrapped


def _parameter(name: str, kind: Any, option: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option])


def _help(name: str) -> str:
    """The line under the field in the source of `Plan`, its choices and its default."""
    lines = [line.strip() for line in inspect.getsource(Plan).splitlines()]
    at = next(i for i, line in enumerate(lines) if line.startswith(f"{name}:"))
    said = lines[at + 1].strip('"') if lines[at + 1].startswith('"""') else ""
    if name == "order":
        return f"{said} One flag for each: --order news --order reviews"
    if choices := {**CHOICES, "sampling": (*samplers, "fixed")}.get(name):
        said = f"{said} One of: {', '.join(choices)}".strip()
    default = getattr(Plan(), name)
    return f"{said} \\[default: {default}]".strip() if default is not None else said  # a bracket bare is markup


def names_in(given: Sequence[str]) -> tuple[str, ...]:
    """All names of an option that takes them with commas, and may be repeated.

    Example:
        >>> names_in(["iat,prune", "looks"])
        ('iat', 'prune', 'looks')
    """
    return tuple(part.strip() for text in given for part in text.split(",") if part.strip())


def shares_in(given: Sequence[str]) -> list[float]:
    """Numbers from 0 to 1 with commas."""
    text = ",".join(given)
    try:
        found = [float(part) for part in names_in(given)]
    except ValueError as error:
        raise HeadwiseError(f"{text!r}: {error}", "numbers with commas", "0.1,0.3,0.5") from None
    if not found:
        raise HeadwiseError("no shares of heads", "numbers with commas", "0.1,0.3,0.5")
    if wrong := [share for share in found if not 0 <= share <= 1]:
        hint = f"{wrong[0] / 100:g} for {wrong[0]:g} %" if wrong[0] > 1 else "0.1,0.3,0.5"
        raise HeadwiseError(f"a share of {wrong[0]:g}", "numbers from 0 to 1 with commas", hint)
    return found


def writable(path: Path, file: bool = False) -> Path:
    """A folder, or a file, that can be written: what stands in the way is told before any work."""
    place = path.absolute().parent if file else path.absolute()
    try:
        there = next(folder for folder in (place, *place.parents) if folder.exists())
        seen = f"{path} is a folder" if file and path.is_dir() else "" if there.is_dir() else f"{there} is a file"
    except OSError as error:  # a name too long, a folder one may not look into
        seen, there = f"{path}: {error.strerror}", place
    if not seen and not os.access(there, os.W_OK | os.X_OK):
        seen = f"no right to write in {there}"
    if seen:
        raise HeadwiseError(seen, f"a {'file' if file else 'folder'} that can be written", "another place to write to")
    return path


def pairs_in(texts: list[str]) -> dict[str, str]:
    """``name=value`` texts as a dict."""
    for text in texts:
        if "=" not in text:
            raise HeadwiseError(f"{text!r}", "name=value", "kind=importance")
    return dict(text.split("=", 1) for text in texts)


def named_folders(texts: list[str]) -> dict[str, str]:
    """Models by name: ``name=folder``, or a folder or Hub name alone, whose last part (not "model") is the name."""
    from headwise.models.loading import name_of

    found: dict[str, str] = {}
    for text in texts:
        name, _, folder = text.partition("=") if "=" in text and not Path(text).exists() else (name_of(text), "", text)
        if name in found:
            raise HeadwiseError(f"two models named {name!r}", "a name for each", f"--model first={found[name]}")
        found[name] = folder
    return found


def chosen_tasks(names: Sequence[str], own: list[str], data: Path | None) -> list[Any]:
    """Tasks by name and from one's own files."""
    from headwise import tasks as catalog

    found = [catalog.get(name, data) for name in names_in(names)] + [catalog.own(spec) for spec in own]
    if not found:
        raise HeadwiseError("no tasks", "names or files", "--tasks corpus.sentiment,corpus.topic")
    return found


def trained_model(path: Path, own: list[str], data: Path | None, device: str | None, only: Collection[str] = ()) -> Any:
    """A model that headwise trained, with its tasks or some of them; own files may be given anew."""
    from headwise import tasks as catalog
    from headwise.io.files import read_json
    from headwise.models.folders import ABOUT
    from headwise.models.multitask import MultiTaskModel, default_device

    if not (path / ABOUT).exists():
        raise HeadwiseError(f"{path} holds no model of headwise train or study", f"a folder with {ABOUT}")
    about = read_json(path / ABOUT)
    names, share = about.get("tasks", {}), about.get("share") or {}
    files = {spec.split("=")[0]: spec for spec in own}
    for name in (*files, *only):
        if name not in names:
            raise unknown("task of this model", name, names)
    wanted = {*only, *(share[name] for name in only if name in share)} or set(names)  # and whose output head they use
    made = MultiTaskModel.load(path, [catalog.own(spec) for spec in files.values()], only=wanted, data=data)
    return made.to(default_device(device))


def plain_encoder(model: str) -> tuple[Any, Any]:
    """An encoder and its tokenizer: of a folder or Hub name, of a model that headwise trained, or of one it cut."""
    from headwise.models.folders import ABOUT, is_trained, load
    from headwise.models.loading import load_encoder

    path = Path(model)
    if not is_trained(path) and (path / ABOUT).exists():
        from transformers import AutoImageProcessor, AutoTokenizer

        readers = {"tokenizer*": AutoTokenizer, "preprocessor_config.json": AutoImageProcessor}
        reader = next((reader for files, reader in readers.items() if any(path.glob(files))), None)
        return load(path), reader.from_pretrained(path, local_files_only=True) if reader else None
    return load_encoder(model)
