"""Language heads, and a soft mask over a few of them: LAHIS (Liu et al. 2025, arXiv 2511.07498).

A head belongs to a language if texts of that language need it more than texts of others. The paper then learns one
number for each of 14 to 20 such heads, nothing else, which makes the model better at a task in that language.

Legend: K heads that are learned, L layers, H heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from headwise.errors import HeadwiseError
from headwise.heads.gates import gated
from headwise.heads.modules import evaluating
from headwise.measuring.evaluate import to_device
from headwise.models.batching import Order, Stream
from headwise.models.subject import Subject
from headwise.scoring.result import Importance

WIDEST = 2.0  # gates are learned between 0 and this, and start in the middle, at 1


def language_heads(needs: Mapping[str, Importance], language: str, k: int = 16) -> list[tuple[int, int]]:
    """The heads whose share of all importance is larger for one language than for any other, the widest gap first.

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
        name: np.asarray(found.scores, float) / np.nansum(np.asarray(found.scores, float))
        for name, found in needs.items()
    }
    others = np.max([share for name, share in shares.items() if name != language], 0)
    gap = np.where(np.isnan(shares[language]), -np.inf, shares[language] - others)
    if not 1 <= k <= np.isfinite(gap).sum():
        raise HeadwiseError(f"k={k}", f"1 to {np.isfinite(gap).sum()}, the heads there are")
    return [divmod(int(i), gap.shape[1]) for i in np.argsort(-gap, axis=None, kind="stable")[:k]]


@dataclass(frozen=True)
class SoftMask:
    """What was learned: one gate for each of a few heads.

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
    """Learn a gate for each of some heads on a task's loss; the model's weights stay as they are.

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
    trained = [p for p in subject.parameters() if p.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        with evaluating(subject):
            for _ in range(steps):
                batch = to_device(data.batch(stream.next()), subject.device)
                flat = torch.ones(known.num_layers * known.num_heads, device=subject.device)
                gates = flat.index_copy(0, places.to(flat.device), WIDEST * logits.sigmoid()).view(known.shape)
                with gated(subject.backbone, gates, heads=known):
                    loss = subject.losses(task, batch).mean()
                    (logits.grad,) = torch.autograd.grad(loss, logits)
                optimizer.step()
                losses.append(loss.item())
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)
    learned = (WIDEST * logits.detach().sigmoid()).double().cpu().numpy()
    return SoftMask(tuple((int(a), int(b)) for a, b in heads), learned, np.array(losses))
