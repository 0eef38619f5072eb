"""What roles are measured on: annotated sentences, plain texts, and repeated random tokens made by the tokenizer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from headwise.atlas.weightings import Tokens, is_punctuation
from headwise.errors import HeadwiseError

SENTENCES = 512  # of the embedded corpus
SPAN = (12, 28)  # tokens that are repeated: of other lengths in each text, so that no distance tells a copy
TOKENS = 2048  # padded tokens in one batch


@dataclass(frozen=True)
class Text:
    """Tokens of one text, with what is known of each; -1 where nothing is."""

    ids: np.ndarray
    special: np.ndarray
    word: np.ndarray
    punctuation: np.ndarray
    head: np.ndarray
    relation: np.ndarray
    copy: np.ndarray


def annotated(tokenizer: Any, rows: Sequence[Any], labels: Sequence[str], longest: int) -> list[Text]:
    """Plain texts, or rows of words with their heads (from 1, 0 for the root) and dependency labels, as tokens."""
    number = {label: i for i, label in enumerate(labels)}
    return [text for text in (_one(tokenizer, row, number, longest) for row in rows) if len(text.ids) > 1]


def _one(tokenizer: Any, row: Any, number: Mapping[str, int], longest: int) -> Text:
    words = row.split() if isinstance(row, str) else row["words"]
    whole = isinstance(row, str)
    encoded = tokenizer(row if whole else words, is_split_into_words=not whole, truncation=True, max_length=longest)
    ids = np.asarray(encoded["input_ids"])
    special = np.asarray(tokenizer.get_special_tokens_mask(ids.tolist(), already_has_special_tokens=True), bool)
    word = np.array([-1 if w is None else w for w in _words_of(encoded, len(ids))])
    pieces = tokenizer.convert_ids_to_tokens(ids.tolist())
    head, relation = np.full(len(ids), -1), np.full(len(ids), -1)
    if not whole and "heads" in row:
        heads = np.array([*row["heads"], 0]) - 1  # the root's, and that of no word, is -1
        kinds = np.array([*(number.get(label, -1) for label in row["labels"]), -1])
        head, relation = heads[word], np.where(heads[word] < 0, -1, kinds[word])
        head[word < 0] = relation[word < 0] = -1
        head[head < 0] = -2  # equal to no word
    return Text(
        ids, special, word, np.array([is_punctuation(p) for p in pieces]), head, relation, np.full(len(ids), -1)
    )


def _words_of(encoded: Any, count: int) -> list[int | None]:
    try:
        return encoded.word_ids()
    except ValueError:  # a tokenizer without a fast backend does not say
        return [None] * count


def common_relations(rows: Sequence[Any], least: int) -> tuple[str, ...]:
    """The dependency labels, punctuation and the root aside, that occur at least so often; the most frequent first."""
    counts = Counter(label for row in rows if isinstance(row, Mapping) for label in row.get("labels", ()))
    return tuple(label for label, n in counts.most_common() if n >= least and label not in ("punct", "root"))


def repeated(tokenizer: Any, count: int, longest: int, seed: int = 0) -> list[Text]:
    """Random ordinary tokens, twice over, between the special tokens that the tokenizer puts around a text."""
    ordinary = ordinary_tokens(tokenizer)
    before, after = _around(tokenizer)
    rng = np.random.default_rng(seed)
    room = (longest - len(before) - len(after)) // 2
    if room < 4:
        raise HeadwiseError(f"texts of at most {longest} tokens", "room for four tokens, repeated")
    texts = []
    for _ in range(count):
        span = int(rng.integers(min(SPAN[0], room), min(SPAN[1], room), endpoint=True))
        drawn = rng.choice(ordinary, span, replace=len(ordinary) < span)
        ids = np.concatenate([before, drawn, drawn, after]).astype(int)
        special = np.isin(np.arange(len(ids)), [*range(len(before)), *range(len(ids) - len(after), len(ids))])
        copy = np.full(len(ids), -1)
        copy[len(before) + span : len(before) + 2 * span] = np.arange(len(before), len(before) + span)
        nothing = np.full(len(ids), -1)
        texts.append(Text(ids, special, nothing, np.zeros(len(ids), bool), nothing - 1, nothing, copy))
    return texts


def ordinary_tokens(tokenizer: Any) -> np.ndarray:
    """Tokens that are no special ones: words of letters where the vocabulary has enough of them."""
    special = set(tokenizer.all_special_ids)
    vocabulary = tokenizer.get_vocab()
    wordlike = [i for piece, i in vocabulary.items() if piece.strip("▁Ġ").isalpha() and i not in special]
    return np.array(sorted(wordlike if len(wordlike) >= 2 * SPAN[1] else set(vocabulary.values()) - special))


def _around(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The special tokens before and after a text."""
    ids = tokenizer("a")["input_ids"]
    mask = tokenizer.get_special_tokens_mask(ids, already_has_special_tokens=True)
    inner = [place for place, special in enumerate(mask) if not special] or [len(ids)]
    return ids[: inner[0]], ids[inner[-1] + 1 :]


def batched(texts: Sequence[Text], pad: int, causal: bool, device: Any, tokens: int = TOKENS) -> Iterator[Tokens]:
    """Batches of similar lengths, two texts at least, padded on the right."""
    order = sorted(range(len(texts)), key=lambda i: len(texts[i].ids))
    start = 0
    while start < len(order):
        size = max(2, tokens // max(len(texts[order[min(start + 1, len(order) - 1)]].ids), 1))
        while size > 2 and size * len(texts[order[min(start + size, len(order)) - 1]].ids) > tokens:
            size -= 1
        if len(order) - start - size == 1:  # the last text would be alone, and have no other for its control
            size += 1
        yield _padded([texts[i] for i in order[start : start + size]], pad, causal, device)
        start += size


def _padded(texts: Sequence[Text], pad: int, causal: bool, device: Any) -> Tokens:
    width = max(len(text.ids) for text in texts)

    def column(name: str, fill: int) -> torch.Tensor:
        rows = [
            np.pad(getattr(text, name).astype(int), (0, width - len(text.ids)), constant_values=fill) for text in texts
        ]
        return torch.from_numpy(np.stack(rows)).to(device)

    mask = torch.from_numpy(np.stack([np.arange(width) < len(text.ids) for text in texts])).to(device)
    flags = {name: column(name, 0).bool() for name in ("special", "punctuation")}
    return Tokens(
        column("ids", pad),
        mask,
        flags["special"] & mask,
        column("word", -1),
        flags["punctuation"] & mask,
        column("head", -2),
        column("relation", -1),
        column("copy", -1),
        causal,
    )
