"""Works of this recipe: baselines, few-shot transfer, similarity, estimators, permutations."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import nn

from headwise.dissociation.lesions import dissociate, null_matrices
from headwise.dissociation.similarity import similarity
from headwise.errors import HeadwiseError
from headwise.experiments.jobs import Made, Place
from headwise.experiments.works import opened, scored, short, small
from headwise.heads.gates import Heads
from headwise.heads.selection import top
from headwise.io.files import file_digest
from headwise.measuring.evaluate import evaluate, sentence_vectors
from headwise.models.batching import encode
from headwise.models.device import default_device
from headwise.models.loading import load_encoder
from headwise.models.multitask import MultiTaskModel
from headwise.papers.specialization.glue import submit
from headwise.papers.specialization.mtdnn import prepare
from headwise.papers.specialization.transfer import transfer
from headwise.pruning.iterative import cut_in_rounds
from headwise.scoring.importance import importance
from headwise.tasks.task import Task
from headwise.training.loop import fit
from headwise.training.methods.distill import Distill
from headwise.training.plan import Plan


def inventory(place: Place) -> dict[str, Any]:
    """Describe the tasks and the model (Tables 1 and 2)."""
    encoder, _ = load_encoder(place.encoder(place.config["model"]))
    heads, size = Heads.of(encoder), sum(p.numel() for p in encoder.parameters())
    model = {"layers": heads.num_layers, "heads": heads.num_heads, "parameters": size}
    return {"model": model, "tasks": {name: _about(place, name) for name in place.config["tasks"]}}


def _about(place: Place, name: str) -> dict[str, Any]:
    task = place.task(name).ready()
    rows = {split: len(task.rows(split)) for split in ("train", "dev")}
    origin = task.source.origin.replace(f"{place.at['data']}/", "") if "data" in place.at else task.source.origin
    classes = len(task.kind.labels) if len(task.kind.labels) > 1 else None  # a grade has none
    return {"classes": classes, "metric": task.metric, "origin": origin, **rows}


def mismatched(place: Place) -> dict[str, Any]:
    """A training's model on the development rows of another task with the same labels (MNLI's other genres)."""
    c = place.config
    return {"scores": _other_rows(place, opened(place, c["training"], c["of"]), c["task"], c["head"])}


def _other_rows(place: Place, made: MultiTaskModel, task: str, head: str) -> dict[str, Any]:
    """The score of an output head on another task's development rows; nothing where there is no other task."""
    if not task:
        return {}
    own = made.tasks[head]
    made.tasks[head] = replace(place.task(task), name=head, kind=own.kind)
    score = scored(made, head)
    made.tasks[head] = own
    return {task: score}


def mtdnn(place: Place) -> dict[str, Any]:
    """The MT-DNN baseline: a training whose tasks have that model's output modules."""
    return _trained(place, _fresh(place, prepare([place.task(name) for name in place.config["tasks"]])), None)


def distilled(place: Place) -> dict[str, Any]:
    """A student, whole or with every second layer, taught by a trained model (TinyBERT's two stages, 2 + 3 epochs)."""
    c = place.config
    student = _fresh(place, [place.task(name) for name in c["tasks"]])
    if not c.get("whole"):
        halve(student.encoder)
    return _trained(place, student, Distill(opened(place, c["training"], c["of"]), share=c["share"]))


def _fresh(place: Place, tasks: list[Task]) -> MultiTaskModel:
    c = place.config
    shape = {"pooling": c["pooling"], "max_length": c["max_length"]}
    made = MultiTaskModel.from_pretrained(place.encoder(c["model"]), tasks, seed=c["plan"]["seed"], **shape)
    return made.to(default_device(place.device))


def _trained(place: Place, made: MultiTaskModel, method: Any) -> dict[str, Any]:
    how = {"out": place.folder, "device": place.device, "progress": place.progress}
    history = fit(made, Plan(**place.config["plan"]), method, **how)
    made.save_pretrained(place.kept)
    shutil.rmtree(place.folder / "checkpoints", ignore_errors=True)
    scores = {name: scored(made, name) for name in made.tasks} | _other_rows(place, made, *place.config["mismatched"])
    return {"scores": scores, "steps": history.steps}


def halve(encoder: Any) -> None:
    """Keep every second layer, the last among them."""
    number = Heads.of(encoder).num_layers
    for module in encoder.modules():
        for name, child in module.named_children():
            if isinstance(child, nn.ModuleList) and len(child) == number:
                kept = nn.ModuleList(list(child)[(number - 1) % 2 :: 2])
                setattr(module, name, kept)
                encoder.config.num_hidden_layers = len(kept)
                return
    raise HeadwiseError(f"no list of {number} layers in a {type(encoder).__name__}", "an encoder with one stack")


def few_shot(place: Place) -> dict[str, Any]:
    """Few-shot transfer from one training's encoder to a new task."""
    c = place.config
    encoder, tokenizer = load_encoder(place.model_of(c["of"]) / "encoder")
    shape = {"pooling": c["training"]["pooling"], "max_length": c["training"]["max_length"]}
    start = MultiTaskModel(encoder, tokenizer, [], **shape)
    how = {"plan": Plan(**c["plan"]), "limit": c["dev"], "device": place.device, "log": place.log}
    return transfer({c["start"]: start}, place.task(c["task"]), c["shots"], c["seeds"], **how).to_record()


def likeness(place: Place) -> dict[str, Any]:
    """How alike tasks are by the vectors that single-task models give the same sentences (DSE and CRA)."""
    c = place.config
    texts = _texts(place, c["texts"], c["count"])
    vectors = {name: sentence_vectors(_single(place, name), texts) for name in c["of"]}
    return {by: similarity[by](vectors).to_record() for by in ("dse", "cra")} | {"texts": len(texts)}


def _single(place: Place, name: str) -> MultiTaskModel:
    """The model trained on one task alone."""
    return opened(place, place.config["trainings"][name], place.config["of"][name])


def _texts(place: Place, name: str, count: int) -> list[str]:
    """Sentences that no model was trained on: of the corpus, or of the contexts of a question-answering task."""
    if name == "corpus":
        from headwise.tasks.corpus import sentences

        return [sentence.text for sentence in islice(sentences(split="test"), count)]
    task = place.task(name)
    split = "test" if name.startswith("xquad") else "dev"
    contexts = dict.fromkeys(row["context"] for row in task.rows(split))
    candidates = [s.strip() for context in contexts for s in context.split(". ") if 20 < len(s) < 300]
    chosen = np.random.default_rng(0).permutation(len(candidates))[:count]
    return [candidates[i] for i in sorted(chosen)]


def onto(place: Place) -> Made:
    """Every other single-task model tuned on some rows of one task: how well each does on its held-out rows (AHP)."""
    c = place.config
    plan, rows = Plan(**c["plan"]), []
    for source in c["of"]:
        start = _single(place, source)
        shape = (start.pooling, start.layer, start.use_heads, start.max_length)
        torch.manual_seed(plan.seed)
        made = MultiTaskModel(start.encoder, start.tokenizer, [place.task(c["target"])], *shape)
        fit(made, plan, device=place.device)
        rows.append(evaluate(made, c["target"], limit=c["dev"]))
    right = small(np.stack([_right(score) for score in rows]))
    values = {source: score.value for source, score in zip(c["of"], rows)}
    return {"target": c["target"], "sources": list(c["of"]), "values": values, "n": right.shape[1]}, {"right": right}


def _right(score: Any) -> np.ndarray:
    """The result of each example: right or wrong, or the closeness of a grade."""
    if isinstance(score.predictions[0], int):
        return np.array([float(p == g) for p, g in zip(score.predictions, score.golds)], np.float32)
    return -np.abs(np.array(score.predictions, np.float32) - np.array(score.golds, np.float32))


def estimator(place: Place) -> dict[str, Any]:
    """One importance estimator on a trained model: scores, what they cost, how its lesions hurt, and D by them."""
    c = place.config
    made, measured = opened(place, c["training"], c["of"]), {}
    for name in made.tasks:
        data = encode(made.tasks[name], "train", made.tokenizer, made.max_length)
        began = time.perf_counter()
        scores = importance(made, name, c["by"], examples=c["examples"], seed=c["seed"], data=data).scores.cpu()
        seconds = time.perf_counter() - began
        gates = torch.stack([(~top(scores, f)).float() for f in (0.0, *c["fractions"])])
        values = [score.value for score in evaluate(made, name, gates, limit=c["dev"])]
        measured[name] = {"scores": scores.tolist(), "seconds": seconds, "curve": values}
    maps = {name: torch.tensor(one["scores"]) for name, one in measured.items()}
    apart = dissociate(made, maps, 0.3, random=0, matched=0, limit=c["dev"], seed=c["seed"], undefined="leave")
    return short({"fractions": [0.0, *c["fractions"]], "tasks": measured, "D": apart.mean()})


def closings(place: Place) -> dict[str, Any]:
    """D by what closed heads return: gentler closings show what chance level hides."""
    c, closed = place.config, {}
    made = opened(place, c["training"], c["of"])
    maps = {name: torch.tensor(one["scores"]) for name, one in place.before(c["lesions"]).result["importance"].items()}
    how = {"random": 0, "matched": 0, "limit": c["dev"], "seed": c["seed"], "undefined": "leave"}
    for close in c["closes"]:
        plain = dissociate(made, maps, c["fraction"], close=close, **how)
        exact = plain.on.get("accuracy", plain)
        closed[close] = {"D": exact.mean(), "accuracy": exact.performance[0].tolist()}
    return short({"tasks": list(maps), "closed": closed})


def relabelling(place: Place) -> dict[str, Any]:
    """The permutation test of D: the tasks' heads dealt anew, many times."""
    c = place.config
    made = opened(place, c["training"], c["of"])
    maps = {name: torch.tensor(one["scores"]) for name, one in place.before(c["lesions"]).result["importance"].items()}
    plain = dissociate(made, maps, c["fraction"], random=0, matched=0, limit=c["dev"], undefined="leave")
    null = null_matrices(made, maps, c["fraction"], c["draws"], limit=c["dev"], seed=c["seed"])
    return plain.permutation_test(null) | {"D": plain.mean(), "draws": c["draws"]}


def rounds(place: Place) -> dict[str, Any]:
    """Pruning with importance estimated anew after every cut, beside the same cuts scored once."""
    c = place.config
    made = opened(place, c["training"], c["of"])
    how: dict[str, Any] = {"step": c["step"], "until": c["until"], "examples": c["examples"], "limit": c["dev"]}
    how |= {"first": c.get("first", "least")}
    pruned = cut_in_rounds(made, list(made.tasks), c["by"], **how, log=place.log)
    return pruned.to_record() | {"area": {name: list(pruned.area(name)) for name in pruned.curve}}


def submission(place: Place) -> dict[str, Any]:
    """The zip for the GLUE server from one training's model; WNLI, which nobody trains on, is filled in."""
    c = place.config
    made = opened(place, c["training"], c["of"])
    path = submit(made, place.at["data"], place.folder / "submission.zip", fill=True)
    return {"file": path.name, "hash": file_digest(path), "filled": ["WNLI"]}
