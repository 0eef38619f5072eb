"""The proven sites of a model, stack by stack: traced once for every configuration and set of modules.

Legend: L layers, H heads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from headwise.errors import first_line
from headwise.heads.families import CROSS_MARKS, EXACT, declared_causal, text_config
from headwise.heads.inside import found_inside
from headwise.heads.modules import code_of, serial
from headwise.heads.samples import samples
from headwise.heads.slices import Slice, slices
from headwise.heads.tracing import Proof, Trace, trace

WORDS = (  # stack names by prefixes of parts of a module's name
    ("qformer", ("qformer",)),
    ("vision", ("vision", "visual", "image", "pixel")),
    ("audio", ("audio", "speech", "acoustic", "sound")),
    ("text", ("text", "language")),
)


@dataclass(frozen=True)
class Placed:
    """A proof and the layer it belongs to."""

    layer: int
    name: str
    heads: int
    head_dim: int
    start: int
    inside: int = 0


@dataclass
class Proven:
    """The results of tracing a model."""

    stacks: dict[str, list[Placed]] = field(default_factory=dict)
    layers: dict[str, int] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    reached: set[str] = field(default_factory=set)  # names of the modules that a forward called
    slices: dict[str, dict[str, Slice]] = field(default_factory=dict)  # of every site whose heads have separate rows
    samples: dict[str, dict[str, Any]] = field(default_factory=dict)  # the inputs that were traced, by tower
    unseen: list[str] = field(default_factory=list)  # towers with attention that no sample reached
    unreached: dict[str, list[str]] | None = None  # stacks by name, in towers that no sample reached
    why: str = ""  # nothing could be traced


_known: dict[int, Proven] = {}


def proven(model: nn.Module, sample: dict[str, Any] | None = None) -> Proven:
    """The stacks of a model whose sites pass the proof; cached by configuration and modules."""
    key = _key(model)
    if sample is not None or key not in _known:
        why = _untraceable(model)
        if why and sample is None:
            return Proven(why=why)
        _known[key] = _found(model, sample)
    return _known[key]


def _untraceable(model: nn.Module) -> str:
    for parameter in model.parameters():
        if parameter.is_meta:
            return "its weights are on the meta device"
        if hasattr(parameter, "placements"):
            return "its weights are split over processes"
    how = getattr(getattr(model, "config", None), "_attn_implementation", None)
    if how not in (None, "eager", "sdpa"):
        return f"it runs {how} attention, whose calls cannot be traced"
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return "a CUDA graph is being recorded"
    return ""


def _key(model: Any) -> int:
    """The cache key of a trace: the configuration, and every module's name, type, code, hooks, shape and device."""
    config = getattr(model, "config", None)
    configuration = config.to_json_string() if config is not None and hasattr(config, "to_json_string") else str(config)
    parts: list[Any] = [configuration]  # the attention implementation does not matter
    for name, module in model.named_modules():
        weight = module._parameters.get("weight")
        hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
        numbers = tuple(serial(hook) for hook in hooks if not getattr(hook, "lent", False))
        code = serial(type(module)), code_of(module), numbers
        parts.append((name, code, None if weight is None else (type(weight), weight.shape, weight.device)))
    return hash(tuple(parts))


def _found(model: nn.Module, sample: dict[str, Any] | None) -> Proven:
    """Trace the whole model, and every tower that this does not reach."""
    inputs, whole, why = _first(model, [sample] if sample is not None else samples(model))
    traced, ran = whole or Trace(), {"": inputs}
    for name, tower in towers(model):
        if any(reached.startswith(f"{name}.") for reached in traced.reached):
            continue
        inputs, own, _ = _first(tower, samples(tower))
        if own is not None and (own.proofs or own.refused):
            ran[name] = inputs
            traced.proofs += [replace(proof, name=f"{name}.{proof.name}") for proof in own.proofs]
            traced.refused |= {f"{name}.{inner}": reason for inner, reason in own.refused.items()}
            traced.reached |= {f"{name}.{inner}" for inner in own.reached}
    result = _placed(model, traced, "" if traced.reached else why)
    if getattr(getattr(model, "config", None), "model_type", None) not in EXACT:
        for tower, given in ran.items():
            result.slices |= dict(_sliced(model, tower, given, traced.proofs))
    result.samples = ran
    return result


def _first(model: nn.Module, tried: Any) -> tuple[dict[str, Any], Trace | None, str]:
    """The first sample that the model accepts, and its trace."""
    why = "no input of its forward is known"
    try:
        for inputs in tried:
            try:
                traced = trace(model, inputs)
                found_inside(model, inputs, traced)
                return inputs, traced, ""
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # an unsuitable sample may fail anywhere in a model
                why = first_line(error)
    except (AttributeError, TypeError, ValueError, LookupError) as error:  # a sample that cannot be derived
        why = first_line(error)
    return {}, None, why


def _sliced(
    model: nn.Module, tower: str, inputs: dict[str, Any], proofs: list[Proof]
) -> Iterator[tuple[str, dict[str, Slice]]]:
    """The slices of the sites that a tower's sample reaches; none if its forward is not differentiable."""
    before = f"{tower}." if tower else ""
    own = [replace(p, name=p.name.removeprefix(before)) for p in proofs if p.name.startswith(before)]
    try:
        parts_by_site = slices(model.get_submodule(tower), inputs, own) if inputs and own else {}
    except torch.OutOfMemoryError:
        raise
    except Exception:  # an operation without a gradient, or one in place
        return
    for name, parts in parts_by_site.items():
        yield before + name, {k: replace(part, module=before + part.module) for k, part in parts.items()}


def _unseen(model: nn.Module, reached: set[str]) -> list[str]:
    """The outermost submodels with attention that no sample reached, and other attention, layers as stars."""
    unseen: list[str] = []
    attends = lambda module: "Attention" in type(module).__name__  # noqa: E731
    submodels = [(name, tower) for name, tower in towers(model) if any(map(attends, tower.modules()))]
    named = [(name, module) for name, module in model.named_modules() if name and attends(module)]
    inner = [(name, module) for name, module in named if not name.rpartition(".")[2].isdigit()]  # no layers
    for name, _ in (*submodels, *inner):
        inside = any(name.startswith(f"{other}.") for other in unseen)
        if not inside and not any(each == name or each.startswith(f"{name}.") for each in reached):
            unseen.append(name)
    return list(dict.fromkeys(map(_glob, unseen)))


def towers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Submodels of a model, outer ones first."""
    for name, module in model.named_modules():
        if name and hasattr(module, "config") and hasattr(module, "main_input_name"):
            yield name, module


def _placed(model: nn.Module, traced: Trace, why: str) -> Proven:
    aliases: dict[int, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        aliases.setdefault(id(module), []).append(name)
    groups: dict[tuple[str, str], list[tuple[str, Proof]]] = {}
    depth = getattr(text_config(getattr(model, "config", None)), "num_hidden_layers", None)
    for proof in traced.proofs:
        names = aliases[id(model.get_submodule(proof.name))]
        calls = sum(other.name == proof.name for other in traced.proofs)
        total = sum(_glob(other.name) == _glob(proof.name) for other in traced.proofs)
        if proof.call and len(names) == 1 and total != depth:
            continue  # a layer that uses its projection several times, or layers that share one (ALBERT)
        name = names[proof.call] if len(names) == calls else proof.name
        if re.search(r"\.\d+\.|^\d+\.", name):
            cross = "cross" if any(part in CROSS_MARKS for part in name.split(".")) else ""
            groups.setdefault((_owner(name), cross), []).append((name, proof))
    result = Proven(refused=dict(traced.refused), reached=traced.reached, why=why)
    result.unseen = _unseen(model, traced.reached | {proof.name for proof in traced.proofs} | set(traced.refused))
    for (owner, cross), members in groups.items():
        for part in _apart(members):
            name = _name(part[0][0], owner, cross, model, list(result.stacks), len(groups) > 1)
            result.stacks[name], result.layers[name] = _numbered(model, owner, part)
    return result


def _glob(name: str) -> str:
    return re.sub(r"\d+", "*", name)


def _owner(name: str) -> str:
    """The layer list that contains a module."""
    parts = name.split(".")
    return ".".join(parts[: next(i for i, part in enumerate(parts) if part.isdigit())])


def _apart(members: list[tuple[str, Proof]]) -> list[list[tuple[str, Proof]]]:
    """One stack, or several if a layer has several sets of heads."""
    inner: dict[str, list[tuple[str, Proof]]] = {}
    for name, proof in members:
        inner.setdefault(_glob(name), []).append((name, proof))
    layers = [{re.findall(r"\d+", name)[0] for name, _ in each} for each in inner.values()]
    nested = any(len(re.findall(r"\.\d+(?=\.)", f".{name}")) > 1 for name, _ in members)
    if nested or sum(map(len, layers)) == len(set().union(*layers)):
        return [members]
    return list(inner.values())


def _numbered(model: nn.Module, owner: str, members: list[tuple[str, Proof]]) -> tuple[list[Placed], int]:
    """Members with their layer numbers, and the number of layers."""
    numbers = [int(name.removeprefix(owner).split(".")[1 if owner else 0]) for name, _ in members]
    layers = len(list(model.get_submodule(owner).children())) if owner else max(numbers) + 1
    if len(set(numbers)) < len(numbers) or any(
        re.search(r"\.\d+\.", n.removeprefix(f"{owner}.{i}")) for (n, _), i in zip(members, numbers)
    ):
        order = {name: number for number, (name, _) in enumerate(model.named_modules())}
        members = sorted(members, key=lambda each: (each[1].call, order.get(each[0], 0)))
        numbers, layers = list(range(len(members))), len(members)
    placed = [
        Placed(number, name, proof.heads, proof.head_dim, proof.start, proof.inside)
        for number, (name, proof) in zip(numbers, members)
    ]
    return sorted(placed, key=lambda each: each.layer), layers


def _name(path: str, owner: str, cross: str, model: Any, taken: list[str], several: bool) -> str:
    """An unused descriptive name of a stack."""
    parts = path.split(".")
    kind = next((kind for kind, words in WORDS if any(part.lower().startswith(words) for part in parts)), "")
    if not kind:
        side = "decoder" if several and any("decoder" in part for part in parts) else ""
        kind = side or ("encoder" if several and any("encoder" in part for part in parts) else "")
    kind = kind or ("decoder" if declared_causal(getattr(model, "config", None)) else "encoder")
    for name in (cross or kind, f"{kind} {cross}".strip(), owner, f"{owner} {parts[-2]}", path):
        if name and name not in taken:
            return name
    return path
