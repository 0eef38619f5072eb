"""Options that verbs share, the tasks and models that they name, and dataclasses as flags, one for every field."""

from __future__ import annotations

import inspect
import json
import math
import os
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache, wraps
from pathlib import Path
from typing import Annotated, Any, Self

import typer

from headwise.errors import HeadwiseError, unknown
from headwise.io.text import read_toml, to_toml
from headwise.study.stages import STAGES, Settings
from headwise.training.plan import CHOICES, Plan, check_fields, samplers


def _device(asked: str | None) -> str | None:
    """Check before any work that the requested device exists."""
    if asked:
        from headwise.models.device import default_device

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
ESTIMATORS = (  # written out, as their registry would import torch; a test compares the two
    *("ablation", "all_but_one", "attribution", "batch", "causal_gating", "confidence", "fisher", "gradient"),
    *("integrated_gradients", "l0", "magnitude", "mean_ablation", "random", "shapley", "taylor", "token", "weight"),
)
ByOption = Annotated[str, typer.Option("--by", help=f"importance estimator: {', '.join(ESTIMATORS)}")]
ExamplesOption = Annotated[int, typer.Option("--examples", min=1, help="training examples for importance")]


def names_in(given: Sequence[str]) -> tuple[str, ...]:
    """All names of a repeatable, comma-separated option.

    Example:
        >>> names_in(["iat,prune", "looks"])
        ('iat', 'prune', 'looks')
    """
    return tuple(part.strip() for text in given for part in text.split(",") if part.strip())


def fractions_in(given: Sequence[str]) -> list[float]:
    """Comma-separated numbers from 0 to 1."""
    text = ",".join(given)
    try:
        values = [float(part) for part in names_in(given)]
    except ValueError as error:
        raise HeadwiseError(f"{text!r}: {error}", "comma-separated numbers", "0.1,0.3,0.5") from None
    if not values:
        raise HeadwiseError("no fractions of heads", "comma-separated numbers", "0.1,0.3,0.5")
    if outside := [value for value in values if not 0 <= value <= 1]:
        hint = f"{outside[0] / 100:g} for {outside[0]:g} %" if outside[0] > 1 else "0.1,0.3,0.5"
        raise HeadwiseError(f"a fraction of {outside[0]:g}", "comma-separated numbers from 0 to 1", hint)
    return values


def writable(path: Path, file: bool = False) -> Path:
    """Check before any work that a folder or file can be written."""
    place = path.absolute().parent if file else path.absolute()
    try:
        there = next(folder for folder in (place, *place.parents) if folder.exists())
        seen = f"{path} is a folder" if file and path.is_dir() else "" if there.is_dir() else f"{there} is a file"
    except OSError as error:  # a name too long, a folder one may not look into
        seen, there = f"{path}: {error.strerror}", place
    if not seen and not os.access(there, os.W_OK | os.X_OK):
        seen = f"no permission to write in {there}"
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
    """Models by name: ``name=folder``, or a folder or Hub name, whose last part (except "model") is the name."""
    from headwise.models.loading import name_of

    folders: dict[str, str] = {}
    for text in texts:
        name, _, folder = text.partition("=") if "=" in text and not Path(text).exists() else (name_of(text), "", text)
        if name in folders:
            raise HeadwiseError(f"two models named {name!r}", "a name for each", f"--model first={folders[name]}")
        folders[name] = folder
    return folders


def method_settings(given: Sequence[str]) -> dict[str, Any]:
    """Settings written ``name=value``; values are JSON or text, and a dot reaches inside: ``trim.prune=0.3``.

    Example:
        >>> method_settings(["algorithm=maml", "steps=2", "trim.prune=0.3"])
        {'algorithm': 'maml', 'steps': 2, 'trim': {'prune': 0.3}}
    """
    settings: dict[str, Any] = {}
    for each in given:
        name, mark, value = each.partition("=")
        if not (name and mark):
            raise HeadwiseError(f"--set {each}", "name=value", "--set algorithm=maml")
        *outer, last = name.split(".")
        inner = settings
        for part in outer:
            inner = inner.setdefault(part, {})
            if not isinstance(inner, dict):
                raise HeadwiseError(f"--set {each}", f"settings inside {part}, which has a value of its own")
        try:
            inner[last] = json.loads(value)
        except ValueError:
            inner[last] = value
    return settings


def chosen_tasks(names: Sequence[str], own: list[str], data: Path | None) -> list[Any]:
    """Tasks by name and from your own files."""
    from headwise import tasks as catalog

    chosen = [catalog.get(name, data) for name in names_in(names)] + [catalog.own(spec) for spec in own]
    if not chosen:
        raise HeadwiseError("no tasks", "names or files", "--tasks corpus.sentiment,corpus.topic")
    return chosen


def trained_model(path: Path, own: list[str], data: Path | None, device: str | None, only: Collection[str] = ()) -> Any:
    """A model that headwise trained, with all or some of its tasks; own files may be given again."""
    from headwise import tasks as catalog
    from headwise.io.files import read_json
    from headwise.models.device import default_device
    from headwise.models.loading import ABOUT, trained_folder
    from headwise.models.multitask import MultiTaskModel

    path = trained_folder(path)
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
    """An encoder and its tokenizer from a folder, a Hub name, or a model that headwise trained or pruned."""
    from headwise.models.loading import ABOUT, is_trained, load, load_encoder

    path = Path(model)
    if not is_trained(path) and (path / ABOUT).exists():
        from transformers import AutoImageProcessor, AutoTokenizer

        readers = {"tokenizer*": AutoTokenizer, "preprocessor_config.json": AutoImageProcessor}
        reader = next((reader for files, reader in readers.items() if any(path.glob(files))), None)
        return load(path), reader.from_pretrained(path, local_files_only=True) if reader else None
    return load_encoder(model)


def head_scores(path: Path) -> dict[str, Any]:
    """Each task's head scores as tensors, from a study or a file of ``headwise importance --out``."""
    import torch

    from headwise.io.files import read_arrays
    from headwise.study.schema import checked, read_study

    if path.is_file() and _holds_arrays(path):
        return {task: torch.from_numpy(scores) for task, scores in read_arrays(path)[0].items()}
    importance = checked(read_study(path))["importance"]
    return {task: torch.tensor(_numbers(entry["scores"])) for task, entry in importance.items()}


def _holds_arrays(path: Path) -> bool:
    """Whether a file starts like safetensors, whatever its name: the length of its header, then the header."""
    with path.open("rb") as file:
        start = file.read(9)
    return start[8:] == b"{" and int.from_bytes(start[:8], "little") < path.stat().st_size


def _numbers(matrix: list[list[float | None]]) -> list[list[float]]:
    return [[math.nan if score is None else score for score in row] for row in matrix]


Verb = Callable[..., None]
PlanOption = Annotated[
    Path | None,
    typer.Option("--plan", help="a TOML file with any of these fields", rich_help_panel="Training plan"),
]
ALLOWED = {
    Plan: {**CHOICES, "sampling": (*samplers.registered(), "fixed")},
    Settings: {"by": ESTIMATORS, "skip": tuple(stage.name for stage in STAGES.values() if stage.skippable)},
}


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


@cache
def _source(kind: type) -> list[str]:
    return [line.strip() for line in inspect.getsource(kind).splitlines()]


def with_fields(name: str, kind: type, panel: str) -> Callable[[Verb], Verb]:
    """Give a verb a flag for each field of a dataclass; it receives the fields that were given as the dict ``name``.

    Fields that are dataclasses themselves are left to a decorator of their own, and fields of the verb's own options to
    the verb.
    """
    kinds = {n: k for n, k in _hints(kind).items() if not hasattr(k, "__dataclass_fields__")}

    def decorate(verb: Verb) -> Verb:
        hints = typing.get_type_hints(verb, include_extras=True)
        own = [
            parameter.replace(annotation=hints.get(n, parameter.annotation))
            for n, parameter in inspect.signature(verb).parameters.items()
            if n != name
        ]
        taken = {parameter.name for parameter in own}
        flags = {
            field: _flag(f"{name}_{field}", field, kind, hint, panel)
            for field, hint in kinds.items()
            if field not in taken
        }

        @wraps(verb)
        def wrapped(**given: Any) -> None:
            values = {field: given.pop(flag.name) for field, flag in flags.items()}
            verb(**given, **{name: {f: _parsed(v, kinds[f]) for f, v in values.items() if v is not None and v != []}})

        parameters = [*own, *flags.values()]
        wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapped.__annotations__ = {p.name: p.annotation for p in parameters}
        del wrapped.__wrapped__  # type: ignore[attr-defined]
        return wrapped

    return decorate


with_plan = with_fields("plan", Plan, "Training plan")
with_settings = with_fields("settings", Settings, "Settings")


def _flag(parameter: str, field: str, kind: type, hint: Any, panel: str) -> inspect.Parameter:
    taken = list[str] if _several(hint) else hint
    option = typer.Option(f"--{field.replace('_', '-')}", help=describe(kind, field), rich_help_panel=panel)
    return inspect.Parameter(
        parameter, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[taken | None, option]
    )


def _several(hint: Any) -> bool:
    return typing.get_origin(hint) is tuple


def _parsed(value: Any, hint: Any) -> Any:
    if not _several(hint):
        return value
    return names_in(value) if typing.get_args(hint)[0] is str else tuple(fractions_in(value))


def describe(kind: type, field: str) -> str:
    """A flag's help: the line under the field in the source, its choices and its default."""
    lines = _source(kind)
    at = next(i for i, line in enumerate(lines) if line.startswith(f"{field}:"))
    hints = _hints(kind)
    words = [lines[at + 1].strip('"')] if lines[at + 1].startswith('"""') else []
    if _several(hints[field]):
        words.append("Comma-separated, or repeated.")
    if choices := ALLOWED[kind].get(field):
        words.append(f"One of: {', '.join(choices)}.")
    default = getattr(next(f for f in fields(kind) if f.name == field), "default", None)
    shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
    if shown not in (None, ""):
        words.append(f"\\[default: {shown}]")  # a bare bracket would be markup
    return " ".join(words)


def planned(file: Path | None, changes: Mapping[str, Any]) -> Plan:
    """The plan of a file, if there is one, with the fields given as flags."""
    return (Plan.read(file) if file else Plan()).with_(**changes)


@dataclass(frozen=True)
class StudyConfig:
    """All options of `headwise study`: its config file and its flags."""

    settings: Settings
    model: str = ""
    tasks: tuple[str, ...] = ()
    task: tuple[str, ...] = ()
    data: str | None = None
    out: str | None = None
    device: str | None = None

    def __post_init__(self) -> None:
        check_fields(self, ())

    @classmethod
    def read(cls, file: Path | None, given: Mapping[str, Any], plan: Mapping[str, Any], plan_file: Path | None) -> Self:
        """The file's values, overridden by those on the command line."""
        values = read_toml(file, "config", 'model = "bert-base-uncased"') if file else {}
        places = {item.name for item in fields(cls)} - {"settings"}
        known = {*places, *(item.name for item in fields(Settings))}
        for name in values:
            if name not in known:
                raise unknown(f"field of {file}", name, known)
        base = Plan.read(plan_file) if plan_file else Plan().with_(**values.pop("plan", {}))
        values = {**values, **{name: value for name, value in given.items() if value}, "plan": base.with_(**plan)}
        settings = Settings(**{name: value for name, value in values.items() if name not in places})
        return cls(**{name: value for name, value in values.items() if name in places}, settings=settings)

    def to_toml(self) -> str:
        """The config as a TOML file of the same study."""
        settings = vars(self.settings)
        return to_toml({**vars(self), **settings, "settings": None, "plan": asdict(settings["plan"])})
