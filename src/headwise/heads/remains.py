"""How an attention module runs after losing some or all of its heads.

The module keeps its name, parameters and attributes; only its class is replaced by a subclass. Copies, state dicts and
lookups by class therefore still work.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import nn

from headwise.heads.families import LAST_DROPOUTS


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
