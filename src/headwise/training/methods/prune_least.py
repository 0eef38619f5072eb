"""Prune the least important heads late in training and continue (Li et al. 2023, Table 7, first row)."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from headwise.heads.families import transposed
from headwise.heads.gates import Heads, gated
from headwise.heads.selection import bottom
from headwise.scoring.importance import importance
from headwise.training.methods.iat import check_share, choose_heads
from headwise.training.methods.method import Method

if TYPE_CHECKING:
    from headwise.models.multitask import MultiTaskModel
    from headwise.training.loop import Run
    from headwise.training.plan import Plan


class PruneLeast(Method):
    """Close the heads that matter least to all tasks before the final fraction δ of training.

    A head's score is the mean of the tasks' importances, each normalized to sum 1, so that tasks with larger losses do
    not dominate. Closed heads are gated to zero for every task, in training and in evaluations; at the end their
    columns of the output projections are set to zero, so the model needs no gates. With ``plan.patience``, only
    evaluations after the cut compete for the best weights.

    Example:
        >>> fit(model, Plan(epochs=3), PruneLeast(alpha=0.3, delta=0.1))
    """

    name = "prune_least"

    def __init__(self, alpha: float = 0.3, delta: float = 0.1, by: str = "gradient", examples: int = 10_000):
        """Choose how much is pruned, and when.

        Args:
            alpha: fraction of heads to close.
            delta: final fraction of steps, trained without them.
            by: importance estimator.
            examples: number of examples for the importance of each task.
        """
        check_share("alpha", alpha)
        check_share("delta", delta)
        self.alpha, self.delta, self.by, self.examples = alpha, delta, by, examples
        self.closed: torch.Tensor | None = None  # bool (L, H)

    def parameters(self, model: MultiTaskModel, plan: Plan) -> list[dict[str, Any]]:
        self.closed = None  # state of another run of this method
        return []

    def start(self, run: Run) -> None:
        self.heads = Heads.of(run.model.encoder)
        if self.heads.shared:
            self.heads.require_exact("leaving pruned heads closed")
        run.model.require_projected("leaving pruned heads closed")
        self.first = run.total - round(self.delta * run.total)
        if self.first < run.total and self.alpha > 0:
            run.best_after = self.first

    def before_step(self, run: Run) -> None:
        if run.step >= self.first and self.closed is None:
            scores = choose_heads(run, self._share)
            self.closed = bottom(torch.stack(list(scores.values())).mean(0), self.alpha)

    def around(self, run: Run) -> AbstractContextManager[Any]:
        if self.closed is None or not self.closed.any():
            return nullcontext()
        return gated(run.model.encoder, (~self.closed).float(), heads=self.heads)

    @torch.no_grad()
    def finish(self, run: Run) -> None:
        if self.closed is None:
            return
        for site in self.heads.sites:
            gone = self.closed[site.layer, list(site.kept)].repeat_interleave(self.heads.head_dim)
            weight: Any = site.module.weight
            (weight if transposed(site.module) else weight.T)[gone.to(weight.device)] = 0

    def state(self) -> dict[str, torch.Tensor]:
        return {} if self.closed is None else {"closed": self.closed}

    def load_state(self, tensors: dict[str, torch.Tensor]) -> None:
        self.closed = tensors.get("closed")

    def describe(self) -> dict[str, Any]:
        settings = {"alpha": self.alpha, "delta": self.delta, "by": self.by, "examples": self.examples}
        return {"method": self.name, **settings}

    def _share(self, run: Run, task: str) -> torch.Tensor:
        """A task's importance of each head, normalized to sum 1."""
        scores = importance(run.model, task, self.by, examples=self.examples, data=run.data[task]).scores
        return scores / scores.abs().nansum().clamp_min(1e-20)
