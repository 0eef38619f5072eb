"""Where heads look: a model is left as it was found."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from headwise.heads.attention import attention_patterns
from headwise.heads.cutting import fold, prune
from headwise.testing import toy_model


@pytest.mark.parametrize("texts", [["w1 w2", "w3"], ["w1", 3]], ids=["texts", "an error"])
def test_looking_leaves_every_modules_mode_and_the_kernel_as_they_were(texts):
    model = toy_model().train()
    model.encoder.embeddings.eval()
    before = [module.training for module in model.modules()], model.config._attn_implementation
    with pytest.raises((TypeError, ValueError)) if 3 in texts else nullcontext():
        attention_patterns(model, texts)
    assert ([module.training for module in model.modules()], model.config._attn_implementation) == before


@pytest.mark.parametrize("family", ["bert", "deberta-v2"])
@pytest.mark.parametrize("first", [[1, 0, 0, 1], [1, 1, 1, 1]])
def test_heads_of_a_cut_model_keep_their_names(family, first):
    gone = torch.tensor([first, [1, 1, 1, 0]]).bool()
    smaller, closed = toy_model(family=family), toy_model(family=family)
    prune(smaller.encoder, gone)
    fold(closed.encoder, (~gone).float())
    found, expected = (attention_patterns(one, ["w1 w2 w3", "w4"], shown=1) for one in (smaller, closed))
    for name, values in expected.features.items():
        torch.testing.assert_close(found.features[name], values.masked_fill(gone, torch.nan), equal_nan=True)
    kept = {f"{layer}.{head}" for layer, head in (~gone).nonzero().tolist()}
    maps, whole = found.examples[0]["attention"], expected.examples[0]["attention"]
    assert maps == {name: rows for name, rows in whole.items() if name in kept}


def test_texts_in_a_batch_look_as_they_do_alone_whatever_the_tokenizer_pads_with():
    model, texts = toy_model(family="llama"), ["w1 w2 w3 w4 w5 w6", "w4", "w2 w7 w3"]
    alone = attention_patterns(model, texts, batch_size=1)
    for side, filler in (("left", model.tokenizer.pad_token), ("right", None)):
        model.tokenizer.padding_side, model.tokenizer.pad_token = side, filler
        for name, values in attention_patterns(model, texts).features.items():
            torch.testing.assert_close(values, alone.features[name], msg=f"{name}, {side}")
