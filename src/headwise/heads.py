"""Find, gate and capture the attention heads of a Hugging Face model.

Every head is touched in one place: the input of its layer's attention output projection, where the outputs of all heads
lie side by side. Scaling a head's slice there is the same mathematics as masking its attention probabilities, and holds
for every attention kernel.

Legend: B examples, T tokens, L layers, H query heads, G key-value groups, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from fnmatch import fnmatch

import torch
from torch import nn

from headwise.errors import HeadwiseError, unknown
from headwise.families import CROSS_MARKS, DECODERS, EXACT, NO_HEADS, OUTPUT_SUFFIXES, Part, input_width, qkv_parts

STACKS = ("encoder", "decoder", "cross", "text", "vision")
OLD_MASKS = ("head_mask", "decoder_head_mask", "cross_attn_head_mask")
Touch = Callable[[int, torch.Tensor], torch.Tensor | None]


@dataclass(frozen=True)
class Site:
    """One layer's attention: its output projection, and where each head lies in q, k, v and o."""

    layer: int
    name: str
    module: nn.Module
    attention: nn.Module
    kept: tuple[int, ...]  # original numbers of the heads still there
    parts: dict[str, Part] = field(repr=False)


@dataclass(frozen=True)
class Heads:
    """Where the heads of a model are.

    Example:
        >>> heads = Heads.of(model)
        >>> heads.shape, heads.head_dim, heads.num_kv_heads
        ((12, 12), 64, 12)
    """

    num_layers: int
    num_heads: int
    head_dim: int
    num_kv_heads: int
    stack: str
    family: str
    exact: bool  # q, k, v and o slices are known: training masks and cuts are possible
    shared: bool  # several layers use one set of weights (ALBERT)
    sites: tuple[Site, ...] = field(repr=False)

    @property
    def shape(self) -> tuple[int, int]:
        return self.num_layers, self.num_heads

    @property
    def alive(self) -> torch.Tensor:
        """Bool (L, H): the heads that have not been cut."""
        mask = torch.zeros(self.shape, dtype=torch.bool)
        for site in self.sites:
            mask[site.layer, list(site.kept)] = True
        return mask

    @classmethod
    def of(cls, model: nn.Module, pattern: str | None = None, stack: str | None = None) -> Heads:
        """Find every head of a model, or raise with the candidates listed; never guesses.

        Args:
            model: any Hugging Face model, also wrapped in DDP, PEFT or torch.compile.
            pattern: a glob for the output projections' names, for an architecture that is not known.
            stack: which attention of a model that has several: encoder, decoder, cross, text or vision.
        """
        inner = unwrap(model)
        config = getattr(inner, "config", None)
        family = getattr(config, "model_type", type(inner).__name__)
        if family in NO_HEADS:
            raise HeadwiseError(f"{family} models are out of reach: {NO_HEADS[family]}")
        stacks = _stacks(inner, family, pattern)
        name = _choose(stacks, stack, inner, family)
        return _build(cls, inner, family, name, stacks[name])

    def require_exact(self, purpose: str) -> None:
        """Raise unless single heads' parameters can be told apart."""
        if self.shared:
            raise HeadwiseError(
                f"{purpose} is not possible for {self.family}: its {self.num_layers} layers share one set of weights, "
                "so a head cannot be changed in one layer alone",
                hint="use gates (headwise.gated), which work per layer",
            )
        if not self.exact:
            raise HeadwiseError(
                f"{purpose} needs the q, k, v and o slices of each head, which are not verified for {self.family}",
                f"one of: {', '.join(sorted(EXACT))}",
                "use gates (headwise.gated), which work here",
            )


def unwrap(model: nn.Module) -> nn.Module:
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


@contextmanager
def gated(
    model: nn.Module, gates: torch.Tensor, *, segments: torch.Tensor | None = None, heads: Heads | None = None
) -> Iterator[Heads]:
    """Scale every head's output inside the block; gates may require gradients, and backward belongs inside.

    Args:
        model: any model `Heads.of` knows.
        gates: ``(L, H)`` for all examples alike, or ``(B, L, H)``: one set of gates per example.
        segments: ``(rows, T)`` for packed rows: the number of the example each token belongs to, -1 for none; gates
            are then ``(examples, L, H)``.
        heads: the result of ``Heads.of(model, ...)`` where the model has several stacks.

    Example:
        >>> lesion = torch.ones(12, 12)
        >>> lesion[5, 7] = 0
        >>> with gated(model, lesion):
        ...     logits = model(**batch).logits
    """
    heads = heads or Heads.of(model)
    _check_gates(gates, heads, segments)

    def touch(layer: int, out_BTHD: torch.Tensor) -> torch.Tensor:
        gate = gates[..., layer, :].to(out_BTHD.device, out_BTHD.dtype)
        if segments is not None:
            where = segments.to(gate.device)
            gate = gate[where.clamp_min(0)].masked_fill((where < 0)[..., None], 1)
        elif gate.ndim == 2:
            if out_BTHD.ndim < 4 or len(gate) != len(out_BTHD):
                raise HeadwiseError(
                    f"gates for {len(gate)} examples met head outputs of shape {tuple(out_BTHD.shape)}",
                    "one gate set per example of the batch",
                    "pass segments= for packed rows",
                )
            gate = gate[:, None]
        return out_BTHD * _present(gate, heads.sites[layer]).unsqueeze(-1)

    with touched(model, touch, heads):
        yield heads


@contextmanager
def captured(
    model: nn.Module, reduce: Callable[[torch.Tensor], torch.Tensor], *, heads: Heads | None = None
) -> Iterator[list[torch.Tensor]]:
    """Collect ``reduce(out_BTHD)`` of every layer inside the block, so that nothing large is kept.

    The list holds, per forward, one entry per layer in order. Heads that were cut away are NaN.

    Example:
        >>> with captured(model, lambda out_BTHD: out_BTHD[:, 0].detach()) as first_token:
        ...     model(**batch)
        >>> torch.stack(first_token, 1).shape  # (B, L, H, D)
        torch.Size([8, 12, 12, 64])
    """
    heads = heads or Heads.of(model)
    kept: list[torch.Tensor] = []

    def touch(layer: int, out_BTHD: torch.Tensor) -> None:
        kept.append(reduce(_whole(out_BTHD, heads.sites[layer], heads.num_heads)))

    with touched(model, touch, heads):
        yield kept


@contextmanager
def touched(model: nn.Module, touch: Touch, heads: Heads | None = None) -> Iterator[Heads]:
    """Call ``touch(layer, out_BTHD)`` on each layer's head outputs; what it returns, if anything, takes their place.

    On a cut model ``H`` counts the heads that are left. A layer that no forward reached is an error when the block
    ends: an unreached hook means results that silently ignore it.
    """
    heads = heads or Heads.of(model)
    hits = [0] * heads.num_layers
    calls = _Calls(heads)

    def hook_for(site: Site) -> Callable:
        def hook(module: nn.Module, args: tuple) -> tuple | None:
            layer = calls.layer(site)
            hits[layer] += 1
            out = touch(layer, args[0].unflatten(-1, (len(site.kept), heads.head_dim)))
            return None if out is None else (out.flatten(-2), *args[1:])

        return hook

    with ExitStack() as stack:
        stack.enter_context(_uncompiled(model))
        inner = unwrap(model)
        stack.callback(inner.register_forward_pre_hook(_refuse_old_masks, with_kwargs=True).remove)
        stack.callback(inner.register_forward_pre_hook(calls.restart).remove)
        for site in {id(site.module): site for site in heads.sites}.values():
            stack.callback(site.module.register_forward_pre_hook(hook_for(site)).remove)
        yield heads
        unreached = [site.layer for site in heads.sites if not hits[site.layer]]
        if unreached:
            raise HeadwiseError(
                f"no forward reached the heads of layers {unreached} of the {heads.stack} stack",
                "a forward of this model inside the block",
                "run model(...) inside the with-block, and not through a function compiled before it",
            )


@contextmanager
def eager(model: nn.Module) -> Iterator[Callable[..., tuple[torch.Tensor, ...]]]:
    """Attention maps: inside, the model runs eager attention, and the function given maps inputs to each layer's (B, H, T, T).

    Fused kernels never form the maps, so they are left for this block; the model's own kernel comes back after.
    """
    inner = unwrap(model)
    before = inner.config._attn_implementation

    def maps(**inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = inner(**inputs, output_attentions=True).attentions
        if not found or any(a is None for a in found):
            raise HeadwiseError(f"{type(inner).__name__} gives no attention maps", "a model with eager attention")
        return found

    inner.set_attn_implementation("eager")
    try:
        yield maps
    finally:
        inner.set_attn_implementation(before)


class _Calls:
    """Which layer a call belongs to: fixed by the module, except where layers share one (ALBERT)."""

    def __init__(self, heads: Heads):
        self.layers: dict[int, list[int]] = {}
        for site in heads.sites:
            self.layers.setdefault(id(site.module), []).append(site.layer)
        self.count = dict.fromkeys(self.layers, 0)

    def restart(self, *_: object) -> None:
        self.count = dict.fromkeys(self.count, 0)

    def layer(self, site: Site) -> int:
        layers = self.layers[id(site.module)]
        if len(layers) == 1:
            return layers[0]
        number = self.count[id(site.module)]
        self.count[id(site.module)] = number + 1
        return layers[number % len(layers)]


def _refuse_old_masks(module: nn.Module, args: tuple, kwargs: dict) -> None:
    given = [name for name in OLD_MASKS if kwargs.get(name) is not None]
    if given:
        raise HeadwiseError(
            f"{given[0]}= was passed to the model, which transformers 5 swallows without effect",
            "gates",
            "with headwise.gated(model, mask): model(...)",
        )


def _uncompiled(model: nn.Module):
    """Compiled code does not see hooks that came after it: run the original while they are in place."""
    compiled = hasattr(model, "_orig_mod") or any(
        hasattr(m, "_orig_mod") or getattr(m, "_compiled_call_impl", None) for m in unwrap(model).modules()
    )
    return torch.compiler.set_stance("force_eager") if compiled else nullcontext()


def _check_gates(gates: torch.Tensor, heads: Heads, segments: torch.Tensor | None) -> None:
    if not isinstance(gates, torch.Tensor) or not gates.is_floating_point():
        seen = f"gates of type {gates.dtype if isinstance(gates, torch.Tensor) else type(gates).__name__}"
        raise HeadwiseError(seen, "a floating point tensor", "pass mask.float()")
    per_example = gates.ndim == 3
    if gates.shape[-2:] != heads.shape or gates.ndim not in (2, 3) or (segments is not None and not per_example):
        expected = f"(layers, heads) = {heads.shape}, or (examples, {heads.num_layers}, {heads.num_heads})"
        raise HeadwiseError(f"gates of shape {tuple(gates.shape)}", expected, f"torch.ones{heads.shape}")
    if segments is not None and int(segments.max()) >= len(gates):
        raise HeadwiseError(f"segment number {int(segments.max())}", f"numbers below {len(gates)}, the gate sets given")


def _present(gate: torch.Tensor, site: Site) -> torch.Tensor:
    return gate if len(site.kept) == gate.shape[-1] else gate[..., list(site.kept)]


def _whole(out_BTHD: torch.Tensor, site: Site, num_heads: int) -> torch.Tensor:
    if len(site.kept) == num_heads:
        return out_BTHD
    shape = (*out_BTHD.shape[:-2], num_heads, out_BTHD.shape[-1])
    whole = out_BTHD.new_full(shape, float("nan"))
    whole[..., list(site.kept), :] = out_BTHD
    return whole


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
        stack = _stack_name(template, family, len(templates) > 1)
        if stack in stacks:
            raise HeadwiseError(
                f"two sets of output projections look like the {stack} stack: {stacks[stack][0][0]} and {found[0][0]}",
                "one projection per layer",
                f'Heads.of(model, pattern="{template}")',
            )
        stacks[stack] = found
    return stacks


def _stack_name(template: str, family: str, several: bool) -> str:
    parts = template.split(".")
    if any(part in CROSS_MARKS for part in parts):
        return "cross"
    for word, stack in (("vision", "vision"), ("visual", "vision"), ("text", "text"), ("language", "text")):
        if any(part.startswith(word) for part in parts):
            return stack
    if several and "decoder" in parts:
        return "decoder"
    return "decoder" if family in DECODERS else "encoder"


def _choose(stacks: dict, stack: str | None, model: nn.Module, family: str) -> str:
    if stack is None and len(stacks) == 1:
        return next(iter(stacks))
    if stack is None:
        names = sorted(stacks, key=STACKS.index)
        raise HeadwiseError(
            f"{type(model).__name__} has several attention stacks: {', '.join(names)}",
            "one of them by name",
            f'Heads.of(model, stack="{names[0]}")',
        )
    if stack not in stacks:
        raise unknown(f"stack of {type(model).__name__}", stack, stacks)
    return stack


def _not_found(model: nn.Module, family: str, pattern: str | None) -> HeadwiseError:
    linear = [n for n, m in model.named_modules() if input_width(m) is not None and any(p.isdigit() for p in n.split("."))]
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
            return value
    return None


def _build(cls, model: nn.Module, family: str, stack: str, found: list[tuple[str, nn.Module]]) -> Heads:
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
    return cls(num_layers, num_heads, head_dim, kv_heads, stack, family, exact, shared, sites)


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
            sizes[input_width(module) / kept] = name
    if not sizes:  # every head has been cut
        return getattr(config, "head_dim", None) or config.hidden_size // num_heads
    if len(sizes) != 1 or not next(iter(sizes)).is_integer():
        seen = ", ".join(f"{name}: {size:g}" for size, name in sizes.items())
        raise HeadwiseError(f"widths that do not divide into {num_heads} equal heads in every layer ({seen})", "one head size")
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
