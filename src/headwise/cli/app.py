"""The program: errors end in one line; verbs print tables in a terminal and plain, readable lines in a file."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from headwise.errors import HeadwiseError
from headwise.io.progress import Progress, quiet, shown
from headwise.io.system import Terminated, raised

if TYPE_CHECKING:
    from headwise.study.stages import Stage

LIGHT = ("tasks", "ls", "records", "report", "head", "doctor")  # load no model, so transformers is not imported
ORDER = (
    *("study", "demo", "heads", "tasks", "train", "importance", "dissociate", "roles", "lab", "probe", "head", "prune"),
    *("similarity", "metatest", "submit", "predict", "export", "push", "recipe", "sweep", "report", "ls", "records"),
    "doctor",
)


class Verbs(TyperGroup):
    """The verbs in the order of the README; typer itself would hide an interrupt and its message."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=ORDER.index)

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
            name = getattr(error, "option_name", "").lstrip("-")
            if at and name in [each.name for each in at.command.params if each.param_type_name == "argument"]:
                _stop(f"no option --{name}; expected an argument. Try: headwise {verb}{name.upper()} …", 2)
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


SHADES = " ░▒▓█"


def machine(value: Any) -> str:
    """JSON that every program reads: NaN, such as the score of a pruned head, is null."""
    from headwise.io.files import finite

    return json.dumps(finite(value), allow_nan=False)


class Screen:
    """The output of a verb."""

    def __init__(self, quiet: bool = False):
        self.quiet = quiet
        wide = None if sys.stdout.isatty() else 240  # a file has no edge to wrap at
        self.console = Console(highlight=False, soft_wrap=wide is not None, width=wide)
        self.begun = time.perf_counter()

    def progress(self) -> Progress:
        return quiet() if self.quiet else shown()

    def say(self, line: str) -> None:
        if not self.quiet:
            self.console.print(Text(line))

    def stage(self, stage: Stage) -> None:
        """Announce a stage of a study."""
        if not self.quiet:
            spent = time.perf_counter() - self.begun
            self.console.print(Text.assemble((stage.title, "bold"), (f"  ({spent:.0f} s)", "dim")))

    def detail(self, line: str) -> None:
        """Print a line about the work in progress."""
        self.say(f"  {line}")

    def verdict(self, sentences: Sequence[str], page: Path) -> None:
        self.console.print()
        self.console.print(Text("Findings", style="bold"))
        for sentence in sentences:
            self.console.print(Text(f"  • {sentence}"))
        self.console.print()
        self.console.print(Text.assemble("Report: ", (str(page.resolve()), "bold")))

    def head_maps(self, model: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """The map of a model: a dot for every head that is there."""
        for row in rows:
            groups = "" if row["kv_heads"] == row["heads"] else f", {row['kv_heads']} key-value groups"
            size = f"{row['layers']} layers × {row['heads']} heads of size {row['head_dim']}{groups}"
            self.say(f"{model}: {row['family']}, {row['stack']} stack, {size}")
            for layer in reversed(range(row["layers"])):
                dots = " ".join("●" if alive else "·" for alive in row["alive"][layer])
                self.say(f"  {layer:3d}  {dots}")
            able = "gate, capture" + (", train single heads, cut" if row["train_and_cut"] else "")
            self.say(f"  can: {able}")
            if not row["train_and_cut"]:
                self.say(
                    "  cannot: train or cut single heads (their q, k, v slices are not known, or layers share weights)"
                )
            self.say(f"  projections: {row['output_projections'][0]} … {row['output_projections'][-1]}")
            if not row["verified"]:
                self.say("  unverified: found by name, because no forward could be run")
            if row["uncovered"]:
                self.say(f"  attention not covered: {', '.join(row['uncovered'])}")

    def score_map(self, scores: Any, line: str) -> None:
        """Importance as a shaded map, layer 0 at the bottom."""
        self.say(line)
        high = float(scores.nan_to_num(0).max()) or 1.0
        for layer in reversed(range(len(scores))):
            cells = [float(x) for x in scores[layer].nan_to_num(0)]
            self.say(f"  {layer:3d}  " + "".join(SHADES[min(4, max(0, int(5 * x / high)))] * 2 for x in cells))

    def card(self, card: Mapping[str, Any]) -> None:
        """Print one head: bars for fractions, numbers for the rest."""
        owner = f", ranks highest for {card['owner']}" if card["owner"] else ""
        self.console.print(Text(f"head {card['head']}{owner}", style="bold"))
        beside = card.get("beside", {})
        for task, row in card["importance"].items():
            other = f"   second checkpoint: {_rank(beside[task])}" if task in beside else ""
            self._bar(task, row["share"], f"{_rank(row)}, {_digits(row['score'])}{other}")
        for title, part in (("encodes", "probes"), ("gate", "gates"), ("roles", "roles"), ("looks at", "looks")):
            if part in card:
                self.say(title)
            for name, value in card.get(part, {}).items():
                if part == "probes":
                    self._bar(
                        name, value["accuracy"], f"{_digits(value['accuracy'])}, chance {_digits(value['chance'])}"
                    )
                elif name == "entropy":
                    self.say(f"  entropy {_digits(value)}")
                else:
                    self._bar(name, value, _digits(value))
        near = ", ".join(f"{one['head']} ({one['distance']:.2f})" for one in card["alike"])
        self.say(f"most alike (distance in standard deviations, 0 is the same): {near}")

    def _bar(self, name: str, share: float | None, words: str) -> None:
        full = round(20 * min(1.0, max(0.0, share or 0.0)))
        self.say(f"  {name:<24} {'█' * full}{'·' * (20 - full)}  {words}")

    def task_list(self, rows: Sequence[Mapping[str, Any]]) -> None:
        columns = ("name", "kind", "language", "metric", "sizes", "origin")
        self._table(columns, [[_short(row.get(c)) for c in columns] for row in rows])

    def task(self, shown: Mapping[str, Any]) -> None:
        about, statistics = shown["about"], shown["statistics"]
        for name, value in about.items():
            if value:
                self.say(f"{name}: {_short(value)}")
        for name, value in statistics.items():
            if value is None or value == about.get(name):
                continue
            if name == "examples":
                self.say("examples:")
                for example in value:
                    self.say(f"  {_short(example, 300)}")
            elif name == "lengths":
                self.say("lengths in words:")
                self._bars({f"{low}-{high}": count for low, high, count in value})
            elif isinstance(value, Mapping):
                self.say(f"{name}:")
                self._bars(value)
            else:
                self.say(f"{name}: {value}")

    def _bars(self, counts: Mapping[str, Any]) -> None:
        numbers = {str(k): v for k, v in counts.items() if isinstance(v, (int, float))}
        widest = max((len(k) for k in numbers), default=0)
        most = max(numbers.values(), default=0) or 1
        for name, value in list(numbers.items())[:30]:
            self.say(f"  {name.rjust(widest)}  {'█' * round(40 * value / most)} {value}")

    def rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """A plain table of any records with the same fields."""
        columns = list(rows[0]) if rows else []
        shown = [
            [f"{row[c]:.4g}" if isinstance(row[c], float) else _short(row[c], 60) for c in columns] for row in rows
        ]
        self._table(columns, shown)

    def records(self, rows: Sequence[Mapping[str, Any]]) -> None:
        works = [row["work"].rpartition(":")[2] for row in rows]  # without the module of one that is not registered
        scores = [", ".join(f"{task} {100 * value:.1f}" for task, value in row["scores"].items()) for row in rows]
        shown = [
            {**row, "work": work, "what": _short(row["what"], 64), "scores": _short(words, 64)}
            for row, work, words in zip(rows, works, scores)
        ]
        columns = ["key", "work", "what", *(["scores"] if any(scores) else []), "created", "folder"]
        self._table(columns, [[str(row[c]) for c in columns] for row in shown])

    def scores(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Scores in percent: a row per job, a column per task."""
        columns = list(dict.fromkeys(name for row in rows for name in row))
        cells = [
            ["" if c not in row else row[c] if c == "job" else f"{100 * row[c]:.1f}" for c in columns] for row in rows
        ]
        self._table(columns, cells)

    def differences(self, keys: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
        self._table(("", *keys), [[row["name"], _short(row["a"], 60), _short(row["b"], 60)] for row in rows])

    def jobs(self, rows: Sequence[Mapping[str, Any]]) -> None:
        columns = ("key", "work", "title")
        self._table(columns, [[str(row[c]) for c in columns] for row in rows])
        self.say(f"{len(rows)} jobs")

    def items(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """The tables and figures of papers."""
        columns = ("paper", "item", "shows", "jobs", "hours", "status", "command")
        cells = [[f"{row[c]:.1f}" if c == "hours" else str(row[c]) for c in columns] for row in rows]
        self._table(columns, cells)
        self.say("hours: estimated for this machine, one job at a time")

    def doctor(self, report: Mapping[str, Any]) -> None:
        for part, values in report.items():
            self.console.print(Text(part, style="bold"))
            for name, value in values.items():
                self.say(f"  {name}: {value}")

    def _table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        table = Table(*columns, box=None, pad_edge=False)
        for row in rows:
            table.add_row(*map(Text, row))
        self.console.print(table)


def _short(value: Any, limit: int = 80) -> str:
    if isinstance(value, Mapping):
        value = ", ".join(f"{k} {v}" for k, v in value.items() if v is not None)
    text = str(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _rank(row: Mapping[str, Any]) -> str:
    return f"rank {row['rank']} of {row['of']}" if row["rank"] else "cut"


def _digits(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"
