"""Tables: what was chosen, every method against tuned plain training column by column, and the untouched encoder."""

from __future__ import annotations

from typing import Any

import numpy as np

from headwise.io.files import finite
from headwise.measuring.stats import adjust
from headwise.papers.methods.jobs import MERGED, MTDNN, RIVALS
from headwise.papers.methods.records import Records
from headwise.papers.summary import mean_sd, over_seeds, student, table
from headwise.reporting.figures import INK, RAMP, house_style

Table = dict[str, Any]
PLAIN = "plain"


def chosen_table(records: Records) -> Table | None:
    """Settings chosen on held-out training rows."""
    rows = []
    for (model, method, tasks), result in records.chosen.items():
        last = result["rungs"][-1]["candidates"][0]
        settings = ", ".join(f"{axis.rpartition('.')[2]} {value}" for axis, value in result["changes"].items())
        tried = len(result["rungs"][0]["candidates"])
        rows.append([model, method, tasks[0] if len(tasks) == 1 else "all", settings, 100 * last["mean"], tried])
    note = (
        "Chosen by successive halving on a tenth of the training rows (at most 1,000 per task), without development "
        "and test rows. Held-out score: mean over tasks, in percent."
    )
    columns = ["model", "method", "tasks", "chosen", "held-out score", "candidates"]
    return table("Tuned settings", columns, rows, note) if rows else None


SETS = {"Tuned methods": (), "Updates and combined gradients": (*RIVALS, MTDNN), "Merged models": MERGED}


def method_table(records: Records, model: str, split: str, title: str = "Tuned methods") -> Table | None:
    """The methods of one of `SETS` against plain training, column by column, with Holm over all of them."""
    others = {name for names in SETS.values() for name in names}
    scores = {
        name: s
        for (m, name, side), s in records.scores.items()
        if (m, side) == (model, split) and any(s.values())
        if name == PLAIN or (name in SETS[title] if SETS[title] else name not in others)
    }
    if PLAIN not in scores or len(scores) < 2:
        return None
    tasks = list(dict.fromkeys(task for row in scores[PLAIN].values() for task in row))
    rows, tests = [], []
    for method in scores:
        for column in (*tasks, "mean"):
            mine, base = records.contrast(model, method, PLAIN, column, split)
            test = over_seeds(mine, base) if method != PLAIN else None
            rows.append([method, column, *mean_sd(mine.values()), *_cells(test), len(mine)])
            tests.append(np.nan if test is None else float(np.asarray(test.p)))
    for row, p in zip(rows, adjust(np.array(tests))):
        row.insert(-1, finite(float(p)))
    columns = ["method", "column", "score", "sd", "against plain", "low", "high", "p", "p (Holm)", "seeds"]
    note = (
        "In percent; every method with its own tuned settings, on seeds that were not used for tuning. Student's "
        f"paired t over seeds, two-sided; Holm over all {np.isfinite(tests).sum()} tests of the table."
    )
    if MTDNN in scores:
        note += f" {MTDNN} has plain training's settings."
    if missing := [name for name in SETS[title] if name not in scores]:
        note += f" Not run: {', '.join(missing)}."
    return table(f"{title} on {split} rows: {model}", columns, rows, note)


def _cells(test: Any) -> list[Any]:
    return [None] * 4 if test is None else [test.value, test.low, test.high, test.p]


def untouched_table(records: Records) -> Table | None:
    """Trained models beside the cosine of the untouched encoder."""
    rows = []
    for model, record in records.untrained.items():
        for name, score in record.result.items():
            pooling, split = name.split()
            rows.append([model, split, f"untouched, cosine, {pooling} pooling", 100 * score["spearman"], None, 1])
        task = record.config["task"]
        for (other, method, split), scores in records.scores.items():
            values = [row[task] for row in scores.values() if task in row]
            if other == model and values:
                rows.append([model, split, f"trained, {method}", *mean_sd(values), len(values)])
    rows.sort(key=lambda row: (row[0], row[1]))
    note = (
        "Spearman's correlation of predicted and gold similarity, in percent. Untouched encoders were not trained on "
        "this task here; an encoder pretrained for similarity may have seen such pairs."
    )
    columns = ["model", "split", "way", "r", "sd", "seeds"]
    return table("Similarity: trained against untouched", columns, rows, note) if rows else None


def drawn(records: Records) -> Any:
    """Similarity on development and test rows: means, 95 % intervals and seeds; lines are the untouched encoder."""
    with house_style() as plots:
        figure = plots.figure.Figure(figsize=(7.4, 0.8 + 1.5 * len(records.untrained)), layout="constrained")
        panels = figure.subplots(len(records.untrained), 2, squeeze=False)
    for row, (model, record) in zip(panels, records.untrained.items()):
        for axis, split in zip(row, ("dev", "test")):
            _similarities(axis, records, model, split, record.config["task"])
            for pooling, style in (("mean", "-"), ("cls", ":")):
                level = 100 * record.result[f"{pooling} {split}"]["spearman"]
                axis.axvline(level, color=INK, linewidth=0.8, linestyle=style)
                name = f"untouched,\n{pooling} pooling"
                axis.annotate(name, (level, 1.02), xycoords=("data", "axes fraction"), ha="center", fontsize=6)
            axis.set_xlabel(f"Spearman's correlation on {split} rows, %")
        row[0].set_ylabel(model)
    return figure


def _similarities(axis: Any, records: Records, model: str, split: str, task: str) -> None:
    """Every method's seeds and their mean in a row of its own."""
    by_method = {
        method: each for (other, method, side), each in records.scores.items() if (other, side) == (model, split)
    }
    shown = {
        method: values for method, e in by_method.items() if (values := [r[task] for r in e.values() if task in r])
    }
    for place, values in enumerate(shown.values()):
        axis.plot(values, [place] * len(values), "o", color=RAMP[3], markersize=2.5, alpha=0.4)
        axis.plot([np.mean(values)], [place], "o", color=RAMP[3], markersize=4.5)
        axis.plot([np.nan if end is None else end for end in student(values)], [place] * 2, color=RAMP[3], linewidth=1)
    axis.set_yticks(range(len(shown)), list(shown))
    axis.set_ylim(len(shown) - 0.5, -0.5)
