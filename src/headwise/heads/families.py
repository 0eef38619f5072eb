"""Known architectures: names of attention output projections, and layouts of q, k and v.

Legend: H query heads, G key-value groups, D head size.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

# Name suffixes of the module whose input is the concatenated outputs of a layer's heads.
OUTPUT_SUFFIXES = (
    "o_proj",
    "out_proj",
    "out_lin",
    "attn.c_proj",
    "crossattention.c_proj",
    "attention.output.dense",
    "crossattention.output.dense",
    "attention.dense",
    "self_attention.dense",
    "self_attn.dense",
    "attn.Wo",
    "attn.o",
    "SelfAttention.o",
    "EncDecAttention.o",
)
CROSS_MARKS = ("encoder_attn", "EncDecAttention", "crossattention", "cross_attn")

# Families whose q, k, v and o slices are known to be exact (each one checked by moving a single head's weights).
EXACT = frozenset(
    [
        "bert",
        "roberta",
        "xlm-roberta",
        "electra",
        "distilbert",
        "deberta-v2",
        "mpnet",
        "modernbert",
        "openai-gpt",
        "gpt2",
        "gpt_neox",
        "llama",
        "mistral",
        "qwen2",
        "qwen3",
        "gemma2",
        "gemma3_text",
        "phi3",
        "t5",
        "bart",
        "vit",
    ]
)
NO_HEADS = {
    "mamba": "it is a state-space model and has no attention heads",
    "mamba2": "it is a state-space model and has no attention heads",
    "falcon_mamba": "it is a state-space model and has no attention heads",
    "rwkv": "it is a recurrent model and has no attention heads",
    "reformer": "it hashes queries and keys into buckets and has no plain output projection per layer",
}


def text_config(config: Any) -> Any:
    """The text part of a configuration; the whole if there is none or more than one."""
    try:
        return config.get_text_config()
    except (AttributeError, ValueError):
        return config


def declared_causal(config: Any) -> bool:
    """Whether a configuration declares a causal model; used if causality cannot be measured."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING

    text = text_config(config)
    for part in (text, config):
        both_ways = getattr(part, "use_bidirectional_attention", None) in (True, "all")
        if both_ways or getattr(part, "is_causal", None) is False:
            return False
        if getattr(part, "is_decoder", False):
            return True
    if getattr(config, "is_encoder_decoder", False):
        return False
    return type(text) in MODEL_FOR_CAUSAL_LM_MAPPING and type(text) not in MODEL_FOR_MASKED_LM_MAPPING


SEPARATE = {
    "q": ("query", "q_proj", "q_lin", "query_proj", "q"),
    "k": ("key", "k_proj", "k_lin", "key_proj", "k"),
    "v": ("value", "v_proj", "v_lin", "value_proj", "v"),
}
# Fused projections: "block" is q|k|v one after the other, "head" is q,k,v for each head in turn,
# "group" is all queries of a key-value group, then its key, then its value.
FUSED_NAMES = ("c_attn", "qkv_proj", "Wqkv", "query_key_value", "in_proj")
FUSED_LAYOUT = {
    "gpt2": "block",
    "openai-gpt": "block",
    "phi3": "block",
    "modernbert": "block",
    "mpt": "block",
    "gpt_neox": "head",
    "bloom": "head",
    "deberta": "head",
    "falcon": "group",
}

# Cutting. Attributes of attention modules that count query heads, key-value heads, or the width of all heads.
HEAD_COUNTS = re.compile(r"^(?!.*(kv|key_value|dim|size|width|per|group)).*heads?$|^nhead$")
GROUP_COUNTS = re.compile(r"(kv|key_value).*heads?$")
GROUP_SIZES = ("num_key_value_groups", "n_rep", "num_kv_groups", "kv_groups")  # query heads per key-value head
WIDTHS = ("all_head_size", "split_size", "inner_dim", "embed_dim", "attn_dim", "qkv_dim")
POSITION_PROJECTIONS = ("pos_key_proj", "pos_query_proj")  # DeBERTa: laid out like q and k, one slice per head
BIAS_OF_FIRST = ("t5",)  # position bias of the first layer, one value per head, passed on to the others
BIAS_OF_ENCODER = ("mpnet",)  # the encoder passes one position bias per head to every layer
RETURNS_LIST = ("openai-gpt",)
LAST_DROPOUTS = ("resid_dropout", "out_drop")  # what attention does after its output projection
# Families whose configuration has its own head size, so fewer heads are still a standard model.
OWN_HEAD_SIZE = frozenset(["llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3", "t5"])


@dataclass(frozen=True)
class Part:
    """One of a layer's q, k, v, o: ``rows[g]`` are the indices along ``axis`` of the weight that belong to head ``g``.

    For q, k and v the axis is the output axis, and a bias is sliced in the same way; for o it is the input axis. k and
    v have one row of indices per key-value group. Other parts are sinks, position biases, gates.
    """

    module: Any  # a Linear, a Conv1D, or an adapter of one
    axis: int
    rows: torch.Tensor  # (H or G, D), on the CPU
    name: str = "weight"  # of the parameter

    @property
    def biased(self) -> bool:
        return getattr(self.module, "bias", None) is not None


def transposed(module: nn.Module) -> bool:
    """Whether the weight is stored input first, as GPT-2's Conv1D does."""
    return type(module).__name__ == "Conv1D"


def input_width(module: Any) -> int | None:
    """The input width of a projection; None for other modules."""
    weight = getattr(module, "weight", None)
    if weight is None or getattr(weight, "ndim", 0) != 2:
        return None
    if hasattr(module, "in_features"):
        return module.in_features  # quantized weights have other shapes
    return weight.shape[0] if transposed(module) else weight.shape[1]


def output_width(module: Any) -> int:
    return module.weight.shape[1] if transposed(module) else module.weight.shape[0]


def qkv_parts(attention: nn.Module, family: str, heads: int, head_dim: int, cross: bool) -> dict[str, Part]:
    """The q, k and v of an attention module; empty if the layout is unknown."""
    projections = _projections(attention)
    if set(projections) >= {"q", "k", "v"}:
        return {name: _separate(projections[name], head_dim) for name in "qkv"}
    layout = FUSED_LAYOUT.get(family)
    if layout is None or cross or "fused" not in projections:  # fused cross attention contains keys and values only
        return {}
    module = projections["fused"]
    groups = (output_width(module) // head_dim - heads) // 2
    axis = 1 if transposed(module) else 0
    rows = fused_rows(layout, heads, groups, head_dim)
    return {name: Part(module, axis, rows[name]) for name in "qkv"}


def fused_rows(layout: str, heads: int, groups: int, head_dim: int) -> dict[str, torch.Tensor]:
    """The indices of each head's q, k and v in a fused projection."""
    if layout == "block":
        q, k, v = torch.arange((heads + 2 * groups) * head_dim).view(-1, head_dim).split([heads, groups, groups])
    else:  # one stretch per group: its queries, its key, its value ("head" is a group of one query)
        per_group = heads // groups
        places = torch.arange((heads + 2 * groups) * head_dim).view(groups, per_group + 2, head_dim)
        q, k, v = places[:, :per_group].flatten(0, 1), places[:, per_group], places[:, per_group + 1]
    return {"q": q, "k": k, "v": v}


def _separate(module: nn.Module, head_dim: int) -> Part:
    return Part(module, 1 if transposed(module) else 0, torch.arange(output_width(module)).view(-1, head_dim))


def _projections(attention: nn.Module) -> Mapping[str, nn.Module]:
    projections: dict[str, nn.Module] = {}
    for name, module in attention.named_modules():
        last = name.rsplit(".", 1)[-1]
        if input_width(module) is None or name.split(".", 1)[0] == "output":
            continue
        for part, names in SEPARATE.items():
            if last in names:
                projections[part] = module
        if last in FUSED_NAMES:
            projections["fused"] = module
    return projections
