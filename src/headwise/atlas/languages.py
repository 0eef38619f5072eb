"""Language heads, and a soft mask over a few of them: LAHIS (Liu et al. 2025, arXiv 2511.07498).

A head belongs to a language if texts of that language need it more than texts of others. The paper then learns one
number for each of 14 to 20 such heads, nothing else, which makes the model better at a task in that language.

Legend: B texts, T tokens, K heads that are learned, L layers, H heads, D head size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import nn

from headwise.atlas.result import Moments, Roles, joined
from headwise.errors import HeadwiseError
from headwise.heads.gates import Heads, gated, touched
from headwise.heads.modules import evaluating, positions
from headwise.measuring.evaluate import to_device
from headwise.models.batching import Order, Stream
from headwise.models.causality import is_causal
from headwise.models.processes import Team
from headwise.models.subject import Subject
from headwise.scoring.result import Importance
from headwise.scoring.sample import frozen
from headwise.tasks.corpus import sentences

LANGUAGES = ("en", "es")  # of the embedded corpus
PARALLEL, LONGEST = 64, 128  # texts of each language, and tokens of each
ABOUT = "texts in {} (fraction of a head's importance for a text among all its translations)"
WIDEST = 2.0  # gates are learned between 0 and this, and start in the middle, at 1


def language_roles(
    model: nn.Module,
    tokenizer: Any,
    texts: Mapping[str, Sequence[str]] | None = None,
    seed: int = 0,
    heads: Heads | None = None,
) -> Roles:
    """Each head's importance for a text in one language as a fraction of that over all its translations.

    What a head matters to a text is its share of all heads' |⟨z, ∂L/∂z⟩|, summed over tokens, for the loss of the next
    token. The control puts the next text of another language in the place of the text: of two languages, a head of
    neither has a half in both. Several processes share the texts.

    Args:
        model: a causal language model.
        tokenizer: its tokenizer.
        texts: for two or more languages, texts of which those in the same place are translations of each other.
            Default: sentences of the embedded corpus in English and Spanish.
        seed: of these sentences.
        heads: of the model, if at hand.

    Example:
        >>> language_roles(model, tokenizer, {"en": english, "es": spanish}).top("language es", 3)
    """
    if not is_causal(model) or getattr(model, "get_output_embeddings", lambda: None)() is None:
        raise HeadwiseError(f"{type(model).__name__}, which predicts no next token", "a causal language model")
    if texts is None:
        texts = {name: [each.text for each in islice(sentences(name, seed), PARALLEL)] for name in LANGUAGES}
    if len(texts) < 2 or len({len(some) for some in texts.values()}) > 1 or len(next(iter(texts.values()))) < 2:
        seen = ", ".join(f"{len(some)} texts in {name}" for name, some in texts.items())
        raise HeadwiseError(seen or "no texts", "two languages or more with as many texts, two or more")
    heads, team, fractions = heads or Heads.of(model), Team.of(model), {}
    places = [(name, number) for name, some in texts.items() for number in range(len(some))]
    with evaluating(model), frozen(model):
        for (name, number), counts in team.share(places):
            own = _shares(model, heads, tokenizer, texts[name][number])
            fractions |= {(name, number): own} if counts else {}
    fractions = team.gathered(fractions)
    shares = {name: np.stack([fractions[name, number] for number in range(len(some))]) for name, some in texts.items()}
    return joined([_role(name, shares) for name in shares])


def _role(language: str, fractions: Mapping[str, np.ndarray]) -> Roles:
    """One language against the others; ``found`` has the heads' fractions for every text, (B, L, H)."""
    own, others = fractions[language], [shares for name, shares in fractions.items() if name != language]
    rest = np.sum(others, 0)
    with np.errstate(invalid="ignore"):
        score = own / (own + rest)
        control = np.mean([np.roll(other, -1, 0) / (np.roll(other, -1, 0) + rest) for other in others], 0)
    sums = ((score).sum(0), control.sum(0), (score**2).sum(0), ((score - control) ** 2).sum(0))
    return Roles.of(
        [f"language {language}"], [ABOUT.format(language)], Moments(np.array([len(own)]), *(s[None] for s in sums))
    )


def _shares(model: nn.Module, heads: Heads, tokenizer: Any, text: str) -> np.ndarray:
    """Each head's fraction of all heads' |⟨z, ∂L/∂z⟩| in a text, (L, H); NaN for absent heads."""
    ids = torch.tensor(tokenizer(text)["input_ids"][: min(LONGEST, positions(model))])[None]
    ids, scores = ids.to(next(model.parameters()).device), np.full(heads.shape, np.nan)

    def touch(layer: int, z_BTHD: torch.Tensor) -> torch.Tensor:
        values_BTHD = z_BTHD.detach()

        def score(grad_BTHD: torch.Tensor) -> None:
            each = (values_BTHD.float() * grad_BTHD.float()).sum(-1).abs().sum((0, 1))
            scores[layer, list(heads.sites[layer].kept)] = each.double().cpu().numpy()

        z_BTHD = z_BTHD if z_BTHD.requires_grad else z_BTHD.detach().requires_grad_()
        z_BTHD.register_hook(score)
        return z_BTHD

    with torch.enable_grad(), touched(model, touch, heads):
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1].float()
        nn.functional.cross_entropy(logits, ids[0, 1:]).backward()
    return scores / np.nansum(scores)


def language_heads(needs: Mapping[str, Importance], language: str, k: int = 16) -> list[tuple[int, int]]:
    """The heads with a larger fraction of importance for one language than for any other, widest gap first.

    Args:
        needs: importance of the heads for texts or questions of each language.
        language: one of them.
        k: how many.

    Example:
        >>> needs = {task: importance(lm, task) for task in ("xquad_en@prompt", "xquad_es@prompt")}
        >>> language_heads(needs, "xquad_es@prompt", k=16)
    """
    if language not in needs or len(needs) < 2:
        raise HeadwiseError(f"{language!r} among {', '.join(needs)}", "a language, and another to compare it with")
    shares = {
        name: np.asarray(importance_of.scores, float) / np.nansum(np.asarray(importance_of.scores, float))
        for name, importance_of in needs.items()
    }
    others = np.max([share for name, share in shares.items() if name != language], 0)
    gap = np.where(np.isnan(shares[language]), -np.inf, shares[language] - others)
    if not 1 <= k <= np.isfinite(gap).sum():
        raise HeadwiseError(f"k={k}", f"1 to {np.isfinite(gap).sum()}, the heads there are")
    return [divmod(int(i), gap.shape[1]) for i in np.argsort(-gap, axis=None, kind="stable")[:k]]


@dataclass(frozen=True)
class SoftMask:
    """Learned gates of a few heads.

    Attributes:
        heads: the heads, K of them.
        gates: their gates, from 0 to 2; all other heads have 1.
        losses: the loss at every step.
    """

    heads: tuple[tuple[int, int], ...]
    gates: np.ndarray
    losses: np.ndarray = field(repr=False)

    def full(self, shape: tuple[int, int]) -> torch.Tensor:
        """The gates of all heads, (L, H), as `headwise.gated` takes them."""
        whole = torch.ones(shape)
        for (layer, head), gate in zip(self.heads, self.gates.tolist()):
            whole[layer, head] = gate
        return whole


def soft_mask(
    subject: Subject,
    task: str,
    heads: Sequence[tuple[int, int]],
    *,
    split: str = "train",
    examples: int = 64,
    steps: int = 40,
    size: int = 8,
    lr: float = 0.1,
    seed: int = 0,
) -> SoftMask:
    """Learn gates of some heads on a task's loss, with the model's weights frozen.

    Args:
        subject: a `LanguageModel`, or any other subject.
        task: one of its tasks.
        heads: the heads whose gates are learned.
        split: which rows to learn from.
        examples: how many of them.
        steps: of Adam.
        size: examples in a step.
        lr: of the gates' logits.
        seed: of the draw and order of examples.

    Example:
        >>> mask = soft_mask(lm, "xquad_es@prompt", language_heads(needs, "xquad_es@prompt"))
        >>> headwise.evaluate(lm, "xquad_es@prompt", gates=mask.full(lm.attention.shape)[None])
    """
    known = subject.attention
    places = torch.tensor([layer * known.num_heads + head for layer, head in heads])
    if not len(places) or not known.alive.flatten()[places].all():
        raise HeadwiseError(f"heads {list(heads)}", f"one or more remaining heads of {known.shape}")
    rows = len(subject.tasks[task].rows(split))
    chosen = np.random.default_rng([seed, 3]).permutation(rows)[:examples]
    data = subject.encode(task, split, chosen=chosen)
    stream = Stream(data, Order(data.lengths, min(size, len(chosen))), (seed, 5))
    logits = torch.zeros(len(places), device=subject.device, requires_grad=True)
    optimizer, losses = torch.optim.Adam([logits], lr=lr), []
    with evaluating(subject), frozen(subject):
        for _ in range(steps):
            batch = to_device(data.batch(stream.next()), subject.device)
            flat = torch.ones(known.num_layers * known.num_heads, device=subject.device)
            gates = flat.index_copy(0, places.to(flat.device), WIDEST * logits.sigmoid()).view(known.shape)
            with gated(subject.backbone, gates, heads=known):
                loss = subject.losses(task, batch).mean()
                (logits.grad,) = torch.autograd.grad(loss, logits)
            optimizer.step()
            losses.append(loss.item())
    learned = (WIDEST * logits.detach().sigmoid()).double().cpu().numpy()
    return SoftMask(tuple((int(a), int(b)) for a, b in heads), learned, np.array(losses))
