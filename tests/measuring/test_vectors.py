"""Vectors of sentences are those that output heads read, whatever batch they were in."""

from __future__ import annotations

import numpy as np
import torch

from headwise.heads.modules import evaluating
from headwise.measuring.vectors import sentence_vectors
from headwise.testing import toy_model


def test_a_vector_is_what_the_output_head_reads_in_the_order_of_the_texts():
    model = toy_model()
    texts = ["w1 w2 w3", "w4", "w5 w6 w7 w8 w9 w1", "w2"]
    found = sentence_vectors(model, texts)
    assert found.shape == (4, model.width) and found.dtype == np.float32
    with evaluating(model), torch.no_grad():
        for text, vector in zip(texts, found):
            alone = model.hidden(dict(model.tokenizer([text], return_tensors="pt")))
            np.testing.assert_allclose(vector, alone.pooled[0].float().numpy(), atol=1e-5)
