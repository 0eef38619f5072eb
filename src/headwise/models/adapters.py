"""PEFT adapters of an encoder: saved next to the plain base model, merged where a plain model is required."""

from __future__ import annotations

import copy
from importlib import import_module
from pathlib import Path
from typing import Any

from headwise.errors import HeadwiseError, first_line

ADAPTER = "adapter"  # the folder next to encoder/


def has_adapters(encoder: Any) -> bool:
    """Whether an encoder is wrapped by PEFT."""
    return hasattr(encoder, "peft_config") and hasattr(encoder, "get_base_model")


def merged(encoder: Any) -> Any:
    """A copy with adapters merged into the weights; an encoder without adapters is returned unchanged.

    Example:
        >>> model.encoder = merged(model.encoder)  # same predictions, plain encoder
    """
    if not has_adapters(encoder):
        return encoder
    _require_layers(encoder, "merged")
    return copy.deepcopy(encoder).merge_and_unload()


def save_adapters(encoder: Any, folder: Path) -> Any:
    """Write the adapters into ``folder/adapter`` and return the plain base encoder."""
    _require_layers(encoder, "saved beside a plain encoder")
    encoder.save_pretrained(folder / ADAPTER)
    (folder / ADAPTER / "README.md").unlink(missing_ok=True)  # an empty card
    return copy.deepcopy(encoder).unload()


def open_adapters(encoder: Any, folder: Path) -> Any:
    """The encoder with the adapters of a folder, if there are any."""
    path = folder / ADAPTER
    if not path.is_dir():
        return encoder
    if not (path / "adapter_model.safetensors").is_file():
        raise HeadwiseError(f"no adapter_model.safetensors in {path}", "the folder as it was saved")
    try:
        peft = import_module("peft")
    except ImportError:
        raise HeadwiseError(f"{path} holds adapters", "the package peft", "pip install peft") from None
    try:
        return peft.PeftModel.from_pretrained(encoder, path, is_trainable=True, use_safetensors=True).eval()
    except (OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
        raise HeadwiseError(f"{path} cannot be opened ({first_line(error)})", "the folder as it was saved") from error


def _require_layers(encoder: Any, purpose: str) -> None:
    if not hasattr(encoder.base_model, "merge_and_unload"):  # prompts and prefixes change no weights
        kind = type(next(iter(encoder.peft_config.values()))).__name__.removesuffix("Config")
        raise HeadwiseError(f"{kind} adapters, which cannot be {purpose}", "adapters of layers, such as LoRA or IA3")
