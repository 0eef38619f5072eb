"""One layer's attention: the module that reads its heads, and the slice of each head in o, q, k and v.

With tensor parallelism each process gates and reads the heads it has; what is measured, a number or a vector for each
head, is summed over processes. A record of the attention before any cut is attached to every output projection of a
proven stack, so that pruned models, also opened from a folder, are understood without a forward.

Legend: B examples, T tokens, H heads, G key-value groups, D head size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from headwise.errors import HeadwiseError
from headwise.heads.families import Part


@dataclass(frozen=True)
class Share:
    """Which part of a layer's heads this process has."""

    rank: int
    size: int
    group: Any

    def of(self, heads: Sequence[int]) -> tuple[int, ...]:
        """This process's heads among a layer's."""
        each = len(heads) // self.size
        return tuple(heads[self.rank * each : (self.rank + 1) * each])


def share_of(module: nn.Module | None, heads: int) -> Share | None:
    """The part of the heads before a projection that this process has; None where it has all of them."""
    weight = getattr(module, "weight", None)
    for axis, placement in enumerate(getattr(weight, "placements", ())):
        if placement.is_shard(1):  # of the projection's input, which holds the heads
            mesh = weight.device_mesh  # type: ignore[union-attr]
            if heads % mesh.size(axis):
                seen = f"{heads} heads of a layer on {mesh.size(axis)} processes"
                raise HeadwiseError(seen, "as many on each", "a number of processes that divides the heads")
            return Share(mesh.get_local_rank(axis), mesh.size(axis), mesh.get_group(axis))
    return None


def summed(values: Tensor, share: Share | None) -> Tensor:
    """The sum over the processes that hold a layer's heads; each has zeros for the heads of the others."""
    if share is None:
        return values
    whole = values.detach().clone()
    torch.distributed.all_reduce(whole, group=share.group)
    return whole


def joined(values: Tensor, share: Share | None) -> Tensor:
    """Values of all heads out of each process's own, which has NaN for those of the others."""
    if share is None:
        return values
    if values.requires_grad:
        seen = "a gradient of heads' outputs that lie on several processes"
        raise HeadwiseError(seen, "outputs without gradients: captured(..., lambda z: z.detach())")
    missing = values.isnan()
    nowhere = summed(missing.float(), share) == share.size
    return summed(values.nan_to_num(0), share).masked_fill(nowhere, torch.nan)


def shared(values: Tensor | None, share: Share | None) -> Tensor | None:
    """Gates or references, whose gradients are summed over the processes that use some of them each."""
    if values is None or share is None or not values.requires_grad:
        return values
    return _Shared.apply(values, share)


class _Shared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, share: Share) -> Tensor:
        ctx.share = share
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return summed(gradients[0].contiguous(), ctx.share), None


@dataclass(frozen=True)
class Site:
    """One layer's attention: its output projection, and the slice of each head in q, k, v and o."""

    layer: int
    name: str
    module: Any
    attention: Any
    kept: tuple[int, ...]  # original numbers of the existing heads; empty in a layer without attention
    parts: dict[str, Part] = field(repr=False)
    head_dim: int = 0
    start: int = 0  # of the first head's slice in the module's input
    group: int = 1  # heads that share one key and value, before any cut
    inside: int = 0  # in how many attention calls of the module heads are reached (`headwise.heads.inside`); 0: none
    share: Share | None = None  # this process's part of the heads, where they lie on several

    @property
    def here(self) -> tuple[int, ...]:
        """The heads whose outputs this process has."""
        return self.kept if self.share is None else self.share.of(self.kept)

    def owners(self, part: Part) -> list[tuple[int, ...]]:
        """The heads of every row of a part, by original number: one head, or those of a group."""
        if len(part.rows) == len(self.kept):
            return [(head,) for head in self.kept]
        groups = sorted({head // self.group for head in self.kept})
        return [tuple(head for head in self.kept if head // self.group == group) for group in groups]

    def heads_of(self, given: torch.Tensor) -> torch.Tensor:
        """The outputs of the heads, (B, T, H, D), from the input of the module."""
        given = given.to_local() if hasattr(given, "placements") else given  # type: ignore[operator]
        size = len(self.here) * self.head_dim
        own = given if given.shape[-1] == size else given.narrow(-1, self.start, size)
        return own.unflatten(-1, (len(self.here), self.head_dim))

    def with_heads(self, given: torch.Tensor, own_BTHD: torch.Tensor) -> torch.Tensor:
        """The input of the module with other head outputs; additional columns, of a convolution, are unchanged."""
        own = own_BTHD.flatten(-2)
        if hasattr(given, "placements"):
            from torch.distributed.tensor import DTensor

            assert isinstance(given, DTensor)
            return DTensor.from_local(own, given.device_mesh, given.placements, run_check=False)
        if given.shape[-1] == own.shape[-1]:
            return own
        return torch.cat([given[..., : self.start], own, given[..., self.start + own.shape[-1] :]], -1)


@dataclass(frozen=True)
class Origin:
    """One layer's attention with all of its heads."""

    stack: str
    layer: int
    layers: int  # of the stack
    most_heads: int  # in any layer of the stack
    most_groups: int
    most_size: int  # of a head in any layer
    heads: int
    head_dim: int
    start: int
    group: int
    up: int  # how many levels above the output projection the attention module is
    parts: dict[str, tuple[str, str, int, int, list[list[int]]]]  # module, parameter, axis, H or G, runs of rows

    @classmethod
    def of(cls, heads: Any, site: Any, attention: str) -> Origin:
        """From a site of a proven model; ``attention`` is the name of its attention module."""
        inner = {id(module): name for name, module in site.attention.named_modules()}
        parts = {
            name: (inner[id(part.module)], part.name, part.axis, len(part.rows), _runs(part.rows))
            for name, part in site.parts.items()
        }
        up = len(site.name.split(".")) - len(attention.split(".")) if attention else len(site.name.split("."))
        sizes = heads.num_layers, heads.num_heads, heads.num_kv_heads, heads.head_dim
        return cls(heads.stack, site.layer, *sizes, len(site.kept), site.head_dim, site.start, site.group, up, parts)

    def to_record(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Origin:
        whole: dict[str, Any] = record | {"parts": {name: tuple(part) for name, part in record["parts"].items()}}
        return cls(**whole)

    def attention(self, model: nn.Module, name: str) -> tuple[str, nn.Module]:
        """The attention module of an output projection, by name."""
        parts = name.split(".")
        above = ".".join(parts[: len(parts) - self.up])
        return above, model.get_submodule(above)

    def parts_of(self, attention: nn.Module, kept: tuple[int, ...]) -> dict[str, Part]:
        """The slice of each remaining head."""
        rows = {name: _rows(count, runs) for name, (_, _, _, count, runs) in self.parts.items()}
        places: dict[str, list[int]] = {}
        removed: dict[tuple[str, str, int], list[torch.Tensor]] = {}
        groups = sorted({head // self.group for head in kept})
        for name, (module, parameter, axis, count, _) in self.parts.items():
            places[name] = list(kept) if count == self.heads else groups
            gone = [i for i in range(count) if i not in places[name]]
            removed.setdefault((module, parameter, axis), []).append(rows[name][gone].flatten())
        slices = {}
        for name, (module, parameter, axis, _, _) in self.parts.items():
            gone = torch.cat(removed[module, parameter, axis]).sort().values
            left = rows[name][places[name]]
            slices[name] = Part(attention.get_submodule(module), axis, left - torch.searchsorted(gone, left), parameter)
        return slices


def record_origins(model: nn.Module, heads: Any) -> None:
    """Attach a record to every output projection of a stack, before the first cut."""
    names = {id(module): name for name, module in model.named_modules()}
    for site in heads.sites:
        if site.kept and not hasattr(site.module, "headwise_origin"):
            site.module.headwise_origin = Origin.of(heads, site, names[id(site.attention)])


def by_origin(model: nn.Module, stack: str, members: list[tuple[str, Origin]]) -> dict[str, Any]:
    """The fields of `headwise.heads.gates.Heads`, except the family, from records only."""
    first = members[0][1]
    sites = [Site(layer, "", None, None, (), {}) for layer in range(first.layers)]
    for name, origin in members:
        module: Any = model.get_submodule(name)
        _, attention = origin.attention(model, name)
        kept = tuple(getattr(module, "headwise_kept", range(origin.heads)))
        parts = origin.parts_of(attention, kept) if kept else {}
        about: dict[str, Any] = {"head_dim": origin.head_dim, "start": origin.start, "group": origin.group}
        sites[origin.layer] = Site(origin.layer, name, module, attention, kept, parts, **about)
    sizes = {"num_layers": first.layers, "num_heads": first.most_heads, "num_kv_heads": first.most_groups}
    about = {"head_dim": first.most_size, "stack": stack, "exact": True, "shared": False, "verified": True}
    return sizes | about | {"sites": tuple(sites)}


def origins_of(model: nn.Module) -> dict[str, list[tuple[str, Origin]]]:
    """The output projections that carry a record, by stack."""
    origins: dict[str, list[tuple[str, Origin]]] = {}
    for name, module in model.named_modules():
        origin = vars(module).get("headwise_origin")
        if origin is not None:
            origins.setdefault(origin.stack, []).append((name, origin))
    return origins


def _runs(rows: torch.Tensor) -> list[list[int]]:
    """Consecutive numbers as [first, how many]."""
    runs: list[list[int]] = []
    for place in rows.flatten().tolist():
        if runs and place == sum(runs[-1]):
            runs[-1][1] += 1
        else:
            runs.append([place, 1])
    return runs


def _rows(count: int, runs: Iterable[Iterable[int]]) -> torch.Tensor:
    places = [torch.arange(first, first + length) for first, length in runs]
    return torch.cat(places).view(count, -1)
