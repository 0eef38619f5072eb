"""Files: content hashes, atomic writes, caches and locks (no torch)."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
import tempfile
import uuid
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as pack_arrays

from headwise.errors import HeadwiseError, HeadwiseWarning
from headwise.io import system

CONTENT = "sha256"  # the metadata field with the hash of a file's arrays
BARE = frozenset((str, int, float, bool, type(None)))


def plain(value: Any) -> Any:
    """The value in JSON types: dataclasses become dicts, arrays become lists, paths become text."""
    if type(value) in BARE:  # the most common case: tens of thousands of rows are hashed word by word
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {"type": type(value).__name__, **plain(asdict(value))}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return sorted((plain(v) for v in value), key=repr)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise HeadwiseError(f"a {type(value).__name__} cannot be stored", "numbers, text, lists or dicts")


def finite(value: Any, digits: int = 17) -> Any:
    """Plain data with None for NaN and infinity, and floats rounded to ``digits`` (17 keep every bit)."""

    def cut(value: Any) -> Any:
        if isinstance(value, float):
            return float(f"{value:.{digits}g}") if math.isfinite(value) else None
        if isinstance(value, dict):
            return {name: cut(part) for name, part in value.items()}
        return [cut(part) for part in value] if isinstance(value, list) else value

    return cut(plain(value))


def digest(*parts: Any, length: int = 16) -> str:
    """A short content hash of plain values and arrays.

    Example:
        >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
        True
    """
    sha = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            sha.update(f"{part.dtype.str}{part.shape}".encode())
            sha.update(np.ascontiguousarray(part).tobytes())
        elif isinstance(part, bytes):
            sha.update(part)
        else:
            sha.update(json.dumps(plain(part), sort_keys=True, ensure_ascii=False).encode())
        sha.update(b"\0")
    return sha.hexdigest()[:length]


def file_digest(path: Path, length: int = 16) -> str:
    """The content hash of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:length]


def write(path: Path, content: bytes | str) -> Path:
    """Write a file atomically: readers see the old content or the new, never a part."""
    path = Path(path)
    if not path.name:
        raise HeadwiseError(f"{str(path)!r} as a file's name", "a path that ends in a name")
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with scratch.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
    system.sync(path.parent)
    return path


@contextmanager
def folder(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """A scratch folder that is renamed to ``path`` if the block succeeds, and is removed otherwise.

    With ``replace`` it may replace an existing folder, also through a symlink.
    """
    path = Path(path).resolve() if replace else Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    scratch.mkdir()
    try:
        yield scratch
        for file in scratch.rglob("*"):
            system.sync(file)
        if not replace:
            require_new(path)
        _take_place(scratch, path)
        system.sync(path.parent)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def require_new(path: Path) -> None:
    """Raise if the path exists, even as a dangling symlink."""
    if path.exists() or path.is_symlink():
        raise HeadwiseError(f"{path} already exists", "a new folder", f"remove {path} or name another")


def require_replaceable(path: Path) -> None:
    """Raise if `folder` could not replace what exists at this path."""
    real = Path(path).resolve()
    there = next(place for place in real.parents if place.exists())
    if real.exists() and not real.is_dir():
        raise HeadwiseError(f"{path} is a file", "a folder, or nothing", f"remove {path} or name another")
    if not os.access(there, os.W_OK | os.X_OK):
        raise HeadwiseError(f"no permission to write in {there}, where {path} points", "a folder that can be replaced")


def _take_place(scratch: Path, path: Path) -> None:
    """Rename a folder over another that may exist; at any moment there is the old one or the new."""
    try:
        scratch.rename(path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        if not system.exchange(scratch, path):
            old = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.old")
            path.rename(old)
            scratch.rename(path)
            shutil.rmtree(old, ignore_errors=True)


def write_json(path: Path, value: Any) -> Path:
    """Write readable JSON: one line per field of the outer levels, with everything below on that line."""
    return write(path, _lines(plain(value), LEVELS) + "\n")


LEVELS = 3  # levels with one line per field: a record, its plan, its scores


def _lines(value: Any, levels: int, margin: str = "\n") -> str:
    inner = f"{margin} "
    if levels and isinstance(value, dict) and value:
        fields = [f"{_line(name)}: {_lines(v, levels - 1, inner)}" for name, v in value.items()]
        return f"{{{inner}{f',{inner}'.join(fields)}{margin}}}"
    if levels and isinstance(value, list) and any(isinstance(v, dict | list) for v in value):
        return f"[{inner}{f',{inner}'.join(_lines(v, levels - 1, inner) for v in value)}{margin}]"
    return _line(value)


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=True, separators=(",", ":"))


def read_json(path: Path) -> Any:
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise HeadwiseError(f"no file {path}") from None
    except (
        ValueError,
        RecursionError,
        IsADirectoryError,
    ) as error:  # not JSON, not text, huge numbers or absurd nesting
        raise HeadwiseError(f"{path} is not readable as JSON ({error})", "a file written by headwise") from None


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray], about: Mapping[str, str] | None = None) -> Path:
    """Write arrays as one safetensors file with metadata and a hash of both."""
    dense, about = {name: np.ascontiguousarray(array) for name, array in arrays.items()}, dict(about or {})
    return write(path, pack_arrays(dense, metadata={**about, CONTENT: _content(dense, about)}))


def read_arrays(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Read what `write_arrays` wrote; raise if the content was modified."""
    try:
        with safe_open(path, framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            about = dict(file.metadata() or {})
    except (FileNotFoundError, SafetensorError, OSError) as error:
        raise HeadwiseError(f"{path} is not a readable safetensors file ({error})") from None
    if about.pop(CONTENT, None) not in (None, _content(arrays, about), _content(arrays)):  # the last: earlier files
        raise HeadwiseError(f"{path} was modified after it was written", "its sha256 to match", f"remove {path}")
    return arrays, about


def _content(arrays: Mapping[str, np.ndarray], about: Mapping[str, str] | None = None) -> str:
    parts = [part for name in sorted(arrays) for part in (name, arrays[name])]
    return digest(*parts, *([about] if about else []), length=64)


def tensor_names(path: Path) -> list[str]:
    with safe_open(path, framework="numpy") as file:
        return list(file.keys())


def cache_folder(name: str) -> Path:
    """The folder for files that can be recomputed: ``$HEADWISE_CACHE`` or the user's cache folder."""
    root = (
        os.environ.get("HEADWISE_CACHE")
        or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headwise"
    )
    return Path(root) / name


NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL}  # a file system without locks


@contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[None]:
    """Lock a file or an existing folder for one process at a time; the system unlocks it when the process ends.

    If the file system has no locks, a file in the machine's temporary folder is locked instead, with a warning.

    Raises:
        BlockingIOError: another process holds the lock and ``wait`` is False.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = system.lock(path, wait)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        descriptor = _lock_elsewhere(path, wait)
    try:
        yield
    finally:
        os.close(descriptor)


def _lock_elsewhere(path: Path, wait: bool) -> int:
    folder = Path(tempfile.gettempdir()) / f"headwise-locks-{system.user()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    try:
        descriptor = system.lock(folder / digest(str(path.resolve())), wait)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        hint = "choose a folder on another file system, or set TMPDIR to one"
        raise HeadwiseError(f"no file locks in {path.parent} and {folder}", "a file system with locks", hint) from error
    seen = f"{path} cannot be locked on its file system: processes of other machines could use it"
    warnings.warn(f"{seen} at the same time", HeadwiseWarning, stacklevel=4)
    return descriptor
