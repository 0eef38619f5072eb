"""A learned factor for every head and task: tasks share heads but weight them differently."""

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
    """Soft head masks that are learned per task; important-head training sets hard ones.

    A head's output is multiplied by its task's factor, initially 1, with its own learning rate: L·H parameters per
    task. The factors are saved with the model (``model.scales_of(task)``) and show which heads a task uses; a plain
    checkpoint of the encoder does not contain them.

    Example:
        >>> fit(model, Plan(epochs=3), Scales())
    """

    name = "scales"

    def __init__(self, lr: float = 0.03, tied: str | None = None):
        """Choose the learning rate of the factors, and which are tied.

        Args:
            lr: learning rate of the factors, with the warm-up and decay of the plan. 0 is plain training.
            tied: "heads": one factor per layer and task; "tasks": the same factors for all tasks. These are controls: a
                gain that remains does not depend on separate heads, or on separate tasks.
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
            if scales.grad is not None:  # equal gradients keep tied factors equal
                scales.grad.copy_(scales.grad.mean(1, keepdim=True).expand_as(scales))

    def finish(self, run: Run) -> None:
        for key, scales in run.model.scales.items() if self.tied == "tasks" else ():
            run.model.scales[key] = nn.Parameter(scales.detach().clone())  # the next training may untie them

    def describe(self) -> dict[str, Any]:
        return {"method": self.name, "lr": self.lr, **({"tied": self.tied} if self.tied else {})}
