"""Pages about heads: one head of a study; what all heads encode, attend to and write (no torch)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from headwise.atlas.cards import SINK
from headwise.errors import HeadwiseError
from headwise.io.files import finite, write, write_json
from headwise.io.records import about
from headwise.reporting import page
from headwise.reporting.figures import RAMP, TASKS, task_rules
from headwise.study.schema import checked


def card(study: Mapping, name: str, beside: Mapping | None = None, alike: int = 5) -> dict[str, Any]:
    """One head's numbers for all tasks, what it encodes and does, where it looks, and the heads most like it.

    Args:
        study: as `headwise.reporting.report` takes it.
        name: layer and head, as in "5.7".
        beside: a study of a second checkpoint of the same model; its importance of the head is given beside.
        alike: how many neighbours to name.

    Example:
        >>> card(study, "5.7")["importance"]["sst2"]["rank"]
        1
    """
    data = checked(study)
    layer, head = where(name, data["model"])
    facts: dict[str, Any] = {"head": f"{layer}.{head}", "importance": _importance(data, layer, head)}
    facts["owner"] = _owner(data, layer, head)
    if data.get("probes"):
        measures = ("accuracy", "chance", "metric")
        facts["probes"] = {
            n: {m: p[m][layer][head] if m == "accuracy" else p.get(m) for m in measures}
            for n, p in data["probes"].items()
        }
    if data.get("gates"):
        facts["gates"] = {task: gates[layer][head] for task, gates in data["gates"].items()}
    if looks := (data.get("attention") or {}).get(facts["head"]):
        facts["looks"] = looks
    if held := ((data.get("roles") or {}).get("heads") or {}).get(facts["head"]):
        facts["roles"] = {each["role"]: each["score"] for each in held}
    facts["alike"] = _alike(data, layer, head, alike)
    if beside is not None:
        other = checked(beside)
        where(name, other["model"])
        facts["beside"] = _importance(other, layer, head)
    return facts


def where(name: str, model: Mapping[str, Any]) -> tuple[int, int]:
    """Layer and head of a name such as "5.7", which must be in the model."""
    if not re.fullmatch(r"\d+\.\d+", name):
        raise HeadwiseError(f"head {name!r}", "layer.head, counted from 0", "5.7")
    layer, head = map(int, name.split("."))
    if layer >= model["layers"] or head >= model["heads"]:
        raise HeadwiseError(f"head {name}", f"0.0 to {model['layers'] - 1}.{model['heads'] - 1} in {model['name']}")
    return layer, head


def _importance(data: dict[str, Any], layer: int, head: int) -> dict[str, Any]:
    """Score, its standard error, its rank among all heads (1 is first) and its share of the highest score.

    A pruned head has none of them.
    """
    out = {}
    for task, entry in data["importance"].items():
        scores = _array(entry["scores"])
        score = scores[layer, head]
        there, highest = not np.isnan(score), np.nanmax(scores, initial=0.0)
        row: dict[str, Any] = {"score": float(score) if there else None}
        row |= {"rank": int((scores > score).sum()) + 1 if there else None, "of": int((~np.isnan(scores)).sum())}
        row["share"] = float(score / highest) if there and highest > 0 else None
        out[task] = row | ({"stderr": entry["stderr"][layer][head]} if entry.get("stderr") else {})
    return out


def _owner(data: dict[str, Any], layer: int, head: int) -> str | None:
    """The one task for which the head ranks highest; None where several tie."""
    ranks = {task: row["rank"] for task, row in _importance(data, layer, head).items() if row["rank"]}
    first = [task for task, rank in ranks.items() if rank == min(ranks.values())]
    return first[0] if len(first) == 1 else None


def _alike(data: dict[str, Any], layer: int, head: int, count: int) -> list[dict[str, Any]]:
    """Nearest heads by their standardized profile over all measures, as on the page."""
    measures = [entry["scores"] for entry in data["importance"].values()]
    measures += [probe["accuracy"] for probe in (data.get("probes") or {}).values()]
    measures += list((data.get("gates") or {}).values())
    if not measures:
        return []
    maps = np.stack([_array(m) for m in measures])
    spread = np.nanstd(maps, (1, 2), keepdims=True)
    maps = (maps - np.nanmean(maps, (1, 2), keepdims=True)) / np.where(spread > 0, spread, 1)
    apart = np.sqrt(((maps - maps[:, layer, head][:, None, None]) ** 2).mean(0))
    apart[layer, head] = np.nan
    order = [np.unravel_index(i, apart.shape) for i in apart.argsort(axis=None, kind="stable")]
    near = [(f"{i}.{j}", float(apart[i, j])) for i, j in order if not np.isnan(apart[i, j])][:count]
    return [{"head": name, "distance": distance} for name, distance in near]


def _array(values: Any) -> np.ndarray:
    return np.array([[np.nan if v is None else v for v in row] for row in values], float)


def render_atlas(record: Mapping[str, Any], title: str = "") -> str:
    """The page of an atlas, as `headwise.atlas.cards.atlas` gives it, as text; the same atlas gives the same bytes.

    Example:
        >>> Path("atlas.html").write_text(render_atlas(atlas({"bert": roles})), encoding="utf-8")
    """
    if not record.get("models"):
        raise HeadwiseError("an atlas without models", "what headwise.atlas.cards.atlas returns")
    style = page.asset("page.css") + page.asset("atlas.css") + task_rules()
    script = "".join(page.asset(name) for name in ("data.js", "core.js", "atlas.js"))
    models = [{**model, "examples": [page.packed(each) for each in model["examples"]]} for model in record["models"]]
    names = [model["name"] for model in models]
    return page.template("atlas.html.j2").render(
        title=title or f"What the heads of {' and '.join(names)} do",
        models=models,
        findings=[_finding(model) for model in models],
        policy=page.policy(style, script),
        style=Markup(style),
        script=Markup(script),
        data=page.embedded({"ramp": RAMP, "colours": TASKS, "atlas": {**record, "models": models}}),
    )


def _finding(model: Mapping[str, Any]) -> str:
    """The first screen's message: how many heads have a role, and which roles most have."""
    held = Counter(head["beside"] for head in model["heads"] if head["role"])
    sinks = sum(1 for head in model["heads"] if head["role"] == SINK != head["beside"])
    few = ", ".join(f"{count} {name}" for name, count in held.most_common(4))
    total = len(model["heads"])
    text = f"{sum(held.values())} of {total} heads of {model['name']} have a role" + (f": {few}." if few else ".")
    if sinks:
        text += f" {sinks} of them look most of all at the first token, and are counted by their next role."
    if not model["tasks"]:
        return text
    idle = sum(1 for head in model["heads"] if head["role"] and not head["needed"])
    return f"{text} {idle} of them are among no task's most important heads."


def write_probes(probes: Mapping[str, Mapping[str, Any]], model: Mapping[str, Any], folder: str | Path) -> Path:
    """Write ``study.json`` and ``report.html`` with a map of every probe and a table of layers and heads.

    Args:
        probes: records of `headwise.probing.probe`, or of parameter-free probes, by name.
        model: ``name``, ``layers`` and ``heads``.
        folder: where to write.
    """
    now = about()
    study = {
        "title": f"What the heads of {model['name']} encode",
        "created": now["created"],
        "model": dict(model),
        "tasks": [],
        "importance": {},
        "probes": {n: {k: record.get(k) for k in ("accuracy", "chance", "metric")} for n, record in probes.items()},
        "tables": [table for table in (_layers_and_heads(probes), _labels(probes)) if table],
    }
    write_json(Path(folder) / "probes.json", finite(probes))
    write_json(Path(folder) / "study.json", finite(study))
    return write(Path(folder) / "report.html", page.render([study]))


def _layers_and_heads(probes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
    """The table of linear probes."""
    linear = {name: record for name, record in probes.items() if "by_label" not in record}
    if not linear:
        return None
    columns = ["probe", "chance", "last layer", "best layer", "best head", "which head"]
    rows = [[name, *_row(record)] for name, record in linear.items()]
    side = next(iter(linear.values()))["select_on"]
    note = f"Test scores; layer and head chosen on {side}."
    return {"title": "Layers and heads", "columns": columns, "rows": rows, "note": note}


def _labels(probes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
    """The best head for every label of probes without parameters."""
    rows = []
    for name, record in probes.items():
        for label, count, scores in zip(*(record.get(key, ()) for key in ("labels", "counts", "by_label"))):
            ranks = np.array(scores, float)  # None is NaN
            if count and np.isfinite(ranks).any():
                layer, head = np.unravel_index(np.nanargmax(ranks), ranks.shape)
                rows.append([name, label, count, float(ranks[layer, head]), f"{layer}.{head}"])
    columns = ["probe", "label", "number", "best head", "which head"]
    note = "Accuracy of the nearest centroid, or of the largest attention in either direction for relations. The best "
    note += "of all heads on the same words: for rare labels it is high by chance."
    return {"title": "Best heads by label", "columns": columns, "rows": rows, "note": note} if rows else None


def _row(record: Mapping[str, Any]) -> list[Any]:
    from headwise.probing.measure import best_head  # torch

    layers = record["layers"] if record["select_on"] == "test" else record["layers_dev"]
    best_layer = max(range(len(layers)), key=lambda i: layers[i])
    layer, head, best = best_head(record)
    return [record["chance"], record["layers"][-1], record["layers"][best_layer], best, f"{layer}.{head}"]
