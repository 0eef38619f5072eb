"""A tiny random model of any type that transformers has, built from its own configuration with small sizes."""

from __future__ import annotations

import copy
import functools
import importlib
import math
import re
from itertools import product
from pathlib import Path
from typing import Any

import torch

from headwise.heads.proven import towers
from headwise.heads.samples import samples

SMALL: list[tuple[str, int]] = [  # the first pattern that a name fits
    (r"^(num_|n_)?(encoder_|decoder_|hidden_|text_|vision_|transformer_|backbone_)*(layers|layer|blocks)$", 2),
    (r"^(num_hidden_layers|n_layers?|num_layers|depth|num_blocks|layers)$", 2),
    (r"(kv_heads|key_value_heads|n_head_kv|num_kv_heads)$", 2),
    (r"(attention_heads|num_heads|n_heads?|num_head)$", 4),
    (r"^(head_dim|d_kv|attention_head_size|kv_channels|head_size|qk_nope_head_dim|v_head_dim)$", 8),
    (r"^(qk_rope_head_dim|rotary_dim|rope_head_dim)$", 4),
    (r"^(q_lora_rank|kv_lora_rank|qk_lora_rank)$", 16),
    (
        r"^(hidden_size|d_model|n_embd|embed_dim|dim|emb_dim|hidden_dim|model_dim|width|embedding_size|word_embed_proj_dim)$",
        32,
    ),
    (r"(intermediate_size|ffn_dim|d_ff|d_inner|n_inner|ffn_hidden_size|mlp_dim|ff_dim|dim_feedforward)$", 32),
    (r"(vocab_size|vocab_size_per_layer_input)$|^num_embeddings$", 96),
    (r"^(codebook_size|num_hash_buckets)$", 64),
    (r"^(num_queries|num_object_queries|num_proposals)$", 10),
    (r"(num_experts|n_routed_experts|num_local_experts|moe_num_experts)$", 4),
    (r"(experts_per_tok|num_experts_per_token|top_k|moe_topk|moe_k)$", 2),
    (r"^(n_group|topk_group|num_expert_group)$", 1),
    (r"^(image_size|input_size|crop_size)$", 32),
    (r"^(frames_per_clip|num_frames)$", 4),
    (r"^(patch_size)$", 8),
    (r"^(projection_dim|out_hidden_size|output_dim)$", 32),
    (r"^(max_source_positions)$", 20),
    (r"^(max_position_embeddings|n_positions|n_ctx|max_target_positions)$", 64),
    (r"^(num_mel_bins)$", 16),
]
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 8}
SWIN = {"embed_dim": 24, "depths": [1, 2], "num_heads": [3, 6], "image_size": 32, "patch_size": 4, "window_size": 4}
TEXT = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
}
TEXT |= {"num_hidden_layers": 3, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
THREE = {"layer_types": ["linear_attention", "full_attention", "linear_attention"]}
HYBRID = TEXT | THREE | MAMBA
NEMOTRON = {"mamba_num_heads": 8, "mamba_head_dim": 8, "n_groups": 2, "ssm_state_size": 8, "head_dim": 8}
ZAMBA = {"mamba_ngroups": 1, "n_mamba_heads": 8, "mamba_d_state": 8, "adapter_rank": 8, "num_key_value_heads": 4}
PLE = {"vocab_size_per_layer_input": 96, "hidden_size_per_layer_input": 8}
GEMMA4 = {"layer_types": ["sliding_attention", "sliding_attention", "full_attention"], "head_dim": 8}
GEMMA4 |= TEXT | PLE | {"per_layer_config": {"02": {"head_dim": 16}}}
TOWER = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4}
TOWER |= {"intermediate_size": 32}
RESNET = {"model_type": "resnet", "embedding_size": 16, "hidden_sizes": [16, 16, 16, 32], "depths": [1, 1, 1, 1]}
DETR = {
    "use_timm_backbone": False,
    "backbone": None,
    "use_pretrained_backbone": False,
    "d_model": 32,
    "num_queries": 10,
}
DETR |= {"encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
DETR |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
ONE = DETR | {"backbone_config": RESNET | {"out_features": ["stage4"]}}
THREE_SCALES = DETR | {"backbone_config": RESNET | {"out_features": ["stage2", "stage3", "stage4"]}}
VIT = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 32, "image_size": 32}
VIT |= {"patch_size": 8, "out_features": ["stage1", "stage2", "stage3", "stage4"], "reshape_hidden_states": False}
DEPTH = {"backbone": None, "reassemble_hidden_size": 32, "fusion_hidden_size": 16, "patch_size": 8}
DEPTH |= {"neck_hidden_sizes": [16, 16, 16, 16], "backbone_config": {"model_type": "dinov2"} | VIT}
PERCEIVER = {"d_latents": 32, "d_model": 32, "num_latents": 8, "num_blocks": 1, "num_self_attends_per_block": 2}
PERCEIVER |= {"num_self_attention_heads": 4, "num_cross_attention_heads": 4, "vocab_size": 96}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "num_dense_layers": 1}
WHOLE: dict[str, dict[str, Any]] = {  # given to the configuration itself, which derives more from them
    "granitemoehybrid": HYBRID | {"shared_intermediate_size": 32},
    "zamba2": TEXT | ZAMBA | {"layers_block_type": ["linear_attention", "hybrid", "hybrid"]},
    "nemotron_h": TEXT | NEMOTRON | {"layers_block_type": ["linear_attention", "full_attention", "mlp"]},
    "gemma4_text": GEMMA4,
    "gemma4": {"text_config": GEMMA4, "vision_config": TOWER | {"head_dim": 8}, "audio_config": TOWER},
    "wav2vec2-bert": {k: v for k, v in TEXT.items() if k != "vocab_size"} | {"feature_projection_input_dim": 160},
    "layoutlmv3": TEXT | {"coordinate_size": 6, "shape_size": 4, "input_size": 32, "patch_size": 16},
    "lfm2": TEXT | {"layer_types": ["conv", "full_attention", "conv"]},
    "lfm2_moe": TEXT | MOE | {"layer_types": ["conv", "full_attention", "conv"]},
    "nemotron": TEXT,
    "perceiver": PERCEIVER,
    **dict.fromkeys(["detr", "conditional_detr", "dab-detr", "table-transformer"], ONE),
    "deformable_detr": THREE_SCALES,
    "chmv2": {"backbone_config": {"model_type": "dinov3_vit"} | VIT}
    | {k: v for k, v in DEPTH.items() if "bone" not in k},
    **dict.fromkeys(["depth_anything", "prompt_depth_anything"], DEPTH),
}
LLAMA4 = {"intermediate_size": 128, "projector_input_dim": 32, "projector_output_dim": 32}
OWN: dict[str, dict[str, Any]] = {  # set after the sizes were made small
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 4},
    "bamba": MAMBA | {"attn_layer_indices": [1], "attn_rotary_emb": 8},
    "falcon_h1": MAMBA | {"mamba_d_ssm": 64, "mamba_n_heads": 8},
    "recurrent_gemma": {"num_hidden_layers": 3, "lru_width": 32, "conv1d_width": 4},
    "olmo_hybrid": {"num_hidden_layers": 4, "layer_types": ["linear_attention"] * 3 + ["full_attention"]},
    "qwen3_next": {"num_hidden_layers": 4, "layer_types": ["linear_attention"] * 3 + ["full_attention"]},
    "moonshine": {"encoder_num_key_value_heads": 4, "decoder_num_key_value_heads": 4},
    "canine": {"num_hash_functions": 4},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "attention_layers": ["global", "local"]},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "esm": {"pad_token_id": 1, "mask_token_id": 2},
    "xmod": {"default_language": "en_XX"},
    "mllama": {
        "text_config.cross_attention_layers": [1],
        "vision_config.intermediate_layers_indices": [0, 1],
        "vision_config.vision_output_dim": 96,
    },
    "llama4": {f"vision_config.{name}": size for name, size in LLAMA4.items()},
    "llama4_vision_model": LLAMA4,
    "mllama_vision_model": {"intermediate_layers_indices": [0, 1], "vision_output_dim": 96},
    "mllama_text_model": {"cross_attention_layers": [1]},
    "vitpose_backbone": {"image_size": [32, 32]},
    "yolos": {"image_size": [32, 32]},
    "swin": SWIN,
    "swinv2": SWIN,
    "swin2sr": SWIN | {"num_channels": 3},
    "donut-swin": SWIN,
    "maskformer-swin": SWIN,
}
EMPTY = {"head_dim": 8, "vocab_size": 96}  # left to others, or to a checkpoint
LARGEST = 100_000_000  # parameters
TOKEN = re.compile(r"_token_id$|_token_index$")


def shrunk(config: Any) -> Any:
    """The configuration with small sizes in all its parts."""
    for part in parts(config):
        for name, value in list(vars(part).items()):
            if value is None and name in EMPTY:
                setattr(part, name, EMPTY[name])
            if isinstance(value, bool) or not isinstance(value, int):
                continue
            small = next((size for pattern, size in SMALL if re.search(pattern, name)), None)
            if TOKEN.search(name):
                small = value % 96
            if small is not None and (small < value or TOKEN.search(name)):
                try:
                    setattr(part, name, small)
                except Exception:
                    continue
        _lists(part)
    return config


def _lists(part: Any) -> None:
    """What is given for every layer, for as many as are left; of several kinds of layers one each."""
    held = vars(part)
    kinds = held.get("layer_types")
    if isinstance(kinds, list) and len(set(kinds)) > 1:
        kinds = [*dict.fromkeys(kinds)]
        part.num_hidden_layers, part.layer_types = len(kinds), kinds
    layers = held.get("num_hidden_layers")
    for name, value in list(held.items()):
        if isinstance(layers, int) and isinstance(value, list) and len(value) > layers and "layer" in name:
            setattr(part, name, value[:layers])
    if getattr(part, "is_heterogeneous", False):
        part.per_layer_config = {"00": {"head_dim": 16}}
    if held.get("qk_rope_head_dim") and isinstance(held.get("head_dim"), int):
        part.head_dim = part.qk_rope_head_dim
    if held.get("kv_lora_rank") and held.get("num_key_value_heads"):
        part.num_key_value_heads = part.num_attention_heads
    for name in ("rope_parameters", "rope_scaling"):
        rope = held.get(name)
        if isinstance(rope, dict) and "rope_type" in rope and held.get("num_attention_heads"):
            half = int(held.get("head_dim") or part.hidden_size // part.num_attention_heads) // 2
            half = int(half * (rope.get("partial_rotary_factor") or 1))
            setattr(part, name, rope | {"mrope_section": [half - 2 * (half // 3), half // 3, half // 3]})


def _stages(part: Any) -> None:
    """As many stages of a backbone as are left, and of these the last."""
    held = vars(part)
    stages = len(held["depths"]) if isinstance(held.get("depths"), list) else held.get("num_hidden_layers")
    if isinstance(stages, int) and len(held.get("stage_names") or ()) > 1 + stages:
        part.stage_names = held["stage_names"][: 1 + stages]
        part._out_features, part._out_indices = [part.stage_names[-1]], [len(part.stage_names) - 1]


def parts(config: Any) -> list[Any]:
    """A configuration and those inside it."""
    inner = [getattr(config, name, None) for name in getattr(config, "sub_configs", ())]
    return [config, *(part for each in inner if each is not None for part in parts(each))]


def build(family: str, **settings: Any) -> Any:
    """A tiny model with random weights, none of them zero: the first way to make it small after which it runs.

    Where none does, the first after which its parts run.
    """
    from transformers import AutoConfig

    whole, own = WHOLE.get(family), {**OWN.get(family, {}), **settings}
    ways = [lambda config: config] if whole else [shrunk, shallow]
    failure, halves, idle = None, None, None
    for way, settled in product(ways, (True, False)):
        torch.manual_seed(0)
        try:
            config = way(AutoConfig.for_model(family, **(whole or {})))
            for name, value in own.items():
                *inner, last = name.split(".")
                setattr(functools.reduce(getattr, inner, config), last, value)
            for part in [] if whole else parts(config):
                _stages(part)
            if settled:  # as it is read from a file: what it derives from its numbers is derived from the small ones
                config = type(config).from_dict(config.to_dict())
            model = _random(config)
        except Exception as error:
            failure = failure or error
            continue
        if len(ways) == 1 or runs(model):
            return model
        halves = halves or (model if all(runs(part) for part in _outermost(model)) else None)
        idle = idle or model
    if idle is not None:
        return halves or idle
    raise failure or ValueError(family)


def _outermost(model: Any) -> list[Any]:
    """The models inside a model that are in no other; itself where there are none."""
    found: dict[str, Any] = {}
    for name, tower in towers(model):
        if not any(name.startswith(f"{other}.") for other in found):
            found[name] = tower
    return list(found.values()) or [model]


def runs(model: Any) -> bool:
    """Whether some sample goes through a model."""
    try:
        for inputs in samples(model):
            try:
                with torch.no_grad():
                    model(**inputs)
            except Exception:
                continue
            return True
    except Exception:
        return False
    return False


def _random(config: Any) -> Any:
    kind = model_class(config)
    with torch.device("meta"):
        size = sum(p.numel() for p in kind(copy.deepcopy(config)).parameters())
    if size > LARGEST:
        raise ValueError(f"{size:,} parameters")
    model = kind(config)
    for parameter in model.parameters():
        scale = 0.1 if parameter.ndim < 2 else 0.5 * max(math.prod(parameter.shape[1:]), 1) ** -0.5
        parameter.data += scale * torch.randn_like(parameter)
    return model.float().eval()


def model_class(config: Any) -> Any:
    """The base model of a configuration; of a part's configuration the model of that part."""
    from transformers import MODEL_MAPPING, PreTrainedModel

    if type(config) in MODEL_MAPPING:
        found = MODEL_MAPPING[type(config)]
        return found[0] if isinstance(found, tuple) else found
    package = type(config).__module__.rpartition(".")[0]
    folder = Path(importlib.import_module(package).__file__).parent
    kinds = [
        kind
        for file in sorted(folder.glob("modeling_*.py"))
        for kind in vars(importlib.import_module(f"{package}.{file.stem}")).values()
        if isinstance(kind, type) and issubclass(kind, PreTrainedModel) and kind.__module__.startswith(package)
        if kind.config_class is type(config)
        and "forward" in vars(kind)
        and not kind.__name__.endswith("PreTrainedModel")
    ]
    if not kinds:
        raise ValueError(f"no model takes a {type(config).__name__}")
    return min(kinds, key=lambda kind: ("For" in kind.__name__, not kind.__name__.endswith("Model")))


def shallow(config: Any) -> Any:
    """The configuration with two layers and few words in all its parts, and its own sizes otherwise."""
    for part in parts(config):
        layers = vars(part).get("num_hidden_layers")
        if isinstance(layers, int):
            for name, value in list(vars(part).items()):
                if isinstance(value, list) and len(value) == layers:
                    setattr(part, name, value[:2])
            part.num_hidden_layers = min(2, layers)
    return config
