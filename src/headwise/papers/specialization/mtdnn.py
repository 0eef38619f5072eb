"""An MT-DNN-style baseline (Liu et al. 2019): each task has its dropout, pairs get a stochastic answer network.

What differs from the original is said here: the optimizer is AdamW in place of Adamax, and QNLI stays a classification
in place of a ranking of sentences.

Legend: B examples, T tokens, E width, K reasoning steps, C classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from headwise.errors import HeadwiseError
from headwise.tasks.columns import Columns, Ragged
from headwise.tasks.kinds.classify import Classify
from headwise.tasks.task import Hidden, Row, Task
from headwise.training.plan import Plan

PLAN = Plan(epochs=5, lr=5e-5, batch_size=32, warmup=0.1, clip=1.0, sampling="proportional")
DROPOUT = {"mnli": 0.3, "cola": 0.05}  # 0.1 for every other task


def prepare(tasks: Iterable[Task | str], dropout: Mapping[str, float] | None = None) -> list[Task]:
    """The tasks with MT-DNN's output modules: pairs to classify get a `SAN`, and every task its own dropout.

    Args:
        tasks: tasks, or their names in the catalog.
        dropout: by task name; `DROPOUT` where not given.

    Example:
        >>> model = MultiTaskModel.from_pretrained("bert-base-uncased", mtdnn.prepare(["mnli", "cola", "stsb"]))
        >>> fit(model, mtdnn.PLAN)
    """
    from headwise import tasks as catalog

    rates = DROPOUT if dropout is None else dropout
    resolved = [catalog.get(task) if isinstance(task, str) else task for task in tasks]
    return [_prepared(task.ready(), rates.get(task.name, 0.1)) for task in resolved]


def _prepared(task: Task, rate: float) -> Task:
    if not hasattr(task.kind, "dropout"):
        raise HeadwiseError(
            f"task {task.name!r}, a {type(task.kind).__name__} without dropout", "a kind with an output dropout"
        )
    if type(task.kind) is Classify and task.rows("train")[0].get("text_b") is not None:
        return replace(task, kind=SAN(task.kind.labels, rate, task.kind.inner))
    return replace(task, kind=replace(task.kind, dropout=rate))  # type: ignore[type-var]


@dataclass(frozen=True)
class SAN(Classify):
    """One label for a pair of texts, predicted in several steps of reading the first text given the second."""

    steps: int = 5

    def check(self, row: Row) -> None:
        super().check(row)
        if row.get("text_b") is None:
            raise HeadwiseError("a row without text_b", "a pair of texts", "Classify, which takes single texts")

    def encode(self, rows: Sequence[Row], tokenizer: Any, max_length: int) -> Columns:
        """Adds ``side``: 0 for sub-words of the first text, 1 for the second, -1 for what stands between."""
        texts, others = [row["text"] for row in rows], [row["text_b"] for row in rows]
        coded = tokenizer(texts, others, truncation=True, max_length=max_length, verbose=False)
        sides = [[-1 if s is None else s for s in coded.sequence_ids(i)] for i in range(len(rows))]
        return {**super().encode(rows, tokenizer, max_length), "side": Ragged.of(sides, dtype=np.int8)}

    def head(self, hidden: int) -> nn.Module:
        return AnswerNetwork(hidden, len(self.labels), self.steps, self.dropout)


class AnswerNetwork(nn.Module):
    """The stochastic answer network (Liu et al. 2018): its scores are the logarithm of the steps' mean probabilities.

    The state starts as a weighted sum of the second text. Each step reads the first text as the state directs and
    moves the state by a GRU; state and reading together predict the class. In training every step's prediction is
    dropped at random, one at least staying.
    """

    def __init__(self, hidden: int, outputs: int, steps: int = 5, dropout: float = 0.1):
        super().__init__()
        self.steps, self.rate = steps, dropout
        self.dropout = nn.Dropout(dropout)
        self.summary = nn.Linear(hidden, 1)
        self.attend = nn.Linear(hidden, hidden, bias=False)
        self.move = nn.GRUCell(hidden, hidden)
        self.out = nn.Linear(4 * hidden, outputs)

    def forward(self, hidden: Hidden, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        states_BTE = self.dropout(hidden.states)
        first_BT, second_BT = batch["side"] == 0, batch["side"] == 1
        state_BE = _mix(self.summary(states_BTE).squeeze(-1), states_BTE, second_BT)
        steps = []
        for _ in range(self.steps):
            wanted_BT = torch.einsum("be,bte->bt", self.attend(state_BE), states_BTE)
            read_BE = _mix(wanted_BT, states_BTE, first_BT)
            state_BE = self.move(read_BE, state_BE)
            pair = torch.cat([state_BE, read_BE, (state_BE - read_BE).abs(), state_BE * read_BE], 1)
            steps.append(self.out(self.dropout(pair)))
        return self._mean(torch.stack(steps, 1).float())

    def _mean(self, scores_BKC: torch.Tensor) -> torch.Tensor:
        keep_BK = torch.ones_like(scores_BKC[..., 0])
        if self.training:
            keep_BK = torch.bernoulli(keep_BK * (1 - self.rate))
            always = torch.randint(self.steps, (len(keep_BK), 1), device=keep_BK.device)
            keep_BK = keep_BK.scatter(1, always, 1.0)
        log_keep = keep_BK.log() - keep_BK.sum(1, keepdim=True).log()
        return (scores_BKC.log_softmax(-1) + log_keep[..., None]).logsumexp(1)


def _mix(scores_BT: torch.Tensor, states_BTE: torch.Tensor, among_BT: torch.Tensor) -> torch.Tensor:
    """Mean of the states weighted by softmax over the tokens allowed; all zeros where there are none."""
    weights = scores_BT.float().masked_fill(~among_BT, -1e30).softmax(1) * among_BT
    return torch.einsum("bt,bte->be", weights.to(states_BTE.dtype), states_BTE)
