"""A learning rate for every head and task: a head learns most from the task that needs it most."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from headwise.errors import HeadwiseError
from headwise.heads.gates import Heads
from headwise.scoring.importance import importance
from headwise.training.methods.iat import check_share, choose_heads, head_parameters
from headwise.training.methods.method import Method

if TYPE_CHECKING:
    from headwise.models.multitask import MultiTaskModel
    from headwise.training.loop import Run
    from headwise.training.plan import Plan


class Rates(Method):
    """Important-head training without a threshold.

    A task's need of a head is its importance divided by the mean over heads. The head's rate on a batch of the task is
    this need divided by the largest need of any task, raised to a power. Updates of the head's rows are scaled after
    the optimizer's step, so this is a learning rate with any optimizer. Power 0 is plain training; with a large power
    every head is trained by one task only.

    Example:
        >>> fit(model, Plan(epochs=3), Rates(power=1.0, start=0.2, refresh=200))
    """

    name = "rates"

    def __init__(
        self,
        power: float = 1.0,
        start: float = 0.2,
        *,
        refresh: int | None = None,
        params: str = "qkvo",
        by: str = "gradient",
        examples: int = 1000,
    ):
        """Choose how exclusive heads are, and from when on.

        Args:
            power: exponent of the relative need.
            start: fraction of training after which rates apply, because importance requires a trained model.
            refresh: steps after which needs are measured again.
            params: matrices of a head, "qkv" or "qkvo".
            by: importance estimator.
            examples: number of training examples per task for importance.
        """
        check_share("start", start)
        if power < 0:
            raise HeadwiseError(f"power={power}", "0 or more")
        if params not in ("qkv", "qkvo"):
            raise HeadwiseError(f"params={params!r}", "qkv or qkvo")
        self.power, self.begin, self.refresh, self.params = power, start, refresh, params
        self.by, self.examples = by, examples
        self.needs: dict[str, torch.Tensor] = {}
        self._slow: dict[frozenset[str], list[torch.Tensor]] = {}

    def parameters(self, model: MultiTaskModel, plan: Plan) -> list[dict[str, Any]]:
        self.needs, self._slow = {}, {}  # state of another run of this method
        return []

    def start(self, run: Run) -> None:
        self.heads = Heads.of(run.model.encoder)
        self.heads.require_exact("a learning rate per head")
        self.moved = [(parameter, axis) for parameter, axis in head_parameters(self.heads, self.params)]
        self.first = round(self.begin * run.total)
        self._before: list[torch.Tensor] = []

    def before_step(self, run: Run) -> None:
        due = bool(self.refresh) and (run.step - self.first) % (self.refresh or 1) == 0
        if run.step >= self.first and self.power and (not self.needs or due):
            self.needs = choose_heads(run, self._need)
            self._slow = {}

    def before_update(self, run: Run, tasks: list[str]) -> None:
        if self.needs:
            held = [parameter.data for parameter, _ in self.moved]
            self._before = self._before or [torch.empty_like(tensor) for tensor in held]
            torch._foreach_copy_(self._before, held)

    def after_update(self, run: Run, tasks: list[str]) -> None:
        if self.needs:
            held = [parameter.data for parameter, _ in self.moved]
            torch._foreach_lerp_(held, self._before, self._slowness(frozenset(tasks)))

    def rates(self) -> dict[str, torch.Tensor]:
        """Each task's learning rate for every head, (L, H), relative to the plan's."""
        # Some estimators have negative scores: a task does not need a head that harms it.
        needs = {task: (need / need.abs().nanmean()).clamp_min(1e-12) for task, need in self.needs.items()}
        most = torch.stack(list(needs.values())).amax(0)
        return {task: (need / most).nan_to_num(1.0) ** self.power for task, need in needs.items()}

    def _need(self, run: Run, task: str) -> torch.Tensor:
        return importance(run.model, task, self.by, examples=self.examples, data=run.data[task]).scores.cpu()

    def _slowness(self, tasks: frozenset[str]) -> list[torch.Tensor]:
        """1 - rate for every entry of every tensor; with several tasks in a step, the largest rate counts."""
        if tasks not in self._slow:
            rates = self.rates()
            rate_LH = torch.stack([rates[task] for task in sorted(tasks)]).amax(0)
            slow = {id(parameter): torch.zeros_like(parameter.data) for parameter, _ in self.moved}
            for site in self.heads.sites:
                for name in self.params if site.parts else "":
                    self._mark(slow, site, name, rate_LH)
            self._slow[tasks] = [slow[id(parameter)] for parameter, _ in self.moved]
        return self._slow[tasks]

    def _mark(self, slow: dict[int, torch.Tensor], site: Any, name: str, rate_LH: torch.Tensor) -> None:
        part = site.parts[name]
        rates = [rate_LH[site.layer, list(own)].amax() for own in site.owners(part)]  # of a key-value group
        for rows, value in zip(part.rows, torch.stack(rates).tolist()):
            for tensor, axis in ((part.module.weight, part.axis), (part.module.bias if part.biased else None, 0)):
                if tensor is not None and not (name == "o" and tensor.ndim == 1):
                    slow[id(tensor)].index_fill_(axis, rows.to(tensor.device), 1.0 - value)

    def state(self) -> dict[str, torch.Tensor]:
        return dict(self.needs)

    def load_state(self, tensors: dict[str, torch.Tensor]) -> None:
        self.needs = dict(tensors)

    def describe(self) -> dict[str, Any]:
        settings = {"power": self.power, "start": self.begin, "refresh": self.refresh, "params": self.params}
        return {"method": self.name, **settings, "by": self.by, "examples": self.examples}
