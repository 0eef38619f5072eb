"""How often the tests of a study are wrong, and how often they are right: ``python tests/support/calibration.py``.

A synthetic model stands in for a real one. Each of its heads costs each task something; a lesion costs the sum, so
performance is ``floor + (base - floor) * exp(-cost)``. Rows are right or wrong by a difficulty that all lesions share.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy.special import ndtr
from scipy.stats import binom

from headwise.dissociation.result import Dissociation
from headwise.dissociation.significance import Counts, layer_sets, pairwise, per_task, random_sets
from headwise.measuring import intervals
from headwise.measuring.stats import Estimate, bootstrap, change
from headwise.study.verdict import verdict
from headwise.tasks.metrics import metrics

LAYERS, HEADS, CHOSEN = 6, 12, 21  # a 6 x 12 model, of which a fraction of 0.3 is closed
BASE, FLOOR = 0.9, 0.5


def share(sums: np.ndarray) -> np.ndarray:
    return sums[..., 0] / sums[..., 1]


@dataclass
class World:
    """Head effects ``(T, L, H)`` and the own head sets of the tasks ``(T, L, H)``."""

    effects: np.ndarray
    own: np.ndarray

    def performance(self, masks: np.ndarray) -> np.ndarray:
        """Of every task (rows) under every mask."""
        cost = np.einsum("tlh,klh->tk", self.effects, masks.astype(float))
        return FLOOR + (BASE - FLOOR) * np.exp(-cost)


def some_heads(rng: np.random.Generator, number: int) -> np.ndarray:
    """Random sets of heads, (number, L, H)."""
    ranks = rng.random((number, LAYERS * HEADS)).argsort(1).argsort(1)
    return (ranks < CHOSEN).reshape(number, LAYERS, HEADS)


def like_in_layers(rng: np.random.Generator, mask: np.ndarray, number: int) -> np.ndarray:
    """Random sets with as many heads of every layer as a mask has."""
    ranks = rng.random((number, *mask.shape)).argsort(-1).argsort(-1)
    return ranks < mask.sum(-1)[None, :, None]


def uneven(rng: np.random.Generator, tasks: int, shared: float = 0.5) -> np.ndarray:
    """Effects of heads, few of which matter much; tasks share a part of them, and layers differ."""
    layers = rng.lognormal(0, 0.5, (LAYERS, 1))
    common, own = (rng.lognormal(0, 1.2, (size, LAYERS, HEADS)) for size in (1, tasks))
    effects = layers * (shared * common + (1 - shared) * own)
    return 1.5 * effects / effects.sum((1, 2), keepdims=True)


def random_world(rng: np.random.Generator, tasks: int, shared: float = 0.5) -> World:
    """Own head sets that mean nothing."""
    return World(uneven(rng, tasks, shared), some_heads(rng, tasks))


def planted_world(rng: np.random.Generator, tasks: int, strength: float, noise: float = 0.7) -> World:
    """Every task has heads of its own that matter more to it; its set is the top of effects measured with noise."""
    effects = uneven(rng, tasks)
    ranks = rng.random((LAYERS * HEADS,)).argsort()
    size = min(CHOSEN, LAYERS * HEADS // tasks)
    for task in range(tasks):
        effects[task].reshape(-1)[ranks[task * size : (task + 1) * size]] += strength / size
    seen = effects * rng.lognormal(0, noise, effects.shape)
    own = (-seen.reshape(tasks, -1)).argsort(1).argsort(1) < CHOSEN
    return World(effects, own.reshape(effects.shape))


def layered_world(rng: np.random.Generator, tasks: int, strength: float) -> World:
    """A task's heads are those of its own layers, and which of a layer does not matter."""
    effects = np.full((tasks, LAYERS, HEADS), 0.005)
    own = np.zeros(effects.shape, bool)
    for task in range(tasks):
        layers = np.arange(LAYERS) % tasks == task
        effects[task, layers] += strength / (layers.sum() * HEADS)
        keys = rng.random((LAYERS, HEADS)) + layers[:, None]
        own[task] = ((-keys.ravel()).argsort().argsort() < CHOSEN).reshape(LAYERS, HEADS)
    return World(effects * rng.lognormal(0, 0.3, effects.shape), own)


def rows(rng: np.random.Generator, truth: np.ndarray, n: int, alike: float = 0.8) -> np.ndarray:
    """Right and wrong answers ``(n, K)`` with these true shares; a row is about as hard under every lesion."""
    hard = np.sqrt(alike) * rng.normal(size=(n, 1)) + np.sqrt(1 - alike) * rng.normal(size=(n, len(truth)))
    return ndtr(hard) < truth


def counts(right: np.ndarray) -> Counts:
    """As one fraction's."""
    return Counts(np.stack([right, np.ones_like(right)], -1).astype(float)[:, None], share)


def study(rng: np.random.Generator, world: World, n: int, random: int | None = None) -> Dissociation:
    """The dissociation that a study of this world finds with n rows for each task."""
    tasks = len(world.own)
    sets = some_heads(rng, random_sets(tasks) if random is None else random)
    matched = np.concatenate([like_in_layers(rng, mask, layer_sets(tasks)) for mask in world.own])
    none = np.zeros((1, LAYERS, HEADS), bool)
    truth = world.performance(np.concatenate([none, world.own, sets, matched]))
    return measured(rng, truth, tasks, len(sets), n)


def same_law(rng: np.random.Generator, n: int, spread: float = 0.03) -> Dissociation:
    """Every lesion's outcome is drawn alike, for both tasks."""
    random, matched = random_sets(2), layer_sets(2)
    truth = np.clip(rng.normal(0.75, spread, (2, 3 + random + 2 * matched)), 0, 1)
    truth[:, 0] = BASE
    return measured(rng, truth, 2, random, n)


def same_outcome(rng: np.random.Generator, n: int, spread: float = 0.03) -> Dissociation:
    """Both tasks' heads do exactly the same harm, so only rows differ."""
    random, matched = random_sets(2), layer_sets(2)
    truth = np.clip(rng.normal(0.75, spread, (2, 3 + random + 2 * matched)), 0, 1)
    truth[:, :3] = [BASE, 0.7, 0.7]
    return measured(rng, truth, 2, random, n)


def measured(rng: np.random.Generator, truth: np.ndarray, tasks: int, random: int, n: int) -> Dissociation:
    """From true performances ``(T, 1 + T + R + T M)``."""
    seen = [rows(rng, each, n) for each in truth]
    known = 1 + tasks + random
    beside = np.stack([right[:, known:].mean(0) for right in seen]).reshape(tasks, tasks, -1)
    how = {"matched": beside, "resamples": 200, "seed": int(rng.integers(2**31)), "undefined": "leave"}
    return Dissociation.of(
        [f"task {i}" for i in range(tasks)], counts=[counts(right[:, :known]) for right in seen], **how
    )


# -- false alarms and power of what a study says

NULLS: dict[str, Callable[[np.random.Generator], Dissociation]] = {
    "random head sets, 2 tasks, n = 400": lambda rng: study(rng, random_world(rng, 2), 400),
    "random head sets of unlike tasks, n = 2,000": lambda rng: study(rng, random_world(rng, 2, shared=0.0), 2000),
    "random head sets, 2 tasks, n = 50": lambda rng: study(rng, random_world(rng, 2), 50),
    "random head sets, 5 tasks, n = 400": lambda rng: study(rng, random_world(rng, 5), 400),
    "lesion outcomes drawn alike, n = 400": lambda rng: same_law(rng, 400),
    "equal lesion outcomes, n = 20": lambda rng: same_outcome(rng, 20),
    "equal lesion outcomes, n = 50": lambda rng: same_outcome(rng, 50),
    "equal lesion outcomes, n = 200": lambda rng: same_outcome(rng, 200),
}
PLANTED: dict[str, Callable[[np.random.Generator], Dissociation]] = {
    f"planted heads, {tasks} tasks, strength {strength:g}": (
        lambda rng, tasks=tasks, strength=strength: study(rng, planted_world(rng, tasks, strength), 400)
    )
    for tasks in (2, 5)
    for strength in (0.5, 1, 2, 4)
}
LAYERED: dict[str, Callable[[np.random.Generator], Dissociation]] = {
    "only the layer matters, 2 tasks": lambda rng: study(rng, layered_world(rng, 2, 1.0), 400),
}
SENTENCES = {  # of a verdict
    "mean D": "significantly more than random head sets",
    "double": "Double dissociation: ",
    "layers": "The layers alone do not explain it",
}


CLAIMS = (*SENTENCES, "a task")  # the last is a colour on the page
ROWS_ALONE = ("mean D by rows alone", "double by rows alone")  # what the same data gives if head sets count as fixed


def claims(found: Dissociation) -> dict[str, bool]:
    """What is claimed of a dissociation, by the verdict's sentences and by the colours of the page."""
    record = found.to_record()
    text = " ".join(verdict({"dissociation": record}, 0.3))
    d = record["D"][0]
    below = lambda p: p is not None and p < 0.05  # noqa: E731
    said = {name: words in text for name, words in SENTENCES.items()}
    said["a task"] = any(below(task["p_holm"]) for task in d["tasks"].values())
    said["mean D by rows alone"] = below(d["mean"]["p_rows"])
    said["double by rows alone"] = any(
        below(p["p_rows"]) and p["verdict"] in ("distinct", "double") for p in d["pairs"]
    )
    return said


def rates(scenario: Callable[[np.random.Generator], Dissociation], runs: int, seed: int = 0) -> dict[str, float]:
    """How often each claim is made."""
    found = [claims(scenario(np.random.default_rng([seed, run]))) for run in range(runs)]
    return {name: float(np.mean([one[name] for one in found])) for name in found[0]}


# -- null rows: what compares answers of the same rows

ROW_METRICS = ("accuracy", "f1", "mcc")


def changed(rng: np.random.Generator, n: int, metric: str) -> Estimate:
    """Two models, or a lesion that does nothing on the whole: other rows are right, as many in truth."""
    golds = rng.random(n) < 0.4
    wrong = ~rows(rng, np.array([0.8, 0.8]), n)
    before, after = (metrics[metric].counts((golds ^ w).astype(int), golds.astype(int)) for w in wrong.T)
    if before.shape != after.shape:
        return Estimate(0.0, 0.0, 0.0, math.nan)
    return change(after, before, metrics[metric].value, 1000, int(rng.integers(2**31)))


def shared_heads(rng: np.random.Generator, tasks: int) -> list[str]:
    """What is said of the overlap of head sets that are drawn independently."""
    scores = {f"task {i}": {"scores": rng.random((LAYERS, HEADS)).tolist()} for i in range(tasks)}
    return verdict({"importance": scores}, 0.3)


# -- coverage


def share_coverage(n: int, truth: float) -> float:
    """Exact: of the interval of an accuracy."""
    right = np.arange(n + 1)
    low, high = intervals.of_share(right, n)
    return float(binom.pmf(right, n, truth)[(low <= truth) & (truth <= high)].sum())


def metric_coverage(metric: str, accuracy: float, n: int, runs: int) -> float:
    """Of the interval of a metric of two classes."""
    truth = _score(np.random.default_rng(0), metric, accuracy, 400_000).sum(0)
    value, hits = metrics[metric].value, 0
    for run in range(runs):
        found = bootstrap(_score(np.random.default_rng([n, run]), metric, accuracy, n), value, 1000, run)
        hits += bool(found.low - 1e-12 <= value(truth) <= found.high + 1e-12)
    return hits / runs


def _score(rng: np.random.Generator, metric: str, accuracy: float, n: int) -> np.ndarray:
    golds = rng.random(n) < 0.4
    predictions = golds ^ (rng.random(n) > accuracy)
    if metric == "answer_f1":  # of the answers that are not right, half overlap
        partly = np.where(rng.random(n) < 0.5, rng.random(n), 0)
        return np.stack([np.where(predictions == golds, 1.0, partly), np.ones(n)], 1)
    return metrics[metric].counts(predictions.astype(int), golds.astype(int))


def change_coverage(pair: tuple[float, float], n: int, runs: int) -> float:
    """Of the interval of a change of accuracy on the same rows."""
    hits = 0
    for run in range(runs):
        before, after = rows(np.random.default_rng([n, run]), np.array(pair), n).T
        made = [counts(right[:, None]).counts[:, 0, 0] for right in (after, before)]
        found = change(*made, share)
        hits += bool(found.low - 1e-9 <= pair[1] - pair[0] <= found.high + 1e-9)
    return hits / runs


TRUTHS = {  # accuracies (tasks; whole, under each task's heads) of which D is a difference
    "lesions that tell": [[0.9, 0.6, 0.75], [0.85, 0.7, 0.55]],
    "equal lesions": [[0.9, 0.7, 0.7], [0.85, 0.7, 0.7]],
    "near the ceiling": [[0.98, 0.90, 0.97], [0.99, 0.98, 0.90]],
    "at the ceiling": [[0.99, 0.98, 0.99], [0.99, 0.99, 0.98]],
}


def d_coverage(truth: list[list[float]], n: int, runs: int) -> tuple[float, float]:
    """Of the intervals of every task's D, and of mean D."""
    d = per_task(pairwise(np.array(truth)))
    each, mean = [], []
    for run in range(runs):
        rng = np.random.default_rng([n, run])
        made = [counts(rows(rng, np.array(row), n)) for row in truth]
        found = Dissociation.of(["a", "b"], counts=made, resamples=500, seed=run, undefined="leave").to_record()["D"][0]
        each += [_within(found["tasks"][task], value) for task, value in zip("ab", d)]
        mean.append(_within(found["mean"], d.mean()))
    return float(np.mean(each)), float(np.mean(mean))


def _within(cell: dict[str, float], truth: float) -> bool:
    return cell["low"] - 1e-9 <= truth <= cell["high"] + 1e-9


# -- tables


def row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def header(*cells: str) -> str:
    return f"\n{row(*cells)}\n{row('---', *['---:'] * (len(cells) - 1))}"


def percent(*values: float) -> list[str]:
    return [f"{100 * value:.1f}" for value in values]


def alarms(scenarios: dict[str, Callable], runs: int) -> Iterator[str]:
    yield header(f"percent of {runs} studies", *CLAIMS, *ROWS_ALONE)
    for number, (name, scenario) in enumerate(scenarios.items()):
        found = rates(scenario, runs, seed=100 + number)
        yield row(name, *percent(*(found[claim] for claim in (*CLAIMS, *ROWS_ALONE))))


def null_rows(runs: int) -> Iterator[str]:
    sizes = (20, 50, 200)
    yield header(f"percent of {runs} comparisons", *(f"n = {n}" for n in sizes))
    for metric in ROW_METRICS:
        p = [[changed(np.random.default_rng([7, n, run]), n, metric).p for run in range(runs)] for n in sizes]
        yield row(f"change of {metric}", *percent(*(float(np.mean(np.array(each) < 0.05)) for each in p)))
    said = [shared_heads(np.random.default_rng([8, run]), 3)[-1] for run in range(runs)]
    yield row(
        "more or fewer shared heads", *percent(float(np.mean(["than random sets" in line for line in said]))), "", ""
    )


def coverages(runs: int) -> Iterator[str]:
    sizes = (20, 50, 100, 200)
    yield header(f"percent of {runs} intervals of", *(f"n = {n}" for n in sizes))
    for truth in (0.5, 0.8, 0.9, 0.95, 0.98, 0.99):
        yield row(f"accuracy {truth:g} (exact)", *percent(*(share_coverage(n, truth) for n in sizes)))
    for metric, right in product(("f1", "mcc", "macro_f1", "answer_f1"), (0.8, 0.95, 0.98)):
        yield row(
            f"{metric}, {right:.0%} of rows right", *percent(*(metric_coverage(metric, right, n, runs) for n in sizes))
        )
    for pair in ((0.8, 0.8), (0.9, 0.6), (0.98, 0.95), (0.99, 0.99)):
        shown = percent(*(change_coverage(pair, n, runs) for n in sizes))
        yield row(f"change of accuracy from {pair[0]:g} to {pair[1]:g}", *shown)
    for name, truth in TRUTHS.items():
        both = zip(*(d_coverage(truth, n, runs) for n in sizes))
        yield from (row(f"{what}, {name}", *percent(*each)) for what, each in zip(("D", "mean D"), both))


def main(runs: int, intervals: int) -> None:
    for part in (alarms(NULLS, runs), null_rows(runs), alarms(LAYERED | PLANTED, runs // 5), coverages(intervals)):
        for line in part:
            print(line, flush=True)


if __name__ == "__main__":
    given = [int(number) for number in sys.argv[1:]]  # studies of each kind, and intervals
    main(given[0] if given else 1000, given[-1] if given else 1000)
