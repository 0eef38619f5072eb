"""Sinusoids as tasks (Finn et al. 2017): one small network, one output head, many waves."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

from headwise.models.multitask import MultiTaskModel
from headwise.tasks.task import Rows, Task


@dataclass(frozen=True)
class Wave:
    """A number for a number; rows are ``{"x", "y"}``."""

    labels: tuple[str, ...] = ("y",)

    def ready(self, rows):
        return self

    def check(self, row):
        pass

    def encode(self, rows, tokenizer, max_length):
        column = np.array([[[row["x"]]] for row in rows], np.float32)
        return {"pixel_values": column, "label": np.array([row["y"] for row in rows], np.float32)}

    def head(self, hidden):
        return Out(hidden)

    def loss(self, scores, batch):
        return (scores - batch["label"]).square()

    def decode(self, scores, batch):
        return scores.tolist()

    def gold(self, rows):
        return [row["y"] for row in rows]


class Out(nn.Module):
    def __init__(self, hidden: int):
        super().__init__()
        self.out = nn.Linear(hidden, 1)

    def forward(self, hidden, batch):
        return self.out(hidden.pooled).squeeze(-1)


class Network(nn.Module):
    """Two layers of 40, as in the paper, in the clothes of an encoder."""

    def __init__(self):
        super().__init__()
        self.config = SimpleNamespace(hidden_size=40, _attn_implementation="eager")
        self.layers = nn.Sequential(nn.Linear(1, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU())

    dtype = torch.float32

    def forward(self, pixel_values):
        return SimpleNamespace(last_hidden_state=self.layers(pixel_values.flatten(1))[:, None])


def wave(number: int, train: int = 60, dev: int = 60, seed: int = 0) -> Task:
    rng = np.random.default_rng([seed, number])
    amplitude, phase = rng.uniform(0.1, 5.0), rng.uniform(0, np.pi)

    def rows(count: int) -> list[dict]:
        return [{"x": float(x), "y": float(amplitude * np.sin(x - phase))} for x in rng.uniform(-5, 5, count)]

    return Task(f"wave{number}", Wave(), Rows(train=rows(train), dev=rows(dev)), "pearson")


def network(tasks: list[Task], seed: int = 0) -> MultiTaskModel:
    torch.manual_seed(seed)
    share = {task.name: tasks[0].name for task in tasks[1:]}
    return MultiTaskModel(Network(), None, tasks, pooling="mean", share=share)
