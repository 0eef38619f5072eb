"""Losses and scores of a training run: to its history, a JSONL file, trackers and the screen."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from headwise.errors import HeadwiseError, unknown
from headwise.io.display import Shown, axes, table
from headwise.io.files import plain, write, write_json
from headwise.io.progress import Progress
from headwise.training.checkpoint import list_all

if TYPE_CHECKING:
    from pathlib import Path

    from headwise.training.loop import Run

FLUSH = 10  # steps between reads of the losses: each read waits for the accelerator
TRACKERS = ("tensorboard", "wandb", "trackio", "mlflow")


@dataclass
class History(Shown):
    """Losses per task and step, scores per evaluation."""

    losses: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    scores: list[dict[str, Any]] = field(default_factory=list)
    steps: int = 0
    planned: int = 0  # steps of the plan
    seconds: float = 0.0
    stopped: str = ""  # why training stopped early, if it did

    def to_record(self) -> dict[str, Any]:
        return plain({"losses": self.losses, "scores": self.scores, "steps": self.steps, "stopped": self.stopped})

    def best(self, after: int = 0) -> dict[str, Any] | None:
        """The evaluation with the best mean score, the first if tied; those up to step ``after`` are ignored."""
        rated = [entry for entry in self.scores if entry["step"] > after and not math.isnan(entry["mean"])]
        return max(rated, key=lambda entry: entry["mean"], default=None)

    def to_records(self) -> list[dict[str, Any]]:
        """One record per step and task (losses) and per evaluation and task (scores)."""
        losses = [
            {"step": step, "task": task, "what": "loss", "value": value}
            for task, points in self.losses.items()
            for step, value in points
        ]
        rated = [(entry["step"], task, value) for entry in self.scores for task, value in entry["scores"].items()]
        return losses + [{"step": s, "task": task, "what": "score", "value": value} for s, task, value in rated]

    def plot(self, ax: Any = None) -> Any:
        """Plot scores over steps, or losses if nothing was evaluated; returns matplotlib axes."""
        ax = axes(ax, (5.0, 3.2))
        for task, curve in self.curves().items():
            rated = len(curve["metric_step"]) > 0
            x, y = (curve["metric_step"], curve["metric"]) if rated else (curve["step"], curve["loss"])
            ax.plot(x, y, marker="o" if rated else None, label=f"{task}" if rated else f"{task} (loss)")
        ax.set(xlabel="step", ylabel="development score")
        ax.legend()
        return ax

    def _repr_html_(self) -> str:
        names = list(self.scores[-1]["scores"]) if self.scores else []
        rows = [[e["step"], *(100 * e["scores"][n] for n in names), 100 * e["mean"]] for e in self.scores]
        title = f"Development scores in percent; {self.steps} steps in {self.seconds:.0f} s"
        return table(["step", *names, "mean"], rows, title, self.stopped)

    def curves(self) -> dict[str, dict[str, list]]:
        """Steps and losses, steps and scores, by task."""
        out = {}
        for task, points in self.losses.items():
            rated = [(s["step"], s["scores"][task]) for s in self.scores if task in s["scores"]]
            out[task] = {"step": [p[0] for p in points], "loss": [p[1] for p in points]}
            out[task] |= {"metric_step": [p[0] for p in rated], "metric": [p[1] for p in rated]}
        return out


class Journal:
    """Collects the losses and scores of a run, every few steps."""

    def __init__(self, run: Run, progress: Progress):
        self.run, self.progress = run, progress
        self.waiting: list[tuple[int, str, torch.Tensor, np.ndarray]] = []
        main = run.accelerator.is_main_process
        self.path = run.out / "metrics.jsonl" if run.out and main else None
        if self.path:
            self._start()

    def _start(self) -> None:
        """Remove lines after the checkpoint from which training resumes."""
        assert self.path is not None
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = self.path.read_text().splitlines() if self.path.exists() and self.run.step else []
        earlier = [line for line in lines if _line_step(line) <= self.run.step]
        write(self.path, "".join(line + "\n" for line in earlier))
        write_json(self.path.parent / "plan.json", {"plan": self.run.plan, **self.run.method.describe()})

    def __enter__(self) -> Journal:
        self.progress.start(self.run.total, self.run.step, self.run.names)
        if self.run.accelerator.log_with:
            settings = {name: str(value) for name, value in asdict(self.run.plan).items() if value is not None}
            self.run.accelerator.init_trackers("headwise", settings | {"method": self.run.method.name})
        return self

    def __exit__(self, *exc: object) -> None:
        self.progress.stop()
        for tracker in self.run.accelerator.trackers:  # end_training would also end the process group
            tracker.finish()

    def add(self, tasks: Sequence[str], losses: Sequence[torch.Tensor], items: Sequence[np.ndarray]) -> None:
        """Add the batches of a step."""
        for task, loss, batch in zip(tasks, losses, items):
            self.waiting.append((self.run.step + 1, task, loss, batch))
        balanced = self.run.plan.balance != "none"
        if balanced or len(self.waiting) >= FLUSH:
            self.flush()

    def flush(self) -> None:
        """Read the losses; a loss that is not finite stops the run before anything is saved."""
        if not self.waiting:
            return
        losses: Any = self.run.accelerator.reduce(torch.stack([loss for *_, loss, _ in self.waiting]), "mean")
        values, waiting, self.waiting = losses.tolist(), self.waiting, []
        entries = []
        for (step, task, _, items), value in zip(waiting, values):
            if not math.isfinite(value):
                raise _not_finite(self.run, step, task, items, value)
            self.run.history.losses.setdefault(task, []).append((step, value))
            self.run.recent[task].append(value)
            entries.append({"step": step, "task": task, "loss": value})
            self.run.accelerator.log({f"loss/{task}": value}, step)
            tokens = int(self.run.data[task].lengths[items].sum())
            self.progress.advance(step, task, value, tokens)
        self._write(entries)

    def scores(self, entry: dict[str, Any]) -> None:
        """Add an evaluation."""
        self.run.history.scores.append(entry)
        self._write([entry])
        self.run.accelerator.log({f"dev/{task}": value for task, value in entry["scores"].items()}, entry["step"])
        self.progress.scores(entry["step"], entry["scores"])

    def _write(self, entries: list[dict[str, Any]]) -> None:
        if self.path:
            with self.path.open("a") as file:
                file.write("".join(json.dumps(plain(entry)) + "\n" for entry in entries))


def check_trackers(names: Sequence[str], out: Path | None) -> None:
    """Raise if a tracker is unknown, not installed or has no folder to write to."""
    for name in names:
        if name not in TRACKERS:
            raise unknown("tracker", name, TRACKERS)
        if find_spec(name) is None:
            raise HeadwiseError(
                f"track={name!r} needs the package {name!r}, which is not installed", hint=f"pip install {name}"
            )
        if out is None:
            raise HeadwiseError(f"track={name!r} without a folder", "out=", 'fit(..., out="runs/first")')


def _not_finite(run: Run, step: int, task: str, items: np.ndarray, value: float) -> HeadwiseError:
    folder = run.out / "checkpoints" if run.out else None
    exists = folder and list_all(folder)
    last = f"the last checkpoint is in {folder}" if exists else "there is no checkpoint yet"
    return HeadwiseError(
        f"the loss of {task!r} became {value} at step {step} (training items {items[:8].tolist()}…); {last}",
        "a finite loss",
        f"a smaller learning rate than {run.plan.lr}, or clip=1.0",
    )


def _line_step(line: str) -> float:
    try:
        return json.loads(line)["step"]
    except (json.JSONDecodeError, KeyError, TypeError):
        return math.inf  # a truncated last line
