"""Folders of models, exports and checkpoints with one file spoiled: opened as they were, or refused in words."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from test_readers import put, try_all

from headwise.heads.gates import Heads
from headwise.models.multitask import MultiTaskModel
from headwise.pruning import export as exports
from headwise.testing import tiny, toy_model
from headwise.training import checkpoint

NUMBERS = [
    pytest.param(6, id="few"),
    pytest.param(int(os.environ.get("HEADWISE_CASES", 3000)) // 10, id="many", marks=pytest.mark.soak),
]
many = pytest.mark.parametrize("number", NUMBERS)


@many
@pytest.mark.parametrize("file", ["headwise.json", "heads.safetensors", "encoder/config.json"])
def test_models(tmp_path, file, number, record_property):
    made = toy_model()
    made.save_pretrained(tmp_path / "model")
    place = tmp_path / "model" / file

    def read(content: bytes) -> None:
        put(place, content)
        found = MultiTaskModel.load(tmp_path / "model", list(made.tasks.values()))
        assert found.state_dict().keys() == made.state_dict().keys()

    try_all(number, place.read_bytes(), read, record_property)


@many
@pytest.mark.parametrize("file", ["headwise.json", "config.json"])
def test_exports(tmp_path, file, number, record_property):
    mask = torch.zeros(2, 4, dtype=torch.bool)
    mask[0, 1] = True
    exports.export(tiny("bert"), mask, tmp_path / "small", "sliced")
    place = tmp_path / "small" / file

    def read(content: bytes) -> None:
        put(place, content)
        assert torch.equal(Heads.of(exports.load(tmp_path / "small")).alive, ~mask)

    try_all(number, place.read_bytes(), read, record_property)


@many
def test_checkpoints(tmp_path: Path, number, record_property):
    tensors = {"model": {"a": torch.arange(4.0)}}
    path = checkpoint.save(tmp_path, 3, tensors, {"identity": "x"})

    def read(content: bytes) -> None:
        put(path / "state.json", content)
        groups, _ = checkpoint.load(path)
        assert all(torch.equal(group["a"], torch.arange(4.0)) for group in groups.values())

    try_all(number, (path / "state.json").read_bytes(), read, record_property)
