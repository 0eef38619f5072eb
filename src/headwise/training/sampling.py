"""Samplers: which task each batch comes from."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from headwise.errors import HeadwiseError
from headwise.registry import Registry

if TYPE_CHECKING:
    import numpy as np

    from headwise.training.plan import Plan

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
