"""Vectors of sentences, as a model's output heads read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from headwise.heads.modules import evaluating
from headwise.measuring.evaluate import default_tokens
from headwise.models.batching import Encoded, batches
from headwise.tasks.kinds.classify import encode_texts

if TYPE_CHECKING:
    from headwise.models.multitask import MultiTaskModel


@torch.no_grad()
def sentence_vectors(model: MultiTaskModel, texts: Sequence[str]) -> np.ndarray:
    """The pooled vector of each text, (sentences, width), in the order of the texts.

    Example:
        >>> sentence_vectors(model, ["what a film", "what a day"]).shape
        (2, 384)
    """
    columns = encode_texts([{"text": text} for text in texts], model.tokenizer, model.max_length)
    data = Encoded(columns, pad=model.tokenizer.pad_token_id or 0, rows=len(texts))
    out = np.empty((len(texts), model.width), np.float32)
    with evaluating(model):
        for items, batch in batches(data, default_tokens(model), model.device):
            out[items] = model.hidden(batch).pooled.float().cpu().numpy()
    return out
