"""Cut attention heads out of a model: smaller weights, the same outputs as with the heads gated to zero.

A cut model keeps the original (layer, head) coordinates: masks, gates and scores stay ``(L, H)``, and a second cut
composes with the first. `headwise.pruning.export` writes files.

Legend: B examples, T tokens, L layers, H query heads, G key-value groups, D head size.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

import torch
from torch import nn

from headwise.errors import HeadwiseError
from headwise.heads.families import (
    BIAS_OF_ENCODER,
    BIAS_OF_FIRST,
    EXACT,
    GROUP_COUNTS,
    GROUP_SIZES,
    HEAD_COUNTS,
    POSITION_PROJECTIONS,
    RETURNS_LIST,
    WIDTHS,
    Part,
    input_width,
    output_width,
    transposed,
)
from headwise.heads.gates import Heads, Site, unwrap
from headwise.heads.remains import (
    Absent,
    HandsBiasOn,
    OwnCount,
    Repeats,
    TakesBias,
    comparing,
    refuse_wrapped,
    removal,
    require_plain,
    take_role,
)
from headwise.heads.repairing import refit
from headwise.heads.sites import record_origins


def prune(
    model: nn.Module, mask: torch.Tensor, stack: str | None = None, repair: Iterable[dict[str, Any]] | None = None
) -> nn.Module:
    """Remove the heads that a mask selects from a model, in place (True: remove).

    Layers may lose different numbers of heads, or all. Removed heads may be in the mask again. Shared keys and values
    are removed with the last of their heads. Create the optimizer afterwards, because parameters are replaced.

    Args:
        model: any model with exact slices per head (``Heads.of(model).exact``).
        mask: bool ``(L, H)`` in original coordinates, for instance from ``selection.bottom(scores, 0.3)``.
        stack: the attention stack, if the model has several.
        repair: batches of inputs, a few hundred texts: the remaining output projections are refitted to the outputs of
            the whole model on them (`headwise.heads.repairing.refit`).

    Example:
        >>> before = model.num_parameters()
        >>> prune(model, bottom(scores, 0.5)).num_parameters() < before
        True
    """
    refuse_wrapped(model, "cutting heads")
    with torch.device("cpu"):  # models under construction may be on the meta device
        heads = Heads.of(model, stack=stack)
        heads.require_exact("cutting heads")
        gone = removal(mask, heads) & heads.alive
        sites = [site for site in heads.sites if gone[site.layer].any()]
        for site in sites:
            for part in site.parts.values():
                require_plain(part, site.name)
        if repair is not None:
            refit(model, mask, repair, stack)
        if heads.family in EXACT:
            _cut_all(heads, sites, gone)
        elif sites:
            with comparing(unwrap(model), heads, gone):
                record_origins(unwrap(model), heads)
                _cut_all(heads, sites, gone)
    return model


def _cut_all(heads: Heads, sites: list[Site], gone: torch.Tensor) -> None:
    for site in sites:
        _cut(heads, site, tuple(head for head in site.kept if not gone[site.layer, head]))


def fold(model: nn.Module, gates: torch.Tensor, stack: str | None = None) -> nn.Module:
    """Multiply gates into the output projections, in place; the model then equals the one inside ``gated``.

    Args:
        model: any model that `Heads.of` supports, without shared layers.
        gates: ``(L, H)``, any numbers.
        stack: the attention stack, if the model has several.

    Example:
        >>> folded = fold(copy.deepcopy(model), gates)  # equal to `with gated(model, gates)`
    """
    refuse_wrapped(model, "folding gates")
    heads = Heads.of(model, stack=stack)
    if heads.shared:
        heads.require_exact("folding gates")
    if tuple(gates.shape) != heads.shape:
        raise HeadwiseError(f"gates of shape {tuple(gates.shape)}", f"(layers, heads) = {heads.shape}")
    for site in (site for site in heads.sites if site.module is not None):
        if input_width(site.module) is None:
            raise HeadwiseError(
                f"folding gates into {site.name}, a {type(site.module).__name__} over all heads of a layer",
                "heads whose outputs are the direct input of a projection",
                "use gates (headwise.gated), which work here",
            )
        require_plain(Part(site.module, 0, torch.empty(0)), site.name)
        weight: Any = site.module.weight
        columns = gates[site.layer, list(site.kept)].detach().to(weight).repeat_interleave(site.head_dim)
        axis = 0 if transposed(site.module) else 1
        with torch.no_grad():
            own = weight.narrow(axis, site.start, len(columns))
            own.mul_(columns[:, None] if axis == 0 else columns)
    return model


def _cut(heads: Heads, site: Site, kept: tuple[int, ...]) -> None:
    """Keep only the heads ``kept`` (original numbers) of one layer."""
    known = heads.family in EXACT
    left = kept if kept or known else site.kept[:1]  # unknown modeling code needs at least one head: a silent one
    removed: dict[tuple[Any, str, int], list[torch.Tensor]] = {}
    for part in [*site.parts.values(), *(_positions(site) if known else ())]:
        gone = [row for row, own in zip(part.rows, site.owners(part)) if not set(own) & set(left)]
        removed.setdefault((part.module, part.name, part.axis), []).extend(gone)
    if left and not kept:
        _silence(site)
    counts = Counter(head // site.group for head in left)
    repeated = math.gcd(*counts.values())
    copies = {group: count // repeated for group, count in counts.items()}
    for (module, name, axis), rows in removed.items():
        if rows:
            _remove_rows(module, name, axis, torch.cat(rows))
    if site.group > 1 and left:
        _repeat(site, left, copies)
    output: Any = site.module
    output.headwise_kept = kept
    _recount(site, len(left), sum(copies.values()), repeated)
    if heads.family in BIAS_OF_FIRST:
        take_role(site.attention, HandsBiasOn)
    if heads.family in BIAS_OF_ENCODER:
        take_role(site.attention, TakesBias)
    if known and not kept:
        _remove(heads, site)


def _positions(site: Site) -> Iterator[Part]:
    """The position projections of DeBERTa."""
    for name, module in site.attention.named_modules():
        if name.rsplit(".", 1)[-1] in POSITION_PROJECTIONS:
            yield Part(module, site.parts["q"].axis, site.parts["q"].rows)


def _silence(site: Site) -> None:
    part = site.parts["o"]
    with torch.no_grad():
        part.module.weight.index_fill_(part.axis, part.rows[0].to(part.module.weight.device), 0)


def _remove_rows(module: Any, name: str, axis: int, places: torch.Tensor) -> None:
    """Remove indices from a parameter along one axis, and from the bias of a projection's outputs."""
    projects = name == "weight" and input_width(module) is not None and not hasattr(module, "num_embeddings")
    outputs = projects and axis == int(transposed(module))
    for each, along in ((name, axis), ("bias", 0)) if outputs and module.bias is not None else ((name, axis),):
        old = getattr(module, each)
        left = torch.ones(old.shape[along], dtype=torch.bool)
        left[places] = False
        new = old.detach().index_select(along, left.nonzero().flatten().to(old.device))
        setattr(module, each, nn.Parameter(new, requires_grad=old.requires_grad))
    if projects and transposed(module):
        module.nx, module.nf = module.weight.shape
    elif projects:
        module.out_features, module.in_features = module.weight.shape
    elif hasattr(module, "num_embeddings"):
        module.num_embeddings, module.embedding_dim = module.weight.shape


def _repeat(site: Site, left: tuple[int, ...], copies: dict[int, int]) -> None:
    """Repeat each key-value group in the projections as often as its heads need it."""
    groups = sorted({head // site.group for head in site.kept})
    for module in {site.parts["k"].module, site.parts["v"].module}:
        owner: dict[int, tuple[str, int]] = {}  # of the columns before the cut
        for name in "kv":
            if site.parts[name].module is module:
                rows = zip(groups, site.parts[name].rows.tolist())
                owner |= {place: (name, group) for group, places in rows for place in places}
        if any(count > 1 for count in copies.values()):
            take_role(module, Repeats)
        if isinstance(module, Repeats):
            gone = {place for place, (_, group) in owner.items() if group not in copies}
            gone |= _queries_gone(site, module, left)
            module.headwise_runs = _runs(module, owner, gone, copies)


def _queries_gone(site: Site, module: Any, left: tuple[int, ...]) -> set[int]:
    """The removed query columns of a fused projection."""
    part = site.parts["q"]
    pairs = zip(site.kept, part.rows.tolist()) if part.module is module else ()
    return {place for head, places in pairs if head not in left for place in places}


def _runs(module: Any, owner: dict, gone: set[int], copies: dict[int, int]) -> list[tuple[int, int]]:
    """Column ranges after the cut, each repeated as often as its group is needed."""
    runs, place = [], 0
    columns = (column for column in range(output_width(module) + len(gone)) if column not in gone)
    for whose, stretch in groupby(columns, key=owner.get):
        length = len(list(stretch))
        runs += [(place, length)] * (1 if whose is None else copies[whose[1]])
        place += length
    return runs


def _recount(site: Site, heads: int, groups: int, shared: int) -> None:
    """Update the attributes that count heads and key-value heads."""
    attention: Any = site.attention
    own = {part.module for part in site.parts.values()}
    for module in (
        m for m in attention.modules() if own & set(m.modules())
    ):  # but not those of a router or indexer inside
        for name, value in list(vars(module).items()):
            if type(value) is not int:
                continue
            if name in WIDTHS and value == len(site.kept) * site.head_dim:
                setattr(module, name, heads * site.head_dim)
            elif name in GROUP_SIZES and heads:
                setattr(module, name, shared)
            elif HEAD_COUNTS.search(name) and value == len(site.kept):
                setattr(module, name, heads)
            elif GROUP_COUNTS.search(name):
                setattr(module, name, groups)
        if hasattr(module, "config") and heads:  # some modules read their numbers there at every call
            numbers = {"num_attention_heads": heads, "num_key_value_heads": groups}
            known = getattr(module.config, "_config", module.config).to_dict()
            module.config = OwnCount(module.config, **{n: number for n, number in numbers.items() if n in known})


def _remove(heads: Heads, site: Site) -> None:
    """Replace an attention without heads by its remaining computation."""
    attention: Any = site.attention
    own_output = not site.name.endswith(".output.dense")
    if not own_output:  # BERT's kind: one module for the heads, one for the output
        attention = next(child for name, child in attention.named_children() if name != "output")
    if heads.family in BIAS_OF_FIRST and attention.has_relative_attention_bias:
        _bequeath_bias(attention, [heir.attention for heir in heads.sites[site.layer + 1 :] if heir.kept])
    if transposed(site.module):  # Conv1D does not accept inputs of width zero
        _replace_conv(site)
    attention.headwise_output = site.name.rsplit(".", 1)[-1] if own_output else None
    returns = {**dict.fromkeys(BIAS_OF_FIRST, "bias"), **dict.fromkeys(RETURNS_LIST, "list")}
    attention.headwise_returns = returns.get(heads.family, "tuple")
    take_role(attention, Absent)


def _replace_conv(site: Site) -> None:
    old: Any = site.module
    new: Any = nn.Linear(1, old.nf, device="meta")
    new.in_features = 0
    new.weight = nn.Parameter(old.weight.detach().T.contiguous(), requires_grad=old.weight.requires_grad)
    new.bias = old.bias
    new.headwise_kept = ()
    setattr(site.attention, site.name.rsplit(".", 1)[-1], new)


def _bequeath_bias(attention: Any, heirs: list[Any]) -> None:
    """Move the position bias table to the next layer with heads."""
    for heir in heirs[:1]:
        heir.relative_attention_bias = attention.relative_attention_bias
        heir.has_relative_attention_bias = True
    attention.has_relative_attention_bias = False
    del attention.relative_attention_bias
