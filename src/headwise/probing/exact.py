"""Probes solved to their optimum, many at once: logistic regression by L-BFGS, ridge in closed form.

Every head's vectors are centred and turned to their principal axes, which moves neither the penalty nor the optimum and
makes the diagonal of the curvature a good guide. All problems of a head (L2 strengths, folds, control labels) share
its vectors, so that a step of all is two matrix products. A problem that has converged stays where it is: its result
does not depend on the others.

Legend: P heads, N examples, D dimensions, T targets, K L2 strengths, C classes, S = T * K problems of a head.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from headwise.errors import HeadwiseError

HISTORY = 8
STEPS = 200
TOLERANCE = 2e-5  # of the next step, relative to the largest coefficient
ROTATED = 1536  # wider vectors are only centred: their principal axes cost more than they save


class Linear(NamedTuple):
    """Fitted probes: ``x @ weight.mT + bias`` are the scores."""

    weight: Tensor  # (P, T, K, C, D)
    bias: Tensor  # (P, T, K, C)
    settled: Tensor  # (P, T, K) bool: converged

    def at(self, x_PND: Tensor) -> Tensor:
        """Scores ``(P, T, K, C, N)``."""
        flat = self.weight.flatten(1, 3)
        scores = torch.baddbmm(self.bias.flatten(1).unsqueeze(-1), flat, x_PND.to(flat.dtype).mT)
        return scores.unflatten(1, self.bias.shape[1:])


class Axes(NamedTuple):
    """Vectors in their own axes: ``x = (x_given - mean) @ turn``; ``spread`` are the variances along them."""

    x: Tensor  # (P, N, D)
    mean: Tensor  # (P, 1, D)
    turn: Tensor | None  # (P, D, D)
    spread: Tensor  # (P, D)

    @classmethod
    def of(cls, x_PND: Tensor) -> Axes:
        mean = x_PND.mean(1, keepdim=True)
        x = x_PND - mean
        if x.shape[-1] > ROTATED:
            return cls(x, mean, None, x.square().mean(1))
        gram = (x.mT @ x / x.shape[1]).double()
        spread, turn = torch.linalg.eigh(gram)
        turn = turn.to(x.dtype)
        return cls(x @ turn, mean, turn, spread.clamp_min(0).to(x.dtype))

    def back(self, weight_PMD: Tensor, bias_PM: Tensor) -> tuple[Tensor, Tensor]:
        """Coefficients for the vectors as they were given."""
        weight = weight_PMD if self.turn is None else weight_PMD @ self.turn.mT
        return weight, bias_PM - (weight @ self.mean.mT).squeeze(-1)


def logistic(x_PND: Tensor, y_TN: Tensor, l2: list[float], classes: int, weight_TN: Tensor | None = None) -> Linear:
    """Logistic probes of every head, target and L2 strength, each at the minimum of

        mean of the cross-entropy + l2 / 2 * |weight|²      (scikit-learn's C is 1 / (l2 * N); the bias is free).

    Args:
        x_PND: the vectors of P heads.
        y_TN: class numbers of each target.
        l2: strengths, above 0.
        classes: how many classes there are; two are solved with one score, as scikit-learn does.
        weight_TN: how much an example counts for a target (0: held out).
    """
    if min(l2) <= 0:
        raise HeadwiseError(f"l2 {min(l2)}", "strengths above 0, without which separable data have no optimum")
    axes = Axes.of(x_PND)
    problem = _Logistic(axes, y_TN, weight_TN, l2, classes)
    theta, settled = _lbfgs(problem)
    weight, bias = axes.back(theta[..., :-1].flatten(1, 2), theta[..., -1].flatten(1))
    shape = (len(x_PND), len(y_TN), len(l2), problem.scores)
    weight, bias = weight.view(*shape, -1), bias.view(shape)
    if classes == 2:
        weight, bias = (torch.cat([torch.zeros_like(part), part], 3) for part in (weight, bias))
    return Linear(weight, bias, settled.view(shape[:3]))


class _Logistic:
    """The loss of S problems of P heads at parameters ``(P, S, c, D + 1)``, its gradient and a first guess."""

    def __init__(self, axes: Axes, y_TN: Tensor, weight_TN: Tensor | None, l2: list[float], classes: int):
        x = axes.x
        self.x = torch.cat([x, x.new_ones(*x.shape[:2], 1)], -1)  # the last coefficient is the bias
        self.scores = 1 if classes == 2 else classes
        counts = x.new_ones(y_TN.shape) if weight_TN is None else weight_TN.to(x)
        share = counts / counts.sum(1, keepdim=True)  # (T, N)
        self.share = share.repeat_interleave(len(l2), 0)[:, None]  # (S, 1, N)
        wanted = y_TN[:, None] == torch.arange(classes, device=x.device)[:, None]  # (T, C, N)
        wanted = wanted[:, 1:] if classes == 2 else wanted
        self.wanted = wanted.to(x).repeat_interleave(len(l2), 0)  # (S, c, N)
        self.penalty = x.new_tensor(l2).repeat(len(y_TN))[:, None, None].expand(-1, 1, x.shape[-1] + 1).clone()
        self.penalty[..., -1] = 0
        prior = (self.wanted * self.share).sum(-1).clamp(1e-6, 1 - 1e-6)  # (S, c)
        self.prior = prior.logit() if classes == 2 else prior.log()
        flat = (prior * (1 - prior))[..., None]  # curvature where the scores say no more than the prior
        self.curvature = flat * torch.cat([axes.spread, x.new_ones(len(x), 1)], 1)[:, None, None] + self.penalty

    def start(self) -> Tensor:
        theta = self.x.new_zeros(len(self.x), *self.prior.shape, self.x.shape[-1])
        theta[..., -1] = self.prior
        return theta

    def logits(self, theta: Tensor) -> Tensor:
        return (theta.flatten(1, 2) @ self.x.mT).unflatten(1, self.prior.shape)

    def value(self, theta: Tensor, logits: Tensor) -> Tensor:
        """The loss of every problem, (P, S)."""
        if self.scores == 1:
            losses = torch.nn.functional.softplus(logits) - self.wanted * logits
        else:
            losses = logits.logsumexp(2, keepdim=True) - (self.wanted * logits).sum(2, keepdim=True)
        return (losses * self.share).sum((2, 3)) + (self.penalty * theta.square()).sum((2, 3)) / 2

    def gradient(self, theta: Tensor, logits: Tensor) -> Tensor:
        found = logits.sigmoid() if self.scores == 1 else logits.softmax(2)
        error = found.sub_(self.wanted).mul_(self.share)
        return (error.flatten(1, 2) @ self.x).unflatten(1, self.prior.shape) + self.penalty * theta


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Inner products of every problem, (P, S, 1, 1)."""
    return (a * b).sum((2, 3), keepdim=True)


def _lbfgs(problem: _Logistic) -> tuple[Tensor, Tensor]:
    """L-BFGS on all problems side by side, each with its own step length and its own end."""
    theta = problem.start()
    logits = problem.logits(theta)
    value, gradient = problem.value(theta, logits), problem.gradient(theta, logits)
    pairs: list[tuple[Tensor, Tensor, Tensor]] = []
    active = torch.ones_like(value, dtype=torch.bool)
    for _ in range(STEPS):
        direction = _two_loop(gradient, pairs, problem.curvature)
        size = direction.abs().amax((2, 3)) / theta[..., :-1].abs().amax((2, 3)).clamp_min(1)
        active = active & (size > TOLERANCE)
        if not active.any():
            break
        moved = problem.logits(direction)
        step = _step(problem, theta, logits, value, gradient, direction, moved, active)
        change = step * direction
        theta = theta + change
        logits = logits + step * moved
        value = problem.value(theta, logits)
        before, gradient = gradient, problem.gradient(theta, logits)
        turned = gradient - before
        bend = _dot(change, turned)
        pairs = [*pairs[1 - HISTORY :], (change, turned, torch.where(bend > 0, 1 / bend, 0.0))]
    return theta, ~active


def _two_loop(gradient: Tensor, pairs: list[tuple[Tensor, Tensor, Tensor]], curvature: Tensor) -> Tensor:
    """The descent direction of Nocedal and Wright's Algorithm 7.4, scaled by the diagonal of the curvature."""
    q, along = -gradient, []
    for change, turned, inverse in reversed(pairs):
        along.append(inverse * _dot(change, q))
        q = q - along[-1] * turned
    q = q / curvature
    if pairs:
        change, turned, inverse = pairs[-1]
        fit = _dot(turned, turned / curvature)
        q = q * torch.where((inverse > 0) & (fit > 0), 1 / (inverse * fit), 1.0)
    for (change, turned, inverse), a in zip(pairs, reversed(along)):
        q = q + (a - inverse * _dot(turned, q)) * change
    return q


def _step(problem, theta, logits, value, gradient, direction, moved, active) -> Tensor:
    """The largest of 1, 1/2, 1/4, ... that lowers the loss enough (Armijo); 0 for problems that are at their end."""
    slope = _dot(gradient, direction)[..., 0, 0]
    step = active.to(theta)[..., None, None]
    for _ in range(20):
        reached = problem.value(theta + step * direction, logits + step * moved)
        slack = 1e-7 * value.abs() if theta.dtype == torch.float32 else 0
        short = reached > value + 1e-4 * step[..., 0, 0] * slope + slack
        if not short.any():
            return step
        step = torch.where(short[..., None, None], step / 2, step)
    return torch.where(short[..., None, None], 0.0, step)
