"""What a sweep leaves on disk: models as asked for, logs, records in few files, and no locks."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence
from pathlib import Path

from headwise.errors import unknown
from headwise.experiments.executors import log_of
from headwise.experiments.jobs import Job
from headwise.io.files import locked
from headwise.io.records import Results, scores_of

KEEP = ("all", "best", "none")
MANY = 1000  # records, a folder each, from which on they are moved into Parquet files


class Tidying:
    """Removes a job's model, checkpoints and log when every job that depends on it is done.

    Args:
        root: of the sweep.
        keep: all; none; or the best model of those trained on the same tasks, by its mean score.
        jobs: of the sweep, with all they depend on.
    """

    def __init__(self, root: Path, keep: str, jobs: Sequence[Job]):
        if keep not in KEEP:
            raise unknown("models to keep", keep, KEEP)
        self.root, self.keep, self.jobs = root, keep, {job.key: job for job in jobs}
        self.results = Results(root / "records")
        self.best: dict[str, tuple[float, str]] = {}
        self.dependents: dict[str, list[str]] = {}
        for job in jobs:
            for before in job.after:
                self.dependents.setdefault(before.key, []).append(job.key)

    def done(self, job: Job, finished: Collection[str]) -> None:
        """A job is done: what nobody needs any more goes."""
        if self.keep == "all":
            return
        for key in (job.key, *(before.key for before in job.after)):
            if key in finished and all(dependent in finished for dependent in self.dependents.get(key, ())):
                self._release(key)

    def _release(self, key: str) -> None:
        job, score = self.jobs[key], self._score(key)
        if self.keep == "best" and score is not None:
            group = f"{job.work} {sorted(job.config.get('tasks') or ())}"
            best = self.best.get(group)
            if best is not None and best[1] != key and score <= best[0]:
                self._remove(key)
            else:
                self.best[group] = score, key
                if best is not None and best[1] != key:
                    self._remove(best[1])
        elif self.keep == "none" or score is None:
            self._remove(key)

    def _score(self, key: str) -> float | None:
        """A model's mean score; None for jobs that keep no model or report no score."""
        if not (self.root / "models" / key).is_dir():
            return None
        scores = scores_of(self.results[key]).values()
        return sum(scores) / len(scores) if scores else None

    def _remove(self, key: str) -> None:
        for folder in ("models", "work"):
            shutil.rmtree(self.root / folder / key, ignore_errors=True)
        log_of(self.root, self.jobs[key]).unlink(missing_ok=True)

    def finish(self, finished: Collection[str]) -> None:
        """After the sweep: locks of finished jobs go, and many records move into few files."""
        for key in finished:
            path = self.root / "locks" / key
            if path.exists():
                try:
                    with locked(path, wait=False):  # who waits for it finds the record
                        path.unlink(missing_ok=True)
                except BlockingIOError:
                    continue
        if sum(1 for _ in zip(self.results.root.glob("*/record.json"), range(MANY))) >= MANY:
            self.results.compact()
