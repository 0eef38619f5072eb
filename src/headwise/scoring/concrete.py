"""Hard concrete gates (Louizos et al. 2018; Voita et al. 2019): a head learns whether it is needed.

Every head has one parameter, log a. In training its gate is sampled for every batch; in evaluation it is deterministic,
in [0, 1]. The probability of being open has a closed form, which is the penalty.

Legend: B examples, T tokens, S sets of gates (one for all tasks, or one per task), L layers, H heads, D head size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from headwise.errors import HeadwiseError, unknown
from headwise.heads.equation import mixed
from headwise.heads.gates import Heads, Lent, touched

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

        def values(task: str, drawn: bool) -> torch.Tensor:
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
def under(model: MultiTaskModel, heads: Heads, values: Callable[[str, bool], torch.Tensor]) -> Iterator[None]:
    """Run each forward of the model under the gates ``values(task, model.training)``, (L, H)."""
    now: list[
        torch.Tensor
    ] = []  # kept after a forward, because a backward may run layers again (gradient checkpointing)
    inside = False

    def begin(module: nn.Module, args: tuple, kwargs: dict) -> None:
        nonlocal inside
        now[:], inside = [values(args[0] if args else kwargs["task"], module.training)], True

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
