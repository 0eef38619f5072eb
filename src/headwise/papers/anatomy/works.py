"""The works of the anatomy recipe: what models and tasks are, probes of all heads, fine-tuning on the best of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn

from headwise.experiments.jobs import Made, Place
from headwise.heads.gates import Heads
from headwise.io.files import plain
from headwise.measuring.evaluate import evaluate
from headwise.models.device import default_device
from headwise.models.loading import load_encoder
from headwise.models.multitask import MultiTaskModel
from headwise.probing import Probe, effect_of_n, fine_tune, nearest_centroid, probe, utilize
from headwise.probing.splits import splits
from headwise.probing.utilization import INPUTS, controls
from headwise.training.plan import Plan

SECOND = {"mrpc": ("f1", "accuracy"), "stsb": ("pearson", "spearman")}  # tasks that Table 4 has two metrics of


def inventory(place: Place) -> dict[str, Any]:
    """Tables 1 and 2: a model's layers, heads and parameters; each task's classes and rows."""
    encoder, _ = load_encoder(place.encoder(place.config["model"]))
    heads = Heads.of(encoder)
    sizes = {}
    for name in place.config["tasks"]:
        found = splits(place.task(name), limit=place.config["limit"])
        sizes[name] = {"classes": found.classes, "chance": found.chance, **found.sizes}
    parameters = sum(parameter.numel() for parameter in encoder.parameters())
    return {"layers": heads.num_layers, "heads": heads.num_heads, "parameters": parameters, "tasks": sizes}


def probed(place: Place) -> Made:
    """All heads and layers of a model probed for a task; the best of them put to work, chosen on dev and on test."""
    found = _probe(place, place.config)
    ways = {side: utilize(replace(found, select_on=side)).to_record() for side in ("dev", "test")}
    result = {"utilization": ways, "effect": effect_of_n(found).to_record(), "chance": found.chance}
    about = {"sizes": found.about["sizes"], "notes": found.about["notes"], "best": list(found.best(1)[0])}
    arrays = _maps(found) | {"centroid": nearest_centroid(found)}
    return plain({**result, **about, "metric": found.metric}), arrays


def controlled(place: Place) -> Made:
    """Standardized probes: the best heads beside layers, random heads, mixed layers and mean pooling."""
    found = _probe(place, place.config)
    return {
        "controls": controls(found, draws=place.config["draws"]).to_record(),
        "utilization": utilize(found).to_record(),
        "chance": found.chance,
        "metric": found.metric,
    } | {name: found.about[name] for name in ("sizes", "notes")}, _maps(found)


def tuned(place: Place) -> Made:
    """Fine-tuning with the last layer, the best layer and the top heads as the classifier's input; heads after it."""
    c = place.config
    before = _probe(place, c)
    plan = Plan(**c["plan"])
    made = fine_tune(before, seeds=(plan.seed,), plan=plan, split=c["split"], keep=True, device=place.device)
    scores = {what: _scores(model, c["task"], made.split) for what, model in zip(made.scores, made.models)}
    arrays = {f"{name}_before": value for name, value in _maps(before).items()}
    for what, mark in (("last", "after"), ("top", "after_top")):  # an ordinary fine-tuned model, and one on top heads
        after = probe(made.models[INPUTS.index(what)], c["task"], **_options(c))
        arrays |= {f"{name}_{mark}": value for name, value in _maps(after).items()}
    return {"scores": scores, "split": made.split, "layer": made.layer, "n": made.n, "metric": before.metric}, arrays


def _scores(model: MultiTaskModel, task: str, split: str) -> dict[str, float]:
    found = evaluate(model, task, split=split)
    return {name: found.on(name).value for name in SECOND.get(task, (found.metric,))}


def _probe(place: Place, c: Mapping[str, Any]) -> Probe:
    encoder, tokenizer = load_encoder(place.encoder(c["model"]))
    on: nn.Module = encoder.to(default_device(place.device))
    return probe(on, place.task(c["task"]), tokenizer=tokenizer, log=place.log, **_options(c))


def _options(c: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: c[name] for name in ("protocol", "limit", "max_length", "seed")}
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in c["options"].items()}
    if c["protocol"] != "anatomy":  # features as they are, unless asked for: as the paper's probes, and older records
        options = {"standardize": False} | options
    return given | ({"at": c["at"]} if c["at"] else {}) | options


def _maps(found: Probe) -> dict[str, np.ndarray]:
    tensors = {"test": found.accuracy, "dev": found.dev, "layers": found.layers, "layers_dev": found.layers_dev}
    return {name: tensor.float().cpu().numpy() for name, tensor in tensors.items()}
