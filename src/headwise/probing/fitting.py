"""Fit probes for many vectors at once, as many together as memory allows.

Legend: P vectors of a sentence (heads, layers or any other), N sentences, D dimensions.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwise.errors import HeadwiseError
from headwise.probing.features import free_memory
from headwise.registry import Registry

SIDES = ("train", "dev", "test")
PRINTED = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)  # Jo and Myaeng 2020, A.2
RELEASED = PRINTED[:4]  # what their code runs through
CHUNK = 1 << 28  # bytes of one chunk of heads on a CPU: its caches like small ones


@dataclass(frozen=True)
class Labels:
    """Classes (integers) or grades (0 to 1) of the three sides."""

    train: np.ndarray
    dev: np.ndarray
    test: np.ndarray
    classes: int  # 0: grades

    @property
    def graded(self) -> bool:
        return self.classes == 0

    def on(self, side: str, device: torch.device) -> Tensor:
        return torch.from_numpy(getattr(self, side)).to(device)


@dataclass(frozen=True)
class Vectors:
    """The vectors of the three sides, ``(P, N, D)`` each, in any precision, on any device or disk."""

    train: Tensor
    dev: Tensor
    test: Tensor

    def __len__(self) -> int:
        return len(self.train)

    def part(self, which: slice, device: torch.device) -> Vectors:
        """Some of the P vectors, as float32 on a device."""
        return Vectors(*(x[which].to(device, torch.float32) for x in (self.train, self.dev, self.test)))

    def standardized(self) -> Vectors:
        """Every dimension with mean 0 and standard deviation 1 on the training rows; constant ones become 0."""
        mean, spread = self.train.mean(1, keepdim=True), self.train.std(1, keepdim=True, correction=0)
        spread = spread.where(spread > 1e-6 * mean.abs(), torch.inf)  # what rounding leaves of a constant
        return Vectors(*((x - mean) / spread for x in (self.train, self.dev, self.test)))


@dataclass(frozen=True)
class Fit:
    """The results for P vectors."""

    dev: Tensor  # (P,)
    test: Tensor  # (P,)
    l2: Tensor  # (P,)
    predictions: Tensor = field(repr=False)  # (P, N) on the test side: classes, or grades from 0 to 1
    more: dict[str, Tensor] = field(default_factory=dict, repr=False)  # (P,) each
    unsettled: int = 0  # converged probes that were stopped before their optimum
    beside: tuple[Fit, ...] = field(default=(), repr=False)  # the same with shuffled labels, each set of them

    PARTS = ("dev", "test", "l2", "predictions")

    def map(self, change: Callable[[Tensor], Tensor]) -> Fit:
        """Apply a function to every tensor."""
        parts = {name: change(getattr(self, name)) for name in self.PARTS}
        more = {name: change(tensor) for name, tensor in self.more.items()}
        return replace(self, **parts, more=more, beside=tuple(each.map(change) for each in self.beside))

    def beyond(self, shuffled: tuple[Fit, ...]) -> Fit:
        """This fit with its gain over the mean of fits to shuffled labels."""
        baseline = torch.stack([each.test for each in shuffled]).mean(0)
        more = {"control": baseline, "selectivity": self.test - baseline}
        return replace(self, more=self.more | more, beside=shuffled)

    @classmethod
    def joined(cls, fits: list[Fit]) -> Fit:
        parts = {name: torch.cat([getattr(fit, name) for fit in fits]) for name in cls.PARTS}
        more = {name: torch.cat([fit.more[name] for fit in fits]) for name in fits[0].more}
        return cls(**parts, more=more, unsettled=sum(fit.unsettled for fit in fits), beside=())


Protocol = Callable[..., Fit]
protocols: Registry[Protocol] = Registry("protocol")
for _name in ("sklearn", "anatomy", "mdl", "control"):
    protocols.add(_name, f"headwise.probing.protocols:{_name}")


def checked(protocol: str, options: Iterable[str]) -> Protocol:
    """Look up a protocol by name and check its options."""
    run = protocols[protocol]
    known = list(inspect.signature(run).parameters)[2:]
    for name in options:
        if name not in known:
            raise HeadwiseError(f"the protocol {protocol!r} has no option {name!r}", f"one of: {', '.join(known)}")
    return run


def fit(
    protocol: str, vectors: Vectors, labels: Labels, *, memory: int | None = None, device: Any = None, **options: Any
) -> Fit:
    """Fit and score all probes, a few heads (or L2 strengths) at a time if memory requires it."""
    run = checked(protocol, options)
    parameters = inspect.signature(run).parameters
    place = torch.device(device) if device is not None else vectors.train.device
    l2 = options.get("l2") or parameters["l2"].default or ((0.0,) if labels.graded else RELEASED)
    targets = 1 + (options.get("folds") or 0) + options.get("controls", 3 if protocol == "control" else 0)
    size = _together(vectors, labels, len(l2) * targets, memory, place)
    groups = [l2] if size else [(strength,) for strength in l2]
    parts = []
    for start in range(0, len(vectors), max(size, 1)):
        part = vectors.part(slice(start, start + max(size, 1)), place)
        fits = [run(part, labels, **options | {"l2": group}).map(Tensor.cpu) for group in groups]
        parts.append(_best(fits))
    return Fit.joined(parts)


def _together(vectors: Vectors, labels: Labels, problems: int, memory: int | None, device: torch.device) -> int:
    """How many heads are fitted together, given four copies of their vectors and a few scores per row.

    0 if not even the scores of one head fit.
    """
    rows = sum(x.shape[1] for x in (vectors.train, vectors.dev, vectors.test))
    each = 4 * rows * (4 * vectors.train.shape[-1] + 6 * problems * max(labels.classes, 1))
    limit = free_memory(device) // 2 if memory is None else memory
    liked = min(limit, CHUNK) if device.type == "cpu" else limit
    return max(liked // each, min(1, limit // each))


def _best(fits: list[Fit]) -> Fit:
    """For each head, the fit with the best development score among fits that differ in L2 strength.

    The additional results are those of fitting all strengths together: shuffled labels choose their own strength, and a
    code length is the shortest, including the bits that name its strength.
    """
    if len(fits) == 1:
        return fits[0]
    which, head = torch.stack([fit.dev for fit in fits]).argmax(0), torch.arange(len(fits[0].dev))
    parts = {name: torch.stack([getattr(fit, name) for fit in fits])[which, head] for name in Fit.PARTS}
    best = Fit(**parts, more={}, unsettled=sum(fit.unsettled for fit in fits), beside=())
    if shuffled := tuple(_best(list(same)) for same in zip(*(fit.beside for fit in fits))):
        best = best.beyond(shuffled)
    if codes := [fit.more["code"] for fit in fits if "code" in fit.more]:
        code = torch.stack(codes).amin(0) + math.log2(len(codes))
        uncoded = fits[0].more["compression"] * fits[0].more["code"]
        best = replace(best, more={"code": code, "compression": uncoded / code})
    return best
