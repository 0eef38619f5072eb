"""The verb that opens the live page: lab."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headwise.cli.app import app
from headwise.cli.options import DataOption, DeviceOption, OwnOption, TasksOption, head_scores, names_in, writable


@app.command()
def lab(
    target: Annotated[
        str,
        typer.Argument(help="a folder of headwise study, demo or train, or a model by folder or Hub name"),
    ],
    tasks: TasksOption = [],  # noqa: B006
    task: OwnOption = [],  # noqa: B006
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="the model of a study that trained none, by folder or Hub name")
    ] = None,
    scores: Annotated[
        Path | None, typer.Option(help="importance of the model's heads: a study, or a file of headwise importance")
    ] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="port; 0 picks a free one")] = None,
    host: Annotated[str, typer.Option(help="address to listen on; others than loopback are reached by others")] = (
        "127.0.0.1"
    ),
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="open the page in a browser")] = True,
    exports: Annotated[
        Path | None, typer.Option(help="folder for cut models (default: lab/ in the folder of the run)")
    ] = None,
    static: Annotated[
        Path | None, typer.Option(help="write a page that needs no server into this folder, and stop")
    ] = None,
    runtime: Annotated[Path, typer.Option(help="the npm package onnxruntime-web, for --static")] = Path(
        "node_modules/onnxruntime-web"
    ),
    data: DataOption = None,
    device: DeviceOption = None,
) -> None:
    """Serve a page on which heads are closed while every answer is watched, until Ctrl-C.

    Example: headwise lab runs/demo
    """
    from headwise import tasks as catalog
    from headwise.lab.opening import open_lab
    from headwise.lab.server import serve
    from headwise.lab.static import write_static

    chosen = [catalog.get(name, data) for name in names_in(tasks)] + [catalog.own(spec) for spec in task]
    folder = writable(exports) if exports else None
    known = {name: values.tolist() for name, values in head_scores(scores).items()} if scores else None
    opened = open_lab(target, chosen, data, model, "cpu" if static else device, folder, known)
    if static:
        print(f"any web server can serve it: {write_static(opened, writable(static), runtime) / 'lab.html'}")
        return
    serve(opened, host, port, browser, lambda line: print(line, flush=True))  # whole addresses, however narrow
