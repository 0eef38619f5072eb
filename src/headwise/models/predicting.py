"""Predictions for inputs without labels, for every subject whose kinds support them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from headwise.errors import HeadwiseError, unknown
from headwise.heads.modules import evaluating
from headwise.models.batching import Encoded, batches
from headwise.models.device import Budget
from headwise.models.processes import Team
from headwise.tasks.predictions import Predictions, Predicts, as_rows, own_columns
from headwise.tasks.prompts.prompted import Prompts

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
    found = Predictions()
    for start in range(0, len(rows), CHUNK):
        found += _chunk(subject, task, kind, rows[start : start + CHUNK], tokens)
    return found


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
    owner = data.columns.get("row")
    best: list[Any] = [None] * len(rows)
    with evaluating(subject):
        for items, batch in batches(data, tokens, subject.device):
            numbers = items if owner is None else owner[items]
            scores = subject(task, batch).scores
            _require_numbers(task, scores)
            for row, found in zip(numbers, kind.predictions(scores, batch, [rows[int(i)] for i in numbers])):
                if best[row] is None or found.score > best[row].score:
                    best[row] = found
    return best


def _require_numbers(task: str, scores: Any) -> None:
    """Raise on NaN: argmax would silently return the first class."""
    for part in scores if isinstance(scores, tuple | list) else (scores,):
        if isinstance(part, torch.Tensor) and part.isnan().any():
            raise HeadwiseError(f"scores of {task!r} that are NaN", "a model whose weights are all numbers")
