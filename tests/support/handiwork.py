"""Works for tests of sweeps: small, and some of them break."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headwise.errors import HeadwiseError
from headwise.experiments.jobs import Job, Place

HERE = "handiwork"


def square(place: Place) -> Any:
    """Square a number after some time, noting in a file that it was done."""
    time.sleep(place.config.get("wait", 0.0))
    n = place.config["n"]
    note(place, f"done {n}")
    return {"square": n * n}, {"row": np.arange(n)}


def around(place: Place) -> dict[str, Any]:
    """The variables of the process that it runs in, and how torch there makes products."""
    return {"environment": dict(os.environ), "products": torch.get_float32_matmul_precision()}


def keep(place: Place) -> dict[str, Any]:
    """Keep a model of one number."""
    note(place, f"kept {place.config['n']}")
    place.kept.mkdir(parents=True, exist_ok=True)
    (place.kept / "number").write_text(str(place.config["n"]))
    return {}


def graded(place: Place) -> dict[str, Any]:
    """Keep a model that scores its number."""
    keep(place)
    place.folder.mkdir(parents=True, exist_ok=True)
    return {"scores": {"t": {"metric": "accuracy", "value": float(place.config["n"])}}}


def die_at_times(place: Place) -> dict[str, Any]:
    """The process is killed the first time that one of every so many numbers is tried."""
    first = place.root / "deaths" / str(place.config["n"])
    if place.config["n"] % place.config["every"] == 0 and not first.exists():
        first.parent.mkdir(exist_ok=True)
        first.write_text("")
        os.kill(os.getpid(), signal.SIGKILL)
    note(place, f"done {place.config['n']}")
    return {"square": place.config["n"] ** 2}


def read(place: Place) -> dict[str, Any]:
    """Read the model of the job before."""
    return {"number": (place.model_of(place.config["of"]) / "number").read_text()}


def total(place: Place) -> dict[str, Any]:
    """The sum over the jobs before."""
    return {"total": sum(place.before(key).result["square"] for key in place.config["of"])}


def die_once(place: Place) -> Any:
    """The process is killed the first time."""
    first = place.root / "died"
    if not first.exists():
        first.write_text("")
        os.kill(os.getpid(), signal.SIGKILL)
    return square(place)


def die_and_leave_a_child(place: Place) -> None:
    """The process is killed, and one that it started lives on for a while."""
    if os.fork() == 0:
        time.sleep(30)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)


def crowded(place: Place) -> dict[str, Any]:
    """Find no memory as long as the job of the number 7 holds it."""
    note(place, "trying")
    time.sleep(0.3)
    if "done 7" not in notes(place.root):
        raise torch.OutOfMemoryError("of this device's memory, 7 has all")
    return {}


def fail(place: Place) -> dict[str, Any]:
    print("before the fall", flush=True)
    note(place, "failing")
    raise RuntimeError("no such luck")


def give(place: Place) -> Any:
    """Something that is no result."""
    return {"nothing": None, "list": [1], "three": ({}, {}, {})}[place.config["what"]]


def fail_oddly(place: Place) -> dict[str, Any]:
    raise OSError(f"no {os.fsdecode(b'caf' + bytes([233]))}")


def wander(place: Place) -> dict[str, Any]:
    """Leave for another folder."""
    before = str(Path.cwd())
    os.chdir("/")
    note(place, "wandered")
    return {"began": before}


def refuse(place: Place) -> dict[str, Any]:
    note(place, "refusing")
    raise HeadwiseError("bad input", "good input")


def stoppable(place: Place) -> dict[str, Any]:
    """As a training: a stop by hand is heard, and what there is takes a second to save."""
    stopped: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: stopped.append(number))
    note(place, "begun")
    while not stopped:
        time.sleep(0.05)
    time.sleep(1.0)
    note(place, "saved")
    raise KeyboardInterrupt


def note(place: Place, line: str) -> None:
    with (place.root / "notes.txt").open("a") as file:
        file.write(line + "\n")


def notes(root: Path) -> list[str]:
    return sorted((root / "notes.txt").read_text().split("\n")[:-1]) if (root / "notes.txt").exists() else []


def job(function: str, n: int = 2, after: tuple[Job, ...] = (), **config: Any) -> Job:
    return Job(f"{HERE}:{function}", {"n": n, **config}, after=after)
