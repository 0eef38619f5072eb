"""Which key-value heads need the whole context, and which are as good with the first and the latest tokens.

Xiao et al. 2024 (DuoAttention, arXiv 2410.10819): a streaming head keeps a sink, the first tokens, and a recent window;
a retrieval head keeps everything. Here a head's score is what streaming costs, in nats per token, to first order:
∂L/∂g times -1 in z' = r + g · (z - r), where r is what the head returns from sink and window alone. One calibration
pass gives the scores of all heads.

Legend: B texts, T tokens, L layers, H query heads, G key-value heads, D head size.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from headwise.atlas.copying import alike, asked_logits
from headwise.errors import HeadwiseError
from headwise.heads.equation import present
from headwise.heads.gates import Heads, unwrap
from headwise.heads.masking import beside, masked
from headwise.heads.modules import evaluating
from headwise.heads.sites import Site
from headwise.io.files import finite, write, write_json
from headwise.measuring.stats import paired_bootstrap
from headwise.models.causality import is_causal
from headwise.scoring.sample import frozen

SINK, RECENT = 4, 64
PATTERN, SETTINGS = "full_attention_heads.tsv", "config.json"


@dataclass(frozen=True)
class Passage:
    """A text, and the positions whose next tokens are asked for."""

    ids: np.ndarray  # (T,)
    asked: np.ndarray


def passages(tokenizer: Any, texts: Sequence[str], length: int, last: int, count: int = 16) -> list[Passage]:
    """Running text cut into pieces of ``length`` tokens; the ``last`` tokens of each are asked for.

    Example:
        >>> [len(passage.ids) for passage in passages(tokenizer, texts, length=512, last=128, count=2)]
        [512, 512]
    """
    start = [i for i in [getattr(tokenizer, "bos_token_id", None)] if i is not None]
    size = length - len(start)
    if not 0 < last < size:
        raise HeadwiseError(f"the last {last} of {length} tokens", f"1 to {size - 1} tokens to ask for")
    ids: list[int] = []
    for text in texts:
        ids += tokenizer(text + "\n\n", add_special_tokens=False)["input_ids"]
        if len(ids) >= count * size:
            break
    pieces = [[*start, *ids[i * size : (i + 1) * size]] for i in range(min(count, len(ids) // size))]
    if not pieces:
        raise HeadwiseError(f"texts of {len(ids)} tokens", f"{size} or more", f"length={max(2, len(ids) // 2)}")
    return [Passage(np.array(piece), np.arange(length - last - 1, length - 1)) for piece in pieces]


@dataclass(frozen=True)
class KVPolicy:
    """What it costs to let each key-value head see a sink and a recent window alone.

    Attributes:
        scores: the rise of the loss in nats per token, to first order, (L, G); NaN where there is no head.
        stderr: over texts, (L, G).
        sink: tokens kept from the beginning.
        recent: latest tokens kept, the query's own among them.
    """

    scores: np.ndarray = field(repr=False)
    stderr: np.ndarray = field(repr=False)
    sink: int = SINK
    recent: int = RECENT

    def streaming(self, share: float) -> np.ndarray:
        """Bool (L, G): the fraction of heads that streaming costs least."""
        if not 0 <= share <= 1:
            raise HeadwiseError(f"a share of {share:g}", "a number from 0 to 1")
        alive = ~np.isnan(self.scores)
        order = np.argsort(np.where(alive, self.scores, np.inf), axis=None, kind="stable")
        mask = np.zeros(self.scores.shape, bool)
        mask.ravel()[order[: round(share * alive.sum())]] = True
        return mask

    def memory(self, mask: np.ndarray, length: int) -> float:
        """The share of a full cache's entries that is kept at a context of ``length`` tokens."""
        alive = ~np.isnan(self.scores)
        streamed = (mask & alive).sum() / alive.sum()
        return float(1 - streamed * (1 - min(1.0, (self.sink + self.recent) / length)))

    def within(self, budget: float, length: int) -> np.ndarray:
        """Bool (L, G): as few streaming heads as a share ``budget`` of a full cache's memory allows.

        Example:
            >>> policy.within(budget=0.6, length=4096).mean()
            0.41
        """
        saved = 1 - min(1.0, (self.sink + self.recent) / length)
        if not 1 - saved <= budget <= 1:
            seen = f"a budget of {budget:g} at {length} tokens"
            raise HeadwiseError(seen, f"{1 - saved:.2g}, where all heads stream, to 1")
        count = (~np.isnan(self.scores)).sum()
        return self.streaming(float(np.ceil(round((1 - budget) / saved * count, 9)) / count) if saved else 0.0)

    def save(self, folder: str | Path) -> Path:
        """Write the two files of a pattern of duo-attention, which kvpress loads too, and the scores themselves.

        Both cut at a quantile of numbers from 0 (streams first) to 1 (keeps everything): the scores' ranks. They expect
        two key-value heads a layer or more.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if np.isnan(self.scores).any():
            seen = f"{int(np.isnan(self.scores).sum())} layers or heads without a key and value"
            raise HeadwiseError(seen, "a model in which every layer has as many, for the files of duo-attention")
        ranks = self.scores.ravel().argsort(kind="stable").argsort().reshape(self.scores.shape)
        rows = ["\t".join(f"{value:.6f}" for value in row) for row in ranks / max(1, ranks.size - 1)]
        write(folder / PATTERN, "\n".join(rows) + "\n")
        write_json(folder / SETTINGS, {"sink_size": self.sink, "recent_size": self.recent})
        write_json(folder / "scores.json", finite({"scores": self.scores.tolist(), "stderr": self.stderr.tolist()}))
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> KVPolicy:
        """A policy from its folder, or from one of duo-attention's, whose numbers are learned gates instead of nats."""
        folder = Path(folder)
        if not (folder / PATTERN).is_file() or not (folder / SETTINGS).is_file():
            raise HeadwiseError(f"no {PATTERN} and {SETTINGS} in {folder}", "a folder written by KVPolicy.save")
        settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        scores = np.loadtxt(folder / PATTERN, delimiter="\t", ndmin=2)
        stderr = np.full(scores.shape, np.nan)
        if (folder / "scores.json").is_file():
            stored = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
            scores, stderr = (np.array(stored[name], float) for name in ("scores", "stderr"))
        return cls(scores, stderr, settings["sink_size"], settings["recent_size"])


def kv_policy(model: nn.Module, texts: Sequence[Any], sink: int = SINK, recent: int = RECENT) -> KVPolicy:
    """Score every key-value head by what streaming would cost, in one pass with gradients over some texts.

    Args:
        model: a causal language model.
        texts: `passages` of running text, or `headwise.atlas.copying.needles`: anything with ``ids`` and ``asked``.
        sink: tokens kept from the beginning.
        recent: latest tokens kept.

    Example:
        >>> policy = kv_policy(model, passages(tokenizer, texts, 512, 128) + needles(tokenizer, texts, length=512))
        >>> policy.save("policy")
    """
    heads = _causal_heads(model, texts)
    with evaluating(model), frozen(model):
        rows = [_price(model, heads, text, sink, recent) for text in texts]
    prices = np.stack([_per_group(row, heads) for row in rows])
    stderr = prices.std(0, ddof=1) / np.sqrt(len(rows)) if len(rows) > 1 else np.full(prices.shape[1:], np.nan)
    return KVPolicy(prices.mean(0), stderr, sink, recent)


def _price(model: nn.Module, heads: Heads, text: Any, sink: int, recent: int) -> np.ndarray:
    """-∂L/∂g of every query head for one text, (L, H)."""
    gates = torch.ones(heads.shape, device=next(model.parameters()).device, requires_grad=True)
    streamed: dict[int, torch.Tensor] = {}

    def touch(layer: int, z_BTHD: torch.Tensor) -> torch.Tensor:
        gate = present(gates[layer], heads.sites[layer])[:, None]
        return torch.lerp(streamed.pop(layer), z_BTHD, gate.to(z_BTHD.dtype))

    with beside(model, lambda site, query, key: _near(query, key, sink, recent), streamed.__setitem__, heads, touch):
        (gradient,) = torch.autograd.grad(losses(model, [text]).mean(), gates)
    return -gradient.double().cpu().numpy()


def _near(query: torch.Tensor, key: torch.Tensor, sink: int, recent: int) -> torch.Tensor:
    return (key < sink) | (key > query - recent)


def _per_group(price_LH: np.ndarray, heads: Heads) -> np.ndarray:
    """Summed over the query heads that share a key and value, (L, G)."""
    total = np.full((heads.num_layers, _groups(heads)), np.nan)
    for site in heads.sites:
        for head in site.kept:
            place = site.layer, head // site.group
            total[place] = np.nan_to_num(total[place]) + price_LH[site.layer, head]
    return total


def _groups(heads: Heads) -> int:
    return max(max(site.kept) // site.group + 1 for site in heads.sites if site.kept)


@contextmanager
def streaming(model: nn.Module, mask: np.ndarray, sink: int = SINK, recent: int = RECENT) -> Iterator[None]:
    """Let the key-value heads of a mask, (L, G), see the first and the latest tokens alone, inside the block.

    It masks what a real cache would have dropped; nothing becomes faster. Texts are not padded on the left.

    Example:
        >>> with streaming(model, policy.streaming(0.5), policy.sink, policy.recent):
        ...     model.generate(**inputs)
    """
    heads = Heads.of(model)
    groups = _groups(heads)
    if np.shape(mask) != (heads.num_layers, groups) or recent < 1:
        expected = f"a mask of {(heads.num_layers, groups)}, layers by key-value heads, and a window of 1 or more"
        raise HeadwiseError(f"a mask of shape {np.shape(mask)} and a window of {recent}", expected)

    def allowed(site: Site, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        streams = torch.tensor([bool(mask[site.layer][head // site.group]) for head in site.kept], device=key.device)
        return ~streams[:, None, None] | _near(query, key, sink, recent)

    with masked(model, allowed, heads):
        yield


def policy_curve(
    model: nn.Module, texts: Sequence[Any], policy: KVPolicy, shares: Sequence[float], random: int = 3, seed: int = 0
) -> list[dict[str, Any]]:
    """The loss when a share of key-value heads stream, beside random heads and beside a window of all heads.

    The uniform window keeps the same sink and, at the length of the texts, as many entries of the cache.

    Returns:
        One record for every share: the mean loss of ``policy``, ``random`` heads (over draws) and ``uniform`` windows
        in nats per token, and how much the policy is below each, with a 95 % interval over texts.
    """
    _causal_heads(model, texts)
    rng, alive = np.random.default_rng(seed), ~np.isnan(policy.scores)
    length = max(len(text.ids) for text in texts)
    records = []
    for share in shares:
        mask = policy.streaming(share)
        window = round(policy.memory(mask, length) * length) - policy.sink
        own = _means(model, texts, mask, policy.sink, policy.recent)
        draws = [_drawn(alive, int(mask.sum()), rng) for _ in range(random if mask.any() else 0)]
        chance = [_means(model, texts, drawn, policy.sink, policy.recent) for drawn in draws] or [own]
        uniform = _means(model, texts, alive, policy.sink, window) if share else own
        record = {"texts": len(texts), "share": share, "memory": policy.memory(mask, length), "window": window}
        record["policy"] = own.mean()
        for name, other in (("random", np.mean(chance, 0)), ("uniform", uniform)):
            gap = paired_bootstrap(other, own)
            record |= {name: other.mean(), f"below_{name}": gap.value, f"low_{name}": gap.low, f"high_{name}": gap.high}
        records.append({name: float(value) for name, value in record.items()})
    return records


@torch.no_grad()
def _means(model: nn.Module, texts: Sequence[Any], mask: np.ndarray, sink: int, recent: int) -> np.ndarray:
    with evaluating(model), streaming(model, mask, sink, recent):
        return np.concatenate([losses(model, some).mean(1).cpu().numpy() for some in alike(texts)])


def _drawn(alive: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    mask = np.zeros(alive.shape, bool)
    mask.ravel()[rng.permutation(np.flatnonzero(alive))[:count]] = True
    return mask


def losses(model: nn.Module, texts: Sequence[Any]) -> torch.Tensor:
    """The negative log-likelihoods, in nats, of the tokens that texts `alike` ask for, (N, K)."""
    logits = asked_logits(model, texts)
    said = torch.from_numpy(np.stack([text.ids[np.asarray(text.asked) + 1] for text in texts])).to(logits.device)
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return nn.functional.cross_entropy(wide.flatten(0, 1), said.flatten(), reduction="none").view(said.shape)


def _causal_heads(model: nn.Module, texts: Sequence[Any]) -> Heads:
    if not len(texts):
        raise HeadwiseError("no texts", "one or more", "passages(tokenizer, texts, length=512, last=128)")
    if not is_causal(model):
        raise HeadwiseError(f"{type(unwrap(model)).__name__}, which keeps no cache", "a causal language model")
    return Heads.of(model)
