"""The training plan, one dataclass for Python, TOML files and flags; and which task each batch comes from."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.errors import HeadwiseError, unknown
from headwise.io.text import read_toml, to_toml
from headwise.registry import Registry

if TYPE_CHECKING:
    import numpy as np


# (batches per task, epoch from 0, number of epochs, plan, rng) -> task numbers of one epoch
Sampler = Callable[["np.ndarray", int, int, "Plan", "np.random.Generator"], "np.ndarray"]
samplers: Registry[Sampler] = Registry("sampling")


def schedule(names: Sequence[str], batches: Sequence[int], epoch: int, epochs: int, plan: Plan) -> np.ndarray:
    """The task numbers of one epoch's batches, a function of the seed."""
    import numpy as np  # not above: the command line lists samplers without it

    counts = np.asarray(batches)
    if plan.sampling == "fixed":
        return _fixed(names, counts, epoch, plan)
    rng = np.random.default_rng([plan.seed, 1, epoch])
    return samplers[plan.sampling](counts, epoch, epochs, plan, rng)


@samplers("proportional")
def proportional(counts, epoch, epochs, plan, rng):
    """Each task as often as it has batches."""
    return rng.permutation([task for task, count in enumerate(counts) for _ in range(count)])


@samplers("annealed")
def annealed(counts, epoch, epochs, plan, rng):
    """p ∝ N^ε with ε falling from 1 to 0.2 over the epochs (Li et al. 2023, Eq. 8); one epoch: ε = 1."""
    exponent = 1 - 0.8 * epoch / (epochs - 1) if epochs > 1 else 1.0
    return _drawn(counts, exponent, rng)


@samplers("square_root")
def square_root(counts, epoch, epochs, plan, rng):
    """p ∝ √N."""
    return _drawn(counts, 0.5, rng)


@samplers("temperature")
def temperature(counts, epoch, epochs, plan, rng):
    """p ∝ N^τ."""
    return _drawn(counts, plan.temperature, rng)


@samplers("uniform")
def uniform(counts, epoch, epochs, plan, rng):
    """Each task with the same probability."""
    return _drawn(counts, 0.0, rng)


@samplers("round_robin")
def round_robin(counts, epoch, epochs, plan, rng):
    """The tasks in turn."""
    return _turns(counts, epoch) % len(counts)


def _drawn(counts: np.ndarray, exponent: float, rng: np.random.Generator) -> np.ndarray:
    weights = counts.astype(float) ** exponent
    return rng.choice(len(counts), size=int(counts.sum()), p=weights / weights.sum())


def _turns(counts: np.ndarray, epoch: int) -> np.ndarray:
    """The batch numbers of an epoch, counted over all epochs, so that cycles continue."""
    import numpy as np

    return epoch * counts.sum() + np.arange(counts.sum())


def _fixed(names: Sequence[str], counts: np.ndarray, epoch: int, plan: Plan) -> np.ndarray:
    unknown = [name for name in plan.order if name not in names]
    if not plan.order or unknown:
        hint = f"order = {json.dumps(names[:2])} in a plan, or {' '.join(f'--order {n}' for n in names[:2])}"
        raise HeadwiseError(f"order={plan.order}", f"a cycle of the tasks {', '.join(names)}", hint)
    import numpy as np

    cycle = np.array([list(names).index(name) for name in plan.order])
    return cycle[_turns(counts, epoch) % len(cycle)]


CHOICES = {
    "balance": ("none", "moving_average"),
    "optimizer": ("adamw", "sgd"),
    "precision": ("fp32", "bf16"),
    "schedule": ("linear", "constant"),
    "train": ("all", "heads"),
    "window": ("same", "mixed"),
}
RANGES = (
    ("epochs batch_size accumulate steps tokens max_examples max_dev patience", lambda v: v > 0, "a number above 0"),
    ("lr head_lr weight_decay clip temperature evaluate_every checkpoint_every seed", lambda v: v >= 0, "0 or more"),
    ("warmup word_dropout", lambda v: 0 <= v <= 1, "a number from 0 to 1"),
    ("beta1 beta2", lambda v: 0 <= v < 1, "a number from 0 to below 1"),
)


@dataclass(frozen=True)
class Plan:
    """Training settings; the defaults are those of Li et al. (2023).

    Example:
        >>> Plan(epochs=1, lr=1e-4).with_(seed=3).seed
        3
    """

    epochs: float = 5
    """Passes over the data of all tasks."""
    steps: int | None = None
    """Optimizer steps; overrides epochs."""
    lr: float = 2e-5
    """Peak learning rate of the encoder."""
    head_lr: float | None = None
    """Peak learning rate of the output heads (default: that of the encoder)."""
    optimizer: str = "adamw"
    """adamw, or sgd with beta1 as momentum."""
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.0
    warmup: float = 0.1
    """Fraction of steps in which the learning rate increases."""
    schedule: str = "linear"
    """After the warm-up: linear decay to zero, or constant."""
    clip: float | None = None
    """Maximum norm of the gradient."""
    batch_size: int = 32
    tokens: int | None = None
    """Maximum number of padded tokens in a batch; overrides batch_size."""
    accumulate: int = 1
    """Batches per optimizer step."""
    window: str = "same"
    """Whether the batches of a step come from the same task or are mixed."""
    sampling: str = "proportional"
    """How often each task is sampled."""
    temperature: float = 0.8
    """Exponent of sampling="temperature"."""
    order: tuple[str, ...] = ()
    """The cycle of tasks of sampling="fixed"."""
    balance: str = "none"
    """Loss weights: all 1 (none), or the mean recent loss of all tasks divided by the task's own (moving_average)."""
    word_dropout: float = 0.0
    """Fraction of subwords of word-level tasks that are replaced by the unknown token in training."""
    precision: str = "fp32"
    train: str = "all"
    """Train everything, or only the output heads on a frozen encoder."""
    max_examples: int | None = None
    """Maximum number of training rows per task."""
    max_dev: int | None = None
    """Maximum number of development rows per task in evaluations during training."""
    evaluate_every: int | None = None
    """Steps between evaluations (default: once per epoch; 0: never)."""
    checkpoint_every: int | None = None
    """Steps between checkpoints (default: once per epoch; 0: never)."""
    patience: int | None = None
    """Stop after this many evaluations without a better mean score."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self, RANGES)
        for name, allowed in {**CHOICES, "sampling": _samplings()}.items():
            if getattr(self, name) not in allowed:
                raise unknown(f"{name} of a plan", getattr(self, name), allowed)

    def with_(self, **changes: Any) -> Plan:
        """A copy with some fields changed; unknown fields raise."""
        known = {f.name for f in fields(self)}
        for name in changes:
            if name not in known:
                raise unknown("field of a plan", name, known)
        return replace(self, **changes)

    @classmethod
    def read(cls, path: str | Path) -> Plan:
        """Read a plan from a TOML file of ``field = value`` lines."""
        values = read_toml(path, "plan", "lr = 2e-5")
        try:
            return cls().with_(**values)
        except HeadwiseError as error:
            raise HeadwiseError(f"{path}: {error}") from None

    def to_toml(self) -> str:
        """The plan as TOML, without fields that are None."""
        return to_toml(asdict(self))


def _samplings() -> tuple[str, ...]:
    return (*samplers, "fixed")


Range = tuple[str, Callable[[Any], bool], str]  # names, a predicate of their values, its description


def check_fields(values: Any, ranges: Sequence[Range]) -> None:
    """Raise if a field of a frozen dataclass has the wrong type or is out of range; lists become tuples."""
    for item in fields(values):
        value, kind = getattr(values, item.name), str(item.type)
        _check_type(item.name, value, kind)
        if kind.startswith("tuple"):
            object.__setattr__(values, item.name, tuple(value))
    for names, fits, wanted in ranges:
        for name in names.split():
            value = getattr(values, name)
            if any(not fits(each) for each in (value if isinstance(value, tuple) else (value,)) if each is not None):
                raise HeadwiseError(f"{name}={value}", wanted)


def _check_type(name: str, value: Any, kind: str) -> None:
    """``kind`` is the annotation: int, float, str or a tuple of them, optionally "| None"; others are not checked."""
    kinds = {"str": (_is_text, "a text"), "int": (_is_whole, "a whole number"), "float": (_is_number, "a number")}
    base = kind.removeprefix("tuple[").partition(",")[0].removesuffix(" | None")
    if base not in kinds or (value is None and kind.endswith("None")):
        return
    fits, wanted = kinds[base]
    if kind.startswith("tuple"):
        right = isinstance(value, list | tuple) and all(map(fits, value))
        wanted = {"str": "a list of texts", "float": "a list of numbers"}[base]
    else:
        right = fits(value)
    if not right:
        raise HeadwiseError(f"{name}={value!r}", wanted)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_whole(value: Any) -> bool:
    return _is_number(value) and isinstance(value, int)
