"""The units that parameter-free probes predict: labelled words and spans, and relations between words (no torch)."""

from __future__ import annotations

from collections.abc import Callable

from headwise.errors import HeadwiseError
from headwise.tasks.metrics import bio_spans
from headwise.tasks.readers.brackets import Node, cleaned, parse
from headwise.tasks.task import Row, Task

Unit = tuple[int, int, str]  # words from, to (exclusive), label
Relation = tuple[int, int, int, str]  # words from, to (exclusive), the word they hang on (-1: none, the root), label


def units_of(task: Task) -> Callable[[Row], list[Unit]]:
    """The labelled words or spans of a row: tags, entities, constituents directly above the tags."""
    return _found(task, UNITS)


def relations_of(task: Task) -> Callable[[Row], list[Relation]]:
    """The relations of a row: dependencies, arguments of frames."""
    return _found(task, RELATIONS)


def _found(task: Task, known: dict[str, Callable]) -> Callable:
    kind = type(task.kind).__name__
    if kind not in known:
        raise HeadwiseError(f"{task.name} is of kind {kind}", f"one of: {', '.join(known)}")
    return known[kind]


def low_constituents(tree: str) -> list[Unit]:
    """The constituents directly above the tags.

    Example:
        >>> low_constituents("(S (NP (DT The) (NN dog)) (VP (VBZ barks)))")
        [(0, 2, 'NP'), (2, 3, 'VP')]
    """
    found: list[Unit] = []

    def walk(node: Node, start: int) -> int:
        if node.word is not None:
            return start + 1
        end = start
        for child in node.children:
            end = walk(child, end)
        if all(child.word is not None for child in node.children):
            found.append((start, end, node.label))
        return end

    root = cleaned(parse(tree))  # without traces, as the row's words are
    if root is not None:
        walk(root, 0)
    return found


def _tags(row: Row) -> list[Unit]:
    return [(i, i + 1, label) for i, label in enumerate(row["labels"])]


def _dependencies(row: Row) -> list[Relation]:
    return [(i, i + 1, head - 1, label) for i, (head, label) in enumerate(zip(row["heads"], row["labels"]))]


def _arguments(row: Row) -> list[Relation]:
    """Arguments of all frames, without the predicate's own span."""
    return [
        (start, end, frame["predicate"], role)
        for frame in row["frames"]
        for start, end, role in frame["arguments"]
        if role.removeprefix("C-") != "V"
    ]


UNITS: dict[str, Callable[[Row], list[Unit]]] = {
    "Tag": _tags,
    "Spans": lambda row: bio_spans(row["labels"]),
    "Constituents": lambda row: low_constituents(row["tree"]),
}
RELATIONS: dict[str, Callable[[Row], list[Relation]]] = {"Dependencies": _dependencies, "Frames": _arguments}
