"""The works of the stem-cell recipe: training with and without gates, and probes without parameters."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from typing import Any

import numpy as np

from headwise.experiments.jobs import Made, Place
from headwise.experiments.works import opened, scored, small
from headwise.heads.gates import Heads
from headwise.io.files import plain
from headwise.models.multitask import MultiTaskModel
from headwise.papers.stem_cell.stages import profile, untrained
from headwise.training.loop import fit
from headwise.training.methods.l0 import L0
from headwise.training.methods.method import Method
from headwise.training.plan import Plan


def trained(place: Place) -> Made:
    """Train tasks together, with gates or without; test scores, and the gates of the end and on the way."""
    c = place.config
    model = _opened(place, c)
    settings = {name: value for name, value in (c["method"] or {}).items() if name != "name"}
    method = L0(**settings) if c["method"] else Method()
    history = fit(model, Plan(**c["plan"]), method, out=place.folder, device=place.device, progress=place.progress)
    shutil.rmtree(place.folder / "checkpoints", ignore_errors=True)
    if c["keep"]:
        model.save_pretrained(place.kept)
    apart = isinstance(method, L0) and not method.shared  # gates of one set are folded into the model
    with method.gates.on(model) if apart else nullcontext():  # type: ignore[union-attr]
        scores = {name: scored(model, name, "test", c["test"]) for name in model.tasks}
    result = {"scores": scores, "steps": history.steps, "shape": list(Heads.of(model.encoder).shape)}
    return result, _gates(method) if isinstance(method, L0) else {}


def _gates(method: L0) -> dict[str, np.ndarray]:
    """The gates of the one set, (L, H), and snapshots of it, (steps, L, H)."""
    settled = method.gates.settled().float().cpu().numpy()
    arrays = {"gates": settled[0]} if method.shared else {"each": settled}
    if method.snapshots:
        arrays["steps"] = np.array(list(method.snapshots))
        on_the_way = np.stack([gates[0].float().cpu().numpy() for gates in method.snapshots.values()])
        arrays["snapshots"] = on_the_way.astype(np.float16)  # to be drawn, and a third of a run's records
    return arrays


def probed(place: Place) -> Made:
    """What each head of a model predicts, label by label."""
    c = place.config
    model = _opened(place, c["training"], c["of"])
    tasks = [model.tasks[name] for name in c["tasks"]]
    result = profile(model, tasks, split=c["split"], fit_on=c["fit_on"], limit=c["limit"])
    record = {name: value for name, value in result.to_record().items() if name != "scores"}
    right = np.round(result.scores * result.counts[:, None, None], 6)  # words of a label that a head recognizes
    return plain(record), {"right": small(right)}


def _opened(place: Place, config: dict[str, Any], key: str | None = None) -> MultiTaskModel:
    """The model of a training: as kept, or before it; with random weights for the control."""
    model = opened(place, config, key)
    if key is None and config["random"]:
        model.encoder = untrained(model.encoder, config["plan"]["seed"])
    return model
