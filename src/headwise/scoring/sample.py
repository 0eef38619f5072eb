"""The input of estimators: examples of a task or user batches, the losses of a subject, and the time it will take."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from headwise.errors import HeadwiseError
from headwise.heads.gates import Heads
from headwise.measuring.evaluate import to_device
from headwise.measuring.references import Reference
from headwise.measuring.replay import Replay
from headwise.models.batching import Encoded, Order, Stream
from headwise.models.plain import examples_of, moved
from headwise.models.processes import ALONE, Team
from headwise.models.subject import Batch, Subject
from headwise.scoring.result import Importance, Moments

Log = Callable[[str], None]
WORTH = 10.0  # seconds that make a log line worthwhile, and seconds between lines


def to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class Meter:
    """Counts forwards of examples against the number that an estimator needs."""

    def __init__(self, name: str = "", log: Log = to_stderr, clock: Callable[[], float] = time.perf_counter):
        self.name, self.log, self.clock = name, log, clock
        self.total, self.count, self.said = 0, 0, False

    def start(self, forwards: int, examples: int, seconds: float) -> None:
        """Log the expected time: forwards per example, and the ``seconds`` of one forward over all examples."""
        self.total, self.count = forwards * examples, 0
        self.begun = self.last = self.clock()
        if self.said or forwards * seconds < WORTH:
            return
        self.said = True
        self.log(f"{self.name}: {forwards} forwards of {examples} examples, about {duration(forwards * seconds)}")

    def tick(self, examples: int) -> None:
        """Count a forward of some examples."""
        self.count += examples
        if self.total and self.clock() - self.last > WORTH and self.count < self.total:
            self.last = self.clock()
            left = (self.last - self.begun) / self.count * (self.total - self.count)
            self.log(f"{self.name}: {100 * self.count / self.total:.0f} %, about {duration(left)} left")


def duration(seconds: float) -> str:
    """Seconds, minutes or hours.

    Example:
        >>> duration(42), duration(253), duration(9000)
        ('42 s', '4 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


CHUNK = 4096  # examples sorted by length together


class Part(NamedTuple):
    """A batch of a sample."""

    size: int
    batch: Any
    reference: torch.Tensor | None
    first: int  # index of its first example over all processes
    counts: bool = True  # False if another process counts it and this one only takes part in its forwards


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
    reference: Reference | None = None  # the output that heads are compared with; None is zero
    meter: Meter = field(default_factory=Meter, repr=False)
    replay: Replay | None = field(default=None, repr=False)  # of the batch at hand, where one is
    team: Team = ALONE  # the processes that its batches are dealt out to
    again: bool = False  # layers run again in backward passes, to keep little in memory

    @property
    def examples(self) -> int:
        return len(self.items)

    def batches(self) -> Iterator[Part]:
        """Batches of similar lengths in random order, a few thousand examples at a time, so every prefix is fair."""
        for (first, items), counts in self.team.share(self._plan()):
            batch = to_device(self.data.batch(items), self.model.device)
            yield Part(len(items), batch, self.reference(items, batch) if self.reference else None, first, counts)

    def _plan(self) -> Iterator[tuple[int, np.ndarray]]:
        """The items of every batch, with the number of items before it."""
        first = 0
        for start in range(0, len(self.items), CHUNK):
            chunk = self.items[start : start + CHUNK]
            batches = Order(self.data.lengths[chunk], tokens=self.tokens).plain()
            for number in np.random.default_rng([self.seed, 5, start]).permutation(len(batches)):
                yield first, chunk[batches[number]]
                first += len(batches[number])

    @property
    def alone(self) -> Sample:
        """All of its batches, whatever other processes do."""
        return replace(self, team=ALONE)

    def groups(self, size: int) -> Iterator[tuple[int, Sample, bool]]:
        """This process's parts of ``size`` examples: their numbers, the parts, and whether they count."""
        starts = range(0, len(self.items), size)
        for start, counts in self.team.share(starts):
            yield start // size, replace(self.alone, items=self.items[start : start + size]), counts

    def stream(self, size: int) -> Iterator[tuple[np.ndarray, Batch]]:
        """Endless batches, with the indices of their examples in the sample."""
        stream = Stream(self.data, Order(self.data.lengths[self.items], size), (self.seed, 5))
        while True:
            places = stream.next()
            yield places, to_device(self.data.batch(self.items[places]), self.model.device)

    def losses(
        self, batch: Any, gates: torch.Tensor | None = None, reference: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Each example's loss, (B,), under gates (L, H) or (B, L, H)."""

        def run(heads: Heads) -> torch.Tensor:
            if gates is None:
                return self.model.losses(self.task, batch)
            with self.model.gated(gates, reference, batch, heads):
                return self.model.losses(self.task, batch)

        losses = run(self.heads) if self.replay is None else self.replay.run(gates, run)
        self.meter.tick(len(losses))
        return losses

    def replaying(self) -> Sample:
        """The same, for many forwards of each batch: inside ``replay.batch()`` they start at the layer that changes."""
        return replace(self, replay=Replay(self.model.backbone, self.heads))

    def announce(self, by: str, forwards: int) -> None:
        """Time one forward and log the expected time of the estimator."""
        first = next(iter(self.batches()), None)
        if first is not None:
            size, batch = first.size, first.batch
            with torch.no_grad():
                started = time.perf_counter()
                self.losses(batch)
            self.meter.name = by
            self.meter.start(forwards, self.examples, (time.perf_counter() - started) * self.examples / size)


@dataclass(frozen=True)
class Loaded(Sample):
    """A subject and user batches, which are not rearranged; ``items`` are indices of examples."""

    loader: Iterable[Any] = ()
    twins: Iterable[Any] | None = None  # batches whose head outputs are the reference

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
        for (first, batch, other), counts in self.team.share(self._paired()):
            batch = moved(batch, self.model.device)
            reference = self.reference(np.empty(0, int), batch) if self.reference else None
            if self.twins is not None:
                reference = self._twin(batch, other)
            yield Part(examples_of(batch), batch, reference, first, counts)

    def _paired(self) -> Iterator[tuple[int, Any, Any]]:
        """Every batch with its twin, and how many examples come before."""
        others, first = iter(self.twins or ()), 0
        for batch in self._taken():
            yield first, batch, next(others, None)
            first += examples_of(batch)

    def _twin(self, batch: Any, other: Any) -> torch.Tensor:
        from headwise.measuring.references import head_outputs

        if other is None or examples_of(other) != examples_of(batch):
            raise HeadwiseError("fewer twins than examples", "a batch of twins for every batch, of as many examples")
        with torch.no_grad():
            return head_outputs(self.model, self.task, moved(other, self.model.device))[1]

    def groups(self, size: int) -> Iterator[tuple[int, Sample, bool]]:
        for (number, batch), counts in self.team.share(enumerate(self._taken())):
            yield number, replace(self.alone, loader=[batch]), counts

    def stream(self, size: int) -> Iterator[tuple[np.ndarray, Any]]:
        while True:
            seen = 0
            for part in self.alone.batches():
                yield np.arange(seen, seen + part.size), part.batch
                seen += part.size


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """No parameter requires a gradient inside the block, so backward passes do not write to .grad."""
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
    enough: Callable[[Moments, int], bool] | None = None,
) -> Importance:
    """The mean over examples of ``measure(batch)``, (B, L, H).

    With ``score``, measurements are signed (the loss that closing a head adds), and scores are the mean of ``score`` of
    them. ``enough`` may end the run early.
    """
    team, moments, signed = sample.team, Moments(sample.heads.shape), Moments(sample.heads.shape)
    for part in sample.batches():
        values = measure(part.batch, part.reference)
        if part.counts:
            moments.add(values if score is None else score(values), first=part.first)
        if part.counts and score is not None:
            signed.add(values, first=part.first)
        if enough is not None and enough(whole := moments.joined(team), whole.rows):
            break
    moments = moments.joined(team)
    return moments.result(sample.task, by, moments.rows, signed.joined(team) if score is not None else None)
