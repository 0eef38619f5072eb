"""The inner loop of meta-learning: a few steps of SGD as a function of the parameters they start from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from headwise.papers.mesh.gating import HeadGates

if TYPE_CHECKING:
    from headwise.models.multitask import MultiTaskModel

Parameters = dict[str, Tensor]
Rates = Mapping[str, float | Tensor]


class Learner(nn.Module):
    """A model and its head gates as one module, so that inner steps can move both."""

    def __init__(self, model: MultiTaskModel, gates: HeadGates | None = None):
        super().__init__()
        self.model, self.gates = model, gates

    def forward(self, task: str, batch: dict[str, Tensor]) -> Tensor:
        """One loss per example."""
        return self.model(task, batch).loss

    def movable(self, task: str, moves: Sequence[str]) -> dict[str, Parameters]:
        """What inner steps on a task may move, by group: the encoder, the task's own output head, the gates."""
        own = f"model.heads.{self.model.head_key(task)}."
        starts = {"encoder": "model.encoder.", "heads": own, "gates": "gates."}
        named = [(name, p) for name, p in self.named_parameters() if p.requires_grad]
        return {group: {n: p for n, p in named if n.startswith(starts[group])} for group in moves}

    @contextmanager
    def gated(self) -> Iterator[None]:
        """Inside, the model runs under its gates, where there are any."""
        with ExitStack() as stack:
            if self.gates is not None:
                stack.enter_context(self.gates.on(self.model))
            yield

    @contextmanager
    def wearing(self, parameters: Parameters) -> Iterator[None]:
        """Inside, the parameters given stand in place of the module's own; nothing is copied."""
        own = dict(self.named_parameters())
        before = {name: own[name].data for name in parameters}
        try:
            for name, value in parameters.items():
                own[name].data = value.detach()
            yield
        finally:
            for name, value in before.items():
                own[name].data = value


class Adapted(NamedTuple):
    """Where inner steps end, and where asked for the sum of the directions they went, momentum's next one included."""

    parameters: Parameters
    path: Parameters


def adapt(
    learner: nn.Module,
    task: str,
    batch: dict[str, Tensor],
    moves: Mapping[str, Parameters],
    steps: int,
    rates: Rates,
    momentum: float = 0.0,
    second: bool = False,
    masked: Mapping[str, Callable[[Tensor], Tensor]] | None = None,
    whole_path: bool = False,
) -> Adapted:
    """Steps of SGD on a batch, as a function: the learner keeps its own parameters (MESH, Algorithm 1).

    Args:
        learner: called as ``learner(task, batch)``, gives one loss per example.
        task, batch: the support set.
        moves: parameters that move, by group.
        steps: how many.
        rates: of each group; a tensor may ask for a gradient.
        momentum: of the inner SGD; its state begins anew with every episode.
        second: keep the graph of the inner gradients. Without it they are constants, and ∂φ/∂θ is the identity.
        masked: for some parameters, what their gradients become before they are used.
        whole_path: sum up the directions too.
    """
    fast = {name: p for group in moves.values() for name, p in group.items()}
    speed: list[Tensor] = []
    path: list[Tensor] = []
    for _ in range(steps):
        loss = functional_call(learner, fast, (task, batch)).mean()
        found = torch.autograd.grad(loss, list(fast.values()), create_graph=second, materialize_grads=True)
        grads = [masked[n](g) if masked and n in masked else g for n, g in zip(fast, found)]
        speed = list(torch._foreach_add(grads, speed, alpha=momentum)) if momentum and speed else grads
        fast = _stepped(fast, dict(zip(fast, speed)), moves, rates)
        if whole_path:
            path = list(torch._foreach_add(path, speed)) if path else speed
    if path and momentum:
        path = list(torch._foreach_add(path, speed, alpha=momentum))
    return Adapted(fast, dict(zip(fast, path)))


def _stepped(fast: Parameters, speed: Parameters, moves: Mapping[str, Parameters], rates: Rates) -> Parameters:
    """φ - r v, group by group; one call for all tensors of a group where its rate is a plain number."""
    found: Parameters = {}
    for group, names in moves.items():
        if names:
            rate, old, way = rates[group], [fast[n] for n in names], [speed[n] for n in names]
            if isinstance(rate, Tensor):
                new = [p - rate * v for p, v in zip(old, way)]
            else:
                new = torch._foreach_sub(old, way, alpha=rate)
            found |= dict(zip(names, new))
    return found
