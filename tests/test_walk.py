"""The walk of a small study through the files of headwise: what someone who follows the main job has to read."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import headwise
from headwise.cli import main
from headwise.testing import playground

SOURCE = str(Path(headwise.__file__).parent) + "/"
FILES, CALLS = 79, 272  # distinct files, and distinct pairs of files of which one calls the other: may only decrease
ROOMS, BETWEEN_ROOMS = 13, 58  # the same for folders

Edge = tuple[str, str]


def handed_over(code: CodeType) -> bool:
    """Lambdas, inner functions and generators: values that their file passed, and through which it is called back."""
    return "<" in code.co_qualname or bool(code.co_flags & inspect.CO_GENERATOR)


class Walk:
    """The calls between files of headwise, by `sys.setprofile`."""

    def __init__(self) -> None:
        self.calls: dict[Edge, bool] = {}  # whether a function was called that was not handed over

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(SOURCE) or code.co_name == "<module>":
            return
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(SOURCE):  # through torch, for example
            caller = caller.f_back
        if caller is None or caller.f_code.co_filename == code.co_filename or caller.f_code.co_name == "<module>":
            return
        edge = caller.f_code.co_filename.removeprefix(SOURCE), code.co_filename.removeprefix(SOURCE)
        self.calls[edge] = self.calls.get(edge, False) or not handed_over(code)

    def of(self, job: Callable[[], Any]) -> Walk:
        before = sys.getprofile()
        sys.setprofile(self)
        threading.setprofile(self)
        try:
            job()
        finally:
            sys.setprofile(before)
            threading.setprofile(None)
        return self


def room(file: str) -> str:
    return file.split("/")[0]


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Walk:
    """`headwise study` on a tiny model and two small files; everything is imported before."""
    for module in pkgutil.walk_packages(headwise.__path__, "headwise."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    folder = playground(tmp_path_factory.mktemp("walk"))
    tasks = [f"--task={name}={folder / name}.csv:text,label" for name in ("reviews", "news")]
    settings = ["--epochs=1", "--lr=3e-3", "--batch-size=16", "--random=20", f"--out={folder / 'run'}"]
    command = ["headwise", "study", f"--model={folder / 'bert-tiny'}", *tasks, *settings]

    def job() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", command)
            main()  # a failure would exit

    return Walk().of(job)


def test_a_study_walks_through_few_files(study):
    files = {file for edge in study.calls for file in edge}
    assert 40 < len(files) <= FILES and len(study.calls) <= CALLS, (len(files), len(study.calls))


def test_a_study_walks_through_few_rooms(study):
    rooms = {tuple(map(room, edge)) for edge in study.calls if room(edge[0]) != room(edge[1])}
    assert len({each for edge in rooms for each in edge}) <= ROOMS and len(rooms) <= BETWEEN_ROOMS, sorted(rooms)


def test_no_two_files_of_different_folders_call_each_other(study):
    calls = {edge for edge, named in study.calls.items() if named}
    both = {edge for edge in calls if edge[::-1] in calls and Path(edge[0]).parent != Path(edge[1]).parent}
    assert not both


def test_the_walk_sees_calls_both_ways(tmp_path, monkeypatch):
    """The instrument itself: two files that call each other are seen, a lambda that is handed over is not."""
    (tmp_path / "a.py").write_text("import b\ndef there(): return b.back(here)\ndef here(): return 1\n")
    (tmp_path / "b.py").write_text("import a\ndef back(f): return a.here() + (lambda: 1)()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys.modules[__name__], "SOURCE", f"{tmp_path}/")
    assert Walk().of(importlib.import_module("a").there).calls == {("a.py", "b.py"): True, ("b.py", "a.py"): True}
