"""Few-shot transfer: a new task learned from a handful of rows, from several starting points, over many seeds."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headwise.errors import HeadwiseError, unknown
from headwise.measuring.evaluate import evaluate
from headwise.measuring.stats import Estimate, adjust, paired_bootstrap
from headwise.models.batching import encode
from headwise.models.multitask import MultiTaskModel
from headwise.tasks.task import Row, Rows, Task
from headwise.training.loop import fit
from headwise.training.plan import Plan

SHOTS = (4, 16, 32, 100)
PLAN = Plan(epochs=20, evaluate_every=0, checkpoint_every=0)  # Li et al. 2023, A.2: 20 epochs, the rest as elsewhere
LEVEL = 0.05  # of the stars


@dataclass(frozen=True)
class Transfer:
    """Scores of a new task from each starting point, number of rows and seed.

    Seeds are paired: at one seed every starting point sees the same rows in the same order under the same new output
    head. The first starting point is the one the others are compared with.
    """

    task: str
    metric: str
    starts: tuple[str, ...]
    shots: tuple[int, ...]
    seeds: tuple[int, ...]
    scores: np.ndarray  # (starts, shots, seeds)
    examples: int  # rows each score was measured on

    def __post_init__(self) -> None:
        expected = (len(self.starts), len(self.shots), len(self.seeds))
        if self.scores.shape != expected:
            raise HeadwiseError(f"scores of shape {self.scores.shape}", f"(starts, shots, seeds) = {expected}")

    @property
    def mean(self) -> np.ndarray:
        """Over seeds, ``(starts, shots)``."""
        return self.scores.mean(-1)

    @property
    def sd(self) -> np.ndarray:
        """Over seeds, ``(starts, shots)``; NaN for a single seed."""
        one = len(self.seeds) < 2
        return np.full(self.scores.shape[:2], np.nan) if one else self.scores.std(-1, ddof=1)

    def beats(self, a: str, b: str, shots: int) -> Estimate:
        """The difference of A and B over seeds with the one-sided p of "A is better", by the paired bootstrap (Dror et
        al. 2018), below 20 seeds by Student's t; NaN for one seed."""
        for name in (a, b):
            if name not in self.starts:
                raise unknown("starting point", name, self.starts)
        if shots not in self.shots:
            raise unknown("number of shots", shots, map(str, self.shots))
        at = self.shots.index(shots)
        return paired_bootstrap(self.scores[self.starts.index(a), at], self.scores[self.starts.index(b), at])

    def against(self, reference: str | None = None) -> list[dict[str, Any]]:
        """Every starting point against one of them: difference, interval, p, p after Holm over all of these, and a star
        where that is below 0.05 (the paper's Table 6 has stars by p itself)."""
        reference = self.starts[0] if reference is None else reference
        rows = []
        for start, shots in itertools.product(self.starts, self.shots):
            if start != reference:
                estimate = self.beats(start, reference, shots)
                row = {
                    "start": start,
                    "shots": shots,
                    "difference": estimate.value,
                    "low": estimate.low,
                    "high": estimate.high,
                }
                rows.append(
                    {k: v if isinstance(v, str | int) else float(v) for k, v in row.items()} | {"p": estimate.p}
                )
        for row, joint in zip(rows, adjust(np.array([row["p"] for row in rows]))):
            row |= {"p": float(row["p"]), "holm": float(joint), "star": bool(joint < LEVEL)}
        return rows

    @classmethod
    def side_by_side(cls, parts: Sequence[Transfer]) -> Transfer:
        """Starting points measured apart, as one result; task, shots and seeds must agree."""
        first = parts[0]
        for part in parts[1:]:
            if (part.task, part.metric, part.shots, part.seeds, part.examples) != (
                *(first.task, first.metric, first.shots, first.seeds, first.examples),
            ):
                raise HeadwiseError(f"{part.task} over {part.shots} and {len(part.seeds)} seeds", "the same for all")
        starts = tuple(start for part in parts for start in part.starts)
        if len(set(starts)) < len(starts):
            raise HeadwiseError(f"starting points {starts}", "a name for each")
        scores = np.concatenate([part.scores for part in parts])
        return cls(first.task, first.metric, starts, first.shots, first.seeds, scores, first.examples)

    def to_record(self) -> dict[str, Any]:
        sd = [[None if cell != cell else cell for cell in row] for row in self.sd.tolist()]
        tests = [{k: None if v != v else v for k, v in row.items()} for row in self.against()]
        about = {"task": self.task, "metric": self.metric, "starts": list(self.starts), "shots": list(self.shots)}
        about |= {"seeds": list(self.seeds), "examples": self.examples, "scores": self.scores.tolist()}
        return about | {"mean": self.mean.tolist(), "sd": sd, "against": tests}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Transfer:
        starts, shots, seeds = (tuple(record[name]) for name in ("starts", "shots", "seeds"))
        scores = np.asarray(record["scores"], float)
        return cls(record["task"], record["metric"], starts, shots, seeds, scores, record["examples"])

    def __str__(self) -> str:
        """The table in percent; an asterisk marks what beats the first starting point at the 5 % level, after Holm."""
        stars = {(row["start"], row["shots"]): "*" for row in self.against() if row["star"]}
        lines = [[self.task, *(f"{n} shots" for n in self.shots)]]
        for start, means, sds in zip(self.starts, 100 * self.mean, 100 * self.sd):
            spread = [f" ± {sd:.1f}" if sd == sd else "" for sd in sds]
            cells = [f"{m:.2f}{s}{stars.get((start, n), ' ')}" for n, m, s in zip(self.shots, means, spread)]
            lines.append([start, *cells])
        widths = [max(map(len, column)) for column in zip(*lines)]
        table = ["  ".join(word.ljust(width) for word, width in zip(line, widths)).rstrip() for line in lines]
        note = (
            f"{self.metric} over {len(self.seeds)} seeds, n = {self.examples}; "
            f"* beats {self.starts[0]} (one-sided p < {LEVEL} after Holm)"
        )
        return "\n".join([*table, note])


def transfer(
    starts: Mapping[str, MultiTaskModel | str | Path],
    task: Task | str,
    shots: Sequence[int] = SHOTS,
    seeds: int | Sequence[int] = 30,
    *,
    plan: Plan = PLAN,
    split: str = "dev",
    limit: int | None = None,
    balanced: bool = True,
    tasks: Sequence[Task] = (),
    device: str | None = None,
    log: Callable[[str], None] = lambda line: None,
) -> Transfer:
    """Fine-tune on a few rows of a new task from each starting point, seed by seed.

    Args:
        starts: trained models or their folders by name; the first is what the others are compared with.
        task: the new task.
        shots: numbers of training rows, in all; at one seed the smaller sets are parts of the larger ones.
        seeds: how many, or which.
        plan: of each fine-tuning; its seed is taken from ``seeds``.
        split: measured on this split.
        limit: on a seeded sample of this many rows.
        balanced: rows spread over the classes as evenly as their number allows.
        tasks: the starting points' own tasks, where they are not in the catalog.
        device: "cpu" forces the CPU.
        log: called with a line for every starting point and number of shots.

    Example:
        >>> result = transfer({"plain": "runs/plain/model", "IAT": "runs/iat/model"}, "scitail", seeds=30)
        >>> print(result)
    """
    from headwise import tasks as catalog

    new = (catalog.get(task) if isinstance(task, str) else task).ready()
    seeds = tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)
    _check(starts, new, shots, seeds, plan)
    plan = plan.with_(evaluate_every=0, checkpoint_every=0)  # a few rows leave none to validate on
    rows = new.rows("train")
    chosen = {seed: [rows[n] for n in shuffled(rows, seed, balanced)[: max(shots)]] for seed in seeds}
    scores, examples = np.empty((len(starts), len(shots), len(seeds))), 0
    for i, (name, start) in enumerate(starts.items()):
        place = _Place(start, new, split, limit, tasks, device)
        for j, number in enumerate(shots):
            for k, seed in enumerate(seeds):
                scores[i, j, k], examples = place.score(chosen[seed][:number], plan.with_(seed=seed))
            log(f"{name}, {number} shots of {new.name}: {100 * scores[i, j].mean():.2f} over {len(seeds)} seeds")
    return Transfer(new.name, new.metric, tuple(starts), tuple(shots), seeds, scores, examples)


def _check(starts: Mapping, task: Task, shots: Sequence[int], seeds: Sequence[int], plan: Plan) -> None:
    if plan.patience is not None:
        raise HeadwiseError(f"patience={plan.patience}", "none: a few rows have no development rows beside them")
    if not shots:
        raise HeadwiseError("no numbers of shots", "one or more", f"shots={SHOTS}")
    if not starts or not seeds or len(set(seeds)) < len(seeds):
        raise HeadwiseError(f"{len(starts)} starting points, seeds {list(seeds)}", "one or more, each seed once")
    there = len(task.rows("train"))
    for number in shots:
        if not 0 < number <= there:
            raise HeadwiseError(f"{number} shots of {task.name}", f"1 to {there}, its training rows")


def shuffled(rows: Sequence[Row], seed: int, balanced: bool = True) -> np.ndarray:
    """The rows' numbers in a seeded order, of which n shots are the first n; balanced, the classes take turns.

    Example:
        >>> rows = [{"label": "a"}] * 5 + [{"label": "b"}] * 2
        >>> [rows[i]["label"] for i in shuffled(rows, seed=1)[:4]]
        ['b', 'a', 'a', 'b']
    """
    generator = np.random.default_rng([seed, 5])
    order = generator.permutation(len(rows))
    if not balanced or not all(isinstance(row.get("label"), str) for row in rows):
        return order
    classes = sorted({row["label"] for row in rows})
    turns = {label: [i for i in order if rows[i]["label"] == label] for label in classes}
    longest = max(map(len, turns.values()))
    mixed = (generator.permutation(len(classes)) for _ in range(longest))  # every round begins with another class
    return np.array([turns[classes[c]][r] for r, who in enumerate(mixed) for c in who if r < len(turns[classes[c]])])


class _Place:
    """A starting point with everything that its many fine-tunings share: weights at hand, held-out rows tokenised."""

    def __init__(self, start: Any, task: Task, split: str, limit: int | None, tasks: Sequence[Task], device: Any):
        source = start if isinstance(start, MultiTaskModel) else MultiTaskModel.load(start, tasks)
        shape = (source.pooling, source.layer, source.use_heads, source.max_length)
        self.model = MultiTaskModel(copy.deepcopy(source.encoder), source.tokenizer, [task], *shape)
        self.weights = {name: value.clone() for name, value in self.model.encoder.state_dict().items()}
        self.task, self.split, self.limit, self.device = task, split, limit, device
        self.held_out = encode(task, split, source.tokenizer, source.max_length, limit)

    def score(self, rows: Sequence[Row], plan: Plan) -> tuple[float, int]:
        """One fine-tuning from the start: the task's score and the number of rows it was measured on."""
        name = self.task.name
        self.model.encoder.load_state_dict(self.weights)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(plan.seed)
            (key,) = self.model.heads
            self.model.heads[key] = self.task.kind.head(self.model.width)
        self.model.tasks[name] = replace(self.task, source=Rows(train=rows))
        fit(self.model, plan, device=self.device)
        self.model.tasks[name] = self.task
        score = evaluate(self.model, name, split=self.split, limit=self.limit, data=self.held_out)
        return score.value, score.examples
