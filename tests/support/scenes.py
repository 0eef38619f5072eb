"""Works that leave something on disk, each with what must hold when it was killed on the way and when it was not."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers.utils.logging import disable_progress_bar

from headwise.experiments.jobs import Job, perform
from headwise.io.files import read_arrays, write_json
from headwise.io.records import Results
from headwise.models.batching import encode
from headwise.models.multitask import MultiTaskModel
from headwise.probing.features import Reader
from headwise.pruning import export as exports
from headwise.reporting import report
from headwise.reporting.page import render
from headwise.testing import tiny, toy_model
from headwise.training import checkpoint
from headwise.training.loop import fit
from headwise.training.plan import Plan

EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree")


def in_child(
    work: Callable[[], object],
    *,
    at: tuple[int, Path] | None = None,
    after: float | None = None,
    largest: int | None = None,
    user: int | None = None,
    seconds: float = 120,
) -> tuple[int, str]:
    """Do something in a forked process: its exit code (-9 when killed), and what it said of its error.

    Args:
        work: what to do.
        at: kill -9 before the n-th time it touches something under a folder; with 0, the count is what it says.
        after: kill -9 after so many seconds.
        largest: bytes a file may have.
        user: whose rights the child has.
        seconds: a child that takes longer hangs.
    """
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forking beside threads, which these children do not use
        child = os.fork()
    if not child:
        os.close(read)
        _live(work, write, at, largest, user)
    os.close(write)
    try:
        code = _wait(child, after, seconds)
        with os.fdopen(read, errors="replace") as said:
            return code, said.read()
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise


def _live(work: Callable[[], object], say: int, at: tuple[int, Path] | None, largest: int | None, user: int | None):
    """A child's life; it never returns to its parent's code."""
    try:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1), os.dup2(quiet, 2)
        if largest is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
        if user is not None:
            os.setuid(user)
        touched = _die_at(*at) if at is not None else None
        work()
        os.write(say, str(len(touched)).encode() if touched is not None else b"")
        os._exit(0)
    except BaseException:
        os.write(say, traceback.format_exc()[-4000:].encode())
    finally:
        os._exit(1)


def _die_at(number: int, folder: Path) -> list[str]:
    """Kill this process before the n-th touch; the touches so far."""
    touched: list[str] = []
    prefix = str(folder)

    def hook(event: str, args: tuple) -> None:
        if event in EVENTS and args and str(args[0]).startswith(prefix):
            touched.append(event)
            if len(touched) == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    return touched


def _wait(child: int, after: float | None, seconds: float) -> int:
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if after is not None and time.monotonic() - began > after:
            os.kill(child, signal.SIGKILL)
            after = None
        time.sleep(0.002)
    raise AssertionError(f"a child has not ended after {seconds} s")


disable_progress_bar()  # its lock is shared by all children: one that is killed would keep it for ever
PLAN = Plan(steps=6, lr=3e-3, batch_size=16, checkpoint_every=2, evaluate_every=3, max_dev=8)
STUDY = {
    "model": {"name": "tiny", "layers": 1, "heads": 2},
    "tasks": [{"name": "sst2"}],
    "importance": {"sst2": {"scores": [[0.2, 0.8]]}},
}


@dataclass(frozen=True)
class Scene:
    """``act`` in a folder; ``safe`` holds whenever it was killed, ``whole`` once it was done."""

    act: Callable[[Path], object]
    safe: Callable[[Path], object]
    whole: Callable[[Path], object]
    before: Callable[[Path], object] = lambda folder: None


def seen(folder: Path) -> list[Path]:
    """What a user sees: scratch, whose name begins with a dot, is left out."""
    return sorted(path for path in folder.iterdir() if not path.name.startswith(".")) if folder.is_dir() else []


# -- records


def some_records(folder: Path) -> None:
    for n in range(3):
        Results(folder).save("square", {"n": n}, {"square": n * n}, {"row": np.arange(100 * n, dtype=np.float64)})


def right_records(folder: Path) -> int:
    found = list(Results(folder))
    assert len(found) == len(seen(folder))
    for record in found:
        n = record.config["n"]
        assert record.result == {"square": n * n} and np.array_equal(record.arrays["row"], np.arange(100 * n))
    return len(found)


def all_records(folder: Path) -> None:
    assert right_records(folder) == 3


# -- a folder that takes another's place


@cache
def models() -> tuple[MultiTaskModel, MultiTaskModel]:
    return toy_model(seed=1), toy_model(seed=2)


def first_model(folder: Path) -> None:
    models()[0].save_pretrained(folder / "model")


def second_model(folder: Path) -> None:
    models()[1].save_pretrained(folder / "model")


def opened(folder: Path) -> int:
    """Which of the two lies there; every weight is of that one."""
    made = MultiTaskModel.load(folder / "model", list(models()[0].tasks.values())).state_dict()
    same = [all(torch.equal(made[n], v) for n, v in model.state_dict().items()) for model in models()]
    assert any(same) and len(seen(folder)) == 1
    return same.index(True)


def second_is_there(folder: Path) -> None:
    assert opened(folder) == 1


# -- training


def training(folder: Path) -> None:
    model = toy_model()
    fit(model, PLAN, out=folder / "run")
    save_file(dict(model.state_dict()), folder / "final.safetensors")


@cache
def trained() -> dict[str, torch.Tensor]:
    model = toy_model()
    fit(model, PLAN)
    return dict(model.state_dict())


def checkpoints_open(folder: Path) -> None:
    for path in checkpoint.list_all(folder / "run" / "checkpoints"):
        assert checkpoint.load(path)[1]["step"] == int(path.name.split("-")[1])


def trained_alike(folder: Path) -> None:
    checkpoints_open(folder)
    found = load_file(folder / "final.safetensors")
    assert all(torch.equal(found[name], value) for name, value in trained().items())
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    assert len([line for line in lines if '"loss"' in line]) == PLAN.steps


# -- exports, caches, pages, jobs


@cache
def cut() -> tuple[Any, torch.Tensor]:
    mask = torch.zeros(2, 4, dtype=torch.bool)
    mask[0, 1] = mask[1, 2] = True
    return tiny("bert"), mask


def exporting(folder: Path) -> None:
    model, mask = cut()
    if not (folder / "small").exists():
        exports.export(model, mask, folder / "small", "sliced")


def export_opens(folder: Path) -> None:
    assert len(seen(folder)) <= 1
    for path in seen(folder):
        heads = exports.Heads.of(exports.load(path)).alive
        assert torch.equal(heads, ~cut()[1])


def export_is_there(folder: Path) -> None:
    assert len(seen(folder)) == 1
    export_opens(folder)


@cache
def sentences() -> tuple[Reader, list[dict[str, Any]], torch.Tensor]:
    model = toy_model()
    reader, rows = Reader.of(model), model.tasks["toy0"].rows("train")[:32]
    return reader, rows, reader.read(rows).heads


def features(folder: Path) -> torch.Tensor:
    reader, rows, _ = sentences()
    return reader.read(rows, cache=folder).heads


def features_are_right(folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a cache that is refused is half written
        assert torch.equal(features(folder), sentences()[2])


def no_half_features(folder: Path) -> None:
    if seen(folder):
        features_are_right(folder)


def tokens(folder: Path) -> None:
    os.environ["HEADWISE_CACHE"] = str(folder)
    model = toy_model()
    data = encode(model.tasks["toy0"], "train", model.tokenizer)
    assert len(data) == 96


def no_half_tokens(folder: Path) -> None:
    for file in seen(folder / "tokens"):
        assert read_arrays(file)[0]


def page(folder: Path) -> None:
    write_json(folder / "study.json", STUDY)
    report(STUDY, folder / "report.html")


@cache
def right_page() -> str:
    return render([STUDY])


def no_half_page(folder: Path) -> None:
    for file in seen(folder):
        assert file.read_text() == right_page() if file.suffix == ".html" else json.loads(file.read_text()) == STUDY


def page_is_there(folder: Path) -> None:
    no_half_page(folder)
    assert [file.name for file in seen(folder)] == ["report.html", "study.json"]


def job(folder: Path) -> None:
    for n in range(2):
        perform(Job("handiwork:square", {"n": n}), folder)


def no_half_jobs(folder: Path) -> None:
    for record in Results(folder / "records"):
        assert record.result == {"square": record.config["n"] ** 2}


def jobs_are_done(folder: Path) -> None:
    no_half_jobs(folder)
    assert len(list(Results(folder / "records"))) == 2


SCENES = {
    "records": Scene(some_records, right_records, all_records),
    "models": Scene(second_model, opened, second_is_there, first_model),
    "exports": Scene(exporting, export_opens, export_is_there),
    "features": Scene(features, no_half_features, features_are_right),
    "tokens": Scene(tokens, no_half_tokens, tokens),
    "pages": Scene(page, no_half_page, page_is_there),
    "jobs": Scene(job, no_half_jobs, jobs_are_done),
    "training": Scene(training, checkpoints_open, trained_alike),
}


def made_ready(name: str) -> None:
    """What every act of a scene has in common is made once, before children are forked."""
    common = {"models": models, "training": trained, "exports": cut, "features": sentences, "pages": right_page}
    if name in common:
        common[name]()


def fresh(folder: Path, scene: Scene) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    scene.before(folder)
    return folder
