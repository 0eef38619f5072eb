"""What estimators work on: examples of a task, or batches of one's own, and the losses of a subject on them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from headwise.errors import HeadwiseError
from headwise.heads.gates import Heads
from headwise.measuring.evaluate import to_device
from headwise.measuring.references import Reference
from headwise.models.batching import Encoded, Order, Stream
from headwise.models.plain import examples_of, moved
from headwise.models.subject import Batch, Subject
from headwise.scoring.meter import Meter
from headwise.scoring.moments import Moments
from headwise.scoring.result import Importance

CHUNK = 4096  # examples sorted by length together
Part = tuple[int, Any, "torch.Tensor | None"]  # a batch's number of examples, the batch, and its reference


@dataclass(frozen=True)
class Sample:
    """A subject, a task and encoded examples in random order."""

    model: Subject
    task: str
    data: Encoded
    items: np.ndarray
    heads: Heads
    tokens: int
    seed: int
    reference: Reference | None = None  # what heads are compared with; None is zero
    meter: Meter = field(default_factory=Meter, repr=False)

    @property
    def examples(self) -> int:
        return len(self.items)

    def batches(self) -> Iterator[Part]:
        """Batches of similar lengths in random order, a few thousand examples at a time, so that any part is fair."""
        for start in range(0, len(self.items), CHUNK):
            chunk = self.items[start : start + CHUNK]
            batches = Order(self.data.lengths[chunk], tokens=self.tokens).plain()
            for number in np.random.default_rng([self.seed, 5, start]).permutation(len(batches)):
                part = chunk[batches[number]]
                batch = to_device(self.data.batch(part), self.model.device)
                yield len(part), batch, self.reference(part, batch) if self.reference else None

    def groups(self, size: int) -> Iterator[Sample]:
        """The sample in parts of ``size`` examples."""
        for start in range(0, len(self.items), size):
            yield replace(self, items=self.items[start : start + size])

    def stream(self, size: int) -> Iterator[tuple[np.ndarray, Batch]]:
        """Batches without end, with the places of their examples in the sample."""
        stream = Stream(self.data, Order(self.data.lengths[self.items], size), (self.seed, 5))
        while True:
            places = stream.next()
            yield places, to_device(self.data.batch(self.items[places]), self.model.device)

    def losses(
        self, batch: Any, gates: torch.Tensor | None = None, reference: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Each example's loss, (B,), under gates (L, H) or (B, L, H)."""
        if gates is None:
            losses = self.model.losses(self.task, batch)
        else:
            with self.model.gated(gates, reference, batch, self.heads):
                losses = self.model.losses(self.task, batch)
        self.meter.tick(len(losses))
        return losses

    def announce(self, by: str, forwards: int) -> None:
        """Say how long an estimator of so many forwards takes, by the time of one."""
        first = next(iter(self.batches()), None)
        if first is not None:
            size, batch, _ = first
            with torch.no_grad():
                started = time.perf_counter()
                self.losses(batch)
            self.meter.name = by
            self.meter.start(forwards, self.examples, (time.perf_counter() - started) * self.examples / size)


@dataclass(frozen=True)
class Loaded(Sample):
    """A subject and batches of one's own, which stay as they are; ``items`` number the examples to take."""

    loader: Iterable[Any] = ()
    twins: Iterable[Any] | None = None  # batches of other examples, whose head outputs are the reference

    @cached_property
    def examples(self) -> int:  # type: ignore[override]
        return sum(examples_of(batch) for batch in self._taken())

    def _taken(self) -> Iterator[Any]:
        seen = 0
        for batch in self.loader:
            if seen >= len(self.items):
                break
            seen += examples_of(batch)
            yield batch

    def batches(self) -> Iterator[Part]:
        others = None if self.twins is None else iter(self.twins)
        for batch in self._taken():
            batch = moved(batch, self.model.device)
            reference = self.reference(np.empty(0, int), batch) if self.reference else None
            if others is not None:
                reference = self._twin(batch, next(others, None))
            yield examples_of(batch), batch, reference

    def _twin(self, batch: Any, other: Any) -> torch.Tensor:
        from headwise.measuring.references import head_outputs

        if other is None or examples_of(other) != examples_of(batch):
            raise HeadwiseError("fewer twins than examples", "a batch of twins for every batch, of as many examples")
        with torch.no_grad():
            return head_outputs(self.model, self.task, moved(other, self.model.device))[1]

    def groups(self, size: int) -> Iterator[Sample]:
        for batch in self._taken():
            yield replace(self, loader=[batch])

    def stream(self, size: int) -> Iterator[tuple[np.ndarray, Any]]:
        while True:
            seen = 0
            for count, batch, _ in self.batches():
                yield np.arange(seen, seen + count), batch
                seen += count


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """No parameter asks for a gradient inside: backward passes cost activations only and touch no .grad."""
    asked = [p for p in model.parameters() if p.requires_grad]
    for parameter in asked:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in asked:
            parameter.requires_grad_(True)


def averaged(
    sample: Sample,
    by: str,
    measure: Callable[[Any, torch.Tensor | None], torch.Tensor],
    score: Callable[[torch.Tensor], torch.Tensor] | None = None,
    enough: Callable[[Moments, int], bool] = lambda moments, seen: False,
) -> Importance:
    """The mean over examples of what is measured of a batch, (B, L, H).

    With ``score``, what is measured has a sign, the loss that closing a head adds; its scores are the mean of
    ``score`` of it. ``enough`` may end the run early.
    """
    moments, signed, seen = Moments(sample.heads.shape), Moments(sample.heads.shape), 0
    for size, batch, reference in sample.batches():
        values = measure(batch, reference)
        moments.add(values if score is None else score(values))
        if score is not None:
            signed.add(values)
        seen += size
        if enough(moments, seen):
            break
    return moments.result(sample.task, by, seen, signed if score is not None else None)
