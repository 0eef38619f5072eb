"""Hugging Face encoders and their tokenizers by folder or Hub name, and folders of trained and pruned models.

Never remote code, never pickles.
"""

from __future__ import annotations

import inspect
import socket
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import nn

from headwise.errors import HeadwiseError, first_line
from headwise.heads.cutting import prune
from headwise.heads.families import declared_causal
from headwise.heads.gates import Heads, stacks_of
from headwise.heads.sites import Origin, origins_of
from headwise.io import files as store
from headwise.models.adapters import ADAPTER, merged, open_adapters

ABOUT = "headwise.json"  # of trained models, and of pruned ones
HEADS, SCALES = "heads.safetensors", "scales.safetensors"  # files of output heads and factors
BESIDE = (ABOUT, HEADS, SCALES)  # files next to an encoder
VERSION = 1


def is_trained(name: str | Path) -> bool:
    """Whether a folder contains a model trained by headwise: an encoder and output heads."""
    return (Path(name) / ABOUT).exists() and ((Path(name) / "encoder").is_dir() or (Path(name) / HEADS).exists())


def is_cut(path: str | Path) -> bool:
    """Whether a folder contains a pruned checkpoint, which `load` opens and transformers does not."""
    return (Path(path) / ABOUT).exists() and not is_trained(path)


def encoder_folder(path: str | Path) -> Path:
    """The encoder folder of a model trained by headwise: encoder/, or the folder of the output heads."""
    inner = Path(path) / "encoder"
    return inner if inner.is_dir() else Path(path)


def at_root(path: Path) -> Path:
    """Move a plain encoder next to its output heads, so that AutoModel opens the folder."""
    inner = path / "encoder"
    if inner.is_dir() and not (inner / ABOUT).exists() and not (path / ADAPTER).exists():
        for file in inner.iterdir():
            file.rename(path / file.name)
        inner.rmdir()
    return path


def load(path: str | Path) -> nn.Module:
    """Open a folder that `export` wrote as ``sliced``, or any plain Hugging Face folder, as the class it was saved as.

    For a model trained by headwise this is the encoder; `MultiTaskModel.load` opens the whole model.

    Example:
        >>> load("small").num_parameters() < model.num_parameters()
        True
    """
    path = Path(path)
    if not path.is_dir():
        raise HeadwiseError(f"{path} is not a folder", "the folder of a saved model")
    if is_trained(path) and encoder_folder(path) != path:
        return merged(open_adapters(load(encoder_folder(path)), path))
    kind = _model_class(path)
    if not is_cut(path):
        return opened(kind, path)
    return opened(_cut_class(kind, *_kept_heads(path)), path, strict=True, plain=kind)


def save_sliced(model: Any, folder: Path) -> None:
    """Save a pruned model with the list of its heads; `load` opens it."""
    model.save_pretrained(folder)
    origins = {name: origin.to_record() for stack in origins_of(model).values() for name, origin in stack}
    stacks = origins_of(model) or stacks_of(model)
    kept = {stack: [list(site.kept) for site in Heads.of(model, stack=stack).sites] for stack in stacks}
    digests = {file.name: store.file_digest(file) for file in sorted(folder.iterdir())}
    about = {"version": VERSION, "form": "sliced", "kept": kept, "origins": origins, "files": digests}
    store.write_json(folder / ABOUT, about)


def _cut_class(kind: Any, kept: dict[str, list[list[int]]], origins: dict[str, Origin]) -> Any:
    """A class whose new models are pruned, so that the loader of transformers sees the right shapes."""

    def start(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        kind.__init__(self, config, *args, **kwargs)
        for name, origin in origins.items():
            self.get_submodule(name).headwise_origin = origin
        with torch.device("cpu"):  # transformers builds models on the meta device, and results are remembered
            for stack, layers in kept.items():
                prune(self, _removed(layers, Heads.of(self, stack=stack)), stack)
        self.__class__ = kind

    # transformers looks classes up by name and module
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind,), {"__init__": start, **names})


def _model_class(path: Path) -> Any:
    """The class a folder was saved as."""
    import transformers

    config = store.read_json(path / "config.json")
    named = (config.get("architectures") if isinstance(config, dict) else None) or ["AutoModel"]
    kind = getattr(transformers, str(named[0]), None) or _inner_class(str(named[0]), config)
    if kind is transformers.AutoModel or (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
        return kind
    raise HeadwiseError(f"{path} holds a {named[0]}", f"a model class of transformers {transformers.__version__}")


def _inner_class(name: str, config: dict[str, Any]) -> Any:
    """A class that transformers has, but not by name at its top: a part of a model."""
    from transformers import CONFIG_MAPPING

    if config.get("model_type") not in CONFIG_MAPPING:
        return None
    package, _, module = CONFIG_MAPPING[config["model_type"]].__module__.rpartition(".")
    return getattr(import_module(f"{package}.{module.replace('configuration', 'modeling')}"), name, None)


def opened(kind: Any, path: Path, strict: bool = False, plain: Any = None) -> nn.Module:
    """`from_pretrained` without random weights, pickles or network access; ``plain`` is the class before any cut."""
    try:
        how: dict[str, Any] = {"local_files_only": True, "output_loading_info": True, **_unpooled(plain or kind, path)}
        model, info = kind.from_pretrained(path, use_safetensors=True, **how)
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, SafetensorError, StrictDataclassError) as error:
        raise HeadwiseError(
            f"{path} cannot be opened ({line(error)})", "the complete folder of a saved model"
        ) from error
    wrong = [*info["missing_keys"], *info["mismatched_keys"], *(info["unexpected_keys"] if strict else ())]
    if wrong:
        listed = ", ".join(map(str, wrong[:5]))
        raise HeadwiseError(
            f"the weights in {path} do not fit its configuration: {listed}", "all weights, and no others"
        )
    return model


def _unpooled(kind: Any, path: Path) -> dict[str, bool]:
    """The argument that omits the pooler if there are no weights for it, where it has any (Swin's has none)."""
    able = any("add_pooling_layer" in inspect.signature(each.__init__).parameters for each in kind.__mro__)
    names = [name for file in path.glob("*.safetensors") for name in store.tensor_names(file)] if able else []
    if not names or any("pooler." in name for name in names):
        return {}
    with torch.device("meta"):
        whole = kind(kind.config_class.from_pretrained(path, local_files_only=True))
    return {"add_pooling_layer": False} if any("pooler." in name for name in whole.state_dict()) else {}


def _kept_heads(path: Path) -> tuple[dict[str, list[list[int]]], dict[str, Origin]]:
    """The heads of every stack and layer of a sliced folder, and its origin; verifies the files."""
    about = store.read_json(path / ABOUT)
    version, form = (about.get("version"), about.get("form")) if isinstance(about, dict) else (None, None)
    if version != VERSION:
        raise HeadwiseError(f"{path / ABOUT} has format version {version}", f"version {VERSION}")
    if form != "sliced":
        raise HeadwiseError(f"{path} is an export of the form {form}", "the form sliced", "open it with onnxruntime")
    files, kept = about.get("files"), about.get("kept")
    if not isinstance(files, dict) or not isinstance(kept, dict):
        raise HeadwiseError(f"{path / ABOUT} does not list files and heads", "a folder as exported", "export again")
    for name, digest in files.items():
        file = path / Path(name).name
        if not file.is_file() or store.file_digest(file) != digest:
            raise HeadwiseError(f"{file} is missing or was modified", "a folder as exported", "export again")
    try:
        return kept, {name: Origin.from_record(record) for name, record in about.get("origins", {}).items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise HeadwiseError(
            f"{path / ABOUT} does not describe layers", "a folder as exported", "export again"
        ) from None


def _removed(layers: list[list[int]], heads: Heads) -> torch.Tensor:
    known = set(range(heads.num_heads))
    if len(layers) != heads.num_layers or not all(known.issuperset(kept) for kept in layers):
        raise HeadwiseError(
            f"{ABOUT} keeps heads that are not there", f"{heads.num_layers} layers of {heads.num_heads}"
        )
    mask = torch.ones(heads.shape, dtype=torch.bool, device="cpu")
    for layer, kept in enumerate(layers):
        mask[layer, kept] = False
    return mask


def line(error: BaseException, most: int = 300) -> str:
    return " ".join(str(error).split())[:most]


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
