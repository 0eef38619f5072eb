"""Data and weights are described by their hashes alone: another copy of a data set is not taken for ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwise.io.records import Results
from headwise.papers.provenance import UNKNOWN, known, provenance

RECORDS = Path(__file__).parents[2] / "results"


def rows(config: dict, tmp_path: Path) -> dict[str, list[list[str]]]:
    results = Results(tmp_path)
    results.save("train", config, {})
    return {t["title"]: t["rows"] for t in provenance(results).tables}


def test_a_sample_is_named_and_another_copy_is_not(tmp_path):
    mine = known()["data"]["qnli"]
    found = rows({"tasks": {"qnli": mine["hashes"][0]}, "model": "m", "weights": "0"}, tmp_path / "a")
    assert found["Data"] == [["qnli", mine["source"], mine["rows"]]] and "not GLUE's" in mine["rows"]
    assert found["Weights"] == [["m", UNKNOWN, UNKNOWN]]
    assert rows({"tasks": {"qnli": "another"}}, tmp_path / "b")["Data"] == [["qnli", UNKNOWN, UNKNOWN]]


def test_data_deep_in_a_config_count(tmp_path):
    found = rows({"training": {"tasks": {"a": "1"}, "model": "m", "weights": "2"}, "task": "b", "data": "3"}, tmp_path)
    assert [row[0] for row in found["Data"]] == ["a", "b"] and found["Weights"][0][0] == "m"


@pytest.mark.parametrize("path", sorted(RECORDS.glob("*.parquet")), ids=lambda path: path.stem)
def test_all_published_records_are_described(path):
    for made in provenance(Results(path)).tables:
        assert not [row for row in made["rows"] if UNKNOWN in row], made["title"]
