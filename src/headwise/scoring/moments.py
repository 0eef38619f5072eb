"""Means of scores over examples with standard errors, in constant memory.

Legend: B examples, L layers, H heads.
"""

from __future__ import annotations

import math
from copy import copy
from dataclasses import replace

import numpy as np
import torch

from headwise.models.processes import Team
from headwise.scoring.result import Importance
from headwise.scoring.stability import BLOCKS, Blocks


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
