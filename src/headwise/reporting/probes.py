"""What probes found, on a page: a study without tasks of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headwise.io.files import finite, write_json
from headwise.io.records import about
from headwise.probing.measure import best_head
from headwise.reporting import report


def write_probes(probes: Mapping[str, Mapping[str, Any]], model: Mapping[str, Any], folder: str | Path) -> Path:
    """Write ``study.json`` and ``report.html`` with a map of every probe and a table of layers and heads.

    Args:
        probes: records of `headwise.probing.probe` by name.
        model: ``name``, ``layers`` and ``heads``.
        folder: where to write.
    """
    columns = ["probe", "chance", "last layer", "best layer", "best head", "which head"]
    rows = [[name, *_row(record)] for name, record in probes.items()]
    side = next(iter(probes.values()))["select_on"]
    note = f"Test scores; layer and head chosen on {side}."
    now = about()
    study = {
        "title": f"What the heads of {model['name']} encode",
        "created": now["created"],
        "model": dict(model),
        "tasks": [],
        "importance": {},
        "probes": {n: {k: record[k] for k in ("accuracy", "chance", "metric")} for n, record in probes.items()},
        "tables": [{"title": "Layers and heads", "columns": columns, "rows": rows, "note": note}],
    }
    write_json(Path(folder) / "probes.json", finite(probes))
    write_json(Path(folder) / "study.json", finite(study))
    return report(study, Path(folder) / "report.html")


def _row(record: Mapping[str, Any]) -> list[Any]:
    layers = record["layers"] if record["select_on"] == "test" else record["layers_dev"]
    best_layer = max(range(len(layers)), key=lambda i: layers[i])
    layer, head, best = best_head(record)
    return [record["chance"], record["layers"][-1], record["layers"][best_layer], best, f"{layer}.{head}"]
