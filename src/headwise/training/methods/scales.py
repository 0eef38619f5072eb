"""A factor for every head and task, learned with the rest: tasks share heads, each listens to them in its own way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from headwise.errors import HeadwiseError
from headwise.training.methods.method import Method

if TYPE_CHECKING:
    from headwise.models.multitask import MultiTaskModel
    from headwise.training.loop import Run
    from headwise.training.plan import Plan

TIED = (None, "heads", "tasks")


class Scales(Method):
    """Soft head masks that tasks learn for themselves, where important-head training sets hard ones.

    A head's output is multiplied by its task's factor, 1 at first, with a learning rate of its own: L·H numbers more
    for each task. They stay with the model (``model.scales_of(task)``) and are a map of the heads it turned to; a plain
    checkpoint of the encoder alone has none of them.

    Example:
        >>> fit(model, Plan(epochs=3), Scales())
    """

    name = "scales"

    def __init__(self, lr: float = 0.03, tied: str | None = None):
        """Set how fast factors are learned, and which are one.

        Args:
            lr: of the factors; it warms up and decays with the plan's. With 0 this is plain training.
            tied: "heads": all heads of a layer have one factor, each task its own; "tasks": all tasks have the same.
                Controls: what is left of a gain without either is not the heads', or not the tasks'.
        """
        if not lr >= 0:
            raise HeadwiseError(f"lr={lr}", "0 or more")
        if tied not in TIED:
            raise HeadwiseError(f"tied={tied!r}", "heads, tasks or None")
        self.lr, self.tied = lr, tied

    def parameters(self, model: MultiTaskModel, plan: Plan) -> list[dict[str, Any]]:
        model.give_scales()
        self._tie(model)
        scales = list(dict.fromkeys(model.scales.values()))
        return [{"params": scales, "lr": self.lr, "weight_decay": 0.0}]

    def _tie(self, model: MultiTaskModel) -> None:
        values = torch.stack([scales.detach() for scales in model.scales.values()])
        axis = 0 if self.tied == "tasks" else 2
        if self.tied and (values != values.narrow(axis, 0, 1)).any():
            raise HeadwiseError(f"factors that differ between {self.tied}", "a model without factors", "tied=None")
        if self.tied == "tasks":
            one = next(iter(model.scales.values()))
            for key in model.scales:
                model.scales[key] = one

    def before_update(self, run: Run, tasks: list[str]) -> None:
        for scales in run.model.scales.values() if self.tied == "heads" else ():
            if scales.grad is not None:  # equal gradients keep equal factors equal
                scales.grad.copy_(scales.grad.mean(1, keepdim=True).expand_as(scales))

    def finish(self, run: Run) -> None:
        for key, scales in run.model.scales.items() if self.tied == "tasks" else ():
            run.model.scales[key] = nn.Parameter(scales.detach().clone())  # the next training may learn them apart

    def describe(self) -> dict[str, Any]:
        return {"method": self.name, "lr": self.lr, **({"tied": self.tied} if self.tied else {})}
