"""Records of the first format are found again under the new keys, with all that they point to."""

from __future__ import annotations

import json

import numpy as np
import pytest

from headwise.errors import HeadwiseError
from headwise.io.files import write_arrays
from headwise.io.records import Results
from headwise.io.storage import record_key
from headwise.io.upgrade import upgrade, upgrade_run

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
