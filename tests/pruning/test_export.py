"""Exports answer like the gated model, say so when they do not, and open where they promise to."""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cuts import CASES, answers, error, mask_of
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModel

from headwise import load
from headwise.errors import HeadwiseError
from headwise.heads.cutting import prune
from headwise.heads.families import OWN_HEAD_SIZE
from headwise.heads.gates import Heads, gated
from headwise.models.batching import encode
from headwise.models.multitask import MultiTaskModel
from headwise.pruning import export as exports
from headwise.pruning.export import export, read_mask, repair_batches
from headwise.pruning.verify import check_same, outputs, sample_inputs
from headwise.testing import FAMILIES, tiny, tiny_batch, tiny_tokenizer, toy_model, toy_tasks

NAMED = {"t5": "encoder", "bart": "encoder", "clip": "text", "whisper": "encoder"}
FRESH = """
import json, sys, torch, transformers
from safetensors.torch import load_file, save_file
found = {}
for name, (folder, kind) in json.loads(sys.argv[1]).items():
    model = getattr(transformers, kind).from_pretrained(folder).eval()
    with torch.no_grad():
        found[name] = model(**load_file(f"{sys.argv[2]}/{name}.inputs")).last_hidden_state
assert not any(module.startswith("headwise") for module in sys.modules)
save_file(found, f"{sys.argv[2]}/found")
"""


def gated_answers(model: nn.Module, mask: torch.Tensor, stack: str | None = None) -> torch.Tensor:
    with gated(model, (~mask).float(), heads=Heads.of(model, stack=stack)):
        return answers(model, tiny_batch(model))


@pytest.fixture
def sliced(tmp_path) -> Path:
    model = tiny("bert")
    return export(model, mask_of(Heads.of(model), "uneven"), tmp_path / "small", "sliced")


@pytest.mark.parametrize("kind", ["uneven", "first layer empty", "single"])
@pytest.mark.parametrize(
    ("family", "stack"), [*CASES, ("opt", None), ("starcoder2", None), ("clip", "vision"), ("gptj", None)]
)
def test_sliced_comes_back_as_the_cut_model(tmp_path, family, stack, kind):
    model = tiny(family)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    mask = mask_of(Heads.of(model, stack=stack), kind)
    path = export(model, mask, tmp_path / "small", "sliced", stack=stack)
    back = load(path)
    assert type(back) is type(model) and not back.training
    assert torch.equal(Heads.of(back, stack=stack).alive, ~mask)
    assert error(answers(back, tiny_batch(model)), gated_answers(model, mask, stack)) < 1e-5
    assert back.num_parameters() < model.num_parameters()
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())  # the model is as it was
    assert [path.name for path in tmp_path.iterdir()] == ["small"]  # and nothing else is left


def test_a_loaded_model_is_cut_and_exported_again(tmp_path):
    model = tiny("t5", auto="AutoModelForSeq2SeqLM")
    masks = {stack: mask_of(Heads.of(model, stack=stack), "uneven") for stack in ("encoder", "decoder", "cross")}
    expected, step = copy.deepcopy(model), model
    for stack, mask in masks.items():
        prune(expected, mask, stack)
        step = load(export(step, mask, tmp_path / stack, "sliced", stack=stack))
    assert error(answers(step, tiny_batch(model)), answers(expected, tiny_batch(model))) < 1e-6
    assert all(torch.equal(Heads.of(step, stack=stack).alive, ~mask) for stack, mask in masks.items())


@pytest.mark.parametrize("form", ["masked", "sliced"])
@pytest.mark.parametrize("auto", ["AutoModelForCausalLM", "AutoModelForSequenceClassification"])
def test_task_heads_and_tied_weights(tmp_path, form, auto):
    model = tiny("gpt2", auto=auto, bos_token_id=1, eos_token_id=1)
    mask = mask_of(Heads.of(model), "uneven")
    back = load(export(model, mask, tmp_path / "m", form))
    assert type(back) is type(model)
    inputs = sample_inputs(model)
    with gated(model, (~mask).float()):
        expected = outputs(model, inputs)["logits"]
    assert error(outputs(back, inputs)["logits"], expected) < 1e-5


@pytest.mark.parametrize("form", ["masked", "sliced"])
def test_models_that_choose_between_texts(tmp_path, form):
    model = tiny("roberta", auto="AutoModelForMultipleChoice")
    mask = mask_of(Heads.of(model), "uneven")
    back, inputs = load(export(model, mask, tmp_path / "m", form)), sample_inputs(model)
    with gated(model, (~mask).float()):
        assert error(outputs(back, inputs)["logits"], outputs(model, inputs)["logits"]) < 1e-5


def test_a_link_that_points_nowhere_is_there_already(tmp_path):
    (tmp_path / "m").symlink_to(tmp_path / "nothing")
    with pytest.raises(HeadwiseError, match="already exists"):
        export(tiny("bert"), torch.zeros(2, 4, dtype=torch.bool), tmp_path / "m", "sliced")


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_number_formats(tmp_path, dtype):
    model = tiny("llama", dtype=dtype)
    assert load(export(model, mask_of(Heads.of(model), "even"), tmp_path / "m", "sliced")).dtype == dtype


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "albert"])
def test_masked_is_a_plain_checkpoint_of_any_family(tmp_path, family):
    model, stack = tiny(family), NAMED.get(family)
    heads = Heads.of(model, stack=stack)
    mask = torch.zeros(heads.shape, dtype=torch.bool)
    mask[0, 1] = mask[1, 3] = True  # groups may be split: nothing is cut
    back = type(model).from_pretrained(export(model, mask, tmp_path / "m", "masked", stack=stack)).eval()
    back.set_attn_implementation(model.config._attn_implementation)
    assert error(answers(back, tiny_batch(model)), gated_answers(model, mask, stack)) < 1e-5
    assert {n: p.shape for n, p in back.named_parameters()} == {n: p.shape for n, p in model.named_parameters()}


def test_masked_and_compact_open_with_transformers_alone(tmp_path):
    jobs, expected = {}, {}
    cases = [(f, "compact") for f in sorted(OWN_HEAD_SIZE - {"t5"})] + [("bert", "masked"), ("gpt2", "masked")]
    for family, form in [*cases, ("t5", "compact")]:
        name = f"{family}-{form}"
        model = tiny(family) if family != "t5" else tiny(family, auto="AutoModelForTextEncoding")
        mask = mask_of(Heads.of(model), "even")
        folder = export(model, mask, tmp_path / name, form)
        jobs[name] = (str(folder), "AutoModel" if family != "t5" else "T5EncoderModel")
        save_file(tiny_batch(model), tmp_path / f"{name}.inputs")
        with torch.no_grad(), gated(model, (~mask).float()):
            expected[name] = model(**tiny_batch(model)).last_hidden_state
        shrunk = sum(p.numel() for p in type(model).from_pretrained(folder).parameters()) < model.num_parameters()
        assert shrunk == (form == "compact")
    place = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    subprocess.run([sys.executable, "-c", FRESH, json.dumps(jobs), str(tmp_path)], check=True, env=place, cwd=tmp_path)
    found = load_file(tmp_path / "found")
    assert found.keys() == expected.keys()
    assert max(error(found[name], expected[name]) for name in expected) < 1e-5


class TestCompact:
    def test_a_whole_t5_when_all_its_stacks_are_even(self, tmp_path):
        model = tiny("t5")
        for stack in ("encoder", "decoder"):
            mask = mask_of(Heads.of(model, stack=stack), "even")
            with pytest.raises(HeadwiseError, match="every stack"):
                export(model, mask, tmp_path / "m", "compact", stack=stack)
            prune(model, mask, stack)
        cross = mask_of(Heads.of(model, stack="cross"), "uneven")
        cross[1] = cross[0].flip(0)
        cross[2] = cross[0]  # other heads, but as many: cross attention has no bias to share
        back = load(export(model, cross, tmp_path / "m", "compact", stack="cross"))
        assert back.config.num_heads == 3 and back.config.d_kv == 5
        assert error(answers(back, tiny_batch(model)), gated_answers(model, cross, "cross")) < 1e-5

    def test_layers_of_t5_must_keep_the_same_heads(self, tmp_path):
        model = tiny("t5", auto="AutoModelForTextEncoding")
        mask = torch.eye(2, 4).bool()
        with pytest.raises(HeadwiseError, match="position bias"):
            export(model, mask, tmp_path / "m", "compact")

    def test_other_heads_in_other_layers(self, tmp_path):
        model = tiny("llama")
        mask = torch.tensor([[True, True, False, False], [False, False, True, True]])
        back = load(export(model, mask, tmp_path / "m", "compact"))
        config = back.config
        assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (2, 1, 6)
        assert error(answers(back, tiny_batch(model)), gated_answers(model, mask)) < 1e-5

    def test_uneven_masks_say_what_would_make_them_even(self, tmp_path):
        model = tiny("llama")
        mask = mask_of(Heads.of(model), "none")
        mask[0, :2] = True
        with pytest.raises(HeadwiseError, match=r"layers keep 2, 4 heads.*cut 2 more in decoder layer 1; or"):
            export(model, mask, tmp_path / "m", "compact")
        with pytest.raises(HeadwiseError, match="leave 2 more in decoder layer 0"):
            export(model, mask_of(Heads.of(model), "first layer empty"), tmp_path / "m", "compact")

    def test_a_head_count_that_the_configuration_refuses(self, tmp_path):
        model = tiny("llama", hidden_size=32, num_attention_heads=8, num_key_value_heads=8, head_dim=4)
        mask = torch.zeros(2, 8, dtype=torch.bool)
        mask[:, :3] = True
        with pytest.raises(HeadwiseError, match=r"refuses 5 heads.*divides 32: \[1, 2, 4, 8\]"):
            export(model, mask, tmp_path / "m", "compact")

    def test_families_without_a_head_size_name_the_other_forms(self, tmp_path):
        model = tiny("bert")
        with pytest.raises(HeadwiseError, match=r"masked.*sliced"):
            export(model, mask_of(Heads.of(model), "even"), tmp_path / "m", "compact")
        assert not list(tmp_path.iterdir())


class TestOnnx:
    def test_the_graph_takes_any_batch_and_length(self, tmp_path):
        runtime = pytest.importorskip("onnxruntime")
        pytest.importorskip("onnxscript")
        model = tiny("bert", auto="AutoModelForSequenceClassification")
        mask = mask_of(Heads.of(model), "first layer empty")
        path = export(model, mask, tmp_path / "m", "onnx")
        session = runtime.InferenceSession(path / "model.onnx")
        for batch, length in ((1, 3), (5, 17)):
            inputs = sample_inputs(model, batch, length)
            with gated(model, (~mask).float()):
                expected = outputs(model, inputs)["logits"]
            (found,) = session.run(["logits"], {name: value.numpy() for name, value in inputs.items()})
            assert error(torch.from_numpy(found), expected) < 1e-5
        with pytest.raises(HeadwiseError, match="onnxruntime"):
            load(path)

    @pytest.mark.slow
    def test_what_onnxruntime_cannot_run_is_told(self, tmp_path):
        pytest.importorskip("onnxruntime")
        pytest.importorskip("onnxscript")
        model = tiny("bert", dtype=torch.bfloat16)
        with pytest.raises(HeadwiseError, match=r"bfloat16.*float32"):
            export(model, mask_of(Heads.of(model), "uneven"), tmp_path / "m", "onnx")

    @pytest.mark.parametrize(("family", "stack"), CASES)
    def test_every_family(self, tmp_path, family, stack):
        pytest.importorskip("onnxruntime")
        pytest.importorskip("onnxscript")
        model = tiny(family)
        mask = mask_of(Heads.of(model, stack=stack), "first layer empty")
        assert (export(model, mask, tmp_path / "m", "onnx", stack=stack) / "model.onnx").exists()  # export compares

    def test_without_the_extra(self, tmp_path, monkeypatch):
        found = importlib.util.find_spec
        monkeypatch.setattr(exports.importlib.util, "find_spec", lambda n, *at: None if "onnx" in n else found(n, *at))
        model = tiny("bert")
        with pytest.raises(HeadwiseError, match=r"\.\[onnx\]"):
            export(model, mask_of(Heads.of(model), "uneven"), tmp_path / "m", "onnx")


class TestExporting:
    @pytest.mark.parametrize("form", ["masked", "sliced"])
    def test_a_wrong_export_is_removed(self, tmp_path, monkeypatch, form):
        monkeypatch.setattr(exports, "fold", lambda model, gates, stack: model)
        monkeypatch.setattr(exports, "prune", lambda model, mask, stack: prune(model, mask.flip(1), stack))
        model = tiny("bert")
        with pytest.raises(HeadwiseError, match=f"the {form} export was removed"):
            export(model, mask_of(Heads.of(model), "uneven"), tmp_path / "m", form)
        assert not list(tmp_path.iterdir())

    def test_numbers_that_are_not_numbers_never_agree(self):
        with pytest.raises(HeadwiseError, match="nan"):
            check_same({"logits": torch.tensor([torch.nan])}, {"logits": torch.ones(1)}, "masked")

    def test_names_that_are_taken_or_unknown(self, tmp_path):
        model = tiny("bert")
        mask = mask_of(Heads.of(model), "uneven")
        (tmp_path / "m").mkdir()
        with pytest.raises(HeadwiseError, match="already exists"):
            export(model, mask, tmp_path / "m", "sliced")
        with pytest.raises(HeadwiseError, match=r"Try: sliced"):
            export(model, mask, tmp_path / "n", "slice")

    def test_layers_that_share_weights(self, tmp_path):
        model = tiny("albert")
        with pytest.raises(HeadwiseError, match="share one set of weights"):
            export(model, torch.ones(Heads.of(model).shape).bool(), tmp_path / "m", "masked")

    def test_a_cut_model_cannot_be_masked(self, tmp_path):
        model = tiny("bert")
        mask = mask_of(Heads.of(model), "uneven")
        with pytest.raises(HeadwiseError, match="already lost heads"):
            export(prune(model, mask), mask, tmp_path / "m", "masked")

    def test_the_tokenizer_goes_along(self, tmp_path):
        class Words:
            def save_pretrained(self, folder: Path) -> None:
                (folder / "tokenizer.json").write_text("{}")

        model = tiny("bert")
        path = export(model, mask_of(Heads.of(model), "uneven"), tmp_path / "m", "sliced", Words())
        assert (path / "tokenizer.json").exists()

    def test_training_goes_on_undisturbed(self, tmp_path):
        model = tiny("bert").train()
        export(model, mask_of(Heads.of(model), "uneven"), tmp_path / "m", "sliced")
        assert model.training and all(module.training for module in model.modules())


class TestLoading:
    def test_a_plain_folder(self, tmp_path):
        model = tiny("bert", auto="AutoModelForTokenClassification")
        model.save_pretrained(tmp_path / "m")
        back = load(tmp_path / "m")
        assert type(back) is type(model)
        assert torch.equal(answers(back, tiny_batch(model)), answers(model, tiny_batch(model)))

    def test_no_folder_and_foreign_folders(self, tmp_path):
        with pytest.raises(HeadwiseError, match="not a folder"):
            load(tmp_path / "nothing")
        with pytest.raises(HeadwiseError, match=r"config\.json"):
            load(tmp_path)
        (tmp_path / "config.json").write_text('{"model_type": "bert", "architectures": ["Nothing"]}')
        with pytest.raises(HeadwiseError, match="holds a Nothing"):
            load(tmp_path)
        (tmp_path / "config.json").write_text('{"model_type": "bert", "architectures": ["BertModel"]}')
        with pytest.raises(HeadwiseError, match="cannot be opened"):
            load(tmp_path)

    def test_pickles_are_not_opened(self, tmp_path):
        model = tiny("bert")
        model.save_pretrained(tmp_path / "m")
        torch.save(model.state_dict(), tmp_path / "m" / "pytorch_model.bin")
        (tmp_path / "m" / "model.safetensors").unlink()
        with pytest.raises(HeadwiseError, match="cannot be opened"):
            load(tmp_path / "m")

    def test_half_a_file_and_a_flipped_bit(self, sliced):
        weights = sliced / "model.safetensors"
        content = weights.read_bytes()
        for broken in (content[: len(content) // 2], content[:-1] + bytes([content[-1] ^ 1]), b""):
            weights.write_bytes(broken)
            with pytest.raises(HeadwiseError, match="missing or was modified"):
                load(sliced)
        weights.unlink()
        with pytest.raises(HeadwiseError, match="missing"):
            load(sliced)

    def test_half_a_plain_file(self, tmp_path):
        tiny("bert").save_pretrained(tmp_path / "m")
        weights = tmp_path / "m" / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-100])
        with pytest.raises(HeadwiseError, match="cannot be opened"):
            load(tmp_path / "m")

    def test_missing_weights_are_not_invented(self, tmp_path):
        tiny("bert").save_pretrained(tmp_path / "m")
        weights = load_file(tmp_path / "m" / "model.safetensors")
        weights.pop("encoder.layer.0.attention.self.query.weight")
        save_file(weights, tmp_path / "m" / "model.safetensors", {"format": "pt"})
        with pytest.raises(HeadwiseError, match=r"layer\.0\.attention\.self\.query\.weight"):
            load(tmp_path / "m")

    @pytest.mark.parametrize(
        ("change", "told"),
        [
            ({"version": 2}, "format version 2; expected version 1"),
            ({"form": "onnx"}, "form onnx"),
            ({"files": None}, "does not list files"),
            ({"kept": {"encoder": [[0, 1]]}}, "heads that are not there"),
            ({"kept": {"encoder": [[0], [9]]}}, "heads that are not there"),
            ({"kept": {"decoder": [[0], [1]]}}, "decoder"),
            ({"kept": {"encoder": [[0, 1, 2, 3], [0, 1, 2, 3]]}}, "do not fit|cannot be opened"),
        ],
    )
    def test_a_description_that_is_not_right(self, sliced, change, told):
        about = json.loads((sliced / "headwise.json").read_text())
        (sliced / "headwise.json").write_text(json.dumps(about | change))
        with pytest.raises(HeadwiseError, match=told):
            load(sliced)
        (sliced / "headwise.json").write_text("{")
        with pytest.raises(HeadwiseError, match="not readable as JSON"):
            load(sliced)


@pytest.mark.parametrize(
    "change", [lambda m, mask, path: export(m, mask, path, "sliced"), lambda m, mask, _: prune(m, mask)]
)
def test_a_model_inside_gated_is_left_alone(tmp_path, change):
    model, mask = tiny("bert"), torch.zeros(2, 4, dtype=torch.bool)
    mask[1, 1] = True
    with gated(model, torch.ones(2, 4)):
        model(**tiny_batch(model))
        with pytest.raises(HeadwiseError, match="inside gated"):
            change(model, mask, tmp_path / "x")
    change(model, mask, tmp_path / "x")


class TestMaskFiles:
    def test_json_and_safetensors(self, tmp_path):
        mask = torch.tensor([[True, False], [False, False]])
        (tmp_path / "m.json").write_text(json.dumps(mask.tolist()))
        save_file({"mask": mask, "other": ~mask}, tmp_path / "m.safetensors")
        save_file({"heads": mask.to(torch.uint8)}, tmp_path / "n.safetensors")
        for name in ("m.json", "m.safetensors", "n.safetensors"):
            found = read_mask(tmp_path / name)
            assert found.dtype == torch.bool and torch.equal(found, mask)

    @pytest.mark.parametrize("content", ["[[0.5, 1]]", "[1, 0]", '{"mask": 1}', "[[1], [1, 0]]", '"words"', "{"])
    def test_what_is_no_mask(self, tmp_path, content):
        (tmp_path / "m.json").write_text(content)
        with pytest.raises(HeadwiseError):
            read_mask(tmp_path / "m.json")

    def test_scores_are_told_from_a_mask(self, tmp_path):
        scores = torch.tensor([[0.0, 0.25], [1.0, torch.nan]])
        save_file({"a": scores}, tmp_path / "one.safetensors")
        save_file({"a": scores, "b": 2 * scores}, tmp_path / "two.safetensors")
        (tmp_path / "m.json").write_text("[[0, 0.25]]")
        for name, seen in (
            ("one.safetensors", "value 0.25"),
            ("m.json", "value 0.25"),
            ("two.safetensors", "holds a, b"),
        ):
            with pytest.raises(HeadwiseError, match=rf"{seen}; expected .*headwise\.bottom\(scores, 0\.3\)"):
                read_mask(tmp_path / name)

    def test_no_file_and_several_arrays(self, tmp_path):
        with pytest.raises(HeadwiseError, match="no file"):
            read_mask(tmp_path / "m.json")
        save_file({"a": torch.ones(1), "b": torch.ones(1)}, tmp_path / "m.safetensors")
        with pytest.raises(HeadwiseError, match="named mask"):
            read_mask(tmp_path / "m.safetensors")


@pytest.mark.parametrize("form", ["masked", "sliced", "compact"])
def test_frequencies_of_positions_stay_as_they_are_in_half_precision(tmp_path, form):
    """Loaded in bfloat16, as people load decoders: rotary frequencies are float32 beside it."""
    tiny("llama").save_pretrained(tmp_path / "whole")
    model = AutoModel.from_pretrained(tmp_path / "whole", dtype=torch.bfloat16)
    mask = torch.zeros(2, 4, dtype=torch.bool)
    mask[:, :2] = True
    assert load(export(model, mask, tmp_path / form, form)).dtype == torch.bfloat16  # which compares before it is kept


@pytest.mark.parametrize(("family", "form"), [("bert", "sliced"), ("bert", "masked"), ("llama", "compact")])
def test_a_model_of_tasks_is_written_with_its_output_heads(tmp_path, family, form):
    model = toy_model(family=family).eval()
    mask = torch.zeros(Heads.of(model.encoder).shape, dtype=torch.bool)
    mask[:, :2] = True
    batch = encode(model.tasks["toy1"], "dev", model.tokenizer).batch(range(6))
    with gated(model.encoder, (~mask).float()):
        expected = model("toy1", batch).scores
    back = MultiTaskModel.load(export(model, mask, tmp_path / "m", form), toy_tasks()).eval()
    torch.testing.assert_close(back("toy1", batch).scores, expected, atol=1e-5, rtol=1e-4)
    assert back.tokenizer.get_vocab() == model.tokenizer.get_vocab()
    with pytest.raises(HeadwiseError, match="already exists"):
        export(model, mask, tmp_path / "m", form)
    with pytest.raises(HeadwiseError, match=r"onnx.*alone.*model\.encoder"):
        export(model, mask, tmp_path / "n", "onnx")
    model.give_scales()
    with pytest.raises(HeadwiseError, match="renumbers them"):
        export(model, mask, tmp_path / "n", "compact")
    with pytest.raises(HeadwiseError, match="output heads read directly"):
        export(toy_model(family=family, use_heads=mask), mask, tmp_path / "n", form)
    assert [path.name for path in tmp_path.iterdir()] == ["m"]  # nothing half done


def test_a_module_of_ones_own_is_told(tmp_path):
    with pytest.raises(HeadwiseError, match=r"a Linear.*Hugging Face model"):
        export(torch.nn.Linear(2, 2), torch.zeros(2, 4, dtype=torch.bool), tmp_path / "m", "sliced")


WORDS = [f"w{i}" for i in range(20)]
TEXTS = [" ".join(WORDS[i : i + 6]) for i in range(12)] * 3


def one_head(model) -> torch.Tensor:
    mask = torch.zeros(Heads.of(model).shape, dtype=torch.bool)
    mask[0, 1] = True
    return mask


@pytest.mark.parametrize("form", ["masked", "sliced"])
@pytest.mark.parametrize("family", ["bert", "llama"])
def test_every_form_is_repaired(tmp_path, family, form):
    model, tokenizer = tiny(family).eval(), tiny_tokenizer(WORDS)
    given = next(repair_batches(TEXTS, model, tokenizer))
    losses = {}
    with torch.no_grad():
        whole = model(**given).last_hidden_state
        for name, repair in (("plain", None), ("repaired", TEXTS)):
            path = export(model, one_head(model), tmp_path / name, form, tokenizer, repair=repair)
            opened = load(path) if form == "sliced" else type(model).from_pretrained(path)
            losses[name] = (opened.eval()(**given).last_hidden_state - whole).square().mean()
    assert losses["repaired"] < losses["plain"]


def test_true_stands_for_the_embedded_corpus():
    found = list(repair_batches(True, tiny("bert"), tiny_tokenizer(WORDS)))
    assert sum(len(batch["input_ids"]) for batch in found) == 400


def test_batches_pass_as_they_are():
    batch = {"input_ids": torch.ones(1, 3, dtype=torch.long)}
    assert list(repair_batches([batch], tiny("bert"), None)) == [batch]


def test_texts_need_a_tokenizer():
    with pytest.raises(HeadwiseError, match="no tokenizer"):
        list(repair_batches(TEXTS, tiny("bert"), None))
