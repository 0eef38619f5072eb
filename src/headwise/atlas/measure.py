"""Measure roles: one eager forward a batch, in which every layer's map is reduced to a few numbers a head at once.

Legend: B texts, T tokens, L layers, H heads, R roles.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from headwise.atlas import texts as inputs
from headwise.atlas.result import Moments, Roles
from headwise.atlas.weightings import CONTENT, POSITION, REPEATED, Role, relations, weightings
from headwise.errors import HeadwiseError
from headwise.heads.attention import streamed
from headwise.heads.gates import Heads
from headwise.heads.modules import evaluating, positions
from headwise.models.causality import is_causal
from headwise.models.subject import Subject

LONGEST = 128  # tokens of a text
LEAST_RELATION = 30  # occurrences of a dependency label that a role is made of
REPEATS = 64  # random sequences


@torch.no_grad()
def roles(
    model: Any,
    tokenizer: Any = None,
    texts: Sequence[Any] | None = None,
    *,
    repeats: int = REPEATS,
    untrained: bool = False,
    seed: int = 0,
    tokens: int = inputs.TOKENS,
) -> Roles:
    """What the heads of a model attend to: a score for every role and head, beside a control, with p-values.

    A role's score is the share of attention that its queries give to its targets, averaged over texts: the token before
    (``previous``), the first token (``first``, a sink), the same token, the token after the query's last occurrence
    (``induction``, on repeated random tokens), the word that governs the query's (``nsubj → head``), and so on. The
    control of a position is uniform attention; that of content, other pairs of tokens as far apart.
    P-values are one-sided paired t tests over texts, after Holm over heads.

    Args:
        model: any model that reads text and whose attention shows its maps; or a `Subject`, which has its tokenizer.
        tokenizer: the model's tokenizer.
        texts: texts, or rows of ``words`` with ``heads`` and ``labels`` as treebank tasks have them (default: sentences
            of the embedded corpus).
        repeats: number of repeated random sequences.
        untrained: measure a re-initialised model too, whose best head is then a floor for every role.
        seed: of the random sequences and the re-initialised model.
        tokens: padded tokens in one forward.

    Example:
        >>> found = headwise.roles(model, tokenizer)
        >>> found.top("induction", 1)[0]["head"]
        '18.6'
    """
    inner, tokenizer, heads = _parts(model, tokenizer)
    rows = _corpus() if texts is None else list(texts)
    if len(rows) < 2:
        raise HeadwiseError(f"{len(rows)} texts", "two or more, as each is the control of another")
    labels = inputs.common_relations(rows, LEAST_RELATION)
    longest = min(LONGEST, positions(inner))
    natural = inputs.annotated(tokenizer, rows, labels, longest)
    random = inputs.repeated(tokenizer, repeats, longest, seed) if repeats else []
    sets = [(natural, {**POSITION, **CONTENT, **relations(labels)}), (random, dict(REPEATED))]
    names = [(name, role) for some, known in sets if some for name, role in known.items()]
    moments = _measured(inner, heads, tokenizer, sets, tokens)
    floor = None
    if untrained:
        fresh = _reinitialised(inner, seed)
        other = Roles.of(
            [n for n, _ in names],
            [r.about for _, r in names],
            _measured(fresh, heads_like(fresh, heads), tokenizer, sets, tokens),
        )
        with np.errstate(invalid="ignore"):
            floor = np.array([np.nan if np.isnan(score).all() else np.nanmax(score) for score in other.score])
    return Roles.of([name for name, _ in names], [role.about for _, role in names], moments, floor)


def heads_like(model: nn.Module, heads: Heads) -> Heads:
    """The same stack of another model of the same shape."""
    return Heads.of(model, stack=heads.stack)


def _parts(model: Any, tokenizer: Any) -> tuple[nn.Module, Any, Heads]:
    if isinstance(model, Subject):
        return model.backbone, tokenizer or model.tokenizer, model.attention
    if tokenizer is None:
        raise HeadwiseError("no tokenizer", "the model's own", "headwise.roles(model, tokenizer)")
    return model, tokenizer, Heads.of(model)


def _corpus() -> list[Any]:
    from headwise.tasks.lookup import get

    return get("corpus.dep").rows("train")[: inputs.SENTENCES]


def _reinitialised(model: nn.Module, seed: int) -> nn.Module:
    """A model of the same class and configuration with random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        fresh = type(model)(copy.deepcopy(model.config))  # type: ignore[call-arg]
    parameter = next(model.parameters())
    return fresh.to(parameter.device, parameter.dtype)


def _measured(model: nn.Module, heads: Heads, tokenizer: Any, sets: Sequence[tuple], tokens: int) -> Moments:
    parts = []
    for texts, known in sets:
        if texts:
            parts.append(_of_texts(model, heads, tokenizer, texts, list(known.values()), tokens))
    return Moments(*(np.concatenate([getattr(part, name) for part in parts]) for name in Moments.__dataclass_fields__))


def _of_texts(
    model: nn.Module, heads: Heads, tokenizer: Any, texts: Sequence, known: list[Role], tokens: int
) -> Moments:
    """Sums over texts; nothing grows with their number."""
    device = next(model.parameters()).device
    shape = (len(known), *heads.shape)
    sums = Moments(np.zeros(len(known), int), *(np.zeros(shape) for _ in range(4)))
    missing = ~heads.alive.numpy()
    state: dict[str, torch.Tensor] = {}

    def take(layer: int, map_BHTT: torch.Tensor) -> None:
        kept = list(heads.sites[layer].kept)
        both = torch.bmm(map_BHTT.float().flatten(2), state["weights"].to(map_BHTT.device)).double().cpu().numpy()
        score, control = np.moveaxis(both, 0, -1)[:, : len(known)], np.moveaxis(both, 0, -1)[:, len(known) :]
        for r in range(len(known)):
            there = state["there"][:, r].numpy()
            s, c = score[:, r, there], control[:, r, there]  # (H, texts)
            sums.score[r, layer, kept] += s.sum(1)
            sums.control[r, layer, kept] += c.sum(1)
            sums.score_squared[r, layer, kept] += (s**2).sum(1)
            sums.lift_squared[r, layer, kept] += ((s - c) ** 2).sum(1)

    causal, pad = is_causal(model), getattr(tokenizer, "pad_token_id", None) or 0
    uncached = {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}
    with evaluating(model), streamed(model, take, heads) as forward:
        for batch in inputs.batched(texts, pad, causal, device, tokens):
            weights, controls = weightings(batch, known)
            state["there"] = weights.flatten(2).any(-1).cpu()
            state["weights"] = torch.cat([weights, controls], 1).flatten(2).transpose(1, 2).contiguous()
            sums.texts[:] += state["there"].sum(0).numpy()
            forward(input_ids=batch.ids_BT, attention_mask=batch.mask_BT.long(), **uncached)
    for name in ("score", "control", "score_squared", "lift_squared"):
        getattr(sums, name)[:, missing] = np.nan
    return sums
