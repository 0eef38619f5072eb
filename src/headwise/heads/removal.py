"""Which heads are to be removed, and whether a model's weights can be changed for it."""

from __future__ import annotations

import torch
from torch import nn

from headwise.errors import HeadwiseError
from headwise.heads.families import Part
from headwise.heads.gates import Heads, inside_block, unwrap

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
