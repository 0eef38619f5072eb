"""Find the heads of a model: its output projections, verified so that a wrong map is never accepted.

Legend: L layers, H query heads, G key-value groups, D head size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from fnmatch import fnmatch
from typing import Any

import torch
from torch import nn

from headwise.errors import HeadwiseError, option, unknown
from headwise.heads.families import (
    CROSS_MARKS,
    EXACT,
    NO_HEADS,
    OUTPUT_SUFFIXES,
    Part,
    declared_causal,
    input_width,
    qkv_parts,
    transposed,
)
from headwise.heads.proven import Placed, Proven, proven
from headwise.heads.sites import Site, by_origin, origins_of
from headwise.heads.slices import Slice, common

__all__ = ["STACKS", "Site", "family_of", "find", "stacks_of", "unwrap"]
STACKS = ("encoder", "decoder", "cross", "text", "vision", "audio", "qformer")


def find(model: nn.Module, pattern: str | None, stack: str | None, sample: dict[str, Any] | None) -> dict[str, Any]:
    """The fields of `headwise.heads.gates.Heads` for a model, or an error if its heads cannot be reached."""
    inner = unwrap(model)
    family = family_of(inner)
    if family in NO_HEADS:
        raise HeadwiseError(f"{family} models are out of reach: {NO_HEADS[family]}")
    _number(getattr(inner, "config", None), "encoder", "num_attention_heads")  # numbers below one raise
    if is_cut(inner) and family in EXACT:  # proven before the cut
        return _named(inner, family, pattern, stack) | {"verified": True}
    if origins := origins_of(inner):
        chosen = stack or (next(iter(origins)) if len(stacks_of(inner)) == 1 else "")
        if chosen in origins:
            return by_origin(inner, chosen, origins[chosen]) | {"family": family}
    facts = proven(inner, sample)
    if facts.why:
        with _without_proof(facts):
            return _named(inner, family, pattern, stack) | {"verified": False}
    stacks = _matching(facts, inner, pattern)
    others = _unreached(facts, inner, family) if pattern is None else {}
    if not stacks and not others:
        raise _refusal(facts, inner, family)
    name = _choose(stacks | others, stack, inner, family)
    named = [name for stack in others.values() for name, _ in stack]
    unseen = [each for each in facts.unseen if not any(site.startswith(f"{each}.") for site in _globs(named))]
    more = {"uncovered": (*_globs(facts.refused), *unseen)}
    if name in others:
        return _measured(inner, family, name, others[name]) | more | {"verified": False}
    fields = _by_proof(inner, family, name, stacks[name], facts.layers[name])
    return _sliced(inner, fields, facts.slices) | more | {"verified": True}


def _sliced(model: nn.Module, fields: dict[str, Any], slices: dict[str, dict[str, Slice]]) -> dict[str, Any]:
    """Add the rows of every head that gradients showed, if names do not state them."""
    if fields["exact"]:
        return fields
    sites = []
    for site in fields["sites"]:
        parts = {
            name: Part(model.get_submodule(each.module), each.axis, each.rows, each.parameter)
            for name, each in slices.get(site.name, {}).items()
        }
        if parts:
            scope = model.get_submodule(common([each.module for each in slices[site.name].values()]))
            site = replace(site, parts=parts, attention=scope, group=len(site.kept) // len(parts["k"].rows))
        sites.append(site)
    exact = not fields["shared"] and all(site.name in slices for site in sites if site.kept)
    groups = max(len(site.kept) // site.group for site in sites) if exact else fields["num_kv_heads"]
    return fields | {"sites": tuple(sites), "exact": exact, "num_kv_heads": groups}


def _unreached(facts: Proven, model: nn.Module, family: str) -> dict[str, list[tuple[str, nn.Module]]]:
    """Stacks by name, for towers that no sample reaches."""
    if facts.unreached is None:
        stacks: dict[str, list[tuple[str, nn.Module]]] = {}
        with suppress(HeadwiseError):
            stacks = _stacks(model, family, None)
        facts.unreached = {}
        for stack, projections in stacks.items():
            names = [name for name, _ in projections]
            if stack not in facts.stacks and not _was_near(names[0], facts.reached):
                with suppress(HeadwiseError):
                    _measured(model, family, stack, projections)
                    facts.unreached[stack] = names
    return {stack: [(n, model.get_submodule(n)) for n in names] for stack, names in facts.unreached.items()}


def _was_near(name: str, reached: set[str]) -> bool:
    """Whether a forward reached a module's layer: it called the module, or used its weights directly."""
    parts = name.split(".")
    layer = ".".join(parts[: 1 + next(i for i, part in enumerate(parts) if part.isdigit())])
    return any(each.startswith(f"{layer}.") for each in reached)


def family_of(model: nn.Module) -> str:
    return getattr(getattr(model, "config", None), "model_type", type(model).__name__)


@contextmanager
def _without_proof(facts: Proven) -> Iterator[None]:
    """Errors about names say why nothing could be proven; unknown names require a sample from the user."""
    try:
        yield
    except HeadwiseError as error:
        if "pattern=" not in error.hint and "names no number" not in error.seen:
            raise
        seen = f"nothing could be proven ({facts.why}), and {error.seen}"
        raise HeadwiseError(seen, error.expected, "Heads.of(model, sample={...}) with inputs for this model") from None


def _named(model: nn.Module, family: str, pattern: str | None, stack: str | None) -> dict[str, Any]:
    """The map by names and configuration."""
    stacks = _stacks(model, family, pattern)
    name = _choose(stacks, stack, model, family)
    return _measured(model, family, name, stacks[name])


def _matching(facts: Proven, model: nn.Module, pattern: str | None) -> dict[str, list[Placed]]:
    """The stacks whose sites match a pattern, which must be complete (default: all stacks)."""
    if pattern is None:
        return facts.stacks
    names = {
        name for name, module in model.named_modules() if fnmatch(name, pattern) and input_width(module) is not None
    }
    proofs = {placed.name for stack in facts.stacks.values() for placed in stack}
    chosen = {name: stack for name, stack in facts.stacks.items() if any(placed.name in names for placed in stack)}
    wrong = sorted(names - proofs)
    if wrong or not chosen:
        why = facts.refused.get(wrong[0], "closing a head does not close one slice of its input") if wrong else ""
        seen = (
            f"{wrong[0]} does not contain the outputs of heads: {why}"
            if wrong
            else f"no proven site matches {pattern!r}"
        )
        raise HeadwiseError(seen, f"one of the proven sites: {', '.join(_globs(proofs)) or '(none)'}")
    for name, stack in chosen.items():
        if missing := [placed.name for placed in stack if placed.name not in names]:
            seen = f"{len(stack) - len(missing)} output projections of the {len(stack)} of the {name} stack"
            raise HeadwiseError(seen, "one per layer", f'Heads.of(model, pattern="{_globs([missing[0]])[0]}")')
    return chosen


def _globs(names: Iterable[str]) -> list[str]:
    return sorted({".".join("*" if part.isdigit() else part for part in name.split(".")) for name in names})


def _refusal(facts: Proven, model: nn.Module, family: str) -> HeadwiseError:
    if not facts.refused:
        return HeadwiseError(
            f"{family} models are out of reach: no attention was seen in a forward of {type(model).__name__}"
        )
    name, why = next(iter(facts.refused.items()))
    return HeadwiseError(f"{family} models are out of reach: {_globs([name])[0]} is behind their attention, and {why}")


def _by_proof(model: nn.Module, family: str, stack: str, placed: list[Placed], layers: int) -> dict[str, Any]:
    """By names and configuration if they agree with the proof, otherwise by the proof alone."""
    modules = {each.name: model.get_submodule(each.name) for each in placed}
    fields: dict[str, Any] = {"sites": ()}
    if all(input_width(module) for module in modules.values()):  # otherwise a norm precedes the projection
        try:
            fields = _measured(model, family, stack, list(modules.items()))
        except (HeadwiseError, RuntimeError, AttributeError) as error:  # ragged heads
            if "in the configuration" in str(error):
                raise
    measured = [(site.layer, site.name, len(site.kept), site.head_dim) for site in fields["sites"]]
    shared = len({id(getattr(module, "weight", module)) for module in modules.values()}) < len(placed)  # or tied
    if measured == [(each.layer, each.name, each.heads, each.head_dim) for each in placed]:
        return fields | {"shared": shared, "exact": fields["exact"] and not shared}
    heads = max(each.heads for each in placed)
    by_layer = {each.layer: each for each in placed}
    sites = tuple(_proven_site(model, i, by_layer.get(i)) for i in range(layers))
    groups = getattr(_stack_config(model, stack), "num_key_value_heads", None)
    sizes = {"num_layers": layers, "num_heads": heads, "head_dim": max(each.head_dim for each in placed)}
    sizes["num_kv_heads"] = groups if isinstance(groups, int) and groups and heads % groups == 0 else heads
    return sizes | {"stack": stack, "family": family, "exact": False, "shared": shared, "sites": sites}


def _proven_site(model: nn.Module, layer: int, placed: Placed | None) -> Site:
    if placed is None:
        return Site(layer, "", None, None, (), {})
    module = model.get_submodule(placed.name)
    attention = module if placed.inside else model.get_submodule(placed.name.rpartition(".")[0])
    about: dict[str, Any] = {"head_dim": placed.head_dim, "start": placed.start, "inside": placed.inside}
    return Site(layer, placed.name, module, attention, tuple(range(placed.heads)), {}, **about)


def is_cut(model: nn.Module) -> bool:
    """Whether heads were removed from a model."""
    return any(hasattr(module, "headwise_kept") for module in model.modules())


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
    family = family_of(inner)
    facts = Proven(why="cut") if is_cut(inner) and family in EXACT else proven(inner)
    if facts.why:
        with _without_proof(facts):
            return _sorted(origins_of(inner) or _stacks(inner, family, None))
    stacks = facts.stacks | _unreached(facts, inner, family)
    if not stacks:
        raise _refusal(facts, inner, family)
    return _sorted(stacks)


def _sorted(stacks: Iterable[str]) -> list[str]:
    return sorted(stacks, key=lambda name: (STACKS.index(name) if name in STACKS else len(STACKS), name))


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
    for template, projections in templates.items():
        stack = _stack_name(template, model, len(templates) > 1)
        if stack in stacks:
            raise HeadwiseError(
                f"two sets of output projections look like the {stack} stack: {stacks[stack][0][0]} and "
                f"{projections[0][0]}",
                "one projection per layer",
                f'Heads.of(model, pattern="{template}")',
            )
        stacks[stack] = projections
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
        names = _sorted(stacks)
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
    """The part of the configuration for this stack."""
    config = getattr(model, "config", None)  # modules in plain torch have none
    own = getattr(config, f"{stack}_config", None)  # text, vision, audio, qformer
    return config if own is None or isinstance(own, dict) else own


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


def _measured(model: nn.Module, family: str, stack: str, projections: list[tuple[str, nn.Module]]) -> dict[str, Any]:
    config = _stack_config(model, stack)
    num_heads = _number(config, stack, "num_attention_heads")
    if num_heads is None:
        raise HeadwiseError(f"the configuration of {family} names no number of heads", "config.num_attention_heads")
    num_layers = _number(config, stack, "num_hidden_layers") or len(projections)
    shared = family == "albert"
    projections = [projections[i] for i in _shared_order(config, projections)] if shared else projections
    if len(projections) != num_layers:
        listed = ", ".join(name for name, _ in projections[:6])
        raise HeadwiseError(
            f"{len(projections)} output projections for {num_layers} layers: {listed}",
            "one per layer",
            'Heads.of(model, pattern="...") with a glob that matches one per layer',
        )
    head_dim = _head_dim(projections, num_heads, config)
    cross = stack == "cross"
    sites = tuple(
        _site(model, family, i, name, m, num_heads, head_dim, cross) for i, (name, m) in enumerate(projections)
    )
    kv_heads = _kv_heads(sites, config, num_heads)
    sites = tuple(replace(site, group=num_heads // kv_heads) for site in sites)
    known = all(set(site.parts) == set("qkvo") for site in sites if site.kept)
    exact = known and family in EXACT and not shared
    sizes = {"num_layers": num_layers, "num_heads": num_heads, "head_dim": head_dim, "num_kv_heads": kv_heads}
    return sizes | {"stack": stack, "family": family, "exact": exact, "shared": shared, "sites": sites}


def _shared_order(config, projections: list) -> list[int]:
    if config.inner_group_num != 1:
        raise HeadwiseError(f"an ALBERT with inner_group_num={config.inner_group_num}", "inner_group_num=1")
    return [i * len(projections) // config.num_hidden_layers for i in range(config.num_hidden_layers)]


def _head_dim(projections: list[tuple[str, nn.Module]], num_heads: int, config) -> int:
    """The head size that the projections' widths agree on."""
    sizes = {}
    for name, module in projections:
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
        axis = 0 if transposed(module) else 1
        parts["o"] = Part(module, axis, torch.arange(len(kept) * head_dim).view(-1, head_dim))
    return Site(layer, name, module, attention, kept, parts, head_dim)


def _kv_heads(sites: tuple[Site, ...], config, num_heads: int) -> int:
    """Key-value groups of the uncut model: as the keys are wide, else as the configuration says."""
    whole = [site for site in sites if len(site.kept) == num_heads and "k" in site.parts]
    if whole:
        return len(whole[0].parts["k"].rows)
    return getattr(config, "num_key_value_heads", None) or num_heads
