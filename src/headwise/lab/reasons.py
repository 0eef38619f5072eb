"""Why an answer is what it is: each head's effect on it, the fewest heads that flip it, and where heads attend.

Legend: B examples, T tokens, L layers, H heads.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from headwise.errors import HeadwiseError
from headwise.heads.attention import eager, whole_maps
from headwise.lab.answers import TOKENS, Answers
from headwise.lab.questions import NEXT, Ask, Asked, next_logits, scores_of
from headwise.models.subject import Batch
from headwise.tasks.kinds.answer import Answer
from headwise.tasks.kinds.choice import Choice

TRIED = 8  # heads whose closing is measured in each step, of those with the largest effect to first order
RANDOM = 20  # random sets of the same size
SEEN = 128  # tokens whose attention is drawn


def margins(scores: Any, asked: Asked, batch: Batch, label: int | None = None) -> tuple[torch.Tensor, int]:
    """The margin of the answer over the next best, (B,), and its index; the value itself for grades."""
    if isinstance(asked.kind, Choice):
        scores = asked.kind.scores_of(scores, batch)
    if isinstance(asked.kind, Answer) and len(asked.data) == 1:  # ahead of every other span
        scores = asked.kind.spans(scores, batch)[0].flatten(1)
    if not isinstance(scores, torch.Tensor) or scores.ndim > 3 or len(asked.data) > 1:
        seen = f"no single number behind an answer of kind {type(asked.kind).__name__}"
        raise HeadwiseError(seen, "a label, a grade, tags, a choice or a span of a short text")
    if scores.shape[-1] == 1:
        return scores.flatten(1)[:, 0].float(), 0
    if scores.ndim == 3:  # tags: the mean over words, each ahead by its own margin
        best = scores.float().topk(2, -1).values
        real = batch["word_mask"].bool()
        gaps = (best[..., 0] - best[..., 1]).masked_fill(~real, 0)
        return gaps.sum(1) / real.sum(1).clamp_min(1), -1
    return ahead(scores.float(), label)


def ahead(scores_BC: torch.Tensor, label: int | None = None) -> tuple[torch.Tensor, int]:
    """The margin of a label over the best other one (default: the best label of the first row)."""
    label = int(scores_BC[0].argmax()) if label is None else label
    others = scores_BC.clone()
    others[:, label] = -torch.inf
    return scores_BC[:, label] - others.amax(-1), label


class Reasons:
    """Explain an answer by single heads."""

    def __init__(self, answers: Answers):
        self.answers, self.subject, self.heads = answers, answers.subject, answers.heads

    def margin(
        self, ask: Ask, task: str, gates: torch.Tensor, label: int | None = None, copies: int = 1
    ) -> tuple[torch.Tensor, int]:
        """The margin of a task's answer under gates, (L, H) or (B, L, H)."""
        question = self.answers.question(ask)
        if task == NEXT and question.ids is not None:
            with self.subject.gated(gates, self._reference(ask, None), heads=self.heads):
                return ahead(next_logits(self.subject, question.ids, copies), label)
        asked = question.of(task)
        with self.subject.gated(gates, self._reference(ask, [asked]), heads=self.heads):
            ((_, batch, scores),) = scores_of(self.subject, [asked], copies)
        return margins(scores, asked, batch, label)

    def _reference(self, ask: Ask, group: Any) -> torch.Tensor | None:
        """The reference of the request, even if all gates are open."""
        if ask.close == "zero":
            return None
        some = ask if ask.closed else Ask(ask.texts, ask.choices, ((0.0,),), ask.close, ask.seed)
        return self.answers.reference(some, group)

    def effects(self, ask: Ask, task: str) -> dict[str, Any]:
        """The first-order effect of closing each head on the answer's margin, ∂margin/∂g, in one backward pass."""
        gates = self.answers.gates(ask)
        gradient, margin, _ = self._gradient(ask, task, gates)
        return {"margin": margin, "effects": _matrix(gradient.masked_fill(self.answers.gone, torch.nan))}

    def _gradient(
        self, ask: Ask, task: str, gates: torch.Tensor, label: int | None = None
    ) -> tuple[torch.Tensor, float, int]:
        gates = gates.clone().requires_grad_()
        with torch.enable_grad():
            margin, label = self.margin(ask, task, gates, label)
            (gradient,) = torch.autograd.grad(margin.sum(), gates)
        return gradient, float(margin[0].detach()), label

    def flipping(self, ask: Ask, task: str) -> Iterator[dict[str, Any]]:
        """Close heads one by one until the answer changes, then reopen those that were not needed.

        Each step measures the heads with the largest effect to first order and closes the one that helps most, so the
        set is the smallest that a greedy search finds, and every head in it is needed.
        """
        gates = self.answers.gates(ask)
        _, margin, label = self._gradient(ask, task, gates)
        if label < 0 or (task != NEXT and self._graded(ask, task)):
            raise HeadwiseError(f"{task} has no single label to flip", "a task that chooses one label")
        yield {"step": 0, "margin": margin, "closed": []}
        closed: list[tuple[int, int]] = []
        while margin > 0 and (tried := self._candidates(ask, task, gates, label)):
            results = self._closing(ask, task, gates, tried, label)
            best = int(results.argmin())
            layer, head = tried[best]
            gates[layer, head], margin = 0, float(results[best])
            closed.append((layer, head))
            yield {"step": len(closed), "margin": margin, "closed": list(closed)}
        if margin > 0:
            yield {"done": True, "found": None, "tried": len(closed)}
            return
        needed = self._needed(ask, task, gates, closed, label)
        flips = self._random(ask, task, len(needed), label)
        yield {"done": True, "found": needed, "random": RANDOM, "flips": flips}

    def _graded(self, ask: Ask, task: str) -> bool:
        return self.answers.question(ask).of(task).kind.__class__.__name__ in ("Regress", "Grade")

    def _candidates(self, ask: Ask, task: str, gates: torch.Tensor, label: int) -> list[tuple[int, int]]:
        gradient, *_ = self._gradient(ask, task, gates, label)
        effect = (gradient * gates).masked_fill((gates == 0) | self.answers.gone.to(gates.device), -torch.inf)
        order = effect.flatten().topk(min(TRIED, effect.numel()))
        places = [int(place) for place, value in zip(order.indices, order.values) if value > -torch.inf]
        return [divmod(place, gates.shape[1]) for place in places]

    @torch.no_grad()
    def _closing(
        self, ask: Ask, task: str, gates: torch.Tensor, heads: list[tuple[int, int]], label: int, to: float = 0.0
    ) -> torch.Tensor:
        """The margin with each of these heads closed as well, (B,)."""
        sets = gates.repeat(len(heads), 1, 1)
        for row, (layer, head) in enumerate(heads):
            sets[row, layer, head] = to
        return self._margins(ask, task, sets, label)

    def _margins(self, ask: Ask, task: str, sets: torch.Tensor, label: int) -> torch.Tensor:
        """Margins under several sets of gates, in batches of bounded size."""
        question = self.answers.question(ask)
        length = len(question.ids or ()) if task == NEXT else int(question.of(task).data.lengths.sum())
        size = max(1, TOKENS // max(1, length))
        parts = [sets[start : start + size] for start in range(0, len(sets), size)]
        return torch.cat([self.margin(ask, task, part, label, len(part))[0] for part in parts])

    def _needed(
        self, ask: Ask, task: str, gates: torch.Tensor, closed: list[tuple[int, int]], label: int
    ) -> list[tuple[int, int]]:
        """The closed heads that cannot be reopened one after another without the answer changing back."""
        needed = list(closed)
        before = self.answers.gates(ask)
        for layer, head in closed[:-1]:
            trial = gates.clone()
            trial[layer, head] = before[layer, head]
            if float(self._margins(ask, task, trial[None], label)[0].detach()) <= 0:
                gates = trial
                needed.remove((layer, head))
        return needed

    @torch.no_grad()
    def _random(self, ask: Ask, task: str, size: int, label: int) -> int:
        """How many random sets of as many heads flip the answer too."""
        gates = self.answers.gates(ask)
        open_ = ((gates > 0).cpu() & ~self.answers.gone).flatten().nonzero().flatten().numpy()
        rng, sets = np.random.default_rng(0), gates.repeat(RANDOM, 1, 1)
        for row in range(RANDOM):
            sets[row].view(-1)[torch.from_numpy(rng.choice(open_, size, replace=False))] = 0
        return int((self._margins(ask, task, sets, label) <= 0).sum())

    # -- attention

    @torch.no_grad()
    def attention(self, ask: Ask, layer: int) -> dict[str, Any]:
        """The tokens, and the attention of a layer's heads under the gates as bytes, (H, T, T)."""
        question, reference = self.answers.question(ask), None
        if question.ids is not None:
            rows = torch.tensor([question.ids], device=self.subject.device)
            inputs, ids = {"input_ids": rows, "attention_mask": torch.ones_like(rows)}, question.ids
        elif question.groups:
            first = question.groups[0]
            reference = self.answers.reference(ask, first)
            forwards = list(self.subject.inputs(first[0].task, first[0].batch(self.subject)))
            inputs = forwards[0][1]
            ids = inputs["input_ids"][0].tolist()
        else:
            raise HeadwiseError(next(iter(question.problems.values()), "no task reads this text"))
        if len(ids) > SEEN:
            raise HeadwiseError(f"a text of {len(ids)} tokens", f"{SEEN} at most for attention maps")
        gates = self.answers.gates(ask)
        with eager(self.subject.backbone) as maps, self.subject.gated(gates, reference, heads=self.heads):
            weights = whole_maps(maps(**inputs), self.heads)[layer][0].nan_to_num(0)
        packed = (255 * weights.float().clamp(0, 1)).round().to(torch.uint8).cpu().numpy().tobytes()
        return {"tokens": _shown(self.subject.tokenizer, ids), "weights": base64.b64encode(packed).decode()}


def _shown(tokenizer: Any, ids: list[int]) -> list[str]:
    """Readable tokens; a middle dot joins a sub-word to the one before."""
    raw = tokenizer.convert_ids_to_tokens(ids)
    spaced = any(token[:1] in "Ġ▁" for token in raw if token)
    special = set(tokenizer.all_special_tokens)
    words = []
    for place, token in enumerate(raw):
        text = tokenizer.convert_tokens_to_string([token]).strip() if token not in special else token
        joined = token.startswith("##") or (spaced and place and token[:1] not in "Ġ▁" and token not in special)
        words.append(f"·{text.removeprefix('##')}" if joined else text)
    return words


def _matrix(values: torch.Tensor) -> list[list[float | None]]:
    return [[None if value != value else value for value in row] for row in values.double().tolist()]
