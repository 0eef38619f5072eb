"""Checkpoints: safetensors and JSON, written atomically; if the newest is broken, the one before is used."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Collection, Mapping, Set
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from headwise.errors import HeadwiseError
from headwise.io.files import file_digest, folder, read_json, write_json

FORMAT = 1
KEEP = 2  # the newest, and the one before in case the newest is broken


def save(
    root: Path,
    step: int,
    tensors: Mapping[str, dict[str, torch.Tensor]],
    state: dict[str, Any],
    best: int | None = None,
    marks: Collection[int] = (),
) -> Path:
    """Write ``root/step-…``: one safetensors file per group of tensors, and the state with the hash of every file.

    Keeps the newest checkpoints, the one of step ``best`` and those of ``marks``. Removes those after ``step``, from
    which training was rewound.
    """
    path = place(root, step)
    with folder(path, replace=True) as scratch:
        files = {}
        for name, group in tensors.items():
            file = scratch / f"{name}.safetensors"
            save_file(_apart(group), file)
            files[file.name] = file_digest(file)
        write_json(scratch / "state.json", {"format": FORMAT, "step": step, "best": best, "files": files, **state})
    existing = list_all(root)
    newest = existing.index(path) + 1
    special = [at for at in (*marks, best) if at is not None and at <= step]
    keep = {*existing[max(0, newest - KEEP) : newest], *(place(root, at) for at in special)}
    _remove(root, [old for old in existing if old not in keep])
    return path


def _apart(group: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors ready to be saved: on the CPU, with shared tensors copied."""
    made: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in group.items():
        saved = tensor.detach().contiguous().cpu()
        place = saved.untyped_storage().data_ptr()
        made[name] = saved.clone() if place in seen else saved
        seen.add(place)
    return made


def _remove(root: Path, checkpoints: list[Path]) -> None:
    """Remove checkpoints, each by one rename first, and leftovers of killed processes."""
    for left in root.glob(".step-*"):
        shutil.rmtree(left, ignore_errors=True)
    for path in checkpoints:
        shutil.rmtree(path.rename(path.with_name(f".{path.name}.old")), ignore_errors=True)


def place(root: Path, step: int) -> Path:
    return root / f"step-{step:08d}"


def best(root: Path) -> Path | None:
    """The checkpoint of the best mean development score, if one was kept."""
    for path in reversed(list_all(root)):
        step = read_json(path / "state.json").get("best")
        return place(root, step) if step is not None and place(root, step).is_dir() else None
    return None


def list_all(root: Path) -> list[Path]:
    """The checkpoints under a folder, oldest first."""
    return sorted(p for p in root.glob("step-*") if p.is_dir())


def load(path: Path) -> tuple[dict[str, dict[str, torch.Tensor]], dict[str, Any]]:
    """Load a checkpoint after verifying the hashes of its files."""
    state = read_json(path / "state.json")
    version = state.get("format") if isinstance(state, dict) else None
    if version != FORMAT:
        raise HeadwiseError(f"checkpoint {path} has format {version!r}", f"format {FORMAT}")
    groups, files = {}, state.get("files")
    for name, wanted in files.items() if isinstance(files, dict) else [("state.json", None)]:
        file = path / Path(name).name
        if not _as_written(file, wanted):
            raise HeadwiseError(f"checkpoint {path} is broken: {name} is missing or was modified")
        try:
            groups[file.stem] = load_file(file)
        except SafetensorError as error:
            raise HeadwiseError(f"checkpoint {path} is broken: {name} ({error})") from None
    return groups, state


def _as_written(file: Path, wanted: str | None) -> bool:
    try:
        return file_digest(file) == wanted
    except OSError:  # missing, or not a valid file name
        return False


def newest(root: Path) -> tuple[dict[str, dict[str, torch.Tensor]], dict[str, Any]] | None:
    """The newest intact checkpoint; broken ones are skipped with a warning."""
    for path in reversed(list_all(root)):
        try:
            return load(path)
        except HeadwiseError as error:
            warnings.warn(f"{error}; using the checkpoint before it", stacklevel=2)
    return None


def pack_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """The optimizer state as named tensors."""
    state = optimizer.state_dict()["state"]
    return {f"{i}.{name}": value for i, entry in state.items() for name, value in entry.items()}


def unpack_optimizer(
    optimizer: torch.optim.Optimizer, tensors: Mapping[str, torch.Tensor], fresh: Set[torch.Tensor] = frozenset()
) -> None:
    """Restore an optimizer's state; parameters that are ``fresh`` or unknown to it get none."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    restored = {str(number) for number, parameter in enumerate(parameters) if parameter not in fresh}
    state: dict[int, dict[str, torch.Tensor]] = {}
    for key, value in tensors.items():
        number, name = key.split(".", 1)
        if number in restored:
            state.setdefault(int(number), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def pack_random() -> dict[str, torch.Tensor]:
    """The states of torch's random generators."""
    streams = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        streams["cuda"] = torch.cuda.get_rng_state()
    return streams


def unpack_random(streams: Mapping[str, torch.Tensor]) -> None:
    torch.set_rng_state(streams["cpu"])
    if "cuda" in streams and torch.cuda.is_available():
        torch.cuda.set_rng_state(streams["cuda"])
