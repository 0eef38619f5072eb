"""What the recipe does with models: train one or two tasks, and read all tasks' signals from one untrained encoder."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from headwise.experiments.jobs import Made, Place
from headwise.experiments.works import opened, scored, short
from headwise.heads.gates import Heads
from headwise.heads.modules import evaluating
from headwise.measuring.evaluate import TOKENS
from headwise.models.batching import batches
from headwise.models.multitask import MultiTaskModel
from headwise.scoring.importance import importance
from headwise.training.loop import fit
from headwise.training.plan import Plan

PARTS = "qo"  # of a head's own weights: keys and values may be shared by several heads


def trained(place: Place) -> dict[str, Any]:
    """Development scores of some tasks trained together; the model is not kept, for there are hundreds."""
    c = place.config
    made = opened(place, c)
    history = fit(made, Plan(**c["plan"]), device=place.device, progress=place.progress)
    return {"scores": {name: scored(made, name, limit=c["dev"]) for name in made.tasks}, "steps": history.steps}


def signals(place: Place) -> Made:
    """Head maps, gradients and texts of all tasks in one encoder whose output heads alone were trained, briefly."""
    c = place.config
    made = opened(place, c)
    fit(made, Plan(**c["plan"]), device=place.device, progress=place.progress)
    names, maps, gradients, texts = list(made.tasks), [], [], []
    for name in names:
        maps.append(importance(made, name, examples=c["examples"], seed=c["plan"]["seed"]))
        gradient, text = _gradient(made, name, c["examples"])
        gradients.append(gradient)
        texts.append(text)
    heads = Heads.of(made.encoder)
    by_head = torch.stack([_by_head(made.encoder, heads, gradient) for gradient in gradients])  # (T, L, H, n)
    whole = torch.stack([torch.cat([g.flatten() for g in gradient.values()]) for gradient in gradients])
    arrays = {
        "scores": torch.stack([m.scores.cpu() for m in maps]),
        "signed": torch.stack([m.signed.cpu() for m in maps]),
        "whole": _cosines(whole),
        "heads": _cosines(by_head.movedim(0, 2)).movedim((2, 3), (0, 1)),  # (T, T, L, H)
        "texts": torch.stack(texts),
    }
    rows = {name: len(made.tasks[name].rows("train")) for name in names}
    classes = {name: len(made.tasks[name].kind.labels) for name in names}
    before = {name: scored(made, name, limit=c["dev"])["value"] for name in names}
    result = {"tasks": names, "rows": rows, "classes": classes, "before": before, "alive": heads.alive.tolist()}
    return short(result), {name: each.float().cpu().numpy() for name, each in arrays.items()}


def _gradient(model: MultiTaskModel, task: str, examples: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """The gradient of a task's mean loss in the encoder's weights, and the mean vector of its texts."""
    data = model.encode(task, "train", limit=examples)
    text, count = torch.zeros(model.width, device=model.device), 0
    model.zero_grad(set_to_none=True)
    with evaluating(model), torch.enable_grad():
        for items, batch in batches(data, TOKENS, model.device):
            (model.losses(task, batch).sum() / len(data)).backward()
            with torch.no_grad():
                text += model.hidden(batch).pooled.float().sum(0)
            count += len(items)
    gradients = {n: p.grad.detach().clone() for n, p in model.encoder.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return gradients, text / count


def _by_head(encoder: nn.Module, heads: Heads, gradient: dict[str, torch.Tensor]) -> torch.Tensor:
    """The gradient in each head's own rows, (L, H, n); zeros for absent heads."""
    by_weight: dict[int, Any] = {id(p): gradient.get(n) for n, p in encoder.named_parameters()}
    gradients: dict[tuple[int, int], torch.Tensor] = {}
    for site in heads.sites:
        for head, kept in enumerate(site.kept):
            parts = [(by_weight[id(site.parts[p].module.weight)], site.parts[p]) for p in PARTS]
            rows = [g.index_select(part.axis, part.rows[head].to(g.device)).flatten() for g, part in parts]
            gradients[site.layer, kept] = torch.cat(rows)
    out = next(iter(gradients.values())).new_zeros(*heads.shape, max(map(len, gradients.values())))
    for (layer, head), values in gradients.items():
        out[layer, head, : len(values)] = values
    return out


def _cosines(rows: torch.Tensor) -> torch.Tensor:
    """Cosines between all rows of (..., T, n); 0 for rows of zeros."""
    unit = torch.nn.functional.normalize(rows.float(), dim=-1)
    return unit @ unit.mT
