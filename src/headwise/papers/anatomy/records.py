"""Records of the anatomy recipe, found by what they are."""

from __future__ import annotations

from statistics import median
from typing import Any

import numpy as np

from headwise.io.records import Record, Results
from headwise.papers.anatomy import published as paper
from headwise.probing.roles import score_map
from headwise.probing.utilization import EffectOfN

PRINTED = {name: printed for printed, (name, _, _) in paper.TASKS.items()}  # our names to those of the tables


def property_of(task: str) -> str:
    """The last part of a task's name: the property it asks for."""
    return task.split(".")[-1]


def suite_of(task: str) -> str:
    return task.split(".")[0]


class Records:
    """All records of a folder that are this recipe's, read once; one model may have several suites of tasks."""

    def __init__(self, results: Results):
        self.inventory: dict[str, Record] = {}
        self.probed: dict[tuple[str, str], Record] = {}  # by model and task
        self.converged: dict[tuple[str, str], Record] = {}  # the same at their optimum
        self.controlled: dict[tuple[str, str], Record] = {}  # standardized, with controls
        self.tuned: dict[tuple[str, str, int], Record] = {}  # by model, task and seed
        for record in results:
            c = record.config
            if record.work == "anatomy.inventory":
                self.inventory[c["model"]] = record
            elif record.work == "anatomy.probed":
                found = self.converged if c["protocol"] == "sklearn" else self.probed
                found[c["model"], c["task"]] = record
            elif record.work == "anatomy.controlled":
                self.controlled[c["model"], c["task"]] = record
            elif record.work == "anatomy.tuned":
                self.tuned[c["model"], c["task"], c["plan"]["seed"]] = record
        if not self.probed:  # nothing was stopped early
            self.probed, self.converged = self.converged, {}

    def benches(self) -> list[tuple[str, str]]:
        """Every model and suite that was probed."""
        return list(dict.fromkeys((model, suite_of(task)) for model, task in self.probed))

    def tasks(self, model: str, suite: str, converged: bool = False) -> list[str]:
        """Its tasks in the paper's order."""
        order, probed = list(PRINTED), self.converged if converged else self.probed
        found = [task for other, task in probed if (other, suite_of(task)) == (model, suite)]
        return sorted(found, key=lambda task: order.index(property_of(task)) if property_of(task) in order else 99)

    def utilization(self, model: str, task: str, side: str = "dev", converged: bool = False) -> dict[str, Any]:
        return (self.converged if converged else self.probed)[model, task].result["utilization"][side]

    def maps(self, model: str, suite: str, name: str = "test") -> dict[str, np.ndarray]:
        """Heads' scores by task."""
        return {t: score_map(self.probed[model, t].arrays[name]) for t in self.tasks(model, suite)}

    def effects(self, model: str, suite: str) -> list[EffectOfN]:
        found = [self.probed[model, task].result["effect"] for task in self.tasks(model, suite)]
        return [EffectOfN(e["task"], tuple(e["sizes"]), tuple(e["dev"]), tuple(e["test"])) for e in found]

    def tunings(self) -> dict[tuple[str, str], list[Record]]:
        """Fine-tunings by model and task, over seeds."""
        found: dict[tuple[str, str], list[Record]] = {}
        for (model, task, _), record in sorted(self.tuned.items()):
            found.setdefault((model, task), []).append(record)
        return found

    def real(self, suite: str) -> bool:
        """Whether these are sentences that people wrote: only then do published numbers stand beside ours."""
        return suite != "corpus"


def beside(model: str, table: dict[str, Any]) -> str:
    """Which of the paper's models a model is set beside."""
    return model if model in table else "bert-base"


def medians(records: list[Record], metric: str) -> dict[str, float]:
    """The median over seeds of each input's score."""
    names = records[0].result["scores"]
    return {name: median(record.result["scores"][name][metric] for record in records) for name in names}
