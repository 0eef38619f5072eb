"""Any classify, regress or answer task as prompts for a language model: ``sst2@prompt``, ``xquad_es@prompt+shots2``."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from headwise.errors import HeadwiseError, unknown
from headwise.tasks.prompts.known import Template, known_template
from headwise.tasks.readers.sources import halves
from headwise.tasks.task import Row, Source, Task

NEUTRAL = ("N/A", "...", "[MASK]")
OPTIONS = ("shots", "seed", "phrasing", "chat", "calibrated", "token", "char")
MOST_GRADES = 11  # choices of a task whose labels are grades


@dataclass(frozen=True)
class Halves:
    """A source whose only split serves twice: importance and examples from one half, measured on the other."""

    source: Source
    only: str

    @cached_property
    def parts(self) -> dict[str, list[Row]]:
        return halves(self.source.read(self.only))

    def read(self, split: str) -> list[Row]:
        return self.source.read(split) if split == "test" else list(self.parts[split])

    @property
    def splits(self) -> list[str]:
        return ["train", "dev"]

    @property
    def origin(self) -> str:
        return f"{self.source.origin}; train and dev are halves of its {self.only} rows"


@dataclass(frozen=True)
class Prompts:
    """The rows of a task, each with its prompt."""

    source: Source
    template: Template
    shots: int = 0
    seed: int = 0
    splits: list[str] = field(default_factory=lambda: ["train", "dev"])

    @cached_property
    def examples(self) -> list[tuple[Row, str]]:
        """The rows shown before every prompt, with their answers: each label as often as the others."""
        rows = self.source.read("train") if self.shots else []
        order = random.Random(self.seed).sample(range(len(rows)), len(rows))
        by_label: dict[str, list[int]] = {}
        for i in order:
            by_label.setdefault(self._answer(rows[i]) if "answers" not in rows[i] else "", []).append(i)
        turns = [i for places in zip(*_filled(list(by_label.values()))) for i in places if i is not None]
        chosen = random.Random(self.seed).sample(turns[: self.shots], min(self.shots, len(turns)))
        if len(chosen) < self.shots:
            raise HeadwiseError(f"shots={self.shots}", f"{len(rows)} at most, the training rows")
        return [(rows[i], self._answer(rows[i])) for i in chosen]

    def _answer(self, row: Row) -> str:
        if "answers" in row:
            return row["answers"][0]
        label = row["label"]
        return self.template.word(label) if isinstance(label, str) else f"{label:g}"

    def read(self, split: str) -> list[Row]:
        shown = [row for row, _ in self.examples]
        rows = [row for row in self.source.read(split) if row not in shown] if shown else self.source.read(split)
        return [self.asked(row) for row in rows]

    @property
    def asks(self) -> tuple[str, ...]:
        """What a row must have to be asked, the question first."""
        return tuple(sorted(self.template.fields, key="question".__ne__))

    def asked(self, row: Row) -> Row:
        """A row with its prompt."""
        return {**row, "prompt": self.template.prompt(row, self.examples)}

    def neutral(self) -> tuple[str, ...]:
        """Prompts without content, after the same examples."""
        return tuple(self.template.prompt(self.template.neutral(text), self.examples) for text in NEUTRAL)

    @property
    def origin(self) -> str:
        return self.source.origin


def _filled(columns: list[list[int]]) -> list[list[int | None]]:
    longest = max(map(len, columns), default=0)
    return [[*column, *[None] * (longest - len(column))] for column in columns]


def prompted(
    task: Task,
    template: Template | None = None,
    *,
    shots: int = 0,
    seed: int = 0,
    phrasing: int = 1,
    chat: bool = False,
    calibrated: bool = False,
    score: str = "sum",
    loss_of: str = "margin",
    name: str = "",
) -> Task:
    """A task that a language model answers as it is: its rows as prompts, its labels as choices.

    Args:
        task: with one of the kinds classify, regress (graded by choices that are numbers) or answer (generated).
        template: how rows are written; by default the one known for the task, or a plain one.
        shots: examples from the training split before every prompt, each label as often as the others.
        seed: of the draw of examples.
        phrasing: which of the known templates, from 1.
        chat: as a user's turn in the tokenizer's chat template.
        calibrated: subtract what prompts without content say (Zhao et al. 2021).
        score: how the tokens of a choice add up: sum, token or char.
        loss_of: the loss of a row: margin, nll or choices.
        name: of the new task.

    Example:
        >>> prompted(get("sst2"), shots=4).rows("dev")[0]["prompt"]  # doctest: +SKIP
        'Review: ...'
    """
    kind: Any = task.kind
    form = type(kind).__name__
    if form not in ("Classify", "Regress", "Answer"):
        expected = "a task that classifies, grades or answers"
        raise HeadwiseError(f"no prompt for {task.name!r}, a task of the kind {form}", expected)
    there = task.splits
    source = task.source if "train" in there else Halves(task.source, "dev" if "dev" in there else "test")
    row = source.read("dev")[0]
    pair = row.get("text_b") is not None
    template = template or known_template(task.name, task.language, pair, form == "Answer", phrasing)
    prompts = Prompts(source, template, shots, seed)
    how = {"score": score, "loss_of": loss_of, "neutral": prompts.neutral() if calibrated else ()}
    made = _kind(task, template, chat, how)
    return Task(name or f"{task.name}@prompt", made, prompts, task.metric, task.language, {}, task.note)


def _kind(task: Task, template: Template, chat: bool, how: dict[str, Any]) -> Any:
    from headwise.tasks.kinds.choice import Choice, Grade
    from headwise.tasks.kinds.generation import Generation
    from headwise.tasks.kinds.reading import Reading

    kind, reading = task.kind, Reading(chat=chat, delimiter="" if chat else " ")
    if type(kind).__name__ == "Answer":
        return Generation(reading=reading)
    if type(kind).__name__ == "Regress":
        values = _values(kind.low, kind.high)  # type: ignore[attr-defined]
        names = tuple(f"{value:g}" for value in values)
        return Grade(names, names, values=values, reading=reading, **{**how, "loss_of": "choices"})
    labels = task.ready().kind.labels
    return Choice(labels, tuple(map(template.word, labels)), reading=reading, **how)


def _values(low: float, high: float) -> tuple[float, ...]:
    """Grades to choose from: whole numbers where they are few."""
    if float(low).is_integer() and float(high).is_integer() and high - low < MOST_GRADES:
        return tuple(float(value) for value in range(int(low), int(high) + 1))
    return tuple(round(low + i * (high - low) / (MOST_GRADES - 1), 6) for i in range(MOST_GRADES))


def options_of(text: str) -> dict[str, Any]:
    """What stands behind the @ of a task's name, as arguments of `prompted`.

    Example:
        >>> options_of("prompt+shots4+calibrated+char")
        {'shots': 4, 'calibrated': True, 'score': 'char'}
    """
    first, *rest = text.split("+")
    if first != "prompt":
        raise HeadwiseError(f"@{text}", "@prompt, maybe with options", "sst2@prompt+shots4+seed1")
    options: dict[str, Any] = {}
    for option in rest:
        match = re.fullmatch(r"([a-z]+)(\d*)", option)
        word = match[1] if match else option
        if match is None or word not in OPTIONS or (word in OPTIONS[:3]) != bool(match[2]):
            raise unknown("option of a prompt", option, ("shots4", "seed1", "phrasing2", *OPTIONS[3:]))
        options |= {"score": word} if word in ("token", "char") else {word: int(match[2]) if match[2] else True}
    return options
