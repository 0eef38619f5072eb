"""Measure whether a model is causal, instead of relying on a list of architectures.

The first state of a causal model depends only on the first token, so texts with the same beginning would have the same
vector. The default pooling depends on this.
"""

from __future__ import annotations

import copy
import inspect
import re
import warnings
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from headwise.errors import HeadwiseError, HeadwiseWarning, first_line
from headwise.heads.families import declared_causal, text_config
from headwise.heads.finding import unwrap
from headwise.heads.modules import evaluating, positions
from headwise.heads.samples import token_ids
from headwise.models.loading import empty_model, find_config

ROUNDING = 1e-5  # relative; experts process tokens in groups, whose size affects the last digits
COARSE = 2e-2  # the same in half precision, where rounding and a weak dependence cannot be configuration apart
SMALL = 200_000_000  # maximum parameters of a random model for a trial
TINY = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 256,
}
SERIES = {
    "smollm": "llama",
    "stories": "llama",
    "tinyllama": "llama",
    "pythia": "gpt_neox",
}  # names without a model type

_measured: WeakKeyDictionary[nn.Module, tuple[int, bool]] = WeakKeyDictionary()
_configs: dict[str, bool] = {}


def is_causal(model: nn.Module) -> bool:
    """Whether the first state is independent of later tokens; measured once, and again after the model changes.

    If no forward is possible (meta device, a model without text input), the configuration decides, with a warning.

    Example:
        >>> is_causal(AutoModel.from_pretrained("gpt2"))
        True
    """
    inner = unwrap(model)
    state = _state(inner)
    known = _measured.get(inner)
    if known is None or known[0] != state:
        known = _measured[inner] = state, _causal(inner)
    return known[1]


def default_pooling(model: nn.Module) -> str:
    """The token that has seen the whole text: the last of a causal model, the first of any other."""
    return "last" if is_causal(model) else "cls"


def pooling_by_name(name: str, where: str | Path) -> str:
    """The default pooling of a model that is not loaded, measured on a small random model of its configuration.

    Args:
        name: name of the model.
        where: its folder or Hub name; the type of an uncached Hub model is derived from its name.
    """
    config = find_config(where) or _config_by_name((Path(where).name, name))
    return "last" if config is not None and _causal_config(config) else "cls"


def _causal(model: nn.Module) -> bool:
    if "input_ids" not in inspect.signature(model.forward).parameters:
        return False  # images and audio are bidirectional
    try:
        return _first_state_rests(model)
    except (Unmeasured, LookupError, TypeError, AttributeError, ValueError, RuntimeError, AssertionError) as error:
        declared = declared_causal(model.config)
        kind, reason = type(model).__name__, error.seen if isinstance(error, Unmeasured) else first_line(error)
        words = "causal (pooling='last')" if declared else "not causal (pooling='cls')"
        warnings.warn(
            HeadwiseWarning(f"could not measure whether {kind} is causal ({reason}); unverified, its config: {words}"),
            stacklevel=4,
        )
        return declared


class Unmeasured(HeadwiseError):
    """A forward that is impossible or uninformative."""


@torch.no_grad()
def _first_state_rests(model: nn.Module) -> bool:
    """Whether the first state is unchanged when all later tokens change."""
    if any(p.is_meta and not hasattr(model, "_hf_hook") for p in model.parameters()):
        raise Unmeasured("its weights are on the meta device")
    if positions(model) < 2:
        return False
    text, other, other_first = (_states_of(model, ids) for ids in token_ids(model))
    half = text.dtype not in (torch.float32, torch.float64)
    moved = _distance(text[0], other[0])
    if moved > (COARSE if half else ROUNDING):
        return False
    if half and moved > 0:
        raise Unmeasured(f"in {text.dtype} its first state moves by {moved:.1g}, which may be rounding")
    if not _distance(text[-1], other_first[-1]) > moved:
        raise Unmeasured("no state depends on another token")
    return True


def _states_of(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """The states (T, E) of a text, with fixed random numbers."""
    plain = {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}
    devices = [ids.device] if ids.device.type == "cuda" else []
    with evaluating(model), torch.random.fork_rng(devices=devices):
        torch.manual_seed(0)
        output = model(input_ids=ids[None], **plain)
    return getattr(output, "last_hidden_state", output[0] if isinstance(output, tuple | dict) else output)[0]


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    distance = float((one - other).double().norm() / one.double().norm().clamp_min(1e-30))
    if distance != distance:
        raise Unmeasured("its states are NaN")
    return distance


def _state(model: nn.Module) -> int:
    """A hash that changes when a model is pruned, made bidirectional, or modified."""
    config = getattr(model, "config", None)
    configuration = config.to_json_string() if config is not None and hasattr(config, "to_json_string") else str(config)
    flags = [getattr(module, "is_causal", None) for module in model.modules()]
    return hash((configuration, tuple(flags), sum(p.numel() for p in model.parameters())))


def _causal_config(config: Any) -> bool:
    """Whether models of a configuration are causal, measured once on a small random model."""
    key = config.to_json_string(use_diff=False)
    if key not in _configs:
        _configs[key] = _causal_small(config)
    return _configs[key]


def _causal_small(config: Any) -> bool:
    for small in (_narrow(config), _shallow(config)):
        try:
            return _first_state_rests(_random_model(small))
        except Exception:  # a type may fail in any way on unusual sizes
            continue
    return declared_causal(config)


def _random_model(config: Any) -> nn.Module:
    """A model with random, nonzero weights: untrained zeros could hide that tokens interact."""
    with torch.device("meta"):
        size = sum(p.numel() for p in empty_model(config).parameters())
    if size > SMALL:
        raise Unmeasured(f"{size:,} parameters, too many for a trial")
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = empty_model(config)
        for parameter in model.parameters():
            scale = 0.2 if parameter.ndim < 2 else 0.5 * parameter.shape[-1] ** -0.5
            parameter += scale * torch.randn_like(parameter)
    return model.float()


def _shallow(config: Any) -> Any:
    """The configuration with two layers per part."""
    small = copy.deepcopy(config)
    for part in _parts(small):
        layers = getattr(part, "num_hidden_layers", None)
        if isinstance(layers, int):
            for name, value in vars(part).items():
                if isinstance(value, list) and len(value) == layers:
                    setattr(part, name, value[:2])
            part.num_hidden_layers = min(2, layers)
    return small


def _narrow(config: Any) -> Any:
    """The configuration with two small layers per part."""
    small = _shallow(config)
    for part in _parts(small):
        for name, value in TINY.items():
            with suppress(Exception):  # sizes that a type derives from others or stores per layer
                if isinstance(getattr(part, name, None), int):
                    setattr(part, name, min(value, getattr(part, name)))
        for name, value in vars(part).items():
            if name.endswith("_token_id") and isinstance(value, int):
                setattr(part, name, value % TINY["vocab_size"])
    return small


def _parts(config: Any) -> list[Any]:
    inner = [getattr(config, name, None) for name in getattr(config, "sub_configs", ())]
    return [config, *(part for each in inner if each is not None for part in _parts(each))]


def _config_by_name(names: Iterable[str]) -> Any:
    """The default configuration of the type that is a prefix of a name."""
    from transformers import CONFIG_MAPPING, AutoConfig

    types = {re.sub(r"[-_.]", "", known): known for known in CONFIG_MAPPING} | SERIES
    for name in names:
        bare = re.sub(r"[-_. ]", "", name.lower())
        fitting = [known for known in types if bare.startswith(known)]
        if fitting:
            return text_config(AutoConfig.for_model(types[max(fitting, key=len)]))
    return None
