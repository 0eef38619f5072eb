"""Conflicting gradients of tasks: torchjd's aggregators instead of their mean (extra ``conflict``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from headwise.errors import HeadwiseError, missing_extra, unknown
from headwise.training.methods.method import Method

if TYPE_CHECKING:
    from headwise.training.loop import Run

Aggregator = Callable[[torch.Tensor], torch.Tensor]


class Conflict(Method):
    """Combine the gradients of several tasks in each step into one gradient of the encoder.

    Each task is a row of the matrix: the gradient of its batches' mean loss, times its fraction of the step and the
    number of tasks, so that the aggregator "Mean" is plain training. The gradients of output heads, which belong to one
    task each, are unchanged. The plan must mix tasks in a step.

    Example:
        >>> plan = Plan(accumulate=2, window="mixed", sampling="round_robin")
        >>> fit(model, plan, Conflict("UPGrad"))
    """

    name = "conflict"

    def __init__(self, by: str | Aggregator = "UPGrad", **options: Any):
        """Choose how gradients are combined.

        Args:
            by: an aggregator of ``torchjd.aggregation`` by name, such as UPGrad, PCGrad, MGDA or CAGrad, or a function
                from a matrix (tasks, parameters) to one gradient. Aggregators with state (NashMTL) are reset when a run
                starts or resumes.
            options: options of the aggregator.
        """
        self.by = by if isinstance(by, str) else getattr(by, "__name__", type(by).__name__)
        self.options = options
        self.aggregate: Any = aggregator(by, **options) if isinstance(by, str) else by
        self.rows: dict[str, list[torch.Tensor | None]] = {}
        self.task: str | None = None  # whose gradient is in .grad now

    def start(self, run: Run) -> None:
        if run.plan.window != "mixed" or run.plan.accumulate < 2:
            seen = f"a plan with window={run.plan.window!r} and accumulate={run.plan.accumulate}: one task per step"
            hint = f'plan.with_(window="mixed", accumulate={len(run.names)}, sampling="round_robin")'
            raise HeadwiseError(seen, "several tasks per step", hint)
        self.shared = [p for p in run.model.encoder.parameters() if p.requires_grad]
        if not self.shared:
            raise HeadwiseError("a frozen encoder", "shared parameters that tasks can disagree about")
        if hasattr(self.aggregate, "reset"):
            self.aggregate.reset()  # its state belongs to another run

    def before_step(self, run: Run) -> None:
        self.rows, self.task = {}, None  # a step restarts after an out-of-memory error

    def before_batch(self, run: Run, task: str) -> None:
        self._put_aside(run, synced=False)
        self.task = task

    def before_update(self, run: Run, tasks: list[str]) -> None:
        self._put_aside(run, synced=True)
        matrix = len(self.rows) * torch.stack([self._flat(row) for row in self.rows.values()])
        combined = self.aggregate(matrix).to(matrix.dtype)
        parts = combined.split([p.numel() for p in self.shared])
        for parameter, part, grads in zip(self.shared, parts, zip(*self.rows.values())):
            if any(grad is not None for grad in grads):  # unused parameters must not decay
                parameter.grad = part.view_as(parameter)
        self.rows = {}

    def describe(self) -> dict[str, Any]:
        return {"method": self.name, "by": self.by, **self.options}

    def _put_aside(self, run: Run, synced: bool) -> None:
        """Move the gradient of the last batch to its task's row, averaged over processes."""
        if self.task is None:
            return
        row = self.rows.setdefault(self.task, [None] * len(self.shared))
        for number, parameter in enumerate(self.shared):
            grad: Any = parameter.grad
            parameter.grad = None
            if grad is not None and not synced:
                grad = run.accelerator.reduce(grad, "mean")  # the loop only synchronizes the last batch
            if grad is not None:
                before = row[number]
                row[number] = grad if before is None else before + grad
        self.task = None

    def _flat(self, row: list[torch.Tensor | None]) -> torch.Tensor:
        parts = [torch.zeros_like(p) if grad is None else grad for p, grad in zip(self.shared, row)]
        return torch.cat([part.flatten() for part in parts])


def aggregator(name: str, **options: Any) -> nn.Module:
    """An aggregator of torchjd by name."""
    try:
        from torchjd import aggregation  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise missing_extra("torchjd", "conflict", "combining conflicting gradients") from None
    known = {
        n: a for n, a in vars(aggregation).items() if isinstance(a, type) and issubclass(a, aggregation.Aggregator)
    }
    if name not in known or name.endswith("Aggregator"):
        raise unknown("aggregator", name, [n for n in known if not n.endswith("Aggregator")])
    try:
        return known[name](**options)
    except ImportError as error:
        raise HeadwiseError(f"the aggregator {name} needs more packages: {error}") from None
