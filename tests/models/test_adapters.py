"""PEFT, from training to a plain model: adapters train with tasks, are measured, saved, loaded, merged and exported."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoModel, AutoModelForSequenceClassification

from headwise.errors import HeadwiseError
from headwise.heads.gates import gated
from headwise.models.adapters import has_adapters, merged
from headwise.models.loading import load, load_encoder
from headwise.models.multitask import MultiTaskModel
from headwise.pruning.export import export
from headwise.scoring.importance import importance
from headwise.testing import tiny, tiny_tokenizer, toy_tasks
from headwise.training.loop import fit
from headwise.training.methods.iat import IAT
from headwise.training.methods.l0 import L0
from headwise.training.plan import Plan

peft = pytest.importorskip("peft")
# peft asks by the name that transformers 5.23 gave up
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
WORDS = [f"w{i}" for i in range(20)] + ["m0a", "m0b", "m1a", "m1b"]
PLAN = Plan(steps=4, lr=1e-2, batch_size=8, evaluate_every=0)
CONFIGS = {
    "lora": {"target_modules": ["query", "value"], "r": 2},
    "lora, with its task": {"target_modules": ["query", "value", "dense"], "r": 2, "task_type": "FEATURE_EXTRACTION"},
    "ia3": {"target_modules": ["key", "value", "output.dense"], "feedforward_modules": ["output.dense"]},
}


def adapted(name: str = "lora", output_heads: str = "native") -> MultiTaskModel:
    config = peft.IA3Config if name == "ia3" else peft.LoraConfig
    encoder = peft.get_peft_model(tiny("bert"), config(**CONFIGS[name]))
    return MultiTaskModel(encoder, tiny_tokenizer(WORDS), toy_tasks(2, rows=24), output_heads=output_heads)


@pytest.mark.parametrize("output_heads", ["linear", "native"])
@pytest.mark.parametrize("name", CONFIGS)
def test_adapters_are_trained_saved_loaded_and_merged(tmp_path, name, output_heads):
    model = adapted(name, output_heads)
    base = {key: value.clone() for key, value in tiny("bert").state_dict().items()}
    before = {key: value.clone() for key, value in model.state_dict().items()}
    fit(model, PLAN)
    moved = {key for key, value in model.state_dict().items() if not torch.equal(value, before[key])}
    assert any("lora" in key or "ia3" in key for key in moved) and not any("base_layer" in key for key in moved)
    texts = [row["text"] for row in model.tasks["toy0"].rows("dev")]
    wanted = model.eval().predict("toy0", texts)
    assert torch.isfinite(importance(model, "toy0", examples=16).scores).all()

    path = model.save_pretrained(tmp_path / "model")
    plain = AutoModel.from_pretrained(path / "encoder").state_dict()  # the base, as it was before training
    assert all(torch.equal(plain[key], value) for key, value in base.items() if key in plain and "pooler" not in key)
    back = MultiTaskModel.load(path, toy_tasks(2, rows=24))
    assert has_adapters(back.encoder) and back.predict("toy0", texts) == wanted
    fit(back, PLAN)  # and is trained on
    again = MultiTaskModel.load(path)
    again.encoder = merged(again.encoder)
    again.eval()
    assert not has_adapters(again.encoder)
    close = [record.probabilities["a"] for record in again.predict("toy0", texts)]
    assert close == pytest.approx([record.probabilities["a"] for record in wanted], abs=1e-5)
    assert has_adapters(load_encoder(path)[0]) and not has_adapters(load(path))


def test_a_trained_adapter_is_exported_as_a_plain_model_without_heads(tmp_path):
    model, mask = adapted(), torch.tensor([[True, False, False, False], [False, True, True, False]])
    fit(model, PLAN)
    texts = [row["text"] for row in model.tasks["toy0"].rows("dev")]
    with gated(model.encoder, (~mask).float()):
        wanted = [record.probabilities["a"] for record in model.eval().predict("toy0", texts)]
    cut = MultiTaskModel.load(export(model, mask, tmp_path / "cut", "sliced"))
    assert [record.probabilities["a"] for record in cut.predict("toy0", texts)] == pytest.approx(wanted, abs=1e-5)
    path = export(model, mask, tmp_path / "toy0", "masked", task="toy0")
    plain = AutoModelForSequenceClassification.from_pretrained(path).eval()
    batch = model.tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = plain(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    assert logits.softmax(-1)[:, 0].tolist() == pytest.approx(wanted, abs=1e-5)
    assert has_adapters(model.encoder)  # the model is as it was


def test_what_adapters_cannot_do_is_refused_with_the_reason(tmp_path):
    with pytest.raises(HeadwiseError, match="important-head training with PEFT adapters, which change all heads"):
        fit(adapted(), PLAN, IAT(delta=0.5))
    with pytest.raises(HeadwiseError, match="with PEFT adapters"):
        fit(adapted(), PLAN, L0())
    path = adapted().save_pretrained(tmp_path / "model")
    (path / "adapter/adapter_model.safetensors").unlink()
    with pytest.raises(HeadwiseError, match=r"no adapter_model\.safetensors"):
        MultiTaskModel.load(path)


def test_an_unreadable_adapter_is_told(tmp_path):
    path = adapted().save_pretrained(tmp_path / "model")
    about = json.loads((path / "adapter/adapter_config.json").read_text())
    (path / "adapter/adapter_config.json").write_text(json.dumps({**about, "target_modules": ["nowhere"]}))
    with pytest.raises(HeadwiseError, match="cannot be opened"):
        MultiTaskModel.load(path)
