"""A layer's attention before heads were cut: used to find the remaining heads and to cut a new model.

The record is attached to every output projection of a proven stack. Pruned models, also opened from a folder, are
understood without a forward.

Legend: H heads, G key-value groups.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from headwise.heads.families import Part
from headwise.heads.sites import Site


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
        found = {}
        for name, (module, parameter, axis, _, _) in self.parts.items():
            gone = torch.cat(removed[module, parameter, axis]).sort().values
            left = rows[name][places[name]]
            found[name] = Part(attention.get_submodule(module), axis, left - torch.searchsorted(gone, left), parameter)
        return found


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
        about = {"head_dim": origin.head_dim, "start": origin.start, "group": origin.group}
        sites[origin.layer] = Site(origin.layer, name, module, attention, kept, parts, **about)
    sizes = {"num_layers": first.layers, "num_heads": first.most_heads, "num_kv_heads": first.most_groups}
    about = {"head_dim": first.most_size, "stack": stack, "exact": True, "shared": False, "verified": True}
    return sizes | about | {"sites": tuple(sites)}


def origins_of(model: nn.Module) -> dict[str, list[tuple[str, Origin]]]:
    """The output projections that carry a record, by stack."""
    found: dict[str, list[tuple[str, Origin]]] = {}
    for name, module in model.named_modules():
        origin = vars(module).get("headwise_origin")
        if origin is not None:
            found.setdefault(origin.stack, []).append((name, origin))
    return found


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
