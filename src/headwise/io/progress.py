"""Progress: a bar in a terminal, plain lines in a file, nothing in library calls."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence


class Progress:
    """Shows nothing; the base class of those that do."""

    first = 0  # the step at which training began

    def start(self, total: int, done: int, tasks: Sequence[str]) -> None:
        """Called when training begins, at step ``done`` of ``total``."""
        self.first = done

    def advance(self, step: int, task: str, loss: float, tokens: int) -> None:
        """Called after each batch."""

    def scores(self, step: int, scores: Mapping[str, float]) -> None:
        """Called after each evaluation."""

    def stop(self) -> None:
        """Called when training ends."""


def quiet() -> Progress:
    return Progress()


def shown() -> Progress:
    """A bar in a terminal, lines when output goes to a file."""
    return Bar() if sys.stderr.isatty() else Lines()


class Lines(Progress):
    """Prints a line after every tenth of training."""

    def start(self, total: int, done: int, tasks: Sequence[str]) -> None:
        self.total, self.next, self.begun, self.tokens, self.first = total, done, time.perf_counter(), 0, done
        self.losses: dict[str, float] = {}

    def advance(self, step: int, task: str, loss: float, tokens: int) -> None:
        self.tokens += tokens
        self.losses[task] = smooth(self.losses.get(task), loss)
        if step >= self.next:
            self.next = step + max(1, self.total // 10)
            spent = time.perf_counter() - self.begun
            left = spent / max(1, step - self.first) * (self.total - step)
            remaining = (
                f"  about {left:.0f} s left" if step > self.first + 1 else ""
            )  # one step does not predict the others
            losses = ", ".join(f"{name} {value:.3f}" for name, value in self.losses.items())
            rate = self.tokens / max(spent, 1e-9)
            line = f"  step {step}/{self.total}  loss: {losses}  {rate:,.0f} tokens/s{remaining}"
            print(line, file=sys.stderr, flush=True)

    def scores(self, step: int, scores: Mapping[str, float]) -> None:
        print(f"  step {step}  dev: {named(scores)}", file=sys.stderr, flush=True)


class Bar(Progress):
    """A live bar with each task's loss."""

    def start(self, total: int, done: int, tasks: Sequence[str]) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self.losses: dict[str, float] = {}
        self.tokens, self.begun, self.first = 0, time.perf_counter(), done
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
        self.bar = RichProgress(*columns, console=Console(stderr=True), transient=True)
        self.bar.start()
        self.job = self.bar.add_task("", total=total, completed=done)

    def advance(self, step: int, task: str, loss: float, tokens: int) -> None:
        self.tokens += tokens
        self.losses[task] = smooth(self.losses.get(task), loss)
        rate = self.tokens / max(time.perf_counter() - self.begun, 1e-9)
        losses = "  ".join(f"{name} {value:.3f}" for name, value in self.losses.items())
        self.bar.update(self.job, completed=step, description=f"{losses}  [dim]{rate:,.0f} tokens/s")

    def scores(self, step: int, scores: Mapping[str, float]) -> None:
        self.bar.console.print(f"  step {step}  dev: {named(scores)}")

    def stop(self) -> None:
        self.bar.stop()


def smooth(before: float | None, now: float) -> float:
    return now if before is None else 0.9 * before + 0.1 * now


def named(scores: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {100 * value:.1f}" for name, value in scores.items())
