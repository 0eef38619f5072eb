"""Head gates g that train and a binary mask P over them, as in MESH: a head's output is scaled by g · P.

Legend: S sets of gates (one for all pairs, or one per task, language or pair), N pairs, L layers, H heads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import nn

from headwise.errors import unknown
from headwise.heads.gates import Heads
from headwise.scoring.concrete import EDGE, START, draw, settle, under
from headwise.tasks.languages import key
from headwise.tasks.task import Task

if TYPE_CHECKING:
    from headwise.models.multitask import MultiTaskModel

FORMS = ("sigmoid", "concrete")


class HeadGates(nn.Module):
    """The gates and the mask of every task-language pair of a model.

    Example:
        >>> gates = HeadGates(Heads.of(model.encoder), model.tasks.values(), "sigmoid", each="language")
        >>> gates.close({"xnli_es": mask})
        >>> with gates.on(model):
        ...     model("xnli_es", batch).loss.mean().backward()
    """

    open: torch.Tensor

    def __init__(self, heads: Heads, tasks: Iterable[Task], form: str | None = None, each: str = "shared"):
        """``form`` is sigmoid, concrete (drawn in training, settled in evaluation), or None: all 1, the mask alone."""
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
        self.register_buffer("open", torch.ones(len(self.keys), *heads.shape))

    def values(self, task: str, drawn: bool = False) -> torch.Tensor:
        """A pair's gates, (L, H); ``drawn`` anew where they are concrete."""
        place = self._place(task)
        if self.logits is None:
            return self.open[place]
        logits = self.logits[self.sets.index(self.keys[task])]
        if self.form == "sigmoid":
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
        """Inside, the model runs under its pair's gates."""
        with under(model, self.heads, self.values):
            yield

    def newcomer(self, task: Task) -> HeadGates:
        """Gates for a pair never seen: those of its set, or the mean of all where it has none.

        Its mask is that of its language or task where masks are so, else what all pairs have closed.
        """
        made = HeadGates(self.heads, [task], self.form, self.each).to(self.open.device)
        if self.logits is not None and made.logits is not None:
            alike = key(task, self.each) in self.sets
            found = self.logits[self.sets.index(key(task, self.each))] if alike else self.logits.mean(0)
            made.logits.data.copy_(found.detach())
        kin = [n for n, own in self.tasks.items() if key(own, self.masked_by) == key(task, self.masked_by)]
        made.open[0] = torch.stack([self.open[self._place(name)] for name in kin or self.keys]).amax(0)
        return made

    def _place(self, task: str) -> int:
        if task not in self.keys:
            raise unknown("pair with gates", task, self.keys)
        return list(self.keys).index(task)
