"""Tables and figures: what tasks gain from each other, and how well that was foretold."""

from __future__ import annotations

from typing import Any

import numpy as np

from headwise.measuring.stats import adjust
from headwise.papers.summary import table
from headwise.papers.together.foretelling import BASELINES, OURS, Model, ceiling, correlated, foretold, held_out
from headwise.papers.together.records import Records

Table = dict[str, Any]
SETS = {"head maps (ours)": OURS, "baselines": BASELINES, "both": (*OURS, *BASELINES)}
LEAVES = {"model": "models not seen", "task": "tasks not seen"}


def gains_table(records: Records, model: Model) -> Table:
    """Every task's gain from every other, the mean over seeds."""
    rows = []
    for i, task in enumerate(model.tasks):
        others = np.delete(model.gain[i], i)
        rows.append([task, *(None if i == j else gain for j, gain in enumerate(model.gain[i])), others.mean()])
    columns = ["task", *(f"with {task}" for task in model.tasks), "mean"]
    _, gains = records.gains(model.name)
    pairs = np.stack(
        [gain[tuple(model.apart)] for gain in gains.values() if not np.isnan(gain[tuple(model.apart)]).any()]
    )
    note = "Points that the row's task gains on development data when the other is trained with it, with equally many "
    note += f"updates of its own; mean over {len(pairs)} seed{'s' * (len(pairs) > 1)}"
    if len(pairs) > 1:
        spread = np.nanmean(model.noise[tuple(model.apart)])
        note += f", which differ by {spread:.1f} (sd); r of one half of the seeds with the other, for all of them "
        note += f"(Spearman-Brown): {ceiling(pairs):.2f}"
    return table(f"What tasks gain from each other: {model.name}", columns, rows, f"{note}.")


def signals_table(records: Records) -> Table | None:
    """Each signal alone against the gains, in each model."""
    rows = []
    for name in (*OURS, *BASELINES):
        found = [correlated(model, name) for model in records.models]
        rows.append([name, "ours" if name in OURS else "baseline", *(x for pair in found for x in pair)])
    if not records.models:
        return None
    level = adjust(np.array([row[3::2] for row in rows]).flatten()).reshape(len(rows), -1)
    sure = int((level < 0.05).sum())
    columns = ["signal", "kind", *(f"{what} {m.name}" for m in records.models for what in ("r", "p"))]
    note = "Spearman's r with the gains over ordered pairs; p by relabelling tasks (two-sided). After Holm over all "
    note += f"{level.size} cells {sure} are below 0.05."
    return table("Single signals against gains", columns, rows, note)


def held_out_table(records: Records) -> Table | None:
    """Gains foretold for models and tasks that were not seen."""
    models = records.models
    if not models:
        return None
    rows = []
    for leave in LEAVES if len(models) > 1 else ("task",):
        for name, signals in SETS.items():
            found = held_out(models, signals, leave)
            rows.append([LEAVES[leave], name, found["r"], found["low"], found["high"], *found["models"].values()])
    columns = ["held out", "signals", "r", "low", "high", *(f"r {m.name}" for m in models)]
    note = "Spearman's r of gains that ridge regression foretells with the measured ones, mean over models; intervals "
    note += "(95 %) over tasks drawn anew. A correlation whose interval holds 0 is an honest null."
    return table("Foretold gains of models and tasks not seen", columns, rows, note)


def drawn(records: Records) -> Any:
    """Measured against foretold gains of models that were not seen: head maps alone."""
    import matplotlib.pyplot as plt

    models = records.models
    leave = "model" if len(models) > 1 else "task"
    figure, axes = plt.subplots(1, len(models), figsize=(3.2 * len(models), 3.0), squeeze=False, layout="constrained")
    for axis, model, found in zip(axes[0], models, foretold(models, OURS, leave)):
        axis.axhline(0, linewidth=0.8, color="0.7")
        axis.scatter(found, model.gain[tuple(model.apart)], s=9, alpha=0.6)
        axis.set(title=model.name, xlabel="foretold (standard deviations)", ylabel="measured gain, points")
    return figure
