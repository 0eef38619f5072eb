"""What the recipe does with models: a training with tuned settings on a new seed, and an encoder as it is."""

from __future__ import annotations

from typing import Any

import numpy as np

from headwise.experiments.jobs import Place
from headwise.experiments.works import method_of, opened, scored
from headwise.measuring.vectors import sentence_vectors
from headwise.tasks.metrics import metrics
from headwise.training.loop import fit
from headwise.training.plan import Plan


def confirmed(place: Place) -> dict[str, Any]:
    """A training with the settings that a tuning chose, on a seed it did not see; the model is not kept."""
    c = place.config
    chosen = place.before(c["tuned"]).result["chosen"]
    plan = Plan(**chosen["plan"]).with_(seed=c["seed"])
    made = opened(place, {**c, **chosen, "plan": {**chosen["plan"], "seed": c["seed"]}})
    history = fit(made, plan, method_of(chosen["method"]), device=place.device, progress=place.progress)
    found = {"dev": {name: scored(made, name) for name in made.tasks}, "steps": history.steps}
    tested = [name for name, task in made.tasks.items() if "test" in task.splits]
    return {**found, "test": {name: scored(made, name, "test") for name in tested}, "chosen": chosen}


def untrained(place: Place) -> dict[str, Any]:
    """How well cosines of the untouched encoder's sentence vectors order the similarities of a task."""
    c = place.config
    found: dict[str, dict[str, float]] = {}
    for pooling in ("cls", "mean"):
        made = opened(place, {**c, "pooling": pooling, "plan": {}})
        task = made.tasks[c["task"]]
        for split in (split for split in ("dev", "test") if split in task.splits):
            rows = task.rows(split)
            a, b = (sentence_vectors(made, [row[side] for row in rows]) for side in ("text", "text_b"))
            cosine = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
            gold = [row["label"] for row in rows]
            by = {name: metrics[name](cosine.tolist(), gold) for name in ("pearson", "spearman")}
            found[f"{pooling} {split}"] = {**by, "n": len(rows)}
    return found
