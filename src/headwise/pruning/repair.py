"""The texts on which what is left after a cut is refitted, as inputs of a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from headwise.errors import HeadwiseError
from headwise.heads.modules import positions
from headwise.tasks.corpus import sentences

Repair = Iterable[str] | Iterable[dict[str, Any]] | bool | None
SENTENCES, LENGTH, BATCH = 400, 128, 16  # of the embedded corpus; sub-words of a text; texts in a forward


def repair_batches(repair: Any, model: Any, tokenizer: Any) -> Iterator[dict[str, Any]]:
    """Batches of a model's inputs from texts, or those given; True stands for sentences of the embedded corpus.

    Example:
        >>> list(repair_batches(["One text.", "Another."], model, tokenizer))[0]["input_ids"].shape
        torch.Size([2, 4])
    """
    corpus = (sentence.text for sentence in islice(sentences("en"), SENTENCES))
    given = list(corpus if repair is True else repair)
    if not all(isinstance(each, str) for each in given):
        yield from given
        return
    if tokenizer is None:
        raise HeadwiseError("texts to refit a model on, and no tokenizer", "its tokenizer, or batches of its inputs")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    length = min(LENGTH, positions(model))
    for start in range(0, len(given), BATCH):
        texts = given[start : start + BATCH]
        found = tokenizer(texts, return_tensors="pt", padding=True, truncation=True, max_length=length)
        if getattr(model.config, "is_encoder_decoder", False):
            found["decoder_input_ids"] = found["input_ids"]
        yield {**found}
