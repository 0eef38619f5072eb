"""A short input for any model, derived from its configuration and the signature of its forward."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import Any

import torch
from torch import nn

from headwise.heads.families import text_config
from headwise.heads.modules import positions

LENGTH = 6  # tokens
BANDS = ("num_mel_bins", "feature_projection_input_dim", "feature_size", "input_feat_per_channel", "n_mels")
BANDS += ("input_feat_size", "input_dim")


def samples(model: nn.Module) -> Iterator[dict[str, Any]]:
    """Inputs to try, the most likely first; none if no argument of the forward is known.

    Example:
        >>> {name: tuple(value.shape) for name, value in next(samples(bert)).items()}
        {'input_ids': (1, 6)}
    """
    accepted = inspect.signature(model.forward).parameters
    config: Any = getattr(model, "config", None)
    fixed = _fixed(config, accepted)
    choices = _choices(model, config, accepted)
    if not choices and fixed.keys() <= {"use_cache"}:
        known = [name for name in ("inputs_embeds", "hidden_states") if name in accepted]
        choices = {name: [{name: _noise(1, LENGTH, _width(config))}] for name in known[:1]}
    others = {name: each for name, each in choices.items() if not name.startswith(("pixel", "input_"))}
    for tried in [choices, others] if 0 < len(others) < len(choices) else [choices]:
        for parts in product(*tried.values()):
            inputs = {name: value for part in parts for name, value in part.items()} | fixed
            if inputs.keys() - {"use_cache"}:
                yield {name: _like(model, value) for name, value in inputs.items()}


def _fixed(config: Any, accepted: Iterable[str]) -> dict[str, Any]:
    """What is the same in every sample."""
    inputs: dict[str, Any] = {"use_cache": False} if "use_cache" in accepted else {}
    if "encoder_hidden_states" in accepted:
        width = _first(config, "encoder_hidden_size", "cross_hidden_size") or _width(config)
        if getattr(config, "add_cross_attention", False) or "query_embeds" in accepted:
            inputs["encoder_hidden_states"] = _noise(1, LENGTH, width)
    return inputs | {name: make(config) for name, make in COMPANIONS.items() if name in accepted and name not in inputs}


def _choices(model: Any, config: Any, accepted: Any) -> dict[str, list[dict[str, Any]]]:
    """What may be tried for every sense that a forward takes."""
    choices: dict[str, list[dict[str, Any]]] = {}
    if "input_ids" in accepted:
        choices["text"] = [{"input_ids": ids} for ids in _texts(model)]
    if "decoder_input_ids" in accepted and getattr(config, "is_encoder_decoder", True):
        choices["decoder"] = [{"decoder_input_ids": token_ids(model)[:1]}]
    for name, make in SENSES.items():
        if name in accepted:
            choices[name] = [{name: value} for value in make(config)]
    if "input_features_mask" in accepted:
        choices["input_features"] = [_masked(each) for each in choices.get("input_features", [])]
    if "feature_lens" in accepted:
        choices["input_features"] = [_measured(each) for each in choices.get("input_features", [])]
    if "bbox" in accepted:
        choices["bbox"] = [{"bbox": torch.ones(1, LENGTH, 4, dtype=torch.long)}]
    if accepted.keys() & GRIDS.keys() and "input_ids" not in accepted:
        choices = {"patches": list(_patches(config, accepted))}
    if "spatial_shapes" in accepted:
        choices |= {"pixel_values": list(_flat_patches(config))}
    if "prompt_pixel_values" in accepted:  # above the picture, which is the lower half
        choices["pixel_values"] = [{"pixel_values": _upper(next(_pictures(config)))}]
    if "aspect_ratio_ids" in accepted:  # Mllama's pictures are tiles
        mask = {"cross_attention_mask": _tile_mask(config, 1, LENGTH)} if "cross_attention_mask" in accepted else {}
        choices["pixel_values"] = [{"pixel_values": _tiles(config), **mask}]
    elif "cross_attention_states" in accepted:
        choices["states"] = [{"cross_attention_states": _noise(1, LENGTH, _width(config))}]
    return choices


def _texts(model: Any) -> Iterator[torch.Tensor]:
    """One text; for models that read several streams of tokens, as many."""
    ids = token_ids(model)[:1]
    yield ids
    streams = _first(model.config, "num_codebooks", "num_channels")
    for number in (streams + 1, streams) if isinstance(streams, int) else ():
        yield ids[..., None].repeat(1, 1, number)
        yield ids.repeat(number, 1)


def token_ids(model: Any) -> torch.Tensor:
    """Token ids, (3, T), none of them special: a text, one that shares its first token, one that shares all others."""
    words = _vocabulary(model)
    special = set(_special_ids(model.config))
    free = [i for i in range(words) if i not in special]
    if len(free) < 2:
        raise ValueError(f"a vocabulary of {words}")
    length = min(LENGTH, positions(model))
    one = [free[i % len(free)] for i in range(length)]
    other = [one[0], *(free[-1 - i % (len(free) - 1)] for i in range(1, length))]
    return torch.tensor([one, other, [free[-1], *one[1:]]], device=_device(model))


def _vocabulary(model: Any) -> int:
    try:
        return len(model.get_input_embeddings().weight)
    except (AttributeError, NotImplementedError):
        return getattr(text_config(model.config), "vocab_size", 256)  # without one, code points are read


def _special_ids(config: Any) -> Iterable[int]:
    for part in (config, text_config(config)):
        for name, value in vars(part).items():
            if re.search(r"_token(_id|_index|s_ids)?$|_ids?$", name):
                yield from (i for i in (value if isinstance(value, list) else [value]) if isinstance(i, int))


def _masked(given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Spectra with a mask of their frames, which are the longer of their axes."""
    value = given["input_features"]
    return given | {"input_features_mask": torch.ones(1, max(value.shape[1:]), dtype=torch.long)}


def _flat_patches(config: Any) -> Iterator[dict[str, torch.Tensor]]:
    config = getattr(config, "vision_config", None) or config
    side, channels = getattr(config, "patch_size", 16), getattr(config, "num_channels", 3)
    shapes, mask = torch.tensor([[4, 4]]), torch.ones(1, 16, dtype=torch.long)
    for name in ("pixel_attention_mask", "attention_mask"):
        yield {"pixel_values": _noise(1, 16, channels * side * side), name: mask, "spatial_shapes": shapes}


def _videos(config: Any) -> Iterator[torch.Tensor]:
    size, channels = _first(config, "crop_size", "image_size") or 64, _first(config, "in_chans", "num_channels") or 3
    for frames in (_first(config, "tubelet_size") or 2, _first(config, "frames_per_clip", "num_frames") or 4):
        yield _noise(1, frames, channels, size, size)


def _series(config: Any) -> Iterator[torch.Tensor]:
    yield _noise(1, getattr(config, "context_length", 32), _first(config, "num_input_channels") or 1)
    yield _noise(1, getattr(config, "context_length", 32))


def _pictures(config: Any) -> Iterator[torch.Tensor]:
    config = getattr(config, "vision_config", None) or config
    size = getattr(config, "image_size", None) or getattr(config, "input_size", None) or 64
    height, width = size if isinstance(size, list | tuple) else (size, size)
    channels = getattr(config, "num_channels", None) or getattr(config, "in_channels", None) or 3
    yield _noise(1, channels, height, width)
    yield _noise(1, 1, channels, height, width)
    frames = getattr(config, "num_frames", None) or getattr(config, "frames_per_clip", None) or 2
    yield _noise(1, frames, channels, height, width)
    yield _noise(1, channels, 4 * height, 4 * width)


def _patches(config: Any, accepted: Iterable[str]) -> Iterator[dict[str, Any]]:
    """An image as four by four patches: as rows, as small images, in one line, or with their positions."""
    side = getattr(config, "patch_size", None) or 14
    channels = _first(config, "in_channels", "in_chans", "num_channels") or 3
    name = next((name for name in ("hidden_states", "pixel_values") if name in accepted), "hidden_states")
    more = {name: value for name, value in GRIDS.items() if name in accepted}
    for frames in dict.fromkeys((getattr(config, "temporal_patch_size", None) or 1, 1, 2)):
        yield {name: _noise(16, channels * frames * side * side), **more}
    merged = side * (_first(config, "spatial_merge_size") or 1)
    shapes = [(16, channels, side, side), (1, 16, channels, side, side), (1, channels, side, 16 * side)]
    for shape in [*shapes, (16, merged, merged, channels), (1, 16, channels * side * side)]:
        yield {name: _noise(*shape), **more}


def _spectra(config: Any) -> Iterator[torch.Tensor]:
    config = getattr(config, "audio_config", None) or getattr(config, "encoder_config", None) or config
    known = _first(config, *BANDS)
    for bands in (known,) if known else (80, 128):
        frames = 2 * (getattr(config, "max_source_positions", None) or 50)
        yield _noise(1, bands, frames)
        yield _noise(1, 64, bands)
        yield _noise(1, frames, bands)
        yield _noise(1, 1, 1024, bands)


def _waves(config: Any) -> Iterator[torch.Tensor]:
    yield _noise(1, 4000)
    yield _noise(1, 1, 4000)
    yield _noise(1, getattr(config, "max_length", 64), getattr(config, "num_mel_bins", 80))


SENSES = {
    "pixel_values": _pictures,
    "pixel_values_videos": _videos,
    "input_features": _spectra,
    "input_values": _waves,
    "past_values": _series,
}


def _rows(*sizes: str) -> Callable[[Any], torch.Tensor]:
    """Six positions of as many numbers as the first setting says that a configuration has."""
    return lambda config: _noise(1, LENGTH, _first(config, *sizes) or _width(config))


def _measured(features: dict[str, Any]) -> dict[str, Any]:
    """Spectra of all examples, one after the other, and how long each is."""
    spectra = features["input_features"][0]
    return {"input_features": spectra, "feature_lens": torch.tensor([spectra.shape[-1]])}


def _upper(picture: torch.Tensor) -> torch.Tensor:
    return picture[..., : picture.shape[-2] // 2, :]


def _tiles(config: Any) -> torch.Tensor:
    """One picture of one example, in tiles."""
    config = getattr(config, "vision_config", None) or config
    return _noise(1, 1, config.max_num_tiles, config.num_channels, config.image_size, config.image_size)


def _tile_mask(config: Any, *sizes: int) -> torch.Tensor:
    config = getattr(config, "vision_config", None) or config
    return torch.ones(*sizes, 1, config.max_num_tiles, dtype=torch.long)


def _flattened(config: Any) -> torch.Tensor:
    """Patches with their row and column before their pixels, as Pix2Struct reads them."""
    side, channels = _first(config, "patch_size") or 16, _first(config, "num_channels") or 3
    places = torch.cartesian_prod(torch.arange(1.0, 5), torch.arange(1.0, 5))
    return torch.cat([places, _noise(16, side * side * channels)], 1)[None]


# What comes with a text or a picture, or instead of one.
GRIDS = {
    "grid_thw": torch.tensor([[1, 4, 4]]),
    "image_grid_thw": torch.tensor([[1, 4, 4]]),
    "merge_sizes": torch.tensor([1]),
    "target_sizes": torch.tensor([[4, 4]]),
    "pixel_position_ids": torch.cartesian_prod(torch.arange(4), torch.arange(4))[None],
}
COMPANIONS: dict[str, Callable[[Any], torch.Tensor]] = {
    "visual_feats": _rows("visual_feat_dim"),
    "visual_pos": _rows("visual_pos_dim"),
    "prompt_pixel_values": lambda config: _upper(next(_pictures(config))),
    "prompt_masks": lambda config: _upper(next(_pictures(config))),
    "past_values_padding": lambda config: torch.zeros(1, getattr(config, "context_length", 32), dtype=torch.long),
    "freq": lambda config: torch.zeros(1, 1, dtype=torch.long),
    "noise_embeds": _rows("hidden_size"),
    "context_hidden_states": lambda config: _noise(1, LENGTH, _width(config) * len(config.target_layer_ids)),
    "query_embeds": _rows("hidden_size"),
    "latents": lambda config: _noise(1, _width(config), 4),
    "audio_mel": lambda config: _noise(1, 64, _first(config, *BANDS) or 80),
    "audio_mel_mask": lambda config: torch.zeros(1, 64, dtype=torch.bool),
    "image_attention_mask": lambda config: torch.ones(1, LENGTH, 1, dtype=torch.long),
    "states": _rows("state_dim"),
    "actions": _rows("act_dim"),
    "rewards": lambda config: _noise(1, LENGTH, 1),
    "returns_to_go": lambda config: _noise(1, LENGTH, 1),
    "timesteps": lambda config: torch.arange(LENGTH)[None],
    "aspect_ratio_ids": lambda config: torch.ones(1, 1, dtype=torch.long),
    "aspect_ratio_mask": lambda config: _tile_mask(config, 1),
    "flattened_patches": _flattened,
    "image": lambda config: next(_pictures(config)),
    "context": _rows("hidden_size"),
    "last_hidden_state": _rows("input_size"),
    "inputs": _rows("d_model"),
    "patch_embeds": lambda config: _noise(1, 4, 4, _width(config)),
}


def _first(config: Any, *names: str) -> int | None:
    return next((value for name in names if isinstance(value := getattr(config, name, None), int)), None)


def _width(config: Any) -> int:
    return _first(text_config(config), "hidden_size", "d_model", "embed_dim", "dim") or 64


def _noise(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def _device(model: nn.Module) -> torch.device:
    device = next(model.parameters()).device
    return torch.device("cpu") if device.type == "meta" else device


def _like(model: nn.Module, value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    kind = next(p.dtype for p in model.parameters() if p.is_floating_point())
    return value.to(_device(model), kind if value.is_floating_point() else value.dtype)
