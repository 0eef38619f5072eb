"""Jobs as they go: a live table where a person watches, lines in a file."""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headwise.cli.screen import Screen

if TYPE_CHECKING:
    from headwise.experiments.jobs import Job

LINES = 12
COLOURS = {"running": "cyan", "done": "green", "failed": "red", "again": "yellow", "skipped": "red"}


class Board:
    """Hears of every change of a job and shows how the sweep stands."""

    def __init__(self, screen: Screen, total: int):
        self.screen, self.total, self.begun = screen, total, time.perf_counter()
        self.states: dict[str, tuple[Job, str, float]] = {}
        self.ran = 0
        watched = sys.stdout.isatty() and not screen.quiet
        self.live = Live(console=screen.console, get_renderable=self.table, refresh_per_second=4) if watched else None

    def __enter__(self) -> Board:
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *error: Any) -> None:
        if self.live:
            self.live.stop()

    def changed(self, job: Job, state: str, word: str) -> None:
        """A job changed."""
        before = self.states.get(job.key)
        self.states[job.key] = (job, state, time.perf_counter())
        self.ran += state in ("done", "failed")
        if state in ("done", "failed", "again", "skipped"):
            spent = f" in {time.perf_counter() - before[2]:.1f} s" if state == "done" and before else ""
            line = f"[{self.finished()}/{self.total}] {job.title}: {state}{spent}{' (' + word + ')' if word else ''}"
            if self.live and state != "done":
                self.live.console.print(Text(line))
            elif not self.live:
                self.screen.say(line + self.left())

    def finished(self) -> int:
        return sum(state in ("done", "found", "failed", "skipped") for _, state, _ in self.states.values())

    def left(self) -> str:
        """An estimate from the jobs this run has finished."""
        open_jobs = self.total - self.finished()
        if not self.ran or not open_jobs:
            return ""
        seconds = (time.perf_counter() - self.begun) / self.ran * open_jobs
        return f", about {seconds:.0f} s left" if seconds < 120 else f", about {seconds / 60:.0f} min left"

    def table(self) -> Group:
        """Counts, and the jobs under way with the time they have taken."""
        counts = Counter(state for _, state, _ in self.states.values())
        head = ", ".join(f"{number} {state}" for state, number in counts.items())
        table = Table(box=None, pad_edge=False, show_header=False)
        now = time.perf_counter()
        for job, state, since in [s for s in self.states.values() if s[1] == "running"][:LINES]:
            table.add_row(Text(state, style=COLOURS[state]), f"{now - since:.0f} s", Text(job.title))
        return Group(Text(f"{self.finished()} of {self.total} jobs ({head}){self.left()}", style="bold"), table)
