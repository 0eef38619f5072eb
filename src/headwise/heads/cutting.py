"""Cut attention heads out of a model: smaller weights, the same outputs as with the heads gated to zero.

A cut model keeps the original (layer, head) coordinates: masks, gates and scores stay ``(L, H)``, and a second cut
composes with the first. What to do with files is in `headwise.pruning.export`.

Legend: B examples, T tokens, L layers, H query heads, G key-value groups, D head size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from headwise.errors import HeadwiseError
from headwise.heads.families import (
    BIAS_OF_ENCODER,
    BIAS_OF_FIRST,
    COUNTED_BY_CONFIG,
    GROUP_COUNTS,
    HEAD_COUNTS,
    POSITION_PROJECTIONS,
    RETURNS_LIST,
    WIDTHS,
    input_width,
    transposed,
)
from headwise.heads.gates import Heads, Site, inside_block, unwrap
from headwise.heads.remains import Absent, HandsBiasOn, OwnCount, TakesBias, take_role
from headwise.heads.selection import close_groups

PLAIN_HOMES = ("torch.nn.modules.", "transformers.models.", "transformers.pytorch_utils")
PLAIN_TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def prune(model: nn.Module, mask: torch.Tensor, stack: str | None = None) -> nn.Module:
    """Cut the heads that a mask selects out of a model, in place: True means the head is removed.

    Layers may lose different numbers of heads, or all of them; the attention block then adds its output bias only.
    Heads that are gone already may be in the mask. Make the optimizer after the cut: the parameters are new.

    Args:
        model: a model of one of the families in ``headwise.heads.families.EXACT``.
        mask: bool ``(L, H)`` in original coordinates, for instance from ``selection.bottom(scores, 0.3)``. Where heads
            share keys and values, whole groups only.
        stack: which attention of a model that has several.

    Example:
        >>> before = model.num_parameters()
        >>> prune(model, bottom(scores, 0.5)).num_parameters() < before
        True
    """
    refuse_wrapped(model, "cutting heads")
    with torch.device("cpu"):  # models under construction may stand on the meta device
        heads = Heads.of(model, stack=stack)
        heads.require_exact("cutting heads")
        gone = _whole_groups(removal(mask, heads), heads)
        for site in heads.sites:
            for part in site.parts.values():
                _require_plain(part.module, site.name)
        for site in heads.sites:
            kept = tuple(head for head in site.kept if not gone[site.layer, head])
            if kept != site.kept:
                _cut(heads, site, kept)
    return model


def fold(model: nn.Module, gates: torch.Tensor, stack: str | None = None) -> nn.Module:
    """Multiply gates into the output projections, in place: the plain model then gives what ``gated`` gave.

    Args:
        model: any model `Heads.of` knows whose layers have weights of their own.
        gates: ``(L, H)``, any numbers.
        stack: which attention of a model that has several.

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
                "heads whose outputs go straight into a projection",
                "use gates (headwise.gated), which work here",
            )
        _require_plain(site.module, site.name)
        weight: Any = site.module.weight
        columns = gates[site.layer, list(site.kept)].detach().to(weight).repeat_interleave(site.head_dim)
        axis = 0 if transposed(site.module) else 1
        with torch.no_grad():
            own = weight.narrow(axis, site.start, len(columns))
            own.mul_(columns[:, None] if axis == 0 else columns)
    return model


def removal(mask: torch.Tensor, heads: Heads) -> torch.Tensor:
    """The mask, checked: bool ``(L, H)`` on the CPU, True = remove."""
    mask = torch.as_tensor(mask)
    if mask.dtype != torch.bool:
        raise HeadwiseError(f"a mask of {mask.dtype}", "a bool mask, True = remove", "mask.bool(), or gates == 0")
    if tuple(mask.shape) != heads.shape:
        raise HeadwiseError(f"a mask of shape {tuple(mask.shape)}", f"(layers, heads) = {heads.shape}")
    return mask.cpu()


def _whole_groups(mask: torch.Tensor, heads: Heads) -> torch.Tensor:
    """The heads that will be gone, or an error that names the heads which split a key-value group."""
    gone = mask | ~heads.alive
    more, add = close_groups(gone, heads.num_kv_heads, "any")
    _, drop = close_groups(gone, heads.num_kv_heads, "all")
    if not torch.equal(more, gone):
        size = heads.num_heads // heads.num_kv_heads
        raise HeadwiseError(
            f"the mask splits key-value groups of {size} heads that share one key and value",
            f"whole groups: add the (layer, head) pairs {_listed(add)}, or drop {_listed(drop)}",
            f'mask, difference = headwise.heads.selection.close_groups(mask, {heads.num_kv_heads}, "any")  # or "all"',
        )
    return gone


def _listed(mask: torch.Tensor, most: int = 12) -> str:
    pairs = [tuple(pair) for pair in mask.nonzero().tolist()]
    return ", ".join(map(str, pairs[:most])) + (f" and {len(pairs) - most} more" if len(pairs) > most else "")


def refuse_wrapped(model: nn.Module, purpose: str) -> None:
    """Raise for a model whose weights are not plainly its own, or that is inside `gated`."""
    if inside_block(model):
        raise HeadwiseError(f"{purpose} inside gated or captured", "the model by itself", "leave the with-block first")
    if any(hasattr(module, "peft_config") for module in model.modules()):
        raise HeadwiseError(
            f"{purpose} under PEFT adapters would leave the adapters behind",
            "the plain model",
            "model = model.merge_and_unload()",
        )
    if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
        raise HeadwiseError(f"{purpose} inside {type(model).__name__}", "the plain model", "cut first, then wrap it")
    if getattr(unwrap(model), "hf_quantizer", None) is not None:
        raise HeadwiseError(f"{purpose} of quantised weights", "floating point weights", "cut first, then quantise")


def _require_plain(module: Any, name: str) -> None:
    weight, kind = module.weight, type(module)
    if (
        not kind.__module__.startswith(PLAIN_HOMES)
        or type(weight) is not nn.Parameter
        or weight.dtype not in PLAIN_TYPES
    ):
        raise HeadwiseError(
            f"{name} is a {kind.__name__} whose weight is a {type(weight).__name__} of {weight.dtype}",
            "plain weights in floating point",
            "cut before quantising or adapting",
        )


def _cut(heads: Heads, site: Site, kept: tuple[int, ...]) -> None:
    """Leave only the heads ``kept`` (original numbers) of one layer."""
    places = [site.kept.index(head) for head in kept]
    size = heads.num_heads // heads.num_kv_heads
    groups = sorted({place // size for place in places})
    _keep(site.module, site.parts["o"].axis, site.parts["o"].rows[places].flatten())
    for module, rows in _inputs(site, places, groups):
        _keep(module, int(transposed(module)), rows.flatten().sort().values)
    output: Any = site.module
    output.headwise_kept = kept
    _recount(site.attention, len(kept), len(groups), heads)
    if heads.family in BIAS_OF_FIRST:
        take_role(site.attention, HandsBiasOn)
    if heads.family in BIAS_OF_ENCODER:
        take_role(site.attention, TakesBias)
    if not kept:
        _remove(heads, site)


def _inputs(site: Site, places: list[int], groups: list[int]) -> list[tuple[nn.Module, torch.Tensor]]:
    """The projections before the heads, each with the rows of its output that stay."""
    rows: dict[nn.Module, list[torch.Tensor]] = {}
    for name in "qkv":  # fused projections hold all three
        part = site.parts[name]
        rows.setdefault(part.module, []).append(part.rows[places if name == "q" else groups])
    for name, module in site.attention.named_modules():
        if name.rsplit(".", 1)[-1] in POSITION_PROJECTIONS:
            rows[module] = [site.parts["q"].rows[places]]
    return [(module, torch.cat(found)) for module, found in rows.items()]


def _keep(module: Any, axis: int, places: torch.Tensor) -> None:
    """Shrink a projection to some places along one axis of its weight, and its bias where that is the output."""
    outputs = axis == int(transposed(module))
    for name in ("weight", "bias") if outputs and module.bias is not None else ("weight",):
        old = getattr(module, name)
        new = old.detach().index_select(axis if name == "weight" else 0, places.to(old.device))
        setattr(module, name, nn.Parameter(new, requires_grad=old.requires_grad))
    if transposed(module):
        module.nx, module.nf = module.weight.shape
    else:
        module.out_features, module.in_features = module.weight.shape


def _recount(attention: Any, num_heads: int, num_groups: int, heads: Heads) -> None:
    """Set what the attention module knows about its number of heads."""
    new = dict.fromkeys(HEAD_COUNTS, num_heads) | dict.fromkeys(GROUP_COUNTS, num_groups)
    new |= dict.fromkeys(WIDTHS, num_heads * heads.head_dim)
    for module in attention.modules():
        for name in new.keys() & vars(module).keys():
            setattr(module, name, new[name])
    if heads.family in COUNTED_BY_CONFIG:
        attention.config = OwnCount(attention.config, num_attention_heads=num_heads)


def _remove(heads: Heads, site: Site) -> None:
    """Leave of an attention without heads what it still does."""
    attention: Any = site.attention
    own_output = not site.name.endswith(".output.dense")
    if not own_output:  # BERT's kind: one module for the heads, one for the output
        attention = next(child for name, child in attention.named_children() if name != "output")
    if heads.family in BIAS_OF_FIRST and attention.has_relative_attention_bias:
        _bequeath_bias(attention, [heir.attention for heir in heads.sites[site.layer + 1 :] if heir.kept])
    if transposed(site.module):  # Conv1D cannot take an input of width zero
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
    """Give the table of position biases to the next layer that has heads."""
    for heir in heirs[:1]:
        heir.relative_attention_bias = attention.relative_attention_bias
        heir.has_relative_attention_bias = True
    attention.has_relative_attention_bias = False
    del attention.relative_attention_bias
