"""Which run a checkpoint belongs to, and how training resumes from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from headwise.errors import HeadwiseError
from headwise.io.files import digest, plain
from headwise.io.identity import data as data_hash
from headwise.io.identity import weights
from headwise.tasks.columns import to_arrays
from headwise.training import checkpoint
from headwise.training.history import History

if TYPE_CHECKING:
    from pathlib import Path

    from headwise.models.multitask import MultiTaskModel
    from headwise.training.loop import Run
    from headwise.training.plan import Plan


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, run: Run, began: str):
        self.run, self.began = run, began

    @cached_property
    def identity(self) -> str:
        """The identity that a checkpoint must match to be resumed or branched."""
        shapes = {name: list(p.shape) for name, p in self.run.model.named_parameters()}
        return digest(self._plan, self.rows, self.judged, shapes, self.run.model.form, self.run.behaviour)

    @cached_property
    def rows(self) -> dict[str, str]:
        """The hash of each task's training data."""
        return {name: _contents(to_arrays(data.columns)) for name, data in self.run.data.items()}

    @cached_property
    def judged(self) -> dict[str, str]:
        """The hash of each task's development rows and metric, which the scores of the history are of."""
        tasks = self.run.model.tasks if self.run.plan.evaluate_every != 0 else {}
        return {name: data_hash(task, ("dev",)) for name, task in tasks.items()}

    @property
    def settings(self) -> dict[str, Any]:
        """Human-readable settings that identify the run."""
        return plain({**vars(self._plan), **self.run.model.form, "tasks": list(self.rows)})

    @property
    def _plan(self) -> Plan:
        """The plan without fields that do not affect training."""
        plan = replace(self.run.plan, checkpoint_every=None)
        return plan if plan.patience else replace(plan, max_dev=None)

    def save(self) -> None:
        """Write a checkpoint of the current state."""
        run, random = self.run, self._gather_random()  # every process has its own dropout
        if not run.accelerator.is_main_process:
            run.accelerator.wait_for_everyone()
            return
        assert run.out is not None
        tensors = {
            "model": dict(run.model.state_dict()),
            "optimizer": checkpoint.pack_optimizer(run.optimizer),
            "random": random,
            "method": run.method.state(),
            **({"best": run.best} if run.best else {}),
        }
        state = {
            "identity": self.identity,
            "settings": self.settings,
            "behaviour": {name: digest(value) for name, value in self.run.behaviour.items()},
            "rows": self.rows,
            "judged": self.judged,
            "began": self.began,
            "method": run.method.describe(),
            "streams": {name: stream.state() for name, stream in run.streams.items()},
            "recent": {name: list(values) for name, values in run.recent.items()},
            "history": run.history.to_record(),
            "seconds": run.seconds,
        }
        best = run.history.best(run.best_after)
        checkpoint.save(run.out / "checkpoints", run.step, tensors, state, best["step"] if best else None, run.marks)
        run.accelerator.wait_for_everyone()

    def restore(self, saved: tuple[dict, dict] | None, whole: bool) -> None:
        """Resume from a checkpoint of this run (``whole``), or branch from one with another method."""
        if saved is None:
            return
        run, (tensors, state) = self.run, saved
        here = {"identity": self.identity}
        if whole:
            here |= {"began": self.began, "method": plain(run.method.describe())}
        if any(state.get(name) != value for name, value in here.items()):
            raise HeadwiseError(
                f"the checkpoint belongs to another run ({self._difference(state, whole)})",
                "a checkpoint of this run",
                f"remove {run.out / 'checkpoints'} or name another folder" if run.out else "",
            )
        run.model.load_state_dict(tensors["model"])
        own = {parameter for group in run.own for parameter in group["params"]}
        checkpoint.unpack_optimizer(run.optimizer, tensors["optimizer"], set() if whole else own)
        self._take_random(tensors["random"])
        if whole:
            run.method.load_state(tensors.get("method", {}))
        run.best = tensors.get("best")
        for name, stream in run.streams.items():
            stream.load_state(state["streams"][name])
            run.recent[name].extend(state["recent"][name])
        run.step, run.earlier = state["step"], state.get("seconds", 0.0)
        stored = state["history"]
        losses = {name: [tuple(point) for point in points] for name, points in stored["losses"].items()}
        run.history = History(losses, stored["scores"], stored["steps"])

    def _difference(self, state: Mapping[str, Any], whole: bool) -> str:
        """How a checkpoint's run differs from this one: its settings, or else its rows, behaviour or weights."""
        method = plain(self.run.method.describe())
        differences = _differences(state.get("settings", self.settings), self.settings)
        differences += _differences(state.get("method", method), method) if whole else []
        for what, rows in (("training rows", self.rows), ("development rows or metric", self.judged)):
            then = state.get("rows" if rows is self.rows else "judged", rows)
            differences = differences or [
                f"different {what} of {task}" for task in rows if then.get(task) != rows[task]
            ]
        then = state.get("behaviour", {})
        here = {name: digest(value) for name, value in self.run.behaviour.items()}
        words = {
            "config": "a different configuration",
            "dropout": "different dropout",
            "frozen": "different frozen parameters",
            "functions": "different activations or norms",
        }
        differences = differences or [words[name] for name in here if then.get(name, here[name]) != here[name]]
        if not differences and whole and state.get("began") != self.began:
            differences = ["different initial weights"]
        return "; ".join(differences) or "model, tasks, plan or method differ"

    def _take_random(self, streams: Mapping[str, torch.Tensor]) -> None:
        index, here, there = self.run.accelerator.process_index, self.run.accelerator.num_processes, len(streams["cpu"])
        if here > there:
            raise HeadwiseError(f"a checkpoint of {there} processes for {here}", f"at most {there}")
        checkpoint.unpack_random({k: v[index].clone() for k, v in streams.items()})  # torch crashes on views

    def _gather_random(self) -> dict[str, torch.Tensor]:
        gather: Any = self.run.accelerator.gather
        return {name: gather(state[None].to(self.run.device)).cpu() for name, state in checkpoint.pack_random().items()}


def starting_weights(model: MultiTaskModel, out: Path | None, resume: bool | str | Path) -> str:
    """The hash of all weights, output heads included, with which training into a folder begins.

    If this process trained the model into the same folder and it has not changed since, its weights before that
    training count: the same call to `fit` then finds its own checkpoints.
    """
    if out is None and isinstance(resume, bool):
        return ""  # nothing is read or written
    now = weights(model)
    began, ended = vars(model).get("_trained", {}).get(out and out.absolute(), (now, now))
    return began if resume and ended == now else now


def remember(model: MultiTaskModel, out: Path, began: str) -> None:
    """Remember the weights with which a training into a folder began and ended."""
    vars(model).setdefault("_trained", {})[out.absolute()] = (began, weights(model))


def _differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The settings that changed; settings that only one method has are not compared."""
    changed = [name for name in now if name in then and then[name] != now[name]]
    return [f"{name}: {_short(then[name])} then, {_short(now[name])} now" for name in changed]


def _short(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _contents(columns: Mapping[str, np.ndarray]) -> str:
    """The hash of a task's columns, independent of their order."""
    return digest(*(part for name in sorted(columns) for part in (name, columns[name])))
