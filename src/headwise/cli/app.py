"""The program: verbs are registered on it, and every error ends in one line."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from headwise.errors import HeadwiseError
from headwise.io.system import Terminated, raised

LIGHT = ("tasks", "ls", "records", "report", "head", "doctor")  # load no model, so transformers is not imported


class Verbs(TyperGroup):
    """The verbs; typer itself would hide an interrupt and its message."""

    def invoke(self, ctx: Any) -> Any:
        try:
            with raised():
                return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            raise Stopped(str(stop) or "stopped", 143 if isinstance(stop, Terminated) else 130) from stop


class Stopped(Exception):
    """Ctrl-C or SIGTERM, with the exit code that shells expect."""

    def __init__(self, message: str, code: int):
        super().__init__(message)
        self.code = code


app = typer.Typer(
    cls=Verbs,
    help="Find, measure and use the functional specialization of attention heads.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        from headwise import __version__

        print(f"headwise {__version__}")
        raise typer.Exit


@app.callback()
def options(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="show the version")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="show full tracebacks (any position)")] = False,
) -> None:
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if ctx.invoked_subcommand not in LIGHT:
        from transformers.utils import logging

        logging.disable_progress_bar()
    warnings.formatwarning = lambda message, *_, **__: f"headwise: note: {message}\n"


def main() -> None:
    """Run the command line: usage errors end in one line and exit code 2, failures in one line and exit code 1."""
    try:
        code = app(args=[word for word in sys.argv[1:] if word != "--debug"] or ["--help"], standalone_mode=False)
    except HeadwiseError as error:
        _stop(str(error), 2)
    except Stopped as error:
        _stop(str(error), error.code)
    except Exception as error:
        if message := getattr(error, "format_message", None):  # of the option parser
            at = getattr(error, "ctx", None)
            verb = f"{at.info_name} " if at and at.parent else ""  # the program itself has no parent
            _stop(f"{message()} Try: headwise {verb}--help", 2)
        _stop(f"{type(error).__name__}: {error}", 1)
    else:
        if code:  # of a typer.Exit: the verb has printed why
            sys.exit(code)


def _stop(message: str, code: int) -> None:
    if "--debug" in sys.argv:
        traceback.print_exc()
    print(f"headwise: {message}", file=sys.stderr)
    sys.exit(code)
