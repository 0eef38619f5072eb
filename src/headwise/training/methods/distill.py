"""Distillation in TinyBERT's two stages (Jiao et al. 2020): internal states first, then predictions.

Legend: B examples, T tokens, L layers, H heads, E width, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from headwise.errors import HeadwiseError
from headwise.heads.attention import eager
from headwise.heads.gates import Heads
from headwise.io.identity import identity, weights
from headwise.models.multitask import MultiTaskModel, Output
from headwise.tasks.kinds.answer import Answer
from headwise.tasks.kinds.classify import Classify, Regress
from headwise.tasks.kinds.tag import Tag
from headwise.training.methods.iat import check_share
from headwise.training.methods.method import Method
from headwise.training.plan import Plan

if TYPE_CHECKING:
    from headwise.training.loop import Run

SOFTMAX = (F.softmax, torch.softmax, torch.Tensor.softmax)
MASKED = -1e4  # scores below this are masked positions


class Distill(Method):
    """Train a student on a teacher's hidden states, attention scores and embeddings, then on its predictions.

    Stage one (Jiao et al. 2020, Eq. 7-9) is the mean squared difference of embeddings, of the mapped layers' hidden
    states and of their attention scores before the softmax, over real tokens. If widths differ, learned projections map
    the student's states to the teacher's width; if the numbers of heads differ, mean scores over heads are compared.
    Stage two (Eq. 10) is the cross-entropy with the teacher's class probabilities, or the squared difference of grades.
    The learning rate schedule of the plan covers both.

    Example:
        >>> fit(student, Plan(epochs=5), Distill(teacher))
    """

    name = "distill"

    def __init__(
        self,
        teacher: MultiTaskModel,
        share: float = 0.4,
        layers: Sequence[int] | None = None,
        temperature: float = 1.0,
    ):
        """Choose the teacher and the length of stage one.

        Args:
            teacher: a trained model with the student's tasks and tokenizer; it is put into evaluation mode.
            share: fraction of steps in stage one (2 of 5 epochs in Li et al. 2023).
            layers: for each layer of the student, the teacher's layer it learns from, counted from 1 (default: evenly
                spaced).
            temperature: divides the scores of both models in stage two.
        """
        check_share("share", share)
        if not temperature > 0:
            raise HeadwiseError(f"temperature={temperature}", "a number above 0")
        self.teacher, self.share, self.layers, self.temperature = teacher, share, layers, temperature
        self.projections, self.identity = nn.ModuleDict(), weights(teacher)

    def parameters(self, model: MultiTaskModel, plan: Plan) -> list[dict[str, Any]]:
        self.projections, self.identity = nn.ModuleDict(), weights(self.teacher)  # none of an earlier run
        if self.share == 0 or model.config.hidden_size == self.teacher.config.hidden_size:
            return []
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(plan.seed)
            widths = model.config.hidden_size, self.teacher.config.hidden_size
            self.projections = nn.ModuleDict({n: nn.Linear(*widths, bias=False) for n in ("embeddings", "states")})
        self.projections.to(model.device)
        return [
            {"params": list(self.projections.parameters()), "lr": plan.lr if plan.head_lr is None else plan.head_lr}
        ]

    def start(self, run: Run) -> None:
        _check_pair(run.model, self.teacher, stage_two=self.share < 1)
        if self.share:
            run.model.require_one_pass("recording states and attention")
        self.teacher.to(run.device).eval()
        self.map = layer_map(_depth(run.model), _depth(self.teacher), self.layers)
        self.last = round(self.share * run.total)  # steps in stage one

    def loss(self, run: Run, task: str, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        if run.step < self.last:
            return self._stage_one(run, task, batch)
        with torch.no_grad():
            wanted = self.teacher(task, batch)
        return imitate(
            run.model.tasks[task].kind, run.wrapped(task, batch).scores, wanted.scores, batch, self.temperature
        )

    def _stage_one(self, run: Run, task: str, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        with torch.no_grad(), observed(self.teacher) as wanted:
            self.teacher(task, batch)  # including the factors of the task, if it has any
        with observed(run.model) as seen:
            output: Output = run.wrapped(task, batch)
        mask = batch.get("attention_mask")
        mask = torch.ones(seen.states[0].shape[:2], device=run.device) if mask is None else mask
        loss = states_apart(self._wide(seen.states[0], "embeddings"), wanted.states[0], mask)
        for mine, theirs in enumerate(self.map):
            loss = loss + states_apart(self._wide(seen.states[mine + 1], "states"), wanted.states[theirs], mask)
            loss = loss + scores_apart(seen.scores[mine], wanted.scores[theirs - 1], mask)
        return loss + 0.0 * output.loss  # several processes expect a gradient of everything that the forward used

    def before_update(self, run: Run, tasks: list[str]) -> None:
        if run.step < self.last:  # gradients of zero would count as steps and apply weight decay
            run.model.heads.zero_grad(set_to_none=True)

    def _wide(self, states_BTE: torch.Tensor, name: str) -> torch.Tensor:
        return self.projections[name](states_BTE.float()) if len(self.projections) else states_BTE

    def state(self) -> dict[str, torch.Tensor]:
        return dict(self.projections.state_dict())

    def load_state(self, tensors: dict[str, torch.Tensor]) -> None:
        self.projections.load_state_dict(tensors)

    def describe(self) -> dict[str, Any]:
        settings = {"share": self.share, "layers": list(self.layers or ()), "temperature": self.temperature}
        return {"method": self.name, "teacher": self.identity, **settings}


def _depth(model: MultiTaskModel) -> int:
    return Heads.of(model.encoder).num_layers


def layer_map(student: int, teacher: int, given: Sequence[int] | None = None) -> list[int]:
    """For each layer of the student, the teacher's layer it learns from, counted from 1.

    Example:
        >>> layer_map(4, 12)
        [3, 6, 9, 12]
    """
    if given is None:
        return [max(1, round(i * teacher / student)) for i in range(1, student + 1)]
    if len(given) != student or not all(1 <= layer <= teacher for layer in given):
        raise HeadwiseError(
            f"layers={list(given)}", f"{student} numbers from 1 to {teacher}, one per layer of the student"
        )
    return list(given)


# -- internal states


@dataclass
class Seen:
    """The internal states of a forward: embeddings, hidden states and attention scores before the softmax."""

    states: tuple[torch.Tensor, ...] = ()  # (B, T, E) each
    scores: list[torch.Tensor] = field(default_factory=list)  # (B, H, T, T) each


@contextmanager
def observed(model: MultiTaskModel) -> Iterator[Seen]:
    """Record the hidden states and attention scores of a forward inside the block.

    The model uses eager attention, and the input of each layer's softmax is stored. The scores are therefore exact for
    every family, with rotations, position biases and masks, and before dropout.
    """
    seen, encoder, heads = Seen(), model.encoder, Heads.of(model.encoder)
    catcher = _Softmax(seen.scores)

    def ask(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        return args, {**kwargs, "output_hidden_states": True}

    def keep(module: nn.Module, args: tuple, output: Any) -> None:
        seen.states = output.hidden_states

    with ExitStack() as stack:
        stack.enter_context(eager(encoder))
        stack.callback(encoder.register_forward_pre_hook(ask, with_kwargs=True).remove)
        stack.callback(encoder.register_forward_hook(keep).remove)
        for attention in {id(site.attention): site.attention for site in heads.sites}.values():
            stack.callback(attention.register_forward_pre_hook(catcher.open).remove)
            stack.callback(attention.register_forward_hook(catcher.close, always_call=True).remove)
        with catcher:
            yield seen
    if len(seen.scores) != heads.num_layers or len(seen.states) != heads.num_layers + 1:
        raise HeadwiseError(
            f"{len(seen.scores)} softmax calls, {len(seen.states)} states of {heads.num_layers} {heads.family} layers",
            "one softmax per layer, the states of the embeddings and of every layer",
            "Distill(teacher, share=0), which uses predictions only",
        )


class _Softmax(TorchFunctionMode):
    """Stores the softmax inputs of attention modules."""

    def __init__(self, kept: list[torch.Tensor]):
        super().__init__()
        self.kept, self.inside = kept, False

    def open(self, *_: object) -> None:
        self.inside = True

    def close(self, *_: object) -> None:
        self.inside = False

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if self.inside and func in SOFTMAX:
            self.kept.append(args[0] if args else kwargs["input"])
        return func(*args, **kwargs)


def states_apart(mine_BTE: torch.Tensor, theirs_BTE: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Mean squared difference over an example's real tokens, (B,)."""
    per_token = (mine_BTE.float() - theirs_BTE.float()).square().mean(-1) * mask_BT
    return per_token.sum(1) / mask_BT.sum(1).clamp_min(1)


def scores_apart(mine_BHTT: torch.Tensor, theirs_BHTT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Mean squared difference of attention scores between an example's real tokens, (B,)."""
    real = mask_BT.bool()
    allowed = (
        real[:, None, :, None] & real[:, None, None, :] & (mine_BHTT[:, :1] > MASKED) & (theirs_BHTT[:, :1] > MASKED)
    )
    if mine_BHTT.shape[1] != theirs_BHTT.shape[1]:
        mine_BHTT, theirs_BHTT = mine_BHTT.mean(1, keepdim=True), theirs_BHTT.mean(1, keepdim=True)
    apart = (mine_BHTT.float() - theirs_BHTT.float()).masked_fill(~allowed, 0).square()
    return apart.mean(1).sum((1, 2)) / allowed[:, 0].sum((1, 2)).clamp_min(1)


# -- predictions


def imitate(
    kind: Any, mine: Any, theirs: Any, batch: dict[str, torch.Tensor], temperature: float = 1.0
) -> torch.Tensor:
    """The distance of a student's predictions from a teacher's, one number per example."""
    if isinstance(kind, Regress):
        return (mine - theirs).squeeze(-1).square()
    if isinstance(kind, Answer):
        return (_soft(mine.start, theirs.start, temperature) + _soft(mine.end, theirs.end, temperature)) / 2
    if isinstance(kind, Tag):
        known = batch["labels"] >= 0
        return (_soft(mine, theirs, temperature) * known).sum(1) / known.sum(1).clamp_min(1)
    return _soft(mine, theirs, temperature)


def _soft(mine: torch.Tensor, theirs: torch.Tensor, temperature: float) -> torch.Tensor:
    """Cross-entropy with the teacher's probabilities over the last axis; T² keeps the scale of gradients."""
    wanted = (theirs.float() / temperature).softmax(-1)
    return -(wanted * (mine.float() / temperature).log_softmax(-1)).sum(-1) * temperature**2


def _check_pair(student: MultiTaskModel, teacher: MultiTaskModel, stage_two: bool) -> None:
    missing = [name for name in student.tasks if name not in teacher.tasks]
    if missing:
        raise HeadwiseError(f"a teacher without {', '.join(missing)}", f"its tasks: {', '.join(teacher.tasks)}")
    if identity(student.tokenizer) != identity(teacher.tokenizer):
        raise HeadwiseError("a teacher and a student with different tokenizers", "one tokenizer for both")
    for name, task in student.tasks.items():
        if task.kind.labels != teacher.tasks[name].kind.labels:
            raise HeadwiseError(
                f"labels of {name!r} that differ between teacher and student", str(teacher.tasks[name].kind.labels)
            )
        if stage_two and not isinstance(task.kind, Classify | Regress | Tag | Answer):
            raise HeadwiseError(
                f"answers of {name!r}, a {type(task.kind).__name__}, which stage two does not support",
                "Classify, Regress, Tag or Answer",
                "Distill(teacher, share=1), then plain training",
            )
