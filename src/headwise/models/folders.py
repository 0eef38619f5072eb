"""Folders of models: their files, and saving and loading of pruned models."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import nn

from headwise.errors import HeadwiseError
from headwise.heads.cutting import prune
from headwise.heads.gates import Heads, stacks_of
from headwise.heads.origins import Origin, origins_of
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
    return opened(_cut_class(kind, *_kept_heads(path)), path, strict=True)


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
    kind = getattr(transformers, str(named[0]), None)
    if kind is transformers.AutoModel or (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
        return kind
    raise HeadwiseError(f"{path} holds a {named[0]}", f"a model class of transformers {transformers.__version__}")


def opened(kind: Any, path: Path, strict: bool = False) -> nn.Module:
    """`from_pretrained` without random weights, pickles or network access."""
    try:
        how: dict[str, Any] = {"local_files_only": True, "output_loading_info": True, **_unpooled(kind, path)}
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
    """The argument that omits the pooler if there are no weights for it."""
    able = any("add_pooling_layer" in inspect.signature(each.__init__).parameters for each in kind.__mro__)
    names = [name for file in path.glob("*.safetensors") for name in store.tensor_names(file)] if able else []
    return {"add_pooling_layer": False} if names and not any("pooler." in name for name in names) else {}


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
