"""Recordings: which class each is of, or what is said in it, by the feature extractor of a speech model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from headwise.errors import HeadwiseError
from headwise.tasks.columns import Columns, Ragged
from headwise.tasks.kinds.choice import Likelihoods
from headwise.tasks.kinds.classify import Classify
from headwise.tasks.kinds.generation import Reached
from headwise.tasks.task import Row

FEATURES = ("input_features", "input_values")  # what speech models read


@dataclass(frozen=True)
class Sound(Classify):
    """One label per recording; rows are ``{"path", "label"}``, and the tokenizer is the model's feature extractor.

    Example:
        >>> Sound(("no", "yes")).check({"path": "words/yes/1.wav", "label": "yes"})
    """

    asks: ClassVar[tuple[str, ...]] = ("path",)
    hears: ClassVar[bool] = True

    def check(self, row: Row) -> None:
        check_path(row)
        self.check_label(row)

    def files_of(self, rows: Sequence[Row]) -> list[Path]:
        return [Path(row["path"]) for row in rows]

    def encode(self, rows: Sequence[Row], tokenizer: Any, max_length: int) -> Columns:
        return {**features(self.files_of(rows), tokenizer), "label": np.array(self.gold(rows), np.int64)}


@dataclass(frozen=True)
class Transcript:
    """What is said in a recording: rows are ``{"path", "text"}``, and the tokenizer is a speech model's processor.

    The loss is minus the mean log-likelihood of the text's tokens; metrics: token_probability and continuation_match.

    Example:
        >>> Transcript().check({"path": "beckett.wav", "text": "Ever tried."})
    """

    folder: str = ""
    """Where relative paths begin."""
    labels: tuple[str, ...] = ("transcript",)
    hears: ClassVar[bool] = True

    def ready(self, rows: Sequence[Row]) -> Transcript:
        return self

    def check(self, row: Row) -> None:
        check_path(row)
        if not isinstance(row.get("text"), str) or not row["text"].strip():
            raise HeadwiseError(f"text {row.get('text')!r}", "what is said in the recording")

    def files_of(self, rows: Sequence[Row]) -> list[Path]:
        return [Path(self.folder) / row["path"] for row in rows]

    def encode(self, rows: Sequence[Row], tokenizer: Any, max_length: int) -> Columns:
        """``said``: the tokens of each text with the special ones around it; ``target``: those that are scored."""
        written = getattr(tokenizer, "tokenizer", None)
        if written is None:
            raise HeadwiseError(f"{type(tokenizer).__name__} for transcripts", "the processor of a speech model")
        said = [written(row["text"]).input_ids for row in rows]
        special = [written.get_special_tokens_mask(ids, already_has_special_tokens=True) for ids in said]
        columns = features(self.files_of(rows), tokenizer)
        columns["said"] = Ragged.of([ids[:max_length] for ids in said])
        columns["target"] = Ragged.of([[1 - s for s in mask[:max_length]] for mask in special], dtype=np.int8)
        return {**columns, "cut": np.array([max(0, len(ids) - max_length) for ids in said])}

    def likelihoods(self, logits: Tensor, ids: Tensor, batch: dict[str, Tensor]) -> Likelihoods:
        """Of the scored tokens, from the logits ``(B, T, V)`` at the last T tokens."""
        scored = batch["target"][:, -ids.shape[1] :] == 1
        chosen = logits.float().log_softmax(-1).gather(-1, ids.clamp_min(0)[..., None])[..., 0]
        missed = ((logits.argmax(-1) != ids) & scored).any(1)
        return Likelihoods((chosen * scored).sum(1, keepdim=True), ~missed[:, None])

    def loss(self, scores: Likelihoods, batch: dict[str, Tensor]) -> Tensor:
        return -scores.total[:, 0] / (batch["target"] == 1).sum(1).clamp_min(1)

    def decode(self, scores: Likelihoods, batch: dict[str, Tensor]) -> list:
        assert scores.greedy is not None
        columns = (scores.greedy[:, 0], scores.total[:, 0], (batch["target"] == 1).sum(1))
        return [Reached(*row) for row in zip(*(column.tolist() for column in columns))]

    def gold(self, rows: Sequence[Row]) -> list:
        return [row["text"] for row in rows]

    def head(self, hidden: int) -> torch.nn.Module:
        raise HeadwiseError("a transcript for an encoder with a new output head", "a model that writes what it hears")


def check_path(row: Row) -> None:
    if not isinstance(row.get("path"), str | Path):
        raise HeadwiseError(f"path {row.get('path')!r}", "a recording's file")


def features(files: Sequence[Path], processor: Any) -> Columns:
    """What a speech model reads of some recordings, padded to the longest."""
    extractor = getattr(processor, "feature_extractor", processor)
    rate = getattr(extractor, "sampling_rate", None)
    if rate is None:
        raise HeadwiseError(f"{type(processor).__name__} for recordings", "the feature extractor of a speech model")
    sounds = [read_sound(file, rate) for file in files]
    most = getattr(extractor, "n_samples", None)
    for file, sound in zip(files, sounds):
        if most and len(sound) > most:
            raise HeadwiseError(f"{file} of {len(sound) / rate:.0f} s", f"{most / rate:.0f} s or less", "cut it")
    padding = "max_length" if most else True  # Whisper reads recordings of one length only
    made = extractor(sounds, sampling_rate=rate, padding=padding, return_tensors="np")
    return {name: np.asarray(made[name]) for name in (*FEATURES, "attention_mask") if name in made}


def read_sound(path: Path, rate: int) -> np.ndarray:
    """A .wav file as one channel of numbers from -1 to 1, at this rate."""
    from scipy.io import wavfile
    from scipy.signal import resample_poly

    try:
        own, sound = wavfile.read(path)
    except FileNotFoundError:
        raise HeadwiseError(f"no file {path}", "a recording") from None
    except (ValueError, OSError, EOFError) as error:
        raise HeadwiseError(f"{path} is not a readable recording ({error})", "a .wav file") from None
    if not sound.size:
        raise HeadwiseError(f"{path} without any sound", "a recording")
    if sound.dtype.kind in "iu":
        middle = 128 if sound.dtype == np.uint8 else 0  # bytes have their silence in the middle
        sound = (sound.astype(np.float32) - middle) / (np.iinfo(sound.dtype).max - middle)
    sound = sound.astype(np.float32)
    sound = sound.mean(1) if sound.ndim > 1 else sound
    both = math.gcd(own, rate)
    return sound if own == rate else resample_poly(sound, rate // both, own // both).astype(np.float32)
