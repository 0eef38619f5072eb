"""Train many probes at once by mini-batches with early stopping, each as if it were alone.

All probes start from the same weights and see the same permutations (Jo and Myaeng 2020 reset the seed for every
classifier), so one step of all probes is three matrix products. A probe that stops keeps its best weights; later steps
of the others do not affect it.

Legend: P heads, N examples, D dimensions, K L2 strengths, C outputs, B batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from headwise.errors import HeadwiseError, unknown


@dataclass(frozen=True)
class Rule:
    """How a probe is trained and when it stops; the defaults are those of the released code for classification."""

    optimizer: str = "rmsprop"
    lr: float = 0.01
    """The released code's; the paper prints 0.1."""
    batch: int = 256
    every: int = 2
    """Epochs between two evaluations on the development rows."""
    tenacity: int = 3
    """Evaluations without improvement that are tolerated, counted over the whole training."""
    max_epochs: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        if self.optimizer not in ("rmsprop", "adam"):
            raise unknown("optimizer", self.optimizer, ("rmsprop", "adam"))
        if min(self.lr, self.batch, self.every, self.max_epochs) <= 0 or self.tenacity < 0:
            raise HeadwiseError(f"every number of the rule must be above 0: {self}")


GRADED = Rule("adam", lr=1e-3, batch=64, every=50, max_epochs=1000)  # the released code's for soft labels


class Target(Protocol):
    """The objective of the probes, on scores ``(P, K, C, B)``."""

    outputs: int

    def errors(self, scores: Tensor, items: Tensor) -> Tensor:
        """The gradient of the mean loss with respect to the scores."""
        ...

    def score(self, scores: Tensor) -> Tensor:
        """The evaluation of development scores, ``(P, K)``."""
        ...


class Classes:
    """Classes: cross-entropy, evaluated by accuracy."""

    def __init__(self, train: Tensor, dev: Tensor, outputs: int):
        self.train, self.dev, self.outputs = train, dev, outputs

    def errors(self, scores: Tensor, items: Tensor) -> Tensor:
        probabilities = scores.softmax(2)
        place = self.train[items].expand(*probabilities.shape[:2], 1, -1)
        return probabilities.scatter_add_(2, place, probabilities.new_full((1,), -1.0).expand(place.shape)).div_(
            len(items)
        )

    def score(self, scores: Tensor) -> Tensor:
        return (scores.argmax(2) == self.dev).double().mean(-1)


class Grades:
    """Grades as a distribution over five points: squared error of probabilities, evaluated by Pearson's r.

    A grade between two points is divided between them (Tai et al. 2015). As in the released code, the part of a grade
    below the first point has no target.
    """

    outputs = 5

    def __init__(self, train: Tensor, dev: Tensor):
        self.train, self.dev = soft_labels(train), dev  # (C, N) and (N,), from 0 to 1

    def errors(self, scores: Tensor, items: Tensor) -> Tensor:
        probabilities = scores.softmax(2)
        pull = (probabilities - self.train[:, items].to(probabilities)).mul_(2 / (len(items) * self.outputs))
        return probabilities * (pull - (probabilities * pull).sum(2, keepdim=True))

    def score(self, scores: Tensor) -> Tensor:
        return pearson(expected_grade(scores), self.dev)


def soft_labels(grades: Tensor, points: int = 5) -> Tensor:
    """Grades from 0 to 1 as a distribution over the points 1 to 5, ``(points, N)``."""
    place = torch.arange(1, points + 1, device=grades.device)[:, None]
    return (1 - (grades * points - place).abs()).clamp_min(0)


def expected_grade(scores: Tensor) -> Tensor:
    """The mean grade, 0 to 1, under the scores of the five points (their axis is the last but one)."""
    points = scores.shape[-2]
    place = torch.arange(1, points + 1, device=scores.device, dtype=scores.dtype)[:, None]
    return (scores.softmax(-2) * place).sum(-2) / points


def pearson(predicted: Tensor, gold: Tensor) -> Tensor:
    """Pearson's r along the last axis; 0 if one side is constant."""
    predicted, gold = (x.double() - x.double().mean(-1, keepdim=True) for x in (predicted, gold))
    scale = (predicted.square().sum(-1) * gold.square().sum(-1)).sqrt()
    return torch.where(scale > 1e-12, (predicted * gold).sum(-1) / scale.clamp_min(1e-300), 0.0)


class Descent(NamedTuple):
    """Trained probes: their best weights, development scores and number of epochs."""

    weight: Tensor  # (P, K, C, D)
    bias: Tensor  # (P, K, C)
    score: Tensor  # (P, K)
    epochs: Tensor  # (P, K)


def descend(train_PND: Tensor, dev_PND: Tensor, target: Target, l2: list[float], rule: Rule) -> Descent:
    """Train a probe for every head and L2 strength (the optimizer's weight decay).

    Probes are evaluated every few epochs. The best weights are kept, and a probe stops after more than ``tenacity``
    evaluations without improvement.
    """
    state = _State(train_PND, target.outputs, l2, rule)
    heads, strengths = len(train_PND), len(l2)
    best = Descent(
        state.weight.clone(),
        state.bias.clone(),
        torch.full((heads, strengths), -torch.inf, dtype=torch.float64, device=train_PND.device),
        torch.zeros(heads, strengths, dtype=torch.long, device=train_PND.device),
    )
    misses, running = torch.zeros_like(best.epochs), torch.ones_like(best.epochs, dtype=torch.bool)
    left = torch.arange(heads, device=train_PND.device)  # the heads still in training
    permutations, epoch = np.random.RandomState(rule.seed), 0
    while len(left) and epoch <= rule.max_epochs:
        for _ in range(rule.every):
            order = torch.from_numpy(permutations.permutation(train_PND.shape[1])).to(train_PND.device)
            for items in order.split(rule.batch):
                state.step(train_PND.index_select(1, items), target, items)
        epoch += rule.every
        score = target.score(state.scores(dev_PND))
        better = running[left] & (score > best.score[left])
        _keep(best, left, better, state, score)
        missed = running[left] & ~better
        running[left] &= ~(missed & (misses[left] >= rule.tenacity))
        misses[left] += missed.long()
        best.epochs[left] = torch.where(running[left] | missed | better, epoch, best.epochs[left])
        busy = running[left].any(1)
        if busy.double().mean() <= 0.8:  # a copy of the vectors costs a few steps
            left, train_PND, dev_PND = left[busy], train_PND[busy], dev_PND[busy]
            state.keep(busy)
    return best


def _keep(best: Descent, left: Tensor, better: Tensor, state: _State, score: Tensor) -> None:
    head, strength = better.nonzero(as_tuple=True)
    best.weight[left[head], strength] = state.weight[head, strength]
    best.bias[left[head], strength] = state.bias[head, strength]
    best.score[left[head], strength] = score[head, strength]


class _State:
    """Weights and the optimizer's moments of all probes in training."""

    def __init__(self, x: Tensor, outputs: int, l2: list[float], rule: Rule):
        self.rule, self.steps = rule, 0
        dtype = x.dtype if x.dtype in (torch.float32, torch.float64) else torch.float32
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(rule.seed)
            first = nn.Linear(x.shape[-1], outputs)
        weight = torch.cat([first.weight, first.bias[:, None]], 1).detach().to(x.device, dtype)  # the bias comes last
        self.theta = weight.expand(len(x), len(l2), -1, -1).clone()  # (P, K, C, D + 1)
        self.decay = torch.tensor(l2, dtype=dtype, device=x.device)[:, None, None]
        self.square, self.mean = torch.zeros_like(self.theta), torch.zeros_like(self.theta)

    @property
    def weight(self) -> Tensor:
        return self.theta[..., :-1]

    @property
    def bias(self) -> Tensor:
        return self.theta[..., -1]

    def keep(self, heads: Tensor) -> None:
        self.theta, self.square, self.mean = self.theta[heads], self.square[heads], self.mean[heads]

    def scores(self, x_PBD: Tensor) -> Tensor:
        """(P, K, C, B)"""
        flat = self.weight.flatten(1, 2)
        scores = torch.baddbmm(self.bias.flatten(1).unsqueeze(-1), flat, x_PBD.to(flat.dtype).mT)
        return scores.unflatten(1, self.theta.shape[1:3])

    def step(self, x_PBD: Tensor, target: Target, items: Tensor) -> None:
        x = x_PBD.to(self.theta.dtype)
        errors = target.errors(self.scores(x), items).flatten(1, 2)
        gradient = torch.cat([errors @ x, errors.sum(-1, keepdim=True)], -1).unflatten(1, self.theta.shape[1:3])
        gradient += self.decay * self.theta
        self.steps += 1
        if self.rule.optimizer == "rmsprop":
            self.square.mul_(0.99).addcmul_(gradient, gradient, value=0.01)
            self.theta.addcdiv_(gradient, self.square.sqrt().add_(1e-8), value=-self.rule.lr)
        else:
            self.mean.lerp_(gradient, 0.1)
            self.square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
            scale = (1 - 0.999**self.steps) ** 0.5
            size = -self.rule.lr / (1 - 0.9**self.steps)
            self.theta.addcdiv_(self.mean, self.square.sqrt().div_(scale).add_(1e-8), value=size)
