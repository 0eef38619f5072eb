"""Scores that a verb writes task by task, so that the same command resumes after it was stopped."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headwise.errors import HeadwiseError
from headwise.io.files import digest, read_arrays, write_arrays
from headwise.io.identity import identity


class Kept:
    """The scores of finished tasks in a file, each with a hash of all that determined it."""

    def __init__(self, path: Path | None, by: str, subject: Any, settings: Mapping[str, Any]):
        self.path, self.about = path, {"by": by}
        self.arrays: dict[str, Any] = {}
        self.records: dict[str, Any] = {}
        self._words: dict[str, str] = {}
        self._subject, self._settings, self._base = subject, {**settings, "by": by}, ""
        self._before, self._said = self._read()

    def _read(self) -> tuple[dict[str, Any], dict[str, str]]:
        if self.path is None or not self.path.exists():
            return {}, {}
        try:
            return read_arrays(self.path)
        except HeadwiseError:  # another file of this name: it is replaced, as it was asked for
            return {}, {}

    def _key(self, task: str) -> str:
        self._base = self._base or digest(identity(self._subject), self._subject.form, self._settings)
        return digest(self._base, identity(self._subject.tasks[task]))

    def find(self, task: str) -> tuple[Any, str] | None:
        """A task's scores and a line about them, where the file has them."""
        import torch

        if task not in self._before or self._said.get(f"{task}.key") != self._key(task):
            return None
        record, words = (json.loads(self._said[f"{task}.{part}"]) for part in ("record", "words"))
        self.add(task, torch.from_numpy(self._before[task]), record, words)
        return self.shown(task)

    def add(self, task: str, scores: Any, record: Mapping[str, Any], words: str) -> None:
        """Keep a task's scores, and write all so far."""
        self.arrays[task], self.records[task], self._words[task] = scores.numpy(), record, words
        if self.path is None:
            return
        self.about[f"{task}.key"] = self._key(task)
        self.about[f"{task}.record"], self.about[f"{task}.words"] = json.dumps(record), json.dumps(words)
        write_arrays(self.path, self.arrays, self.about)

    def shown(self, task: str) -> tuple[Any, str]:
        import torch

        return torch.from_numpy(self.arrays[task]), self._words[task]
