"""Sentences longer than the model: overlapping windows of words, encoded one after the other and stitched together.

The windows of a long row lie end to end in ``input_ids``, each with special tokens of its own. ``window`` numbers them
and ``window_word`` names each sub-word's word; ``word_of`` names it only in the window where the word has most context
on both sides. So every word stands once in ``word_of``, and output heads need not know of windows.

Legend: B batch, T sub-words of a row, V of one of its windows, E width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwise.errors import HeadwiseError

Pieces = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # ids, word_of, window, window_word


def spans(sizes: Sequence[int], room: int) -> list[tuple[int, int]]:
    """Windows of words, from and to, for words of these sizes, none above the room.

    Each begins in the middle of the one before, and the last reaches back as far as there is room.

    Example:
        >>> spans([1] * 10, 6)
        [(0, 6), (3, 9), (4, 10)]
    """
    total = np.concatenate([[0], np.cumsum(sizes)])
    found, start, end = [], 0, 0
    while end < len(sizes):
        reached = int(np.searchsorted(total, total[start] + room, "right")) - 1
        if reached > end:  # else a window inside the last one
            found.append((start, reached))
        end = reached
        middle = int(np.searchsorted(total, (total[start] + total[end]) / 2))
        start = min(max(start + 1, middle), end)
    return [*found[:-1], (int(np.searchsorted(total, total[-1] - room)), len(sizes))]


def owners(sizes: Sequence[int], windows: Sequence[tuple[int, int]]) -> np.ndarray:
    """For each word the window where the nearer end is farthest; the sentence's own ends are no ends. ``(words,)``"""
    total, word = np.concatenate([[0], np.cumsum(sizes)]), np.arange(len(sizes))
    contexts = []
    for start, end in windows:
        before = np.inf if start == 0 else total[word] - total[start]
        after = np.inf if end == len(sizes) else total[end] - total[word + 1]
        contexts.append(np.where((start <= word) & (word < end), np.minimum(before, after), -1))
    return np.argmax(contexts, 0)


def laid_out(ids: np.ndarray, word_of: np.ndarray, max_length: int) -> Pieces:
    """A row's sub-words as its windows, one where they all fit; of a word too long for any, the first sub-words."""
    if len(ids) <= max_length:
        return ids, word_of, np.zeros_like(word_of), word_of
    inner = np.flatnonzero(word_of >= 0)
    before, after = np.arange(inner[0]), np.arange(inner[-1] + 1, len(ids))
    room = max_length - len(before) - len(after)
    if room < 1:
        raise HeadwiseError(f"max_length {max_length}", "room for a word beside the special tokens")
    places = [inner[word_of[inner] == word][:room] for word in range(word_of.max() + 1)]
    sizes = [len(found) for found in places]
    windows = spans(sizes, room)
    every = [np.concatenate([before, *places[start:end], after]) for start, end in windows]
    number = np.repeat(np.arange(len(every)), [len(each) for each in every])
    ids, window_word = ids[np.concatenate(every)], word_of[np.concatenate(every)]
    mine = owners(sizes, windows)[window_word] == number
    return ids, np.where(mine & (window_word >= 0), window_word, -1), number, window_word


def parts(columns: Mapping[str, Tensor], window_BT: Tensor | None) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
    """The first window of all rows, the second, ...: the places ``(B, V)`` of its sub-words, -1 for none, and columns.

    A row without such a window brings one sub-word, so that every part has all rows and gates per example fit.
    """
    mask = columns["attention_mask"]
    if window_BT is None or int(window_BT.max()) < 1:
        place = torch.arange(mask.shape[1], device=mask.device).expand_as(mask)
        yield place.masked_fill(mask == 0, -1), dict(columns)
        return
    for number in range(int(window_BT.max()) + 1):
        here = window_BT == number
        lengths = here.sum(1, keepdim=True)
        place = (~here).int().argsort(stable=True, dim=1)[:, : int(lengths.max())]
        column = torch.arange(place.shape[1], device=place.device)
        part = {name: values.gather(1, place) for name, values in columns.items()}
        part["attention_mask"] = (column < lengths.clamp(min=1)).to(mask)
        yield place.masked_fill(column >= lengths, -1), part


def stitched(encode: Callable[[dict[str, Any]], Tensor], inputs: Mapping[str, Tensor], window_BT: Tensor) -> Tensor:
    """States ``(B, T, E)`` of rows in windows, each window encoded by itself."""
    whole: Tensor | None = None
    for place, part in parts(inputs, window_BT):
        states = encode(part)
        if whole is None:
            whole = states.new_zeros(*window_BT.shape, states.shape[-1])
        row, column = (place >= 0).nonzero(as_tuple=True)
        whole = whole.index_put((row, place[row, column]), states[row, column])
    assert whole is not None
    return whole
