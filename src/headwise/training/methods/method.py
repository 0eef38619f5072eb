"""What a training method may change: every hook is a no-op, and a method overrides one or two."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from headwise.models.batching import Encoded, Order, Stream

if TYPE_CHECKING:
    from headwise.models.multitask import MultiTaskModel
    from headwise.training.loop import Run
    from headwise.training.plan import Plan


class Method:
    """Plain training.

    The loop calls, for every optimizer step: ``before_batch`` and ``loss`` for each batch, ``before_update`` when the
    gradient is complete, ``after_update`` when the parameters have moved. ``start`` comes once, also after a resume.
    """

    name = "plain"
    version = 0
    """Counts up when what happens to gradients on their way changes, so that nothing recorded before is replayed."""

    recordable = False
    """Whether what `around` adds to a pass is operations on the device alone, the same for every batch of a task."""

    def start(self, run: Run) -> None:
        """Before the first step of this process."""

    def parameters(self, model: MultiTaskModel, plan: Plan) -> list[dict[str, Any]]:
        """Parameter groups of the method's own, each with its ``lr``, for the optimizer; on the model's device."""
        return []

    def stream(self, task: str, data: Encoded, order: Order, seed: Sequence[int]) -> Stream:
        """Where a task's training batches come from."""
        return Stream(data, order, seed)

    def around(self, run: Run) -> AbstractContextManager[Any]:
        """What the model runs under, such as gates: in the pass of every batch and in evaluations while training."""
        return nullcontext()

    def before_step(self, run: Run) -> None:
        """Before the batches of a step."""

    def before_batch(self, run: Run, task: str) -> None:
        """Before a batch's forward and backward."""

    def loss(self, run: Run, task: str, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """One loss per example, (B,)."""
        return run.wrapped(task, batch).loss

    def before_update(self, run: Run, tasks: list[str]) -> None:
        """Between the backward passes of a step and the optimizer; clipping comes after."""

    def after_update(self, run: Run, tasks: list[str]) -> None:
        """After the optimizer has moved the parameters."""

    def finish(self, run: Run) -> None:
        """After the last step, also when training ends early."""

    def state(self) -> dict[str, torch.Tensor]:
        """Tensors to keep in checkpoints."""
        return {}

    def load_state(self, tensors: dict[str, torch.Tensor]) -> None:
        """Take back what `state` gave."""

    def describe(self) -> dict[str, Any]:
        """The method and its settings, for the record."""
        return {"method": self.name}
