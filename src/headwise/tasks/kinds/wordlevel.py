"""Shared by all word-level kinds: words to sub-words and back, checks of rows, labels as indices."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headwise.errors import HeadwiseError, HeadwiseWarning, unknown
from headwise.tasks.columns import Columns, Ragged
from headwise.tasks.kinds.windows import laid_out
from headwise.tasks.task import Row

Batch = dict[str, Tensor]
POOLS = ("mean", "first")


# -- words and their sub-words


def encode_words(rows: Sequence[Row], tokenizer: Any, max_length: int) -> Columns:
    """Columns ``input_ids`` and ``word_of``: each sub-word's word, -1 for none.

    A row longer than ``max_length`` is laid out in windows (`headwise.tasks.kinds.windows`), described by two more
    columns. A word that the tokenizer drops becomes the unknown token.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise HeadwiseError(f"{type(tokenizer).__name__} cannot tell words from sub-words", "a fast tokenizer")
    spaced = needs_space(tokenizer)
    pieces = _pieces([_spelled(row["words"], spaced) for row in rows], tokenizer)
    for i, (_, word_of) in enumerate(pieces):
        lost = set(range(len(rows[i]["words"]))) - set(word_of)
        if lost:
            spelled = enumerate(_spelled(rows[i]["words"], spaced))
            pieces[i] = _pieces([[_unknown(tokenizer) if w in lost else word for w, word in spelled]], tokenizer)[0]
    windows = [laid_out(np.array(ids), np.array(word_of), max_length) for ids, word_of in pieces]
    names = ("input_ids", "word_of", "window", "window_word")
    columns: Columns = {name: Ragged.of(column) for name, column in zip(names, zip(*windows))}
    if not any(window.any() for _, _, window, _ in windows):
        del columns["window"], columns["window_word"]
    return columns


def needs_space(tokenizer: Any) -> bool:
    """Whether words need a leading space: byte-level tokenizers would otherwise join separate words.

    Not if a space is itself an unknown token, as in alphabets of chemistry and proteins.
    """

    def ids(text: str | list[str]) -> list[int]:
        return tokenizer(text, is_split_into_words=isinstance(text, list), add_special_tokens=False)["input_ids"]

    strange = tokenizer.unk_token_id in ids(" ")
    return not strange and ids(["a", "a"]) != ids("a a") == ids(["a", " a"])


def _spelled(words: list[str], spaced: bool) -> list[str]:
    return [words[0], *(f" {word}" for word in words[1:])] if spaced else list(words)


def _unknown(tokenizer: Any) -> str:
    token = tokenizer.unk_token or tokenizer.eos_token
    if token is None:
        raise HeadwiseError("a word without sub-words, and a tokenizer without an unknown token")
    return token


def _pieces(words: list[list[str]], tokenizer: Any) -> list[tuple[list[int], list[int]]]:
    coded = tokenizer(words, is_split_into_words=True, verbose=False)
    word_of = ([-1 if word is None else word for word in coded.word_ids(i)] for i in range(len(words)))
    return list(zip(coded["input_ids"], word_of))


def words(states_BTE: Tensor, batch: Batch, pool: str = "mean") -> Tensor:
    """Word states from sub-word states: their mean, or the first of each word: ``(B, W, E)``, zeros where absent."""
    word = torch.arange(batch["word_mask"].shape[1], device=states_BTE.device)
    belongs = batch["word_of"][:, None] == word[:, None]  # (B, W, T)
    if pool == "first":
        belongs = belongs & (belongs.cumsum(-1) == 1)
    weights = belongs.to(states_BTE.dtype)
    return weights / weights.sum(-1, keepdim=True).clamp(min=1) @ states_BTE


def drop_words(batch: Batch, share: float, tokenizer: Any) -> Batch:
    """Replace a random fraction of a batch's words by the unknown token; texts without words are not changed."""
    word_of = batch.get("window_word", batch.get("word_of"))
    if not share or word_of is None:
        return batch
    drawn = (torch.rand(word_of.shape, device=word_of.device) < share) & (word_of >= 0)
    unknown_id = tokenizer.convert_tokens_to_ids(_unknown(tokenizer))
    return {**batch, "input_ids": batch["input_ids"].masked_fill(drawn, unknown_id)}


def word_counts(batch: Batch) -> Tensor:
    """How many words of each example are in the batch, ``(B,)``."""
    return batch["word_mask"].sum(1)


# -- labels


def check_words(row: Row, *columns: str) -> None:
    """Refuse a row without words, or with a column that does not have one value per word."""
    given = row.get("words")
    if not isinstance(given, list) or not given or not all(isinstance(word, str) for word in given):
        raise HeadwiseError(f"words {given!r}", "a list of one word or more")
    for column in columns:
        values = row.get(column)
        if not isinstance(values, list) or len(values) != len(given):
            count = len(values) if isinstance(values, list) else values
            raise HeadwiseError(f"{count!r} {column} for {len(given)} words", "one for each word")


def check_known(labels: Iterable[str], kind: Any) -> None:
    """Refuse a label outside a given label set; a set read from training rows may be incomplete."""
    for label in labels:
        if kind.labels and not kind.learnt and label not in kind.labels:
            raise unknown("label", label, kind.labels)


def numbered(rows: Iterable[Iterable[str]], known: Sequence[str]) -> list[list[int]]:
    """Labels as indices into ``known``; -1, with a warning, for a label not seen in training."""
    index = {label: i for i, label in enumerate(known)}
    strange: Counter[str] = Counter()
    out = []
    for row in rows:
        row = list(row)
        strange.update(label for label in row if label not in index)
        out.append([index.get(label, -1) for label in row])
    if strange:
        names = ", ".join(f"{label} ({n})" for label, n in strange.most_common(8))
        seen = f"labels not seen in training, ignored by the loss and counted as errors: {names}"
        warnings.warn(seen, HeadwiseWarning, stacklevel=3)
    return out


def check_pool(pool: str) -> None:
    if pool not in POOLS:
        raise unknown("pool", pool, POOLS)


class Projection(nn.Module):
    """A linear layer, LeakyReLU, and dropout of the same units at all positions of a sentence."""

    def __init__(self, hidden: int, size: int, dropout: float):
        super().__init__()
        self.linear = nn.Linear(hidden, size)
        self.dropout = dropout

    def forward(self, states: Tensor) -> Tensor:
        out = F.leaky_relu(self.linear(states), 0.1)
        return out * F.dropout(torch.ones_like(out[:, :1]), self.dropout, self.training)


class Biaffine(nn.Module):
    """``x^T U y + a^T x + b^T y + c`` for every pair and output; initialized to zero, which prefers no pair."""

    def __init__(self, left: int, right: int, outputs: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(outputs, left + 1, right + 1))

    def forward(self, left_BXI: Tensor, right_BYJ: Tensor) -> Tensor:
        """Scores ``(B, X, Y, outputs)``, in full precision."""
        left, right = F.pad(left_BXI, (0, 1), value=1.0), F.pad(right_BYJ, (0, 1), value=1.0)
        half = torch.einsum("bxi,oij->bxoj", left, self.weight)
        return torch.einsum("bxoj,byj->bxyo", half, right).float()


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """The mean of each example over its valid positions, 0 if it has none: ``(B, ...) -> (B,)``."""
    places = tuple(range(1, values.dim()))
    return (values * mask).sum(places) / mask.sum(places).clamp(min=1)


def marked(place_BG: Tensor, value_BG: Tensor, size: int) -> Tensor:
    """Write values to their positions in a row of ``size`` zeros; negative positions are ignored.

    Example:
        >>> marked(torch.tensor([[2, -1]]), torch.tensor([[7, 9]]), 4).tolist()
        [[0, 0, 7, 0]]
    """
    row = value_BG.new_zeros(len(place_BG), size + 1)  # the last takes what has no place
    return row.scatter(1, place_BG.masked_fill(place_BG < 0, size), value_BG)[:, :size]


def cross_entropy(scores: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy at every position; 0 where the target is -1."""
    flat = F.cross_entropy(scores.flatten(0, -2), target.flatten().long(), ignore_index=-1, reduction="none")
    return flat.view(target.shape)
