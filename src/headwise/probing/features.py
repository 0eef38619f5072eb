"""Read sentences in one pass: every head's output vector, before the output projection, and every layer's output.

Legend: B batch, T tokens, L layers, H heads, D head size (twice for pairs read apart), E layer size, N sentences.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor, nn

from headwise.errors import HeadwiseError, HeadwiseWarning, unknown
from headwise.heads.gates import Heads, captured, unwrap
from headwise.heads.modules import evaluating
from headwise.io.files import cache_folder, digest
from headwise.io.identity import identity
from headwise.measuring.evaluate import TOKENS
from headwise.models.batching import Encoded, batches
from headwise.models.causality import default_pooling
from headwise.models.device import Budget
from headwise.models.loading import load_encoder
from headwise.models.multitask import MultiTaskModel, pool
from headwise.models.processes import Team
from headwise.probing import mapped
from headwise.tasks.columns import Ragged
from headwise.tasks.kinds.classify import encode_texts
from headwise.tasks.task import Row

POSITIONS = ("cls", "last", "mean", "post_last")
PAIRS = ("apart", "together")
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
POOL = 4096  # sentences sorted by length together, and written to disk together


@dataclass(frozen=True)
class Features:
    """The vectors of N sentences in every head and every layer."""

    heads: Tensor = field(repr=False)  # (L, H, N, D); NaN for heads that were cut away
    layers: Tensor = field(repr=False)  # (L, N, E)
    cut: int  # texts longer than the model reads
    place: str  # the device they are on, or the file they are in
    means: Tensor | None = field(default=None, repr=False)  # (L, N, E): the mean of all tokens, where asked for

    def __len__(self) -> int:
        return self.layers.shape[1]

    @property
    def about(self) -> dict[str, Any]:
        """Where the features are stored, and their size."""
        size = sum(t.numel() * t.element_size() for t in (self.heads, self.layers, self.means) if t is not None)
        return {"kept": "disk" if self.place.endswith(".safetensors") else self.place, "bytes": size}


@dataclass(frozen=True)
class Reader:
    """How sentences become vectors.

    Example:
        >>> reader = Reader.of(model, tokenizer, at="cls")
        >>> reader.read([{"text": "A dog barks."}]).heads.shape
        torch.Size([12, 12, 1, 64])
    """

    encoder: nn.Module
    tokenizer: Any
    at: str
    """Which token represents the sentence: cls (the first), last, mean (of all), or post_last (a padding token put
    after the last one, which the released code of Jo and Myaeng 2020 reads for GPT)."""
    pair: str = "apart"
    """Two texts: read apart and put together as [|a - b|, a * b], or read together as one input."""
    max_length: int = 128
    precision: str = "fp32"
    tokens: int | None = None
    means: bool = False
    """Read the mean of all tokens of every layer as well, in the same pass."""

    def __post_init__(self) -> None:
        for what, value, known in (
            ("position", self.at, POSITIONS),
            ("way to read pairs", self.pair, PAIRS),
            ("precision", self.precision, mapped.DTYPES),
        ):
            if value not in known:
                raise unknown(what, value, known)

    @classmethod
    def of(
        cls, model: Any, tokenizer: Any = None, at: str | None = None, max_length: int | None = None, **options
    ) -> Reader:
        """A reader for a `MultiTaskModel`, a Hugging Face model with its tokenizer, or a folder or Hub name."""
        if isinstance(model, str | Path):
            model, tokenizer = load_encoder(model)
        pooling = None
        if isinstance(model, MultiTaskModel):
            tokenizer, max_length, pooling = model.tokenizer, max_length or model.max_length, model.pooling
            model = model.encoder
        if tokenizer is None:
            raise HeadwiseError(
                "a Hugging Face model without its tokenizer", hint="tokenizer=AutoTokenizer.from_pretrained(...)"
            )
        inner = unwrap(model)
        inner = getattr(inner, "base_model", inner)
        return cls(inner, tokenizer, at or pooling or default_pooling(inner), max_length=max_length or 128, **options)

    @cached_property
    def heads(self) -> Heads:
        return Heads.of(self.encoder)

    @property
    def device(self) -> torch.device:
        return next(self.encoder.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return mapped.DTYPES[self.precision][0]

    @property
    def model_key(self) -> str:
        """A hash of the model's current state: weights, configuration and remaining heads."""
        return digest(identity(self.encoder), self.heads.alive.tolist())

    def key(self, rows: Sequence[Row]) -> str:
        """A hash of what determines the features: the model, the texts and how they are read."""
        texts = [[row["text"], row.get("text_b")] for row in rows]
        way = [self.at, self.pair, self.max_length, self.precision, *(["means"] if self.means else [])]
        return digest(self.model_key, identity(self.tokenizer), texts, way)

    def read(self, rows: Sequence[Row], *, cache: bool | str | Path = False, memory: int | None = None) -> Features:
        """Read rows ``{"text", "text_b"?}``; features are on the model's device, or on disk if they do not fit.

        Args:
            rows: the sentences.
            cache: store features in a memory-mapped file and reuse it; a folder, or True for the cache folder. Not used
                under gates or other hooks, whose effect is not part of the key.
            memory: bytes that features may take before they go to disk. Default: half of the free memory.
        """
        shapes, hooked = self._shapes(rows), _hooked(self.encoder)
        room = free_memory(self.device) // 2 if memory is None else memory
        if (hooked or not cache) and mapped.nbytes(shapes, self.precision) <= room:
            out = {name: torch.empty(shape, dtype=self.dtype, device=self.device) for name, shape in shapes.items()}
            return self._features(out, self._fill(rows, out), str(self.device))
        root = Path(cache) if isinstance(cache, str | Path) else cache_folder("features")
        if not hooked:
            return self._cached(rows, shapes, root)
        root.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=root, ignore_cleanup_errors=True) as scratch:  # a map outlives its file's name
            return self._cached(rows, shapes, Path(scratch), own=True)

    def _cached(self, rows: Sequence[Row], shapes: mapped.Shapes, root: Path, own: bool = False) -> Features:
        """Features in a file; of several processes the first writes it, in a folder that all read, or each its own."""
        key = self.key(rows)
        path = root / f"{key}.safetensors"
        if self.team.everywhere(path.exists()):
            try:
                return self._opened(path, key)
            except HeadwiseError as error:
                warnings.warn(HeadwiseWarning(f"feature cache rejected and rebuilt: {error}"), stacklevel=2)
        about = {"key": key}
        if self.team.rank == 0 or own:
            with mapped.written(path, shapes, self.precision, about) as out:
                about["cut"] = str(self._fill(rows, out))
        else:
            self._fill(rows, {})
        self.team.agree()
        return self._opened(path, key)

    def _opened(self, path: Path, key: str) -> Features:
        tensors, about = mapped.read(path, key)
        return self._features(tensors, int(about.get("cut", 0)), str(path))

    def _features(self, tensors: Mapping[str, Tensor], cut: int, place: str) -> Features:
        """Layers and means, which are filled as one, taken apart."""
        heads, layers = tensors["heads"], tensors["layers"]
        if not self.means:
            return Features(heads, layers, cut, place)
        number = len(layers) // 2
        return Features(heads, layers[:number], cut, place, layers[number:])

    def _shapes(self, rows: Sequence[Row]) -> dict[str, tuple[int, ...]]:
        """Shapes of the features; the size of a layer's output is measured on the model."""
        if not len(rows):
            raise HeadwiseError("features of no sentences", "one or more")
        paired = sum(row.get("text_b") is not None for row in rows)
        if self.pair == "apart" and 0 < paired < len(rows):
            seen = f"{paired} rows of {len(rows)} with a second text"
            raise HeadwiseError(seen, "all or none, where two texts are read apart", 'Reader.of(..., pair="together")')
        heads, layers, _ = self.vectors(rows[:1])
        return {name: (*t.shape[:-2], len(rows), t.shape[-1]) for name, t in (("heads", heads), ("layers", layers))}

    def _fill(self, rows: Sequence[Row], out: Mapping[str, Tensor]) -> int:
        cut = 0
        for start in range(0, len(rows), POOL):
            part = slice(start, start + POOL)
            heads, layers, lost = self.vectors(rows[part])
            for name, vectors in {"heads": heads, "layers": layers}.items() if out else ():
                out[name][..., part, :] = vectors.to(out[name].device)
            cut += lost
        return cut

    def vectors(self, rows: Sequence[Row]) -> tuple[Tensor, Tensor, int]:
        """Head vectors ``(L, H, n, D)`` and layer vectors ``(L, n, E)`` of some rows, and how many were truncated.

        With ``means``, the layers' means over tokens follow: ``(2 L, n, E)``.
        """
        paired = any(row.get("text_b") is not None for row in rows)
        if not paired or self.pair == "together":
            return self._pass(rows)
        a = self._pass([{"text": row["text"]} for row in rows])
        b = self._pass([{"text": row.get("text_b") or ""} for row in rows])
        heads, layers = (torch.cat([(x - y).abs(), x * y], -1) for x, y in zip(a[:2], b[:2]))
        return heads, layers, a[2] + b[2]

    def _pass(self, rows: Sequence[Row]) -> tuple[Tensor, Tensor, int]:
        data = self._tokenized(rows)
        return self._room.fit(lambda tokens: self._forward(data, tokens))

    @torch.no_grad()
    def _forward(self, data: Encoded, budget: int) -> tuple[Tensor, Tensor, int]:
        how = "last" if self.at == "post_last" else self.at
        shape = (*self.heads.shape, len(data), self.heads.head_dim)
        heads, layers = torch.zeros(shape, dtype=self.dtype, device=self.device), torch.empty(0)
        accepted = inspect.signature(self.encoder.forward).parameters
        batch: dict[str, Tensor] = {}

        def reduce(out_BTHD: Tensor) -> Tensor:
            vector = pool(out_BTHD.flatten(2), batch["attention_mask"], how)
            return vector.unflatten(-1, out_BTHD.shape[2:]).to(self.dtype)

        with evaluating(self.encoder), self._autocast(), captured(self.encoder, reduce, heads=self.heads) as kept:
            for (numbers, tensors), counts in self.team.share(batches(data, budget, self.device)):
                items = torch.from_numpy(numbers).to(self.device)
                kept.clear()
                batch.update(tensors)
                inputs = {name: tensors[name] for name in INPUTS if name in tensors and name in accepted}
                states = self.encoder(**inputs, output_hidden_states=True).hidden_states[1:]
                ways = (how, "mean") if self.means else (how,)
                outputs_LBE = torch.stack([pool(state, tensors["attention_mask"], w) for w in ways for state in states])
                if not layers.numel():
                    layers = heads.new_zeros(len(outputs_LBE), len(data), outputs_LBE.shape[-1])
                if counts:
                    heads[:, :, items], layers[:, items] = torch.stack(kept).transpose(1, 2), outputs_LBE.to(self.dtype)
        heads, layers = self.team.completed(heads), self.team.completed(layers)
        return heads, layers, int((np.asarray(data.columns["cut"]) > 0).sum())

    def _tokenized(self, rows: Sequence[Row]) -> Encoded:
        room = self.max_length - (self.at == "post_last")
        columns = encode_texts(rows, self.tokenizer, room)
        ids = columns["input_ids"]
        assert isinstance(ids, Ragged)
        if self.at == "post_last":
            columns["input_ids"] = Ragged.of([[*ids[i], 0] for i in range(len(rows))])  # id 0, as released
        elif ids.lengths.min() == 0:
            raise HeadwiseError(f"row {int(ids.lengths.argmin())} has no tokens", "a text that is not empty")
        return Encoded(columns, pad=getattr(self.tokenizer, "pad_token_id", None) or 0, rows=len(rows))

    @property
    def budget(self) -> int:
        """Padded tokens in one forward."""
        return self._room.tokens

    @cached_property
    def _room(self) -> Budget:
        return Budget(self.tokens or (TOKENS if self.device.type == "cpu" else 32 * TOKENS), self.team)

    @cached_property
    def team(self) -> Team:
        """The processes that sentences are dealt out to."""
        return Team.of(self.encoder)

    def _autocast(self):
        mixed = self.device.type == "cuda" and self.precision != "fp32"
        return torch.autocast("cuda", self.dtype) if mixed else nullcontext()


def _hooked(encoder: nn.Module) -> bool:
    """Whether hooks, such as gates, may change the outputs; those with which transformers collects outputs cannot."""
    hooks = (h for m in encoder.modules() for h in (*m._forward_pre_hooks.values(), *m._forward_hooks.values()))
    return any(getattr(hook, "__module__", None) != "transformers.utils.output_capturing" for hook in hooks)


def free_memory(device: torch.device) -> int:
    """Bytes that are free on a device."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
