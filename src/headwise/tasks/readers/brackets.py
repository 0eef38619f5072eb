"""Bracketed trees, Penn style, as plain data: read from files, cleaned, written (no torch)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from headwise.errors import HeadwiseError

DEEPEST = 300  # no sentence is deeper; a hostile file must not exhaust the stack
NEWLINE = "\n"
_PIECE = re.compile(r"[()]|[^\s()]+")
_ESCAPES = {"(": "-LRB-", ")": "-RRB-", "[": "-LSB-", "]": "-RSB-", "{": "-LCB-", "}": "-RCB-"}
_UNESCAPES = {code: mark for mark, code in _ESCAPES.items()}
_ESCAPED = re.compile("|".join(_UNESCAPES))


class Node(NamedTuple):
    """A bracket: a label over other brackets, or a tag over one word."""

    label: str
    children: tuple[Node, ...] = ()
    word: str | None = None


def parse(text: str) -> Node:
    """One bracketed tree.

    Example:
        >>> parse("(S (NP (NN dogs)) (VP (VBP bark)))").children[0].label
        'NP'
    """
    nodes = [node for _, node in parse_all(text)]
    if len(nodes) != 1:
        raise HeadwiseError(f"{len(nodes)} trees in {text[:60]!r}", "one bracketed tree")
    return nodes[0]


def parse_all(text: str) -> Iterator[tuple[int, Node]]:
    """Every tree of a text, with the line it starts on; trees may run over several lines."""
    stack: list[list] = []
    line, start = 1, 0  # of the tree being read

    def wrong(place: int, seen: str, expected: str = "balanced brackets") -> HeadwiseError:
        return HeadwiseError(f"line {line + text.count(NEWLINE, start, place)}: {seen}", expected)

    for match in _PIECE.finditer(text):
        piece, place = match.group(), match.start()
        if piece == "(":
            if not stack:
                line, start = line + text.count(NEWLINE, start, place), place
            stack.append([])
            if len(stack) > DEEPEST:
                raise wrong(place, f"brackets nested more than {DEEPEST} deep", "a sentence's tree")
        elif not stack:
            raise wrong(place, f"{piece!r} outside of any bracket")
        elif piece == ")":
            parts = stack.pop()
            node = _closed(parts)
            if node is None:
                raise wrong(place, f"bare words in the bracket {parts[:1]}", "(TAG word) or (LABEL (...) ...)")
            if stack:
                stack[-1].append(node)
            else:
                yield line, node
        else:
            stack[-1].append(piece)
    if stack:
        raise wrong(start, "a bracket opened here is never closed")


def _closed(parts: list) -> Node | None:
    """What stood between two brackets as a node, or None if it is none."""
    named = bool(parts) and isinstance(parts[0], str)
    if named and len(parts) == 2 and isinstance(parts[1], str):
        return Node(parts[0], (), parts[1])
    children = parts[1:] if named else parts
    if not children or any(isinstance(child, str) for child in children):
        return None
    return Node(parts[0] if named else "", tuple(children))


def write(node: Node) -> str:
    """The tree as one line."""
    if node.word is not None:
        return f"({node.label} {node.word})"
    return f"({node.label} {' '.join(map(write, node.children))})"


def leaves(node: Node) -> list[Node]:
    """The words of a tree, each with its tag."""
    return [node] if node.word is not None else [leaf for child in node.children for leaf in leaves(child)]


def cleaned(node: Node) -> Node | None:
    """Without traces, function tags (``NP-SBJ`` is ``NP``) and empty brackets; an unnamed top is ``TOP``."""
    if node.word is not None:
        return None if node.label == "-NONE-" else node
    children = tuple(kept for child in node.children if (kept := cleaned(child)) is not None)
    label = node.label if node.label.startswith("-") else re.split(r"[-=|]", node.label)[0]
    return Node(label or "TOP", children) if children else None


def depth(node: Node) -> int:
    """Edges from the top to the deepest tag."""
    return 0 if node.word is not None else 1 + max(map(depth, node.children))


def escape(word: str) -> str:
    """A word as it stands in a tree: brackets become ``-LRB-`` and the like."""
    if not word or re.search(r"\s", word):
        raise HeadwiseError(f"word {word!r} in a tree", "a word without spaces")
    return "".join(_ESCAPES.get(character, character) for character in word)


def unescape(word: str) -> str:
    """A tree's word as it stands in a text."""
    return _ESCAPED.sub(lambda match: _UNESCAPES[match.group()], word)
