"""A job: a named work, everything that determines its result, and the jobs it depends on."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headwise.errors import HeadwiseError
from headwise.io.files import locked, plain
from headwise.io.progress import Lines
from headwise.io.records import Record, Results
from headwise.registry import Registry, load_plugins

if TYPE_CHECKING:
    from headwise.tasks.task import Task

Made = dict[str, Any] | tuple[dict[str, Any], dict[str, np.ndarray]]


@dataclass(frozen=True)
class Job:
    """A job of a sweep; two jobs with the same work and config are the same job.

    Example:
        >>> Job("train", {"model": "m", "tasks": {"sst2": None}, "plan": {"seed": 1}}).title
        'train m sst2 seed=1'
    """

    work: str
    config: dict[str, Any]
    at: dict[str, str] = field(default_factory=dict, compare=False)
    """Paths on this machine: model folders by name, and ``data``; not part of the job's identity."""
    after: tuple[Job, ...] = field(default=(), compare=False)
    """The jobs whose records or models this one reads."""

    @cached_property
    def key(self) -> str:
        """The key of its record."""
        return Results.key(self.work, self.config, works.version(self.work))

    @property
    def title(self) -> str:
        """A short human-readable title."""
        if "title" in self.at:
            return self.at["title"]
        method, plan, tasks = (self.config.get(name) or "" for name in ("method", "plan", "tasks"))
        method = method.get("name", "") if isinstance(method, Mapping) else method
        seed = self.config.get("seed", plan.get("seed") if isinstance(plan, Mapping) else None)
        tasks = tasks if isinstance(tasks, str) else "+".join(tasks)
        parts = [self.work, self.config.get("model"), tasks, method, "" if seed is None else f"seed={seed}"]
        return " ".join(str(part) for part in parts if part)

    def to_record(self) -> dict[str, Any]:
        """Plain data for a worker in another process."""
        return {"work": self.work, "config": plain(self.config), "at": dict(self.at)}


def in_order(jobs: Sequence[Job]) -> list[Job]:
    """All jobs and their dependencies, each once, dependencies first."""
    ordered: dict[str, Job] = {}

    def visit(job: Job, above: tuple[str, ...]) -> None:
        if job.key in above:
            raise HeadwiseError(f"circular dependency: job {job.title!r} depends on itself")
        if job.key not in ordered:
            for earlier in job.after:
                visit(earlier, (*above, job.key))
            ordered[job.key] = job

    for job in jobs:
        visit(job, ())
    return list(ordered.values())


class Place:
    """What a work sees: its config, the records of its dependencies, and its folders."""

    def __init__(self, job: Job, root: str | Path, device: str | None = None):
        self.job, self.root, self.device = job, Path(root), device
        self.progress = Lines()  # the output of a job is its log
        self.config, self.at = job.config, job.at
        self.results = Results(self.root / "records")

    @property
    def folder(self) -> Path:
        """The folder of the job, with the checkpoints from which an interrupted job resumes."""
        return self.root / "work" / self.job.key

    @property
    def kept(self) -> Path:
        """The folder for a model that later jobs read."""
        return self.model_of(self.job.key)

    @property
    def record(self) -> Record | None:
        """The record of the job, or None."""
        return self.results.find(self.job.work, self.config, works.version(self.job.work))

    def lost(self, record: Record) -> bool:
        """Whether it saved a model that no longer exists here; records are often copied without models."""
        return record.about.get("kept", False) and not self.kept.is_dir()

    def model_of(self, key: str) -> Path:
        return self.root / "models" / key

    def before(self, key: str) -> Record:
        """The record of a dependency."""
        return self.results[key]

    def log(self, line: str) -> None:
        """Write a line to the job's log."""
        print(line, flush=True)

    def task(self, name: str) -> Task:
        return task_named(name, self.at)

    def encoder(self, name: str) -> str:
        """The folder of a model, or its name on the Hub."""
        return self.at.get(name, name)


def task_named(name: str, at: Mapping[str, str]) -> Task:
    """A task of the catalog, or from a file: ``mine=reviews.csv:text,label``."""
    from headwise import tasks as catalog
    from headwise.tasks.catalog.known import data_folder

    return catalog.own(name) if "=" in name else _known(name, data_folder(at.get("data")))


@lru_cache(maxsize=64)
def _known(name: str, data: Path | None) -> Task:
    """A task, cached per process: a worker runs many jobs on the same tasks."""
    from headwise import tasks as catalog

    return catalog.get(name, data)


Work = Callable[[Place], Made]


class Works(Registry[Work]):
    """Works by name, with the version of their results: raise it when a fix changes results.

    The name is part of every record's key, so it must not change when code moves.

    Example:
        >>> @works("count", version=2)
        ... def count(place): return {"rows": len(place.task("sst2").rows("train"))}
    """

    def __init__(self) -> None:
        super().__init__("work")
        self._versions: dict[str, int] = {}

    def __call__(self, name: str, version: int = 1) -> Callable[[Work], Work]:
        self._versions[name] = version
        return super().__call__(name)

    def add(self, name: str, entry: Work | str, version: int | None = None) -> None:
        self._versions[name] = version or self._versions.get(name, 1)
        super().add(name, entry)

    def version(self, name: str) -> int:
        """The version of a work; always 1 for ``module:function``, which is not registered."""
        if name not in self:
            load_plugins()  # a plug-in may register it
        return self._versions.get(name, 1)


works = Works()
works.add("train", "headwise.experiments.works:train")
works.add("lesions", "headwise.experiments.works:lesions", version=2)  # version 1 tested development rows only
works.add("importance", "headwise.experiments.works:scores")
works.add("study", "headwise.experiments.works:study")
works.add("tune", "headwise.experiments.tuning:tune")


def work_named(name: str) -> Work:
    """A registered work, or a function given as ``mypackage.module:function``."""
    if ":" not in name:
        return works[name]
    module, _, function = name.partition(":")
    try:
        return getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError, TypeError) as error:  # not a module
        raise HeadwiseError(f"the work {name!r}: {error}", "module:function that workers can import") from None


def perform(job: Job, root: str | Path, device: str | None = None) -> str:
    """Run a job unless it is done or running elsewhere, save its record and return the key."""
    place = Place(job, root, device)
    with locked(place.root / "locks" / job.key):
        record = place.record
        if record is None or place.lost(record):
            began = time.perf_counter()
            returned = work_named(job.work)(place)
            result, arrays = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, None)
            if not isinstance(result, Mapping):  # records must be plain data
                seen = f"the work {job.work!r} returned a {type(result).__name__}"
                raise HeadwiseError(seen, "a dict, or a dict and arrays by name", "return {}")
            about = {"seconds": round(time.perf_counter() - began, 3), "kept": place.kept.is_dir()}
            place.results.save(job.work, job.config, result, arrays, about, works.version(job.work))
    return job.key


def is_done(job: Job, root: str | Path) -> bool:
    """Whether a job has a record, and the model it kept."""
    place = Place(job, root)
    return job.key in place.results and not place.lost(place.results[job.key])


def grid(config: Mapping[str, Any], axes: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """All combinations of a config; an axis names a field, with dots for nested ones.

    Example:
        >>> [config["plan"]["seed"] for config in grid({"plan": {"lr": 1e-4}}, {"plan.seed": [0, 1]})]
        [0, 1]
    """
    configs = [plain(config)]
    for place, (name, values) in enumerate(axes.items()):
        if isinstance(values, Mapping) and values:  # TOML reads a bare dot as a table
            hint = f'"{name}.{next(iter(values))}" = […], in quotes'
            raise HeadwiseError(f"the axis {name!r} has {values!r}", "a list of values", hint)
        if not isinstance(values, list | tuple) or not values:
            raise HeadwiseError(f"the axis {name!r} has {values!r}", "a list of values")
        for undone in (other for other in list(axes)[:place] if other.startswith(f"{name}.")):
            raise HeadwiseError(f"the axis {name!r} overwrites {undone!r}", f"{name!r} first, then {undone!r}")
        configs = [_with(one, name, value) for one in configs for value in values]
    return configs


def _with(config: Mapping[str, Any], name: str, value: Any) -> dict[str, Any]:
    first, _, rest = name.partition(".")
    inner = config.get(first)
    if rest and not isinstance(inner, Mapping | None):
        raise HeadwiseError(f"{first!r} is {inner!r} and has no field {rest!r}", "an axis that names a field")
    return {**config, first: _with(inner or {}, rest, value) if rest else plain(value)}
