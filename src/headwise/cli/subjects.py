"""The model that a verb measures: of headwise train or study, or any checkpoint with its own output head."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.cli.options import trained_model
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
    from headwise.models.folders import ABOUT
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
