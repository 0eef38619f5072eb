"""Bracketed trees as flat lists of brackets, for scoring, and binarized, for CKY (no torch)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headwise.errors import HeadwiseError
from headwise.tasks.metrics import PUNCTUATION_TAGS, ROOT_LABELS, Span
from headwise.tasks.readers.brackets import Node, cleaned, escape, parse, unescape

CHAIN = "+"  # joins the labels of a chain of single children
QUOTES = ("``", "''")


@dataclass(frozen=True)
class Tree:
    """A tree's words, their tags, and its constituents, parents first.

    Example:
        >>> tree = Tree.read("(TOP (S (NP-SBJ (PRP It)) (VP (VBZ works)) (. .)))")
        >>> tree.words, tree.brackets()
        (['It', 'works', '.'], [(0, 3, 'S'), (0, 1, 'NP'), (1, 2, 'VP'), (2, 3, '.')])
    """

    words: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    phrases: list[tuple[str, list[int]]] = field(default_factory=list)  # label, and the posts where children meet

    @classmethod
    def read(cls, text: str) -> Tree:
        """Read one tree, dropping traces and function tags; an outer TOP, ROOT or S1 is not a label."""
        root = cleaned(parse(text))
        if root is None:
            raise HeadwiseError(f"a tree without words, {text[:60]!r}", "a tree with words")
        tree = cls()
        tree._add(root)
        return tree

    def _add(self, node: Node) -> None:
        if node.word is not None:
            self.words.append(node.word)
            self.tags.append(node.label)
            return
        posts = [len(self.words)]
        self.phrases.append(("" if node.label in ROOT_LABELS else node.label, posts))
        for child in node.children:
            self._add(child)
            posts.append(len(self.words))

    def spells(self, words: Sequence[str]) -> bool:
        """Whether the leaves are these words, up to Penn's names for brackets and quotes."""
        same = (
            word in (leaf, unescape(leaf), '"' if leaf in QUOTES else leaf, leaf.replace("\\/", "/"))
            for leaf, word in zip(self.words, words)
        )
        return len(self.words) == len(words) and all(same)

    def brackets(self) -> list[Span]:
        """All constituents, and the tags of punctuation, which ``bracket_f1`` deletes."""
        phrases = [(posts[0], posts[-1], label) for label, posts in self.phrases if label]
        return phrases + [(i, i + 1, tag) for i, tag in enumerate(self.tags) if tag in PUNCTUATION_TAGS]

    def binary(self) -> list[Span]:
        """The ``2n - 1`` brackets of the left-binarized tree.

        Unary chains share one bracket, with labels joined by ``+``; a bracket that is not a constituent has the label
        "".
        """
        labels = {(i, i + 1): "" for i in range(len(self.words))} | {(0, len(self.words)): ""}
        for label, posts in self.phrases:
            for post in posts[2:-1]:
                labels.setdefault((posts[0], post), "")
            span = (posts[0], posts[-1])
            labels[span] = CHAIN.join(filter(None, [labels.get(span, ""), label]))
        return [(start, end, label) for (start, end), label in sorted(labels.items())]


def written(words: Sequence[str], spans: Sequence[Span]) -> str:
    """Write brackets as one tree under TOP with the tag XX for every word; of equal spans, the first is the parent.

    Example:
        >>> written(["It", "works"], [(0, 2, "S"), (1, 2, "VP")])
        '(TOP (S (XX It) (VP (XX works))))'
    """
    opened: list[str] = [""] * len(words)
    closed = [0] * len(words)
    for start, end, label in sorted(spans, key=lambda span: (span[0], -span[1])):  # stable: parents stay first
        opened[start] += f"({label} "
        closed[end - 1] += 1
    parts = [f"{before}(XX {escape(word)}){')' * n}" for before, word, n in zip(opened, words, closed)]
    return f"(TOP {' '.join(parts)})"
