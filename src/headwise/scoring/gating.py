"""Importance from gates learned on the frozen model: L0 and causal head gating.

Legend: B examples, S sets of gates, L layers, H heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from headwise.errors import HeadwiseError, unknown
from headwise.heads.equation import mixed
from headwise.heads.gates import Heads, Lent, touched
from headwise.scoring.result import Importance
from headwise.scoring.sample import Sample
from headwise.scoring.stability import Blocks

if TYPE_CHECKING:
    from headwise.models.multitask import MultiTaskModel

TEMPERATURE, LOW, HIGH = 0.33, -0.1, 1.1
EDGE = 1e-6  # noise stays this far from 0 and 1
CLOSED = 1e-3  # gates up to this value are set to 0
DAMPING = 10.0  # how much more the present gap moves a price than one step's share of the past ones
START = 2.5  # log a of init="open": from ln 11 = 2.398 on the settled gate is 1, below -2.398 it is 0


def draw(log_a: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Sampled gates; noise is uniform between 0 and 1."""
    return _stretched(torch.sigmoid((noise.logit() + log_a) / TEMPERATURE))


def settle(log_a: torch.Tensor) -> torch.Tensor:
    """Deterministic gates of evaluation."""
    gates = _stretched(torch.sigmoid(log_a))
    return gates.masked_fill(gates <= CLOSED, 0.0)


def p_open(log_a: torch.Tensor) -> torch.Tensor:
    """The probability that a sampled gate is above zero (Louizos et al. 2018, Eq. 12)."""
    return torch.sigmoid(log_a - TEMPERATURE * math.log(-LOW / HIGH))


def _stretched(share: torch.Tensor) -> torch.Tensor:
    return (share * (HIGH - LOW) + LOW).clamp(0, 1)


class HardConcrete(nn.Module):
    """The gates of a model's heads: one set for all tasks, or one per task.

    Example:
        >>> gates = HardConcrete(model.attention, tasks=["pos", "ner"])
        >>> with gates.on(model):
        ...     model("pos", batch).loss.mean().backward()
        >>> gates.settled().shape
        torch.Size([2, 12, 12])
    """

    alive: torch.Tensor

    def __init__(self, heads: Heads, tasks: Sequence[str] = (), init: str = "open", seed: int = 0):
        """``init`` is open, or xavier as released: gates between 0.3 and 0.7 for 12 heads."""
        if init not in ("open", "xavier"):
            raise unknown("init of gates", init, ("open", "xavier"))
        super().__init__()
        self.family, self.tasks = heads.family, tuple(tasks)
        start = torch.full((max(1, len(self.tasks)), *heads.shape), START)
        if init == "xavier":
            reach = math.sqrt(6 / (heads.num_heads + 1))  # of a (1, H, 1, 1) tensor
            start.uniform_(-reach, reach, generator=torch.Generator().manual_seed(seed))
        self.log_a = nn.Parameter(start)
        self.register_buffer("alive", heads.alive)

    def settled(self) -> torch.Tensor:
        """The gates (S, L, H) of evaluation; 0 for absent heads."""
        return settle(self.log_a.detach()) * self.alive

    def chances(self) -> torch.Tensor:
        """Each gate's probability of being open in training, (S, L, H)."""
        return p_open(self.log_a) * self.alive

    def penalty(self, how: str = "mean") -> torch.Tensor:
        """The expected number of open heads, (S,): mean over layers (as released) or sum."""
        per_layer = self.chances().sum(-1)
        return per_layer.mean(-1) if how == "mean" else per_layer.sum(-1)

    def open_share(self) -> torch.Tensor:
        """The expected fraction of open heads, (S,)."""
        return self.chances().detach().sum((1, 2)) / self.alive.sum().clamp_min(1)

    def place(self, task: str | None) -> int:
        """The index of a task's set."""
        if self.tasks and task not in self.tasks:
            raise unknown("task with gates", str(task), self.tasks)
        return self.tasks.index(task) if task in self.tasks else 0

    @contextmanager
    def on(self, model: MultiTaskModel) -> Iterator[None]:
        """Run the model under its task's gates: sampled per forward in training mode, deterministic otherwise."""

        def values(task: str, drawn: bool, _: Any) -> torch.Tensor:
            log_a = self.log_a[self.place(task)]
            noise = torch.empty_like(log_a).uniform_(EDGE, 1 - EDGE) if drawn else None
            return settle(log_a) if noise is None else draw(log_a, noise)

        with under(model, self.fitting(model.encoder), values):
            yield

    def fitting(self, encoder: nn.Module) -> Heads:
        """The heads of the model these gates belong to; another model raises."""
        heads = Heads.of(encoder)
        mine, theirs = (self.family, *self.log_a.shape[1:]), (heads.family, *heads.shape)
        if mine != theirs:
            raise HeadwiseError(f"gates of a {mine[0]} of {mine[1:]} heads", f"gates of a {theirs[0]} of {theirs[1:]}")
        return heads


class Price:
    """The cost of an open head: a fixed weight, or a multiplier that increases while too many heads are open.

    With a target fraction of closed heads the cost is the augmented Lagrangian of an equality constraint, so the price
    falls, below zero if necessary, while too few heads are open.
    """

    def __init__(self, sets: int, weight: float, target: float | None = None, rate: float = 0.01):
        self.target, self.rate = target, rate
        self.multiplier = torch.full((sets,), float(weight))

    def now(self, open_share: torch.Tensor, ramp: float = 1.0) -> torch.Tensor:
        """Each set's price, (S,); ``ramp`` scales the weight or the target."""
        price = self.multiplier.to(open_share)
        return price * ramp if self.target is None else price + DAMPING * self.rate * self._gap(open_share, ramp)

    def move(self, open_share: torch.Tensor, ramp: float = 1.0, share: torch.Tensor | float = 1.0) -> None:
        """One step of the multiplier; ``share`` is each set's fraction of the step."""
        if self.target is not None:
            self.multiplier = self.multiplier.to(open_share) + self.rate * share * self._gap(open_share, ramp)

    def _gap(self, open_share: torch.Tensor, ramp: float) -> torch.Tensor:
        assert self.target is not None
        return open_share - (1 - ramp * self.target)


@contextmanager
def under(model: MultiTaskModel, heads: Heads, values: Callable[[str, bool, Any], torch.Tensor]) -> Iterator[None]:
    """Run each forward of the model under the gates ``values(task, model.training, batch)``, (L, H) or (B, L, H)."""
    now: list[
        torch.Tensor
    ] = []  # kept after a forward, because a backward may run layers again (gradient checkpointing)
    inside = False

    def begin(module: nn.Module, args: tuple, kwargs: dict) -> None:
        nonlocal inside
        task, batch = (*args, *(kwargs[name] for name in ("task", "batch")[len(args) :]))
        now[:], inside = [values(task, module.training, batch)], True

    def end(*_: Any) -> None:
        nonlocal inside
        inside = False

    def refuse_alone(*_: Any) -> None:
        if not inside:
            raise HeadwiseError("the encoder was called directly", "model(task, batch)", "headwise.gated")

    def touch(layer: int, out_BTHD: torch.Tensor) -> torch.Tensor:
        return mixed(out_BTHD, heads.sites[layer], now[0])

    with ExitStack() as stack:
        stack.callback(model.register_forward_pre_hook(Lent(begin), with_kwargs=True).remove)
        stack.callback(model.register_forward_hook(Lent(end), always_call=True).remove)
        stack.callback(model.encoder.register_forward_pre_hook(Lent(refuse_alone)).remove)
        stack.enter_context(touched(model.encoder, touch, heads, whole=False))
        yield


def cut(model: nn.Module, gates: torch.Tensor) -> nn.Module:
    """Fold gates ``(L, H)`` into a model and remove the heads whose gate is zero, in place: outputs as under ``gated``.

    Example:
        >>> smaller = cut(copy.deepcopy(model), gates)  # equal to `with gated(model, gates)`
    """
    from headwise.heads.cutting import fold, prune

    return prune(fold(model, gates), (gates == 0).cpu())


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
        clear = self.signed.abs() - 2 * self.signed_stderr.nan_to_num(0) > threshold
        number = torch.where(clear, torch.where(self.signed > 0, 0, 2), 1)
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
