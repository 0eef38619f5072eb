"""What a closed head returns: the reference r of z' = r + g · (z - r).

Zero is the simplest. The mean is a typical output of the head. The output on another example keeps its distribution.
The output on a corrupted twin keeps everything except what was corrupted. The optimal constant (Li and Janson 2024)
costs the task least: the remaining loss is what only this head can contribute.

Legend: B examples, T tokens, L layers, H heads, D head size.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from headwise.errors import HeadwiseError, unknown
from headwise.heads.equation import check_reference
from headwise.heads.gates import Heads, captured
from headwise.heads.modules import evaluating
from headwise.measuring.replay import Replay
from headwise.models.batching import Encoded, Order, encode
from headwise.models.subject import Batch, Subject
from headwise.tasks.task import SPLITS, Rows, Task

CLOSE = ("zero", "mean", "resample", "optimal")
EXAMPLES = {"mean": 1000, "optimal": 64}
VISITS = 32  # training steps in which each head of `optimal` is closed
Reference = Callable[[np.ndarray, Batch], torch.Tensor]  # from items and their batch to a reference for `gated`


def mean(
    subject: Subject,
    task: str,
    *,
    split: str | None = None,
    examples: int = EXAMPLES["mean"],
    data: Encoded | None = None,
    tokens: int = 2048,
) -> torch.Tensor:
    """Each head's mean output over the tokens of a task's examples, ``(L, H, D)``.

    Example:
        >>> with gated(model.backbone, gates, references.mean(model, "sst2")):
        ...     model("sst2", batch)
    """
    data = _sample(subject, task, split, examples) if data is None else data
    return mean_of((batch for _, batch in _batches(subject, data, tokens)), subject, task, subject.attention)


@torch.no_grad()
def mean_of(batches: Any, subject: Subject, task: str, heads: Heads) -> torch.Tensor:
    """Each head's mean output over the tokens of some batches, before any factors of the task, ``(L, H, D)``."""
    total: Any = 0.0
    with evaluating(subject):
        for batch in batches:
            for real, inputs in subject.inputs(task, batch):

                def reduce(z: torch.Tensor, mask: torch.Tensor = real[..., None, None]) -> torch.Tensor:
                    ones = torch.nn.functional.pad(z, (0, 1), value=1.0)  # sums to the number of tokens
                    return (ones * mask).sum((0, 1), dtype=torch.float64)

                with captured(subject.backbone, reduce, heads=heads) as sums, subject.scaled(task):
                    subject.backbone(**inputs)
                total = total + torch.stack(sums)
    if isinstance(total, float):
        raise HeadwiseError(f"no examples of {task!r} for a mean", "one or more")
    return total[..., :-1] / total[..., -1:]


def resample(subject: Subject, task: str, data: Encoded, *, seed: int = 0) -> Reference:
    """Head outputs on another example of the same data, drawn from those of similar length.

    The result is called with items of ``data`` and their batch. Each token gets the output at the donor's token at the
    same position; if the donor is shorter, its tokens are repeated from the first.

    Example:
        >>> reference = references.resample(model, "sst2", data)
        >>> with gated(model.backbone, gates, reference(items, data.batch(items))):
        ...     model("sst2", data.batch(items))
    """
    if len(data) < 2:
        raise HeadwiseError(f"{len(data)} example of {task!r} to resample from", "two or more")
    drawn = np.random.default_rng([seed, 11]).permutation(len(data))
    order = drawn[np.argsort(data.lengths[drawn], kind="stable")]
    donors = np.empty(len(data), np.int64)
    donors[order] = np.roll(order, 1)
    return _Donated(subject, task, data, donors, exact=False)


def twin(subject: Subject, task: str, split: str = "train", data: Encoded | None = None) -> Reference:
    """Head outputs on each example's corrupted twin: its row updated by its field ``twin``.

    A twin has as many tokens as its example. The result is called with items of ``data`` and their batch.

    Example:
        >>> row = {"text": "the film was great", "label": "good", "twin": {"text": "the film was awful"}}
    """
    source = subject.tasks[task]
    rows = source.rows(split)
    if without := [number for number, row in enumerate(rows) if not isinstance(row.get("twin"), dict)]:
        seen = f"row {without[0]} of {task!r} has no twin"
        raise HeadwiseError(seen, "the fields of its corrupted form", '{"text": ..., "twin": {"text": ...}}')
    twins = Task(task, source.kind, Rows(**{split: [{**row, **row["twin"]} for row in rows]}), source.metric)
    twins = encode(twins, split, subject.tokenizer, subject.max_length)
    data = subject.encode(task, split) if data is None else data
    if unequal := np.flatnonzero(data.lengths != twins.lengths).tolist():
        at, lengths = unequal[0], (int(data.lengths[unequal[0]]), int(twins.lengths[unequal[0]]))
        raise HeadwiseError(f"example {at} of {task!r} has {lengths[0]} tokens, its twin {lengths[1]}", "as many")
    return _Donated(subject, task, twins, np.arange(len(twins)), exact=True)


class _Donated:
    """Head outputs of each item's donor, ``(B, T, L, H, D)``."""

    def __init__(self, subject: Subject, task: str, data: Encoded, donors: np.ndarray, exact: bool):
        self.subject, self.task, self.data, self.donors, self.exact = subject, task, data, donors, exact

    @torch.no_grad()
    def __call__(self, items: np.ndarray, batch: Batch) -> torch.Tensor:
        donated = _to(self.subject.device, self.data.batch(self.donors[np.asarray(items)]))
        real_BT, z_BTLHD = head_outputs(self.subject, self.task, donated)
        own = [real for real, _ in self.subject.inputs(self.task, batch)]
        if len(own) != 1 or len(own[0]) != len(z_BTLHD):
            seen = f"a batch of {self.task!r} with other forwards than its donors'"
            raise HeadwiseError(seen, "one forward with as many rows", "close='mean'")
        own_BT = own[0].expand(-1, z_BTLHD.shape[1]) if own[0].shape[1] == 1 else own[0]
        if self.exact and not torch.equal(own_BT.sum(1), real_BT.sum(1)):
            raise HeadwiseError(f"twins of {self.task!r} with other numbers of tokens", "as many as their examples")
        number_BT = self.subject.numbers(batch, own_BT)
        return z_BTLHD.take_along_dim(matched_tokens(number_BT, real_BT)[:, :, None, None, None], 1)


def matched_tokens(number_BT: torch.Tensor, donor_BT: torch.Tensor) -> torch.Tensor:
    """For each token's number, the index of the donor's token of that number; padding may be on either side.

    Example:
        >>> matched_tokens(torch.tensor([[0, 1, 2]]), torch.tensor([[False, True, True]])).tolist()
        [[1, 2, 1]]
    """
    places = torch.argsort((~donor_BT).long(), dim=1, stable=True)  # real tokens first, in order
    return places.gather(1, number_BT % donor_BT.sum(1, keepdim=True).clamp_min(1))


def head_outputs(subject: Subject, task: str, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Which tokens are real, ``(B, T)``, and all head outputs of one forward, ``(B, T, L, H, D)``."""
    forwards = list(subject.inputs(task, batch))
    if len(forwards) != 1:
        raise HeadwiseError(f"examples of {task!r} that are read in windows", "one forward", "close='mean'")
    real, inputs = forwards[0]
    heads = subject.attention
    with evaluating(subject), captured(subject.backbone, torch.clone, heads=heads) as layers, subject.scaled(task):
        subject.backbone(**inputs)
    if len({layer.shape for layer in layers}) > 1:
        raise HeadwiseError(f"layers of {heads.family} with different numbers of tokens", "as many in all layers")
    z_BTLHD = torch.stack(layers, 2)
    return real.expand(z_BTLHD.shape[:2]), z_BTLHD


def optimal(
    subject: Subject,
    task: str,
    *,
    split: str | None = None,
    examples: int = EXAMPLES["optimal"],
    visits: int = VISITS,
    lr: float = 0.1,
    seed: int = 0,
    data: Encoded | None = None,
    tokens: int = 2048,
) -> torch.Tensor:
    """The constant output of each head with which closing it costs the task least, ``(L, H, D)`` (Li and Janson 2024).

    All heads are fitted together: in every step, one head is closed in each example. A learned constant is used only if
    it beats zero and the mean on the examples, so no head's loss is above theirs.

    Args:
        subject: a model with this task.
        task: its name.
        split: the split to fit on (default: train if the task has it).
        examples: number of examples.
        visits: passes over the examples, in units of one closing of every head.
        lr: learning rate, in standard deviations of each head's output.
        seed: of the order in which heads are closed.
        data: encoded examples, if at hand.
        tokens: padded tokens per forward.
    """
    data = _sample(subject, task, split, examples) if data is None else data
    heads = subject.attention
    center, spread = (value.to(subject.device) for value in _center_and_spread(subject, task, data, tokens, heads))
    learned = torch.zeros_like(center, requires_grad=True)
    optimizer = torch.optim.Adam([learned], lr)
    living = heads.alive.flatten().nonzero().flatten()
    generator, steps = torch.Generator().manual_seed(seed), max(1, visits * len(living) // max(1, len(data)))
    asked = [p for p in subject.parameters() if p.requires_grad]
    with evaluating(subject), torch.enable_grad():
        for parameter in asked:
            parameter.requires_grad_(False)
        try:
            for _ in range(steps):
                for _, batch in _batches(subject, data, tokens):
                    closed = living[torch.randint(len(living), (len(next(iter(batch.values()))),), generator=generator)]
                    gates = 1 - torch.nn.functional.one_hot(closed, heads.alive.numel()).float()
                    with subject.gated(gates.view(-1, *heads.shape), center + spread * learned, batch, heads):
                        subject.losses(task, batch).sum().backward()
                    optimizer.step()
                    optimizer.zero_grad()
        finally:
            for parameter in asked:
                parameter.requires_grad_(True)
    constants = [torch.zeros_like(center), center, (center + spread * learned).detach()]
    losses = torch.stack([lesion_losses(subject, task, data, constant, heads, tokens) for constant in constants])
    best = losses.nan_to_num(torch.inf).argmin(0)  # (L, H)
    return torch.stack(constants).take_along_dim(best[None, ..., None].to(center.device), 0)[0]


@torch.no_grad()
def lesion_losses(
    subject: Subject, task: str, data: Encoded, reference: torch.Tensor | None, heads: Heads, tokens: int = 2048
) -> torch.Tensor:
    """A task's mean loss with each head closed alone, ``(L, H)``; NaN for absent heads."""
    total = torch.full(heads.shape, torch.nan, dtype=torch.float64)
    total[heads.alive] = 0
    with evaluating(subject):
        replay = Replay(subject.backbone, heads)
        for _, batch in _batches(subject, data, tokens):

            def run(gates: torch.Tensor, here: Heads, batch: Batch = batch) -> float:
                with subject.gated(gates, reference, batch, here):
                    return float(subject.losses(task, batch).sum())

            with replay.batch():
                for layer, head in reversed(heads.alive.nonzero().tolist()):
                    gates = torch.ones(heads.shape)
                    gates[layer, head] = 0
                    total[layer, head] += replay.run(gates, partial(run, gates))
    return total / max(1, len(data))


def _center_and_spread(
    subject: Subject, task: str, data: Encoded, tokens: int, heads: Heads
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each head's mean output and the standard deviation of its numbers, 0 for absent heads."""
    sums: list[torch.Tensor] = []
    with torch.no_grad(), evaluating(subject):
        for _, batch in _batches(subject, data, tokens):
            for real, inputs in subject.inputs(task, batch):

                def moments(z: torch.Tensor, mask: torch.Tensor = real[..., None, None]) -> torch.Tensor:
                    each = torch.stack([torch.ones_like(z), z, z.square()])
                    return (each * mask).sum((1, 2), dtype=torch.float64)

                with captured(subject.backbone, moments, heads=heads) as layers, subject.scaled(task):
                    subject.backbone(**inputs)
                sums.append(torch.stack(layers, 1))
    count, first, second = torch.stack(sums).sum(0)
    center = first / count
    spread = (second / count - center.square()).clamp_min(0).mean(-1, keepdim=True).sqrt()
    dtype = next(subject.parameters()).dtype
    return center.nan_to_num(0).to(dtype), spread.nan_to_num(0).to(dtype)


def reference_for(
    close: str | torch.Tensor, subject: Subject, task: str, data: Any, *, tokens: int = 2048, seed: int = 0
) -> Reference | None:
    """What ``close=`` means for the items of some data: None is zero."""
    if isinstance(close, torch.Tensor):
        check_reference(close, subject.attention)
        return lambda items, batch: close
    if close not in CLOSE:
        raise unknown("reference of closed heads", close, CLOSE)
    if close == "zero":
        return None
    if close == "resample":
        return resample(subject, task, data, seed=seed)
    fitted = _sample(subject, task, None, EXAMPLES[close])
    constant = (mean if close == "mean" else optimal)(subject, task, data=fitted, tokens=tokens)
    return lambda items, batch: constant


def _sample(subject: Subject, task: str, split: str | None, examples: int) -> Encoded:
    """Some encoded examples of a split, or of the first of train, dev and test that the task has."""
    if split is not None:
        return subject.encode(task, split, limit=examples)
    *others, last = SPLITS
    for name in others:
        try:
            return subject.encode(task, name, limit=examples)
        except HeadwiseError:
            continue
    return subject.encode(task, last, limit=examples)


def _batches(subject: Subject, data: Encoded, tokens: int) -> Any:
    for items in Order(data.lengths, tokens=tokens).plain():
        yield items, _to(subject.device, data.batch(items))


def _to(device: torch.device, batch: Batch) -> Batch:
    return {name: tensor.to(device) for name, tensor in batch.items()}
