"""Where the heads of a model are: its output projections, checked so that a wrong map is never taken for right.

Legend: L layers, H query heads, G key-value groups, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Any

import torch
from torch import nn

from headwise.errors import HeadwiseError, option, unknown
from headwise.families import (
    CROSS_MARKS,
    EXACT,
    NO_HEADS,
    OUTPUT_SUFFIXES,
    Part,
    declared_causal,
    input_width,
    qkv_parts,
)

STACKS = ("encoder", "decoder", "cross", "text", "vision")


@dataclass(frozen=True)
class Site:
    """One layer's attention: its output projection, and where each head lies in q, k, v and o."""

    layer: int
    name: str
    module: Any
    attention: Any
    kept: tuple[int, ...]  # original numbers of the heads still there
    parts: dict[str, Part] = field(repr=False)


def find(model: nn.Module, pattern: str | None, stack: str | None) -> dict[str, Any]:
    """The fields of `headwise.heads.Heads` for a model, or an error with the candidates listed."""
    inner = unwrap(model)
    config = getattr(inner, "config", None)
    family = getattr(config, "model_type", type(inner).__name__)
    if family in NO_HEADS:
        raise HeadwiseError(f"{family} models are out of reach: {NO_HEADS[family]}")
    stacks = _stacks(inner, family, pattern)
    name = _choose(stacks, stack, inner, family)
    return _measured(inner, family, name, stacks[name])


def unwrap(model: Any) -> Any:
    """The plain model inside torch.compile, DDP or PEFT wrappers."""
    while True:
        if hasattr(model, "_orig_mod"):
            model = model._orig_mod
        elif isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            model = model.module
        elif hasattr(model, "peft_config") and hasattr(model, "get_base_model"):
            model = model.get_base_model()
        else:
            return model


def stacks_of(model: nn.Module) -> list[str]:
    """The names of the attention stacks a model has."""
    inner = unwrap(model)
    family = getattr(getattr(inner, "config", None), "model_type", type(inner).__name__)
    return sorted(_stacks(inner, family, None), key=STACKS.index)


def _stacks(model: nn.Module, family: str, pattern: str | None) -> dict[str, list[tuple[str, nn.Module]]]:
    """Output projections by stack, each stack in layer order."""
    templates: dict[str, list[tuple[str, nn.Module]]] = {}
    for name, module in model.named_modules():
        parts = name.split(".")
        if pattern is None:
            hit = any(parts[-len(s.split(".")) :] == s.split(".") for s in OUTPUT_SUFFIXES)
        else:
            hit = fnmatch(name, pattern)
        if hit and any(p.isdigit() for p in parts) and input_width(module) is not None:
            template = ".".join("*" if p.isdigit() else p for p in parts)
            templates.setdefault(template, []).append((name, module))
    if not templates:
        raise _not_found(model, family, pattern)
    stacks: dict[str, list[tuple[str, nn.Module]]] = {}
    for template, found in templates.items():
        stack = _stack_name(template, model, len(templates) > 1)
        if stack in stacks:
            raise HeadwiseError(
                f"two sets of output projections look like the {stack} stack: {stacks[stack][0][0]} and {found[0][0]}",
                "one projection per layer",
                f'Heads.of(model, pattern="{template}")',
            )
        stacks[stack] = found
    return stacks


def _stack_name(template: str, model: Any, several: bool) -> str:
    parts = template.split(".")
    if any(part in CROSS_MARKS for part in parts):
        return "cross"
    for word, stack in (("vision", "vision"), ("visual", "vision"), ("text", "text"), ("language", "text")):
        if any(part.startswith(word) for part in parts):
            return stack
    if several and "decoder" in parts:
        return "decoder"
    return "decoder" if declared_causal(getattr(model, "config", None)) else "encoder"


def _choose(stacks: dict, stack: str | None, model: nn.Module, family: str) -> str:
    if stack is None and len(stacks) == 1:
        return next(iter(stacks))
    if stack is None:
        names = sorted(stacks, key=STACKS.index)
        raise HeadwiseError(
            f"{type(model).__name__} has several attention stacks: {', '.join(names)}",
            "one of them by name",
            option("stack", names[0]),
        )
    if stack not in stacks:
        raise unknown(f"stack of {type(model).__name__}", stack, stacks)
    return stack


def _not_found(model: nn.Module, family: str, pattern: str | None) -> HeadwiseError:
    linear = [
        n for n, m in model.named_modules() if input_width(m) is not None and any(p.isdigit() for p in n.split("."))
    ]
    candidates = sorted({".".join("*" if p.isdigit() else p for p in name.split(".")) for name in linear})
    what = f"pattern {pattern!r}" if pattern else f"the names known for attention output projections ({family})"
    return HeadwiseError(
        f"no module of {type(model).__name__} fits {what}",
        f"the projection after the heads, one per layer; candidates: {', '.join(candidates[:20]) or '(none)'}",
        f'Heads.of(model, pattern="{candidates[0]}")' if candidates else "a Transformer model",
    )


def _stack_config(model: nn.Module, stack: str):
    """The part of the configuration that speaks of this stack."""
    config = model.config
    if stack == "text":
        return getattr(config, "text_config", config)
    if stack == "vision":
        return getattr(config, "vision_config", config)
    return config


def _number(config, stack: str, what: str) -> int | None:
    """``num_attention_heads`` or ``num_hidden_layers``, under the name this configuration gives it for the stack."""
    side = "encoder" if stack == "encoder" else "decoder"
    own = {"num_attention_heads": f"{side}_attention_heads", "num_hidden_layers": f"{side}_layers"}[what]
    if getattr(config, "is_encoder_decoder", False) and stack != "encoder" and what == "num_hidden_layers":
        own_t5 = getattr(config, "num_decoder_layers", None)  # T5 names only its decoder's depth apart
        if own_t5 is not None:
            return own_t5
    for name in (own, what):
        value = getattr(config, name, None)
        if isinstance(value, int):
            if value < 1:
                raise HeadwiseError(f"{name}={value} in the configuration of the model", "1 or more")
            return value
    return None


def _measured(model: nn.Module, family: str, stack: str, found: list[tuple[str, nn.Module]]) -> dict[str, Any]:
    config = _stack_config(model, stack)
    num_heads = _number(config, stack, "num_attention_heads")
    if num_heads is None:
        raise HeadwiseError(f"the configuration of {family} names no number of heads", "config.num_attention_heads")
    num_layers = _number(config, stack, "num_hidden_layers") or len(found)
    shared = family == "albert"
    found = [found[i] for i in _shared_order(config, found)] if shared else found
    if len(found) != num_layers:
        listed = ", ".join(name for name, _ in found[:6])
        raise HeadwiseError(
            f"{len(found)} output projections for {num_layers} layers: {listed}",
            "one per layer",
            'Heads.of(model, pattern="...") with a glob that matches one per layer',
        )
    head_dim = _head_dim(found, num_heads, config)
    cross = stack == "cross"
    sites = tuple(_site(model, family, i, name, m, num_heads, head_dim, cross) for i, (name, m) in enumerate(found))
    kv_heads = _kv_heads(sites, config, num_heads)
    known = all(set(site.parts) == set("qkvo") for site in sites if site.kept)
    exact = known and family in EXACT and not shared
    sizes = {"num_layers": num_layers, "num_heads": num_heads, "head_dim": head_dim, "num_kv_heads": kv_heads}
    return sizes | {"stack": stack, "family": family, "exact": exact, "shared": shared, "sites": sites}


def _shared_order(config, found: list) -> list[int]:
    if config.inner_group_num != 1:
        raise HeadwiseError(f"an ALBERT with inner_group_num={config.inner_group_num}", "inner_group_num=1")
    return [i * len(found) // config.num_hidden_layers for i in range(config.num_hidden_layers)]


def _head_dim(found: list[tuple[str, nn.Module]], num_heads: int, config) -> int:
    """The head size that the projections' widths agree on."""
    sizes = {}
    for name, module in found:
        kept = len(getattr(module, "headwise_kept", range(num_heads)))
        if kept:
            sizes[(input_width(module) or 0) / kept] = name
    if not sizes:  # every head has been cut
        return getattr(config, "head_dim", None) or config.hidden_size // num_heads
    if len(sizes) != 1 or not next(iter(sizes)).is_integer():
        seen = ", ".join(f"{name}: {size:g}" for size, name in sizes.items())
        raise HeadwiseError(
            f"widths that do not divide into {num_heads} equal heads in every layer ({seen})", "one head size"
        )
    return int(next(iter(sizes)))


def _site(
    model: nn.Module, family: str, layer: int, name: str, module: nn.Module, num_heads: int, head_dim: int, cross: bool
) -> Site:
    parent = name.rsplit(".", 2 if name.endswith(".output.dense") else 1)[0]
    attention = model.get_submodule(parent)
    kept = tuple(getattr(module, "headwise_kept", range(num_heads)))
    parts = qkv_parts(attention, family, len(kept), head_dim, cross) if kept else {}
    if parts:
        axis = 0 if type(module).__name__ == "Conv1D" else 1
        parts["o"] = Part(module, axis, torch.arange(len(kept) * head_dim).view(-1, head_dim))
    return Site(layer, name, module, attention, kept, parts)


def _kv_heads(sites: tuple[Site, ...], config, num_heads: int) -> int:
    """Key-value groups of the uncut model: as the keys are wide, else as the configuration says."""
    whole = [site for site in sites if len(site.kept) == num_heads and "k" in site.parts]
    if whole:
        return len(whole[0].parts["k"].rows)
    return getattr(config, "num_key_value_heads", None) or num_heads
