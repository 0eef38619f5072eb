"""Importance from repeated forwards, and controls that know nothing of the task."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from headwise.errors import HeadwiseError
from headwise.heads.attention import eager, whole_maps
from headwise.heads.families import input_width
from headwise.heads.gates import Heads, captured, gated, touched
from headwise.scoring.importance import Importance, Moments, Sample
from headwise.scoring.stability import Blocks


@torch.no_grad()
def _lesion_losses(sample: Sample, batch: dict[str, torch.Tensor], gates_KLH: torch.Tensor) -> torch.Tensor:
    """Losses (B, K) of a batch under K lesions."""
    losses = []
    for gate in gates_KLH:
        with gated(sample.model.backbone, gate, heads=sample.heads):
            losses.append(sample.losses(batch).float().cpu())
    return torch.stack(losses, 1)


def ablation(sample: Sample) -> Importance:
    """The loss each head's absence adds."""
    layers, heads = sample.heads.shape
    gates = torch.cat([torch.zeros(1, layers * heads), torch.eye(layers * heads)])
    moments = Moments(sample.heads.shape)
    for _, batch in sample.batches():
        losses = _lesion_losses(sample, batch, 1 - gates.view(-1, layers, heads))
        moments.add((losses[:, 1:] - losses[:, :1]).view(-1, layers, heads))
    return moments.result(sample.task, "ablation", len(sample.items))


def all_but_one(sample: Sample) -> Importance:
    """How much of the loss of closing a whole layer a head alone makes good (after Michel et al. 2019)."""
    layers, heads = sample.heads.shape
    gates = torch.ones(layers, 1 + heads, layers, heads)
    for layer in range(layers):
        gates[layer, 0, layer] = 0
        gates[layer, 1:, layer] = torch.eye(heads)
    moments = Moments(sample.heads.shape)
    for _, batch in sample.batches():
        losses = _lesion_losses(sample, batch, gates.flatten(0, 1)).view(-1, layers, 1 + heads)
        moments.add(losses[..., :1] - losses[..., 1:])
    return moments.result(sample.task, "all_but_one", len(sample.items))


@torch.no_grad()
def mean_ablation(sample: Sample) -> Importance:
    """The loss added when a head says its average in place of what it would."""
    means_LHD, moments = _mean_outputs(sample), Moments(sample.heads.shape)
    for _, batch in sample.batches():
        whole = sample.losses(batch)
        change = torch.zeros(len(whole), *sample.heads.shape)
        for site in sample.heads.sites:
            for place, head in enumerate(site.kept):

                def touch(layer: int, z: torch.Tensor, at=site.layer, place=place, head=head) -> torch.Tensor | None:
                    if layer != at:
                        return None
                    z = z.clone()
                    z[..., place, :] = means_LHD[at, head, : z.shape[-1]].to(z)
                    return z

                with touched(sample.model.backbone, touch, sample.heads):
                    change[:, site.layer, head] = (sample.losses(batch) - whole).float().cpu()
        moments.add(change)
    return moments.result(sample.task, "mean_ablation", len(sample.items))


def _mean_outputs(sample: Sample) -> torch.Tensor:
    """Each head's mean output over real tokens, (L, H, D), before the task's factors: where it is put in."""
    total: torch.Tensor | float = 0.0
    for _, batch in sample.batches():
        for real, inputs in sample.inputs(batch):

            def reduce(z: torch.Tensor, mask: torch.Tensor = real[..., None, None]) -> torch.Tensor:
                return (nn.functional.pad(z, (0, 1), value=1.0) * mask).sum((0, 1), dtype=torch.float64)  # and tokens

            with captured(sample.model.backbone, reduce, heads=sample.heads) as sums, sample.model.scaled(sample.task):
                sample.model.backbone(**inputs)
            total = total + torch.stack(sums)
    return total[..., :-1] / total[..., -1:]  # type: ignore[index]


# -- controls: they know nothing of the task


def random(sample: Sample) -> Importance:
    """Scores drawn at random, for each task anew: with the same for all, any two would share all their heads."""
    rng = np.random.default_rng([sample.seed, 4, *sample.task.encode()])
    scores = torch.from_numpy(rng.random(sample.heads.shape)).float()
    nothing = torch.full_like(scores, torch.nan)
    return Importance(sample.task, "random", scores, nothing, 0, Blocks.none(sample.heads.shape))


@torch.no_grad()
def magnitude(sample: Sample) -> Importance:
    """The mean length of what a head adds to its layer, ‖W_O,h z_h‖."""
    grams = [_gram(site, sample.heads) for site in sample.heads.sites]
    moments = Moments(sample.heads.shape)
    for _, batch in sample.batches():
        total, tokens = _zero(sample), _zero(sample)
        for real, inputs in sample.inputs(batch):
            with (
                sample.model.scaled(sample.task),
                captured(sample.model.backbone, lambda z: z, heads=sample.heads) as outputs,
            ):
                sample.model.backbone(**inputs)
            real, pairs = real.expand(outputs[0].shape[:2]), zip(outputs, grams)
            sizes = [torch.einsum("bthd,hde,bthe->bth", z, g.to(z), z).clamp_min(0).sqrt() for z, g in pairs]
            total = total + (torch.stack(sizes, 2) * real[:, :, None, None]).sum(1)
            tokens = tokens + real.sum(1)[:, None, None]
        moments.add(total / tokens)
    return moments.result(sample.task, "magnitude", len(sample.items))


def _zero(sample: Sample) -> torch.Tensor:
    return torch.zeros(1, device=sample.model.device)


def _gram(site: Any, heads: Heads) -> torch.Tensor:
    whole = torch.zeros(heads.num_heads, heads.head_dim, heads.head_dim)
    if site.module is None:
        return whole
    if input_width(site.module) is None:
        raise HeadwiseError(f"the magnitude of heads before {site.name}, which is no projection", "by gradient, say")
    weight = site.module.weight.detach()
    weight = weight if type(site.module).__name__ == "Conv1D" else weight.T  # (H·D, out)
    own = weight[site.start : site.start + len(site.kept) * site.head_dim]
    per_head = own.reshape(len(site.kept), site.head_dim, weight.shape[1])
    whole = whole.to(weight)
    whole[list(site.kept), : site.head_dim, : site.head_dim] = per_head @ per_head.transpose(1, 2)
    return whole


@torch.no_grad()
def confidence(sample: Sample) -> Importance:
    """A head's mean largest attention weight (Voita et al. 2019); runs with eager attention."""
    moments = Moments(sample.heads.shape)
    with eager(sample.model.backbone) as maps, sample.model.scaled(sample.task):
        for _, batch in sample.batches():
            total, tokens = _zero(sample), _zero(sample)
            for real, inputs in sample.inputs(batch):
                attention = whole_maps(maps(**inputs), sample.heads)
                real = real.expand(attention[0].shape[0], attention[0].shape[-1])
                total = total + torch.stack([(a.amax(-1) * real[:, None]).sum(-1) for a in attention], 1)
                tokens = tokens + real.sum(1)[:, None, None]
            moments.add(total / tokens)
    return moments.result(sample.task, "confidence", len(sample.items))
