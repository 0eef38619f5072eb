"""What determines a result, as short hashes: weights, tokenizers, data, files and settings (no torch at import).

Run folders, records, caches and sweeps are identified by `identity` alone, so none of them can be mistaken for that of
another model or other data.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

from headwise.errors import HeadwiseError
from headwise.io.files import digest, plain

# Fields that state where or by which version a file was written, not its content.
PROVENANCE = frozenset(
    ("transformers_version", "_name_or_path", "name_or_path", "_commit_hash", "is_local", "local_files_only")
)
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"),
    *("vocab.txt", "vocab.json", "merges.txt", "preprocessor_config.json"),
)
RACY = 2_000_000_000  # nanoseconds within which a file may change again without a new time stamp

_file_hashes: dict[tuple[str, int, int, int], str] = {}


def identity(value: Any) -> Any:
    """The identity of a value: a hash for models, tokenizers, tasks and files, the plain value for everything else.

    Mappings and sequences keep their structure, so the parts that differ can be seen.

    Example:
        >>> identity({"plan": {"lr": 1e-4}, "seed": 0})
        {'plan': {'lr': 0.0001}, 'seed': 0}
    """
    if isinstance(value, Mapping):
        return {str(name): identity(part) for name, part in value.items()}
    if isinstance(value, Path):
        return checkpoint(value) if value.is_dir() else file_hash(value)
    if _is_module(value):
        return digest(weights(value), settings(value))
    if hasattr(value, "kind") and hasattr(value, "rows"):
        return data(value)
    if hasattr(value, "save_pretrained"):
        return tokenizer(value)
    if isinstance(value, list | tuple):
        return [identity(part) for part in value]
    return plain(value)


def _is_module(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


# models


def weights(module: Any) -> str:
    """Every tensor of a module, by name, type, shape and bytes."""
    named = sorted(module.state_dict(keep_vars=True).items())
    with ThreadPoolExecutor(4) as pool:  # hashing leaves the interpreter's lock
        return digest([[name, *about] for (name, _), about in zip(named, pool.map(_tensor, (t for _, t in named)))])


def _tensor(tensor: Any) -> list[Any]:
    import torch

    whole = tensor.detach()
    whole = whole.full_tensor() if hasattr(whole, "full_tensor") else whole  # a tensor that is split over processes
    if whole.is_meta:
        raise HeadwiseError("a model on the meta device, which has no weights", "a model that is loaded")
    if hasattr(whole, "__tensor_flatten__"):  # quantized: numbers and their scales
        names, how = whole.__tensor_flatten__()
        return [type(whole).__name__, list(whole.shape), str(how), [_tensor(getattr(whole, name)) for name in names]]
    flat = whole.cpu().contiguous().reshape(-1)
    sha = hashlib.sha256(memoryview(flat.view(torch.uint8).numpy()) if flat.numel() else b"")
    return [str(tensor.dtype), list(tensor.shape), sha.hexdigest()]


def settings(module: Any) -> dict[str, Any]:
    """Everything besides the weights that decides how a module computes and trains."""
    to_json = getattr(getattr(module, "config", None), "to_json_string", None)
    about = json.loads(to_json()) if to_json else {}
    about = {name: value for name, value in about.items() if name not in PROVENANCE and not name.endswith("dtype")}
    frozen = [name for name, parameter in module.named_parameters() if not parameter.requires_grad]
    functions = [*_numbers(module, ("eps", "epsilon", "slope")), *_activations(module)]
    return {"config": plain(about), "dropout": _numbers(module, ("drop",)), "frozen": frozen, "functions": functions}


def _numbers(module: Any, parts: Sequence[str]) -> list[list[Any]]:
    """Numbers of the modules by parts of their names, which callers can change without changing the configuration."""
    pairs = []
    for name, part in module.named_modules():
        numbers = {key: number for key, number in vars(part).items() if any(word in key.lower() for word in parts)}
        if "drop" in parts and "dropout" in type(part).__name__.lower():
            numbers["p"] = getattr(part, "p", None)
        pairs += [[f"{name}.{key}", float(each)] for key, each in numbers.items() if isinstance(each, int | float)]
    return pairs


def _activations(module: Any) -> list[list[str]]:
    """The functions that the modules apply: the kinds of modules without parts and tensors."""
    return [
        [name, type(part).__name__]
        for name, part in module.named_modules()
        if not any((*part.children(), *part.state_dict())) and "dropout" not in type(part).__name__.lower()
    ]


def checkpoint(name: str | Path) -> str | None:
    """The identity of a model that is not loaded: the files of its folder, or its commit on the Hub.

    None if the commit is unknown: neither in the cache nor available over the network.
    """
    folder = Path(name)
    if not folder.is_dir():
        commit = hub_commit(str(name))
        return commit and f"{name}@{commit}"
    wanted = {"config.json", "headwise.json", *TOKENIZER_FILES}
    files = {
        str(path.relative_to(folder)): path
        for path in sorted(folder.rglob("*"))
        if path.suffix in (".safetensors", ".model")
        or (path.name in wanted and path.parent in (folder, folder / "encoder"))
    }
    return digest({name: _content(path) for name, path in files.items() if path.is_file()})


def _content(path: Path) -> str | None:
    """The hash of a file without the fields that state who wrote it or how a tokenizer was last called."""
    if path.name == "tokenizer.json":
        rules = path.read_bytes()
        return hashlib.sha256(rules[max(0, rules.find(b'"added_tokens"', 0, 4096)) :]).hexdigest()
    if path.suffix != ".json" or path.name == "vocab.json":
        return file_hash(path)
    try:
        return digest(_cleaned(json.loads(path.read_text(encoding="utf-8"))))
    except (ValueError, RecursionError):
        return file_hash(path)  # loading it reports what is wrong


def _cleaned(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _cleaned(part) for name, part in value.items() if name not in PROVENANCE}
    return value


@lru_cache(maxsize=256)
def hub_commit(name: str) -> str | None:
    """The current commit of a Hub name, from the network or else from the cache."""
    from huggingface_hub import HfApi, constants, try_to_load_from_cache

    try:
        cached = try_to_load_from_cache(name, "config.json")
    except ValueError:  # not a valid Hub name
        return None
    if not constants.HF_HUB_OFFLINE:
        try:
            return HfApi().model_info(name, timeout=10).sha
        except Exception:  # no network or no such name: loading it reports this
            pass
    return Path(cached).parent.name if isinstance(cached, str) else None


# tokenizers and data


def tokenizer(value: Any) -> str | None:
    """A tokenizer or image processor: its class, vocabulary, rules and special tokens; None if it exposes none."""
    backend = getattr(value, "backend_tokenizer", None)
    if not hasattr(backend, "to_str") and not hasattr(value, "save_pretrained"):
        return None
    to_str = getattr(backend, "to_str", None)
    rules = to_str() if to_str else _saved(value)
    sides = [getattr(value, name, None) for name in ("truncation_side", "padding_side", "pad_token_id")]
    return _rules(type(value).__name__, rules, json.dumps(sides))


@lru_cache(maxsize=16)
def _rules(kind: str, text: str, sides: str) -> str:
    rules = json.loads(text)
    if "truncation" in rules:  # these two only store the last call
        rules |= {"truncation": None, "padding": None}
    return digest(kind, rules, sides)


def _saved(value: Any) -> str:
    """The files that a tokenizer without a fast backend saves; its repr does not show them."""
    with tempfile.TemporaryDirectory() as scratch:
        value.save_pretrained(scratch)
        files = sorted(path for path in Path(scratch).rglob("*") if path.is_file())
        return json.dumps({str(path.relative_to(scratch)): _content(path) for path in files})


def data(task: Any, splits: Sequence[str] = ("train", "dev")) -> str:
    """A task's rows, kind, labels and metric, and the content of the files that rows name."""
    rows = {split: list(task.rows(split)) for split in splits}
    parts = [plain(task.kind), task.metric, *rows.values()]
    named = getattr(task.kind, "files_of", None)
    if named is not None:
        parts.append([[file_hash(file) for file in named(part)] for part in rows.values()])
    return digest(*parts)


# files


def file_hash(path: Path) -> str | None:
    """The sha256 of a file, cached by size and time; None if there is no file."""
    path = Path(path)
    if not path.is_file():
        return None
    state = path.stat()
    key = (str(path.absolute()), state.st_size, state.st_mtime_ns, state.st_ino)
    if key in _file_hashes:
        return _file_hashes[key]
    with path.open("rb") as file:
        value = hashlib.file_digest(file, "sha256").hexdigest()
    if time.time_ns() - state.st_mtime_ns > RACY:
        _file_hashes[key] = value
    return value
