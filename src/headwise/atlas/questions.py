"""Heads that look from a question to the passage that answers it (QRHead, Zhang et al. 2025, arXiv 2506.09944)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headwise.atlas.texts import Text, plain_text
from headwise.atlas.weightings import CONTROL

NAME = "question → passage"
PASSAGES, LONG = 4, 40  # passages before a question, and tokens of each
AROUND = 240  # characters around an answer that a passage holds


def is_question(row: Any) -> bool:
    return isinstance(row, Mapping) and "question" in row and "context" in row


def asked(tokenizer: Any, rows: Sequence[Mapping[str, Any]], longest: int, seed: int = 0) -> list[Text]:
    """Several passages in random order and a question that one of them answers.

    A head's score is the attention of the question's tokens to that passage; the control, to the others, per token.
    """
    rng, found = np.random.default_rng(seed), []
    cut = [tokenizer("\n" + _passage(row), add_special_tokens=False)["input_ids"][:LONG] for row in rows]
    for number, row in enumerate(rows):
        question = tokenizer("\n\n" + row["question"], add_special_tokens=False)["input_ids"]
        others = [i for i in range(len(rows)) if rows[i]["context"] != row["context"]]
        if len(others) < PASSAGES - 1:
            continue
        shown = rng.permutation([number, *rng.choice(others, PASSAGES - 1, replace=False)])
        pieces = [cut[i] for i in shown] + [question]
        inner = [token for piece in pieces for token in piece]
        text, start = plain_text(tokenizer, inner)
        if len(text.ids) > longest:
            continue
        ends = start + np.cumsum([len(piece) for piece in pieces])
        spans = [np.arange(end - len(piece), end) for end, piece in zip(ends, pieces)]
        gold = [span for i, span in zip(shown, spans) if i == number]
        wrong = [span for i, span in zip(shown, spans) if i != number]
        links = {NAME: _pairs(spans[-1], gold), NAME + CONTROL: _pairs(spans[-1], wrong)}
        found.append(Text(**{**text.__dict__, "links": links}))
    return found


def _passage(row: Mapping[str, Any]) -> str:
    """The part of a context around its first answer, of any of the forms that tasks have; else its beginning."""
    context, answer = row["context"], (row.get("answers") or [""])[0]
    place = max(0, context.find(answer["text"] if isinstance(answer, Mapping) else answer))
    first = max(0, min(place - AROUND // 2, len(context) - AROUND))
    return context[first : first + AROUND]


def _pairs(queries: np.ndarray, spans: Sequence[np.ndarray]) -> np.ndarray:
    keys = np.concatenate(spans)
    return np.stack(np.meshgrid(queries, keys, indexing="ij"), -1).reshape(-1, 2)
