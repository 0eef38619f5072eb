"""A cut model is the gated model with less in it, in every family."""

from __future__ import annotations

import copy

import pytest
import torch
from cuts import CASES, KINDS, answers, error, mask_of
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from headwise.errors import HeadwiseError
from headwise.heads.cutting import fold, prune
from headwise.heads.gates import Heads, captured, gated
from headwise.testing import layers_run_again, tiny, tiny_batch


@pytest.fixture(scope="module")
def models():
    cache: dict[str, nn.Module] = {}

    def get(family: str) -> nn.Module:
        if family not in cache:
            cache[family] = tiny(family).requires_grad_(False)
        return cache[family]

    return get


def padded(model: nn.Module) -> dict:
    batch = tiny_batch(model)
    if "attention_mask" in batch:
        batch["attention_mask"][1, 5:] = 0
    return batch


def gated_answers(model: nn.Module, mask: torch.Tensor, batch: dict, heads: Heads) -> torch.Tensor:
    with gated(model, (~mask).float(), heads=heads):
        return answers(model, batch)


@pytest.mark.parametrize(("family", "stack"), CASES)
class TestFamilies:
    @pytest.mark.parametrize("kind", KINDS)
    def test_cut_equals_gated_and_is_smaller(self, models, family, stack, kind):
        model, batch = models(family), padded(models(family))
        heads = Heads.of(model, stack=stack)
        mask = mask_of(heads, kind)
        cut = prune(copy.deepcopy(model), mask, stack)
        expected = gated_answers(model, mask, batch, heads)
        assert error(answers(cut, batch), expected) < 1e-5
        assert error(answers(model, batch), expected) > 1e-2  # the heads that went did matter
        removed = sum(p.numel() for p in model.parameters()) - sum(p.numel() for p in cut.parameters())
        hidden = heads.sites[0].module.weight.shape[int(heads.sites[0].parts["o"].axis == 0)]
        assert removed >= 2 * int(mask.sum()) * heads.head_dim * hidden  # at least each head's q and o

    def test_coordinates_stay(self, models, family, stack):
        model, batch = models(family), padded(models(family))
        heads = Heads.of(model, stack=stack)
        mask = mask_of(heads, "first layer empty")
        cut = prune(copy.deepcopy(model), mask, stack)
        left = Heads.of(cut, stack=stack)
        assert left.shape == heads.shape and left.head_dim == heads.head_dim and left.num_kv_heads == heads.num_kv_heads
        assert torch.equal(left.alive, ~mask) and left.exact

        with captured(cut, lambda out_BTHD: out_BTHD, heads=left) as found:
            answers(cut, batch)
        with gated(model, (~mask).float(), heads=heads), captured(model, lambda o: o, heads=heads) as expected:
            answers(model, batch)
        found_LBTHD, expected_LBTHD = torch.stack(found), torch.stack(expected)
        absent = mask[:, None, None, :, None].expand_as(found_LBTHD)
        assert torch.equal(found_LBTHD.isnan(), absent)
        assert error(found_LBTHD[~absent], expected_LBTHD[~absent]) < 1e-5

    def test_gates_of_a_cut_model(self, models, family, stack):
        model, batch = models(family), padded(models(family))
        heads = Heads.of(model, stack=stack)
        mask = mask_of(heads, "first layer empty")
        gates = torch.rand(heads.shape, generator=torch.Generator().manual_seed(1))
        cut = prune(copy.deepcopy(model), mask, stack)
        with gated(cut, gates, heads=Heads.of(cut, stack=stack)):
            found = answers(cut, batch)
        with gated(model, gates * ~mask, heads=heads):
            expected = answers(model, batch)
        assert error(found, expected) < 1e-5

    def test_second_cut_composes(self, models, family, stack):
        model = models(family)
        heads = Heads.of(model, stack=stack)
        first, second = mask_of(heads, "uneven"), mask_of(heads, "first layer empty")
        once = prune(copy.deepcopy(model), first | second, stack).state_dict()
        twice = prune(prune(copy.deepcopy(model), first, stack), second, stack).state_dict()
        assert once.keys() == twice.keys()
        assert all(torch.equal(once[name], twice[name]) for name in once)

    def test_folded_equals_gated(self, models, family, stack):
        model, batch = models(family), padded(models(family))
        heads = Heads.of(model, stack=stack)
        gates = torch.randn(heads.shape, generator=torch.Generator().manual_seed(2))
        with gated(model, gates, heads=heads):
            expected = answers(model, batch)
        assert error(answers(fold(copy.deepcopy(model), gates, stack), batch), expected) < 1e-5


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "modernbert", "gpt2", "gpt_neox", "llama", "phi3"])
def test_kernel_chosen_after_the_cut(models, family):
    model = copy.deepcopy(models(family))
    heads = Heads.of(model)
    mask = mask_of(heads, "first layer empty")
    cut = prune(copy.deepcopy(model), mask)
    for kernel in ("eager", "sdpa"):
        model.set_attn_implementation(kernel), cut.set_attn_implementation(kernel)
        assert error(answers(cut, padded(model)), gated_answers(model, mask, padded(model), heads)) < 1e-5


@pytest.mark.parametrize(("family", "stack"), [("t5", "encoder"), ("t5", "decoder"), ("mpnet", None), ("bert", None)])
@settings(max_examples=12, deadline=None)
@given(bits=st.integers(0, 2**12 - 1))
def test_any_mask(models, family, stack, bits):
    model = models(family)
    heads = Heads.of(model, stack=stack)
    mask = torch.tensor([bool(bits >> i & 1) for i in range(heads.num_layers * heads.num_heads)]).view(heads.shape)
    cut = prune(copy.deepcopy(model), mask, stack)
    assert error(answers(cut, padded(model)), gated_answers(model, mask, padded(model), heads)) < 1e-5


PROVEN = ("opt", "gptj", "falcon", "phi", "starcoder2", "stablelm", "cohere", "camembert", "nomic_bert", "deberta")


@pytest.mark.parametrize("kind", ["uneven", "first layer empty"])
@pytest.mark.parametrize("family", PROVEN)
def test_families_whose_rows_gradients_told_apart(models, family, kind):
    model, batch = models(family), padded(models(family))
    heads = Heads.of(model)
    mask, second = mask_of(heads, kind), torch.zeros(heads.shape, dtype=torch.bool)
    second[1, -1] = True
    cut = prune(copy.deepcopy(model), mask)
    assert error(answers(cut, batch), gated_answers(model, mask, batch, heads)) < 1e-5
    assert sum(p.numel() for p in cut.parameters()) < sum(p.numel() for p in model.parameters())
    assert torch.equal(Heads.of(cut).alive, ~mask)
    prune(cut, second)
    assert error(answers(cut, batch), gated_answers(model, mask | second, batch, heads)) < 1e-5


GROUPED = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3", "starcoder2", "stablelm", "cohere")


@pytest.mark.parametrize("gone", [[(0, 0)], [(0, 0), (0, 2), (0, 3)], [(0, 0), (0, 2), (1, 1), (1, 3)]])
@pytest.mark.parametrize("family", GROUPED)
def test_single_heads_of_a_group(models, family, gone):
    model, batch = models(family), padded(models(family))
    heads = Heads.of(model)
    assert heads.num_kv_heads == 2
    mask, second = torch.zeros(heads.shape, dtype=torch.bool), torch.zeros(heads.shape, dtype=torch.bool)
    mask[tuple(zip(*gone))] = True
    second[1, 0] = True
    cut = prune(copy.deepcopy(model), mask)
    left = Heads.of(cut)
    assert error(answers(cut, batch), gated_answers(model, mask, batch, heads)) < 1e-5
    assert torch.equal(left.alive, ~mask) and left.num_kv_heads == 2
    gates = torch.rand(heads.shape, generator=torch.Generator().manual_seed(1))
    with gated(cut, gates, heads=left):
        found = answers(cut, batch)
    with gated(model, gates * ~mask, heads=heads):
        assert error(found, answers(model, batch)) < 1e-5
    prune(cut, second)
    assert error(answers(cut, batch), gated_answers(model, mask | second, batch, heads)) < 1e-5


def test_position_projections_of_deberta():
    model = tiny("deberta-v2", share_att_key=False)
    heads = Heads.of(model)
    mask = mask_of(heads, "uneven")
    cut = prune(copy.deepcopy(model), mask)
    assert cut.encoder.layer[0].attention.self.pos_key_proj.out_features == 3 * heads.head_dim
    assert error(answers(cut, padded(model)), gated_answers(model, mask, padded(model), heads)) < 1e-5


def test_cross_attention_of_a_bert_decoder():
    model = tiny("bert", is_decoder=True, add_cross_attention=True)
    batch = padded(model) | {"encoder_hidden_states": torch.randn(3, 5, 24)}
    for stack in ("encoder", "cross"):
        heads = Heads.of(model, stack=stack)
        mask = mask_of(heads, "first layer empty")
        cut = prune(copy.deepcopy(model), mask, stack)
        assert error(answers(cut, batch), gated_answers(model, mask, batch, heads)) < 1e-5


@pytest.mark.parametrize("family", ["bert", "deberta-v2", "gpt2", "llama", "bart", "vit"])
def test_logits_of_a_task(family):
    auto = "AutoModelForImageClassification" if family == "vit" else "AutoModelForSequenceClassification"
    model = tiny(family, auto=auto, pad_token_id=0, num_labels=3)
    batch, stack = tiny_batch(model), "decoder" if family == "bart" else None
    if family == "bart":
        batch["input_ids"][:, -1] = model.config.eos_token_id
    heads = Heads.of(model, stack=stack)
    mask = mask_of(heads, "uneven")
    cut = prune(copy.deepcopy(model), mask, stack)
    with torch.no_grad(), gated(model, (~mask).float(), heads=heads):
        expected = model(**batch).logits
    assert expected.shape == (3, 3)
    assert error(cut(**batch).logits, expected) < 1e-5


@pytest.mark.parametrize("kind", ["uneven", "first layer empty", "single"])
@pytest.mark.parametrize(
    ("family", "stack"),
    [
        *[(f, None) for f in ("gpt2", "gpt_neox", "llama", "gemma2", "gemma3_text", "phi3", "opt", "starcoder2")],
        *[("t5", "decoder"), ("t5", "cross"), ("bart", "decoder")],
    ],
)
def test_cut_decoders_generate_the_same(family, stack, kind):
    several = family in ("t5", "bart")
    depth = {"num_decoder_layers": 2} if family == "t5" else {}  # transformers' cache wants equal depths
    model = tiny(family, auto="AutoModelForSeq2SeqLM" if several else "AutoModelForCausalLM", **depth)
    prompt = {k: v for k, v in tiny_batch(model).items() if k != "decoder_input_ids"}
    rules = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0, "eos_token_id": None, "use_cache": True}
    rules |= {"decoder_start_token_id": 1} if several else {}
    rules |= {"output_logits": True, "return_dict_in_generate": True}
    heads = Heads.of(model, stack=stack)
    mask = mask_of(heads, kind)
    with gated(model, (~mask).float(), heads=heads):
        expected = model.generate(**prompt, **rules)
    found = prune(model, mask, stack).generate(**prompt, **rules)
    assert torch.equal(found.sequences, expected.sequences)
    assert error(torch.stack(found.logits), torch.stack(expected.logits)) < 1e-4


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "mpnet", "openai-gpt", "vit"])
def test_attention_maps_stay_in_their_layers(models, family):
    model = copy.deepcopy(models(family))
    if family not in ("mpnet", "openai-gpt"):
        model.set_attn_implementation("eager")
    prune(model, mask_of(Heads.of(model), "first layer empty"))
    empty, other = model(**tiny_batch(model), output_attentions=True).attentions
    assert empty.shape[1] == 0 and other.shape[1] == int(Heads.of(model).alive[1].sum())


@pytest.mark.parametrize(("family", "stack"), [("bert", None), ("gpt2", None), ("t5", "encoder"), ("phi3", None)])
def test_cut_models_train_like_gated_ones(family, stack):
    model = tiny(family, dtype=torch.float64)
    heads = Heads.of(model, stack=stack)
    mask = mask_of(heads, "first layer empty")
    cut = prune(copy.deepcopy(model), mask, stack)
    with gated(model, (~mask).double(), heads=heads):
        model(**tiny_batch(model)).last_hidden_state.sin().sum().backward()
    cut(**tiny_batch(model)).last_hidden_state.sin().sum().backward()
    expected = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    same = [
        n for n, p in cut.named_parameters() if p.grad is not None and n in expected and p.shape == expected[n].shape
    ]
    assert len(same) > len(expected) / 2
    for name in same:
        assert error(cut.get_parameter(name).grad, expected[name]) < 1e-5


@pytest.mark.parametrize(("family", "stack"), [("bert", None), ("gpt2", None), ("t5", "encoder"), ("phi3", None)])
def test_cut_models_are_copied_even_while_they_train(family, stack):
    model = tiny(family)
    prune(model, mask_of(Heads.of(model, stack=stack), "first layer empty"), stack)
    layers_run_again(model.train())
    model(**tiny_batch(model)).last_hidden_state.sum().backward()
    twin = copy.deepcopy(model)
    model.eval(), twin.eval()
    assert torch.equal(answers(twin, tiny_batch(model)), answers(model, tiny_batch(model)))


def test_frozen_weights_stay_frozen():
    model = tiny("bert").requires_grad_(False)
    prune(model, mask_of(Heads.of(model), "uneven"))
    assert not any(p.requires_grad for p in model.parameters())


def test_a_model_compiled_before_the_cut():
    model, batch = tiny("bert"), tiny_batch(tiny("bert"))
    heads = Heads.of(model)
    mask = mask_of(heads, "first layer empty")
    compiled = torch.compile(model, backend="eager")
    answers(compiled, batch)
    expected = gated_answers(model, mask, batch, heads)
    assert error(answers(prune(compiled, mask), batch), expected) < 1e-5


class TestRefusals:
    def test_masks_that_do_not_fit(self):
        model = tiny("bert")
        with pytest.raises(HeadwiseError, match="bool mask"):
            prune(model, torch.zeros(2, 4))
        with pytest.raises(HeadwiseError, match=r"shape \(3, 4\).*\(2, 4\)"):
            prune(model, torch.zeros(3, 4, dtype=torch.bool))
        with pytest.raises(HeadwiseError, match=r"shape \(2, 3\)"):
            fold(model, torch.ones(2, 3))

    @pytest.mark.parametrize(
        ("family", "reason"), [("albert", "share one set of weights"), ("olmo2", "olmo2 has none"), ("bloom", "size")]
    )
    def test_families_that_cannot_be_cut(self, family, reason):
        model = tiny(family)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        with pytest.raises(HeadwiseError, match=reason):
            prune(model, mask_of(Heads.of(model), "uneven"))
        assert before.keys() == model.state_dict().keys()  # nothing was cut
        assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
        assert torch.isfinite(answers(model, tiny_batch(model))).all()

    def test_several_stacks_want_a_name(self):
        with pytest.raises(HeadwiseError, match="encoder, decoder, cross"):
            prune(tiny("t5"), torch.zeros(2, 4, dtype=torch.bool))

    # peft asks by the name that transformers 5.23 gave up
    @pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
    def test_adapters(self):
        peft = pytest.importorskip("peft")
        model = peft.get_peft_model(tiny("bert"), peft.LoraConfig(target_modules=["query"], r=2))
        for act in (prune, fold):
            with pytest.raises(HeadwiseError, match="merge_and_unload"):
                act(model, torch.zeros(2, 4, dtype=torch.bool))

    def test_parallel_wrappers(self):
        with pytest.raises(HeadwiseError, match="DataParallel"):
            prune(nn.DataParallel(tiny("bert")), torch.zeros(2, 4, dtype=torch.bool))

    def test_weights_that_are_not_plain(self):
        class Linear4bit(nn.Linear):
            pass

        model = tiny("bert")
        model.encoder.layer[1].attention.self.key.__class__ = Linear4bit
        before = {name: value.shape for name, value in model.state_dict().items()}
        with pytest.raises(HeadwiseError, match="Linear4bit"):
            prune(model, mask_of(Heads.of(model), "uneven"))
        assert before == {name: value.shape for name, value in model.state_dict().items()}  # nothing was cut
        model = tiny("bert")
        model.hf_quantizer = object()
        with pytest.raises(HeadwiseError, match="quantised"):
            prune(model, mask_of(Heads.of(model), "uneven"))
