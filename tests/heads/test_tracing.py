"""Heads are found by what they do: the law of a site, what breaks it, and what proving it costs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from families.build import build
from families.check import verdict
from headwise.errors import HeadwiseError
from headwise.heads import proven, tracing
from headwise.heads.gates import Heads, captured, gated, stacks_of
from headwise.heads.modules import code_of
from headwise.heads.proven import _untraceable
from headwise.heads.tracing import trace
from headwise.testing import FAMILIES, tiny, tiny_batch

IDS = torch.tensor([[5, 9, 11, 13, 8]])


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    monkeypatch.setattr(proven, "_known", {})


class Mixing(nn.Module):
    """One attention layer; what stands between the heads and their projection is given."""

    def __init__(self, between: nn.Module | None = None, heads: int = 4, size: int = 3):
        super().__init__()
        width = heads * size
        self.heads, self.between = heads, between
        self.embed, self.qkv, self.out = nn.Embedding(20, width), nn.Linear(width, 3 * width), nn.Linear(width, width)

    def attended(self, states: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(states).unflatten(-1, (3 * self.heads, -1)).transpose(1, 2).chunk(3, 1)
        return ((q @ k.transpose(2, 3)).softmax(-1) @ v).transpose(1, 2)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        states = self.embed(input_ids)
        mixed = self.attended(states)
        mixed = self.between(mixed) if isinstance(self.between, Beside) else mixed.flatten(2)
        return states + self.out(
            mixed if self.between is None or isinstance(self.between, Beside) else self.between(mixed)
        )


class Beside(nn.Module):
    """Does something with heads as heads."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    def forward(self, mixed_BTHD: torch.Tensor) -> torch.Tensor:
        return self.how(mixed_BTHD)


class Stack(nn.Module):
    def __init__(self, *layers: nn.Module):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.config = type("Config", (), {"model_type": "own", "num_hidden_layers": len(layers)})()

    def forward(self, input_ids: torch.Tensor) -> list[torch.Tensor]:
        return [layer(input_ids) for layer in self.layers]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_known_family_is_proven(family):
    model = tiny(family)
    for stack in stacks_of(model):
        assert Heads.of(model, stack=stack).verified


def test_a_site_is_found_without_a_name():
    torch.manual_seed(0)
    proofs = trace(Stack(Mixing(), Mixing(heads=2, size=6)), {"input_ids": IDS}).proofs
    assert [(proof.name, proof.heads, proof.head_dim) for proof in proofs] == [
        ("layers.0.out", 4, 3),
        ("layers.1.out", 2, 6),
    ]


@pytest.mark.parametrize(
    "between",
    [
        Beside(lambda z: (z - 0.5 * z.roll(1, 2)).flatten(2)),  # heads are subtracted
        Beside(lambda z: (z + 1).flatten(2)),  # something passes beside the head
        Beside(lambda z: z.transpose(2, 3).flatten(2)),  # heads lie interleaved
        Beside(lambda z: nn.functional.normalize(z.flatten(2), dim=-1)),  # over all heads, and no module
    ],
    ids=["subtracted", "beside", "interleaved", "normalized"],
)
def test_what_breaks_the_law_is_refused(between):
    torch.manual_seed(0)
    found = trace(Stack(Mixing(between)), {"input_ids": IDS})
    assert not found.proofs and "layers.0.out" in found.refused


def test_heads_before_a_norm_are_gated_before_it():
    torch.manual_seed(0)
    (proof,) = trace(Stack(Mixing(nn.LayerNorm(12))), {"input_ids": IDS}).proofs
    assert proof.name == "layers.0.between" and not proof.projection


def test_the_blocks_of_local_attention_are_not_taken_for_heads():
    """LongT5's maps are (B, blocks, H, T, S), and a short sample is one block."""
    heads = Heads.of(build("longt5"), stack="encoder")
    assert heads.shape == (2, 4) and heads.head_dim == 8


class Gateway(Mixing):
    """Weighs heads by a projection that reads them: its input loses a slice, but they pass beside it too."""

    def __init__(self):
        super().__init__()
        self.after = nn.Linear(12, 12)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        z = self.attended(self.embed(input_ids)).flatten(2)
        return self.after(self.out(z).sigmoid() * z)


def test_a_projection_beside_which_heads_pass_is_refused():
    torch.manual_seed(0)
    found = trace(Stack(Gateway()), {"input_ids": IDS})
    assert not found.proofs and "layers.0.out notices too" in found.refused["layers.0.after"]


def test_a_sample_that_gives_no_numbers_is_named():
    torch.manual_seed(0)
    layer = Mixing()
    layer.embed.weight.data[5] = float("inf")
    found = trace(Stack(layer), {"input_ids": IDS})
    assert "infinite" in found.refused["layers.0.out"]


@pytest.mark.parametrize(("family", "site"), [("bitnet", "attn_sub_norm"), ("kosmos-2", "inner_attn_ln")])
def test_types_with_a_norm_before_the_projection(family, site):
    model = build(family)
    stack = stacks_of(model)[0]
    assert Heads.of(model, stack=stack).sites[0].name.endswith(site)
    assert verdict(model)[0] == "right"


def test_what_is_no_head_stays_as_it_is():
    model = build("convbert")
    heads = Heads.of(model)
    assert heads.shape == (2, 2), "half of what the projection reads is a convolution's"
    assert verdict(model)[0] == "right"
    before = model(input_ids=IDS).last_hidden_state
    with gated(model, torch.ones(heads.shape)):
        assert torch.equal(model(input_ids=IDS).last_hidden_state, before)


@pytest.mark.parametrize("pattern", ["*.mlp.down_proj", "*.self_attn.k_proj", "*.self_attn.*_proj"])
def test_a_pattern_passes_the_same_law(pattern):
    with pytest.raises(
        HeadwiseError, match=r"does not contain the outputs of heads.*proven sites: layers.\*.self_attn.o_proj"
    ):
        Heads.of(tiny("llama"), pattern=pattern)
    assert Heads.of(tiny("llama"), pattern="*.o_proj").verified


def test_a_sample_of_ones_own():
    model = Stack(Mixing(), Mixing())
    model.forward = lambda words: Stack.forward(model, words)  # no name that inputs are known by
    with pytest.raises(HeadwiseError):
        Heads.of(model)
    heads = Heads.of(model, sample={"words": IDS})
    assert heads.verified and heads.shape == (2, 4) and heads.head_dim == 3


@pytest.mark.parametrize("family", ["bert", "llama", "gpt2"])
def test_without_a_forward_names_are_used_and_it_is_said(family):
    model = tiny(family).to("meta")
    assert "meta" in _untraceable(model)
    heads = Heads.of(model)
    assert heads.shape == (2, 4) and not heads.verified


def test_proving_costs_one_forward_for_every_bit(monkeypatch):
    forwards = []
    whole = tracing._Recording.forward
    monkeypatch.setattr(tracing._Recording, "forward", lambda self, inputs: forwards.append(1) or whole(self, inputs))
    Heads.of(tiny("bert", num_attention_heads=12, hidden_size=24))
    assert len(forwards) == 1 + 4
    Heads.of(tiny("bert", seed=1, num_attention_heads=12, hidden_size=24))
    assert len(forwards) == 1 + 4, "a model of the same configuration is known"


@pytest.mark.parametrize("known", ["the model itself", "another of its configuration"])
@pytest.mark.parametrize("how", ["a forward set on the module", "a hook"])
def test_changed_code_is_traced_again(known, how):
    """Heads that are mixed before their projection have no slice of it: the map that was proven before is wrong."""
    model, batch = tiny("bert"), tiny_batch(tiny("bert"))
    if how == "a hook" or known.startswith("another"):
        Heads.of(tiny("bert"))
    else:
        Heads.of(model)
    for layer in model.encoder.layer:
        attend, plain = layer.attention.self, layer.attention.self.forward
        mixed = lambda out: (out[0] + 0.5 * out[0].roll(6, -1), *out[1:])  # noqa: E731
        if how == "a hook":
            attend.register_forward_hook(lambda module, args, out, mixed=mixed: mixed(out))
        else:
            attend.forward = lambda *args, plain=plain, mixed=mixed, **kwargs: mixed(plain(*args, **kwargs))
    gates = torch.ones(2, 4)
    gates[1, 2] = 0
    with torch.no_grad():
        with gated(model, gates):
            closed = model(**batch).last_hidden_state
        value = model.encoder.layer[1].attention.self.value
        value.weight[12:18], value.bias[12:18] = 0, 0
        assert torch.equal(closed, model(**batch).last_hidden_state)


def test_code_is_not_taken_for_what_was_at_its_address_before():
    module, seen = torch.nn.Linear(1, 1), []
    for _ in range(20):
        module.forward = lambda x: x  # the one before it is gone
        seen.append(code_of(module))
    assert len(set(seen)) == 20 and code_of(module) == seen[-1]


def test_proving_leaves_no_trace():
    model = tiny("llama").train()
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    Heads.of(model)
    assert torch.equal(torch.rand(2), expected) and all(module.training for module in model.modules())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_gates_around_do_not_change_the_proof():
    model = tiny("bert")
    known = Heads.of(model)
    proven._known.clear()
    with gated(model, torch.zeros(2, 4), heads=known):
        assert Heads.of(model).verified
        model(**tiny_batch(model))


def test_half_precision_is_proven_too():
    assert Heads.of(tiny("gemma2", dtype=torch.bfloat16)).verified


def test_towers_that_text_does_not_reach_are_traced_alone():
    model = build("qwen2_vl")
    assert stacks_of(model) == ["text", "vision"]
    assert all(Heads.of(model, stack=stack).verified for stack in ("text", "vision"))


def test_a_layer_that_calls_its_projection_twice_is_one_layer():
    model = build("pegasus_x")
    assert Heads.of(model, stack="encoder").shape == (2, 4) and verdict(model)[0] == "right"


class Summed(Mixing):
    """Subtracts heads from each other, and adds up values without a product of matrices."""

    def attended(self, states: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(states).unflatten(-1, (3 * self.heads, -1)).transpose(1, 2).chunk(3, 1)
        mixed = ((q @ k.transpose(2, 3)).softmax(-1)[..., None] * v[:, :, None]).sum(3).transpose(1, 2)
        return mixed - mixed.roll(1, 2)


def test_attention_that_no_stack_covers_is_listed():
    model = Stack(Mixing(), Summed())
    heads = Heads.of(model, sample={"input_ids": IDS})
    assert heads.alive.tolist() == [[True] * 4, [False] * 4] and heads.uncovered == ("layers.*.out",)
    with captured(model, lambda out_BTHD: out_BTHD, heads=heads) as outputs:
        model(IDS)
    assert len(outputs) == 2 and outputs[1].isnan().all()


def test_a_tower_that_no_sample_reaches_is_listed(monkeypatch):
    model, whole = build("mllama"), proven.samples
    texts = [inputs for inputs in whole(model) if "pixel_values" not in inputs]
    monkeypatch.setattr(proven, "samples", lambda one: texts if one is model else [])
    heads = Heads.of(model, stack="text")
    assert heads.verified and heads.alive.tolist() == [[True] * 4, [False] * 4]
    assert heads.uncovered == ("vision_model", "language_model.layers.*.cross_attn")


def test_cross_layers_are_a_stack_of_their_own():
    model = build("mllama")
    assert stacks_of(model)[:3] == ["cross", "text", "vision"]
    assert Heads.of(model, stack="cross").alive.tolist() == [[False] * 4, [True] * 4]
