"""Learned head gates as a training method and as an importance estimator, after the stem-cell study's code.

Legend: B examples, S sets of gates (one for all tasks, or one per task), L layers, H heads.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from headwise.errors import HeadwiseError, unknown
from headwise.heads.gates import Heads
from headwise.measuring.evaluate import to_device
from headwise.models.batching import Order, Stream
from headwise.scoring.importance import Importance, Sample
from headwise.scoring.stability import Blocks
from headwise.training.methods.concrete import EDGE, HardConcrete, cut, draw
from headwise.training.methods.iat import check_share
from headwise.training.methods.method import Method

if TYPE_CHECKING:
    from headwise.models.multitask import MultiTaskModel
    from headwise.training.loop import Run
    from headwise.training.plan import Plan

DAMPING = 10.0  # how much more the present gap moves a price than one step's share of the past ones


class Price:
    """What an open head costs: a fixed weight, or a multiplier that climbs while too many heads are open.

    With a target share of closed heads the cost is the augmented Lagrangian of "so many heads are open": equality, so
    that the price falls, below zero if need be, while too few are open.
    """

    def __init__(self, sets: int, weight: float, target: float | None = None, rate: float = 0.01):
        self.target, self.rate = target, rate
        self.multiplier = torch.full((sets,), float(weight))

    def now(self, open_share: torch.Tensor, ramp: float = 1.0) -> torch.Tensor:
        """Each set's price, (S,); ``ramp`` is how much of the weight or of the target is asked for yet."""
        price = self.multiplier.to(open_share)
        return price * ramp if self.target is None else price + DAMPING * self.rate * self._gap(open_share, ramp)

    def move(self, open_share: torch.Tensor, ramp: float = 1.0, share: torch.Tensor | float = 1.0) -> None:
        """One step of the multiplier; ``share`` is how much of the step was each set's."""
        if self.target is not None:
            self.multiplier = self.multiplier.to(open_share) + self.rate * share * self._gap(open_share, ramp)

    def _gap(self, open_share: torch.Tensor, ramp: float) -> torch.Tensor:
        assert self.target is not None
        return open_share - (1 - ramp * self.target)


class L0(Method):
    """Learn with the tasks which heads they can do without.

    Gates train beside the model with a learning rate of their own, which no schedule touches (as released), without
    decay or clipping. The encoder learns along (dynamic), or rests (static) with ``Plan(train="heads")``. Training and
    its evaluations run under the gates. At the end a shared set is folded into the output projections: the model then
    is what it was under its gates, and needs none. Sets per task stay beside the model: ``method.gates.on(model)``.
    With ``plan.patience`` the gates, too, are those of the best evaluation after the warm-up.

    Example:
        >>> method = L0(weight=0.01)
        >>> fit(model, Plan(epochs=30, lr=1e-5, clip=1.0), method)
        >>> method.gates.settled()[0] > 0  # the heads that are left
        >>> method.cut(model)  # and the others really gone
    """

    name = "l0"
    recordable = True

    def __init__(
        self,
        weight: float = 0.01,
        penalty: str = "mean",
        lr: float = 1e-3,
        shared: bool = True,
        init: str = "open",
        target: float | None = None,
        rate: float = 0.01,
        warmup: float = 0.0,
        snapshots: int | None = None,
    ):
        """Set what an open head costs.

        Args:
            weight: times the penalty, once per optimizer step and beside any balance of the tasks' losses; with a
                target, where the multiplier starts.
            penalty: the heads expected open, "mean" over layers (as released) or "sum".
            lr: of the gates.
            shared: one set of gates for all tasks, or one for each.
            init: "open", or "xavier" as released.
            target: share of heads to close; the weight then is a Lagrange multiplier.
            rate: how fast the multiplier moves.
            warmup: share of the steps in which the weight, or the target, climbs from zero.
            snapshots: keep the gates every this many steps.
        """
        check_share("warmup", warmup)
        check_share("target", target or 0.0)
        if penalty not in ("mean", "sum"):
            raise unknown("penalty", penalty, ("mean", "sum"))
        for name, value in {"weight": weight, "lr": lr, "rate": rate}.items():
            if not value >= 0:
                raise HeadwiseError(f"{name}={value}", "0 or more")
        self.weight, self.penalty, self.lr, self.shared, self.init = weight, penalty, lr, shared, init
        self.target, self.rate, self.warmup, self.every = target, rate, warmup, snapshots
        self.snapshots: dict[int, torch.Tensor] = {}
        self.best: torch.Tensor | None = None  # log a of the best evaluation

    def parameters(self, model: MultiTaskModel, plan: Plan) -> list[dict[str, Any]]:
        heads = Heads.of(model.encoder)
        if self.shared and heads.shared:
            heads.require_exact("folding gates (shared=False keeps them beside the model)")
        tasks = () if self.shared else tuple(model.tasks)
        self.gates = HardConcrete(heads, tasks, self.init, plan.seed).to(model.device)
        self.price = Price(len(self.gates.log_a), self.weight, self.target, self.rate)
        self.price.multiplier = self.price.multiplier.to(model.device)
        self.snapshots, self.best = {}, None
        return [{"params": [self.gates.log_a], "lr": self.lr, "weight_decay": 0.0}]

    def start(self, run: Run) -> None:
        run.best_after = math.ceil(self.warmup * run.total)
        if self.shared:
            run.model.require_projected("folding gates (shared=False keeps them beside the model)")
            self._fold(run, torch.ones_like(self.gates.settled()[0]))  # changes nothing: what cannot fold raises now

    def around(self, run: Run) -> AbstractContextManager[Any]:
        return self.gates.on(run.model)

    def before_step(self, run: Run) -> None:
        for group in run.optimizer.param_groups:
            if group["params"][0] is self.gates.log_a:
                group["lr"] = self.lr
        self._note(run)

    def before_update(self, run: Run, tasks: list[str]) -> None:
        price = self.price.now(self.gates.open_share(), self._ramp(run))
        (price * self._shares(tasks) * self.gates.penalty(self.penalty)).sum().backward()

    def after_update(self, run: Run, tasks: list[str]) -> None:
        self.price.move(self.gates.open_share(), self._ramp(run), self._shares(tasks))

    @torch.no_grad()
    def finish(self, run: Run) -> None:
        self._note(run)
        if self.every:
            self.snapshots[run.step] = self.gates.settled().cpu()
        if run.best is not None and self.best is not None and run.history.stopped != "interrupted":
            self.gates.log_a.copy_(self.best)
        if self.shared:
            self._fold(run, self.gates.settled()[0])

    def cut(self, model: MultiTaskModel, task: str | None = None) -> nn.Module:
        """Remove the closed heads from a model trained by this, in place; with sets per task, those of one task."""
        self.gates.fitting(model.encoder)
        gates = self.gates.settled()[self.gates.place(task)]
        return cut(model.encoder, (gates > 0).float() if self.shared else gates)  # a shared set is folded already

    def state(self) -> dict[str, torch.Tensor]:
        kept = {f"snapshot.{step}": gates for step, gates in self.snapshots.items()}
        best = {} if self.best is None else {"best": self.best}
        return {"log_a": self.gates.log_a.detach(), "multiplier": self.price.multiplier, **best, **kept}

    def load_state(self, tensors: dict[str, torch.Tensor]) -> None:
        log_a = tensors["log_a"]
        if log_a.shape != self.gates.log_a.shape:
            raise HeadwiseError(f"gates of shape {tuple(log_a.shape)}", f"{tuple(self.gates.log_a.shape)}")
        self.gates.log_a.data.copy_(log_a)
        self.price.multiplier, self.best = tensors["multiplier"].to(self.gates.log_a.device), tensors.get("best")
        steps = sorted(int(name.split(".")[1]) for name in tensors if name.startswith("snapshot."))
        self.snapshots = {step: tensors[f"snapshot.{step}"] for step in steps}

    def describe(self) -> dict[str, Any]:
        settings = {"weight": self.weight, "penalty": self.penalty, "lr": self.lr, "shared": self.shared}
        settings |= {"init": self.init, "target": self.target, "rate": self.rate, "warmup": self.warmup}
        return {"method": self.name, **settings, "snapshots": self.every}

    def _fold(self, run: Run, gates: torch.Tensor) -> None:
        from headwise.heads.cutting import fold

        fold(run.model.encoder, gates)

    def _ramp(self, run: Run) -> float:
        return min(1.0, (run.step + 1) / max(1.0, self.warmup * run.total))

    def _shares(self, tasks: list[str]) -> torch.Tensor | float:
        """How much of a step's batches each set was under, (S,)."""
        if self.shared:
            return 1.0  # without a word to the device
        places = torch.tensor([self.gates.place(task) for task in tasks], device=self.gates.log_a.device)
        return places.bincount(minlength=len(self.gates.log_a)) / len(tasks)

    def _note(self, run: Run) -> None:
        """Between steps: a snapshot where one is due, and the gates of an evaluation that was the best."""
        if self.every and run.step % self.every == 0:
            self.snapshots[run.step] = self.gates.settled().cpu()
        best = run.history.best(run.best_after)
        if run.plan.patience is not None and best is not None and best["step"] == run.step:
            self.best = self.gates.log_a.detach().clone()


def l0_importance(
    sample: Sample, steps: int = 200, size: int = 32, lr: float = 0.1, target: float = 0.5, rate: float = 0.01
) -> Importance:
    """How sure a head is to stay open when gates learn, on the frozen model, to close a share of all heads.

    Each half of the examples has a set of gates of its own, drawn anew for every example: scores are their mean chance
    to be open, and the standard error comes from the halves' difference.

    Args:
        sample: what `importance` hands over.
        steps: of the gates.
        size: examples in a step.
        lr: of the gates.
        target: share of heads to close.
        rate: how fast the Lagrange multiplier moves.
    """
    gates = HardConcrete(sample.heads, ("even", "odd")).to(sample.model.device)
    price, generator = Price(2, 0.0, target, rate), torch.Generator().manual_seed(sample.seed)
    optimizer = torch.optim.Adam([gates.log_a], lr=lr)
    stream = Stream(sample.data, Order(sample.data.lengths[sample.items], size), (sample.seed, 5))
    for step in range(steps):
        ramp = min(1.0, 2 * (step + 1) / steps)  # the target is reached half-way: a hasty price closes everything
        _gate_step(sample, gates, price.now(gates.open_share(), ramp), stream.next(), generator)
        optimizer.step()
        optimizer.zero_grad()
        price.move(gates.open_share(), ramp)
    halves = gates.chances().detach().float().cpu()
    stderr = (halves[0] - halves[1]).abs() / 2
    blocks = Blocks(halves.double().numpy(), np.ones(2))
    return Importance(sample.task, "l0", halves.mean(0), stderr, len(sample.items), blocks)


def _gate_step(
    sample: Sample, gates: HardConcrete, price: torch.Tensor, places: Any, generator: torch.Generator
) -> None:
    """The gradient of one batch's loss, and of what its open heads cost."""
    batch = to_device(sample.data.batch(sample.items[places]), sample.model.device)
    half = torch.from_numpy(places % 2).to(gates.log_a.device)
    log_a_BLH = gates.log_a[half]
    noise = torch.empty(log_a_BLH.shape).uniform_(EDGE, 1 - EDGE, generator=generator)
    loss = sample.losses_under(draw(log_a_BLH, noise.to(log_a_BLH)), batch)
    (2 * loss.mean() + (price * gates.penalty("sum")).sum()).backward()  # about half of the batch is each set's
