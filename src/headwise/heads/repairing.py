"""Before heads are cut, let those that stay answer for them: the output projection refitted by least squares.

A layer adds W z + b, with z the outputs of its heads one after the other. For z = (z_K, z_C), kept and cut, the W_K'
and b' nearest to the whole layer's answer over given texts have a closed form, with C = cov(z) and a small ridge λ:

    W_K' = W_K + W_C C_CK (C_KK + λ)^-1        b' = b + (W_K - W_K') mean(z_K) + W_C mean(z_C)

Where a projection has no bias, C and the means are taken about zero, so the last line falls away.

Legend: N positions, W width of all heads of a layer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from headwise.errors import HeadwiseError
from headwise.heads.families import Part, input_width, transposed
from headwise.heads.gates import Heads, Site, touched
from headwise.heads.modules import evaluating
from headwise.heads.remains import refuse_wrapped, removal, require_plain

RIDGE = 1e-4  # of the mean variance of a column


@dataclass
class Moments:
    """Sums over positions of a layer's head outputs, of their products, and how many positions there were."""

    count: int = 0
    total: Any = 0.0  # (W,)
    products: Any = 0.0  # (W, W)

    def add(self, z_NW: torch.Tensor) -> None:
        z = z_NW.double()
        self.count, self.total, self.products = self.count + len(z), self.total + z.sum(0), self.products + z.T @ z

    def about(self, center: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """The mean and the covariance; about zero the mean is zero."""
        mean = self.total / self.count if center else torch.zeros_like(self.total)
        return mean, self.products / self.count - torch.outer(mean, mean)


Batches = Iterable[dict[str, Any]]


@torch.no_grad()
def refit(
    model: nn.Module, mask: torch.Tensor, on: Batches | dict[int, Moments], stack: str | None = None
) -> nn.Module:
    """Refit output projections, in place, to what they give with all heads; the heads of the mask can then be cut.

    Only layers that lose heads change. Heads of the mask keep their weights: cut them, or gate them to zero.

    Args:
        model: any model whose heads go straight into a projection.
        mask: bool ``(L, H)``: the heads to be cut.
        on: batches of inputs of the model, where positions that an ``attention_mask`` hides do not count; or what
            `moments` returned for the model as it is now, to refit copies of it for several masks.
        stack: which attention of a model that has several.

    Example:
        >>> prune(refit(model, mask, [tokenizer(texts, return_tensors="pt", padding=True)]), mask)
    """
    refuse_wrapped(model, "refitting output projections")
    heads = Heads.of(model, stack=stack)
    if heads.shared:
        heads.require_exact("refitting output projections")
    gone = removal(mask, heads) & heads.alive
    sites = [site for site in heads.sites if gone[site.layer].any()]
    for site in sites:
        if input_width(site.module) is None:
            seen = f"{site.name} is a {type(site.module).__name__}"
            raise HeadwiseError(seen, "heads whose outputs go straight into a projection, to refit it")
        require_plain(Part(site.module, 0, torch.empty(0)), site.name)
    known: Any = on if isinstance(on, dict) else moments(model, on, stack, [site.layer for site in sites])
    for site in sites:
        _refit(site, gone[site.layer], known[site.layer])
    return model


@torch.no_grad()
def moments(
    model: nn.Module, batches: Batches, stack: str | None = None, layers: Collection[int] | None = None
) -> dict[int, Moments]:
    """What `refit` needs to know of the outputs of heads over batches, by layer; of all layers, or of some."""
    heads = Heads.of(model, stack=stack)
    wanted = [site.layer for site in heads.sites if site.kept and (layers is None or site.layer in layers)]
    moments_of = {layer: Moments() for layer in wanted}
    device = next(model.parameters()).device
    for batch in batches:
        inputs = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in batch.items()}
        shown = inputs.get("attention_mask")

        def touch(layer: int, z_BTHD: torch.Tensor, shown: Any = shown) -> None:
            if layer in moments_of:
                z = z_BTHD.flatten(-2)
                if shown is not None and shown.shape == z.shape[:-1]:
                    z = z[shown.bool()]
                moments_of[layer].add(z.flatten(0, -2))

        with evaluating(model), touched(model, touch, heads):
            model(**inputs)
    if not all(each.count for each in moments_of.values()):
        raise HeadwiseError("no batches to refit output projections with", "a few hundred texts, as the model's inputs")
    return moments_of


def _refit(site: Site, gone: torch.Tensor, moments_of: Moments) -> None:
    module: Any = site.module
    bias = getattr(module, "bias", None)
    axis = 0 if transposed(module) else 1
    size = len(site.kept) * site.head_dim
    mean, covariance = moments_of.about(bias is not None)
    cut = gone[list(site.kept)].repeat_interleave(site.head_dim).to(mean.device)
    own = module.weight.narrow(axis, site.start, size)
    weight = (own.T if axis == 0 else own).double().to(mean.device)  # (out, W)
    kept_kept, cut_kept = covariance[~cut][:, ~cut], covariance[cut][:, ~cut]
    ridge = RIDGE * covariance.diagonal().mean() + torch.finfo(torch.float64).tiny
    kept_kept = kept_kept + ridge * torch.eye(len(kept_kept), dtype=mean.dtype, device=mean.device)
    more = weight[:, cut] @ torch.linalg.solve(kept_kept, cut_kept.T).T  # (out, kept)
    if bias is not None:
        bias += (weight[:, cut] @ mean[cut] - more @ mean[~cut]).to(bias)
    places = (~cut).nonzero().flatten().to(own.device) + site.start
    module.weight.index_add_(axis, places, (more.T if axis == 0 else more).to(module.weight))
