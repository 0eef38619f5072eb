"""Works of the recipe: a training with tuned settings on a new seed, and an untouched encoder."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from headwise.experiments.jobs import Place
from headwise.experiments.tuning import held_out
from headwise.experiments.works import method_of, opened, scored
from headwise.heads.modules import evaluating
from headwise.measuring.evaluate import sentence_vectors
from headwise.models.batching import batches
from headwise.models.device import default_device
from headwise.models.multitask import MultiTaskModel
from headwise.papers.methods import merging
from headwise.papers.methods.jobs import MERGED, MTDNN
from headwise.papers.specialization.mtdnn import prepare
from headwise.scoring.importance import importance
from headwise.tasks.metrics import metrics
from headwise.training.loop import fit
from headwise.training.plan import Plan

EXAMPLES = 1000  # of each task, for Fisher information
FEW = 256  # sub-words of a batch whose gradient is squared


def confirmed(place: Place) -> dict[str, Any]:
    """A training with the settings that a tuning chose, on a seed it did not see; the model is not kept."""
    c = place.config
    chosen = place.before(c["tuned"]).result["chosen"]
    plan = Plan(**chosen["plan"]).with_(seed=c["seed"])
    made = _mtdnn(place, chosen) if c["name"] == MTDNN else _opened(place, chosen, c["tasks"])
    history = fit(made, plan, method_of(chosen["method"]), device=place.device, progress=place.progress)
    result = {"dev": {name: scored(made, name) for name in made.tasks}, "steps": history.steps}
    tested = [name for name, task in made.tasks.items() if "test" in task.splits]
    return {**result, "test": {name: scored(made, name, "test") for name in tested}, "chosen": chosen}


def _opened(place: Place, chosen: dict[str, Any], tasks: Any) -> MultiTaskModel:
    c = place.config
    return opened(place, {**c, **chosen, "tasks": tasks, "plan": {**chosen["plan"], "seed": c["seed"]}})


def _mtdnn(place: Place, chosen: dict[str, Any]) -> MultiTaskModel:
    """The model with MT-DNN's output modules."""
    c = place.config
    shape = {"pooling": chosen["pooling"], "max_length": c["max_length"], "seed": c["seed"]}
    tasks = prepare([place.task(name) for name in c["tasks"]])
    made = MultiTaskModel.from_pretrained(place.encoder(c["model"]), tasks, **shape)
    return made.to(default_device(place.device))


def merged(place: Place) -> dict[str, Any]:
    """Merge single-task models of tuned settings in several ways; held-out training rows choose how far to go."""
    c = place.config
    models, vectors, needed, fisher = {}, [], [], []
    start: dict[str, torch.Tensor] = {}
    for task, key in c["tuned"].items():
        chosen = place.before(key).result["chosen"]
        made = models[task] = _opened(place, chosen, {task: c["tasks"][task]})
        start = start or {name: value.clone() for name, value in made.encoder.state_dict().items()}
        made.tasks[task] = held_out(place.task(task), seed=c["seed"])
        fit(made, Plan(**chosen["plan"]).with_(seed=c["seed"]), device=place.device)
        vectors.append(merging.changes(made.encoder.state_dict(), start))
        needed.append(importance(made, task, "fisher", examples=EXAMPLES, seed=c["seed"]).scores.cpu())
        fisher.append(_fisher(made, task))
        place.log(f"{task} trained")
    any_encoder = next(iter(models.values())).encoder
    merged_by = (merging.mean(vectors), merging.ties(vectors), merging.weighted(vectors, fisher))
    ways = dict(zip(MERGED, (*merged_by, merging.by_heads(vectors, needed, any_encoder))))
    result = {}
    for name, change in ways.items():
        tried = {}
        for scale in c["scales"]:
            states = merging.applied(start, change, scale)
            tried[scale] = {task: _merged_score(made, task, states, "dev") for task, made in models.items()}
        best = max(tried, key=lambda scale: sum(one["value"] for one in tried[scale].values()))
        result[name] = {"scale": best, **_on_all(place, models, merging.applied(start, change, best))}
        place.log(f"{name}: scale {best}")
    return result


def _merged_score(made: MultiTaskModel, task: str, states: dict[str, Any], split: str) -> dict[str, Any]:
    made.encoder.load_state_dict(states)
    return scored(made, task, split)


def _on_all(place: Place, models: dict[str, MultiTaskModel], states: dict[str, Any]) -> dict[str, Any]:
    """Scores on the tasks' own development and test rows, each by its own output head."""
    scores: dict[str, Any] = {"dev": {}, "test": {}}
    for task, made in models.items():
        slice_, made.tasks[task] = made.tasks[task], place.task(task)
        for split in (split for split in scores if split in made.tasks[task].splits):
            scores[split][task] = _merged_score(made, task, states, split)
        made.tasks[task] = slice_
    return scores


def _fisher(made: MultiTaskModel, task: str) -> dict[str, torch.Tensor]:
    """The squared gradients of small batches, a diagonal of the Fisher information, scaled to a mean of one."""
    data = made.encode(task, "train", limit=EXAMPLES)
    information = {n: torch.zeros_like(v) for n, v in made.encoder.state_dict().items() if v.is_floating_point()}
    parameters = dict(made.encoder.named_parameters())
    with evaluating(made), torch.enable_grad():
        for _, batch in batches(data, FEW, made.device):
            made.zero_grad(set_to_none=True)
            made.losses(task, batch).sum().backward()
            for name, parameter in parameters.items():
                if parameter.grad is not None:
                    information[name] += parameter.grad.float() ** 2
    made.zero_grad(set_to_none=True)
    level = sum(value.sum() for value in information.values()) / sum(value.numel() for value in information.values())
    return {name: value / level for name, value in information.items()}


def untrained(place: Place) -> dict[str, Any]:
    """How well cosines of the untouched encoder's sentence vectors order the similarities of a task."""
    c = place.config
    correlations: dict[str, dict[str, float]] = {}
    for pooling in ("cls", "mean"):
        made = opened(place, {**c, "pooling": pooling, "plan": {}})
        task = made.tasks[c["task"]]
        for split in (split for split in ("dev", "test") if split in task.splits):
            rows = task.rows(split)
            a, b = (sentence_vectors(made, [row[side] for row in rows]) for side in ("text", "text_b"))
            cosine = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
            gold = [row["label"] for row in rows]
            by = {name: metrics[name](cosine.tolist(), gold) for name in ("pearson", "spearman")}
            correlations[f"{pooling} {split}"] = {**by, "n": len(rows)}
    return correlations
