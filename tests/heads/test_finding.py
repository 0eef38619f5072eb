"""Wrong use of heads and gates raises and says what to type."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from headwise.errors import HeadwiseError
from headwise.heads.attention import eager
from headwise.heads.gates import Heads, gated, stacks_of
from headwise.testing import tiny, tiny_batch


def test_unreached_gate():
    model = tiny("bert")
    with pytest.raises(HeadwiseError, match="no forward reached"), gated(model, torch.ones(2, 4)):
        pass


def test_error_inside_the_block_is_not_hidden():
    model = tiny("bert")
    with pytest.raises(ZeroDivisionError), gated(model, torch.ones(2, 4)):
        raise ZeroDivisionError
    assert not any(m._forward_pre_hooks for m in model.modules())


@pytest.mark.parametrize("shape", [(4, 2), (2,), (2, 5), (1, 1, 2, 4)])
def test_wrong_shape(shape):
    with pytest.raises(HeadwiseError, match=r"expected .*\(2, 4\)"), gated(tiny("bert"), torch.ones(shape)):
        pass


def test_wrong_number_of_examples():
    model = tiny("bert")
    with pytest.raises(HeadwiseError, match="2 examples"), gated(model, torch.ones(2, 2, 4)):
        model(**tiny_batch(model, batch=3))


def test_boolean_gates():
    with pytest.raises(HeadwiseError, match="float"), gated(tiny("bert"), torch.ones(2, 4).bool()):
        pass


def test_head_mask_is_refused():
    model = tiny("bert")
    with pytest.raises(HeadwiseError, match="silently ignores"), gated(model, torch.ones(2, 4)):
        model(**tiny_batch(model), head_mask=torch.zeros(2, 4))


def test_unknown_architecture_lists_candidates():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.mix = nn.Linear(8, 8)

    model = nn.Sequential(Block(), Block())
    model.config = type("Config", (), {"model_type": "odd", "num_attention_heads": 2, "num_hidden_layers": 2})()
    with pytest.raises(HeadwiseError, match=r"\*\.mix"):
        Heads.of(model)
    assert Heads.of(model, pattern="*.mix").shape == (2, 2)


def test_several_stacks_must_be_named():
    with pytest.raises(HeadwiseError, match=r'stack="encoder" \(--stack encoder\)'):
        Heads.of(tiny("t5"))
    with pytest.raises(HeadwiseError, match="unknown stack"):
        Heads.of(tiny("t5"), stack="vision")
    assert stacks_of(tiny("bart")) == ["encoder", "decoder", "cross"]


def test_over_match():
    with pytest.raises(HeadwiseError, match="one per layer"):
        Heads.of(tiny("bert"), pattern="*layer.0.attention.output.dense")
    with pytest.raises(
        HeadwiseError, match=r"intermediate.dense does not contain .*proven sites: encoder.layer.\*.attention"
    ):
        Heads.of(tiny("bert"), pattern="*.dense")


def test_out_of_reach():
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.for_model("mamba", vocab_size=20, hidden_size=8, num_hidden_layers=1)
    with pytest.raises(HeadwiseError, match="out of reach"):
        Heads.of(AutoModel.from_config(config))


def test_shared_layers_refuse_parameters():
    heads = Heads.of(tiny("albert"))
    assert heads.shape == (2, 4)
    with pytest.raises(HeadwiseError, match="share one set of weights"):
        heads.require_exact("a cut")


def test_segments_without_gates():
    model = tiny("bert")
    segments = torch.full((3, 7), 2)
    refused = pytest.raises(HeadwiseError, match="segment number 2; expected numbers below 2")
    with refused, gated(model, torch.ones(2, 2, 4), segments=segments):
        pass
    with gated(model, torch.ones(3, 2, 4), segments=segments):
        model(**tiny_batch(model))


@pytest.mark.parametrize("shape", [(1, 7), (3, 1), (7,), (2, 7)])
def test_segments_that_would_broadcast(shape):
    model = tiny("bert")
    gates, segments = torch.ones(3, 2, 4), torch.zeros(shape, dtype=torch.long)
    refused = pytest.raises(HeadwiseError, match=r"segments of shape .*\(rows, T\)")
    with refused, gated(model, gates, segments=segments):
        model(**tiny_batch(model))


@pytest.mark.parametrize(("name", "number"), [("num_attention_heads", -4), ("num_attention_heads", 0)])
def test_a_configuration_without_heads(name, number):
    model = tiny("bert")
    setattr(model.config, name, number)
    with pytest.raises(HeadwiseError, match=f"{name}={number} in the configuration"):
        Heads.of(model)


@pytest.mark.parametrize("attentions", [None, (), (None, None), (torch.ones(1, 4, 2, 2), None)])
def test_a_model_without_attention_maps(attentions, monkeypatch):
    model = tiny("bert")
    monkeypatch.setattr(model, "forward", lambda **_: SimpleNamespace(attentions=attentions))
    with pytest.raises(HeadwiseError, match="returns no attention maps"), eager(model) as maps:
        maps(input_ids=torch.ones(1, 2, dtype=torch.long))
