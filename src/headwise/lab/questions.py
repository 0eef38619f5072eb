"""A text as each task reads it: its row, its batch, and the tasks that share one forward pass.

Legend: B examples, T tokens, L layers, H heads, D head size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from headwise.errors import HeadwiseError, unknown
from headwise.models.batching import Encoded
from headwise.models.language import LanguageModel
from headwise.models.multitask import MultiTaskModel
from headwise.models.subject import Batch, Subject
from headwise.tasks.kinds.choice import Choice, Grade, Prompted
from headwise.tasks.kinds.generation import Continuation
from headwise.tasks.predictions import as_rows
from headwise.tasks.task import Row, Task

LONGEST = 4000  # characters of a text
CHOICES = 16
CLOSE = ("zero", "mean", "resample")  # an optimal constant takes minutes to fit
SEEDS = 2**31


@dataclass(frozen=True)
class Ask:
    """One or two texts and the gates under which they are read."""

    texts: tuple[str, str]
    choices: tuple[str, ...]  # continuations between which a language model is to choose
    gates: tuple[tuple[float, ...], ...]  # (layers, heads)
    close: str
    seed: int  # of what resampling draws

    @property
    def question(self) -> tuple[tuple[str, str], tuple[str, ...]]:
        """What is read, independent of the gates."""
        return self.texts, self.choices

    @property
    def closed(self) -> int:
        """The number of heads that are not fully open."""
        return sum(gate < 1 for row in self.gates for gate in row)

    @classmethod
    def read(cls, data: Any, shape: tuple[int, int]) -> Ask:
        """Parse a request from a page's JSON; raise if it is anything else."""
        if not isinstance(data, Mapping):
            raise HeadwiseError(f"a {type(data).__name__}", "an object with text and gates")
        close, seed = data.get("close", "zero"), data.get("seed", 0)
        if close not in CLOSE:
            raise unknown("reference of closed heads", close, CLOSE)
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < SEEDS:
            raise HeadwiseError(f"seed {seed!r}"[:60], f"a whole number from 0 to {SEEDS - 1}")
        choices = data.get("choices") or []
        if not isinstance(choices, list) or len(choices) > CHOICES:
            raise HeadwiseError("choices", f"a list of {CHOICES} texts at most")
        texts = text_of(data.get("text", ""), "text"), text_of(data.get("other", ""), "second text")
        return cls(texts, tuple(text_of(c, "choice") for c in choices), gates_of(data.get("gates"), shape), close, seed)


def text_of(value: Any, name: str) -> str:
    """Check a text and its length."""
    if not isinstance(value, str):
        raise HeadwiseError(f"a {name} that is a {type(value).__name__}", "a text")
    if len(value) > LONGEST:
        raise HeadwiseError(f"a {name} of {len(value)} characters", f"{LONGEST} at most")
    return value.replace("\x00", "").encode("utf-8", "replace").decode()  # lone halves of pairs would end tokenizers


def gates_of(value: Any, shape: tuple[int, int]) -> tuple[tuple[float, ...], ...]:
    """Gates from 0 to 1 for every head (default: all open)."""
    layers, heads = shape
    if value is None:
        return ((1.0,) * heads,) * layers
    rows = value if isinstance(value, list) and len(value) == layers else ()
    whole = [row for row in rows if isinstance(row, list) and len(row) == heads]
    if len(whole) != layers or not all(_is_gate(gate) for row in whole for gate in row):
        raise HeadwiseError("gates of another shape", f"{layers} rows of {heads} numbers from 0 to 1")
    return tuple(tuple(float(gate) for gate in row) for row in whole)


def _is_gate(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


NEXT = "next word"  # what a language model says without any task


@dataclass
class Asked:
    """One task's reading of a text."""

    task: str
    kind: Any
    row: Row
    data: Encoded
    problem: str = ""  # why it has no answer

    def batch(self, subject: Subject, copies: int = 1) -> Batch:
        """All its items repeated, to read them under several gates in one forward pass."""
        items = np.tile(np.arange(len(self.data)), copies)
        return {name: tensor.to(subject.device) for name, tensor in self.data.batch(items).items()}


@dataclass
class Question:
    """A text for all tasks; each group of tasks shares one forward pass of the encoder."""

    groups: list[list[Asked]]
    problems: dict[str, str]
    ids: list[int] | None = None  # of a language model: the text as it is continued

    def of(self, task: str) -> Asked:
        """A task's reading; raise if the task cannot read this text."""
        for asked in (asked for group in self.groups for asked in group):
            if asked.task == task:
                return asked
        raise HeadwiseError(self.problems.get(task, f"no task {task!r}"), "a task that answers this text")


def question(subject: Subject, texts: tuple[str, str], choices: Sequence[str]) -> Question:
    """How every task of a subject reads one or two texts."""
    groups: dict[Any, list[Asked]] = {}
    problems = {}
    for name, task in subject.tasks.items():
        try:
            asked = _asked(subject, task, row_of(task, texts, choices))
            groups.setdefault(_shared(subject, asked), []).append(asked)
        except HeadwiseError as error:
            problems[name] = str(error)
    ids = _ids(subject, texts[0]) if isinstance(subject, LanguageModel) else None
    return Question(list(groups.values()), problems, ids)


def row_of(task: Task, texts: tuple[str, str], choices: Sequence[str] = ()) -> Row:
    """One or two texts as an unlabelled row of a task; raise if the task needs something else."""
    kind: Any = task.kind
    if not texts[0].strip():
        raise HeadwiseError("no text")
    if isinstance(kind, Prompted):
        return _prompt(task, kind, texts, choices)
    asks = getattr(kind, "asks", None)
    if asks is None:
        raise HeadwiseError(f"the kind {type(kind).__name__} cannot be asked", "a task with predictions")
    if asks[0] == "path":
        raise HeadwiseError("reads pictures", "a text")  # a path from the page would be one to any file
    if asks[0] == "question" and not texts[1].strip():
        raise HeadwiseError("no context", "the question as text, the context as second text")
    other = texts[1] if len(asks) > 1 and texts[1].strip() else None
    return kind.unanswered(as_rows(asks, [(texts[0], other) if other else _one(asks[0], texts[0])])[0])


def _one(field: str, text: str) -> Any:
    return text.split() if field == "words" else text


def _prompt(task: Task, kind: Any, texts: tuple[str, str], choices: Sequence[str]) -> Row:
    template, given = getattr(task.source, "template", None), [choice for choice in choices if choice.strip()]
    prompt = texts[0]
    if template is not None:
        fields = {"text": texts[0], "text_b": texts[1] or None, "question": texts[0], "context": texts[1] or None}
        prompt = template.prompt(fields, task.source.examples)  # type: ignore[attr-defined]
    if isinstance(kind, Choice):
        options = list(kind.choices) or given
        if len(options) < 2:
            raise HeadwiseError("no choices", "two choices or more")
        return {"prompt": prompt, "choices": options, "label": kind.values[0] if isinstance(kind, Grade) else 0}
    if isinstance(kind, Continuation):
        if not given:
            raise HeadwiseError("no continuation", "it as the first choice")
        return {"prompt": prompt, "target": given[0]}
    return {"prompt": prompt, "answers": given[:1] or ["?"]}


def _asked(subject: Subject, task: Task, row: Row) -> Asked:
    kind: Any = task.kind
    columns = kind.encode([row], subject.tokenizer, subject.max_length)
    if int(np.sum(columns.get("cut", 0))):
        raise HeadwiseError(f"longer than {subject.max_length} sub-words", "a shorter text")
    pad = getattr(subject.tokenizer, "pad_token_id", None) or 0
    return Asked(task.name, kind, row, Encoded(columns, pad, rows=1))


def _shared(subject: Subject, asked: Asked) -> Any:
    """A key of tasks that share a forward pass: the same sub-words, no per-task factors."""
    if not isinstance(subject, MultiTaskModel) or subject.scales_of(asked.task) is not None:
        return asked.task
    batch = asked.batch(subject)
    names = [name for name in (*subject.input_names, "window") if name in batch]
    tensors = [batch[name] for name in names if name != "token_type_ids" or bool(batch[name].any())]
    return tuple((tuple(tensor.shape), tuple(tensor.flatten().tolist())) for tensor in tensors)


def _ids(subject: Any, text: str) -> list[int] | None:
    if not text.strip() or subject.reader.form == "seq2seq":
        return None
    ids = subject.tokenizer(text, verbose=False)["input_ids"]
    if len(ids) > subject.max_length:
        raise HeadwiseError(f"a text of {len(ids)} tokens", f"{subject.max_length} at most")
    return ids


def scores_of(subject: Any, group: Sequence[Asked], copies: int = 1) -> list[tuple[Asked, Batch, Any]]:
    """The scores of a group of tasks from one forward pass."""
    batches = [asked.batch(subject, copies) for asked in group]
    if len(group) == 1 or not isinstance(subject, MultiTaskModel):
        return [(asked, batch, subject(asked.task, batch).scores) for asked, batch in zip(group, batches)]
    hidden = subject.hidden(batches[0])
    return [(asked, batch, subject.head(asked.task)(hidden, batch)) for asked, batch in zip(group, batches)]


def next_logits(subject: Any, ids: Sequence[int], copies: int = 1) -> torch.Tensor:
    """Logits of the next token of a causal model, or of the first mask of a masked one, (B, words)."""
    rows = torch.tensor([list(ids)] * copies, device=subject.device)
    inputs = {"input_ids": rows, "attention_mask": torch.ones_like(rows)}
    place = rows.shape[1] - 1
    if subject.reader.form == "masked":
        masks = [i for i, each in enumerate(ids) if each == subject.tokenizer.mask_token_id]
        if not masks:
            raise HeadwiseError("no masked word", f"{subject.tokenizer.mask_token} in place of one word")
        place = masks[0]
    return subject.model(**inputs).logits[:, place].float()
