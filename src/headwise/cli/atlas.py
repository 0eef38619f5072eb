"""The verb that says what heads attend to: roles."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwise.cli.app import Screen, app, machine
from headwise.cli.options import (
    DataOption,
    DeviceOption,
    JsonOption,
    ModelArg,
    StackOption,
    head_scores,
    names_in,
    plain_encoder,
    writable,
)
from headwise.errors import HeadwiseError, unknown

if TYPE_CHECKING:
    from headwise.atlas.result import Roles


@app.command()
def roles(
    model: ModelArg,
    task: Annotated[
        str | None,
        typer.Option(help="training rows to measure on: ud.en_ewt.dep, or name=file:columns (default: corpus.dep)"),
    ] = None,
    texts: Annotated[Path | None, typer.Option(help="measure on a file with one text per line")] = None,
    by: Annotated[
        list[str], typer.Option(help="attention; and of language models copying, writing, functions, languages")
    ] = ["attention"],  # noqa: B006
    role: Annotated[str | None, typer.Option(help="show this role alone")] = None,
    top: Annotated[int, typer.Option(help="heads shown for each role")] = 3,
    untrained: Annotated[bool, typer.Option(help="also measure a re-initialized model, as a floor")] = False,
    shuffled: Annotated[bool, typer.Option(help="also measure the texts with their tokens in random order")] = False,
    examples: Annotated[int, typer.Option(help="texts to measure on")] = 512,
    against: Annotated[
        str | None, typer.Option(help="a second model to compare with, such as the same one after fine-tuning")
    ] = None,
    needs: Annotated[
        Path | None, typer.Option(help="a study, or a file of `headwise importance --out`: which heads tasks need")
    ] = None,
    encodes: Annotated[
        Path | None, typer.Option(help="the folder of `headwise probe --out`: what a probe reads from each head")
    ] = None,
    page: Annotated[Path | None, typer.Option(help="write the atlas as an HTML page")] = None,
    stack: StackOption = None,
    seed: Annotated[int, typer.Option(help="random seed")] = 0,
    data: DataOption = None,
    device: DeviceOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="folder for roles.json, roles.csv and atlas.json")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what each head does: attend to the previous or first token, to a syntactic relation, copy, write, ...

    Example: headwise roles bert-base-uncased --role induction
    """
    from headwise.atlas.cards import atlas
    from headwise.atlas.measure import WAYS, example
    from headwise.atlas.measure import roles as measure
    from headwise.models.device import default_device
    from headwise.models.processes import join

    folder = writable(out) if out else None
    if page:
        writable(page, file=True)
    rows, ways = _rows(task, texts, data, examples), names_in(by)
    if wrong := [way for way in ways if way not in WAYS]:
        raise unknown("way to measure roles", wrong[0], WAYS)
    first_process = join()  # those of torchrun or accelerate launch share the texts
    measured, shown = {}, {}
    for name, where in _named(model, against).items():
        network, tokenizer = _opened(where, ways)
        network = network.to(default_device(device))
        options = {"by": ways, "untrained": untrained, "shuffled": shuffled, "seed": seed, "stack": stack}
        measured[name] = measure(network, tokenizer, rows, **options)
        shown[name] = [example(network, tokenizer, _text(rows[0]), stack)] if page else []
    if not first_process:
        return
    first = next(iter(measured))
    known = ({first: read(file)} if file else None for read, file in ((head_scores, needs), (_probes, encodes)))
    record = atlas(measured, *known, examples=shown)
    if folder:
        _write(folder, measured, record)
    if page:
        from headwise.io.files import write
        from headwise.reporting.heads import render_atlas

        write(page, render_atlas(record))
    _report(measured, role, top, record, [path for path in (folder and folder / "roles.csv", page) if path], as_json)


def _report(
    measured: dict[str, Roles], role: str | None, top: int, record: dict, files: list[Path], json: bool
) -> None:
    """The table of the best heads of each role, and the heads whose role differs between two models."""
    records = []
    for name, result in measured.items():
        names, holds = result.names if role is None else (result.names[result.index(role)],), result.holds()
        records += [
            {
                **({"model": name} if len(measured) > 1 else {}),
                **row,
                "holds": bool(holds[(result.index(n), *_place(row))]),
            }
            for n in names
            for row in result.top(n, top)
        ]
    if json:
        print(machine(records))
        return
    screen = Screen()
    screen.rows([_shown(each) for each in records])
    screen.say("* significant over texts after Holm over heads, and at least 0.1 of what the control leaves")
    for change in record["changes"]:
        screen.say(f"{change['layer']}.{change['head']}: {change['before'] or '-'} → {change['after'] or '-'}")
    for file in files:
        screen.say(f"all heads: {file}")


def _probes(folder: Path) -> dict[str, Any]:
    """The score of every head and probe, as ``headwise probe --out`` wrote them."""
    from headwise.io.files import read_json

    file = folder / "probes.json" if folder.is_dir() else folder
    if not file.is_file():
        raise HeadwiseError(f"no probes.json in {folder}", "a folder of `headwise probe --out`")
    return {name: record["accuracy"] for name, record in read_json(file).items()}


def _named(model: str, against: str | None) -> dict[str, str]:
    from headwise.models.loading import name_of

    names = [name_of(each) for each in (model, *([against] if against else []))]
    if len(set(names)) < len(names):
        names = ["first", "second"]
    return dict(zip(names, (model, against or "")))


def _opened(model: str, ways: tuple[str, ...]) -> tuple[Any, Any]:
    """A model without its output head for attention alone, a language model where what it says is measured."""
    from headwise.models.loading import load_language_model

    return plain_encoder(model) if set(ways) <= {"attention"} else load_language_model(model)


def _text(row: Any) -> str:
    return row if isinstance(row, str) else row.get("context") or " ".join(row["words"])


def _rows(task: str | None, texts: Path | None, data: Path | None, examples: int) -> list:
    from headwise.tasks import own
    from headwise.tasks.lookup import get

    if task and texts:
        raise HeadwiseError("both --task and --texts", "one of them")
    if texts is not None:
        if not texts.is_file():
            raise HeadwiseError(f"no file {texts}", "a text file with one text per line")
        rows: list = [line for line in texts.read_text(encoding="utf-8").splitlines() if line.strip()]
    else:
        known = own(task) if task and "=" in task else get(task or "corpus.dep", data)
        rows = list(known.rows("train" if "train" in known.splits else known.splits[0]))
        if not any(name in rows[0] for name in ("words", "text", "context")):
            expected = "rows of text, of words, or of a question and a context"
            raise HeadwiseError(f"task {task!r} has rows of {', '.join(rows[0])}", expected, "corpus.dep")
        rows = [row.get("text", row) for row in rows]
    return rows[:examples]


def _place(row: dict) -> tuple[int, ...]:
    return tuple(map(int, row["head"].split(".")))


def _shown(record: dict) -> dict[str, str]:
    return {
        **({"model": record["model"]} if "model" in record else {}),
        "role": record["role"],
        "head": record["head"] + (" *" if record["holds"] else ""),
        "score": f"{record['score']:.2f}",
        "95 % CI": f"{record['low']:.2f} to {record['high']:.2f}",
        "control": f"{record['control']:.2f}",
        "p": f"{record['p']:.2g}",
        "texts": str(record["texts"]),
    }


def _write(folder: Path, measured: dict[str, Roles], record: dict[str, Any]) -> None:
    from headwise.io.files import finite, write, write_json

    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "roles.json", finite({name: result.to_record() for name, result in measured.items()}))
    write_json(folder / "atlas.json", record)
    records = [{"model": name, **row} for name, result in measured.items() for row in result.to_records()]
    file = io.StringIO()
    writer = csv.DictWriter(file, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    write(folder / "roles.csv", file.getvalue())
