"""Low-rank updates of the output projection for every head and task: tasks share heads but not what these write.

Legend: B examples, T tokens, H heads of a layer, D head size, E width, R rank.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from headwise.errors import HeadwiseError, unknown
from headwise.heads.gates import Heads
from headwise.training.methods.scales import Scales

if TYPE_CHECKING:
    from headwise.models.multitask import MultiTaskModel
    from headwise.training.plan import Plan

PER = ("head", "layer")


class Updates(Scales):
    """Factors of heads, and beside them an update of W_O for every task: rank one for each head.

    A task adds u (v · z) to what a head with the output z writes. ``per="layer"`` is the control with at least as
    many parameters, and LoRA's way: one update of the whole projection, of a higher rank. Updates start at zero.

    Example:
        >>> fit(model, Plan(epochs=3), Updates())
    """

    name = "updates"

    def __init__(self, lr: float = 0.03, per: str = "head", times: float = 20.0, factors: bool = True):
        """Choose the learning rates, the shape of updates, and whether there are factors too.

        Args:
            lr: learning rate of the factors.
            per: head or layer.
            times: learning rate of updates, as a multiple of the plan's.
            factors: also learn the factors of `Scales`.
        """
        super().__init__(lr)
        if per not in PER:
            raise unknown("shape of updates", per, PER)
        self.per, self.times, self.factors = per, times, factors

    def parameters(self, model: MultiTaskModel, plan: Plan) -> list[dict[str, Any]]:
        groups = super().parameters(model, plan) if self.factors else []
        model.updates = Written(model, self.per, plan.seed)
        return [*groups, {"params": list(model.updates.parameters()), "lr": self.times * plan.lr, "weight_decay": 0.0}]

    def describe(self) -> dict[str, Any]:
        own = {"per": self.per, "times": self.times, "factors": self.factors}
        return {"method": self.name, "lr": self.lr, **own}


class Written(nn.Module):
    """The updates of all tasks and layers; while the model runs a task, its projections write that task's updates."""

    def __init__(self, model: MultiTaskModel, per: str, seed: int):
        super().__init__()
        sites = [site for site in Heads.of(model.encoder).sites if "o" in site.parts]
        if not sites or any(site.inside for site in sites):
            raise HeadwiseError("heads without an output projection of their own", "an encoder such as BERT")
        generator = torch.Generator().manual_seed(seed)
        self.per, self.task, self.into, self.out = per, "", nn.ParameterDict(), nn.ParameterDict()
        for task in model.tasks:
            for site in sites:
                heads, size, width = len(site.kept), site.head_dim, model.width
                rank = heads if per == "head" else -(-heads * (size + width) // (heads * size + width))
                shape = (heads, size) if per == "head" else (rank, heads * size)
                start = torch.randn(shape, generator=generator) / shape[-1] ** 0.5
                key = self._key(task, site.layer)
                self.into[key] = nn.Parameter(start.to(model.device))
                self.out[key] = nn.Parameter(torch.zeros(rank, width, device=model.device))
        self._follow(model)
        for site in sites:
            site.parts["o"].module.register_forward_hook(self._hook(site))

    @staticmethod
    def _key(task: str, layer: int) -> str:
        return f"{task.replace('.', '__')} {layer}"

    def _follow(self, model: MultiTaskModel) -> None:
        """Track the current task: every forward enters the task's factors first."""
        scaled = model.scaled

        def followed(task: str) -> AbstractContextManager[Any]:
            self.task = task
            return scaled(task)

        model.scaled = followed  # type: ignore[method-assign]

    def _hook(self, site: Any) -> Any:
        def add(_: nn.Module, given: tuple[torch.Tensor, ...], out: torch.Tensor) -> torch.Tensor:
            key = self._key(self.task, site.layer)
            into, write = self.into[key], self.out[key]
            one_each = self.per == "head"
            read = (site.heads_of(given[0]) * into).sum(-1) if one_each else given[0] @ into.mT  # (B, T, H or R)
            return out + (read @ write).to(out.dtype)

        return add
