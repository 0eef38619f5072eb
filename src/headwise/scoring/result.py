"""A task's score for every head, with its uncertainty: means over examples in constant memory.

Legend: B examples, L layers, H heads.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headwise.errors import HeadwiseError
from headwise.io.display import Shown, heat_map, map_records, plot_map
from headwise.io.files import digest, read_arrays, write_arrays
from headwise.io.identity import identity
from headwise.models.processes import Team, first
from headwise.scoring.stability import BLOCKS, TARGET, Blocks, agreement, stability


@dataclass(frozen=True)
class Importance(Shown):
    """A task's score for every head, with its standard error.

    ``scores`` rank heads; most estimators take absolute values, so a head that harms the task ranks high too.
    ``signed`` separates the two: the loss that closing the head adds, exactly or to first order. Heads above zero help,
    heads below zero harm.
    """

    task: str
    by: str
    scores: torch.Tensor  # (L, H); NaN for heads that were cut
    stderr: torch.Tensor  # (L, H); NaN if the estimator has none
    examples: int
    blocks: Blocks = field(repr=False)  # scores of random parts of the examples
    signed: torch.Tensor | None = None  # (L, H); None if the estimator has no sign
    signed_stderr: torch.Tensor | None = field(default=None, repr=False)

    @property
    def harmful(self) -> torch.Tensor:
        """Bool (L, H): heads whose closing lowers the loss by more than two standard errors."""
        if self.signed is None or self.signed_stderr is None:
            return torch.zeros(self.scores.shape, dtype=torch.bool)
        return self.signed + 2 * self.signed_stderr < 0

    def split_half(self, fraction: float = 0.3) -> float:
        """Agreement on the top heads between random halves of the examples, 0 to 1; NaN if there are no two halves."""
        blocks = len(self.blocks.filled)
        return agreement(self.blocks, fraction, blocks // 2) if blocks > 1 else math.nan

    def examples_needed(self, fraction: float = 0.3, target: float = TARGET) -> int | None:
        """Number of examples with which two samples would agree on this fraction of top heads, extrapolated.

        More than ``examples`` if there were too few; None if even 20 times as many would not suffice.
        """
        return stability(self.blocks, fraction, self.examples, target).needed

    def to_record(self) -> dict[str, Any]:
        """Plain values; signed scores only if the estimator has them."""
        record = {"by": self.by, "examples": self.examples}
        record |= {"scores": self.scores.tolist(), "stderr": self.stderr.tolist()}
        signed = {"signed": self.signed, "signed_stderr": self.signed_stderr}
        return record | {name: value.tolist() for name, value in signed.items() if value is not None}

    def finished(self, alive: torch.Tensor, normalize: str) -> Importance:
        """Set absent heads to NaN and normalize, also in the blocks."""

        def finish(values: torch.Tensor | None) -> torch.Tensor | None:
            return None if values is None else values.masked_fill(~alive, torch.nan) / lengths

        lengths: Any = 1
        if normalize == "l2":
            lengths = self.scores.masked_fill(~alive, 0).norm(dim=-1, keepdim=True).clamp_min(1e-20)
        names = ("scores", "stderr", "signed", "signed_stderr")
        sums = np.where(alive.numpy(), self.blocks.sums, np.nan)
        blocks = replace(self.blocks, sums=sums, normalized=normalize == "l2")
        return replace(self, blocks=blocks, **{name: finish(getattr(self, name)) for name in names})

    def __str__(self) -> str:
        top, harmful = _names(self.scores, 5), self.harmful
        text = f"{self.task}: top heads {top} by {self.by} over {self.examples} examples"
        if count := int(harmful.sum()):
            worst = _names((-self.signed).masked_fill(~harmful, torch.nan), 3)  # type: ignore[operator]
            text += f"; {count} harmful, first {worst}"
        return text

    def to_records(self) -> list[dict[str, Any]]:
        """One record per head: its score, standard error, and signed score where there is one."""
        maps = {"score": self.scores, "stderr": self.stderr, "signed": self.signed}
        return [{"task": self.task, **record} for record in map_records(**maps)]

    def plot(self, ax: Any = None) -> Any:
        """The scores as a heat map; returns matplotlib axes."""
        return plot_map(self.scores, self.task, ax, f"importance ({self.by})")

    def _repr_html_(self) -> str:
        return heat_map(self.scores, str(self), f"{self.examples} examples")


def _names(scores: torch.Tensor, count: int) -> str:
    """The best heads by name; heads that were cut are not listed."""
    order = scores.nan_to_num(-torch.inf).flatten().argsort(descending=True)[:count]
    order = order[~scores.flatten()[order].isnan()].tolist()
    return ", ".join(f"{i // scores.shape[1]}.{i % scores.shape[1]}" for i in order)


class Moments:
    """Running sums of scores in random blocks of examples."""

    def __init__(self, shape: tuple[int, int]):
        self.sums = torch.zeros(BLOCKS, *shape, dtype=torch.float64)
        self.squares = torch.zeros(shape, dtype=torch.float64)
        self.weighted = torch.zeros(shape, dtype=torch.float64)  # weighted scores
        self.weights = torch.zeros(BLOCKS, dtype=torch.float64)
        self.squared_weights = 0.0
        self.rows = 0
        self.place = 0  # rows of all processes so far
        self.generator = np.random.default_rng(0)

    def add(self, values_BLH: torch.Tensor, weights_B: torch.Tensor | None = None, first: int | None = None) -> None:
        """Add the scores of examples or batches, optionally weighted (by number of tokens, for example).

        ``first`` is the index of the first row over all processes.
        """
        values_BLH = values_BLH.detach().double().cpu()
        weights_B = torch.ones(len(values_BLH)) if weights_B is None else weights_B.cpu()
        weights_B = weights_B.double()
        blocks_B = self._blocks(len(values_BLH), first)
        self.sums.index_add_(0, blocks_B, values_BLH)
        self.weights.index_add_(0, blocks_B, weights_B)
        self.squares += values_BLH.square().sum(0)
        self.weighted += torch.einsum("blh,b->lh", values_BLH, weights_B)
        self.squared_weights += float(weights_B.square().sum())
        self.rows += len(values_BLH)

    def _blocks(self, rows: int, first: int | None) -> torch.Tensor:
        """A random block for each row, because rows of a batch have similar lengths; no block is left empty.

        The block of a row does not depend on the number of processes.
        """
        if first is not None:
            self.generator.integers(BLOCKS, size=first - self.place)
            self.place = first
        numbers = np.arange(self.place, self.place + rows)
        self.place += rows
        drawn = self.generator.integers(BLOCKS, size=rows)
        return torch.from_numpy(np.where(numbers < BLOCKS, numbers, drawn))

    def joined(self, team: Team) -> Moments:
        """The sums over all processes."""
        if team.size == 1:
            return self
        whole = copy(self)
        counts = torch.tensor([self.squared_weights, self.rows], dtype=torch.float64)
        parts = team.summed([self.sums, self.squares, self.weighted, self.weights, counts])
        whole.sums, whole.squares, whole.weighted, whole.weights, counts = parts
        whole.squared_weights, whole.rows = float(counts[0]), int(counts[1])
        return whole

    def scale(self, layer: int, factor: float) -> None:
        """Scale a layer's scores, including those of earlier examples."""
        self.sums[:, layer] *= factor
        self.weighted[layer] *= factor
        self.squares[layer] *= factor**2

    def mean(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The weighted mean and its standard error (that of a ratio)."""
        total = self.weights.sum()
        mean = self.sums.sum(0) / total
        apart = self.squares - 2 * mean * self.weighted + mean.square() * self.squared_weights
        whole = math.sqrt(self.rows / (self.rows - 1)) if self.rows > 1 else math.nan  # a single value has no spread
        return mean.float(), (whole * apart.clamp_min(0).sqrt() / total).float()

    def result(self, task: str, by: str, examples: int, signed: Moments | None = None) -> Importance:
        """The mean as an `Importance`, with signed scores."""
        mean, stderr = self.mean()
        blocks = Blocks(self.sums.numpy(), self.weights.numpy())
        made = Importance(task, by, mean, stderr, examples, blocks)
        if signed is None:
            return made
        value, error = signed.mean()
        return replace(made, signed=value, signed_stderr=error)


class ScoreFile:
    """The scores of finished tasks in a file, each with a hash of all that determined it.

    Of several processes the first writes, and what not all of them find is measured again by all.
    """

    def __init__(self, path: Path | None, by: str, subject: Any, settings: Mapping[str, Any]):
        self.path, self.about = path, {"by": by}
        self.arrays: dict[str, Any] = {}
        self.records: dict[str, Any] = {}
        self._words: dict[str, str] = {}
        self._subject, self._settings, self._base = subject, {**settings, "by": by}, ""
        self._before, self._about_before = self._read()

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
        if self.path is None:
            return None
        known = self._about_before.get(f"{task}.key") == self._key(task) and task in self._before
        if not Team.of(self._subject).everywhere(known):
            return None
        record, words = (json.loads(self._about_before[f"{task}.{part}"]) for part in ("record", "words"))
        self.add(task, torch.from_numpy(self._before[task]), record, words)
        return self.shown(task)

    def add(self, task: str, scores: Any, record: Mapping[str, Any], words: str) -> None:
        """Keep a task's scores, and write all so far."""
        self.arrays[task], self.records[task], self._words[task] = scores.numpy(), record, words
        if self.path is None:
            return
        self.about[f"{task}.key"] = self._key(task)  # by all: weights may lie on several processes
        self.about[f"{task}.record"], self.about[f"{task}.words"] = json.dumps(record), json.dumps(words)
        if first():
            write_arrays(self.path, self.arrays, self.about)

    def shown(self, task: str) -> tuple[Any, str]:
        return torch.from_numpy(self.arrays[task]), self._words[task]
