"""Copying: the prompt contains a list of words and its beginning again; the model continues it (no torch)."""

from __future__ import annotations

import random

from headwise.tasks.task import Row, Rows, Task

WORDS = (
    "apple river stone cloud table horse window bridge candle forest garden hammer island jacket kettle ladder "
    "market needle orange pencil rabbit saddle ticket valley wagon basket bottle button carpet castle circle "
    "corner desert engine finger flower guitar helmet kitchen lemon mirror monkey mountain number ocean paper "
    "pillow planet pocket potato ribbon school shadow silver spider summer temple thunder tiger tomato tower "
    "tunnel turtle village winter"
)


def copying(length: int = 8, rows: int = 400, seed: int = 0) -> Task:
    """Rows whose right choice is the word that followed before; the wrong one is another word of the list.

    Heads that look back to what came after the same word, induction heads, answer it.

    Example:
        >>> row = copying().rows("dev")[0]
        >>> row["prompt"].split()[:8].count(row["choices"][row["label"]])
        1
    """
    from headwise.tasks.kinds.choice import Choice

    draw = random.Random(seed)
    parts = {split: [_row(draw, length) for _ in range(rows)] for split in ("train", "dev")}
    return Task("copying", Choice(), Rows(**parts), "accuracy", note="a list of words that begins again")


def _row(draw: random.Random, length: int) -> Row:
    words = draw.sample(WORDS.split(), length)
    place, label = draw.randrange(1, length), draw.randint(0, 1)
    wrong = draw.choice([word for i, word in enumerate(words) if i not in (place, place - 1)])
    choices = [words[place], wrong] if label == 0 else [wrong, words[place]]
    return {"prompt": " ".join([*words, *words[:place]]), "choices": choices, "label": label}
