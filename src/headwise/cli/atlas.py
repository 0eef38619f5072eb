"""The verb that says what heads attend to: roles."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headwise.cli.app import app
from headwise.cli.options import DataOption, DeviceOption, JsonOption, ModelArg, plain_encoder, writable
from headwise.cli.screen import Screen, machine
from headwise.errors import HeadwiseError

if TYPE_CHECKING:
    from headwise.atlas.result import Roles


@app.command()
def roles(
    model: ModelArg,
    task: Annotated[
        str | None, typer.Option(help="measure on a task's training rows, such as ud.en_ewt.dep (default: corpus.dep)")
    ] = None,
    texts: Annotated[Path | None, typer.Option(help="measure on a file with one text per line")] = None,
    role: Annotated[str | None, typer.Option(help="show this role alone")] = None,
    top: Annotated[int, typer.Option(help="heads shown for each role")] = 3,
    untrained: Annotated[bool, typer.Option(help="also measure a re-initialised model, as a floor")] = False,
    examples: Annotated[int, typer.Option(help="texts to measure on")] = 512,
    seed: Annotated[int, typer.Option(help="random seed")] = 0,
    data: DataOption = None,
    device: DeviceOption = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="folder for roles.json and roles.csv")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what each head attends to: previous or first token, same token, induction, syntactic relations, ...

    Example: headwise roles bert-base-uncased --role induction
    """
    from headwise.atlas.measure import roles as measure
    from headwise.models.device import default_device

    folder = writable(out) if out else None
    rows = _rows(task, texts, data, examples)
    encoder, tokenizer = plain_encoder(model)
    result = measure(encoder.to(default_device(device)), tokenizer, rows, untrained=untrained, seed=seed)
    names = result.names if role is None else (result.names[result.index(role)],)
    holds = result.holds()
    records = [
        {**row, "holds": bool(holds[(result.index(n), *_place(row))])} for n in names for row in result.top(n, top)
    ]
    if folder:
        _write(folder, result)
    if as_json:
        print(machine(records))
        return
    screen = Screen()
    screen.rows([_shown(record) for record in records])
    screen.say("* significant over texts after Holm over heads, and at least 0.1 of what the control leaves")
    if folder:
        screen.say(f"all heads: {folder / 'roles.csv'}")


def _rows(task: str | None, texts: Path | None, data: Path | None, examples: int) -> list:
    from headwise.tasks.lookup import get

    if task and texts:
        raise HeadwiseError("both --task and --texts", "one of them")
    if texts is not None:
        if not texts.is_file():
            raise HeadwiseError(f"no file {texts}", "a text file with one text per line")
        rows: list = [line for line in texts.read_text(encoding="utf-8").splitlines() if line.strip()]
    else:
        rows = list(get(task or "corpus.dep", data).rows("train"))
        if not all("words" in row or "text" in row for row in rows[:1]):
            raise HeadwiseError(
                f"task {task!r} has rows of {', '.join(rows[0])}", "rows of text or of words", "corpus.dep"
            )
        rows = [row if "words" in row else row["text"] for row in rows]
    return rows[:examples]


def _place(row: dict) -> tuple[int, ...]:
    return tuple(map(int, row["head"].split(".")))


def _shown(record: dict) -> dict[str, str]:
    return {
        "role": record["role"],
        "head": record["head"] + (" *" if record["holds"] else ""),
        "score": f"{record['score']:.2f}",
        "95 % CI": f"{record['low']:.2f} to {record['high']:.2f}",
        "control": f"{record['control']:.2f}",
        "p": f"{record['p']:.2g}",
        "texts": str(record["texts"]),
    }


def _write(folder: Path, result: Roles) -> None:
    from headwise.io.files import finite, write, write_json

    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "roles.json", finite(result.to_record()))
    records = result.to_records()
    file = io.StringIO()
    writer = csv.DictWriter(file, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    write(folder / "roles.csv", file.getvalue())
