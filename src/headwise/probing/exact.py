"""Solve many probes to their optimum at once: logistic regression by Newton's method, ridge regression in closed form.

Each head's vectors are centred and rotated to their principal axes, which changes neither the penalty nor the optimum
and makes the diagonal of the Hessian a good preconditioner. All problems of a head (L2 strengths, folds, control
labels) share its vectors, so a Hessian product for all of them is two matrix products. A converged problem no longer
changes, so its result does not depend on the others; a problem converged in all heads is dropped from the products,
because weak L2 strengths take ten times as many steps as strong ones.

Legend: P heads, N examples, D dimensions, T targets, K L2 strengths, C classes, S = T * K problems of a head.
"""

from __future__ import annotations

from copy import copy
from typing import NamedTuple

import torch
from torch import Tensor

from headwise.errors import HeadwiseError

STEPS = 50  # of Newton's method
INNER = 100  # conjugate gradients in one of them
RESIDUAL = 1e-2  # of Newton's equation, near the optimum: what a step leaves of the distance to it
FAR = 0.1  # the same far from it, where the curvature is about to change anyway
TOLERANCE = 2e-3  # of the last step, relative to the largest coefficient: the next one would be far below it
NOTHING = 1e-6  # a step that changes every score by less has converged
LOUD = 0.05  # a step that changes scores by more has not converged, however small relative to the coefficients
COARSE = 1e3  # vectors with larger numbers (the states of some decoders) are solved in 64 bits
HALVINGS = 20
BLOCK = 1_200_000  # numbers of the heads solved together on a CPU: they stay in its cache from one product to the next
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

    def classes(self, x_PND: Tensor) -> Tensor:
        """The class numbers with the highest scores ``(P, T, K, N)``; of two, by the sign of their difference."""
        if self.weight.shape[3] != 2:
            return self.at(x_PND).argmax(-2)
        weight, bias = self.weight.diff(dim=3), self.bias.diff(dim=3)
        return (Linear(weight, bias, self.settled).at(x_PND)[..., 0, :] > 0).long()


class Axes(NamedTuple):
    """Vectors in their principal axes: ``x = (x_given - mean) @ turn``; ``spread`` holds the variances along them."""

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
        """Coefficients for the original vectors."""
        weight = weight_PMD if self.turn is None else weight_PMD @ self.turn.mT
        return weight, bias_PM - (weight @ self.mean.mT).squeeze(-1)


def logistic(x_PND: Tensor, y_TN: Tensor, l2: list[float], classes: int, weight_TN: Tensor | None = None) -> Linear:
    """Logistic probes of every head, target and L2 strength, each at the minimum of

        mean of the cross-entropy + l2 / 2 * |weight|²      (scikit-learn's C is 1 / (l2 * N); the bias is free).

    Args:
        x_PND: the vectors of P heads.
        y_TN: class numbers of each target.
        l2: L2 strengths, above 0.
        classes: the number of classes; two are solved with one score, as in scikit-learn.
        weight_TN: the weight of each example for each target (0: held out).
    """
    if min(l2) <= 0:
        raise HeadwiseError(f"l2 {min(l2)}", "strengths above 0 (separable data have no optimum without)")
    wide = max(x_PND.shape[2], len(y_TN) * len(l2) * (classes if classes > 2 else 1))
    heads = max(1, BLOCK // (x_PND.shape[1] * wide)) if x_PND.device.type == "cpu" else len(x_PND)
    blocks = [_logistic(some, y_TN, l2, classes, weight_TN) for some in x_PND.split(heads)]
    return blocks[0] if len(blocks) == 1 else Linear(*map(torch.cat, zip(*blocks)))


def _logistic(x_PND: Tensor, y_TN: Tensor, l2: list[float], classes: int, weight_TN: Tensor | None) -> Linear:
    axes = Axes.of(x_PND.double() if x_PND.abs().amax() > COARSE else x_PND)
    problem = _Logistic(axes, y_TN, weight_TN, l2, classes)
    theta, settled = _newton(problem)
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
        self.spread = torch.cat([axes.spread, x.new_ones(len(x), 1)], 1)[:, None, None]  # (P, 1, 1, D + 1)
        self.share_of = prior[..., None]  # (S, c, 1)
        self.doubt_at_start = (prior * (1 - prior)).sum(1)[:, None, None]

    def start(self) -> Tensor:
        theta = self.x.new_zeros(len(self.x), *self.prior.shape, self.x.shape[-1])
        theta[..., -1] = self.prior
        return theta

    def preconditioned(self, gradient: Tensor) -> Tensor:
        """The gradient divided by the curvature at the prior π: λ (diag(π) - ππ') + l2 along an axis of variance λ."""
        spread = self.spread * self.doubt
        if self.scores == 1:
            return gradient / (self.share_of * (1 - self.share_of) * spread + self.penalty)
        floor = self.penalty.clone()
        floor[..., -1] = 0.1 / self.scores  # all biases together are free to move: any floor will do
        diagonal = spread * self.share_of + floor
        part = self.share_of / diagonal
        whole = (floor * part).sum(2, keepdim=True)  # 1 - Σ λππ/(λπ + floor), which is no difference of near equals
        pull = spread * (part * gradient).sum(2, keepdim=True) / whole
        return self.balanced(gradient / diagonal + part * pull)

    def balanced(self, change: Tensor) -> Tensor:
        """Subtract what all classes share: it changes no probability, and rounding errors would grow along it."""
        return change if self.scores == 1 else change - change.mean(2, keepdim=True)

    def logits(self, theta: Tensor) -> Tensor:
        return (theta.flatten(1, 2) @ self.x.mT).unflatten(1, theta.shape[1:3])

    def errors(self, theta: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of every problem ``(P, S)``, and its gradient with respect to the scores.

        Losses of confident examples are far smaller than their scores, so they are not computed as differences of
        scores: a line search could not tell a descent from rounding.
        """
        if self.scores == 1:
            losses = torch.nn.functional.softplus(logits * (1 - 2 * self.wanted))
            chances = logits.sigmoid()
        else:
            top = logits.amax(2, keepdim=True)
            chances = (logits - top).exp_()
            total = chances.sum(2, keepdim=True, dtype=torch.float64)
            losses = total.log() + (top - (self.wanted * logits).sum(2, keepdim=True))
            chances /= total.to(chances.dtype)
        loss, penalty = losses * self.share, self.penalty * theta.square()
        value = loss.sum((2, 3), dtype=torch.float64) + penalty.sum((2, 3), dtype=torch.float64) / 2
        doubt = (chances * (1 - chances) * self.share).sum((2, 3), keepdim=True)
        self.doubt = (doubt / self.doubt_at_start).clamp_min(1e-6)
        self.chances = chances
        return value, (chances - self.wanted).mul_(self.share)

    def bent(self, direction: Tensor) -> Tensor:
        """The Hessian times a direction."""
        moved = self.logits(direction).mul_(self.chances)
        if self.scores == 1:
            moved.mul_(1 - self.chances)
        else:
            moved.sub_(self.chances * moved.sum(2, keepdim=True))
        return self.gradient(direction, moved.mul_(self.share))

    def gradient(self, theta: Tensor, errors: Tensor) -> Tensor:
        return self.balanced((errors.flatten(1, 2) @ self.x).unflatten(1, theta.shape[1:3])) + self.penalty * theta

    def unsettled(self, theta: Tensor, step: Tensor, slope: Tensor, value: Tensor) -> Tensor:
        """Problems whose last step changed coefficients or large scores, and the loss by more than rounding, (P, S).

        The bias of a class without rows would decrease forever, to no effect. A step uphill means that the precision is
        too low for the curvature, not that an optimum was reached.
        """
        weights = step[..., :-1].abs().amax((2, 3)) / theta[..., :-1].abs().amax((2, 3)).clamp_min(1e-30)
        biases = step[..., -1].abs().amax(2) / theta[..., -1].abs().amax(2).clamp_min(1)
        scores = (self.spread * step.square()).sum(3).amax(2).sqrt()
        moved = (torch.maximum(weights, biases) > TOLERANCE) & (scores > NOTHING) | (scores > LOUD)
        return moved & (slope.abs() > (_rounding(value, theta) / 40).clamp_min(NOTHING**2 / 10))

    def among(self, heads: Tensor, problems: Tensor) -> _Logistic:
        """A subset of heads and of their problems, both as masks."""
        some = copy(self)
        some.x, some.spread = (self.x, self.spread) if heads.all() else (self.x[heads], self.spread[heads])
        some.chances, some.doubt = _part(self.chances, heads, problems), _part(self.doubt, heads, problems)
        for name in ("share", "wanted", "penalty", "share_of", "doubt_at_start"):
            setattr(some, name, getattr(self, name)[problems])
        return some


def _part(values: Tensor, heads: Tensor, problems: Tensor) -> Tensor:
    """Some heads and problems of ``(P, S, ...)``; copied once, and only what is wanted."""
    values = values if heads.all() else values[heads]
    return values if problems.all() else values[:, problems]


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Inner products of every problem, (P, S, 1, 1)."""
    return (a * b).sum((2, 3), keepdim=True)


def _rounding(value: Tensor, of: Tensor) -> Tensor:
    """Worst-case relative rounding error of a sum of losses in this precision; the average error is far smaller."""
    return 4 * torch.finfo(of.dtype).eps * value.abs()


def _newton(problem: _Logistic) -> tuple[Tensor, Tensor]:
    """Newton's method on all problems in parallel, each with its own step sizes and its own convergence."""
    theta = problem.start()
    logits = problem.logits(theta)
    value, errors = problem.errors(theta, logits)
    gradient = problem.gradient(theta, errors)
    size = _dot(gradient, problem.preconditioned(gradient))
    goal = torch.full_like(size, FAR)
    solution, settled = theta.clone(), torch.zeros_like(value, dtype=torch.bool)
    heads, problems = (torch.arange(n, device=theta.device) for n in value.shape)  # not yet converged
    active = ~settled
    for _ in range(STEPS):
        direction = _conjugate(problem, gradient, active, goal)
        moved = problem.logits(direction)
        slope = _dot(gradient, direction)[..., 0, 0]
        step, value, errors = _step(problem, theta, logits, value, slope, direction, moved, active)
        theta, logits = theta + step * direction, logits + step * moved
        moving = problem.unsettled(theta, direction, slope, value)
        active = active & (moving | (goal[..., 0, 0] > RESIDUAL))  # a rough step may be small far from the optimum
        gradient = problem.gradient(theta, errors)
        before, size = size, _dot(gradient, problem.preconditioned(gradient))
        goal = (size / before.clamp_min(1e-30)).sqrt().clamp(RESIDUAL, FAR)
        goal = torch.where(moving[..., None, None], goal, RESIDUAL)
        solution[heads[:, None], problems], settled[heads[:, None], problems] = theta, ~active
        rows, columns = active.any(1), active.any(0)
        if not rows.any():
            break
        if not (rows.all() and columns.all()):
            problem, heads, problems = problem.among(rows, columns), heads[rows], problems[columns]
            state = (active, theta, logits, value, errors, gradient, size, goal)
            active, theta, logits, value, errors, gradient, size, goal = (_part(t, rows, columns) for t in state)
    return solution, settled


def _conjugate(problem: _Logistic, gradient: Tensor, active: Tensor, goal: Tensor) -> Tensor:
    """Newton's direction by preconditioned conjugate gradients, until the residual is ``goal`` times the gradient."""
    solution, direction, residual = torch.zeros_like(gradient), torch.zeros_like(gradient), -gradient
    near = problem.preconditioned(residual)
    search, size = near, _dot(residual, near)
    goal, active = goal.square() * size, active[..., None, None]
    problems = torch.arange(gradient.shape[1], device=gradient.device)
    every = active.new_ones(len(gradient))
    for _ in range(INNER):
        busy = (size > goal) & active
        columns = busy.any(0).flatten()
        if not columns.any():
            break
        if not columns.all():
            solution[:, problems] = direction
            problem, problems = problem.among(every, columns), problems[columns]
            state = (direction, residual, search, size, goal, active, busy)
            direction, residual, search, size, goal, active, busy = (t[:, columns] for t in state)
        bent = problem.bent(search)
        curve = _dot(search, bent)
        pace = torch.where(busy & (curve > 0), size / curve.clamp_min(1e-30), 0.0)
        direction, residual = direction + pace * search, residual - pace * bent
        near = problem.preconditioned(residual)
        before, size = size, torch.where(busy, _dot(residual, near), size)
        search = torch.where(busy, near + size / before.clamp_min(1e-30) * search, search)
    solution[:, problems] = direction
    return solution


def _step(problem, theta, logits, value, slope, direction, moved, active) -> tuple[Tensor, Tensor, Tensor]:
    """The largest of 1, 1/2, 1/4, ... that lowers the loss enough (Armijo); 0 for converged problems."""
    step = active.to(theta)[..., None, None]
    slack = _rounding(value, theta)
    for _ in range(HALVINGS):
        reached, errors = problem.errors(theta + step * direction, logits + step * moved)
        short = reached > value + 1e-4 * step[..., 0, 0] * slope + slack
        if not short.any():
            return step, reached, errors
        step = torch.where(short[..., None, None], step / 2, step)
    step = torch.where(short[..., None, None], 0.0, step)
    return step, *problem.errors(theta + step * direction, logits + step * moved)


def ridge(x_PND: Tensor, y_TN: Tensor, l2: list[float], weight_TN: Tensor | None = None) -> Linear:
    """Ridge probes of every head, target and L2 strength: the minimum of mean (y - score)² + l2 * |weight|².

    scikit-learn's alpha is l2 * N. Along the principal axes every strength costs one division.
    """
    if min(l2) <= 0:
        raise HeadwiseError(f"l2 {min(l2)}", "strengths above 0")
    counts = x_PND.new_ones(y_TN.shape) if weight_TN is None else weight_TN.to(x_PND)
    solutions = [_ridge(x_PND, y, l2, count / count.sum()) for y, count in zip(y_TN, counts)]
    weight, bias = (torch.stack(parts, 1).to(x_PND.dtype) for parts in zip(*solutions))
    return Linear(weight[..., None, :], bias[..., None], torch.ones_like(bias, dtype=torch.bool))


def _ridge(x_PND: Tensor, y_N: Tensor, l2: list[float], share_N: Tensor) -> tuple[Tensor, Tensor]:
    """Weights ``(P, K, D)`` and biases ``(P, K)`` of one target."""
    x, y, share = x_PND.double(), y_N.double(), share_N.double()[:, None]  # sums of squares lose half of their digits
    strength = torch.tensor(l2, dtype=torch.float64, device=x.device)
    mean, middle = (x * share).sum(1), (y * share[:, 0]).sum()
    x = x - mean[:, None]
    gram = x.mT @ (x * share)
    pull = (x * (share * (y - middle)[:, None])).sum(1)  # (P, D)
    if x.shape[-1] <= ROTATED:
        spread, turn = torch.linalg.eigh(gram)
        along = (pull[:, None] @ turn) / (spread.clamp_min(0)[:, None] + strength[:, None])  # (P, K, D)
        weight = along @ turn.mT
    else:
        eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
        weight = torch.stack([torch.linalg.solve(gram + s * eye, pull) for s in strength], 1)
    return weight, middle - (weight @ mean[..., None]).squeeze(-1)
