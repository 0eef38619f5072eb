"""Open a study's folder, a trained model or any other model for the lab, with what is known about its heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from headwise.atlas.result import named_records
from headwise.errors import HeadwiseError
from headwise.io.files import read_json
from headwise.models.device import default_device
from headwise.models.language import LanguageModel
from headwise.models.loading import is_trained, name_of
from headwise.models.multitask import MultiTaskModel
from headwise.models.opening import open_subject
from headwise.models.subject import Subject
from headwise.study.schema import checked, read_study
from headwise.tasks.task import Task

MOSTLY = 0.5  # of a head's attention: what a study's averages call a role
ROLES = {"previous": "previous token", "next": "next token", "first": "first token", "separator": "separator"}


@dataclass(frozen=True)
class Opened:
    """An open model with what is known about its heads."""

    subject: Subject
    source: str  # where the model is, as Python lines open it
    name: str
    scores: dict[str, list[list[float | None]]] = field(default_factory=dict)  # importance by task, (L, H)
    roles: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    alpha: float = 0.3
    folder: Path | None = None  # below which models may be written
    study: dict[str, Any] | None = None
    atlas: dict[str, Any] | None = None  # what the page of all roles shows


def open_lab(
    target: str | Path,
    tasks: Sequence[Task] = (),
    data: Path | None = None,
    model: str | None = None,
    device: str | None = None,
    exports: Path | None = None,
    scores: Mapping[str, Any] | None = None,
) -> Opened:
    """Open a folder of ``headwise study``, ``demo`` or ``train``, or a model by folder or Hub name.

    Args:
        target: the folder or name.
        tasks: tasks to ask a model that brings none; of a language model they are prompts.
        data: folder of task data, for development scores.
        model: the model of a study that trained none.
        device: as `headwise.fit` takes it.
        exports: folder for cut models (default: ``lab`` in the folder of a run).
        scores: importance by task, (layers, heads), where the folder holds no study.
    """
    path = Path(target)
    study = checked(read_study(path)) if (path / "study.json").is_file() else None
    source = model or (str(path / "model") if study is not None else str(target))
    if study is not None and model is None and not is_trained(source):
        hint = f"--model {study['model']['name']} with its tasks"
        raise HeadwiseError(f"{path} holds a study, but no trained model", "the model of the study", hint)
    subject = _subject(source, tasks, data).to(default_device(device))
    scores = scores or {name: part["scores"] for name, part in (study or {}).get("importance", {}).items()}
    return Opened(
        subject,
        source,
        study["model"]["name"] if study else name_of(source),
        _fitting(scores, subject),
        _roles(path, study, subject),
        ((study or {}).get("dissociation") or {}).get("default", 0.3),
        exports or (path / "lab" if study is not None or is_trained(path) else None),
        study,
        read_json(path / "atlas.json") if (path / "atlas.json").is_file() else None,
    )


def _subject(source: str, tasks: Sequence[Task], data: Path | None) -> Subject:
    if is_trained(source):
        return MultiTaskModel.load(source, tasks or None, data=data)
    if tasks:
        return open_subject(source, tasks)
    return LanguageModel.from_pretrained(source)  # of which the next words can be asked without any task


def _fitting(scores: Mapping[str, Any], subject: Subject) -> dict[str, Any]:
    """Importance scores of this model's tasks; raise if they are of another model."""
    shape = subject.attention.shape
    rows = {name: matrix for name, matrix in scores.items() if name in subject.tasks}
    if any((len(matrix), len(matrix[0])) != shape for matrix in rows.values()):
        raise HeadwiseError("importance of another model", f"{shape[0]} layers of {shape[1]} heads")
    return {n: [[v if v is not None and v == v else None for v in row] for row in m] for n, m in rows.items()}


def _roles(path: Path, study: Mapping[str, Any] | None, subject: Subject) -> dict[str, list[tuple[int, int]]]:
    """Heads by role, from ``roles.json`` or the study, otherwise by where most of their attention goes."""
    file, by_role = path / "roles.json", {}
    if file.is_file():
        roles = next(
            (each for each in named_records(read_json(file)) if each.score.shape[1:] == subject.attention.shape), None
        )
        if roles is None:
            raise HeadwiseError(
                f"{file} holds roles of another model", "{} layers of {} heads".format(*subject.attention.shape)
            )
        by_role = {n: [(int(i), int(j)) for i, j in np.argwhere(held)] for n, held in zip(roles.names, roles.holds())}
    for head, held in (((study or {}).get("roles") or {}).get("heads") or {}).items() if not by_role else ():
        for each in held:
            by_role.setdefault(each["role"], []).append(_place(head))
    for key, name in ROLES.items() if not by_role else ():
        seen = ((head, part.get(key)) for head, part in ((study or {}).get("attention") or {}).items())
        by_role[name] = [_place(head) for head, value in seen if value is not None and value > MOSTLY]
    return {name: heads for name, heads in by_role.items() if heads}


def _place(head: str) -> tuple[int, int]:
    layer, _, number = head.partition(".")
    return int(layer), int(number)
