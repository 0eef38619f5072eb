"""Important-head training as the released code runs it, each of its departures from the paper under a switch.

The program published with Li et al. (2023) differs from the text in five ways, which a replication must be able to
separate: it zeroes gradients where the text holds heads still (``freeze="grad"``); it scores heads per token
(``by="token"``); its training script leaves the last layer's scores undivided (``last_layer="none"``); the gradients of
the pass that scores the heads are never cleared and enter the next update (``leak``); and that pass leaves the model in
evaluation mode, so that dropout is off until the epoch ends (``dropout=False``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from headwise.heads.modules import evaluating
from headwise.measuring.evaluate import to_device
from headwise.models.batching import Encoded, Order, Stream
from headwise.tasks.kinds.classify import Regress
from headwise.training.methods.iat import IAT

if TYPE_CHECKING:
    from headwise.training.loop import Run


class ReleasedIAT(IAT):
    """IAT with the released code's departures from the paper, all of them by default.

    Example:
        >>> fit(model, Plan(), ReleasedIAT(leak=False))  # all but the leftover gradients
    """

    name = "iat_released"

    def __init__(
        self,
        alpha: float = 0.3,
        delta: float = 0.1,
        leak: bool = True,
        dropout: bool = False,
        freeze: str = "grad",
        by: str = "token",
        last_layer: str = "none",
        examples: int = 10_000,
    ):
        """Set what follows the released code.

        Args:
            alpha: share of heads a task may move.
            delta: share of the steps, at the end, in which the rest is held.
            leak: the gradients of the scoring pass, summed over all batches of all tasks, enter the next update.
            dropout: whether dropout stays on in the last part; off, it comes back with the next epoch. With ``alpha=1``
                no head is held, and this is all that differs from plain training.
            freeze: "grad" as released, "update" as the paper says.
            by: the importance estimator.
            last_layer: what the last layer's scores are divided by, with ``by="token"``.
            examples: for each task's importance.
        """
        options = {"last_layer": last_layer} if by == "token" else {}
        super().__init__(alpha, delta, freeze=freeze, by=by, examples=examples, options=options)
        self.leak, self.dropout, self.leaked = leak, dropout, False

    def start(self, run: Run) -> None:
        super().start(run)
        self.chosen_at = -1

    def before_step(self, run: Run) -> None:
        chosen = bool(self.masks)
        super().before_step(run)
        if self.masks and not chosen:
            self.chosen_at = run.step
        self.leaked = self.leak and run.step == self.chosen_at  # also when memory makes the step begin again
        if not self.dropout and run.step >= self.first:
            run.wrapped.train(run.step // run.epoch_steps != self.first // run.epoch_steps)
        if self.leaked and self.held:
            self.held.select(None)  # these gradients are of all tasks
            _leave_gradients(run)

    def before_update(self, run: Run, tasks: list[str]) -> None:
        if self.leaked and self.held:  # the mask of the step's task applies to leftover gradients as well
            for rows in self.held.rows:
                if rows.parameter.grad is not None:
                    rows.parameter.grad = rows.masked(rows.parameter.grad)
        super().before_update(run, tasks)

    def finish(self, run: Run) -> None:
        run.wrapped.train()
        super().finish(run)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "leak": self.leak, "dropout": self.dropout}


def _leave_gradients(run: Run) -> None:
    """Add the gradient of every training batch's mean loss, without dropout, to what the next step will use."""
    with evaluating(run.wrapped):
        for task in run.names:
            data = run.data[task]
            for items in Order(data.lengths, run.plan.batch_size, run.plan.tokens).plain():
                for part in np.array_split(items, min(run.parts, len(items))):
                    losses = run.wrapped(task, to_device(data.batch(part), run.device)).loss
                    (losses.sum() / len(items)).backward()


class ReleasedSettings(IAT):
    """Settings of the released program that its paper does not name, each under a switch; with ``alpha=1`` without IAT.

    Example:
        >>> fit(model, Plan(warmup=0.0), ReleasedSettings(alpha=0.3, redraw=True))
    """

    name = "released_settings"

    def __init__(
        self,
        alpha: float = 1.0,
        delta: float = 0.1,
        grades: bool = False,
        redraw: bool = False,
        examples: int = 10_000,
    ):
        """Set what follows the released program.

        Args:
            alpha: share of heads a task may move; 1 is plain training.
            delta: share of the steps, at the end, in which the rest is held.
            grades: losses of graded tasks on the grades' own scale: 25 times as large for STS-B's 0 to 5.
            redraw: every batch is drawn anew from all rows, so that an epoch does not cover them.
            examples: for each task's importance.
        """
        super().__init__(alpha, delta, examples=examples)
        self.grades, self.redraw = grades, redraw

    def stream(self, task: str, data: Encoded, order: Order, seed: Sequence[int]) -> Stream:
        return (Redrawn if self.redraw else Stream)(data, order, seed)

    def loss(self, run: Run, task: str, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        losses, kind = super().loss(run, task, batch), run.model.tasks[task].kind
        return losses * (kind.high - kind.low) ** 2 if self.grades and isinstance(kind, Regress) else losses

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "grades": self.grades, "redraw": self.redraw}


class Redrawn(Stream):
    """Batches drawn without replacement inside, with replacement between them; lengths are not sorted."""

    def next(self) -> np.ndarray:
        rng = np.random.default_rng([*self.seed, self.epoch, self.position])
        self.position += 1
        if self.position >= len(self):
            self.epoch, self.position = self.epoch + 1, 0
        return rng.choice(len(self.data), min(self.order.size, len(self.data)), replace=False)

    def load_state(self, state: dict[str, int]) -> None:
        self.epoch, self.position = state["epoch"], state["position"]
