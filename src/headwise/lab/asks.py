"""What a page may ask, checked and bounded before any of it reaches a model (no torch)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headwise.errors import HeadwiseError, unknown

LONGEST = 4000  # characters of a text
CHOICES = 16
CLOSE = ("zero", "mean", "resample")  # an optimal constant takes minutes to fit
SEEDS = 2**31


@dataclass(frozen=True)
class Ask:
    """A text or two, and the gates of the heads under which they are read."""

    texts: tuple[str, str]
    choices: tuple[str, ...]  # continuations between which a language model is to choose
    gates: tuple[tuple[float, ...], ...]  # (layers, heads)
    close: str
    seed: int  # of what resampling draws

    @property
    def question(self) -> tuple[tuple[str, str], tuple[str, ...]]:
        """What is read, whatever the gates."""
        return self.texts, self.choices

    @property
    def closed(self) -> int:
        """How many heads are not fully open."""
        return sum(gate < 1 for row in self.gates for gate in row)

    @classmethod
    def read(cls, data: Any, shape: tuple[int, int]) -> Ask:
        """An ask from a page's JSON; raises where it is anything else."""
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
    """A text within bounds."""
    if not isinstance(value, str):
        raise HeadwiseError(f"a {name} that is a {type(value).__name__}", "a text")
    if len(value) > LONGEST:
        raise HeadwiseError(f"a {name} of {len(value)} characters", f"{LONGEST} at most")
    return value.replace("\x00", "").encode("utf-8", "replace").decode()  # lone halves of pairs would end tokenizers


def gates_of(value: Any, shape: tuple[int, int]) -> tuple[tuple[float, ...], ...]:
    """Gates from 0 to 1 for every head; without any, all open."""
    layers, heads = shape
    if value is None:
        return ((1.0,) * heads,) * layers
    rows = value if isinstance(value, list) and len(value) == layers else ()
    whole = [row for row in rows if isinstance(row, list) and len(row) == heads]
    if len(whole) != layers or not all(_is_gate(gate) for row in whole for gate in row):
        raise HeadwiseError("gates of another form", f"{layers} rows of {heads} numbers from 0 to 1")
    return tuple(tuple(float(gate) for gate in row) for row in whole)


def _is_gate(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
