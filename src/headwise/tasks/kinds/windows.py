"""Sentences longer than the model's inputs: overlapping windows of words, encoded separately and stitched together.

The windows of a long row are concatenated in ``input_ids``, each with its own special tokens. ``window`` numbers them
and ``window_word`` is each sub-word's word; ``word_of`` is the word only in the window where it has most context on
both sides. Every word thus occurs once in ``word_of``, and output heads need not know about windows. Batches hold the
positions of each window's sub-words instead of the column; their shape is the number of windows.

Legend: B batch, T sub-words of a row, N its windows, V sub-words of one of them, E width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwise.errors import HeadwiseError
from headwise.tasks.columns import Ragged, stepped

Pieces = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # ids, word_of, window, window_word


def spans(sizes: Sequence[int], room: int) -> list[tuple[int, int]]:
    """Windows of words as (start, end), for words of these sizes, none larger than ``room``.

    Each starts in the middle of the previous one, and the last extends back as far as fits.

    Example:
        >>> spans([1] * 10, 6)
        [(0, 6), (3, 9), (4, 10)]
    """
    total = np.concatenate([[0], np.cumsum(sizes)])
    windows, start, end = [], 0, 0
    while end < len(sizes):
        reached = int(np.searchsorted(total, total[start] + room, "right")) - 1
        if reached > end:  # else a window inside the last one
            windows.append((start, reached))
        end = reached
        middle = int(np.searchsorted(total, (total[start] + total[end]) / 2))
        start = min(max(start + 1, middle), end)
    return [*windows[:-1], (int(np.searchsorted(total, total[-1] - room)), len(sizes))]


def owners(sizes: Sequence[int], windows: Sequence[tuple[int, int]]) -> np.ndarray:
    """For each word, the window whose nearer end is farthest; the sentence's own ends do not count. ``(words,)``"""
    total, word = np.concatenate([[0], np.cumsum(sizes)]), np.arange(len(sizes))
    contexts = []
    for start, end in windows:
        before = np.inf if start == 0 else total[word] - total[start]
        after = np.inf if end == len(sizes) else total[end] - total[word + 1]
        contexts.append(np.where((start <= word) & (word < end), np.minimum(before, after), -1))
    return np.argmax(contexts, 0)


def laid_out(ids: np.ndarray, word_of: np.ndarray, max_length: int) -> Pieces:
    """A row's sub-words as windows, one if they all fit; of a word too long for any window, the first sub-words."""
    if len(ids) <= max_length:
        return ids, word_of, np.zeros_like(word_of), word_of
    inner = np.flatnonzero(word_of >= 0)
    before, after = np.arange(inner[0]), np.arange(inner[-1] + 1, len(ids))
    room = max_length - len(before) - len(after)
    if room < 1:
        raise HeadwiseError(f"max_length {max_length}", "room for a word beside the special tokens")
    places = [inner[word_of[inner] == word][:room] for word in range(word_of.max() + 1)]
    sizes = [len(place) for place in places]
    windows = spans(sizes, room)
    every = [np.concatenate([before, *places[start:end], after]) for start, end in windows]
    number = np.repeat(np.arange(len(every)), [len(each) for each in every])
    ids, window_word = ids[np.concatenate(every)], word_of[np.concatenate(every)]
    mine = owners(sizes, windows)[window_word] == number
    return ids, np.where(mine & (window_word >= 0), window_word, -1), number, window_word


def longest_window(window: Ragged) -> int:
    """The number of sub-words of the longest window."""
    row = np.repeat(np.arange(len(window)), window.lengths)
    return int(np.bincount(row * (int(window.values.max(initial=0)) + 1) + window.values).max(initial=0))


def places(window_BT: Tensor, grain: int, most: int) -> Tensor:
    """Positions of each window's sub-words, ``(B, N, V)``, -1 for none; V is a multiple of ``grain``, at most ``most``.

    Example:
        >>> places(torch.tensor([[0, 0, 1, 1, 1], [0, 0, -1, -1, -1]]), 1, 3).tolist()
        [[[0, 1, -1], [2, 3, 4]], [[0, 1, -1], [-1, -1, -1]]]
    """
    number = torch.arange(int(window_BT.max()) + 1)
    lengths = (window_BT[:, None] == number[:, None]).sum(-1)
    starts = (lengths.cumsum(1) - lengths)[..., None]
    column = torch.arange(stepped(int(lengths.max()), grain, most))
    return torch.where(column < lengths[..., None], starts + column, -1)


def parts(columns: Mapping[str, Tensor], places_BNV: Tensor | None) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
    """Each window in turn, of all rows: positions ``(B, V)`` of its sub-words, -1 for none, and the other columns.

    A row without such a window contributes one sub-word, so every part has all rows and gates per example match.
    """
    mask = columns["attention_mask"]
    if places_BNV is None:
        place = torch.arange(mask.shape[1], device=mask.device).expand_as(mask)
        yield place.masked_fill(mask == 0, -1), dict(columns)
        return
    first = torch.arange(places_BNV.shape[2], device=mask.device) == 0
    for place in places_BNV.unbind(1):
        part = {name: values.gather(1, place.clamp(min=0)) for name, values in columns.items()}
        yield place, {**part, "attention_mask": ((place >= 0) | first).to(mask)}


def stitched(encode: Callable[[dict[str, Any]], Tensor], inputs: Mapping[str, Tensor], places_BNV: Tensor) -> Tensor:
    """States ``(B, T, E)`` of rows in windows, each window encoded by itself."""
    whole, size = None, inputs["attention_mask"].shape[1]
    for place, part in parts(inputs, places_BNV):
        states = encode(part)
        if whole is None:
            whole = states.new_zeros(len(states), size + 1, states.shape[-1])
        to = place.masked_fill(place < 0, size)  # padding goes behind the last sub-word
        whole = whole.scatter(1, to[:, :, None].expand_as(states), states)
    assert whole is not None
    return whole[:, :size]
