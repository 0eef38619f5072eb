"""The base class of training methods: every hook is a no-op, and a method overrides one or two."""

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
    gradient is complete, ``after_update`` when parameters have moved. ``start`` is called once, also after a resume.
    """

    name = "plain"
    version = 0
    """Increased when the method processes gradients differently, which invalidates recorded passes."""

    recordable = False
    """Whether `around` adds only device operations that are the same for every batch of a task."""

    def start(self, run: Run) -> None:
        """Called before the first step of this process."""

    def parameters(self, model: MultiTaskModel, plan: Plan) -> list[dict[str, Any]]:
        """Additional parameter groups for the optimizer, each with its ``lr``, on the model's device."""
        return []

    def stream(self, task: str, data: Encoded, order: Order, seed: Sequence[int]) -> Stream:
        """The stream of a task's training batches."""
        return Stream(data, order, seed)

    def around(self, run: Run) -> AbstractContextManager[Any]:
        """A context, such as gates, for every pass and every evaluation during training."""
        return nullcontext()

    def before_step(self, run: Run) -> None:
        """Called before the batches of a step."""

    def before_batch(self, run: Run, task: str) -> None:
        """Called before the forward and backward of a batch."""

    def loss(self, run: Run, task: str, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """One loss per example, (B,)."""
        return run.wrapped(task, batch).loss

    def before_update(self, run: Run, tasks: list[str]) -> None:
        """Called after the backward passes of a step, before clipping and the optimizer."""

    def after_update(self, run: Run, tasks: list[str]) -> None:
        """Called after the optimizer has updated the parameters."""

    def finish(self, run: Run) -> None:
        """Called after the last step, also if training ends early."""

    def state(self) -> dict[str, torch.Tensor]:
        """Tensors to save in checkpoints."""
        return {}

    def load_state(self, tensors: dict[str, torch.Tensor]) -> None:
        """Restore what `state` returned."""

    def describe(self) -> dict[str, Any]:
        """The method and its settings, for the record."""
        return {"method": self.name}
