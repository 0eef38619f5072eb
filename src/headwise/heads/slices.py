"""Which rows of which weights belong to a head, by gradients: a row belongs to a head if it changes no other head.

One forward of a sample and one backward per head, from the head's output at the last position to the outputs of all
projections and to all other parameters. Queries affect only their own position, keys and values also others. Values
enter as a weighted sum, so all columns of a value have the same gradient, unlike columns of a key.

Legend: H heads, G key-value groups, C columns of a projection's output, N positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from headwise.heads.families import SEPARATE, input_width, transposed
from headwise.heads.modules import evaluating
from headwise.heads.tracing import Proof, _plain, _watched


@dataclass(frozen=True)
class Slice:
    """One tensor of a layer's attention: ``rows[h]`` are the places along ``axis`` that belong to head or group h."""

    module: str
    parameter: str
    axis: int
    rows: torch.Tensor  # (H or G, n)


class NotApart(Exception):
    """The heads of a layer share rows; the message states why."""


def slices(model: nn.Module, inputs: dict[str, Any], proofs: list[Proof]) -> dict[str, dict[str, Slice]]:
    """For every site, where each head's q, k, v, o and other parameters lie; nothing for sites whose heads share rows.

    Example:
        >>> sorted(slices(llama, sample, trace(llama, sample).proofs)["layers.0.self_attn.o_proj"])
        ['k', 'o', 'q', 'v']
    """
    names = [proof.name for proof in proofs]
    once = {proof.name: proof for proof in proofs if names.count(proof.name) == 1 and proof.projection}
    graph = _Graph(model, once)
    with graph.on():
        graph.forward(inputs)
        graph.differentiate()
    by_site = {}
    for name, proof in once.items():
        try:
            by_site[name] = _site(model, graph, proof)
        except NotApart:
            continue
    return _others(graph, once, by_site)


@dataclass
class _Moved:
    """How a tensor affects the heads: ``heads`` (H, C) says which, ``far`` (C,) whether from other positions."""

    heads: torch.Tensor
    far: torch.Tensor
    sums: torch.Tensor  # (H, 2, C): sums of the gradient over positions, plain and weighted

    def joined(self, other: _Moved) -> _Moved:
        """With a call of the same projection on something else than the sequence, as on DeBERTa's positions."""
        return _Moved(self.heads | other.heads, self.far, self.sums)


class _Graph:
    """A forward whose projections' outputs are cut off from what came before them."""

    def __init__(self, model: nn.Module, proofs: dict[str, Proof]):
        self.model, self.proofs = model, proofs
        self.outputs: list[tuple[str, str, torch.Tensor]] = []  # projection, the site that follows, output
        self.states: dict[str, torch.Tensor] = {}  # the input of every site
        watched = [(name, module) for name, module in _watched(model) if input_width(module) is not None]
        self.projections = {name: module for name, module in watched if not isinstance(module, nn.Embedding)}
        own = {id(p) for module in self.projections.values() for p in module.parameters()}
        self.others = {n: p for n, p in model.named_parameters() if id(p) not in own and p.is_floating_point()}
        self.moved: dict[tuple[str, str], _Moved] = {}  # by site and projection
        self.moved_others: dict[str, torch.Tensor] = {}  # (H, ...), bool

    @contextmanager
    def on(self) -> Iterator[None]:
        frozen = [p for p in self.others.values() if not p.requires_grad]
        with ExitStack() as stack:
            stack.enter_context(_plain(self.model))
            stack.callback(lambda: [p.requires_grad_(False) for p in frozen])
            for parameter in frozen:
                parameter.requires_grad_(True)
            for name, module in self.projections.items():
                if name in self.proofs:
                    stack.callback(module.register_forward_pre_hook(self._reached(name)).remove)
                stack.callback(module.register_forward_hook(self._cut(name)).remove)
            yield

    def _reached(self, name: str) -> Callable:
        def hook(_: nn.Module, args: tuple) -> None:
            self.states[name] = args[0]
            self.outputs = [(p, site or name, out) for p, site, out in self.outputs]

        return hook

    def _cut(self, name: str) -> Callable:
        def hook(_: nn.Module, args: tuple, output: Any) -> Any:
            if not isinstance(output, torch.Tensor) or not output.is_floating_point():
                return None
            leaf = output.detach().requires_grad_()
            self.outputs.append((name, "", leaf))
            return leaf.clone()

        return hook

    def forward(self, inputs: dict[str, Any]) -> None:
        devices = {t.device for t in inputs.values() if isinstance(t, torch.Tensor) and t.device.type == "cuda"}
        with evaluating(self.model), torch.enable_grad(), torch.random.fork_rng(devices=list(devices)):
            torch.manual_seed(0)
            self.model(**inputs)

    def differentiate(self) -> None:
        self.outputs = [each for each in self.outputs if each[1]]
        tensors = [*(leaf for _, _, leaf in self.outputs), *self.others.values()]
        by_head = []
        for head in range(max((proof.heads for proof in self.proofs.values()), default=0)):
            ends = [self._end(proof, head) for proof in self.proofs.values() if head < proof.heads]
            ends = [end for end in ends if end is not None]
            if not ends:
                return
            by_head.append(torch.autograd.grad(sum(ends), tensors, retain_graph=True, allow_unused=True))  # type: ignore[arg-type]
        for i, (name, site, leaf) in enumerate(self.outputs):
            moved = _moved([grads[i] for grads in by_head])
            if moved is not None:
                before = self.moved.get((site, name))
                first = before is None or leaf.shape[:-1] == self.states[site].shape[:-1]
                moved = moved if before is None else moved.joined(before) if first else before.joined(moved)
                self.moved[site, name] = moved
        for i, name in enumerate(self.others, len(self.outputs)):
            grads = [grads[i] for grads in by_head]
            if any(g is not None and g.any() for g in grads):
                shape = self.others[name].shape
                rows = [torch.zeros(shape, dtype=torch.bool) if g is None else (g != 0).cpu() for g in grads]
                self.moved_others[name] = torch.stack(rows)

    def _end(self, proof: Proof, head: int) -> torch.Tensor | None:
        state = self.states.get(proof.name)
        if state is None or not state.requires_grad:
            return None
        return state.narrow(-1, proof.start + head * proof.head_dim, proof.head_dim).flatten(0, -2)[-1].sum()


def _moved(grads: list[torch.Tensor | None]) -> _Moved | None:
    some = next((g for g in grads if g is not None), None)
    if some is None:
        return None
    whole = [torch.zeros_like(some) if g is None else g for g in grads]
    gradients = torch.stack([g.flatten(0, -2) for g in whole]).float().cpu()  # (H, N, C)
    if not gradients.any():
        return None
    weights = torch.linspace(0.5, 1.5, gradients.shape[1])
    sums = torch.stack([gradients.sum(1), (gradients * weights[:, None]).sum(1)], 1)
    return _Moved((gradients != 0).any(1), ((gradients != 0).sum(1) > 1).any(0), sums)


def _site(model: nn.Module, graph: _Graph, proof: Proof) -> dict[str, Slice]:
    """The slices of one layer, or an error if heads or groups share them."""
    moved = {name: each for (site, name), each in graph.moved.items() if site == proof.name}
    columns = {name: _Columns(name, each, proof.heads) for name, each in moved.items()}
    near = {name: each.near() for name, each in columns.items() if each.has_near}
    all_far = {name: each.far() for name, each in columns.items() if each.groups}
    values = _named("v", list(all_far))
    groups = columns[values].groups if values else max((each.groups for each in columns.values()), default=0)
    far = {name: rows for name, rows in all_far.items() if len(rows) == groups}
    if not near or not far:
        raise NotApart("no queries, or no keys and values, are a head's own")
    rows: dict[str, tuple[str, torch.Tensor]] = {}
    query = _named("q", list(near)) or next(iter(near))
    rows["q"] = query, near.pop(query)
    if len(far) == 1:
        name, both = far.popitem()
        rows["k"], rows["v"] = ((name, part) for part in _keys_and_values(moved[name], both))
    else:
        flat = {name: _spread(moved[name], found[0]) for name, found in far.items()}
        value = _named("v", list(far)) or min(flat, key=lambda name: flat[name])
        rows["v"] = value, far.pop(value)
        key = _named("k", list(far)) or next(iter(far))
        rows["k"] = key, far.pop(key)
    scope = common([proof.name, *(name for name, _ in rows.values())])
    positions = {name: rows for name, rows in all_far.items() if len(rows) == proof.heads > groups}
    more = near | far | positions  # gates, projected positions
    rows |= {name.removeprefix(f"{scope}."): (name, found) for name, found in more.items()}
    named = {part: _slice(model, name, found) for part, (name, found) in rows.items()}
    here = torch.arange(proof.heads * proof.head_dim).view(proof.heads, -1) + proof.start
    module = model.get_submodule(proof.name)
    named["o"] = Slice(proof.name, "weight", 0 if transposed(module) else 1, here)
    return named


def _slice(model: nn.Module, name: str, columns: torch.Tensor) -> Slice:
    module: Any = model.get_submodule(name)
    return Slice(name, "weight", int(transposed(module)), columns)


def _named(part: str, names: list[str]) -> str | None:
    """The projection of this name, or None."""
    return next((name for name in names if name.rsplit(".", 1)[-1] in SEPARATE[part]), None)


class _Columns:
    """The columns of a projection's output, by the heads that they affect."""

    def __init__(self, name: str, moved: _Moved, heads: int):
        if moved.heads[heads:].any():
            raise NotApart(f"{name} moves heads of other layers")
        self.moved, self.heads = moved.heads[:heads], heads
        self.count = self.moved.sum(0)
        self.is_far = moved.far
        self.has_near = bool(((self.count == 1) & ~self.is_far).any())
        sizes = {int(n) for n in self.count[self.is_far & (self.count > 0)].unique()} - {heads}
        self.groups = heads // min(sizes) if sizes else int(bool((self.is_far & (self.count == heads)).any()))
        if bool(((self.count > 1) & ~self.is_far).any()):
            raise NotApart(f"columns of {name} move several heads at one position")

    def near(self) -> torch.Tensor:
        return _rows([(self.moved[h] & ~self.is_far) for h in range(self.heads)])

    def far(self) -> torch.Tensor:
        return _grouped(self.moved & self.is_far, self.groups)


def _grouped(moved_HC: torch.Tensor, groups: int) -> torch.Tensor:
    """The columns of every group, (G, n): each must affect all heads of its group and no others."""
    size = len(moved_HC) // groups
    by_group = moved_HC.view(groups, size, -1)
    own = by_group.all(1) & (moved_HC.sum(0) == size)
    if not torch.equal(own, by_group.any(1) & (moved_HC.sum(0) < len(moved_HC)) if groups > 1 else own):
        raise NotApart("columns move heads of several groups")
    return _rows(list(own))


def _rows(masks: list[torch.Tensor]) -> torch.Tensor:
    rows = [mask.nonzero().flatten() for mask in masks]
    if len({len(places) for places in rows}) != 1 or not len(rows[0]):
        raise NotApart("heads have different numbers of rows")
    return torch.stack(rows)


def _keys_and_values(moved: _Moved, both: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Columns of keys and of values in one projection; halves, in this order, where gradients do not say."""
    head = int(moved.heads[:, both[0]].any(1).nonzero()[0])
    sums = moved.sums[head][:, both[0]]  # (2, n)
    for reference in (sums[:, -1:], sums[:, :1]):
        values = ((sums - reference).abs() <= 1e-4 * reference.abs() + 1e-9).all(0)
        if 1 < int(values.sum()) < len(values):
            return both[:, ~values], both[:, values]
    half = both.shape[1] // 2
    return both[:, :half], both[:, half:]


def _spread(moved: _Moved, columns: torch.Tensor) -> float:
    """How far the gradients of columns are from one value: 0 for values."""
    head = int(moved.heads[:, columns].any(1).nonzero()[0])
    sums = moved.sums[head][:, columns]
    return float(((sums.amax(1) - sums.amin(1)) / sums.abs().amax(1).clamp_min(1e-12)).max())


def _others(
    graph: _Graph, proofs: dict[str, Proof], by_site: dict[str, dict[str, Slice]]
) -> dict[str, dict[str, Slice]]:
    """With parameters beside projections: a bias of each head, a sink; those that all heads share are left alone."""
    scopes = {site: common([each.module for each in parts.values()]) for site, parts in by_site.items()}
    for name, moved in graph.moved_others.items():
        inside = [site for site, scope in scopes.items() if name.startswith(f"{scope}.")]
        site = max(inside, key=lambda site: len(scopes[site]), default=None)
        moved = moved[: proofs[site].heads] if site else moved
        if moved.any(0).eq(moved.all(0)).all():  # shared by all heads
            continue
        if site is None:
            continue  # a table that several layers read
        try:
            module, _, parameter = name.rpartition(".")
            axis, rows = _axis(name, moved, len(by_site[site]["k"].rows))
            by_site[site][name.removeprefix(f"{scopes[site]}.")] = Slice(module, parameter, axis, rows)
        except NotApart:
            del by_site[site], scopes[site]
    return by_site


def _axis(name: str, moved: torch.Tensor, groups: int) -> tuple[int, torch.Tensor]:
    """The axis of a parameter that heads or groups partition."""
    for axis in range(moved.ndim - 1):
        by_place = moved.movedim(axis + 1, 1).unsqueeze(-1).flatten(2).any(2)  # (H, size)
        if by_place.any(0).eq(by_place.all(0)).all():
            continue
        if (by_place.sum(0) <= 1).all():
            return axis, _rows(list(by_place))
        return axis, _grouped(by_place, groups)
    raise NotApart(f"{name} does not divide into heads")


def common(names: list[str]) -> str:
    """The innermost module that contains all of them."""
    shared = []
    for parts in zip(*(name.split(".") for name in names)):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return ".".join(shared)
