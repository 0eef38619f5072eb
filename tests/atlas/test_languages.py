"""Heads are a language's by what they do for it; a mask learns a few gates, lowers the loss, and changes no weight."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headwise.atlas.languages import language_heads, soft_mask
from headwise.errors import HeadwiseError
from headwise.scoring.result import Importance
from headwise.scoring.stability import Blocks
from headwise.testing import toy_language_model


def needs(**maps):
    blocks = Blocks(np.ones((2, 2, 2)), np.ones(2))
    return {
        name: Importance(name, "gradient", torch.tensor(m), torch.zeros(2, 2), 8, blocks) for name, m in maps.items()
    }


def test_language_heads_have_a_larger_share_in_their_language():
    given = needs(en=[[4.0, 1.0], [1.0, 4.0]], es=[[1.0, 9.0], [9.0, 1.0]], fr=[[1.0, 1.0], [9.0, 1.0]])
    assert language_heads(given, "es", 1) == [(0, 1)]  # 1.0 is as much French
    assert set(language_heads(given, "en", 2)) == {(1, 1), (0, 0)}
    with pytest.raises(HeadwiseError, match="another to compare"):
        language_heads(needs(en=[[1.0, 1.0], [1.0, 1.0]]), "en")
    with pytest.raises(HeadwiseError, match="k=9"):
        language_heads(given, "es", 9)


def test_a_mask_learns_its_gates_alone_and_the_loss_falls():
    lm = toy_language_model("llama")
    before = {name: p.clone() for name, p in lm.named_parameters()}
    mask = soft_mask(lm, "after", [(0, 1), (1, 2)], steps=25, size=12, examples=12)
    assert mask.losses[-1] < mask.losses[0] and mask.gates.shape == (2,)
    assert ((mask.gates > 0) & (mask.gates < 2)).all() and (np.abs(mask.gates - 1) > 0.01).all()
    full = mask.full((2, 4))
    assert full[0, 1] == pytest.approx(mask.gates[0]) and (full != 1).sum() == 2
    for name, parameter in lm.named_parameters():
        assert torch.equal(parameter, before[name]) and parameter.requires_grad and parameter.grad is None


def test_heads_that_are_not_there_are_refused():
    with pytest.raises(HeadwiseError, match="one or more remaining heads"):
        soft_mask(toy_language_model("llama"), "after", [])
