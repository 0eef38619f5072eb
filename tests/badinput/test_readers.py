"""Whatever a file holds, it is read or refused in words; what is read again after writing is the same."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from spoiling import MASKS, OWN, PLAN, READERS, STUDY, SWEEP, files

from headwise.errors import HeadwiseError
from headwise.experiments.sweep import read as read_sweep
from headwise.heads.gates import Heads
from headwise.io import files as store
from headwise.io.records import Results
from headwise.models.multitask import MultiTaskModel
from headwise.probing import mapped
from headwise.pruning import export as exports
from headwise.reporting import report
from headwise.study.schema import read_study
from headwise.tasks import own
from headwise.tasks.readers.formats import formats
from headwise.testing import tiny, toy_model
from headwise.training import checkpoint
from headwise.training.plan import Plan

NUMBERS = [
    pytest.param(20, id="few"),
    pytest.param(int(os.environ.get("HEADWISE_CASES", 3000)), id="many", marks=pytest.mark.soak),
]
many = pytest.mark.parametrize("number", NUMBERS)


def try_all(number: int, valid: bytes, read: Callable[[bytes], Any], record: Callable[[str, Any], None]) -> None:
    """The good file is read; any other is read or refused by a HeadwiseError."""
    read(valid)
    cases = refused = 0

    @settings(max_examples=number, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(files(valid))
    def one(content: bytes) -> None:
        nonlocal cases, refused
        cases += 1
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                read(content)
        except HeadwiseError as error:
            refused += 1
            assert str(error)

    one()
    assert 0 < refused < cases or number < 100
    record("cases", cases)


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@many
@pytest.mark.parametrize("name", READERS)
def test_formats(tmp_path, name, number, record_property):
    form = formats[name]

    def read(content: bytes) -> None:
        found = [record for _, record in form.read(put(tmp_path / "file.txt", content))]
        for record in found:
            assert record is None or isinstance(record, dict)
        if name in ("csv", "tsv", "jsonl", "conllu", "trees") and found:
            same_again(form, found, tmp_path / "again.txt")

    try_all(number, READERS[name], read, record_property)


def same_again(form: Any, found: list, path: Path) -> None:
    """What was taken for right comes back when it is written and read; a writer may refuse what it cannot hold."""
    try:
        form.write(path, found)
    except HeadwiseError:
        return
    again = [record for _, record in form.read(path)]
    assert json.dumps(again, sort_keys=True) == json.dumps(found, sort_keys=True)


@many
@pytest.mark.parametrize("name", OWN)
def test_tasks_of_own_files(tmp_path, name, number, record_property):
    form, columns = OWN[name]

    def read(content: bytes) -> None:
        task = own(f"t={put(tmp_path / f'file.{form}', content)}:{columns}")
        rows = [row for split in ("train", "dev", "test") for row in task.rows(split)]
        for row in rows:
            if "words" in row:
                assert row["words"] and all(isinstance(word, str) and word for word in row["words"])
                assert len(row.get("labels", row["words"])) == len(row["words"])
            if "heads" in row:
                assert all(0 <= head <= len(row["words"]) for head in row["heads"]) and 0 in row["heads"]
            if "starts" in row:
                for text, start in zip(row["answers"], row["starts"], strict=True):
                    assert row["context"][start : start + len(text)] == text
            if "text" in row:
                assert isinstance(row["text"], str) and isinstance(row["label"], str | float)

    try_all(number, READERS[form], read, record_property)


@many
def test_plans(tmp_path, number, record_property):
    def read(content: bytes) -> None:
        plan = Plan.read(put(tmp_path / "plan.toml", content))
        assert Plan.read(put(tmp_path / "again.toml", plan.to_toml().encode())) == plan

    try_all(number, PLAN, read, record_property)


@many
def test_sweeps(tmp_path, number, record_property):
    def read(content: bytes) -> None:
        for job in read_sweep(put(tmp_path / "grid.toml", content)):
            assert job.key and isinstance(job.title, str)

    try_all(number, SWEEP, read, record_property)


@many
@pytest.mark.parametrize("suffix", MASKS)
def test_masks(tmp_path, suffix, number, record_property):
    def read(content: bytes) -> None:
        mask = exports.read_mask(put(tmp_path / f"mask.{suffix}", content))
        assert mask.ndim == 2 and str(mask.dtype) == "torch.bool"

    try_all(number, MASKS[suffix], read, record_property)


@many
def test_records(tmp_path, number, record_property):
    results = Results(tmp_path)
    key = results.save("importance", {"task": "a", "seed": 0}, {"examples": 3, "scores": [[0.5]]})
    valid = (tmp_path / key / "record.json").read_bytes()

    def read(content: bytes) -> None:
        put(tmp_path / key / "record.json", content)
        for record in (results[key], results[key[:5]], *results, *results.where(kind="importance", task="a")):
            assert record.key == key and isinstance(record.result, dict)
        results.export(tmp_path / "all.csv")

    try_all(number, valid, read, record_property)


@many
def test_studies_and_their_pages(tmp_path, number, record_property):
    def read(content: bytes) -> None:
        page = report(read_study(put(tmp_path / "study.json", content)), tmp_path / "page.html").read_text()
        assert page.startswith("<!doctype html>") and page.count("</script>") == PAGE_SCRIPTS

    try_all(number, STUDY, read, record_property)


PAGE_SCRIPTS = 2


@many
def test_feature_files(tmp_path, number, record_property):
    about = {"key": "k"}
    with mapped.written(tmp_path / "f.safetensors", {"heads": (2, 3), "layers": (4,)}, "fp32", about) as tensors:
        tensors["heads"].fill_(1.5)
        tensors["layers"].fill_(2.5)
    valid = (tmp_path / "f.safetensors").read_bytes()

    def read(content: bytes) -> None:
        tensors, _ = mapped.read(put(tmp_path / "f.safetensors", content), "k")
        for name, tensor in tensors.items():
            assert bool((tensor == {"heads": 1.5, "layers": 2.5}[name]).all())

    try_all(number, valid, read, record_property)


@many
def test_array_files(tmp_path, number, record_property):
    def read(content: bytes) -> None:
        store.read_arrays(put(tmp_path / "a.safetensors", content))

    try_all(number, MASKS["safetensors"], read, record_property)


@pytest.mark.parametrize("key", ["", "*", "..", "../x", "/etc", "[", "**", "a" * 5000, "\0", "."])
def test_a_key_is_a_name_and_no_way_through_folders(tmp_path, key):
    Results(tmp_path).save("a", {}, {})
    with pytest.raises(HeadwiseError, match="unknown record"):
        Results(tmp_path)[key]


FOLDERS_NUMBERS = [
    pytest.param(6, id="few"),
    pytest.param(int(os.environ.get("HEADWISE_CASES", 3000)) // 10, id="many_of_folders", marks=pytest.mark.soak),
]
many_of_folders = pytest.mark.parametrize("number", FOLDERS_NUMBERS)


@many_of_folders
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


@many_of_folders
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


@many_of_folders
def test_checkpoints(tmp_path: Path, number, record_property):
    tensors = {"model": {"a": torch.arange(4.0)}}
    path = checkpoint.save(tmp_path, 3, tensors, {"identity": "x"})

    def read(content: bytes) -> None:
        put(path / "state.json", content)
        groups, _ = checkpoint.load(path)
        assert all(torch.equal(group["a"], torch.arange(4.0)) for group in groups.values())

    try_all(number, (path / "state.json").read_bytes(), read, record_property)
