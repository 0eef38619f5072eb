"""Verbs that run a whole study: study, demo."""

from __future__ import annotations

import shlex
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwise.cli.app import Screen, app, machine
from headwise.cli.options import (
    DataOption,
    DeviceOption,
    JsonOption,
    OutOption,
    OwnOption,
    PlanOption,
    StudyConfig,
    TasksOption,
    chosen_tasks,
    names_in,
    with_plan,
    with_settings,
    writable,
)
from headwise.errors import HeadwiseError

if TYPE_CHECKING:
    from headwise.study.study import Study


@app.command()
@with_settings
@with_plan
def study(
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="a folder or a name on the Hugging Face Hub")
    ] = None,
    tasks: TasksOption = [],  # noqa: B006
    task: OwnOption = [],  # noqa: B006
    data: DataOption = None,
    out: OutOption = None,
    config: Annotated[
        Path | None, typer.Option(help="a TOML file with any of these options; command-line flags override it")
    ] = None,
    dump_config: Annotated[bool, typer.Option(help="print the config of this study and stop")] = False,
    device: DeviceOption = None,
    as_json: JsonOption = False,
    plan_file: PlanOption = None,
    *,
    plan: dict[str, Any],
    settings: dict[str, Any],
) -> None:
    """Train tasks together, find each task's heads, ablate them, and write the report.

    Example: headwise study --model bert-base-uncased --tasks sst2,qnli,mnli --data data/
    """
    from headwise.study.study import Study

    given = {"model": model, "tasks": names_in(tasks), "task": task, "data": data and str(data)}
    given = {**given, "out": out and str(out), "device": device, **settings}
    chosen = StudyConfig.read(config, given, plan, plan_file)
    if dump_config:
        print(chosen.to_toml(), end="")
        return
    if not chosen.model:
        raise HeadwiseError("no model", "a folder or a name on the Hugging Face Hub", "--model bert-base-uncased")
    rows = chosen_tasks(chosen.tasks, list(chosen.task), Path(chosen.data) if chosen.data else None)
    name = f"{Path(chosen.model).name}-{'-'.join(task.name for task in rows)}"[:100]
    folder, screen = writable(Path(chosen.out or Path("runs") / name)), Screen(quiet=as_json)
    options = {**_shown_on(screen), "device": chosen.device}
    _finish(screen, Study(chosen.model, rows, chosen.settings, folder, **options), as_json)


@app.command()
def demo(
    quick: Annotated[bool, typer.Option(help="use fewer examples and lesions")] = False,
    data: DataOption = None,
    out: OutOption = None,
    seed: Annotated[int, typer.Option(help="random seed")] = 0,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a whole study on a real pretrained encoder, without a network.

    Example: headwise demo --quick
    """
    from headwise.study.demo import demo_study

    screen = Screen(quiet=as_json)
    folder = writable(out or Path("runs") / ("demo-quick" if quick else "demo"))
    _finish(screen, demo_study(folder, quick, data, seed, **_shown_on(screen), device=device), as_json)


def _shown_on(screen: Screen) -> dict[str, Any]:
    """Connect a study to the terminal and put the command into its report."""
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
