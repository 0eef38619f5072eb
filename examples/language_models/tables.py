"""Records of the study and their tables (no torch)."""

from __future__ import annotations

from typing import Any

import numpy as np

from headwise.dissociation.significance import gaps, over_random, per_task, relative
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
        matching = (r for r in self.all if r.work == work and all(r.config.get(k) == v for k, v in wanted.items()))
        return next(matching, None)

    def each(self, work: str, model: str, **more: Any) -> list[Record]:
        """One record for each seed that there is."""
        records = (self.find(work, model, seed=seed, **more) for seed in self.seeds)
        return [record for record in records if record is not None]

    def tasks(self, model: str) -> list[str]:
        record = next(iter(self.each("intact", model)), None)
        return list(record.result) if record else []

    def learned(self, model: str) -> list[str]:
        """The tasks that the model, as it is, answers better than a constant answer."""
        record = next(iter(self.each("intact", model)), None)
        return [task for task, score in record.result.items() if score["learned"]] if record else []

    def scores(self, model: str, task: str, seed: int) -> np.ndarray | None:
        record = self.find("importance", model, seed=seed)
        return None if record is None or task not in record.result["tasks"] else record.arrays[f"{task}/scores"]


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
    note = (
        "Low, high: 95 % over rows. Constant: the best constant answer. Mean, sd: over the wordings of all seeds (of "
        "copying: other words)."
    )
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


def lesion_rows(record: Record) -> dict[str, list[float | None]]:
    """Of every task: under no lesion, the lesion of each task, random sets, and sets in the layers of its own heads."""
    result, rows = record.result, {}
    tasks, f = result["tasks"], result["fractions"].index(result["default"])
    layered = np.array(result["matched_performance"], float)  # (T, T, M)
    for i, (task, row) in enumerate(zip(tasks, result["performance"][f])):
        alike = float(layered[i, i].mean()) if layered.size else None
        rows[task] = [*row[: len(tasks) + 1], float(np.mean(row[len(tasks) + 1 :])), alike]
    return rows


def left(record: Record, learned: list[str]) -> tuple[float, float, float | None] | None:
    """Percent of its score that a learned task keeps without its heads, random ones, random ones of their layers."""
    kept = []
    for place, (task, (whole, *values)) in enumerate(lesion_rows(record).items()):
        if task in learned:
            kept.append([100 * value / whole for value in (values[place], *values[-2:]) if value is not None])
    if not kept:
        return None
    own, random, *alike = np.mean(kept, 0).tolist()
    return own, random, alike[0] if alike else None


def lesion_tables(records: Records) -> list[Table]:
    made = []
    for model in records.models:
        for close in CLOSES:
            record = records.find("lesions", model, seed=records.first, close=close)
            if record is None:
                continue
            rows, matched = lesion_rows(record), record.result["matched"]
            columns = ["task", "none", *rows, "random", *(["same layers"] if matched else [])]
            shown = [[task, *map(share, values[: len(columns) - 1])] for task, values in rows.items()]
            numbers = sorted(set(record.result["n"].values()))
            note = (
                f"Rows are tasks, columns the task whose top {100 * record.result['default']:g} % of heads are closed; "
                f"{' to '.join(map(str, numbers))} rows, {record.config['dtype']}. "
                f"Random: mean of {record.result['random']} sets. "
            )
            if matched:
                note += (
                    f"Same layers: mean of {matched} random sets with as many heads in each layer as the task's own."
                )
            made.append(table(f"{model}, closed heads return: {close}", columns, shown, note.strip()))
    return made


def learned_d(records: Records, record: Record) -> tuple[list[str], float, float]:
    """Mean D over the learned tasks alone, and its p-value: the test of the record, without the other tasks' rows."""
    result, learned = record.result, records.learned(record.config["model"])
    tasks = result["tasks"]
    kept = [i for i, task in enumerate(tasks) if task in learned]
    whole = np.array(result["performance"][result["fractions"].index(result["default"])], float)
    if len(kept) < 2:
        return [tasks[i] for i in kept], float("nan"), float("nan")
    columns = [0, *(1 + i for i in kept), *range(1 + len(tasks), whole.shape[1])]
    rp = relative(whole[kept][:, columns])[:, 1:]
    d = float(per_task(gaps(rp[:, : len(kept)])).mean())
    return [tasks[i] for i in kept], d, over_random(rp).mean


def d_table(records: Records) -> Table:
    rows = []
    for model in records.models:
        for close in CLOSES:
            for record in records.each("lesions", model, close=close):
                entry = next(e for e in record.result["D"] if e["fraction"] == record.result["default"])
                mean, (tasks, d, p) = entry["mean"], learned_d(records, record)
                how = [record.config["dtype"], record.config["rows"], len(tasks), _number(share(d)), _number(p)]
                every = [len(record.result["tasks"]), share(mean["value"]), share(mean["low"]), share(mean["high"])]
                rows.append([model, close, record.config["seed"], *how, *every, mean["p"]])
    note = (
        "Learned: D over the tasks that the model answers better than a constant. All: over every task that was "
        "evaluated, with its 95 % interval over rows. p: one-sided, by permuting the tasks' own and the random head "
        "sets."
    )
    columns = [
        "model",
        "close",
        "seed",
        "dtype",
        "rows",
        "learned",
        "D %",
        "p",
        "all",
        "D % all",
        "low",
        "high",
        "p all",
    ]
    return table("Mean D", columns, rows, note)


def _number(value: float | None) -> float | None:
    return None if value is None or np.isnan(value) else value


def task_d_tables(records: Records) -> list[Table]:
    """D of each learned task, by its own metric and by margins."""
    made = []
    for title, metric in (("D of each task", None), ("D of each task by margins", "margin")):
        rows = []
        for model in records.models:
            lesioned = [records.find("lesions", model, seed=records.first, close=close) for close in CLOSES]
            for task in records.learned(model):
                cells = [cell for record in lesioned for cell in _d_of(record, task, metric)]
                if any(cell is not None for cell in cells):
                    rows.append([model, task, *cells])
        columns = ["model", "task", *(f"{name} {close}" for close in CLOSES for name in ("D %", "p"))]
        note = "p after Holm over the tasks of a model and way of closing. Seed 1, 10 % of heads closed."
        note += " In percent of the whole model's margin, of tasks with choices whose margin is above 0." * bool(metric)
        made += [table(title, columns, rows, note)] if rows else []
    return made


def _d_of(record: Record | None, task: str, metric: str | None) -> list[Any]:
    if record is None or task not in record.result["tasks"]:
        return [None, None]
    of = record.result["on"].get(metric, []) if metric else record.result["D"]
    entry = next((e for e in of if e["fraction"] == record.result["default"]), None)
    cell = entry["tasks"][task] if entry else {"value": None, "p_holm": None}
    return [share(cell["value"]), cell["p_holm"]]


def role_counts(records: Records) -> list[tuple[str, str, dict[str, int], Record]]:
    entries = []
    for model in records.models:
        for task in records.tasks(model):
            record = records.find("gating", model, task=task)
            if record is not None:
                flat = [role for row in record.result["roles"] for role in row if role]
                counts = {role: flat.count(role) for role in ("facilitates", "irrelevant", "interferes")}
                entries.append((model, task, counts, record))
    return entries


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


def concentration(records: Records, model: str) -> tuple[tuple[float, float], float, float]:
    """Of the learned tasks' top heads: the fewest and most percent two share, percent in two layers; by chance."""
    maps = [records.scores(model, task, records.first) for task in records.learned(model)]
    width, size = next((m.shape[1], m.size) for m in maps if m is not None)
    sets = [top_heads(scores) for scores in maps if scores is not None]
    shared = [100 * len(a & b) / len(a) for i, a in enumerate(sets) for b in sets[i + 1 :]]
    first = [100 * sum(head < 2 * width for head in each) / len(each) for each in sets]
    return (min(shared), max(shared)), float(np.mean(first)), 2 * width / size


def overlap_table(records: Records) -> Table:
    """How many of a task's top heads the wordings share, beside how many different tasks share."""
    rows = []
    for model in records.models:
        known = {t: s for t in records.tasks(model) if (s := records.scores(model, t, records.first)) is not None}
        for task in known:
            maps = [records.scores(model, task, seed) for seed in records.seeds]
            sets = [top_heads(scores) for scores in maps if scores is not None]
            pairs = [len(a & b) / len(a) for i, a in enumerate(sets) for b in sets[i + 1 :]]
            across = [len(sets[0] & top_heads(s)) / len(sets[0]) for t, s in known.items() if t != task]
            record = records.find("importance", model, seed=records.first)
            about = record.result["tasks"][task] if record else {}
            wording = (
                None if task.startswith("blimp") or task == "copying" or not pairs else 100 * float(np.mean(pairs))
            )
            rows.append(
                [
                    model,
                    task,
                    share(about.get("split_half")),
                    wording,
                    100 * float(np.mean(across)),
                    about.get("harmful"),
                    about.get("examples"),
                    record.config["dtype"] if record else None,
                ]
            )
    note = (
        "Overlap of the top 10 % of heads: between two halves of the examples, between two wordings, and with another "
        "task on average. Harmful: heads whose closing lowers the loss to first order, by more than two standard "
        "errors."
    )
    columns = ["model", "task", "halves %", "wordings %", "other tasks %", "harmful", "examples", "dtype"]
    return table("Do other wordings need other heads?", columns, rows, note)
