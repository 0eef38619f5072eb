"""Folders and encoders that cannot be loaded are refused with what is missing."""

from __future__ import annotations

import pytest

from headwise.errors import HeadwiseError
from headwise.models.loading import load_encoder
from headwise.models.multitask import MultiTaskModel
from headwise.tasks.kinds.classify import Classify
from headwise.tasks.task import Task
from headwise.testing import tiny, tiny_tokenizer, toy_model, toy_tasks


def test_folders_that_do_not_fit_are_told(tmp_path):
    model = toy_model()
    model.save_pretrained(tmp_path / "model")
    with pytest.raises(HeadwiseError, match="no file"):
        MultiTaskModel.load(tmp_path)
    changed = [Task(t.name, Classify(("a", "c")), t.source, t.metric) for t in toy_tasks()]
    with pytest.raises(HeadwiseError, match=r"'toy0' has changed.*labels was \['a', 'b'\], is \['a', 'c'\]"):
        MultiTaskModel.load(tmp_path / "model", changed)
    (tmp_path / "model/headwise.json").write_text('{"format": 99}')
    with pytest.raises(HeadwiseError, match="format 99"):
        MultiTaskModel.load(tmp_path / "model", toy_tasks())
    with pytest.raises(HeadwiseError, match="a folder, not a file"):
        load_encoder(tmp_path / "model/headwise.json")


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_an_encoder_with_a_decoder_is_refused_before_any_work(family):
    with pytest.raises(HeadwiseError, match=r"encoder-decoder.*an encoder or a decoder.*--stack"):
        toy_model(family=family)
    words = tiny(family, auto="AutoModelForTextEncoding") if family == "t5" else tiny("bert")
    assert MultiTaskModel(words, tiny_tokenizer(), toy_tasks()).tasks


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    """transformers would read every text as unknown words, without a word of it."""
    tiny("bert").save_pretrained(tmp_path / "bert")
    with pytest.raises(HeadwiseError, match="no tokenizer in"):
        load_encoder(tmp_path / "bert")
    tiny_tokenizer().save_pretrained(tmp_path / "bert")
    assert len(load_encoder(tmp_path / "bert")[1]) == len(tiny_tokenizer())
