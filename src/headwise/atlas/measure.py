"""Measure roles: one eager forward pass per batch, which reduces every attention map to a few numbers per head.

Legend: B texts, T tokens, L layers, H heads, R roles.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from headwise.atlas import texts as inputs
from headwise.atlas.result import Moments, Roles, joined
from headwise.atlas.texts import NAME as ASKED
from headwise.atlas.texts import asked, is_question
from headwise.atlas.weightings import CONTENT, POSITION, REPEATED, SHAPE, Role, linked, relations, weightings
from headwise.errors import HeadwiseError, unknown
from headwise.heads.attention import streamed
from headwise.heads.gates import Heads
from headwise.heads.modules import evaluating, positions
from headwise.measuring.stats import FEW
from headwise.models.causality import is_causal
from headwise.models.device import Budget
from headwise.models.processes import Team
from headwise.models.subject import Subject

LONGEST = 128  # tokens of a text
LONGEST_ASKED = 256  # of passages and a question
SHOWN = 24  # tokens of an example
NEEDLE = 256  # of a text with a needle
LEAST_RELATION = 30  # occurrences of a dependency label that a role is made of
REPEATS = 64  # random sequences


@torch.no_grad()
def roles(
    model: Any,
    tokenizer: Any = None,
    texts: Sequence[Any] | None = None,
    *,
    by: str | Sequence[str] = "attention",
    repeats: int = REPEATS,
    untrained: bool = False,
    shuffled: bool = False,
    seed: int = 0,
    tokens: int = inputs.TOKENS,
    stack: str | None = None,
) -> Roles:
    """Measure what heads do: a score and a control for every role and head, with p-values.

    A role's score is the share of attention that its queries give to its targets, averaged over texts: the token before
    (``previous``), the first token (``first``, a sink), the same token, the token after the query's last occurrence
    (``induction``, on repeated random tokens), the word that governs the query's (``nsubj → head``), and so on. The
    control of a position is uniform attention; that of content, other pairs of tokens as far apart. P-values are
    one-sided paired t tests over texts, after Holm over heads. Of several processes (torchrun, ``accelerate launch``)
    each reads a part of the texts, and all have the whole result.

    Args:
        model: any model that reads text and whose attention shows its maps; or a `Subject`, which has its tokenizer.
        tokenizer: the model's tokenizer.
        texts: texts; rows of ``words`` with ``heads`` and ``labels`` as treebank tasks have them, with entities as
            ``labels``, or with ``links``, names to pairs of words; rows of ``question`` and ``context`` (default:
            sentences of the embedded corpus).
        by: one or several of attention; and of language models copying (a needle in the texts), writing (name movers
            and successor heads), functions (function vectors) and languages (what matters to English or Spanish alone).
        repeats: number of repeated random sequences.
        untrained: measure a re-initialized model too, whose best head is then a floor for every role.
        shuffled: measure attention again on the same texts with their tokens in random order.
        seed: of the random sequences and the re-initialized model.
        tokens: padded tokens in one forward, halved where memory does not suffice.
        stack: "encoder", of an encoder-decoder model: the decoder reads what it writes.

    Example:
        >>> roles = headwise.roles(model, tokenizer)
        >>> roles.top("induction", 1)[0]["head"]
        '18.6'
    """
    inner, tokenizer, heads = _parts(model, tokenizer, stack)
    rows = _corpus() if texts is None else list(texts)
    if len(rows) < 2:
        raise HeadwiseError(f"{len(rows)} texts", "two or more: each is the control of another")
    ways = [by] if isinstance(by, str) else list(by)
    if wrong := [way for way in ways if way not in WAYS]:
        raise unknown("way to measure roles", wrong[0], WAYS)

    def measured(some: nn.Module, own: Heads, mixed: bool = False) -> Roles:
        texts = _inputs(some, tokenizer, rows, repeats, seed, mixed)
        parts = [_by_attention(some, own, tokenizer, texts, tokens)] if "attention" in ways else []
        if not mixed:
            parts += [WAYS[way](some, own, tokenizer, _as_texts(rows), seed) for way in ways if way != "attention"]
        return joined(parts)

    result = measured(inner, heads)
    if untrained:
        fresh = _reinitialized(inner, seed)
        other = measured(fresh, heads_like(fresh, heads)).score
        with np.errstate(invalid="ignore"):
            result = replace(result, untrained=np.nan_to_num(other, nan=-np.inf).max((1, 2)))
        result.untrained[np.isinf(result.untrained)] = np.nan
    if shuffled and "attention" in ways:
        other = measured(inner, heads, mixed=True)
        for r, name in enumerate(other.names):
            result.shuffled[result.index(name)] = other.score[r]
    return result


def _by_copying(model: nn.Module, heads: Heads, tokenizer: Any, texts: Sequence[str], seed: int) -> Roles:
    from headwise.atlas.copying import needles, retrieval

    length = min(NEEDLE, positions(model))
    return retrieval(model, needles(tokenizer, texts, length=length, seed=seed), heads)


def _by_writing(model: nn.Module, heads: Heads, tokenizer: Any, texts: Sequence[str], seed: int) -> Roles:
    from headwise.atlas.writing import writing

    return writing(model, tokenizer, seed=seed, heads=heads)


def _by_functions(model: nn.Module, heads: Heads, tokenizer: Any, texts: Sequence[str], seed: int) -> Roles:
    from headwise.atlas.functions import function_vectors

    return function_vectors(model, tokenizer, seed=seed, heads=heads)


def _by_languages(model: nn.Module, heads: Heads, tokenizer: Any, texts: Sequence[str], seed: int) -> Roles:
    from headwise.atlas.languages import language_roles

    return language_roles(model, tokenizer, seed=seed, heads=heads)


def _as_texts(rows: Sequence[Any]) -> list[str]:
    """The running text of rows."""

    def one(row: Any) -> str:
        return row if isinstance(row, str) else row["context"] if is_question(row) else " ".join(row["words"])

    return [one(row) for row in rows]


def _inputs(
    model: nn.Module, tokenizer: Any, rows: Sequence[Any], repeats: int, seed: int, mixed: bool
) -> list[tuple[list, dict[str, Role]]]:
    """Sets of texts and the roles measured on each."""
    longest = min(LONGEST, positions(model))
    questions = [row for row in rows if is_question(row)]
    plain = [row["context"] if is_question(row) else row for row in rows]
    labels = inputs.common_relations(plain, LEAST_RELATION)
    natural = inputs.annotated(tokenizer, plain, labels, longest)
    named = {name: linked(name) for name in inputs.link_names(natural, FEW)}
    sets = [(natural, {**POSITION, **CONTENT, **SHAPE, **relations(labels), **named})]
    if questions:
        sets.append(
            (asked(tokenizer, questions, min(LONGEST_ASKED, positions(model)), seed), {ASKED: linked(ASKED, True)})
        )
    if mixed:
        return [(inputs.shuffled(texts, seed), known) for texts, known in sets if texts]
    if repeats:
        sets.append((inputs.repeated(tokenizer, repeats, longest, seed), dict(REPEATED)))
    return [(texts, known) for texts, known in sets if texts]


def _by_attention(model: nn.Module, heads: Heads, tokenizer: Any, sets: list, tokens: int) -> Roles:
    budget, parts = Budget(tokens, Team.of(model)), []
    for texts, known in sets:
        sums = budget.fit(partial(_of_texts, model, heads, tokenizer, texts, known, budget.team))
        parts.append(Roles.of(list(known), [role.about for role in known.values()], sums))
    return joined(parts)


WAYS: dict[str, Any] = {
    "attention": _by_attention,
    "copying": _by_copying,
    "writing": _by_writing,
    "functions": _by_functions,
    "languages": _by_languages,
}


@torch.no_grad()
def example(model: Any, tokenizer: Any, text: str, stack: str | None = None) -> dict[str, Any]:
    """The attention of every head on one sentence for the atlas page: ``tokens``, and ``attention`` by head.

    One sentence is not split: of several processes each reads it.
    """
    inner, tokenizer, heads = _parts(model, tokenizer, stack)
    ids = tokenizer(text, truncation=True, max_length=SHOWN, return_tensors="pt")["input_ids"]
    attention = {}

    def take(layer: int, map_BHTT: torch.Tensor) -> None:
        for head, rows in zip(heads.sites[layer].kept, map_BHTT[0].float().cpu()):
            attention[f"{layer}.{head}"] = [[round(weight, 3) for weight in row] for row in rows.tolist()]

    with evaluating(inner), streamed(inner, take, heads) as forward:
        forward(input_ids=ids.to(next(inner.parameters()).device))
    return {"tokens": tokenizer.convert_ids_to_tokens(ids[0].tolist()), "attention": attention}


def heads_like(model: nn.Module, heads: Heads) -> Heads:
    """The same stack of another model of the same shape."""
    return Heads.of(model, stack=heads.stack)


def _parts(model: Any, tokenizer: Any, stack: str | None = None) -> tuple[nn.Module, Any, Heads]:
    subject = isinstance(model, Subject)
    if subject and stack is None and "+" not in model.attention.stack:
        return model.backbone, tokenizer or model.tokenizer, _together(model.attention)
    tokenizer, model = (tokenizer or model.tokenizer, model.backbone) if subject else (tokenizer, model)
    if tokenizer is None:
        raise HeadwiseError("no tokenizer", "the model's own", "headwise.roles(model, tokenizer)")
    if stack and getattr(model.config, "is_encoder_decoder", False):
        if stack != "encoder":
            raise HeadwiseError(f"roles of the stack {stack!r}", "encoder, which reads a text by itself")
        model, stack = model.get_encoder(), None
    return model, tokenizer, _together(Heads.of(model, stack=stack))


def _together(heads: Heads) -> Heads:
    if heads.share is not None:
        seen = "roles of heads that lie on several processes (tensor parallelism), each of which sees some of the maps"
        raise HeadwiseError(seen, "all heads of a layer on each process, as with FSDP (fully_shard) or a whole model")
    return heads


def _corpus() -> list[Any]:
    from headwise.tasks.lookup import get

    return get("corpus.dep").rows("train")[: inputs.SENTENCES]


def _reinitialized(model: nn.Module, seed: int) -> nn.Module:
    """A model of the same class and configuration with random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        fresh = type(model)(copy.deepcopy(model.config))  # type: ignore[call-arg]
    parameter = next(model.parameters())
    return fresh.to(parameter.device, parameter.dtype)


def _of_texts(
    model: nn.Module, heads: Heads, tokenizer: Any, texts: Sequence, named: Mapping[str, Role], team: Team, tokens: int
) -> Moments:
    """Sums over the texts of all processes in constant memory."""
    known = list(named.values())
    device = next(model.parameters()).device
    shape = (len(known), *heads.shape)
    sums = Moments(np.zeros(len(known), int), *(np.zeros(shape) for _ in range(4)))
    missing = ~heads.alive.numpy()
    state: dict[str, Any] = {}

    def take(layer: int, map_BHTT: torch.Tensor) -> None:
        kept = list(heads.sites[layer].kept)
        both = torch.bmm(map_BHTT.float().flatten(2), state["weights"].to(map_BHTT.device)).double().cpu().numpy()
        score, control = np.moveaxis(both, 0, -1)[:, : len(known)], np.moveaxis(both, 0, -1)[:, len(known) :]
        for r, role in enumerate(known):
            there = state["there"][:, r].numpy()
            if role.measured:  # beside uniform attention, which scores 0
                score[:, r] = role.measured(state["batch"], map_BHTT.float()).double().cpu().numpy().T
                control[:, r] = 0
            s, c = score[:, r, there], control[:, r, there]  # (H, texts)
            sums.score[r, layer, kept] += s.sum(1)
            sums.control[r, layer, kept] += c.sum(1)
            sums.score_squared[r, layer, kept] += (s**2).sum(1)
            sums.lift_squared[r, layer, kept] += ((s - c) ** 2).sum(1)

    causal, pad = is_causal(model), getattr(tokenizer, "pad_token_id", None) or 0
    uncached = {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}
    with evaluating(model), streamed(model, take, heads) as forward:
        for group, counts in team.share(inputs.grouped(texts, tokens)):
            batch = inputs.padded(group, pad, causal, device)
            weights, controls = weightings(batch, known)
            state["batch"] = batch
            state["there"] = weights.flatten(2).any(-1).cpu() & counts
            state["weights"] = torch.cat([weights, controls], 1).flatten(2).transpose(1, 2).contiguous()
            sums.texts[:] += state["there"].sum(0).numpy()
            forward(input_ids=batch.ids_BT, attention_mask=batch.mask_BT.long(), **uncached)
    for name in ("score", "control", "score_squared", "lift_squared"):
        getattr(sums, name)[:, missing] = np.nan
    return sums.joined(team)
