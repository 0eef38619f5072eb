"""The works of the anatomy recipe: what models and tasks are, probes of all heads, fine-tuning on the best of them."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
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
from headwise.training.loop import fit
from headwise.training.methods.method import Method
from headwise.training.plan import Plan

if TYPE_CHECKING:
    from headwise.training.loop import Run

SECOND = {"mrpc": ("f1", "accuracy"), "stsb": ("pearson", "spearman")}  # tasks with two metrics in Table 4


def inventory(place: Place) -> dict[str, Any]:
    """Tables 1 and 2: a model's layers, heads and parameters; each task's classes and rows."""
    encoder, _ = load_encoder(place.encoder(place.config["model"]))
    heads = Heads.of(encoder)
    sizes = {}
    for name in place.config["tasks"]:
        data = splits(place.task(name), limit=place.config["limit"])
        sizes[name] = {"classes": data.classes, "chance": data.chance, **data.sizes}
    parameters = sum(parameter.numel() for parameter in encoder.parameters())
    return {"layers": heads.num_layers, "heads": heads.num_heads, "parameters": parameters, "tasks": sizes}


def probed(place: Place) -> Made:
    """All heads and layers of a model probed for a task; the best of them put to work, chosen on dev and on test."""
    measured = _probe(place, place.config)
    ways = {side: utilize(replace(measured, select_on=side)).to_record() for side in ("dev", "test")}
    result = {"utilization": ways, "effect": effect_of_n(measured).to_record(), "chance": measured.chance}
    about = {"sizes": measured.about["sizes"], "notes": measured.about["notes"], "best": list(measured.best(1)[0])}
    arrays = _maps(measured) | {"centroid": nearest_centroid(measured)}
    return plain({**result, **about, "metric": measured.metric}), arrays


def controlled(place: Place) -> Made:
    """Standardized probes: the best heads beside layers, random heads, mixed layers and mean pooling."""
    measured = _probe(place, place.config, means=True)
    return {
        "controls": controls(measured, draws=place.config["draws"]).to_record(),
        "utilization": utilize(measured).to_record(),
        "chance": measured.chance,
        "metric": measured.metric,
    } | {name: measured.about[name] for name in ("sizes", "notes")}, _maps(measured)


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


class Along(Method):
    """Probes all heads at fractions of a training, which goes on as if nobody had looked."""

    name = "along"

    def __init__(self, look: Callable[[nn.Module], Mapping[str, np.ndarray]], fractions: Sequence[float]):
        self.look, self.fractions = look, tuple(sorted(fractions))
        self.maps: dict[str, torch.Tensor] = {}

    def start(self, run: Run) -> None:
        self._due(run, run.step)

    def after_update(self, run: Run, tasks: list[str]) -> None:
        self._due(run, run.step + 1)

    def _due(self, run: Run, step: int) -> None:
        """Probe where a fraction is reached that has no map yet."""
        for number, fraction in enumerate(self.fractions):
            name = f"test.{number}"
            if name not in self.maps and round(fraction * run.total) == step:
                with torch.random.fork_rng(devices=[]):
                    accuracies = self.look(copy.deepcopy(run.model.encoder))
                self.maps |= {f"{side}.{number}": torch.from_numpy(accuracies[side]) for side in ("test", "dev")}

    def state(self) -> dict[str, torch.Tensor]:
        return dict(self.maps)

    def load_state(self, tensors: dict[str, torch.Tensor]) -> None:
        self.maps = dict(tensors)


def along(place: Place) -> Made:
    """Heads probed for a task at several points of the training on it."""
    c = place.config
    task, plan = place.task(c["task"]), Plan(**c["plan"])
    model = MultiTaskModel.from_pretrained(
        place.encoder(c["model"]), [task], seed=plan.seed, max_length=c["max_length"]
    )
    metric = []

    def look(encoder: nn.Module) -> dict[str, np.ndarray]:
        measured = probe(encoder, task, tokenizer=model.tokenizer, log=place.log, **_options(c))
        metric[:] = [measured.metric]
        return _maps(measured)

    method = Along(look, c["fractions"])
    model = model.to(default_device(place.device))
    history = fit(model, plan, method, out=place.folder, device=place.device, progress=place.progress)
    score = evaluate(model, task.name, split="test" if "test" in task.splits else "dev")
    shutil.rmtree(place.folder / "checkpoints", ignore_errors=True)
    arrays = {name.replace(".", "_"): value.numpy() for name, value in sorted(method.maps.items())}
    return {"score": score.value, "metric": score.metric, "probed_by": metric[0], "steps": history.steps}, arrays


def _scores(model: MultiTaskModel, task: str, split: str) -> dict[str, float]:
    score = evaluate(model, task, split=split)
    return {name: score.on(name).value for name in SECOND.get(task, (score.metric,))}


def _probe(place: Place, c: Mapping[str, Any], **more: Any) -> Probe:
    encoder, tokenizer = load_encoder(place.encoder(c["model"]))
    on: nn.Module = encoder.to(default_device(place.device))
    return probe(on, place.task(c["task"]), tokenizer=tokenizer, log=place.log, **_options(c), **more)


def _options(c: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: c[name] for name in ("protocol", "limit", "max_length", "seed")}
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in c["options"].items()}
    if c["protocol"] != "anatomy":  # features are not standardized by default, as in the paper and in older records
        options = {"standardize": False} | options
    return given | ({"at": c["at"]} if c["at"] else {}) | options


def _maps(measured: Probe) -> dict[str, np.ndarray]:
    tensors = {
        "test": measured.accuracy,
        "dev": measured.dev,
        "layers": measured.layers,
        "layers_dev": measured.layers_dev,
    }
    return {name: tensor.float().cpu().numpy() for name, tensor in tensors.items()}
