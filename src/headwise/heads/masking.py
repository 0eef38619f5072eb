"""Attention under another mask: of chosen heads in place of their own, or beside a forward that stays as it is.

Legend: B examples, T tokens (queries), K keys, H heads, D head size.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from headwise.errors import HeadwiseError
from headwise.heads.finding import unwrap
from headwise.heads.gates import Heads, touched
from headwise.heads.sites import Site

Allowed = Callable[[Site, torch.Tensor, torch.Tensor], torch.Tensor]
"""A site, the places of queries (T, 1) and of keys (1, K), to what may be attended to: bool (T, K) or (H, T, K)."""


@contextmanager
def masked(model: nn.Module, allowed: Allowed, heads: Heads | None = None) -> Iterator[None]:
    """Let heads attend only to what ``allowed`` says, beyond the model's own mask, inside the block.

    Example:
        >>> with masked(model, lambda site, query, key: key > query - 8):
        ...     model(**batch)  # no head sees further back than eight tokens
    """
    heads = heads or Heads.of(model)

    def hook_of(site: Site) -> Callable:
        def hook(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
            return (), _with_mask(module, args, kwargs, site, allowed)

        return hook

    with ExitStack() as stack:
        for site, module in _attentions(model, heads):
            stack.callback(module.register_forward_pre_hook(hook_of(site), with_kwargs=True).remove)
        yield


@contextmanager
def beside(
    model: nn.Module,
    allowed: Allowed,
    take: Callable[[int, torch.Tensor], None],
    heads: Heads,
    touch: Callable[[int, torch.Tensor], torch.Tensor | None] = lambda layer, z_BTHD: None,
) -> Iterator[None]:
    """Call ``take(layer, z_BTHD)`` with what heads would return under another mask, before each layer's own attention.

    The forward itself is unchanged but for ``touch``, which works as in `headwise.heads.gates.touched`.
    """
    aside: list[int] = []

    def either(layer: int, z_BTHD: torch.Tensor) -> torch.Tensor | None:
        if not aside:
            return touch(layer, z_BTHD)
        take(layer, z_BTHD)
        return None

    def hook_of(site: Site) -> Callable:
        def hook(module: nn.Module, args: tuple, kwargs: dict) -> None:
            given = _with_mask(module, args, kwargs, site, allowed)
            aside.append(site.layer)
            try:
                with torch.no_grad():  # the cache must not see these keys
                    module.forward(**{name: v for name, v in given.items() if not name.startswith("past_key")})
            finally:
                aside.pop()

        return hook

    with touched(model, either, heads), ExitStack() as stack:
        for site, module in _attentions(model, heads):
            stack.callback(module.register_forward_pre_hook(hook_of(site), with_kwargs=True).remove)
        yield


def _with_mask(module: nn.Module, args: tuple, kwargs: dict, site: Site, allowed: Allowed) -> dict[str, Any]:
    """The arguments of an attention module, by name, with a mask that is added to scores: (B or 1, 1 or H, T, K)."""
    names = [name for name in inspect.signature(module.forward).parameters if name not in ("args", "kwargs")]
    given = {**dict(zip(names, args)), **kwargs}
    states, mask = given[names[0]], given.get("attention_mask")
    if mask is not None and mask.ndim != 4:
        raise HeadwiseError(f"an attention mask of {mask.ndim} dimensions", "one of eager or sdpa attention, with 4")
    cache = next((v for name, v in given.items() if name.startswith("past_key") and v is not None), None)
    before = cache.get_seq_length(getattr(module, "layer_idx", 0)) if cache is not None else 0
    queries = states.shape[-2]
    keys = before + queries if mask is None else mask.shape[-1]
    query = torch.arange(keys - queries, keys, device=states.device)[:, None]
    key = torch.arange(keys, device=states.device)[None]
    may = allowed(site, query, key)
    lowest = torch.finfo(states.dtype).min
    if mask is None:  # the kernel's own causal mask, which it leaves out where another is given
        may = may & (key <= query) if getattr(module, "is_causal", False) else may
        mask = torch.zeros(1, 1, queries, keys, dtype=states.dtype, device=states.device)
    elif mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=states.dtype).masked_fill(~mask, lowest)
    return {**given, "attention_mask": mask.masked_fill(~may.view(1, -1, queries, keys), lowest)}


def _attentions(model: nn.Module, heads: Heads) -> list[tuple[Site, nn.Module]]:
    """The attention module around each site: the nearest one that takes an attention mask."""
    inner, attentions = unwrap(model), []
    for site in heads.sites:
        name = site.name if site.kept else ""
        while name and "attention_mask" not in inspect.signature(inner.get_submodule(name).forward).parameters:
            name = name.rpartition(".")[0]
        if name:
            attentions.append((site, inner.get_submodule(name)))
        elif site.kept:
            raise HeadwiseError(f"no module around {site.name} that takes an attention mask", "a model with one")
    return attentions
