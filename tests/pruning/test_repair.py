"""Texts on which an export is repaired: as batches of a model's inputs, through every door."""

from __future__ import annotations

import pytest
import torch

from headwise import load
from headwise.errors import HeadwiseError
from headwise.heads.gates import Heads
from headwise.pruning.export import export
from headwise.pruning.repair import repair_batches
from headwise.testing import tiny, tiny_tokenizer

WORDS = [f"w{i}" for i in range(20)]
TEXTS = [" ".join(WORDS[i : i + 6]) for i in range(12)] * 3


def mask_of(model) -> torch.Tensor:
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
            path = export(model, mask_of(model), tmp_path / name, form, tokenizer, repair=repair)
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
