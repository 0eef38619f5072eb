"""Records in Parquet parts: found, read, checked and selected as those in folders, and few files for many."""

from __future__ import annotations

import json

import numpy as np
import pytest

from headwise.errors import HeadwiseError
from headwise.io import parts
from headwise.io.parts import Parts, check
from headwise.io.records import Results


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "GROUP", 4)
    monkeypatch.setattr(parts, "PART", 10)
    results = Results(tmp_path / "records")
    for seed in range(25):
        config = {"model": "m" if seed % 2 else "größer", "plan": {"seed": seed, "lr": 1e-4, "on": seed > 3}}
        arrays = {"x": np.arange(seed)} if seed % 3 else None
        results.save("train" if seed % 5 else "lesions", config, {"score": seed / 7, "seed": 99}, arrays)
    return results


def shown(results):
    return [(r.key, r.body(), {n: a.tolist() for n, a in r.arrays.items()}) for r in results]


def test_records_are_the_same_in_parts(results):
    before = shown(results)
    assert results.compact() == 25 and results.compact() == 0
    assert shown(results) == before == shown(Results(results.root)) and len(results) == 25
    assert len(list((results.root / "parts").iterdir())) == 3 and not list(results.root.glob("*/record.json"))
    assert list(check(results.root)) == []


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
def test_a_query_finds_in_parts_what_it_finds_in_folders(results, wanted):
    before = [record.key for record in results.where(**wanted)]
    assert before == [r.key for r in results if r.matches(wanted)]
    results.compact()
    assert [record.key for record in results.where(**wanted)] == before


def test_new_records_lie_beside_parts_and_old_ones_are_not_made_again(results):
    results.compact()
    other = Results(results.root)
    assert other.find("train", {"model": "m", "plan": {"seed": 1, "lr": 1e-4, "on": False}}) is not None
    key = other.save("train", {"model": "new"}, {"score": 1.0})
    assert (results.root / key / "record.json").exists() and results[key].result == {"score": 1.0}
    other.compact()
    assert results[key].result == {"score": 1.0} and len(results) == 26, "an open reader sees new parts"


def test_a_stopped_move_leaves_every_record_once(results, monkeypatch):
    before = shown(results)
    monkeypatch.setattr(parts.shutil, "rmtree", lambda path: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        results.compact()
    monkeypatch.undo()
    assert shown(Results(results.root)) == before
    results.compact()
    assert shown(Results(results.root)) == before


def test_a_modified_part_is_refused(results):
    import pyarrow as pa
    import pyarrow.parquet as pq

    results.compact()
    file = next((results.root / "parts").iterdir())
    table = pq.read_table(file)
    rows = table.to_pylist()
    rows[0]["result"] = json.dumps({"score": 1.0})
    pq.write_table(pa.Table.from_pylist(rows, table.schema), file, row_group_size=4)
    with pytest.raises(HeadwiseError, match="modified after it was written"):
        Parts(results.root).read(rows[0]["key"])
