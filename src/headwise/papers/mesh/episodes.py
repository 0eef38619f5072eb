"""Episodes: small training problems cut from a task, with examples to learn from (support) and to be judged by (query).

An episode is drawn from nothing but the seed and its number, so training can be resumed anywhere. Rows are
drawn, not items: all windows of a long context stay on one side.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from headwise.errors import HeadwiseError
from headwise.models.batching import Encoded, Order, Stream
from headwise.tasks.columns import Ragged


class Episodes(Stream):
    """A task's episodes without end: `next` draws one, and `parts` are its support items and its query items."""

    def __init__(self, task: str, data: Encoded, order: Order, seed: Sequence[int], support: int):
        """An episode has ``order.size`` rows, ``support`` of them to learn from."""
        if order.tokens is not None:
            raise HeadwiseError("a plan with tokens=", "batch_size=, the rows of an episode", "tokens = None")
        self.task, self.data, self.order, self.seed, self.support = task, data, order, list(seed), support
        self.epoch, self.position = 0, 0
        if not 1 <= support < order.size:
            seen = f"episodes of {order.size} rows, {support} of them support"
            raise HeadwiseError(seen, "one or more for the support and for the query", "a larger batch_size")
        self.draw = Draw(task, data)
        self.draw.check(support, order.size - support)
        self.parts: tuple[np.ndarray, np.ndarray] = (np.empty(0, np.int64), np.empty(0, np.int64))

    def __len__(self) -> int:
        """Episodes that have together as many rows as the task."""
        return -(-len(self.draw) // self.order.size)

    def next(self) -> np.ndarray:
        """The items of the next episode, support first."""
        if self.position >= len(self):
            self.epoch, self.position = self.epoch + 1, 0
        rng = np.random.default_rng([*self.seed, self.epoch, self.position])
        self.parts = self.draw(rng, self.support, self.order.size - self.support)
        self.position += 1
        return np.concatenate(self.parts)

    def load_state(self, state: dict[str, int]) -> None:
        self.epoch, self.position = state["epoch"], state["position"]


class Draw:
    """Draws support and query rows of a task: the support holds every class, as evenly as it can.

    Where a row has several labels (tags), rows are taken for the labels that are still missing, in random order.
    """

    def __init__(self, task: str, data: Encoded):
        self.task = task
        of_item = np.asarray(data.columns["row"]) if "row" in data.columns else np.arange(len(data))
        self.rows = np.unique(of_item)
        self.items = np.split(np.argsort(of_item, kind="stable"), np.searchsorted(np.sort(of_item), self.rows[1:]))
        self.labels = _labels(data, self.items)
        self.single = "label" in data.columns and bool(self.labels)  # one class for each row
        self.rows_of: dict[int, np.ndarray] = {}
        if self.labels:
            pairs = np.array([(label, row) for row, labels in enumerate(self.labels) for label in sorted(labels)])
            for label in np.unique(pairs[:, 0]) if len(pairs) else ():
                self.rows_of[int(label)] = pairs[pairs[:, 0] == label, 1]

    def __len__(self) -> int:
        return len(self.rows)

    def check(self, support: int, query: int = 0) -> None:
        """Raise if no episode of this size can be drawn."""
        if len(self) < support + query:
            raise HeadwiseError(
                f"{self.task!r} has {len(self)} training rows",
                f"{support + query} or more: {support} support and {query} query",
                f"fewer examples, or drop {self.task!r}",
            )
        if self.single and support < len(self.rows_of):
            raise HeadwiseError(
                f"a support set of {support} for the {len(self.rows_of)} classes of {self.task!r}",
                "one row or more of every class",
                f"support = {len(self.rows_of)}",
            )

    def __call__(self, rng: np.random.Generator, support: int, query: int) -> tuple[np.ndarray, np.ndarray]:
        """The items of both sides; no row is on both."""
        first = self._covering(rng, support)
        rest = [row for row in rng.choice(len(self), support + query, replace=False).tolist() if row not in first]
        return self._items(first), self._items(rest[:query])

    def few(self, shots: int, seed: int) -> np.ndarray:
        """The items of a support set alone; with one seed, the same for every model."""
        self.check(shots)
        return self._items(self._covering(np.random.default_rng([seed, shots]), shots))

    def _items(self, rows: Iterable[int]) -> np.ndarray:
        return np.concatenate([self.items[row] for row in rows])

    def _covering(self, rng: np.random.Generator, support: int) -> dict[int, None]:
        """Rows by label, round after round: in a round every label is met once, where it has a row left."""
        chosen: dict[int, None] = {}
        while len(chosen) < support:
            before, missing = len(chosen), set(self.rows_of)
            for label in rng.permutation(list(self.rows_of)).tolist():
                row = _unused(rng, self.rows_of[label], chosen) if label in missing and len(chosen) < support else None
                if row is not None:
                    chosen[row] = None
                    missing -= self.labels[row]
            if len(chosen) == before:  # no labels, or no labelled row left: any rows
                left = np.setdiff1d(np.arange(len(self)), list(chosen))
                chosen |= dict.fromkeys(rng.choice(left, support - len(chosen), replace=False).tolist())
        return chosen


def _unused(rng: np.random.Generator, rows: np.ndarray, chosen: dict[int, None]) -> int | None:
    for _ in range(8):  # few rows are chosen so far: a random draw mostly succeeds
        row = int(rows[rng.integers(len(rows))])
        if row not in chosen:
            return row
    free = np.setdiff1d(rows, list(chosen))
    return int(rng.choice(free)) if len(free) else None


def _labels(data: Encoded, items: list[np.ndarray]) -> list[frozenset[int]]:
    """The labels of each row: its class, its words' tags or its spans' labels; none for grades and answers."""
    label, tags, spans = (data.columns.get(name) for name in ("label", "labels", "spans"))
    if isinstance(label, np.ndarray) and label.dtype.kind in "iu":
        return [frozenset(label[row].tolist()) for row in items]
    if isinstance(tags, Ragged):
        return [frozenset(tag for item in row for tag in tags[item].tolist() if tag >= 0) for row in items]
    if isinstance(spans, Ragged):
        return [frozenset(span for item in row for span in spans[item][:, 2].tolist() if span >= 0) for row in items]
    return []
