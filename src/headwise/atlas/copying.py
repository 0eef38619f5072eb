"""Heads that copy from the context: retrieval scores by a needle in a haystack, and what closing such heads costs.

Wu et al. 2024 (arXiv 2404.15574): a head's retrieval score is the fraction of copied tokens at which its largest
attention lies on the position that the token was copied from.

Legend: N needles, T tokens, L layers, H heads, K copied tokens of a needle.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from headwise.atlas.result import Moments, Roles
from headwise.atlas.texts import ordinary_tokens
from headwise.errors import HeadwiseError
from headwise.heads.attention import streamed
from headwise.heads.gates import Heads, gated, unwrap
from headwise.heads.modules import evaluating, positions
from headwise.measuring.stats import Estimate, bootstrap, paired_bootstrap
from headwise.models.processes import Team

CUE = "The secret words are"
COPIED = 5  # tokens of a needle
TOGETHER = 4  # texts in a forward
NAME, ABOUT = "retrieval", "the source of a copied token (fraction of copied tokens)"


@dataclass(frozen=True)
class Needle:
    """A text whose end repeats an earlier part."""

    ids: np.ndarray  # (T,)
    source: np.ndarray  # (K,): where each token of the needle stands
    asked: np.ndarray  # (K,): the position that predicts it when it is said again


def needles(
    tokenizer: Any,
    filler: Sequence[str],
    count: int = 32,
    length: int = 256,
    cue: str = CUE,
    copied: int = COPIED,
    seed: int = 0,
) -> list[Needle]:
    """Random tokens after a cue, hidden in filler text at depths from its beginning to its end.

    Args:
        tokenizer: the model's tokenizer.
        filler: sentences of any language; they are taken in turn.
        count: number of texts.
        length: tokens of a text.
        cue: the words before the needle and before the place where it is asked for.
        copied: tokens to copy.
        seed: of the tokens and of the order of sentences.
    """
    rng = np.random.default_rng(seed)
    words = ordinary_tokens(tokenizer)
    start = [i for i in [getattr(tokenizer, "bos_token_id", None)] if i is not None]
    cued = list(tokenizer(cue, add_special_tokens=False)["input_ids"])
    room = length - len(start) - 2 * (len(cued) + copied)
    if not any(map(str.strip, filler)) or room < 1 or len(words) < copied:
        seen = f"{len(filler)} sentences, {length} tokens and {len(words)} ordinary tokens"
        raise HeadwiseError(
            seen, f"filler text, and room for a needle of {copied} tokens twice", f"length={2 * length}"
        )
    hay = [tokenizer(" " + text.strip(), add_special_tokens=False)["input_ids"] for text in filler]
    texts = []
    for number in range(count):
        ids: list[int] = []
        while len(ids) < room:
            ids += [token for place in rng.permutation(len(hay)) for token in hay[place]]
        ids, depth = ids[:room], round(len(ids[:room]) * number / max(1, count - 1))
        value = rng.choice(words, copied, replace=False).tolist()
        whole = [*start, *ids[:depth], *cued, *value, *ids[depth:], *cued, *value]
        first = len(start) + depth + len(cued)
        texts.append(Needle(np.array(whole), first + np.arange(copied), len(whole) - copied - 1 + np.arange(copied)))
    return texts


@torch.no_grad()
def retrieval(model: nn.Module, texts: Sequence[Needle], heads: Heads | None = None) -> Roles:
    """Each head's retrieval score; the control is its score on another token of the same needle.

    Only tokens that the model copies count: of a model that copies nothing, every score is NaN. Several processes
    share the texts.

    Example:
        >>> scores = retrieval(model, needles(tokenizer, sentences))
        >>> scores.top("retrieval", 3)[0]["head"]
        '18.6'
    """
    heads = heads or Heads.of(model)
    _require_logits(model, texts)
    device, team = next(model.parameters()).device, Team.of(model)
    sums = Moments(np.zeros(1, int), *(np.where(heads.alive.numpy(), 0.0, np.nan)[None] for _ in range(4)))
    looked: dict[int, np.ndarray] = {}
    now: dict[str, torch.Tensor] = {}

    def take(layer: int, map_BHTT: torch.Tensor) -> None:
        looked[layer] = map_BHTT[0, :, now["asked"]].argmax(-1).cpu().numpy()  # (H, K)

    with evaluating(model), streamed(model, take, heads) as forward:
        for text, counts in team.share(texts):
            now["asked"] = torch.from_numpy(text.asked).to(device)
            with _logits(model) as logits:
                forward(input_ids=torch.from_numpy(text.ids)[None].to(device))
            copied = _said(logits[0][0, now["asked"]], text)
            if not (counts and copied.any()):
                continue
            sums.texts[:] += 1
            for layer, places in looked.items():
                kept = list(heads.sites[layer].kept)
                score = (places == text.source)[:, copied].mean(1)
                control = (places == np.roll(text.source, 1))[:, copied].mean(1)
                sums.score[0, layer, kept] += score
                sums.control[0, layer, kept] += control
                sums.score_squared[0, layer, kept] += score**2
                sums.lift_squared[0, layer, kept] += (score - control) ** 2
    return Roles.of([NAME], [ABOUT], sums.joined(team))


@torch.no_grad()
def copied(model: nn.Module, texts: Sequence[Needle], gates: torch.Tensor | None = None) -> np.ndarray:
    """The fraction of each needle's tokens that the model repeats, (N,), optionally with some heads closed."""
    _require_logits(model, texts)
    device, heads = next(model.parameters()).device, Heads.of(model)
    gates = torch.ones(heads.shape) if gates is None else gates
    shares = []
    with evaluating(model), gated(model, gates.to(device), heads=heads):
        for batch in alike(texts):
            shares += [_said(row, text).mean() for row, text in zip(asked_logits(model, batch), batch)]
    return np.array(shares)


def asked_logits(model: nn.Module, texts: Sequence[Any]) -> torch.Tensor:
    """The logits at the asked positions, (N, K, V), of texts that are `alike`.

    Where a model can, it computes no others: with a large vocabulary they are most of a forward.
    """
    device = next(model.parameters()).device
    ids = torch.from_numpy(np.stack([text.ids for text in texts])).to(device)
    asked = torch.from_numpy(np.asarray(texts[0].asked)).to(device)
    if "logits_to_keep" in inspect.signature(unwrap(model).forward).parameters:
        return model(input_ids=ids, use_cache=False, logits_to_keep=asked).logits
    return model(input_ids=ids, use_cache=False).logits[:, asked]


def copying_curve(
    model: nn.Module, texts: Sequence[Needle], scores: np.ndarray, counts: Sequence[int], random: int = 5, seed: int = 0
) -> list[dict[str, Any]]:
    """The cost of closing the highest-scoring heads, and as many random heads of the same layers.

    Returns:
        One record for every count: the share copied without the top heads and its 95 % interval over texts, the same
        without random heads, over the ``random`` draws and texts, and how much less is copied than without those.
    """
    rng = np.random.default_rng(seed)
    order = np.argsort(-np.nan_to_num(scores, nan=-np.inf), axis=None)
    alive = ~np.isnan(scores)
    records = []
    for count in counts:
        top = np.zeros(scores.shape, bool)
        top.ravel()[order[:count]] = True
        top &= alive
        draws = [copied(model, texts, torch.from_numpy(~_elsewhere(top, alive, rng)).float()) for _ in range(random)]
        alone = copied(model, texts, torch.from_numpy(~top).float())
        chance = np.mean(draws, 0)
        own, other, gap = _mean(alone), _mean(chance), paired_bootstrap(chance, alone)
        records.append(
            {
                "heads": int(top.sum()),
                "copied": own.value,
                "low": own.low,
                "high": own.high,
                "random": other.value,
                "random_low": other.low,
                "random_high": other.high,
                "below_random": gap.value,
                "below_low": gap.low,
                "below_high": gap.high,
            }
        )
    return records


def _mean(shares: np.ndarray) -> Estimate:
    """The mean with its interval over texts."""
    return bootstrap(np.stack([shares, np.ones_like(shares)], 1), lambda sums: sums[..., 0] / sums[..., 1])


def _elsewhere(top: np.ndarray, alive: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """As many other heads of the same layers, or of any layer where a layer has too few."""
    drawn, missing = np.zeros_like(top), 0
    for layer, count in enumerate(top.sum(1)):
        others = rng.permutation(np.flatnonzero(alive[layer] & ~top[layer]))[:count]
        drawn[layer, others] = True
        missing += count - len(others)
    for spare in (alive & ~top & ~drawn, top):
        places = rng.permutation(np.flatnonzero(spare))[:missing]
        drawn.ravel()[places] = True
        missing -= len(places)
    return drawn


def alike(texts: Sequence[Any]) -> Iterator[list[Any]]:
    """Group neighbouring texts of equal length and asked positions, which need no padding."""
    for _, some in itertools.groupby(texts, lambda text: (len(text.ids), tuple(text.asked))):
        same = list(some)
        for start in range(0, len(same), TOGETHER):
            yield same[start : start + TOGETHER]


def _said(logits_KV: torch.Tensor, text: Needle) -> np.ndarray:
    """Bool (K,): whether the model predicts each token given the ones before it."""
    return logits_KV.argmax(-1).cpu().numpy() == text.ids[text.source]


@contextmanager
def _logits(model: nn.Module) -> Iterator[list[torch.Tensor]]:
    """Collect the logits of forward passes inside the block."""
    seen: list[torch.Tensor] = []
    hook = model.register_forward_hook(lambda module, args, output: seen.append(output.logits))
    try:
        yield seen
    finally:
        hook.remove()


def _require_logits(model: Any, texts: Sequence[Needle]) -> None:
    if model.get_output_embeddings() is None:
        raise HeadwiseError(
            f"{type(model).__name__}, which predicts no tokens", "a language model", "AutoModelForCausalLM"
        )
    longest = max((len(text.ids) for text in texts), default=0)
    if not 0 < longest <= positions(model):
        raise HeadwiseError(f"{len(texts)} texts of up to {longest} tokens", f"texts of 1 to {positions(model)} tokens")
