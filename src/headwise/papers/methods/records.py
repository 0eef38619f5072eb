"""Records of the recipe by model, method and seed."""

from __future__ import annotations

from typing import Any

from headwise.io.records import Record, Results

Scores = dict[int, dict[str, float]]  # seed to task, in percent


class Records:
    """All records of a folder that are this recipe's, read once."""

    def __init__(self, results: Results):
        self.untrained: dict[str, Record] = {}
        self.tuned: dict[str, Record] = {}  # by key
        self.scores: dict[tuple[str, str, str], Scores] = {}  # by model, method and split
        self.chosen: dict[tuple[str, str, tuple[str, ...]], dict[str, Any]] = {}
        for record in results:
            if record.work == "tune":
                self.tuned[record.key] = record
        for record in results:
            c = record.config
            if record.work == "methods.untrained":
                self.untrained[c["model"]] = record
            elif record.work == "methods.confirmed":
                self._add(record)
            elif record.work == "methods.merged":
                for name, scores in record.result.items():
                    self._score(c["model"], name, c["seed"], scores)

    def _score(self, model: str, name: str, seed: int, result: dict[str, Any]) -> None:
        for split in ("dev", "test"):
            scores = self.scores.setdefault((model, name, split), {}).setdefault(seed, {})
            scores |= {task: 100 * score["value"] for task, score in result[split].items()}

    def _add(self, record: Record) -> None:
        c = record.config
        self._score(c["model"], c["name"], c["seed"], record.result)
        if c["tuned"] in self.tuned:
            self.chosen[c["model"], c["name"], tuple(c["tasks"])] = self.tuned[c["tuned"]].result

    @property
    def models(self) -> list[str]:
        return list(dict.fromkeys(model for model, *_ in self.scores))

    def contrast(self, model: str, method: str, against: str, column: str, split: str = "dev") -> tuple[Any, Any]:
        """Scores by seed of two methods, on a task or on the mean of all tasks; seeds that have all of them."""
        pair = [self.scores.get((model, name, split), {}) for name in (method, against)]
        tasks = [column] if column != "mean" else sorted({task for one in pair for row in one.values() for task in row})
        return tuple(  # type: ignore[return-value]
            {seed: sum(row[t] for t in tasks) / len(tasks) for seed, row in one.items() if all(t in row for t in tasks)}
            for one in pair
        )
