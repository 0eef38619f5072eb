"""Ragged heads: layers without attention, with fewer heads or another head size are absent cells, everywhere."""

from __future__ import annotations

import pytest
import torch

from families.build import build
from headwise.dissociation.lesions import dissociate
from headwise.errors import HeadwiseError
from headwise.heads.attention import eager, whole_maps
from headwise.heads.cutting import fold, prune
from headwise.heads.gates import Heads, captured, gated
from headwise.heads.selection import top
from headwise.measuring.evaluate import evaluate
from headwise.models.multitask import MultiTaskModel
from headwise.probing.features import Reader
from headwise.scoring.importance import importance
from headwise.testing import tiny_tokenizer, toy_tasks

HYBRIDS = {
    "qwen3_next": [3],
    "jamba": [1],
    "bamba": [1],
    "zamba2": [1, 2],
    "nemotron_h": [1],
    "falcon_h1": [0, 1],
    "granitemoehybrid": [1],
    "olmo_hybrid": [3],
    "recurrent_gemma": [2],
    "lfm2": [1],
    "minimax": [0],
}
WORDS = [f"w{i}" for i in range(20)] + [f"m{i}{c}" for i in range(2) for c in "ab"]
IDS = torch.tensor([[5, 9, 11, 13, 8]])


@pytest.fixture(scope="module")
def models():
    cache = {}

    def get(family: str):
        if family not in cache:
            cache[family] = MultiTaskModel(build(family), tiny_tokenizer(WORDS), toy_tasks(2, rows=24)).eval()
        return cache[family]

    return get


@pytest.mark.parametrize(("family", "layers"), HYBRIDS.items())
def test_layers_without_attention_are_absent(family, layers):
    model = build(family)
    heads = Heads.of(model)
    there = torch.zeros(heads.num_layers, dtype=torch.bool)
    there[layers] = True
    assert heads.verified and torch.equal(heads.alive, there[:, None].expand(heads.shape))
    before = model(input_ids=IDS).last_hidden_state
    gates = torch.ones(heads.shape)
    gates[~there] = 0
    with gated(model, gates, heads=heads):
        assert torch.equal(model(input_ids=IDS).last_hidden_state, before), "absent heads have nothing to close"
    gates = torch.ones(heads.shape)
    gates[layers[0], 0] = 0
    with gated(model, gates, heads=heads):
        assert not torch.allclose(model(input_ids=IDS).last_hidden_state, before)


def test_head_sizes_differ_between_layers():
    model = build("gemma4_text")
    heads = Heads.of(model)
    assert [site.head_dim for site in heads.sites] == [8, 8, 16] and heads.head_dim == 16 and heads.alive.all()
    with captured(model, lambda out_BTHD: out_BTHD, heads=heads) as outputs:
        model(input_ids=IDS)
    assert all(out.shape == (1, 5, 4, 16) for out in outputs)
    assert not outputs[0][..., 8:].any() and outputs[2][..., 8:].any()


def test_numbers_of_heads_differ_between_layers():
    heads = Heads.of(build("swin"))
    assert heads.shape == (3, 6) and heads.alive.sum(1).tolist() == [3, 6, 6]


def test_captured_layers_keep_their_places():
    model = build("qwen3_next")
    heads = Heads.of(model)
    with captured(model, lambda out_BTHD: out_BTHD[:, 0], heads=heads) as first:
        model(input_ids=IDS)
        model(input_ids=IDS)
    whole = torch.stack(first, 1)
    assert whole.shape == (1, 8, 4, heads.head_dim)
    assert whole[:, [3, 7]].isfinite().all() and whole[:, [0, 1, 2, 4, 5, 6]].isnan().all()


@pytest.mark.parametrize("by", ["gradient", "token", "ablation", "mean_ablation", "all_but_one", "magnitude"])
@pytest.mark.parametrize("family", ["qwen3_next", "gemma4_text"])
def test_importance_of_absent_heads_is_nan(models, family, by):
    model = models(family)
    heads = Heads.of(model.encoder)
    scores = importance(model, "toy0", by, examples=6).scores
    assert torch.equal(scores.isnan(), ~heads.alive) and (scores[heads.alive] > 0).any()


def test_attention_maps_of_absent_layers_are_nan():
    model = build("qwen3_next", _attn_implementation="eager")
    with eager(model) as maps:
        whole = whole_maps(maps(input_ids=IDS), Heads.of(model))
    assert len(whole) == 4 and whole[3].isfinite().all() and all(a.isnan().all() for a in whole[:3])


def test_lesions_and_selection_take_heads_that_are_there(models):
    model = models("qwen3_next")
    found = {name: importance(model, name, examples=6) for name in model.tasks}
    mask = top(found["toy0"].scores, 0.125)
    assert mask.sum() == 2 and not mask[:3].any()
    apart = dissociate(model, found, (0.125,), random=2, limit=12)
    assert apart.to_record()
    score = evaluate(model, "toy0", limit=12)
    assert 0 <= score.value <= 1


def test_probes_read_every_head_that_is_there(models):
    model = models("jamba")
    features = Reader.of(model).read([{"text": "w1 w2 m0a"}, {"text": "w3 m0b"}])
    assert features.heads.shape[:3] == (2, 4, 2)
    assert features.heads[0].isnan().all() and features.heads[1].isfinite().all()


def test_gates_fold_into_the_layers_that_have_heads():
    model = build("gemma4_text")
    heads = Heads.of(model)
    gates = torch.rand(heads.shape, generator=torch.Generator().manual_seed(0))
    with gated(model, gates, heads=heads):
        expected = model(input_ids=IDS).last_hidden_state
    assert torch.allclose(fold(model, gates)(input_ids=IDS).last_hidden_state, expected, atol=1e-5)


def test_layers_with_tied_weights_are_gated_one_by_one_and_not_changed():
    model = build("zamba2")
    heads = Heads.of(model)
    first, second = (site.module for site in heads.sites[1:])
    assert first is not second and first.weight is second.weight and heads.shared and not heads.exact
    outputs = []
    for layer in (1, 2):
        gates = torch.ones(heads.shape)
        gates[layer, 0] = 0
        with gated(model, gates, heads=heads):
            outputs.append(model(input_ids=IDS).last_hidden_state)
    assert not torch.allclose(*outputs)
    with pytest.raises(HeadwiseError, match="share one set of weights"):
        fold(model, torch.ones(heads.shape))


def test_gates_before_a_norm_work_and_do_not_fold():
    model = build("bitnet")
    heads = Heads.of(model)
    assert heads.verified and heads.sites[0].name == "layers.0.self_attn.attn_sub_norm"
    with pytest.raises(HeadwiseError, match="a BitNetRMSNorm over all heads"):
        fold(model, torch.ones(heads.shape))
    with pytest.raises(HeadwiseError, match="bitnet has none"):
        prune(model, torch.zeros(heads.shape, dtype=torch.bool))
