"""Importance from repeated forwards, and controls that do not depend on the task."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from headwise.errors import HeadwiseError
from headwise.heads.attention import eager, whole_maps
from headwise.heads.families import input_width, transposed
from headwise.heads.gates import Heads, captured
from headwise.measuring.references import mean_of
from headwise.scoring.result import Importance
from headwise.scoring.sample import Sample, averaged
from headwise.scoring.stability import Blocks


def ablation(sample: Sample) -> Importance:
    """The loss that closing each head alone adds."""
    return _alone(sample, "ablation")


def mean_ablation(sample: Sample) -> Importance:
    """The loss added when a head returns its mean output: `ablation` with the mean as reference."""
    batches = (part.batch for part in sample.alone.batches())
    means_LHD = mean_of(batches, sample.model, sample.task, sample.heads)
    return _alone(replace(sample, reference=lambda items, batch: means_LHD), "mean_ablation")


@torch.no_grad()
def _alone(sample: Sample, by: str) -> Importance:
    layers, heads = sample.heads.shape
    living = sample.heads.alive.flatten().nonzero().flatten().tolist()
    sample.announce(by, 1 + len(living))
    sample = sample.replaying()

    def measure(batch: Any, reference: torch.Tensor | None) -> torch.Tensor:
        with sample.replay.batch():  # type: ignore[union-attr]
            whole = sample.losses(batch)
            change = torch.zeros(len(whole), layers * heads, dtype=torch.float64)
            for number in reversed(living):  # the last layers first: those below stay as they are
                gates = torch.ones(layers * heads)
                gates[number] = 0
                change[:, number] = (sample.losses(batch, gates.view(layers, heads), reference) - whole).double().cpu()
        return change.view(-1, layers, heads)

    return averaged(sample, by, measure, torch.Tensor.clone)


@torch.no_grad()
def all_but_one(sample: Sample) -> Importance:
    """How much of the loss of closing a whole layer a single open head restores (after Michel et al. 2019)."""
    layers, heads = sample.heads.shape
    sample.announce("all_but_one", layers * (1 + heads))
    sample = sample.replaying()

    def measure(batch: Any, reference: torch.Tensor | None) -> torch.Tensor:
        restored = []
        with sample.replay.batch():  # type: ignore[union-attr]
            for layer in reversed(range(layers)):
                gates = torch.ones(1 + heads, layers, heads)
                gates[0, layer] = 0
                gates[1:, layer] = torch.eye(heads)
                losses = [sample.losses(batch, gate, reference).float().cpu() for gate in gates]
                restored.append(losses[0][:, None] - torch.stack(losses[1:], 1))
        return torch.stack(restored[::-1], 1)

    return averaged(sample, "all_but_one", measure, torch.Tensor.clone)


# -- controls, independent of the task


def random(sample: Sample) -> Importance:
    """Random scores, different for each task: otherwise all tasks would share all heads."""
    rng = np.random.default_rng([sample.seed, 4, *sample.task.encode()])
    scores = torch.from_numpy(rng.random(sample.heads.shape)).float()
    nothing = torch.full_like(scores, torch.nan)
    return Importance(sample.task, "random", scores, nothing, 0, Blocks.none(sample.heads.shape))


@torch.no_grad()
def magnitude(sample: Sample) -> Importance:
    """The mean length of what a head adds to its layer, ‖W_O,h z_h‖."""
    grams = [_gram(site, sample.heads) for site in sample.heads.sites]

    def measure(batch: Any, reference: torch.Tensor | None) -> torch.Tensor:
        total, tokens = _zero(sample), _zero(sample)
        for real, inputs in sample.model.inputs(sample.task, batch):
            with (
                sample.model.scaled(sample.task),
                captured(sample.model.backbone, lambda z: z, heads=sample.heads) as outputs,
            ):
                sample.model.backbone(**inputs)
            real, pairs = real.expand(outputs[0].shape[:2]), zip(outputs, grams)
            sizes = [torch.einsum("bthd,hde,bthe->bth", z, g.to(z), z).clamp_min(0).sqrt() for z, g in pairs]
            total = total + (torch.stack(sizes, 2) * real[:, :, None, None]).sum(1)
            tokens = tokens + real.sum(1)[:, None, None]
        return total / tokens

    return averaged(sample, "magnitude", measure)


def _zero(sample: Sample) -> torch.Tensor:
    return torch.zeros(1, device=sample.model.device)


def _gram(site: Any, heads: Heads) -> torch.Tensor:
    whole = torch.zeros(heads.num_heads, heads.head_dim, heads.head_dim)
    if site.module is None:
        return whole
    if input_width(site.module) is None:
        raise HeadwiseError(
            f"the magnitude of heads before {site.name}, which is not a projection",
            "another estimator, such as gradient",
        )
    weight = site.module.weight.detach()
    weight = weight.full_tensor() if hasattr(weight, "full_tensor") else weight  # it may lie on several processes
    weight = weight if transposed(site.module) else weight.T  # (H·D, out)
    own = weight[site.start : site.start + len(site.kept) * site.head_dim]
    per_head = own.reshape(len(site.kept), site.head_dim, weight.shape[1])
    whole = whole.to(weight)
    whole[list(site.kept), : site.head_dim, : site.head_dim] = per_head @ per_head.transpose(1, 2)
    return whole


@torch.no_grad()
def confidence(sample: Sample) -> Importance:
    """A head's mean largest attention weight (Voita et al. 2019); runs with eager attention."""
    with eager(sample.model.backbone) as maps, sample.model.scaled(sample.task):

        def measure(batch: Any, reference: torch.Tensor | None) -> torch.Tensor:
            total, tokens = _zero(sample), _zero(sample)
            for real, inputs in sample.model.inputs(sample.task, batch):
                attention = whole_maps(maps(**inputs), sample.heads)
                real = real.expand(attention[0].shape[0], attention[0].shape[-2])
                total = total + torch.stack([(a.amax(-1) * real[:, None]).sum(-1) for a in attention], 1)
                tokens = tokens + real.sum(1)[:, None, None]
            return total / tokens

        return averaged(sample, "confidence", measure)
