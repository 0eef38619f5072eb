"""A subject: a model with heads and named tasks that returns losses per example.

Importance, evaluation, dissociation, probes, pruning and studies accept any subject: `MultiTaskModel` (an encoder with
output heads), a language model with prompts, a task model of transformers, or any module with a loss function.

Legend: B examples, T tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from headwise.errors import HeadwiseError, unknown
from headwise.heads.gates import Heads, gated
from headwise.heads.modules import evaluating
from headwise.models.batching import NUMBERS, Encoded, batches, encode
from headwise.models.device import Budget
from headwise.models.processes import Team
from headwise.tasks.kinds.windows import parts
from headwise.tasks.predictions import Predictions, Predicts, as_rows, own_columns
from headwise.tasks.prompts.prompted import Prompts
from headwise.tasks.task import Task

Batch = dict[str, torch.Tensor]  # as `Encoded.batch` returns it: the first dimension of every tensor is B


class Output(NamedTuple):
    """The result for a batch: the loss of each example, and scores that the task's kind decodes."""

    loss: torch.Tensor  # (B,)
    scores: Any


class Subject(nn.Module):
    """A model that returns losses per example.

    A subclass has ``tasks``, ``tokenizer``, ``max_length``, a `backbone` and a `forward`; everything else follows.

    Example:
        >>> batch = subject.encode("sst2", "dev").batch([0, 1, 2])
        >>> with subject.gated(gates):
        ...     subject("sst2", batch).loss.shape
        torch.Size([3])
    """

    tasks: dict[str, Task]
    tokenizer: Any
    max_length: int
    input_names: Sequence[str] = ("input_ids", "attention_mask")  # the columns of a batch that the backbone accepts

    @property
    def backbone(self) -> nn.Module:
        """The module whose heads are measured, gated and captured."""
        raise NotImplementedError

    @property
    def attention(self) -> Heads:
        """The heads that are measured: one stack of the backbone."""
        return Heads.of(self.backbone)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def forward(self, task: str, batch: Batch) -> Output:
        """The loss and the scores of each example; they depend on the backbone's heads only through its forwards."""
        raise NotImplementedError

    def losses(self, task: str, batch: Batch) -> torch.Tensor:
        """The loss of each example, (B,), without scores."""
        return self(task, batch).loss

    def encode(
        self, task: str, split: str, limit: int | None = None, chosen: Sequence[int] | np.ndarray | None = None
    ) -> Encoded:
        """Encode a split of a task: all rows, a seeded sample of ``limit``, or the rows ``chosen``."""
        return encode(self.tasks[task], split, self.tokenizer, self.max_length, limit, chosen)

    def predict(self, task: str, inputs: Any, **options: Any) -> Predictions:
        """Predict a task's answers for texts, pairs, lists of words, rows, a DataFrame or a Dataset.

        `headwise.models.subject.predict` describes inputs and options.

        Example:
            >>> model.predict("sst2", ["a fine film"])[0].label
            'positive'
        """
        return predict(self, task, inputs, **options)

    def inputs(self, task: str, batch: Batch) -> Iterator[tuple[torch.Tensor, dict[str, torch.Tensor]]]:
        """The backbone's forwards for a batch: real tokens, ``(B, T)`` or ``(B, 1)``, and the arguments.

        Measures of head outputs and attention maps run the backbone on these, without a loss.
        """
        columns = {name: batch[name] for name in self.input_names if name in batch}
        if any(name in NUMBERS for name in columns):  # all tokens are real
            one = next(iter(columns.values()))
            yield torch.ones(len(one), 1, dtype=torch.bool, device=one.device), self._typed(columns)
            return
        for place, part in parts(columns, batch.get("window")):
            yield place >= 0, part

    def _typed(self, columns: Batch) -> Batch:
        """Images and recordings in the type of the weights."""
        dtype = next(self.backbone.parameters()).dtype
        return {name: column.to(dtype) if name in NUMBERS else column for name, column in columns.items()}

    def rows(self, batch: Batch) -> torch.Tensor | None:
        """The example of each row of a backbone's forward; None if row ``i`` is example ``i``.

        A subject that arranges the choices of an example as rows of one forward overrides this, so that gates and
        gradients are per example.
        """
        return None

    def numbers(self, batch: Batch, real_BT: torch.Tensor) -> torch.Tensor:
        """The number of the token in each column of the backbone's forwards, (B, T): references of tokens go by it."""
        return (real_BT.long().cumsum(1) - 1).clamp_min(0)

    def by_token(self) -> AbstractContextManager[Any]:
        """Inside, columns of all forwards are what `numbers` says."""
        return nullcontext()

    def fitted(self, reference: torch.Tensor | None, width: int) -> torch.Tensor | None:
        """A reference for a forward of so many tokens."""
        return reference

    def gated(
        self,
        gates: torch.Tensor,
        reference: torch.Tensor | None = None,
        batch: Batch | None = None,
        heads: Heads | None = None,
    ) -> AbstractContextManager[Heads]:
        """`headwise.gated` on the backbone; gates and references per example apply to all rows of the example."""
        example = None if batch is None else self.rows(batch)
        if example is not None:
            gates = gates if gates.ndim == 2 else gates[example]
            reference = reference[example] if reference is not None and reference.ndim == 4 else reference
        return gated(self.backbone, gates, reference, heads=heads or self.attention)

    def scaled(self, task: str) -> AbstractContextManager[Any]:
        """Apply the factors of heads of a task (default: none)."""
        return nullcontext()

    @property
    def form(self) -> dict[str, Any]:
        """Settings that determine losses besides weights, tokenizer and data, for the identity."""
        return {"max_length": self.max_length}


CHUNK = 4096  # rows tokenized at a time, which bounds memory
TOKENS = 2048  # padded tokens in one forward on a CPU


def predict(
    subject: Any,
    task: str,
    inputs: Any,
    *,
    columns: Mapping[str, str] | None = None,
    tokens: int | None = None,
) -> Predictions:
    """Predict a task's answers, one record per input, in batches of similar lengths.

    Args:
        subject: a model with named tasks, such as a `MultiTaskModel`.
        task: name of the task.
        inputs: texts, pairs of texts, lists of words, ``(question, context)`` pairs, mappings, a DataFrame or a
            Dataset.
        columns: field to column, if columns have other names than those of the task's file.
        tokens: padded tokens in one forward (default: by device).

    Example:
        >>> model.predict("sst2", ["a fine film"])[0].label
        'positive'
    """
    if task not in subject.tasks:
        raise unknown("task of this model", task, subject.tasks)
    kind = subject.tasks[task].kind
    if not isinstance(kind, Predicts):
        seen = f"the kind {type(kind).__name__} of {task!r} cannot predict"
        raise HeadwiseError(seen, "a kind with asks, unanswered and predictions (headwise.tasks.Predicts)")
    source = subject.tasks[task].source
    prompts = source if isinstance(source, Prompts) else None
    rows = as_rows(prompts.asks if prompts else kind.asks, inputs, columns, own_columns(subject.tasks[task]))
    rows = [prompts.asked(row) for row in rows] if prompts else rows
    predictions = Predictions()
    for start in range(0, len(rows), CHUNK):
        predictions += _chunk(subject, task, kind, rows[start : start + CHUNK], tokens)
    return predictions


def _chunk(subject: Any, task: str, kind: Any, rows: list[dict], tokens: int | None) -> list[Any]:
    filled = [kind.unanswered(row) for row in rows]
    columns = kind.encode(filled, subject.tokenizer, subject.max_length)
    data = Encoded(columns, pad=getattr(subject.tokenizer, "pad_token_id", None) or 0, rows=len(rows))
    size = tokens or (TOKENS if subject.device.type == "cpu" else 16 * TOKENS)
    return Budget(size, Team(bound=Team.of(subject).bound)).fit(
        lambda budget: _forwards(subject, task, kind, data, filled, budget)
    )


@torch.no_grad()
def _forwards(subject: Any, task: str, kind: Any, data: Encoded, rows: list[dict], tokens: int) -> list[Any]:
    """One record per row; for rows with several items, the one with the best score."""
    owner: Any = data.columns.get("row")
    best: list[Any] = [None] * len(rows)
    with evaluating(subject):
        for items, batch in batches(data, tokens, subject.device):
            numbers: Any = items if owner is None else owner[items]
            scores = subject(task, batch).scores
            _require_numbers(task, scores)
            for row, prediction in zip(numbers, kind.predictions(scores, batch, [rows[int(i)] for i in numbers])):
                if best[row] is None or prediction.score > best[row].score:
                    best[row] = prediction
    return best


def _require_numbers(task: str, scores: Any) -> None:
    """Raise on NaN: argmax would silently return the first class."""
    for part in scores if isinstance(scores, tuple | list) else (scores,):
        if isinstance(part, torch.Tensor) and part.isnan().any():
            raise HeadwiseError(f"scores of {task!r} that are NaN", "a model whose weights are all numbers")
