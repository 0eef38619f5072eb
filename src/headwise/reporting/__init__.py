"""From a study (plain data) to what people look at: one page, tables, figures (no torch)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from headwise.errors import HeadwiseError
from headwise.io.files import read_json, write
from headwise.reporting.page import render


def report(study: Mapping | Sequence[Mapping], path: str | Path) -> Path:
    """Write one self-contained interactive page for a study, or for several with a switch between them.

    The form of a study is described in ``headwise.study.schema``; every part but ``model``, ``tasks`` and
    ``importance`` may be missing, and the page leaves out what is.

    Example::

        scores = {"sst2": {"scores": [[0.2, 0.8]]}}
        model = {"name": "tiny", "layers": 1, "heads": 2}
        report({"model": model, "tasks": [{"name": "sst2"}], "importance": scores}, "report.html")
    """
    studies = [study] if isinstance(study, Mapping) else list(study)
    return write(Path(path), render(studies))


def read_study(path: str | Path) -> dict:
    """The study in a folder that `headwise study` or `demo` wrote, or in its ``study.json``."""
    path = Path(path)
    file = path / "study.json" if path.is_dir() else path
    if not file.is_file():
        raise HeadwiseError(f"no study at {path}", "a folder of headwise study or demo", "headwise demo")
    study = read_json(file)
    if not isinstance(study, dict):
        raise HeadwiseError(f"{file} holds a {type(study).__name__}", "a study, one JSON object")
    return study
