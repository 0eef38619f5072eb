"""Feature files: what is written is what is read, or nothing is."""

from __future__ import annotations

import pytest
import torch
from safetensors import safe_open

from headwise.errors import HeadwiseError
from headwise.probing import mapped

SHAPES = {"heads": (2, 3, 5, 4), "layers": (2, 5, 7)}


def written(path, precision="fp32", key="k"):
    tensors = {name: torch.randn(shape, generator=torch.Generator().manual_seed(1)) for name, shape in SHAPES.items()}
    with mapped.written(path, SHAPES, precision, {"key": key}) as out:
        for name, tensor in tensors.items():
            out[name][:] = tensor.to(mapped.DTYPES[precision][0])
    return tensors


@pytest.mark.parametrize("precision", mapped.DTYPES)
def test_reads_back_what_was_written_and_is_plain_safetensors(tmp_path, precision):
    wanted = written(tmp_path / "f", precision)
    found, about = mapped.read(tmp_path / "f", "k")
    assert about["key"] == "k"
    with safe_open(tmp_path / "f", "pt") as plain:
        for name, tensor in wanted.items():
            assert torch.equal(found[name], tensor.to(mapped.DTYPES[precision][0]))
            assert torch.equal(plain.get_tensor(name), found[name])


def damage(path, how):
    content = bytearray(path.read_bytes())
    if how == "cut":
        content = content[:-10]
    elif how == "header":
        content = content[:20]
    elif how == "empty":
        content = bytearray()
    elif how == "flipped":
        content[-3] ^= 1
    elif how == "noise":
        content = bytearray(b"\xff" * len(content))
    path.write_bytes(content)


@pytest.mark.parametrize("how", ["cut", "header", "empty", "flipped", "noise"])
def test_refuses_a_damaged_file(tmp_path, how):
    written(tmp_path / "f")
    damage(tmp_path / "f", how)
    with pytest.raises(HeadwiseError):
        mapped.read(tmp_path / "f", "k")


def test_refuses_what_was_made_from_something_else(tmp_path):
    written(tmp_path / "f", key="another model")
    with pytest.raises(HeadwiseError, match="computed from other inputs"):
        mapped.read(tmp_path / "f", "k")


def test_a_write_that_fails_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError), mapped.written(tmp_path / "f", SHAPES, "fp32", {"key": "k"}):
        raise RuntimeError("power cut")
    assert list(tmp_path.iterdir()) == []


def test_says_when_the_disk_is_too_small(tmp_path):
    with pytest.raises(HeadwiseError, match="free"), mapped.written(tmp_path / "f", {"a": (1 << 50,)}, "fp32", {}):
        pass


def test_readers_cannot_change_the_file(tmp_path):
    wanted = written(tmp_path / "f")
    mapped.read(tmp_path / "f", "k")[0]["heads"].zero_()
    assert torch.equal(mapped.read(tmp_path / "f", "k")[0]["heads"], wanted["heads"])
