"""Every field of a plan as a flag of a verb: one source for Python, TOML and the command line."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.plan import Plan

PANEL = "Training plan"


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
    """The line under the field in the source of `Plan`, and its default."""
    lines = [line.strip() for line in inspect.getsource(Plan).splitlines()]
    at = next(i for i, line in enumerate(lines) if line.startswith(f"{name}:"))
    said = lines[at + 1].strip('"') if lines[at + 1].startswith('"""') else ""
    default = getattr(Plan(), name)
    return f"{said} [default: {default}]" if default is not None else said
