"""Gates and cuts give what transformers 4.57.6 gave with its own ``head_mask`` and ``prune_heads``.

The numbers come from tests/golden/make_head_mask.py, which says how it was run.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file

from headwise.heads.cutting import prune
from headwise.heads.gates import gated

GOLDEN = Path(__file__).parents[1] / "golden" / "head_mask.safetensors"


@pytest.fixture(scope="module", params=["bert", "gpt2"])
def golden(request):
    """The recorded tensors of one family, and the same model in today's transformers."""
    family = request.param
    with safe_open(GOLDEN, framework="pt") as file:
        settings = json.loads(file.metadata()[family])
    own = {
        name.removeprefix(f"{family}."): value for name, value in load_file(GOLDEN).items() if name.startswith(family)
    }
    config = transformers.AutoConfig.for_model(family, **{k: v for k, v in settings.items() if k != "model_type"})
    model = transformers.AutoModel.from_config(config)
    weights = {name.removeprefix("weights."): value for name, value in own.items() if name.startswith("weights.")}
    model.load_state_dict(weights)
    inputs = {name.removeprefix("inputs."): value for name, value in own.items() if name.startswith("inputs.")}
    return model.double().eval(), inputs, own


def test_gates_give_the_outputs_of_head_mask(golden):
    model, inputs, kept = golden
    plain = model(**inputs).last_hidden_state
    for mask, expected in zip(kept["head_masks"], kept["outputs"], strict=True):
        with gated(model, mask):
            found = model(**inputs).last_hidden_state
        assert (found - expected).abs().max() < 1e-10
        assert torch.equal(mask, torch.ones_like(mask)) or (plain - expected).abs().max() > 1e-3  # the masks do matter


def test_gates_give_the_gradients_of_head_mask(golden):
    model, inputs, kept = golden
    for mask, expected in zip(kept["head_masks"], kept["gradients"], strict=True):
        gates = mask.double().requires_grad_()
        with gated(model, gates):
            (found,) = torch.autograd.grad(model(**inputs).last_hidden_state.sin().sum(), gates)
        assert (found - expected).abs().max() < 1e-9


def test_the_cut_model_gives_the_outputs_of_prune_heads(golden):
    model, inputs, kept = golden
    mask = kept["head_masks"][0] == 0
    found = prune(copy.deepcopy(model), mask)(**inputs).last_hidden_state
    assert (found - kept["pruned"]).abs().max() < 1e-10
