"""Learned head gates as a training method, following the code of the stem-cell study.

Legend: B examples, S sets of gates (one for all tasks, or one per task), L layers, H heads.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from headwise.errors import HeadwiseError, unknown
from headwise.heads.gates import Heads
from headwise.scoring.gating import HardConcrete, Price, cut
from headwise.training.methods.iat import check_share
from headwise.training.methods.method import Method

if TYPE_CHECKING:
    from headwise.models.multitask import MultiTaskModel
    from headwise.training.loop import Run
    from headwise.training.plan import Plan


class L0(Method):
    """Learn, together with the tasks, which heads are not needed.

    Gates have their own constant learning rate (as released), no weight decay and no clipping. The encoder is trained
    too (dynamic), or frozen (static) with ``Plan(train="heads")``. Training and its evaluations run under the gates. At
    the end, a shared set of gates is folded into the output projections, so the model needs no gates. Gates per task
    remain separate: ``method.gates.on(model)``. With ``plan.patience``, the gates are those of the best evaluation
    after the warm-up.

    Example:
        >>> method = L0(weight=0.01)
        >>> fit(model, Plan(epochs=30, lr=1e-5, clip=1.0), method)
        >>> method.gates.settled()[0] > 0  # the remaining heads
        >>> method.cut(model)  # remove the others
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
        """Set the cost of an open head.

        Args:
            weight: weight of the penalty, once per optimizer step and independent of loss balancing; with a target, the
                initial value of the multiplier.
            penalty: the expected number of open heads, "mean" over layers (as released) or "sum".
            lr: learning rate of the gates.
            shared: one set of gates for all tasks, or one per task.
            init: "open", or "xavier" as released.
            target: fraction of heads to close; the weight is then a Lagrange multiplier.
            rate: learning rate of the multiplier.
            warmup: fraction of steps in which the weight, or the target, increases from zero.
            snapshots: save the gates every this many steps.
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
            self._fold(run, torch.ones_like(self.gates.settled()[0]))  # a dry run raises early

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
        """Remove the closed heads from the trained model in place; with gates per task, those of one task."""
        self.gates.fitting(model.encoder)
        gates = self.gates.settled()[self.gates.place(task)]
        return cut(model.encoder, (gates > 0).float() if self.shared else gates)  # a shared set is already folded

    def state(self) -> dict[str, torch.Tensor]:
        tensors = {f"snapshot.{step}": gates for step, gates in self.snapshots.items()}
        best = {} if self.best is None else {"best": self.best}
        return {"log_a": self.gates.log_a.detach(), "multiplier": self.price.multiplier, **best, **tensors}

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
        """The fraction of a step's batches under each set, (S,)."""
        if self.shared:
            return 1.0  # without synchronizing with the device
        places = torch.tensor([self.gates.place(task) for task in tasks], device=self.gates.log_a.device)
        return places.bincount(minlength=len(self.gates.log_a)) / len(tasks)

    def _note(self, run: Run) -> None:
        """Take snapshots that are due, and save the gates of the best evaluation."""
        if self.every and run.step % self.every == 0:
            self.snapshots[run.step] = self.gates.settled().cpu()
        best = run.history.best(run.best_after)
        if run.plan.patience is not None and best is not None and best["step"] == run.step:
            self.best = self.gates.log_a.detach().clone()
