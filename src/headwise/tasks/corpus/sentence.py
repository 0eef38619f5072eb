"""Convert a phrase tree to an annotated sentence: words, tags, entities, dependencies, brackets, spans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headwise.tasks.corpus.meaning import Meaning

HEAD = ""  # the part of a phrase that carries its dependency head


@dataclass(frozen=True)
class Sentence:
    """A sentence with its gold annotation; see ``headwise.tasks.corpus.sentences``."""

    words: tuple[str, ...]
    upos: tuple[str, ...]
    entities: tuple[str, ...]  # BIO over PER, LOC, ORG
    heads: tuple[int, ...]  # 1-based, 0 is the root
    deprels: tuple[str, ...]
    tree: str
    frames: tuple[dict[str, Any], ...]
    properties: Mapping[str, Any]
    meaning: Meaning
    language: str

    @property
    def text(self) -> str:
        return spell(self.words)[0]


class Node:
    """A word with its tag, or a phrase of ``(relation, node)`` parts, one of which is the HEAD.

    A relation that ends in ``>`` or ``<`` attaches to the next or the previous part instead of to the head.
    """

    __slots__ = ("entity", "label", "parts", "span", "upos", "word")

    def __init__(
        self, label: str, parts: Sequence[tuple[str, Node]] = (), word: str = "", upos: str = "", entity: str = "O"
    ):
        self.label, self.parts, self.word, self.upos, self.entity = label, parts, word, upos, entity
        self.span: tuple[int, int] = (0, 0)


def leaf(label: str, upos: str, word: str, entity: str = "O") -> Node:
    return Node(label, (), word, upos, entity)


def phrase(label: str, *parts: tuple[str, Node]) -> Node:
    return Node(label, parts)


def first_leaf(node: Node) -> Node:
    while node.parts:
        node = node.parts[0][1]
    return node


def words_of(node: Node) -> list[str]:
    return [node.word] if not node.parts else [word for _, part in node.parts for word in words_of(part)]


class Reading:
    """One traversal of a phrase tree that records every word, its head and its relation."""

    def __init__(self, root: Node):
        self.words: list[str] = []
        self.upos: list[str] = []
        self.entities: list[str] = []
        self.heads: list[int] = []
        self.deprels: list[str] = []
        self.brackets: list[str] = []
        self.depth = 0
        top = self._walk(root, 0)
        self.heads[top], self.deprels[top] = 0, "root"
        self.tree = "".join(self.brackets)[1:]

    def _walk(self, node: Node, depth: int) -> int:
        """Record the words below a node and return the index of its head word."""
        start = len(self.words)
        if not node.parts:
            self._note(node)
            node.span = (start, start + 1)
            return start
        self.depth = max(self.depth, depth)
        self.brackets.append(f" ({node.label}")
        tops = [self._walk(part, depth + 1) for _, part in node.parts]
        self.brackets.append(")")
        node.span = (start, len(self.words))
        return self._attach([relation for relation, _ in node.parts], tops)

    def _note(self, node: Node) -> None:
        self.words.append(node.word)
        self.upos.append(node.upos)
        self.entities.append(node.entity)
        self.heads.append(0)
        self.deprels.append("")
        self.brackets.append(f" ({node.label} {node.word})")

    def _attach(self, relations: list[str], tops: list[int]) -> int:
        head = tops[relations.index(HEAD)]
        for i, relation in enumerate(relations):
            if relation == HEAD:
                continue
            target = head
            if relation[-1] == ">":
                target = next(top for top, later in zip(tops[i + 1 :], relations[i + 1 :]) if later[-1:] != ">")
            elif relation[-1] == "<":
                target = next(top for top, earlier in zip(tops[i::-1], relations[i::-1]) if earlier[-1:] != "<")
            self.heads[tops[i]], self.deprels[tops[i]] = target + 1, relation.rstrip("<>")
        return head


def spell(words: Sequence[str]) -> tuple[str, list[int]]:
    """The text of some words as printed, and the position of each word in it."""
    text, starts = "", []
    for word in words:
        tight = not text or text[-1] == "¿" or word in {".", ",", "?", "'s", "'"}
        text += word if tight else f" {word}"
        starts.append(len(text) - len(word))
    return text, starts
