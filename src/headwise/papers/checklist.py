"""What every paper has: its tables and figures with command, jobs, hours and whether they were run; what differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from headwise.experiments.jobs import in_order
from headwise.io.files import write
from headwise.io.records import Results
from headwise.papers.recipe import Item, PaperRecipe, Part, Scale
from headwise.papers.summary import table
from headwise.training.plan import Plan

WAITS = "registered, not run"
COLUMNS = ("paper", "item", "shows", "command", "status")


def listed(recipe: PaperRecipe, scale: Scale, records: str | Path | None = None) -> list[dict[str, Any]]:
    """A row for each table and figure: what it shows, command, jobs, estimated hours and status.

    Args:
        recipe: of a paper.
        scale: at which jobs and hours are counted.
        records: a folder of packed records, or a file: what was run. Default: nothing was.
    """
    from headwise.papers.amounts import hours  # works bring torch, which pages do without

    path = Path(records) if records else None
    if path and path.is_dir() and (path / f"{recipe.name}.parquet").exists():
        path = path / f"{recipe.name}.parquet"
    shown = titles(recipe, Results(path)) if path else []
    rows = []
    for item in recipe.items:
        jobs = in_order(recipe.jobs(scale, [item.tag])) if item.parts else []
        rows.append(
            {
                **{"paper": recipe.name, "item": item.tag, "shows": item.shows, "command": command(recipe, item)},
                **{"jobs": len(jobs), "hours": sum(map(hours, jobs)), "status": status(item, shown)},
            }
        )
    return rows


def command(recipe: PaperRecipe, item: Item) -> str:
    """What makes an item; empty where nothing does."""
    if not item.parts:
        return f"headwise recipe {recipe.name} --no-run" if item.titles else ""
    return f"headwise recipe {recipe.name} --size full --only {item.tag}"


def titles(recipe: PaperRecipe, results: Results) -> list[str]:
    """All tables and figures that the page of these records has."""
    parts = recipe.parts(results)
    return [name for part in parts for name in (*(table["title"] for table in part.tables), *part.figures)]


def status(item: Item, shown: Sequence[str]) -> str:
    """Whether the page shows an item, and what it lacks."""
    number = sum(title.startswith(item.titles) for title in shown) if item.titles else 0
    done = f"run ({number} on the page)" if number else WAITS if item.parts else "cannot be run"
    return f"{done}; needs {item.missing}" if item.missing else done


def checklist(rows: Sequence[Mapping[str, Any]], folder: str | Path) -> Path:
    """Write ``checklist.md``: paper, item, command and status."""
    head = ["# Checklist", "", "Every table and figure of the four papers, generated from the recipes' items.", ""]
    head += [
        "Status is of the records in `results/`; beside `run`, how many tables and figures of the page show it.",
        "",
    ]
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for row in rows:
        cells = [f"`{row[c]}`" if c == "command" and row[c] else str(row[c]) for c in COLUMNS]
        lines.append(f"| {' | '.join(cells)} |")
    again = ["", "```sh", "headwise recipe all --tables --records results --pages docs/results", "```"]
    return write(Path(folder) / "checklist.md", "\n".join([*head, *lines, *again]) + "\n")


def differences(recipe: PaperRecipe) -> Part:
    """What differs from the paper: settings of each size beside the published ones, and what else is done otherwise."""
    sizes = {name: _settings(size) for name, size in recipe.sizes.items() if name != "smoke"}
    rows = [
        [name, _plain(value), *(_plain(settings.get(name)) for settings in sizes.values())]
        for name, value in recipe.published.items()
        if any(_plain(settings.get(name)) != _plain(value) for settings in sizes.values())
    ]
    tables = [table("Settings that differ", ["setting", "paper", *sizes], rows, _same(recipe, sizes))] if rows else []
    others = [[each.what, each.paper, each.here, each.row] for each in recipe.differences]
    tables += [table("Other differences", ["what", "paper", "here", "see"], others)] if others else []
    text = "Settings and ways in which this recipe is not the paper's. Nothing else is known to differ."
    return Part("What differs from the paper", text, tables)


def _same(recipe: PaperRecipe, sizes: Mapping[str, Mapping[str, Any]]) -> str:
    same = [n for n, v in recipe.published.items() if all(_plain(s.get(n)) == _plain(v) for s in sizes.values())]
    return f"As published: {', '.join(same)}." if same else ""


def _settings(size: Any) -> dict[str, Any]:
    """A size's own fields and those of its plan."""
    own = {f.name: getattr(size, f.name) for f in fields(size)}
    plan = own.get("plan")
    return ({f.name: getattr(plan, f.name) for f in fields(plan)} if isinstance(plan, Plan) else {}) | own


def _plain(value: Any) -> str:
    if value is None or value == {} or value == ():
        return "–"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {each}" for name, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
