"""A training plan: one dataclass that is the Python argument, the TOML file and the command line's flags."""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from headwise.errors import HeadwiseError, unknown

CHOICES = {
    "sampling": ("proportional", "annealed", "square_root", "temperature", "uniform", "round_robin", "fixed"),
    "balance": ("none", "moving_average"),
    "precision": ("fp32", "bf16"),
    "schedule": ("linear", "constant"),
    "train": ("all", "heads"),
    "window": ("same", "mixed"),
}


@dataclass(frozen=True)
class Plan:
    """How to train; the defaults are those of Li et al. (2023).

    Example:
        >>> Plan(epochs=1, lr=1e-4).with_(seed=3).seed
        3
    """

    epochs: float = 5
    """Passes over the data, as many batches as all tasks have together."""
    steps: int | None = None
    """Optimizer steps; takes the place of epochs."""
    lr: float = 2e-5
    """Peak learning rate of the encoder."""
    head_lr: float | None = None
    """Peak learning rate of the output heads; the encoder's where not given."""
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.0
    warmup: float = 0.1
    """Share of the steps in which the learning rate climbs."""
    schedule: str = "linear"
    """After the warm-up: linear decay to zero, or constant."""
    clip: float | None = None
    """Largest norm of the gradient."""
    batch_size: int = 32
    tokens: int | None = None
    """Largest number of padded tokens in a batch; takes the place of batch_size."""
    accumulate: int = 1
    """Batches in one optimizer step."""
    window: str = "same"
    """The batches of one step come from the same task, or are mixed."""
    sampling: str = "proportional"
    """How often each task is drawn."""
    temperature: float = 0.8
    """Exponent of sampling="temperature"."""
    order: tuple[str, ...] = ()
    """The cycle of tasks of sampling="fixed"."""
    balance: str = "none"
    """Weights of the tasks' losses."""
    precision: str = "fp32"
    train: str = "all"
    """Train everything, or the output heads alone on a frozen encoder."""
    max_examples: int | None = None
    """Largest number of training rows of a task."""
    max_dev: int | None = None
    """Largest number of development rows of a task in evaluations while training."""
    evaluate_every: int | None = None
    """Steps between evaluations; once per epoch where not given, never where 0."""
    checkpoint_every: int | None = None
    """Steps between checkpoints; once per epoch where not given, never where 0."""
    patience: int | None = None
    """Stop after this many evaluations without a better mean score."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise unknown(f"{name} of a plan", getattr(self, name), allowed)
        positive = {"epochs": self.epochs, "batch_size": self.batch_size, "accumulate": self.accumulate}
        positive |= {"steps": self.steps, "tokens": self.tokens, "max_examples": self.max_examples, "max_dev": self.max_dev}
        for name, value in positive.items():
            if value is not None and not value > 0:
                raise HeadwiseError(f"{name}={value}", "a number above 0")
        for name in ("lr", "head_lr", "weight_decay", "clip", "temperature"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise HeadwiseError(f"{name}={value}", "a number that is not negative")
        for name in ("warmup", "beta1", "beta2"):
            if not 0 <= getattr(self, name) <= 1:
                raise HeadwiseError(f"{name}={getattr(self, name)}", "a number from 0 to 1")

    def with_(self, **changes: Any) -> Plan:
        """The plan with some fields changed; unknown fields are refused."""
        known = {f.name for f in fields(self)}
        for name in changes:
            if name not in known:
                raise unknown("field of a plan", name, known)
        if "order" in changes:
            changes["order"] = tuple(changes["order"])
        return replace(self, **changes)

    @classmethod
    def read(cls, path: str | Path) -> Plan:
        """A plan from a TOML file of ``field = value`` lines."""
        try:
            values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise HeadwiseError(f"no plan at {path}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, IsADirectoryError) as error:
            raise HeadwiseError(f"{path} is no TOML ({error})", "lines such as: lr = 2e-5") from None
        try:
            return cls().with_(**values)
        except TypeError as error:
            raise HeadwiseError(f"{path}: a value of the wrong type ({error})") from None

    def to_toml(self) -> str:
        """The plan as a TOML file; fields that are not set are left out."""
        lines = []
        for name, value in asdict(self).items():
            if value is None:
                continue
            if isinstance(value, str):
                text = f'"{value}"'
            elif isinstance(value, (list, tuple)):
                text = "[" + ", ".join(f'"{v}"' for v in value) + "]"
            else:
                text = repr(value)
            lines.append(f"{name} = {text}")
        return "\n".join(lines) + "\n"
