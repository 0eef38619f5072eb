"""What may be cut, how an attention module runs after losing heads, and whether the cut model equals the gated one.

The module keeps its name, parameters and attributes; only its class is replaced by a subclass. Copies, state dicts and
lookups by class therefore still work.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import torch
from torch import nn

from headwise.errors import HeadwiseError, first_line
from headwise.heads.families import LAST_DROPOUTS, Part
from headwise.heads.gates import Heads, NotReached, gated, inside_block, unwrap
from headwise.heads.modules import answers
from headwise.heads.proven import proven


def take_role(module: Any, role: type) -> None:
    """Let one module run as ``role`` says."""
    if not isinstance(module, role):
        module.__class__ = _with_role(role, type(module))


@cache
def _with_role(role: type, kind: type) -> type:
    return type(kind.__name__, (role, kind), {"__module__": kind.__module__, "__qualname__": kind.__qualname__})


class HandsBiasOn(nn.Module):
    """An attention of T5 that takes its own heads' share of the position bias and hands the whole bias on."""

    o: Any
    whole: torch.Tensor | None = None  # set while a forward runs

    def compute_bias(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        self.whole = super().compute_bias(*args, **kwargs)  # type: ignore[misc]
        return self._share(self.whole)

    def forward(self, *args: Any, position_bias: torch.Tensor | None = None, **kwargs: Any) -> tuple:
        if kwargs.get("key_value_states") is not None:  # cross attention has no bias: each layer makes its own zeros
            attended, _, *rest = super().forward(*args, **kwargs)
            return attended, None, *rest
        if position_bias is not None:
            attended, _, *rest = super().forward(*args, position_bias=self._share(position_bias), **kwargs)
            return attended, position_bias, *rest
        attended, share, *rest = super().forward(*args, **kwargs)
        whole, self.whole = self.whole[:, :, -share.shape[2] :], None  # type: ignore[index]
        masked = share - self._share(whole)  # early transformers 5 adds the mask here, once for all layers
        return attended, whole + masked[:, :1], *rest

    def _share(self, bias: Any) -> torch.Tensor:
        return bias[:, list(self.o.headwise_kept)]


class Repeats(nn.Module):
    """A projection that gives the keys or values of some groups several times, as they have more heads than others."""

    headwise_runs: list[tuple[int, int]] | None = None  # first column and how many, one after the other

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        out = super().forward(*args, **kwargs)
        if self.headwise_runs is None:
            return out
        return torch.cat([out.narrow(-1, first, length) for first, length in self.headwise_runs], -1)


class TakesBias(nn.Module):
    """An attention of MPNet that takes its own heads' share of the encoder's position bias."""

    o: Any

    def forward(self, hidden_states, attention_mask=None, position_bias=None, *args: Any, **kwargs: Any) -> tuple:
        share = None if position_bias is None else position_bias[:, list(self.o.headwise_kept)]
        return super().forward(hidden_states, attention_mask, share, *args, **kwargs)


class Absent(nn.Module):
    """An attention without heads; its output is the bias of its output projection."""

    headwise_output: str | None  # the name of the output projection, where this module calls it
    headwise_returns: str  # "tuple", "list", or "bias": a tuple with the position bias in the middle
    layer_idx: int

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> tuple | list:
        self._count_tokens(hidden_states, kwargs)
        batch, length = hidden_states.shape[:2]
        attended = hidden_states.new_zeros(batch, length, 0)
        eager = getattr(getattr(self, "config", None), "_attn_implementation", None) == "eager"
        asked = kwargs.get("output_attentions") or any(value is True for value in args)  # DeBERTa's has no name
        shown = eager or asked  # no map at all would move the maps of later layers up
        weights = hidden_states.new_zeros(batch, 0, length, length) if shown else None
        if self.headwise_output is None:
            return attended, weights
        attended = getattr(self, self.headwise_output)(attended)
        for name in LAST_DROPOUTS:
            attended = getattr(self, name, nn.Identity())(attended)
        if self.headwise_returns == "bias":
            return attended, kwargs.get("position_bias"), weights
        return [attended, weights] if self.headwise_returns == "list" else (attended, weights)

    def _count_tokens(self, hidden_states: torch.Tensor, kwargs: dict) -> None:
        """Keep keys of minimal size, because caches count tokens by the keys of some layer."""
        cached = kwargs.get("past_key_values", kwargs.get("layer_past"))
        crosses = any(kwargs.get(name) is not None for name in ("key_value_states", "encoder_hidden_states"))
        if cached is not None and not crosses:
            none = hidden_states.new_zeros(len(hidden_states), 1, hidden_states.shape[1], 1)
            getattr(cached, "self_attention_cache", cached).update(none, none, self.layer_idx)


class OwnCount:
    """A configuration that overrides a few values and delegates everything else to the model's."""

    def __init__(self, config: Any, **own: Any):
        self.__dict__.update(own, _config=vars(config)["_config"] if isinstance(config, OwnCount) else config)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_config":  # copying asks before there is a configuration
            raise AttributeError(name)
        return getattr(self._config, name)


PLAIN_PACKAGES = ("torch.nn.modules.", "transformers.models.", "transformers.pytorch_utils")
PLAIN_TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def removal(mask: torch.Tensor, heads: Heads) -> torch.Tensor:
    """Validate a mask: bool ``(L, H)`` on the CPU, True = remove."""
    mask = torch.as_tensor(mask)
    if mask.dtype != torch.bool:
        raise HeadwiseError(f"a mask of {mask.dtype}", "a bool mask, True = remove", "mask.bool(), or gates == 0")
    if tuple(mask.shape) != heads.shape:
        raise HeadwiseError(f"a mask of shape {tuple(mask.shape)}", f"(layers, heads) = {heads.shape}")
    return mask.cpu()


def refuse_wrapped(model: nn.Module, purpose: str) -> None:
    """Raise if the model is wrapped, adapted or quantized, or inside `gated`."""
    if inside_block(model):
        raise HeadwiseError(
            f"{purpose} inside gated or captured", "the model outside the block", "leave the with-block first"
        )
    if any(hasattr(module, "peft_config") for module in model.modules()):
        raise HeadwiseError(
            f"{purpose} with PEFT adapters would lose the adapters",
            "the plain model",
            "model = model.merge_and_unload()",
        )
    if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
        raise HeadwiseError(f"{purpose} inside {type(model).__name__}", "the plain model", "cut first, then wrap it")
    if getattr(unwrap(model), "hf_quantizer", None) is not None:
        raise HeadwiseError(f"{purpose} of quantised weights", "floating point weights", "cut first, then quantise")


def require_plain(part: Part, name: str) -> None:
    """Raise for weights that are quantized, adapted, or not of torch's own types."""
    weight, kind = getattr(part.module, part.name), type(part.module)
    plain = kind.__module__.startswith(PLAIN_PACKAGES) and type(weight) is nn.Parameter
    if not plain or weight.dtype not in PLAIN_TYPES:
        raise HeadwiseError(
            f"{name} is a {kind.__name__} whose weight is a {type(weight).__name__} of {weight.dtype}",
            "plain weights in floating point",
            "cut before quantising or adapting",
        )


TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}  # of the largest output
HALF_TOLERANCE = 3e-2


@contextmanager
def comparing(model: nn.Module, heads: Heads, gone: torch.Tensor) -> Iterator[None]:
    """Compare outputs before and after the block; if they differ, restore the modules and raise.

    A model under construction, on the meta device, is not compared.
    """
    expected = _closed(model, heads, gone)
    before = _copied(heads)
    try:
        yield
        for tower, inputs, there in expected:
            _require_same(answers(model.get_submodule(tower), inputs), there)
    except Exception as error:
        _restore(before)
        raise HeadwiseError(
            f"heads cannot be cut out of {heads.family} models: {first_line(error)}",
            "modeling code that supports fewer heads",
            "use gates (headwise.gated) or the form masked, which work here",
        ) from error


def _closed(model: nn.Module, heads: Heads, gone: torch.Tensor) -> list[tuple[str, dict[str, Any], torch.Tensor]]:
    """The outputs of every tower that reaches all heads, with some of them closed."""
    facts = proven(model)
    if facts.why:
        return []
    outputs, gates = [], (~gone).float()
    for tower, inputs in facts.samples.items():
        runner = model.get_submodule(tower)
        inside = {id(module) for module in runner.modules()}
        if inputs and all(id(site.module) in inside for site in heads.sites if site.kept):
            with suppress(NotReached), gated(runner, gates, heads=heads):
                outputs.append((tower, inputs, answers(runner, inputs)))
    if not outputs:
        raise HeadwiseError("no sample reaches the heads, so the cut could not be verified", "inputs of this model")
    return outputs


def _require_same(outputs: torch.Tensor, expected: torch.Tensor) -> None:
    if outputs.shape != expected.shape:
        raise HeadwiseError(f"{len(outputs)} numbers in the answer", f"{len(expected)}")
    if not len(outputs):
        return
    largest = expected.abs().nan_to_num(0.0).max().clamp_min(1e-6)
    difference = ((outputs - expected).abs().nan_to_num(0.0).max() / largest).item()
    allowed = TOLERANCE.get(expected.dtype, HALF_TOLERANCE)
    if not difference <= allowed or bool((outputs.isnan() != expected.isnan()).any()):
        seen = f"its outputs differ by {difference:.1e} from those with these heads closed"
        raise HeadwiseError(seen, f"{allowed:.0e} at most")


Before = list[tuple[Any, type, dict[str, Any]]]


def _copied(heads: Heads) -> Before:
    """The class, attributes and tensors of all modules that a cut may change."""
    inside = {id(m): m for site in heads.sites if site.kept for m in (*site.attention.modules(), site.module)}
    own = ("_parameters", "_buffers", "_modules")
    return [(m, type(m), vars(m) | {name: dict(vars(m)[name]) for name in own}) for m in inside.values()]


def _restore(before: Before) -> None:
    for module, kind, values in before:
        module.__class__ = kind
        vars(module).clear()
        vars(module).update(values)
