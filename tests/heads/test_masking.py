"""Laws of masks: nothing changes where all is allowed; what is not has no weight; a look aside leaves no trace."""

from __future__ import annotations

import pytest
import torch

from headwise.heads.attention import streamed
from headwise.heads.gates import Heads, captured
from headwise.heads.masking import beside, masked
from headwise.testing import no_dropout, tiny, tiny_batch

FAMILIES = ["llama", "gemma3_text", "gpt2", "bert", "gpt_neox", "opt"]


def states(model, batch):
    with torch.no_grad():
        return model(**batch).last_hidden_state


@pytest.mark.parametrize("family", FAMILIES)
def test_a_mask_that_allows_everything_changes_nothing(family):
    model = no_dropout(tiny(family))
    batch = tiny_batch(model)
    plain = states(model, batch)
    with masked(model, lambda site, query, key: key >= query - 100):
        torch.testing.assert_close(states(model, batch), plain)
    assert torch.equal(states(model, batch), plain)


@pytest.mark.parametrize("family", FAMILIES)
def test_heads_see_what_is_allowed_and_no_more(family):
    model = no_dropout(tiny(family))
    heads, batch, seen = Heads.of(model), tiny_batch(model), {}

    def allowed(site, query, key):
        narrow = torch.arange(len(site.kept))[:, None, None] == 1
        return ~narrow | (query == key)

    with torch.no_grad(), masked(model, allowed, heads), streamed(model, seen.__setitem__, heads) as forward:
        forward(**batch)
    one = torch.eye(7).expand(3, 7, 7)
    for map_BHTT in seen.values():
        torch.testing.assert_close(map_BHTT[:, 1], one)
        assert (map_BHTT[:, 0] - one).abs().max() > 0.1


def test_a_look_aside_is_what_the_mask_would_give_and_leaves_the_forward_as_it_is():
    model = no_dropout(tiny("llama"))
    heads, batch, aside = Heads.of(model), tiny_batch(model), {}
    plain = states(model, batch)
    with torch.no_grad(), captured(model, lambda z: z.clone(), heads=heads) as own:
        model(**batch)
    own = list(own)
    near = lambda site, query, key: key > query - 2  # noqa: E731
    with beside(model, near, lambda layer, z: aside.setdefault(layer, z.clone()), heads):
        assert torch.equal(states(model, batch), plain)
    with torch.no_grad(), masked(model, near, heads), captured(model, lambda z: z.clone(), heads=heads) as there:
        model(**batch)
    torch.testing.assert_close(aside[0], there[0])  # the first layer's input is the same in both
    assert not torch.allclose(aside[0], own[0])
