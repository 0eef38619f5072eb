"""Importance from gates learned on the frozen model: L0 and causal head gating.

Legend: B examples, S sets of gates, L layers, H heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from headwise.errors import HeadwiseError
from headwise.scoring.concrete import EDGE, HardConcrete, Price, draw, p_open, settle
from headwise.scoring.result import Importance
from headwise.scoring.sample import Sample
from headwise.scoring.stability import Blocks

ROLES = ("facilitates", "irrelevant", "interferes")
REACH = 6.0  # range of the gate logits
OPEN = 2.0  # initial logit: a sampled gate is closed once in seventeen times


def l0(
    sample: Sample, steps: int = 200, size: int = 32, lr: float = 0.1, target: float = 0.5, rate: float = 0.01
) -> Importance:
    """The probability that a head stays open when gates learn to close a fraction of all heads.

    Each half of the examples has its own set of gates, sampled for every example. Scores are their mean probability of
    being open; the standard error is computed from the difference of the halves.

    Args:
        sample: what `importance` passes.
        steps: optimizer steps.
        size: examples per step.
        lr: learning rate of the gates.
        target: fraction of heads to close.
        rate: learning rate of the Lagrange multiplier.
    """
    gates = HardConcrete(sample.heads, ("even", "odd")).to(sample.model.device)
    price, generator = Price(2, 0.0, target, rate), torch.Generator().manual_seed(sample.seed)
    optimizer = torch.optim.Adam([gates.log_a], lr=lr)
    stream = sample.stream(size)
    for step in range(steps):
        ramp = min(
            1.0, 2 * (step + 1) / steps
        )  # the target is reached half-way; increasing the price faster closes everything
        places, batch = next(stream)
        log_a_BLH = gates.log_a[torch.from_numpy(places % 2).to(gates.log_a.device)]
        noise = torch.empty(log_a_BLH.shape).uniform_(EDGE, 1 - EDGE, generator=generator)
        loss = sample.losses(batch, draw(log_a_BLH, noise.to(log_a_BLH)))
        cost = (price.now(gates.open_share(), ramp) * gates.penalty("sum")).sum()
        (2 * loss.mean() + cost).backward()  # each set sees about half of the batch
        optimizer.step()
        optimizer.zero_grad()
        price.move(gates.open_share(), ramp)
    halves = gates.chances().detach().float().cpu()
    stderr = (halves[0] - halves[1]).abs() / 2
    blocks = Blocks(halves.double().numpy(), np.ones(2))
    return Importance(sample.task, "l0", halves.mean(0), stderr, sample.examples, blocks)


@dataclass(frozen=True)
class CausalGates(Importance):
    """Gates learned with a reward for open and for closed heads.

    ``signed`` is their sum minus 1: near 1 a head facilitates the task (its gate stays open despite the reward for
    closed heads), near -1 it interferes (it closes despite the reward for open heads), near 0 it is irrelevant.
    """

    opened: torch.Tensor = field(default_factory=torch.Tensor, repr=False)  # (S, L, H), of each seed
    closed: torch.Tensor = field(default_factory=torch.Tensor, repr=False)

    def roles(self, threshold: float = 0.5) -> list[list[str]]:
        """Each head's role; irrelevant unless its signed score exceeds ``threshold`` by more than two standard errors.

        Absent heads have the role "".
        """
        assert self.signed is not None and self.signed_stderr is not None
        sure = self.signed.abs() - 2 * self.signed_stderr.nan_to_num(0) > threshold
        number = torch.where(sure, torch.where(self.signed > 0, 0, 2), 1)
        rows = zip(number.tolist(), self.signed.isnan().tolist())
        return [["" if gone else ROLES[n] for n, gone in zip(*row)] for row in rows]

    def finished(self, alive: torch.Tensor, normalize: str) -> CausalGates:
        done = super().finished(alive, normalize)
        assert isinstance(done, CausalGates)
        sets = {name: getattr(self, name).masked_fill(~alive, torch.nan) for name in ("opened", "closed")}
        return replace(done, **sets)


def causal_gating(
    sample: Sample, steps: int = 150, size: int = 32, lr: float = 0.2, price: float = 0.005, seeds: int = 4
) -> Importance:
    """Causal head gating (Nam et al. 2025): gates are learned twice, with a reward for open and for closed heads.

    Scores are the gates of the second; ``signed`` separates facilitating heads from interfering ones. Each seed has its
    own gates and examples; their spread gives standard errors. Gates are hard concrete and sampled for every example.
    The paper's are soft, and a soft gate may end at an intermediate value that says nothing about closing the head.

    Args:
        sample: what `importance` passes.
        steps: optimizer steps; the first third has no reward.
        size: examples per step.
        lr: learning rate of the gate logits.
        price: the reward in nats of loss.
        seeds: number of gate sets per reward.
    """
    if seeds < 2:
        raise HeadwiseError(f"seeds={seeds}", "2 or more")
    shape = (2, seeds, *sample.heads.shape)  # reward for open, for closed
    logits = torch.full(shape, OPEN, device=sample.model.device, requires_grad=True)
    push = torch.tensor([-price, price], device=logits.device).view(2, 1, 1, 1)
    optimizer = torch.optim.Adam([logits], lr=lr, betas=(0.9, 0.95))
    stream, generator = sample.stream(size), torch.Generator().manual_seed(sample.seed)
    sample.announce("causal_gating", max(1, 6 * steps * size // max(1, sample.examples)))
    for step in range(steps):
        places, batch = next(stream)
        seed = torch.from_numpy(places % seeds).to(logits.device)
        each = logits[:, seed].flatten(0, 1)  # (2 · B, L, H)
        noise = torch.empty(each.shape).uniform_(EDGE, 1 - EDGE, generator=generator).to(each)
        losses = sample.losses(_twice(batch), draw(each, noise)).view(2, -1)
        # each set sees about size / seeds of the examples; the sum over sets separates their gradients
        loss = losses.mean(1).sum() * seeds
        (loss + (push * p_open(logits)).sum() * (3 * step >= steps)).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            logits.clamp_(-REACH, REACH)
    opened, closed = settle(logits.detach()).float().cpu()
    signed, stderr = closed + opened - 1, lambda sets: sets.std(0) / seeds**0.5
    blocks = Blocks(closed.double().numpy(), np.ones(seeds))
    about = (sample.task, "causal_gating", closed.mean(0), stderr(closed), sample.examples, blocks)
    return CausalGates(*about, signed.mean(0), stderr(signed), opened, closed)


def _twice(batch: Any) -> Any:
    """The examples of a batch, twice."""
    if not isinstance(batch, Mapping):
        raise HeadwiseError(f"a batch that is a {type(batch).__name__}", "a dictionary of tensors")
    return {k: v.repeat(2, *[1] * (v.ndim - 1)) if isinstance(v, torch.Tensor) else v for k, v in batch.items()}
