"""Works of the MESH recipe: train over pairs, adapt to held-out pairs, dissociate languages and tasks."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from headwise.dissociation.lesions import dissociate
from headwise.experiments.jobs import Place
from headwise.experiments.works import scored, small
from headwise.heads.gates import Heads
from headwise.heads.selection import random_heads
from headwise.measuring.evaluate import evaluate
from headwise.models.device import default_device
from headwise.models.multitask import MultiTaskModel
from headwise.papers.mesh.groups import dissociate_groups
from headwise.papers.mesh.meta import Meta
from headwise.papers.mesh.metatest import MetaTest, best_rate, meta_test
from headwise.papers.mesh.pairs import LANGUAGES, pair
from headwise.papers.mesh.retrieval import retrieve, translations
from headwise.papers.mesh.trim import Trim
from headwise.scoring.importance import importance
from headwise.tasks.languages import base, joined, share
from headwise.tasks.task import Task
from headwise.training.loop import Run, fit
from headwise.training.plan import Plan


@lru_cache(maxsize=64)
def _pair(
    name: str, source: str, data: str | None, size: tuple[tuple[str, int], ...], languages: tuple[str, ...]
) -> Task:
    """Read once in a process: a worker does many jobs on the same pairs."""
    return pair(name, source, data, dict(size), languages).ready()


def found_pair(name: str, config: Mapping[str, Any], at: Mapping[str, str]) -> Task:
    """A pair of a job."""
    languages = tuple(config.get("languages") or LANGUAGES)
    return _pair(name, config["source"], at.get("data"), tuple((config["rows"] or {}).items()), languages)


def opened(place: Place, config: Mapping[str, Any], key: str | None = None) -> MultiTaskModel:
    """The model of a meta-training: as kept under ``key``, or untrained; a task's languages share an output head."""
    tasks = joined(found_pair(name, config, place.at) for name in config["pairs"])
    if key is not None:
        made = MultiTaskModel.load(place.model_of(key), tasks)
    else:
        shape = {"pooling": config["pooling"], "max_length": config["max_length"], "share": share(tasks)}
        seed = config["plan"]["seed"]
        made = MultiTaskModel.from_pretrained(place.encoder(config["model"]), tasks, seed=seed, **shape)
    return made.to(default_device(place.device))


class Measured(Meta):
    """Also measure every pair right after heads were closed, before training continues without them."""

    dev: int | None = None
    cut: Mapping[str, float] = {}

    def _trim(self, run: Run, trim: Trim) -> None:
        super()._trim(run, trim)
        with self.learner.gated():
            self.cut = {name: evaluate(run.model, name, limit=self.dev).value for name in run.names}

    def state(self) -> dict[str, torch.Tensor]:
        return {**super().state(), **{f"cut.{name}": torch.tensor(value) for name, value in self.cut.items()}}

    def load_state(self, tensors: dict[str, torch.Tensor]) -> None:
        super().load_state(tensors)
        self.cut = {n.removeprefix("cut."): value.item() for n, value in tensors.items() if n.startswith("cut.")}


def train(place: Place) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Train on the pairs, score them, and adapt to the pairs held out from 4 to 32 examples."""
    c = place.config
    made, method = opened(place, c, c["start"]), Measured(**c["method"])
    method.dev = c["dev"]
    history = fit(made, Plan(**c["plan"]), method, out=place.folder, device=place.device, progress=place.progress)
    if c["keep"]:
        made.save_pretrained(place.kept)
    with method.learner.gated():
        scores = {name: scored(made, name, limit=c["dev"]) for name in made.tasks}
    tests, rate = _tested(place, made, method) if c["held"] else ({}, None)
    result = {
        "scores": scores,
        "cut": dict(method.cut),
        "steps": history.steps,
        "rate": rate,
        "pairs": _described(made, method),
    }
    result["tests"] = {name: one.to_record() for name, one in tests.items()}
    each = {f"{name}/{shots}": one.counts(shots) for name, one in tests.items() for shots in one.scores}
    arrays = {name: small(counts) for name, counts in each.items()}
    shutil.rmtree(place.folder / "checkpoints", ignore_errors=True)  # last: an interrupted job resumes from them
    return result, arrays


def _tested(place: Place, model: MultiTaskModel, method: Meta) -> tuple[dict[str, MetaTest], float]:
    """The rate of adaptation is chosen on the pairs that were trained; the pairs held out stay unseen."""
    c, how = place.config, place.config["adapt"]
    few: dict[str, Any] = {"steps": how["steps"], "limit": how["dev"]}
    rate = best_rate(model, method, how["shots"][-1], how["tuning"], rates=how["rates"], **few)
    tests = {}
    for name in c["held"]:
        task = found_pair(name, c, place.at)
        few["prune"] = how.get("prune", 0.0)
        tests[name] = meta_test(model, method, task, how["shots"], how["sets"], rates=rate, **few)
        place.log(str(tests[name]))
    return tests, rate


def _described(model: MultiTaskModel, method: Meta) -> dict[str, dict[str, Any]]:
    """The training data of each pair, and how the tokenizer splits it."""
    described = {}
    for name, task in model.tasks.items():
        about = {"rows": len(task.rows("train")), "measured": len(task.rows("dev")), "note": task.note}
        cover = method.coverage.get(name)
        pieces = {"pieces": cover.pieces_per_word, "unknown": cover.unknown_rate} if cover else {}
        described[name] = {**about, "metric": task.metric, "language": task.language, **pieces}
    return described


def retrieved(place: Place) -> dict[str, Any]:
    """Translations found by the untouched encoder's vectors, whole and without a third of its heads at random."""
    c = place.config
    scores: dict[str, Any] = {}
    for pooling in ("cls", "mean"):
        made = MultiTaskModel.from_pretrained(
            place.encoder(c["model"]), [], pooling=pooling, max_length=c["max_length"]
        )
        made = made.to(default_device(place.device))
        shape = Heads.of(made.encoder).shape
        cut = (~random_heads(shape, 0.3, c["seed"])).float()
        for data in translations(place.at.get("data"), c["languages"]):
            scores[f"{data.name} {pooling}"] = retrieve(made, data)
            scores[f"{data.name} {pooling}, 30 % of heads closed"] = retrieve(made, data, cut)
    return scores


def apart(place: Place) -> dict[str, Any]:
    """Importance of every pair; how far pairs, languages and tasks dissociate in the model trained on all of them."""
    c = place.config
    made = opened(place, c["training"], c["of"])
    base_scores = {n: evaluate(made, n, limit=c["dev"]).value for n in made.tasks}
    kept = [n for n, value in base_scores.items() if value > 0]  # a score of zero cannot fall
    scores = {n: importance(made, n, examples=c["examples"], seed=c["seed"]) for n in kept}
    how: dict[str, Any] = {"random": c["random"], "limit": c["dev"], "seed": c["seed"], "log": place.log}
    by = {"language": {n: made.tasks[n].language for n in kept}, "task": {n: base(made.tasks[n]) for n in kept}}
    result: dict[str, Any] = {"left_out": [n for n in made.tasks if n not in kept]}
    result["importance"] = {n: one.to_record() | {"split_half": one.split_half()} for n, one in scores.items()}
    result["pairs"] = dissociate(made, scores, c["fractions"], **how).to_record()
    for name, groups in ((n, g) for n, g in by.items() if len(set(g.values())) > 1):
        result[name] = dissociate_groups(made, scores, groups, c["fractions"], **how).to_record()
    return result
