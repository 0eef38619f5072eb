"""Turn a study (plain data) into a page, tables and figures (no torch)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from headwise.io.files import read_json, write
from headwise.reporting.groups import MOST, grouped
from headwise.reporting.heads import render_atlas
from headwise.reporting.page import render


def report(study: Mapping | Sequence[Mapping], path: str | Path) -> Path:
    """Write one self-contained interactive page for a study, or for several with a switch between them.

    The form of a study is described in ``headwise.study.schema``; every part but ``model``, ``tasks`` and
    ``importance`` may be missing, and the page omits those parts. A study's ``atlas.json`` beside the page becomes
    ``atlas.html``, to which the page links. A study of more than forty tasks becomes a page of groups of tasks that
    behave alike, and beside it a folder with a page for each group.

    Example::

        scores = {"sst2": {"scores": [[0.2, 0.8]]}}
        model = {"name": "tiny", "layers": 1, "heads": 2}
        report({"model": model, "tasks": [{"name": "sst2"}], "importance": scores}, "report.html")
    """
    studies, path = [study] if isinstance(study, Mapping) else list(study), Path(path)
    roles, link = path.with_name("atlas.json"), ""
    if len(studies) == 1 and studies[0].get("roles") and roles.is_file():
        link = write(path.with_name("atlas.html"), render_atlas(read_json(roles))).name
    if len(studies) != 1 or len(studies[0].get("tasks", ())) <= MOST:
        return write(path, render(studies, atlas=link))
    overview, groups = grouped(studies[0])
    pages = {name: f"{path.stem}-groups/{number}.html" for number, name in enumerate(groups, 1)}
    for name, part in groups.items():
        report(part, path.parent / pages[name])
    sizes = {name: [task["name"] for task in part["tasks"]] for name, part in groups.items()}
    return write(path, render([overview], atlas=link, groups=[(name, pages[name], sizes[name]) for name in groups]))
