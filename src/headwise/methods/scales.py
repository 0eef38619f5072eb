"""A factor for every head and task, learned with the rest: tasks share heads, each listens to them in its own way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headwise.errors import HeadwiseError
from headwise.methods.method import Method

if TYPE_CHECKING:
    from headwise.model import MultiTaskModel
    from headwise.plan import Plan


class Scales(Method):
    """Soft head masks that tasks learn for themselves, where important-head training sets hard ones.

    A head's output is multiplied by its task's factor, 1 at first, with a learning rate of its own: L·H numbers more
    for each task. They stay with the model (``model.scales_of(task)``) and are a map of the heads it turned to; a plain
    checkpoint of the encoder alone has none of them.

    Example:
        >>> fit(model, Plan(epochs=3), Scales(lr=0.01))
    """

    name = "scales"

    def __init__(self, lr: float = 0.01):
        """``lr`` of the factors; it warms up and decays with the plan's. With 0 this is plain training."""
        if not lr >= 0:
            raise HeadwiseError(f"lr={lr}", "0 or more")
        self.lr = lr

    def parameters(self, model: MultiTaskModel, plan: Plan) -> list[dict[str, Any]]:
        model.give_scales()
        return [{"params": list(model.scales.values()), "lr": self.lr, "weight_decay": 0.0}]

    def describe(self) -> dict[str, Any]:
        return {"method": self.name, "lr": self.lr}
