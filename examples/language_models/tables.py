"""Records of the study and their tables (no torch)."""

from __future__ import annotations

from typing import Any

import numpy as np

from headwise.io.records import Record, Results
from headwise.papers.summary import mean_sd, table

Table = dict[str, Any]
CLOSES = ("zero", "mean", "resample")


class Records:
    """The records of a folder by what they are; of several sizes, the largest."""

    def __init__(self, results: Results):
        self.all = sorted(results, key=_rows, reverse=True)
        self.models = sorted({record.config["model"] for record in self.all}, reverse=True)
        self.seeds = sorted({record.config["seed"] for record in self.all})
        self.first = self.seeds[0]

    def find(self, work: str, model: str, **more: Any) -> Record | None:
        """The record of a work with these settings."""
        wanted = {"model": model, **more}
        found = (r for r in self.all if r.work == work and all(r.config.get(k) == v for k, v in wanted.items()))
        return next(found, None)

    def each(self, work: str, model: str, **more: Any) -> list[Record]:
        """One record for each seed that there is."""
        found = (self.find(work, model, seed=seed, **more) for seed in self.seeds)
        return [record for record in found if record is not None]

    def tasks(self, model: str) -> list[str]:
        record = next(iter(self.each("intact", model)), None)
        return list(record.result) if record else []

    def learned(self, model: str) -> list[str]:
        """The tasks that the model, as it is, answers better than a constant answer."""
        record = next(iter(self.each("intact", model)), None)
        return [task for task, score in record.result.items() if score["learned"]] if record else []

    def signed(self, model: str, task: str, seed: int) -> np.ndarray | None:
        record = self.find("importance", model, seed=seed)
        return None if record is None else record.arrays[f"{task}/signed"]

    def scores(self, model: str, task: str, seed: int) -> np.ndarray | None:
        record = self.find("importance", model, seed=seed)
        return None if record is None else record.arrays[f"{task}/scores"]


def _rows(record: Record) -> float:
    """How much was measured: rows, examples or steps; all rows are the most."""
    counts = [record.config[name] for name in ("rows", "examples", "steps") if name in record.config]
    return max((float("inf") if count is None else count for count in counts), default=0)


def share(value: float | None) -> float | None:
    return None if value is None else 100 * value


def spread(values: list[float | None]) -> tuple[float | None, float | None]:
    mean, sd = mean_sd(values)
    return share(mean), share(sd)


def intact_table(records: Records) -> Table:
    rows = []
    for model in records.models:
        first = next(iter(records.each("intact", model)), None)
        for task, score in first.result.items() if first else ():
            others = [r.result[task]["value"] for r in records.each("intact", model)]
            low, high = (100 * score[end] for end in ("low", "high"))
            same = task.startswith("blimp")  # minimal pairs have no wording
            mean, sd = (None, None) if same or len(others) < 2 else spread(others)
            value, constant = 100 * score["value"], 100 * score["baseline"]
            rows.append([model, task, score["metric"], value, low, high, constant, mean, sd, score["n"]])
    note = "Low, high: 95 % over rows. Constant: the best constant answer. Mean, sd: over the wordings of all seeds."
    columns = ["model", "task", "metric", "seed 1", "low", "high", "constant", "mean", "sd", "rows"]
    return table("What the models answer", columns, rows, note)


def answers_table(records: Records) -> Table:
    rows = []
    for model in records.models:
        for record in records.each("intact", model):
            for task, score in record.result.items():
                counts = score.get("answers") or []
                if task.startswith("blimp") or task == "copying" or not counts:
                    continue
                said = ", ".join(f"{answered} ({right})" for answered, right in counts)
                rows.append([model, task, record.config["seed"], said, 100 * score["value"], score.get("margin")])
    note = "Of each class: how often it was answered and, in parentheses, how often it is right. Margin: mean, in nats."
    return table("Counts of answers", ["model", "task", "seed", "answers (right)", "accuracy", "margin"], rows, note)


def lesion_rows(records: Records, model: str, close: str, fraction: float) -> dict[str, list[float]]:
    """Performance of every task under no lesion, under the lesion of each task, and the mean of random ones."""
    record = records.find("lesions", model, seed=records.first, close=close)
    if record is None:
        return {}
    result = record.result
    f = result["fractions"].index(fraction)
    tasks, found = result["tasks"], {}
    for task, row in zip(tasks, result["performance"][f]):
        found[task] = [*row[: len(tasks) + 1], float(np.mean(row[len(tasks) + 1 :]))]
    return found


def lesion_tables(records: Records) -> list[Table]:
    made = []
    for model in records.models:
        for close in CLOSES:
            record = records.find("lesions", model, seed=records.first, close=close)
            if record is None:
                continue
            rows = lesion_rows(records, model, close, record.result["default"])
            if rows:
                columns = ["task", "none", *rows, "random"]
                shown = [[task, *(100 * value for value in values)] for task, values in rows.items()]
                alpha = f"{100 * record.result['default']:g} %"
                n = sorted(set(record.result["n"].values()))
                note = (
                    f"Rows are tasks, columns the task whose top {alpha} of heads are closed; {n[0]} to {n[-1]} rows."
                )
                made.append(table(f"{model}, closed heads return: {close}", columns, shown, note))
    return made


def d_table(records: Records) -> Table:
    rows = []
    for model in records.models:
        for close in CLOSES:
            for record in records.each("lesions", model, close=close):
                for entry in record.result["D"]:
                    on = record.result["on"]
                    at = record.result["fractions"].index(entry["fraction"])
                    margin = on["margin"][at]["mean"] if "margin" in on else {"value": None, "p": None}
                    mean = entry["mean"]
                    values = [share(mean["value"]), share(mean["low"]), share(mean["high"]), mean["p"]]
                    values += [mean.get("p_layers"), share(margin["value"]), margin["p"]]
                    rows.append([model, close, record.config["seed"], 100 * entry["fraction"], *values])
    note = (
        "Low, high: 95 % over rows. p: one-sided, of dealing the tasks' own and the random head sets anew; p layers: "
        "against random sets with as many heads in every layer, at 10 % only. Margin: D by margins in nats, of the "
        "tasks with choices."
    )
    columns = ["model", "close", "seed", "closed %", "D %", "low", "high", "p", "p layers", "D margin", "p margin"]
    return table("D of all tasks", columns, rows, note)


def task_d_table(records: Records) -> Table:
    rows = []
    for model in records.models:
        found = {close: records.find("lesions", model, seed=records.first, close=close) for close in CLOSES}
        for task in records.tasks(model):
            cells: list[Any] = []
            for record in found.values():
                entry = record and next(e for e in record.result["D"] if e["fraction"] == record.result["default"])
                cell = entry["tasks"][task] if entry else {"value": None, "p_holm": None}
                cells += [share(cell["value"]), cell["p_holm"]]
            rows.append([model, task, *cells])
    columns = ["model", "task", *(f"{name} {close}".strip() for close in CLOSES for name in ("D %", "p"))]
    note = "p after Holm over the tasks of a model. Seed 1, 10 % of heads closed."
    return table("D of each task", columns, rows, note)


def role_counts(records: Records) -> list[tuple[str, str, dict[str, int], Record]]:
    found = []
    for model in records.models:
        for task in records.tasks(model):
            record = records.find("gating", model, task=task)
            if record is not None:
                flat = [role for row in record.result["roles"] for role in row if role]
                counts = {role: flat.count(role) for role in ("facilitates", "irrelevant", "interferes")}
                found.append((model, task, counts, record))
    return found


def role_table(records: Records) -> Table:
    rows = []
    for model, task, counts, record in role_counts(records):
        signed, stderr = record.arrays["signed"], record.arrays["signed_stderr"]
        most = [_named(signed, stderr, +1), _named(signed, stderr, -1)]
        rows.append([model, task, *counts.values(), *most])
    note = (
        "Gates fitted twice, pushed open and pushed closed, four seeds each. Signed: their sum less 1, ± two standard "
        "errors over seeds; near 1 a head facilitates, near -1 it interferes."
    )
    columns = ["model", "task", "facilitate", "irrelevant", "interfere", "highest signed", "lowest signed"]
    return table("Causal head gating", columns, rows, note)


def _named(signed: np.ndarray, stderr: np.ndarray, sign: int) -> str:
    values = np.where(np.isnan(signed), -np.inf, sign * signed)
    layer, head = np.unravel_index(int(values.argmax()), signed.shape)
    return f"{layer}.{head}: {signed[layer, head]:+.2f} ± {2 * stderr[layer, head]:.2f}"


def top_heads(scores: np.ndarray, fraction: float = 0.1) -> set[int]:
    count = max(1, int(fraction * scores.size + 1e-6))
    return set(np.argsort(-np.nan_to_num(scores, nan=-np.inf), axis=None, kind="stable")[:count].tolist())


def overlap_table(records: Records) -> Table:
    """How many of a task's top heads the wordings share, beside how many different tasks share."""
    rows = []
    for model in records.models:
        for task in records.tasks(model):
            maps = [records.scores(model, task, seed) for seed in records.seeds]
            sets = [top_heads(scores) for scores in maps if scores is not None]
            pairs = [len(a & b) / len(a) for i, a in enumerate(sets) for b in sets[i + 1 :]]
            others = [records.scores(model, other, records.first) for other in records.tasks(model) if other != task]
            across = [len(sets[0] & top_heads(o)) / len(sets[0]) for o in others if o is not None] if sets else []
            record = records.find("importance", model, seed=records.first)
            about = record.result["tasks"][task] if record else {}
            wording = None if task.startswith("blimp") or not pairs else 100 * float(np.mean(pairs))
            rows.append(
                [
                    model,
                    task,
                    share(about.get("split_half")),
                    wording,
                    100 * float(np.mean(across)),
                    about.get("harmful"),
                ]
            )
    note = (
        "Shares of the top 10 % of heads: that two halves of the examples have in common, that two wordings do, and "
        "that the task shares with another one on average. Harmful: heads whose closing lowers the loss to first "
        "order, by more than two standard errors."
    )
    columns = ["model", "task", "halves %", "wordings %", "other tasks %", "harmful"]
    return table("Do other words need other heads?", columns, rows, note)
