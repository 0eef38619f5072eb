"""Where heads look: a model is left as it was found."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from headwise.attention import looks
from headwise.testing import toy_model


@pytest.mark.parametrize("texts", [["w1 w2", "w3"], ["w1", 3]], ids=["texts", "an error"])
def test_looking_leaves_every_modules_mode_and_the_kernel_as_they_were(texts):
    model = toy_model().train()
    model.encoder.embeddings.eval()
    before = [module.training for module in model.modules()], model.config._attn_implementation
    with pytest.raises((TypeError, ValueError)) if 3 in texts else nullcontext():
        looks(model, texts)
    assert ([module.training for module in model.modules()], model.config._attn_implementation) == before
