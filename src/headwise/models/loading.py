"""Hugging Face encoders and their tokenizers by folder or Hub name; never remote code, never pickles."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import torch
from torch import nn

from headwise.errors import HeadwiseError, first_line
from headwise.heads.families import declared_causal
from headwise.models.adapters import open_adapters
from headwise.models.folders import ABOUT, encoder_folder, is_cut, is_trained, load

FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")  # files of a repository; nothing else is downloaded
VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model")


def load_encoder(name: str | Path) -> tuple[nn.Module, Any]:
    """A Hugging Face encoder and its tokenizer (or image processor), by folder or Hub name; never remote code.

    For a model trained by headwise this is its encoder. Pruned models stay pruned.
    """
    from transformers import AutoConfig, AutoImageProcessor, AutoTokenizer

    trained = Path(name) if is_trained(name) else None
    name = str(encoder_folder(name) if trained else name)
    local = Path(name).exists()
    if not local:
        _check_hub(name)
    try:
        safe: dict[str, Any] = {"trust_remote_code": False, "local_files_only": local}
        config = AutoConfig.from_pretrained(name, **safe)
        kind = _loader(config)
        if is_cut(name):
            model = _without_heads(Path(name))
        else:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)  # missing weights, often a pooler, are random but reproducible
                model = kind.from_pretrained(name, **safe, use_safetensors=True, dtype=torch.float32)  # never pickles
        loader = (
            AutoImageProcessor if hasattr(config, "image_size") and not hasattr(config, "vocab_size") else AutoTokenizer
        )
        tokenizer = loader.from_pretrained(name, **safe)
    except HeadwiseError:
        raise
    except Exception as error:  # every library raises its own errors; a user needs one line
        raise HeadwiseError(f"cannot load a model from {name!r}: {first_line(error)}", _what_loads(name)) from error
    if local and loader is AutoTokenizer:
        _require_tokenizer(Path(name), tokenizer)
    if getattr(tokenizer, "pad_token_id", 0) is None:
        tokenizer.pad_token = tokenizer.eos_token
    return open_adapters(model, trained) if trained else model, tokenizer


def load_language_model(name: str | Path) -> tuple[nn.Module, Any]:
    """A language model and its tokenizer, by folder or Hub name; the weights must include the language-model head."""
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        AutoModelForMaskedLM,
        AutoModelForSeq2SeqLM,
        AutoTokenizer,
    )

    name = str(name)
    local = Path(name).exists()
    if not local:
        _check_hub(name)
    try:
        safe: dict[str, Any] = {"trust_remote_code": False, "local_files_only": local}
        config = AutoConfig.from_pretrained(name, **safe)
        one_way = AutoModelForCausalLM if declared_causal(config) else AutoModelForMaskedLM
        kind = AutoModelForSeq2SeqLM if getattr(config, "is_encoder_decoder", False) else one_way
        missing: list[str] = []
        if is_cut(Path(name)):
            model: Any = load(name)
        else:
            how: dict[str, Any] = {"dtype": torch.float32, "output_loading_info": True}
            loaded: Any = kind.from_pretrained(name, use_safetensors=True, **safe, **how)
            model, missing = loaded[0], sorted(loaded[1]["missing_keys"])
        tokenizer = AutoTokenizer.from_pretrained(name, **safe)
    except Exception as error:  # every library raises its own errors; a user needs one line
        raise HeadwiseError(f"cannot load a model from {name!r}: {first_line(error)}", _what_loads(name)) from error
    if missing:
        seen = f"{name} has no language-model head: no weights for {missing[0]}"
        raise HeadwiseError(seen, "a checkpoint of a model that predicts words", "train tasks on it: headwise train")
    if local:
        _require_tokenizer(Path(name), tokenizer)
    return model, tokenizer


def empty_model(config: Any) -> nn.Module:
    """A randomly initialized model, as `load_encoder` would open it."""
    return _loader(config).from_config(config)


def _loader(config: Any) -> Any:
    from transformers import AutoModel, AutoModelForTextEncoding

    alone = any(kind.endswith("EncoderModel") for kind in config.architectures or ())  # T5 without its decoder
    return AutoModelForTextEncoding if alone else AutoModel


def find_config(name: str | Path) -> Any:
    """The configuration of a folder or Hub model; None if there is none."""
    from transformers import AutoConfig

    name = str(encoder_folder(name) if is_trained(name) else name)
    local = Path(name).exists()
    try:
        if not local:
            _check_hub(name)
        return AutoConfig.from_pretrained(name, trust_remote_code=False, local_files_only=local)
    except (OSError, ValueError, KeyError):
        return None


def _without_heads(path: Path) -> nn.Module:
    """The encoder of a sliced folder, without output heads."""
    model: Any = load(path)
    return model.base_model.float()


def _require_tokenizer(folder: Path, tokenizer: Any) -> None:
    """Raise if tokenizer files are missing: transformers would create a tokenizer without words."""
    files = {*getattr(tokenizer, "vocab_files_names", {}).values(), *VOCABULARIES}
    if len(tokenizer) < 256 and not any((folder / file).exists() for file in files):
        seen = f"no tokenizer in {folder}: the one created by transformers has {len(tokenizer)} words"
        raise HeadwiseError(seen, _what_loads(str(folder)), f'tokenizer.save_pretrained("{folder}")')


def trained_folder(
    name: str | Path, revision: str | None = None, token: str | None = None, endpoint: str | None = None
) -> Path:
    """The folder of a model trained by headwise: local, or downloaded from the Hub."""
    if Path(name).exists():
        return Path(name)
    from huggingface_hub import snapshot_download

    repo = str(name)
    if endpoint is None:
        _check_hub(repo)
    where: dict[str, Any] = {"revision": revision, "token": token, "endpoint": endpoint}
    try:
        folder = Path(snapshot_download(repo, **where, allow_patterns=list(FILES)))
    except Exception as error:  # the library below has many; a user needs one line
        seen = f"no folder {repo!r}, and cannot read {repo!r} from the Hub: {first_line(error)}"
        raise HeadwiseError(seen, "a folder, or a repository's name and a network") from error
    if not is_trained(folder):
        hint = f'MultiTaskModel.from_pretrained("{repo}", tasks) starts training from it'
        raise HeadwiseError(f"{repo!r} has no {ABOUT}", "a repository pushed by headwise", hint)
    return folder


def name_of(model: str | Path) -> str:
    """The display name of a model: its folder's name, or the parent's if that is just "model"."""
    path = Path(model)
    return path.parent.name if path.name in ("model", "encoder") and path.parent.name else path.name or str(model)


def refuse_several(encoder: nn.Module) -> None:
    """Reject encoder-decoder models: it is ambiguous which stack's states and heads to use."""
    config = getattr(encoder, "config", None)
    if getattr(config, "is_encoder_decoder", False) and hasattr(encoder, "decoder"):
        raise HeadwiseError(
            f"{type(encoder).__name__} is an encoder-decoder",
            "an encoder or a decoder, such as BERT or GPT-2, to train and measure tasks",
            "headwise heads or prune with --stack, for one of its stacks",
        )


def _check_hub(name: str) -> None:
    """Raise early if a name is not a folder and the Hub cannot be reached."""
    from huggingface_hub import constants, try_to_load_from_cache

    offline = constants.is_offline_mode() if hasattr(constants, "is_offline_mode") else constants.HF_HUB_OFFLINE
    try:
        cached = isinstance(try_to_load_from_cache(name, "config.json"), str)
    except ValueError:  # not a valid Hub name
        raise HeadwiseError(f"no folder {name!r}", _what_loads(name)) from None
    if not cached and (offline or not _resolves(constants.ENDPOINT)):
        raise HeadwiseError(f"no folder {name!r}, and no network to look for it on the Hub", _what_loads(name))


def _resolves(address: str) -> bool:
    try:
        return bool(socket.getaddrinfo(urlparse(address).hostname, 443))
    except OSError:
        return False


def _what_loads(name: str) -> str:
    if Path(name).is_dir():
        return "a folder with config.json, model.safetensors and the tokenizer's files"
    if Path(name).exists():
        return "a folder, not a file"
    return "a folder written by save_pretrained, or a model's name on the Hugging Face Hub and a network"
