"""Upgrade records of an older format."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from headwise.errors import HeadwiseError
from headwise.io.files import folder, read_arrays, read_json
from headwise.io.storage import ARRAYS, JSON, Folder, Record, record_key

PLACES = {  # module paths in format 1
    **{f"headwise.works:{name}": name for name in ("train", "lesions", "study")},
    **{
        f"headwise.recipes.{paper}.works:{name}": f"{paper}.{name}"
        for paper, names in {
            "anatomy": "inventory probed tuned",
            "mesh": "train apart",
            "specialization": (
                "distilled estimator few_shot inventory likeness mismatched mtdnn onto relabelling rounds submission"
            ),
            "stem_cell": "probed trained",
        }.items()
        for name in names.split()
    },
}


def upgrade(root: Path, into: Path, works: Mapping[str, str], known: Mapping[str, str] | None = None) -> dict[str, str]:
    """Convert the records of format 1 in one folder into another; returns new keys by old keys.

    Format 1 identified a record by module path and package version. Keys inside configurations are replaced as well.

    Args:
        root: the records to read; they are not changed.
        into: folder for the upgraded records.
        works: registered names by ``module:function``.
        known: new values of other hashes in configurations, by old value.
    """
    old = {path.parent.name: read_json(path) for path in sorted(root.glob(f"*/{JSON}"))}
    for key, record in old.items():
        if not isinstance(record, dict) or record.get("format") != 1:
            raise HeadwiseError(f"the record {root / key} is not of format 1", "records that were not upgraded before")

    @cache
    def config_of(key: str) -> dict[str, Any]:
        return replaced(old[key]["config"])

    def key_of(key: str) -> str:
        return record_key(works.get(old[key]["kind"], old[key]["kind"]), config_of(key))

    def replaced(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: replaced(part) for name, part in value.items()}
        if isinstance(value, list):
            return [replaced(part) for part in value]
        if isinstance(value, str):
            return key_of(value) if value in old else (known or {}).get(value, value)
        return value

    store = Folder(into)
    for key, record in old.items():
        file = root / key / ARRAYS
        work = works.get(record["kind"], record["kind"])
        new = Record(key_of(key), work, 1, config_of(key), replaced(record["result"]), record.get("about", {}))
        store.write(new, read_arrays(file)[0] if file.exists() else {})
    return {key: key_of(key) for key in old}


def upgrade_run(root: Path) -> int:
    """Upgrade the records of a run in place and rename the models and checkpoints named after their keys."""
    with folder(root, replace=True) as scratch:
        keys = upgrade(root, scratch, PLACES)
    for beside in (root.parent / "models", root.parent / "work"):
        for old, new in keys.items():
            if (beside / old).exists() and not (beside / new).exists():
                (beside / old).rename(beside / new)
    return len(keys)
