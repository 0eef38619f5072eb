"""Records: named by what determines them, written once, opened without torch."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from headwise.errors import HeadwiseError
from headwise.io.files import write_arrays
from headwise.io.records import Results, differences, scores_of, upgrade, upgrade_run
from headwise.io.storage import flat, record_key


@pytest.fixture
def results(tmp_path):
    made = Results(tmp_path / "results")
    made.save("importance", {"task": "sst2", "seed": 0}, {"value": 0.5}, {"scores": np.ones((2, 3))})
    made.save("importance", {"task": "qnli", "seed": 0}, {"value": 0.25})
    return made


def test_the_name_is_the_configuration(results):
    same = results.save("importance", {"seed": 0, "task": "sst2"}, {"value": 99})
    assert results[same].result == {"value": 0.5}, "a record that is there stays"
    assert Results.key("importance", {"task": "sst2", "seed": 1}) != same
    assert results.find("importance", {"task": "sst2", "seed": 1}) is None
    assert results[same].arrays["scores"].shape == (2, 3)
    assert "torch" in results[same].about["versions"]


def test_listing_and_comparing(results):
    assert [r.config["task"] for r in results.where(work="importance", task="qnli")] == ["qnli"]
    a, b = (r.key for r in results)
    names = [name for name, *_ in results.compare(a, b)]
    assert names == ["config.task", "result.value"]
    assert flat({"a": {"b": 1}, "c": [1]}) == {"a.b": 1, "c": [1]}


@pytest.mark.parametrize("name", ["all.csv", "all.parquet"])
def test_export(results, tmp_path, name):
    path = results.export(tmp_path / name)
    assert path.stat().st_size > 0
    with pytest.raises(HeadwiseError, match=r"\.csv or \.parquet"):
        results.export(tmp_path / "all.xls")


def test_an_export_holds_all_of_a_record(tmp_path):
    results = Results(tmp_path / "records")
    scores = np.arange(300.0).reshape(3, 100).tolist()
    for seed in (0, 1):
        results.save("importance", {"seed": seed, "lr": 0.5 if seed else 1}, {"scores": scores, "by": "gradient"})
    with results.export(tmp_path / "all.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [json.loads(row["result.scores"]) for row in rows] == [scores, scores]
    table = pytest.importorskip("pyarrow.parquet").read_table(results.export(tmp_path / "all.parquet")).to_pylist()
    assert {(row["config.seed"], row["config.lr"], row["result.by"]) for row in table} == {
        (0, 1.0, "gradient"),
        (1, 0.5, "gradient"),
    }


def test_broken_records_are_named(results):
    key = next(iter(results)).key
    (results.root / key / "record.json").write_text("{")
    with pytest.raises(HeadwiseError, match=key):
        results[key]
    (results.root / key / "record.json").write_text(json.dumps({"key": key}))
    with pytest.raises(HeadwiseError, match="not a headwise record"):
        results[key]
    with pytest.raises(HeadwiseError, match="unknown record"):
        results["ffff"]


def test_records_of_a_kind_are_told_apart_by_what_differs(tmp_path):
    results, common = Results(tmp_path), {"weights": "0123456789abcdef", "rate": 0.1, "old": None, "held": False}
    for seed in (0, 1):
        for method in ("plain", "iat"):
            trained = {**common, "plan": {"seed": seed}, "method": {"name": method}, "tasks": ["a", "b"]}
            results.save("train", trained, {})
            results.save("lesions", {"training": trained, "examples": 10 + seed}, {})
    results.save("alone", {"seed": 3}, {})
    told = {(r.work, text) for r, text in zip(results, differences(list(results)))}
    trainings = {("train", f"name {method}, seed {seed}") for seed in (0, 1) for method in ("plain", "iat")}
    assert told == {*trainings, ("lesions", "examples 10"), ("lesions", "examples 11"), ("alone", "")}


def test_an_exported_table_runs_nothing_in_a_spreadsheet(tmp_path):
    results = Results(tmp_path / "records")
    results.save("kind", {"task": '=HYPERLINK("http://x")', "lr": -0.5}, {"@SUM": "+1", "value": -1.0})
    with results.export(tmp_path / "all.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["config.task"] == '\'=HYPERLINK("http://x")' and row["result.@SUM"] == "+1"
    assert (row["config.lr"], row["result.value"]) == ("-0.5", "-1.0")


@pytest.mark.parametrize(
    ("result", "scores"),
    [
        ({"scores": {"sst2": {"metric": "accuracy", "value": 0.9, "n": 20}}, "steps": 3}, {"sst2": 0.9}),
        ({"sst2": {"metric": "accuracy", "value": 0.9, "learned": True}}, {"sst2": 0.9}),
        ({"scores": [[0.1, 0.2]], "by": "gradient"}, {}),
        ({"accuracy": [[0.5]], "chance": 0.5}, {}),
    ],
)
def test_scores_of_a_record_are_those_of_its_tasks(tmp_path, result, scores):
    results = Results(tmp_path)
    assert scores_of(results[results.save("train", {"seed": 0}, result)]) == scores


PLACE = "mypackage.works:measure"


def old_record(root, key, kind, config, result=None, arrays=None):
    path = root / key
    path.mkdir(parents=True)
    fields = {"format": 1, "key": key, "kind": kind, "config": config, "result": result or {}}
    (path / "record.json").write_text(json.dumps(fields | {"about": {"versions": {"headwise": "0.1.0"}}}))
    if arrays:
        write_arrays(path / "arrays.safetensors", arrays)


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "run" / "records"
    base = {"model": "m", "weights": "0" * 16}
    old_record(root, "a" * 16, "train", base, {"score": 1.0}, {"x": np.ones(3)})
    old_record(root, "b" * 16, PLACE, {"of": "a" * 16, "training": base})
    old_record(root, "c" * 16, PLACE, {"of": {"sst2": "b" * 16}})
    return root


def test_keys_and_what_points_to_them_move_together(root, tmp_path):
    keys = upgrade(root, tmp_path / "new", {PLACE: "measure"}, {"0" * 16: "1" * 16})
    new = Results(tmp_path / "new")
    base = {"model": "m", "weights": "1" * 16}
    first = new.find("train", base)
    assert first is not None and first.result == {"score": 1.0} and first.arrays["x"].sum() == 3
    second = new.find("measure", {"of": first.key, "training": base})
    assert second is not None and second.about["versions"] == {"headwise": "0.1.0"}
    assert new.find("measure", {"of": {"sst2": second.key}}) is not None
    assert keys["a" * 16] == record_key("train", base) == first.key


def test_a_run_is_upgraded_in_place_with_its_models(root):
    with pytest.raises(HeadwiseError, match="headwise records upgrade"):
        list(Results(root))
    (root.parent / "models" / ("a" * 16)).mkdir(parents=True)
    assert upgrade_run(root) == 3
    [key] = [record.key for record in Results(root).where(work="train")]
    assert (root.parent / "models" / key).is_dir() and not (root.parent / "models" / ("a" * 16)).exists()
    with pytest.raises(HeadwiseError, match="not of format 1"):
        upgrade_run(root)
