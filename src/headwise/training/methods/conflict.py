"""Conflicting gradients of tasks: torchjd's aggregators instead of their mean (extra ``conflict``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from headwise.errors import HeadwiseError, missing_extra, unknown
from headwise.heads.gates import Heads
from headwise.training.methods.method import Method

if TYPE_CHECKING:
    from headwise.training.loop import Run

Aggregator = Callable[[torch.Tensor], torch.Tensor]
PER = ("model", "heads")


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

    def __init__(self, by: str | Aggregator = "UPGrad", per: str = "model", **options: Any):
        """Choose how gradients are combined.

        Args:
            by: an aggregator of ``torchjd.aggregation`` by name, such as UPGrad, PCGrad, MGDA or CAGrad, or a function
                from a matrix (tasks, parameters) to one gradient. Aggregators with state (NashMTL) are reset when a run
                starts or resumes.
            per: model combines whole gradients; heads combines the rows of every head (of its query, key, value and
                output) by themselves, and the rest together: tasks may agree in one head and conflict in another.
            options: options of the aggregator.
        """
        if per not in PER:
            raise unknown("part of the model", per, PER)
        self.per, self.blocks = per, list[torch.Tensor]()
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
        self.blocks = blocks_of(run.model.encoder, self.shared) if self.per == "heads" else []

    def before_step(self, run: Run) -> None:
        self.rows, self.task = {}, None  # a step restarts after an out-of-memory error

    def before_batch(self, run: Run, task: str) -> None:
        self._put_aside(run, synced=False)
        self.task = task

    def before_update(self, run: Run, tasks: list[str]) -> None:
        self._put_aside(run, synced=True)
        matrix = len(self.rows) * torch.stack([self._flat(row) for row in self.rows.values()])
        combined = self._combined(matrix)
        parts = combined.split([p.numel() for p in self.shared])
        for parameter, part, grads in zip(self.shared, parts, zip(*self.rows.values())):
            if any(grad is not None for grad in grads):  # unused parameters must not decay
                parameter.grad = part.view_as(parameter)
        self.rows = {}

    def describe(self) -> dict[str, Any]:
        per = {"per": self.per} if self.per != "model" else {}
        return {"method": self.name, "by": self.by, **per, **self.options}

    def _combined(self, matrix: torch.Tensor) -> torch.Tensor:
        """One gradient from the tasks' (T, n), block by block."""
        if not self.blocks:
            return self.aggregate(matrix).to(matrix.dtype)
        combined = matrix.new_zeros(matrix.shape[1])
        for block in self.blocks:
            combined[block] = self.aggregate(matrix[:, block]).to(matrix.dtype)
        return combined

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


def blocks_of(encoder: nn.Module, parameters: list[nn.Parameter]) -> list[torch.Tensor]:
    """Places of every head's rows in the flat gradient of these parameters; the last block is everything else."""
    heads = Heads.of(encoder)
    heads.require_exact("combining gradients head by head")
    start, owner = {}, list[torch.Tensor]()
    for parameter in parameters:
        start[id(parameter)] = sum(map(len, owner))
        owner.append(torch.zeros(parameter.numel(), dtype=torch.long, device=parameter.device))
    block_of = torch.cat(owner)
    for site in heads.sites:
        for part in (site.parts[name] for name in "qkvo" if name in site.parts):
            for group, rows in zip(site.owners(part), part.rows):
                number = 1 + site.layer * heads.num_heads + group[0]
                for tensor, axis in ((part.module.weight, part.axis), (getattr(part.module, "bias", None), 0)):
                    if tensor is None or id(tensor) not in start or (tensor.ndim == 1 and site.parts.get("o") is part):
                        continue  # the bias of the output projection belongs to no head
                    own = block_of.narrow(0, start[id(tensor)], tensor.numel()).view(tensor.shape)
                    own.index_fill_(axis, rows.to(own.device), number)
    order = [*range(1, int(block_of.max()) + 1), 0]
    return [places for number in order if len(places := (block_of == number).nonzero()[:, 0])]


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
