"""What the best heads must beat: random heads, random values of all layers, and mean pooling, all of equal width."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from headwise.errors import HeadwiseError
from headwise.io.files import plain
from headwise.probing.fitting import SIDES, Fit, Vectors
from headwise.probing.measure import Probe

DRAWS = 20


@dataclass(frozen=True)
class Controls:
    """Test scores of as many random heads, and of as many random values of the layers, beside those of the best heads.

    All probes are fitted in the same way. ``mean_last`` and ``mean_best`` are probes on the mean of all tokens: of the
    last layer, and of the layer with the best development score.
    """

    task: str
    metric: str
    n: int
    top: float
    best_layer: float
    random: tuple[float, ...]  # n random heads, one score per draw
    mixed: tuple[float, ...]  # as many values of random layers
    mean_last: float
    mean_best: float

    def p(self, control: str = "random") -> float:
        """How often a draw of a control does at least as well as the best heads, these among them (one-sided).

        Example:
            >>> controls(found).p("mixed")
            0.047619047619047616
        """
        draws = getattr(self, control)
        return (1 + sum(score >= self.top for score in draws)) / (1 + len(draws))

    def to_record(self) -> dict[str, Any]:
        return plain({**self.__dict__, "p_random": self.p("random"), "p_mixed": self.p("mixed")})

    def __str__(self) -> str:
        spread = {name: np.percentile(getattr(self, name), (0, 50, 100)) for name in ("random", "mixed")}
        low, middle, high = (100 * x for x in spread["random"])
        first = f"{self.task}: best {self.n} heads {100 * self.top:.1f}, best layer {100 * self.best_layer:.1f}; "
        first += f"random heads {middle:.1f} ({low:.1f} to {high:.1f}), p = {self.p():.3f}; "
        low, middle, high = (100 * x for x in spread["mixed"])
        first += f"mixed layers {middle:.1f} ({low:.1f} to {high:.1f}), p = {self.p('mixed'):.3f}; "
        return first + f"mean of tokens {100 * self.mean_last:.1f} (last layer), {100 * self.mean_best:.1f} (best)"


def controls(probe: Probe, n: int | None = None, draws: int = DRAWS, seed: int = 0) -> Controls:
    """Compare the n best heads of a probe with random heads, mixed layers and mean pooling.

    Args:
        probe: a probe of all heads; its sentences, protocol and options are used again.
        n: number of heads. Default: as many as a layer has.
        draws: random sets of heads, and of values.
        seed: of the draws.

    Example:
        >>> print(controls(probe(model, "probing_gold.subj_number", tokenizer=tokenizer)))  # doctest: +SKIP
    """
    if draws < 1:
        raise HeadwiseError(f"{draws} draws", "one or more")
    n = probe.shape[1] if n is None else n
    alive, generator = probe.best(len(probe.ranking())), np.random.default_rng([seed, 9])
    sets = [[alive[i] for i in generator.choice(len(alive), n, replace=False)] for _ in range(draws)]
    heads = [probe.bench.fit(probe.bench.together(each)) for each in (probe.best(n), *sets)]
    width = n * probe.bench.features["train"].heads.shape[-1]
    mixed = [probe.bench.fit(_mixed(probe, width, generator)) for _ in range(draws)]
    means = _mean_pooled(probe)
    return Controls(
        probe.task,
        probe.metric,
        n,
        float(heads[0].test[0]),
        float(probe.layers[probe.best_layer()]),
        tuple(float(fit.test[0]) for fit in heads[1:]),
        tuple(float(fit.test[0]) for fit in mixed),
        float(means.test[-1]),
        float(means.test[means.dev.argmax()]),
    )


def _mixed(probe: Probe, width: int, generator: np.random.Generator) -> Vectors:
    """So many values of each sentence, each from a random place of a random layer."""
    layers, _, size = probe.bench.features["train"].layers.shape
    chosen = generator.choice(layers * size, min(width, layers * size), replace=False)
    layer, place = (torch.from_numpy(part) for part in np.divmod(chosen, size))

    def values(side: str) -> torch.Tensor:
        states = probe.bench.features[side].layers  # (L, N, E)
        return states[layer.to(states.device), :, place.to(states.device)].T[None]

    return Vectors(*(values(side) for side in SIDES))


def _mean_pooled(probe: Probe) -> Fit:
    """Probes on the mean over tokens of every layer."""
    bench = probe.bench
    reader = replace(bench.reader, at="mean")
    features = {side: reader.read(bench.splits.rows[side], memory=bench.memory) for side in SIDES}
    return replace(bench, reader=reader, features=features).fit(Vectors(*(features[side].layers for side in SIDES)))
