"""Studies of many tasks as groups of tasks: an overview of their means, and a study of each group to look into."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from headwise.dissociation.result import Dissociation
from headwise.study.schema import checked

MOST = 40  # tasks, or groups of tasks, on one page


def grouped(study: Mapping[str, Any], most: int = MOST) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """A study of groups of tasks that behave alike, and the study of every group's tasks by the group's name.

    A group's performance is the mean relative performance of its tasks, a group's lesion the mean over those of its
    tasks. Means are not tested; the tests of single tasks are in the studies of the groups.

    Example:
        >>> overview, groups = grouped(study_of_a_thousand_tasks)
        >>> report(overview, "report.html")
    """
    data = checked(study)
    names = [task["name"] for task in data["tasks"]]
    members = _clusters(_profiles(data, names), min(most, max(2, math.isqrt(len(names)))))
    labels = _labels(names, members)
    parts = {label: _study_of(data, [names[i] for i in group]) for label, group in zip(labels, members)}
    whole: dict[str, Any] = {"model": data["model"], "title": data.get("title", f"{len(names)} tasks in groups")}
    whole["tasks"] = [{"name": label, "kind": f"{len(group)} tasks"} for label, group in zip(labels, members)]
    scored = {label: _mean_scores(data, [names[i] for i in group]) for label, group in zip(labels, members)}
    whole["importance"] = {label: scores for label, scores in scored.items() if scores}
    if data.get("dissociation"):
        whole["dissociation"] = _of_groups(data["dissociation"], labels, members)
    return whole, parts


def _profiles(data: Mapping[str, Any], names: list[str]) -> np.ndarray:
    """Features for grouping tasks: relative performance under all lesions, or importance."""
    if data.get("dissociation"):
        part = data["dissociation"]
        rp = _relative(part)[part["fractions"].index(part["default"])]
        square = np.nan_to_num(rp[:, 1 : 1 + len(names)], nan=1.0)
        return np.concatenate([square, square.T], 1)
    width = data["model"]["layers"] * data["model"]["heads"]
    maps = [
        np.ravel(np.array(data["importance"][n]["scores"], float)) if n in data["importance"] else np.zeros(width)
        for n in names
    ]
    flat = np.nan_to_num(np.stack(maps))
    return flat / np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-12)


def _relative(part: Mapping[str, Any]) -> np.ndarray:
    """(F, T, K) over the intact model's, in the order none, tasks, random; NaN where that is not above zero."""
    values = np.array(part["performance"], float)
    order = [part["lesions"].index(name) for name in ("none", *part["tasks"])]
    rest = [i for i in range(values.shape[-1]) if i not in set(order)]
    base = values[..., order[:1]]
    return values[..., [*order, *rest]] / np.where(base > 0, base, np.nan)


def _clusters(profiles: np.ndarray, count: int) -> list[list[int]]:
    """Groups of rows by Ward's method, the largest first."""
    from scipy.cluster.hierarchy import fcluster, linkage

    members: dict[int, list[int]] = {}
    for row, number in enumerate(fcluster(linkage(profiles, "ward"), count, "maxclust")):
        members.setdefault(int(number), []).append(row)
    return sorted(members.values(), key=lambda group: (-len(group), group))


def _labels(names: list[str], members: list[list[int]]) -> list[str]:
    """Name a group after its first task and the number of the others."""
    return [f"{names[group[0]]} + {len(group) - 1}" if len(group) > 1 else names[group[0]] for group in members]


def _mean_scores(data: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    """The mean importance of a group, each task's scores divided by their mean."""
    maps = [np.array(data["importance"][name]["scores"], float) for name in names if name in data["importance"]]
    if not maps:
        return {}
    scaled = [scores / max(float(np.nanmean(scores)), 1e-30) for scores in maps]
    return {"scores": np.mean(scaled, 0).tolist(), "by": "mean of tasks"}


def _of_groups(part: Mapping[str, Any], labels: list[str], members: list[list[int]]) -> dict[str, Any]:
    rp, tasks = _relative(part), len(part["tasks"])
    rows = np.stack([np.nanmean(rp[:, group], 1) for group in members], 1)  # (F, G, K)
    columns = [rows[..., :1], *(rows[..., [1 + i for i in group]].mean(-1, keepdims=True) for group in members)]
    if rp.shape[-1] > 1 + tasks:
        columns.append(rows[..., 1 + tasks :].mean(-1, keepdims=True))
    means = np.nan_to_num(np.concatenate(columns, -1), nan=0.0)
    made = Dissociation.of(labels, means, part["fractions"], default=part["default"], undefined="leave").to_record()
    return {**made, "tasks": labels}


def _study_of(data: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    """The study of some of the tasks."""
    wanted = set(names)
    made: dict[str, Any] = {"model": data["model"], "title": f"{names[0]} and {len(names) - 1} tasks like it"}
    made["tasks"] = [task for task in data["tasks"] if task["name"] in wanted]
    for field in ("importance", "scores"):
        if data.get(field):
            made[field] = {name: value for name, value in data[field].items() if name in wanted}
    if data.get("dissociation") and len(names) > 1:
        made["dissociation"] = _lesions_of(data["dissociation"], [t["name"] for t in made["tasks"]])
    return made


def _lesions_of(part: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    """The lesions of some of the tasks, with tests over the same random head sets."""
    rows = [part["tasks"].index(name) for name in names]
    tasks = set(part["tasks"])
    randoms = [i for i, name in enumerate(part["lesions"]) if name not in tasks and name != "none"]
    columns = [part["lesions"].index(name) for name in ("none", *names)] + randoms
    chosen = {
        name: np.array(part[name], object)[:, rows][:, :, columns].tolist()
        for name in ("performance", "low", "high", "collapsed")
        if part.get(name) is not None
    }
    values = np.array(chosen["performance"], float)
    made = Dissociation.of(names, values, part["fractions"], default=part["default"], undefined="leave").to_record()
    known = part.get("n") or {}
    return {**made, **chosen, "tasks": names, "n": {name: known.get(name) for name in names}}
