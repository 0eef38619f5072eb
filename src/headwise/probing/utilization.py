"""Use the best heads: compared with the last and the best layer, by number of heads, and in fine-tuning."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import numpy as np
import torch

from headwise.errors import HeadwiseError, unknown
from headwise.io.files import plain
from headwise.measuring.evaluate import evaluate
from headwise.measuring.stats import Estimate, bootstrap, paired_bootstrap
from headwise.models.multitask import MultiTaskModel
from headwise.probing.fitting import SIDES, Fit, Vectors
from headwise.probing.measure import Log, Probe
from headwise.tasks.metrics import metrics
from headwise.training.loop import fit
from headwise.training.plan import Plan

INPUTS = ("last", "best", "top")
TUNING = Plan(epochs=3, lr=2e-5, warmup=0.0, batch_size=32, evaluate_every=0, checkpoint_every=0)  # Jo and Myaeng, A.4


@dataclass(frozen=True)
class Utilization:
    """Test scores of probes on the last layer, the best layer and the n best heads concatenated, with intervals.

    Layer and heads were chosen on the split ``select_on``; intervals and p-values are over the test sentences.
    """

    task: str
    metric: str
    n: int
    layer: int
    heads: tuple[tuple[int, int], ...]
    scores: dict[str, Estimate]  # last, best, top
    against: dict[str, Estimate]  # top minus last, top minus best; p of "not better"
    select_on: str

    def gain(self, what: str = "top", over: str = "last") -> float:
        """Relative gain, as in parentheses in the paper's Table 5."""
        return float(self.scores[what].value / self.scores[over].value - 1)

    def to_record(self) -> dict[str, Any]:
        return plain({**self.__dict__, "gain_over_last": self.gain(), "gain_over_best": self.gain(over="best")})


def utilize(probe: Probe, n: int | None = None, resamples: int = 1000, seed: int = 0) -> Utilization:
    """Compare the n best heads (default: as many as a layer has) with the last and the best layer.

    Example:
        >>> print(table([utilize(probe) for probe in probes]))  # doctest: +SKIP
    """
    n = probe.shape[1] if n is None else n
    heads, layer = probe.best(n), probe.best_layer()
    layers = probe.layer_fit.predictions.numpy()
    answers = {"last": layers[-1], "best": layers[layer], "top": _together(probe, heads).predictions[0].numpy()}
    metric, gold = metrics[probe.metric], probe.bench.labels.test.tolist()
    counts = {name: metric.counts(answer, gold) for name, answer in answers.items()}
    scores = {name: bootstrap(each, metric.value, resamples, seed) for name, each in counts.items()}
    against = {
        other: paired_bootstrap(counts["top"], counts[other], metric.value, resamples, seed)
        for other in ("last", "best")
    }
    return Utilization(probe.task, probe.metric, n, layer, tuple(heads), scores, against, probe.select_on)


def _together(probe: Probe, heads: list[tuple[int, int]]) -> Fit:
    return probe.bench.fit(probe.bench.together(heads))


def table(utilizations: Sequence[Utilization]) -> str:
    """One line per task, as Tables 3 and 5 of Jo and Myaeng 2020, with the medians of the relative gains."""
    lines = [f"{'task':32} {'last':>7} {'best layer':>16} {'top heads':>22} {'95 %':>16}"]
    for each in utilizations:
        last, best, top = (100 * float(each.scores[name].value) for name in INPUTS)
        gains = [100 * each.gain(name) for name in ("best", "top")]
        layer, heads = f"{best:.1f} ({gains[0]:+.1f}) z{each.layer}", f"{top:.1f} ({gains[1]:+.1f}) n={each.n}"
        span = f"{100 * float(each.scores['top'].low):.1f} - {100 * float(each.scores['top'].high):.1f}"
        lines.append(f"{each.task:32} {last:7.1f} {layer:>16} {heads:>22} {span:>16}")
    over = {name: 100 * median(each.gain(over=name) for each in utilizations) for name in ("last", "best")}
    wins = sum(float(each.against["best"].value) > 0 for each in utilizations)
    gains = f"{over['last']:+.1f} % over the last layer, {over['best']:+.1f} % over the best"
    lines.append(f"median gain of the top heads: {gains}; better than the best layer on {wins} of {len(utilizations)}")
    return "\n".join(lines)


@dataclass(frozen=True)
class EffectOfN:
    """Scores of probes on the n best heads concatenated, for increasing n."""

    task: str
    sizes: tuple[int, ...]
    dev: tuple[float, ...]
    test: tuple[float, ...]

    def to_record(self) -> dict[str, Any]:
        return plain(self.__dict__)

    def __str__(self) -> str:
        points = "  ".join(f"{n}: {score:.3f}" for n, score in zip(self.sizes, self.test))
        return f"{self.task}, test score of the n best heads: {points}"


def effect_of_n(probe: Probe, sizes: Sequence[int] | None = None) -> EffectOfN:
    """Probe from one head to all of them; by default, each size is half as large again as the last."""
    every = len(probe.ranking())
    if sizes is None:
        sizes = sorted({min(every, round(1.5**i)) for i in range(40)})
    fits = [_together(probe, probe.best(n)) for n in sizes]
    return EffectOfN(probe.task, tuple(sizes), *(tuple(float(getattr(f, s)[0]) for f in fits) for s in ("dev", "test")))


@dataclass(frozen=True)
class Tuned:
    """Scores of fine-tuned models by the input of their classifier, one per seed; medians are compared."""

    task: str
    metric: str
    split: str
    n: int
    layer: int
    scores: dict[str, tuple[float, ...]]
    models: list[MultiTaskModel] = field(
        default_factory=list, repr=False, compare=False
    )  # the last seed's, if asked for

    def median(self, name: str) -> float:
        return median(self.scores[name])

    def to_record(self) -> dict[str, Any]:
        medians = {name: self.median(name) for name in self.scores}
        return plain({k: v for k, v in self.__dict__.items() if k != "models"} | {"medians": medians})

    def __str__(self) -> str:
        names = {"last": "last layer", "best": f"layer {self.layer}", "top": f"top {self.n} heads"}
        medians = ", ".join(f"{names[name]} {100 * self.median(name):.2f}" for name in self.scores)
        seeds = len(next(iter(self.scores.values())))
        return f"{self.task} fine-tuned, median {self.metric} on {self.split} over {seeds} seeds: {medians}"


def fine_tune(
    probe: Probe,
    n: int | None = None,
    seeds: Sequence[int] = range(5),
    plan: Plan = TUNING,
    *,
    inputs: Sequence[str] = INPUTS,
    split: str | None = None,
    keep: bool = False,
    device: str | None = None,
    log: Log = lambda line: None,
) -> Tuned:
    """Fine-tune encoder and classifier on the last layer, the best layer and the top heads, and compare.

    The classifier is Linear, tanh, dropout, Linear, and is trained with the encoder.

    Args:
        probe: the task's probe; its heads and layer are used, its model is not changed.
        n: number of heads fed to the classifier. Default: as many as a layer has.
        seeds: one training each (Jo and Myaeng 2020, Table 4, report the median of five).
        plan: the training plan. Default: the paper's.
        inputs: which of last, best and top.
        split: the split that is scored. Default: test if the task has one, else dev.
        keep: also return the models of the last seed.
        device: "cpu" forces the CPU.
        log: called with a line of text for every training.
    """
    for name in inputs:
        if name not in INPUTS:
            raise unknown("input of the classifier", name, INPUTS)
    n = probe.shape[1] if n is None else n
    task = probe.bench.splits.task
    split = split or ("test" if "test" in task.splits else "dev")
    if not len(seeds):
        raise HeadwiseError("no seeds", "one or more")
    scores: dict[str, list[float]] = {name: [] for name in inputs}
    models = []
    for name in inputs:
        for seed in seeds:
            model = _model(probe, name, n, seed)
            fit(model, plan.with_(seed=seed), device=device)
            scores[name].append(evaluate(model, task.name, split=split).value)
            log(f"{task.name}: {name}, seed {seed}: {scores[name][-1]:.4f}")
            models += [model] if keep and seed == seeds[-1] else []
    final = {name: tuple(values) for name, values in scores.items()}
    return Tuned(task.name, task.metric, split, n, probe.best_layer(), final, models)


def _model(probe: Probe, name: str, n: int, seed: int) -> MultiTaskModel:
    """A new copy of the probed encoder whose classifier reads a layer or heads."""
    reader, task = probe.bench.reader, probe.bench.splits.task
    task = replace(task, kind=replace(task.kind, inner=True))  # type: ignore[type-var]
    pooling = "last" if reader.at == "post_last" else reader.at
    options: dict[str, Any] = {"best": {"layer": probe.best_layer() + 1}, "top": {"use_heads": probe.mask(n)}}.get(
        name, {}
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = copy.deepcopy(reader.encoder)
        return MultiTaskModel(encoder, reader.tokenizer, [task], pooling, max_length=reader.max_length, **options)


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
        """One-sided p: the fraction of draws that score at least as well as the best heads, counting these.

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
    """Values from random dimensions of random layers, as many for each sentence."""
    layers, _, size = probe.bench.features["train"].layers.shape
    chosen = generator.choice(layers * size, min(width, layers * size), replace=False)
    layer, place = (torch.from_numpy(part) for part in np.divmod(chosen, size))

    def values(side: str) -> torch.Tensor:
        states = probe.bench.features[side].layers  # (L, N, E)
        return states[layer.to(states.device), :, place.to(states.device)].T[None]

    return Vectors(*(values(side) for side in SIDES))


def _mean_pooled(probe: Probe) -> Fit:
    """Probes on the mean over tokens of every layer; texts are read again if the probe kept no means."""
    bench = probe.bench
    if bench.reader.means and bench.reader.at != "post_last":  # there, one more token was read
        return bench.fit(bench.vectors("means"))
    reader = replace(bench.reader, at="mean", means=False)
    features = {side: reader.read(bench.splits.rows[side], memory=bench.memory) for side in SIDES}
    return replace(bench, reader=reader, features=features).fit(Vectors(*(features[side].layers for side in SIDES)))
