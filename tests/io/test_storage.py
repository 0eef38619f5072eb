"""What is stored is what was saved: everything that is read is checked, in folders and in packed files."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from headwise.errors import HeadwiseError
from headwise.io import storage
from headwise.io.records import Results
from headwise.io.storage import Parts, check


@pytest.fixture
def results(tmp_path):
    results = Results(tmp_path / "records")
    for seed in range(3):
        arrays = {"scores": np.arange(6.0).reshape(2, 3) + seed} if seed else None
        results.save(
            "importance", {"seed": seed, "lr": 1e-5}, {"value": 0.5, "none": None, "nan": float("nan")}, arrays
        )
    return results


def folder_of(results, seed):
    return next(record.path for record in results if record.config["seed"] == seed)


def rewrite(path, **fields):
    file = path / "record.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def test_versions_of_the_package_are_no_part_of_a_key(results, monkeypatch):
    monkeypatch.setattr("headwise.io.records.code_version", lambda: "9.9.9")
    for seed in range(3):
        assert results.find("importance", {"lr": 1e-5, "seed": seed}) is not None
    assert results.find("importance", {"lr": 1e-5, "seed": 0}, version=2) is None, "the work was corrected since"
    assert Results.key("importance", {"seed": 0}) != Results.key("lesions", {"seed": 0})


SPOILT = {
    "an edited result": (lambda path: rewrite(path, result={"value": 0.9}), "modified"),
    "an edited configuration": (lambda path: rewrite(path, config={"seed": 7}), "modified"),
    "an edited note": (lambda path: rewrite(path, about={}), "modified"),
    "no hash": (lambda path: rewrite(path, sha256=None), "not a headwise record"),
    "an older format": (lambda path: rewrite(path, format=1), "headwise records upgrade"),
    "a future format": (lambda path: rewrite(path, format=3), "format 3"),
    "deleted arrays": (lambda path: (path / "arrays.safetensors").unlink(), "missing"),
}


@pytest.mark.parametrize(("spoil", "words"), SPOILT.values(), ids=SPOILT)
def test_what_was_modified_is_refused_and_named(results, spoil, words):
    path = folder_of(results, 1)
    spoil(path)
    with pytest.raises(HeadwiseError, match=words) as refused:
        _ = results[path.name].arrays
    assert path.name in str(refused.value)
    [(key, problem)] = check(results.root)
    assert key == path.name and str(refused.value) == problem


def test_every_flipped_bit_of_arrays_is_noticed(results):
    path = folder_of(results, 2)
    file = path / "arrays.safetensors"
    whole = file.read_bytes()
    for place in range(0, len(whole), 7):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(HeadwiseError, match="modified"):
            _ = results[path.name].arrays
    file.write_bytes(whole)
    assert not list(check(results.root))


def test_a_record_under_another_key_is_not_believed(results):
    """Its configuration disagrees with the key it lies under."""
    one, other = folder_of(results, 0), folder_of(results, 1)
    shutil.rmtree(other)
    shutil.copytree(one, other)
    rewrite(other, key=other.name)
    with pytest.raises(HeadwiseError):
        results.find("importance", {"seed": 1, "lr": 1e-5})


def test_a_packed_file_holds_the_same_records(results, tmp_path):
    packed = Results(results.pack(tmp_path / "all.parquet"))
    assert len(packed) == len(results) == 3 and not list(check(packed.root))
    for one, other in zip(results, packed):
        assert one.body().keys() == other.body().keys() and str(one.body()) == str(other.body())
        assert one.arrays.keys() == other.arrays.keys()
        assert all(np.array_equal(one.arrays[name], other.arrays[name]) for name in one.arrays)
    assert packed.find("importance", {"lr": 1e-5, "seed": 2}) is not None
    with pytest.raises(HeadwiseError, match="read-only"):
        packed.save("importance", {"seed": 9}, {})
    again = Results(packed.pack(tmp_path / "again.parquet"))
    assert [record.key for record in again] == [record.key for record in packed]


def test_a_packed_file_that_was_modified_is_refused(results, tmp_path):
    pq, pa = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    path = results.pack(tmp_path / "all.parquet")
    table = pq.read_table(path)
    for column, value in (("result", '{"value":1}'), ("arrays", b"")):
        values = table[column].to_pylist()
        values[2] = value
        index = table.column_names.index(column)
        pq.write_table(table.set_column(index, column, pa.array(values, table[column].type)), path)
        [(key, problem)] = check(path)
        assert key == table["key"].to_pylist()[2] and ("modified" in problem or "missing" in problem)
    path.write_bytes(b"PAR1")
    with pytest.raises(HeadwiseError, match="not a readable Parquet file"):
        list(Results(path))
    with pytest.raises(HeadwiseError, match="no file"):
        list(Results(tmp_path / "none.parquet"))


@pytest.fixture
def many(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "GROUP", 4)
    monkeypatch.setattr(storage, "PART", 10)
    many = Results(tmp_path / "records")
    for seed in range(25):
        config = {"model": "m" if seed % 2 else "größer", "plan": {"seed": seed, "lr": 1e-4, "on": seed > 3}}
        arrays = {"x": np.arange(seed)} if seed % 3 else None
        many.save("train" if seed % 5 else "lesions", config, {"score": seed / 7, "seed": 99}, arrays)
    return many


def shown(many):
    return [(r.key, r.body(), {n: a.tolist() for n, a in r.arrays.items()}) for r in many]


def test_records_are_the_same_in_parts(many):
    before = shown(many)
    assert many.compact() == 25 and many.compact() == 0
    assert shown(many) == before == shown(Results(many.root)) and len(many) == 25
    assert len(list((many.root / "parts").iterdir())) == 3 and not list(many.root.glob("*/record.json"))
    assert list(check(many.root)) == []


@pytest.mark.parametrize(
    "wanted",
    [
        {"plan.seed": 7},
        {"plan.seed": "7"},
        {"plan.seed": 7.0},
        {"seed": 99},
        {"work": "lesions"},
        {"work": "train", "model": "größer"},
        {"plan.on": "True"},
        {"plan.on": False, "model": "m"},
        {"plan.lr": 1e-4, "plan.seed": 3},
        {"plan.other": None, "plan.seed": 5},
        {"plan": {"seed": 2}},
    ],
)
def test_a_query_finds_in_parts_what_it_finds_in_folders(many, wanted):
    before = [record.key for record in many.where(**wanted)]
    assert before == [r.key for r in many if r.matches(wanted)]
    many.compact()
    assert [record.key for record in many.where(**wanted)] == before


def test_new_records_lie_beside_parts_and_old_ones_are_not_made_again(many):
    many.compact()
    other = Results(many.root)
    assert other.find("train", {"model": "m", "plan": {"seed": 1, "lr": 1e-4, "on": False}}) is not None
    key = other.save("train", {"model": "new"}, {"score": 1.0})
    assert (many.root / key / "record.json").exists() and many[key].result == {"score": 1.0}
    other.compact()
    assert many[key].result == {"score": 1.0} and len(many) == 26, "an open reader sees new parts"


def test_a_stopped_move_leaves_every_record_once(many, monkeypatch):
    before = shown(many)
    monkeypatch.setattr(storage.shutil, "rmtree", lambda path: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        many.compact()
    monkeypatch.undo()
    assert shown(Results(many.root)) == before
    many.compact()
    assert shown(Results(many.root)) == before


def test_a_modified_part_is_refused(many):
    import pyarrow as pa
    import pyarrow.parquet as pq

    many.compact()
    file = next((many.root / "parts").iterdir())
    table = pq.read_table(file)
    rows = table.to_pylist()
    rows[0]["result"] = json.dumps({"score": 1.0})
    pq.write_table(pa.Table.from_pylist(rows, table.schema), file, row_group_size=4)
    with pytest.raises(HeadwiseError, match="modified after it was written"):
        Parts(many.root).read(rows[0]["key"])
