"""Dataclasses on the command line: a training plan and the settings of a study, one flag per field."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache, wraps
from pathlib import Path
from typing import Annotated, Any, Self

import typer

from headwise.cli.options import ESTIMATORS, fractions_in, names_in
from headwise.errors import unknown
from headwise.io.toml import read_toml, to_toml
from headwise.study.stages import STAGES, Settings
from headwise.training.plan import CHOICES, Plan, check_fields
from headwise.training.sampling import samplers

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
    """All that `headwise study` can be told: what its config file holds, and its flags."""

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
        """The file's values, replaced by those given on the command line."""
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
        """As a file that gives the same study."""
        settings = vars(self.settings)
        return to_toml({**vars(self), **settings, "settings": None, "plan": asdict(settings["plan"])})
