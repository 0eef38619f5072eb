"""The one equation of every intervention on a head's output z: z' = r + g · (z - r), for a gate g and a reference r.

A lesion is g = 0 and r = 0; mean ablation, resampling and patching are g = 0 and another r; importance is the gradient
of a loss with respect to g at 1, ⟨∂L/∂z', z - r⟩; learned gates are a learned g.

Legend: B examples, T tokens, L layers, H heads, D head size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from headwise.errors import HeadwiseError
from headwise.heads.finding import Site

if TYPE_CHECKING:
    from headwise.heads.gates import Heads


def mixed(
    z_BTHD: torch.Tensor,
    site: Site,
    gates: torch.Tensor,
    reference: torch.Tensor | None = None,
    segments: torch.Tensor | None = None,
) -> torch.Tensor:
    """A layer's head outputs under gates and a reference of all layers: exactly z where g = 1 and r where g = 0."""
    gate = present(_gate(gates[..., site.layer, :], z_BTHD, segments), site).unsqueeze(-1)
    if reference is None:
        return z_BTHD * gate
    # torch.lerp is exact at both ends; r + (z - r) is not z in floating point.
    return torch.lerp(reference_of(reference, site, z_BTHD, segments), z_BTHD, gate)


def _gate(gate: torch.Tensor, z_BTHD: torch.Tensor, segments: torch.Tensor | None) -> torch.Tensor:
    """A layer's gates, ``(H,)`` or ``(B, H)``, broadcast to its heads' outputs."""
    gate = gate.to(z_BTHD.device, z_BTHD.dtype)
    if segments is not None:
        place = _places(segments, z_BTHD)
        return gate[place.clamp_min(0)].masked_fill((place < 0)[..., None], 1)
    if gate.ndim == 1:
        return gate
    _require_batch("gates", len(gate), z_BTHD, "one gate set per example of the batch")
    return gate[:, None]


def reference_of(
    reference: torch.Tensor, site: Site, z_BTHD: torch.Tensor, segments: torch.Tensor | None = None
) -> torch.Tensor:
    """A layer's reference, broadcast to its heads' outputs."""
    own = present(reference.select(-3, site.layer).to(z_BTHD.device, z_BTHD.dtype), site, -2)
    own = own[..., : z_BTHD.shape[-1]]
    if reference.ndim == 3:
        return own
    if segments is not None and reference.ndim == 4:
        return own[_places(segments, z_BTHD).clamp_min(0)]
    if reference.ndim == 5 and own.shape[1] not in (1, z_BTHD.shape[1]):
        seen = f"a reference for {own.shape[1]} tokens for head outputs of shape {tuple(z_BTHD.shape)}"
        raise HeadwiseError(seen, "a reference for each token of the batch, padding included")
    if len(own) > 1:
        _require_batch("a reference", len(own), z_BTHD, "one for each example of the batch")
    return own[:, None] if reference.ndim == 4 else own


def _require_batch(what: str, count: int, z_BTHD: torch.Tensor, expected: str) -> None:
    if z_BTHD.ndim < 4 or count != len(z_BTHD):
        seen = f"{what} for {count} examples for head outputs of shape {tuple(z_BTHD.shape)}"
        raise HeadwiseError(seen, expected, "pass segments= for packed rows")


def _places(segments: torch.Tensor, z_BTHD: torch.Tensor) -> torch.Tensor:
    """The example of every token of packed rows."""
    if z_BTHD.shape[:-2] != segments.shape:
        seen = f"segments of shape {tuple(segments.shape)} for head outputs of shape {tuple(z_BTHD.shape)}"
        raise HeadwiseError(seen, "a segment number for every token of every row, (rows, T)")
    return segments.to(z_BTHD.device)


def check_gates(gates: Any, heads: Heads, segments: torch.Tensor | None) -> None:
    """Raise if gates do not fit the heads."""
    if not isinstance(gates, torch.Tensor) or not gates.is_floating_point():
        seen = f"gates of type {gates.dtype if isinstance(gates, torch.Tensor) else type(gates).__name__}"
        raise HeadwiseError(seen, "a floating point tensor", "pass mask.float()")
    per_example = gates.ndim == 3
    if gates.shape[-2:] != heads.shape or gates.ndim not in (2, 3) or (segments is not None and not per_example):
        expected = f"(layers, heads) = {heads.shape}, or (examples, {heads.num_layers}, {heads.num_heads})"
        raise HeadwiseError(f"gates of shape {tuple(gates.shape)}", expected, f"torch.ones{heads.shape}")
    if segments is not None and int(segments.max()) >= len(gates):
        raise HeadwiseError(
            f"segment number {int(segments.max())}", f"numbers below {len(gates)}, the number of gate sets"
        )


def check_reference(reference: Any, heads: Heads) -> None:
    """Raise if a reference does not fit the heads."""
    if reference is None:
        return
    if not isinstance(reference, torch.Tensor) or not reference.is_floating_point():
        seen = f"a reference of type {reference.dtype if hasattr(reference, 'dtype') else type(reference).__name__}"
        raise HeadwiseError(seen, "a floating point tensor, such as headwise.references.mean(subject, task)")
    size = (*heads.shape, heads.head_dim)
    if tuple(reference.shape[-3:]) != size or reference.ndim not in (3, 4, 5):
        expected = f"(layers, heads, head size) = {size}, or with examples, or examples and tokens, before them"
        raise HeadwiseError(f"a reference of shape {tuple(reference.shape)}", expected)


def present(values: torch.Tensor, site: Site, axis: int = -1) -> torch.Tensor:
    """The values of the existing heads of a layer."""
    if len(site.here) == values.shape[axis]:
        return values
    # One by one: indexing with a list copies it to the device, which recorded passes cannot do.
    return (
        torch.stack([values.select(axis, head) for head in site.here], axis) if site.here else values.narrow(axis, 0, 0)
    )


def whole(out_BTHD: torch.Tensor, site: Site, num_heads: int) -> torch.Tensor:
    """A layer's head outputs with NaN for absent heads."""
    if len(site.here) == num_heads:
        return out_BTHD
    shape = (*out_BTHD.shape[:-2], num_heads, out_BTHD.shape[-1])
    every = out_BTHD.new_full(shape, float("nan"))
    every[..., list(site.here), :] = out_BTHD
    return every
