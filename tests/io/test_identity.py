"""What decides a result is part of an identity; where it lies and which version wrote it are not."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from headwise.errors import HeadwiseError
from headwise.io.identity import checkpoint, data, file_hash, hub_commit, identity, tokenizer
from headwise.models.loading import load_encoder
from headwise.tasks import Classify, Rows, Task
from headwise.tasks.kinds.image import Picture
from headwise.testing import playground, tiny, tiny_tokenizer, toy_model
from headwise.training.plan import Plan

ROWS = [{"text": "good", "label": "yes"}, {"text": "bad", "label": "no"}]


def changed(model, how):
    how(model)
    return model


def embed(model):
    """All rows of the word embeddings but the first few."""
    with torch.no_grad():
        model.encoder.embeddings.word_embeddings.weight[8:].add_(1.0)


CHANGES = {
    "the last number of the last parameter": lambda m: list(m.parameters())[-1].data.flatten()[-1:].add_(1e-6),
    "word embeddings": embed,
    "output heads": lambda m: (
        m.heads["toy0"].reset_parameters()
        if hasattr(m.heads["toy0"], "reset_parameters")
        else [p.data.add_(0.1) for p in m.heads["toy0"].parameters()]
    ),
    "a frozen encoder": lambda m: m.encoder.requires_grad_(False),
    "dropout": lambda m: [setattr(part, "p", 0.0) for part in m.modules() if isinstance(part, torch.nn.Dropout)],
    "the configuration": lambda m: setattr(m.encoder.config, "layer_norm_eps", 1e-5),
    "the type of a tensor": lambda m: m.encoder.double(),
    "a norm's epsilon": lambda m: setattr(m.encoder.embeddings.LayerNorm, "eps", 0.5),
    "an activation": lambda m: setattr(m.encoder.encoder.layer[0].intermediate, "intermediate_act_fn", torch.nn.ReLU()),
}


@pytest.mark.parametrize("how", CHANGES.values(), ids=CHANGES)
def test_whatever_decides_how_a_model_trains_changes_its_identity(how):
    assert identity(toy_model()) == identity(toy_model())
    assert identity(changed(toy_model(), how)) != identity(toy_model())


def test_training_mode_and_gradients_are_no_part_of_a_model():
    model = toy_model()
    before = identity(model)
    model.eval()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    assert identity(model) == before


def test_a_model_without_weights_has_no_identity():
    with torch.device("meta"):
        empty = torch.nn.Linear(2, 2)
    with pytest.raises(HeadwiseError, match="meta device"):
        identity(empty)


def test_parts_keep_their_form():
    parts = identity({"plan": Plan(seed=3), "models": [tiny("bert"), tiny("bert", seed=1)], "name": "bert"})
    assert parts["plan"]["seed"] == 3 and parts["name"] == "bert"
    assert len(parts["models"]) == len(set(parts["models"])) == 2


def saved(folder, seed=0):
    tiny("bert", seed).save_pretrained(folder)
    tiny_tokenizer(["w1", "w2"]).save_pretrained(folder)
    return folder


def call(folder):
    """Tokenise, and save the tokenizer again: it writes how it was last called."""
    used = load_encoder(folder)[1]
    used("w1 w2", truncation=True, max_length=3, padding="max_length")
    used.save_pretrained(folder)


def edit(file, **fields):
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def flip(file):
    tensors = load_file(file)
    name = sorted(tensors)[-1]
    tensors[name].flatten()[-1] += 1
    save_file(tensors, file, metadata={"format": "pt"})


@pytest.mark.parametrize(
    "how",
    [
        lambda f: flip(f / "model.safetensors"),
        lambda f: edit(f / "config.json", layer_norm_eps=1e-3),
        lambda f: tiny_tokenizer(["w2", "w1"]).save_pretrained(f),
        lambda f: (f / "headwise.json").write_text("{}"),
    ],
    ids=["weights", "configuration", "tokenizer", "form"],
)
def test_a_folder_is_known_by_all_that_is_loaded_from_it(tmp_path, how):
    folder = saved(tmp_path / "a")
    before = checkpoint(folder)
    how(folder)
    assert checkpoint(folder) != before


def test_a_folder_is_not_known_by_its_place_or_the_version_that_wrote_it(tmp_path):
    folder, copy = saved(tmp_path / "a"), tmp_path / "b"
    shutil.copytree(folder, copy)
    call(copy)
    assert (copy / "tokenizer.json").read_text() != (folder / "tokenizer.json").read_text()
    edit(copy / "config.json", transformers_version="4.0.0", _name_or_path="elsewhere")
    (copy / "README.md").write_text("notes")
    (copy / "1_Pooling").mkdir()
    (copy / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    assert checkpoint(copy) == checkpoint(folder)


def test_a_hub_name_is_known_by_its_commit(tmp_path, monkeypatch):
    from huggingface_hub import constants

    root = tmp_path / "models--me--encoder"
    (root / "refs").mkdir(parents=True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert checkpoint("me/encoder") is None, "nothing is known of it here"
    seen = set()
    for commit in ("a" * 40, "b" * 40):
        (root / "snapshots" / commit).mkdir(parents=True)
        (root / "snapshots" / commit / "config.json").write_text("{}")
        (root / "refs" / "main").write_text(commit)
        hub_commit.cache_clear()
        seen.add(checkpoint("me/encoder"))
    assert seen == {f"me/encoder@{'a' * 40}", f"me/encoder@{'b' * 40}"}


def test_two_tokenizers_without_a_fast_backend_differ_by_their_vocabulary(tmp_path):
    """Their repr is the same."""
    transformers = pytest.importorskip("transformers")
    made = []
    for letters in ("LAGV", "VGAL"):
        file = tmp_path / letters
        file.write_text("\n".join(["<cls>", "<pad>", "<eos>", "<unk>", *letters, "<mask>"]))
        made.append(transformers.EsmTokenizer(str(file)))
    assert made[0]("LA")["input_ids"] != made[1]("LA")["input_ids"]
    assert tokenizer(made[0]) != tokenizer(made[1])
    assert tokenizer(made[0]) == tokenizer(transformers.EsmTokenizer(str(tmp_path / "LAGV")))


def test_a_tokenizer_is_not_known_by_what_it_was_used_for():
    used = tiny_tokenizer(["w1", "w2"])
    before = tokenizer(used)
    used("w1 w2", truncation=True, max_length=3, padding="max_length")
    assert tokenizer(used) == before == tokenizer(tiny_tokenizer(["w1", "w2"]))
    assert tokenizer(tiny_tokenizer(["w2", "w1"])) != before
    used.pad_token = used.unk_token
    assert tokenizer(used) != before


def test_data_are_known_by_rows_labels_metric_and_the_files_that_rows_name(tmp_path):
    task = Task("mine", Classify(("no", "yes")), Rows(train=ROWS, dev=ROWS, test=ROWS), "accuracy")
    other = Rows(train=ROWS, dev=ROWS, test=ROWS[:1])
    assert data(task) == data(replace(task, name="yours", source=other))
    assert data(task, ("test",)) != data(replace(task, source=other), ("test",))
    different = [
        replace(task, kind=Classify(("yes", "no"))),
        replace(task, metric="f1"),
        replace(task, source=Rows(train=ROWS[::-1], dev=ROWS)),
        replace(task, source=Rows(train=ROWS, dev=ROWS[:1])),
    ]
    assert len({data(each) for each in (task, *different)}) == 5
    file = tmp_path / "a.png"
    file.write_bytes(b"one")
    rows = [{"path": str(file), "label": "yes"}]
    pictures = Task("pictures", Picture(("no", "yes")), Rows(train=rows, dev=rows), "accuracy")
    before = data(pictures)
    file.write_bytes(b"two")
    assert data(pictures) != before, "the picture changed, and the row that names it did not"


def test_a_file_is_read_again_when_it_changes(tmp_path):
    file = tmp_path / "file"
    file.write_text("one")
    before = file_hash(file)
    file.write_text("two")  # as long, and within the time that a file system tells apart
    assert file_hash(file) != before
    old = file.stat().st_mtime - 100
    os.utime(file, (old, old))
    again = file_hash(file)
    file.write_text("six")
    os.utime(file, (old + 1, old + 1))
    assert file_hash(file) != again
    assert file_hash(tmp_path / "none") is None


def test_a_loaded_folder_has_the_identity_of_the_model_that_was_saved(tmp_path):
    playground(tmp_path)
    one, other = (load_encoder(tmp_path / "bert-tiny") for _ in range(2))
    assert identity(one[0]) == identity(other[0]) and identity(one[1]) == identity(other[1])
