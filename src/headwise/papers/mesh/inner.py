"""The inner loop of meta-learning: a few steps of SGD as a function of the parameters they start from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from headwise.errors import unknown
from headwise.heads.gates import Heads
from headwise.scoring.gating import EDGE, START, draw, settle, under
from headwise.tasks.languages import key
from headwise.tasks.task import Task

if TYPE_CHECKING:
    from headwise.models.multitask import MultiTaskModel

FORMS = ("sigmoid", "concrete", "input")


class HeadGates(nn.Module):
    """The gates and the mask of every task-language pair of a model.

    Example:
        >>> gates = HeadGates(Heads.of(model.encoder), model.tasks.values(), "sigmoid", each="language")
        >>> gates.close({"xnli_es": mask})
        >>> with gates.on(model):
        ...     model("xnli_es", batch).loss.mean().backward()
    """

    open: torch.Tensor

    def __init__(
        self, heads: Heads, tasks: Iterable[Task], form: str | None = None, each: str = "shared", width: int = 0
    ):
        """Gates of every pair.

        Args:
            heads: of the model.
            tasks: the pairs.
            form: sigmoid; concrete (drawn in training, settled in evaluation); input (sigmoid, for each example by the
                mean of its word embeddings); or None: all 1, the mask alone.
            each: one set for all pairs (shared), or one per task, language or pair.
            width: of the word embeddings, for input.
        """
        if form not in (None, *FORMS):
            raise unknown("form of gates", form, FORMS)
        super().__init__()
        self.heads, self.form, self.each = heads, form, each
        self.tasks = {task.name: task for task in tasks}
        self.keys = {name: key(task, each) for name, task in self.tasks.items()}
        self.masked_by = "shared"
        self.sets = list(dict.fromkeys(self.keys.values()))
        start = torch.full((len(self.sets), *heads.shape), START)
        self.logits = nn.Parameter(start) if form else None
        self.reads = nn.Parameter(torch.zeros(width, *heads.shape)) if form == "input" else None  # begins as sigmoid
        self.register_buffer("open", torch.ones(len(self.keys), *heads.shape))

    def values(self, task: str, drawn: bool = False, texts: torch.Tensor | None = None) -> torch.Tensor:
        """A pair's gates, (L, H); ``drawn`` anew where they are concrete.

        With ``texts``, a vector of each example (B, E), gates by input are (B, L, H).
        """
        place = self._place(task)
        if self.logits is None:
            return self.open[place]
        logits = self.logits[self.sets.index(self.keys[task])]
        if self.reads is not None and texts is not None:
            logits = logits + torch.tensordot(texts, self.reads, 1) / len(self.reads) ** 0.5
        if self.form != "concrete":
            return torch.sigmoid(logits) * self.open[place]
        noise = torch.empty_like(logits).uniform_(EDGE, 1 - EDGE) if drawn else None
        return (settle(logits) if noise is None else draw(logits, noise)) * self.open[place]

    def close(self, masks: Mapping[str, torch.Tensor], each: str = "shared") -> None:
        """Set P: each pair's closed heads, bool (L, H), alike for all pairs of a task, of a language, or for all."""
        self.masked_by = each
        for task, mask in masks.items():
            self.open[self._place(task)] = (~mask).to(self.open)

    @property
    def closed(self) -> dict[str, torch.Tensor]:
        """Every pair's closed heads."""
        return {task: mask == 0 for task, mask in zip(self.keys, self.open)}

    @contextmanager
    def on(self, model: MultiTaskModel) -> Iterator[None]:
        """Run the model under its pair's gates inside the block."""

        def values(task: str, drawn: bool, batch: Any) -> torch.Tensor:
            return self.values(task, drawn, None if self.reads is None else read(model.encoder, batch))

        with under(model, self.heads, values):
            yield

    def newcomer(self, task: Task) -> HeadGates:
        """Gates for an unseen pair: those of its set, or the mean of all if it has none.

        Its mask is that of its language or task where masks are so, else what all pairs have closed.
        """
        width = 0 if self.reads is None else len(self.reads)
        made = HeadGates(self.heads, [task], self.form, self.each, width).to(self.open.device)
        if self.reads is not None and made.reads is not None:
            made.reads.data.copy_(self.reads.detach())
        if self.logits is not None and made.logits is not None:
            alike = key(task, self.each) in self.sets
            logits = self.logits[self.sets.index(key(task, self.each))] if alike else self.logits.mean(0)
            made.logits.data.copy_(logits.detach())
        kin = [n for n, own in self.tasks.items() if key(own, self.masked_by) == key(task, self.masked_by)]
        made.open[0] = torch.stack([self.open[self._place(name)] for name in kin or self.keys]).amax(0)
        return made

    def _place(self, task: str) -> int:
        if task not in self.keys:
            raise unknown("pair with gates", task, self.keys)
        return list(self.keys).index(task)


def read(encoder: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """What gates by input see: the mean of an example's word embeddings, normalized, (B, E); no gradient enters it."""
    with torch.no_grad():
        words = encoder.get_input_embeddings()(batch["input_ids"]).float()  # type: ignore[operator]
        real = batch["attention_mask"].unsqueeze(-1).to(words)
        return nn.functional.layer_norm((words * real).sum(1) / real.sum(1).clamp_min(1), words.shape[-1:])


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
        """Parameters that inner steps on a task update, by group: the encoder, the task's output head, the gates."""
        own = f"model.heads.{self.model.head_key(task)}."
        starts = {"encoder": "model.encoder.", "heads": own, "gates": "gates."}
        named = [(name, p) for name, p in self.named_parameters() if p.requires_grad]
        return {group: {n: p for n, p in named if n.startswith(starts[group])} for group in moves}

    @contextmanager
    def gated(self) -> Iterator[None]:
        """Run the model under its gates, if any, inside the block."""
        with ExitStack() as stack:
            if self.gates is not None:
                stack.enter_context(self.gates.on(self.model))
            yield

    @contextmanager
    def wearing(self, parameters: Parameters) -> Iterator[None]:
        """Replace the module's parameters by these inside the block; nothing is copied."""
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
        gradients = torch.autograd.grad(loss, list(fast.values()), create_graph=second, materialize_grads=True)
        grads = [masked[n](g) if masked and n in masked else g for n, g in zip(fast, gradients)]
        speed = list(torch._foreach_add(grads, speed, alpha=momentum)) if momentum and speed else grads
        fast = _stepped(fast, dict(zip(fast, speed)), moves, rates)
        if whole_path:
            path = list(torch._foreach_add(path, speed)) if path else speed
    if path and momentum:
        path = list(torch._foreach_add(path, speed, alpha=momentum))
    return Adapted(fast, dict(zip(fast, path)))


def _stepped(fast: Parameters, speed: Parameters, moves: Mapping[str, Parameters], rates: Rates) -> Parameters:
    """φ - r v, group by group; one call for all tensors of a group where its rate is a plain number."""
    moved: Parameters = {}
    for group, names in moves.items():
        if names:
            rate, old, way = rates[group], [fast[n] for n in names], [speed[n] for n in names]
            if isinstance(rate, Tensor):
                new = [p - rate * v for p, v in zip(old, way)]
            else:
                new = torch._foreach_sub(old, way, alpha=rate)
            moved |= dict(zip(names, new))
    return moved
