"""Cross-attention heads that follow the speech: word onsets, and `generation_config.alignment_heads`.

With a text and its sound, a head aligns if the frames it looks at come in the order of the tokens, and do not when the
sound is another's. With words' true onsets, a head is as good as the onsets that dynamic time warping of its map gives
(Radford et al. 2023; OpenAI's and Hugging Face's word timestamps do the same with a fixed list of heads).

Legend: C clips, T text tokens, F frames, W words, L layers, H heads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import ndimage, stats
from torch import nn

from headwise.atlas.result import Moments, Roles
from headwise.errors import HeadwiseError
from headwise.heads.gates import Heads
from headwise.heads.modules import evaluating

RATE = 16_000  # samples in a second
FRAME = 320  # samples of a frame of the encoder, 20 ms
SMOOTH = 7  # frames of the median filter
NAME, ABOUT = "alignment", "the sound in the order of the text (fraction of token pairs whose peaks are in order)"
Chosen = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Clip:
    """Speech at 16 kHz, its text and, if known, the onset of each word in seconds."""

    sound: np.ndarray
    text: str
    onsets: np.ndarray | None = None


@dataclass(frozen=True)
class Aligned:
    """One clip's attention from text tokens to frames."""

    maps_LHTF: np.ndarray
    word_T: np.ndarray  # the word each token belongs to


def alignment(model: nn.Module, processor: Any, clips: Sequence[Clip]) -> Roles:
    """How monotonically each cross-attention head follows the audio.

    The control is the same text with the sound of another clip: a head that goes by places alone is in order there too.

    Example:
        >>> scores = alignment(model, processor, clips)
        >>> write_heads(model, monotonic(scores))
    """
    if len(clips) < 2:
        raise HeadwiseError(f"{len(clips)} clips", "two or more: each is the control of another")
    heads = _cross(model)
    sums = Moments(np.zeros(1, int), *(np.zeros((1, *heads.shape)) for _ in range(4)))
    strange = [Clip(clips[i - 1].sound, clip.text) for i, clip in enumerate(clips)]
    for own, other in zip(_aligned(model, processor, clips), _aligned(model, processor, strange)):
        score, control = in_order(own.maps_LHTF), in_order(other.maps_LHTF)
        for name, value in zip(
            ("texts", "score", "control", "score_squared", "lift_squared"),
            (1, score, control, score**2, (score - control) ** 2),
        ):
            getattr(sums, name)[0] += value
    return Roles.of([NAME], [ABOUT], sums)


def in_order(maps_LHTF: np.ndarray) -> np.ndarray:
    """The fraction of token pairs whose attention peaks are in order, (L, H): (1 + Kendall's tau) / 2."""
    peaks = maps_LHTF.argmax(-1)
    place = np.arange(peaks.shape[-1])
    tau = np.array([[stats.kendalltau(place, head)[0] for head in layer] for layer in peaks])
    return (1 + np.nan_to_num(tau)) / 2


def monotonic(aligned: Roles) -> list[tuple[int, int]]:
    """The aligning heads: those above the widest gap in the order of all heads' scores.

    Example:
        >>> monotonic(alignment(model, processor, clips))
        [(1, 0), (1, 5), (2, 0), (2, 1), (2, 3), (3, 0)]
    """
    score = aligned.score[aligned.index(NAME)]
    values = np.sort(score[~np.isnan(score)])
    cut = values[np.diff(values).argmax() + 1]
    return [(int(layer), int(head)) for layer, head in np.argwhere(score >= cut)]


def onset_errors(
    model: nn.Module, processor: Any, clips: Sequence[Clip], choices: Sequence[Chosen] | None = None
) -> np.ndarray:
    """Mean absolute errors of word onsets in seconds, (C, choices), of single heads or of sets of heads.

    Args:
        model: an encoder-decoder speech model.
        processor: its processor.
        clips: speech with true onsets.
        choices: sets of heads whose maps are averaged. Default: every head alone, (C, L · H).
    """
    if any(clip.onsets is None for clip in clips):
        raise HeadwiseError("a clip without onsets", "true onsets of its words, in seconds")
    rows = []
    for clip, seen in zip(clips, _aligned(model, processor, clips)):
        assert clip.onsets is not None
        words = int(seen.word_T.max()) + 1
        if len(clip.onsets) != words:
            raise HeadwiseError(f"{len(clip.onsets)} onsets for {words} words of {clip.text!r}", "one for each word")
        maps = _normal(seen.maps_LHTF)
        layers, heads = maps.shape[:2]
        sets = choices or [[divmod(i, heads)] for i in range(layers * heads)]
        costs_NTF = np.stack([-np.mean([maps[head] for head in chosen], 0) for chosen in sets])
        times = _first_frames(costs_NTF)[:, np.unique(seen.word_T, return_index=True)[1]] * FRAME / RATE
        rows.append(np.abs(times - clip.onsets).mean(1))
    return np.array(rows)


def best_heads(errors_CN: np.ndarray, shape: tuple[int, int], factor: float = 2.0) -> list[tuple[int, int]]:
    """The heads whose onset error is at most ``factor`` times that of the best one."""
    mean = errors_CN.mean(0)
    return [divmod(int(i), shape[1]) for i in np.flatnonzero(mean <= factor * mean.min())]


def word_onsets(model: nn.Module, processor: Any, clip: Clip, heads: Chosen | None = None) -> np.ndarray:
    """The onset of each word of a clip's text in seconds, from the model's alignment heads or others."""
    chosen = heads or [tuple(head) for head in getattr(model.generation_config, "alignment_heads", None) or []]
    if not chosen:
        raise HeadwiseError("no alignment heads", "heads, or a model with its own", "write_heads(model, heads)")
    [seen] = _aligned(model, processor, [clip])
    maps = _normal(seen.maps_LHTF)
    frames = _first_frames(-np.mean([maps[head] for head in chosen], 0)[None])[0]
    return frames[np.unique(seen.word_T, return_index=True)[1]] * FRAME / RATE


def write_heads(model: Any, heads: Chosen) -> None:
    """Make transformers use these heads for word timestamps; `save_pretrained` stores the list.

    Example:
        >>> write_heads(model, heads)
        >>> model.generate(features, return_token_timestamps=True)
    """
    alive = _cross(model).alive
    for layer, head in heads:
        if not (0 <= layer < alive.shape[0] and 0 <= head < alive.shape[1]):
            raise HeadwiseError(f"head {layer}.{head}", f"cross-attention heads of {tuple(alive.shape)}")
    if not heads:
        raise HeadwiseError("no heads", "one or more")
    model.generation_config.alignment_heads = [[int(layer), int(head)] for layer, head in heads]


def _cross(model: nn.Module) -> Heads:
    return Heads.of(model, stack="cross")


@torch.no_grad()
def _aligned(model: Any, processor: Any, clips: Sequence[Clip]) -> Iterator[Aligned]:
    """Each clip with its true text forced; rows are those that predict a token of the text."""
    tokenizer, parameter = processor.tokenizer, next(model.parameters())
    before = model.config._attn_implementation
    prefix = [i for i in tokenizer("").input_ids if i != tokenizer.eos_token_id]
    for clip in clips:
        ids = tokenizer(" " + clip.text.strip(), add_special_tokens=False).input_ids
        features = processor.feature_extractor(clip.sound, sampling_rate=RATE, return_tensors="pt").input_features
        with evaluating(model):
            sound = model.get_encoder()(features.to(parameter.device, parameter.dtype))
            model.set_attn_implementation("eager")  # restored at once: the caller may stop in the middle of the clips
            given = torch.tensor([[*prefix, *ids]], device=parameter.device)
            try:
                out = model(encoder_outputs=sound, decoder_input_ids=given, output_attentions=True, use_cache=False)
            finally:
                model.set_attn_implementation(before)
        frames = max(1, min(len(clip.sound) // FRAME, out.cross_attentions[0].shape[-1]))
        rows = slice(len(prefix) - 1, len(prefix) - 1 + len(ids))
        maps = torch.stack([layer[0] for layer in out.cross_attentions])[:, :, rows, :frames]
        yield Aligned(maps.float().cpu().numpy(), _words(tokenizer, ids))


def _words(tokenizer: Any, ids: Sequence[int]) -> np.ndarray:
    """The index of each token's word; a word begins with a space."""
    starts = [i == 0 or tokenizer.decode([token]).startswith(" ") for i, token in enumerate(ids)]
    return np.cumsum(starts) - 1


def _normal(maps_LHTF: np.ndarray) -> np.ndarray:
    """Standardize each frame's attention over tokens and smooth it over frames, as for Whisper's timestamps."""
    spread = maps_LHTF.std(-2, keepdims=True)
    scaled = (maps_LHTF - maps_LHTF.mean(-2, keepdims=True)) / np.maximum(spread, 1e-9)
    return ndimage.median_filter(scaled, (1, 1, 1, SMOOTH), mode="reflect")


def _first_frames(costs_NTF: np.ndarray) -> np.ndarray:
    """The frame at which each token begins on the cheapest monotonic path, (N, T): dynamic time warping."""
    count, tokens, frames = costs_NTF.shape
    total = np.full((count, tokens + 1, frames + 1), np.inf)
    total[:, 0, 0] = 0
    came = np.zeros((count, tokens + 1, frames + 1), np.int8)
    for t in range(1, tokens + 1):
        for f in range(1, frames + 1):
            ways = np.stack([total[:, t - 1, f - 1], total[:, t - 1, f], total[:, t, f - 1]])
            came[:, t, f] = ways.argmin(0)
            total[:, t, f] = costs_NTF[:, t - 1, f - 1] + ways.min(0)
    first = np.zeros((count, tokens), int)
    for n in range(count):
        t, f = tokens, frames
        while t > 0 and f > 0:
            first[n, t - 1] = f - 1
            step = came[n, t, f]
            t, f = t - (step != 2), f - (step != 1)
    return first
