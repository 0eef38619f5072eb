"""Function-vector heads: their output, patched into another prompt, makes the model do the task.

Todd et al. 2024 (arXiv 2310.15213) and Yin and Steinhardt 2025 (2502.14010): a head's mean output at the last token of
in-context prompts is put in its place in prompts whose answers were shuffled; the causal indirect effect is what the
right answer gains. Here only the last token is computed again, on the cached keys and values of all before it, so that
every head costs one token.

Legend: N prompts, L layers, H heads, D head size, V words of the vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from headwise.atlas.result import Moments, Roles, joined
from headwise.atlas.texts import TASKS, Pairs
from headwise.errors import HeadwiseError
from headwise.heads.gates import Heads, captured, touched
from headwise.heads.modules import evaluating
from headwise.models.causality import is_causal
from headwise.models.processes import ALONE, Team

FORM = ("Q: {x}\nA:", " {y}\n\n")
SHOTS = 5
TOGETHER = 64  # heads patched in one forward


@dataclass(frozen=True)
class Prompt:
    """An in-context prompt as tokens, and the first token of its answer."""

    ids: np.ndarray
    answer: int


def prompts(
    tokenizer: Any, pairs: Pairs, count: int, shuffled: bool, seed: int = 0, shots: int = SHOTS
) -> list[Prompt]:
    """Prompts with examples; ``shuffled`` permutes the examples' answers, so they do not define the task.

    The two kinds have the same words for one seed.
    """
    if len(pairs) <= shots:
        raise HeadwiseError(f"{len(pairs)} pairs", f"more than the {shots} examples of a prompt")
    rng = np.random.default_rng(seed)
    start = [i for i in [getattr(tokenizer, "bos_token_id", None)] if i is not None]
    drawn = []
    for _ in range(count):
        *shown, (x, y) = [pairs[i] for i in rng.permutation(len(pairs))[: shots + 1]]
        answers = [answer for _, answer in shown]
        if shuffled:
            answers = answers[1:] + answers[:1]  # none keeps its own
        text = "".join(FORM[0].format(x=x) + FORM[1].format(y=y) for (x, _), y in zip(shown, answers))
        ids = tokenizer(text + FORM[0].format(x=x), add_special_tokens=False)["input_ids"]
        answer = tokenizer(FORM[0].format(x=x) + f" {y}", add_special_tokens=False)["input_ids"]
        own = tokenizer(FORM[0].format(x=x), add_special_tokens=False)["input_ids"]
        drawn.append(Prompt(np.array([*start, *ids]), answer[len(own)]))
    return drawn


@torch.no_grad()
def function_vectors(
    model: nn.Module,
    tokenizer: Any,
    tasks: Mapping[str, Pairs] = TASKS,
    count: int = 24,
    seed: int = 0,
    heads: Heads | None = None,
) -> Roles:
    """The probability of the right answer to shuffled prompts with one head's mean output on true prompts.

    The control is the same with the head's mean output of shuffled prompts: it carries the form of a prompt, and no
    task. One role for every task, and ``function``, over the prompts of all of them. Several processes share the
    prompts.

    Args:
        model: a causal language model.
        tokenizer: its tokenizer.
        tasks: names and pairs of words; default: antonyms, capitals, plurals, past tense, English to Spanish.
        count: prompts of each kind and task.
        seed: of the prompts.
        heads: of the model, if at hand.

    Example:
        >>> function_vectors(model, tokenizer).top("function", 3)
    """
    if not is_causal(model) or getattr(model, "get_output_embeddings", lambda: None)() is None:
        raise HeadwiseError(f"{type(model).__name__}, which predicts no next token", "a causal language model")
    heads, team = heads or Heads.of(model), Team.of(model)
    parts = []
    with evaluating(model):
        for pairs in tasks.values():
            true, false, test = (
                prompts(tokenizer, pairs, count, shuffled, seed + late)
                for shuffled, late in ((False, 0), (True, 0), (True, 1))
            )
            means = [_mean_outputs(model, heads, some, team) for some in (true, false)]
            effects = [(_patched(model, heads, prompt, means), counts) for prompt, counts in team.share(test)]
            own = np.reshape([effect for effect, counts in effects if counts], (-1, len(means), *heads.shape))
            parts.append(_moments(own, heads).joined(team))
    names, about = list(tasks), [f"the task of the prompt ({name})" for name in tasks]
    whole = [Roles.of([name], [line], part) for name, line, part in zip(names, about, parts)]
    everything = Moments(*(np.sum([getattr(part, f) for part in parts], 0) for f in Moments.__dataclass_fields__))
    return joined([Roles.of(["function"], ["the task of the prompt, over all tasks"], everything), *whole])


def _moments(effects: np.ndarray, heads: Heads) -> Moments:
    score, control = effects[:, 0], effects[:, 1]
    gone = np.where(heads.alive.numpy(), 0.0, np.nan)
    squares = ((score**2).sum(0), ((score - control) ** 2).sum(0))
    sums = (score.sum(0), control.sum(0), *squares)
    return Moments(np.array([len(effects)]), *((each + gone)[None] for each in sums))


def _mean_outputs(model: nn.Module, heads: Heads, some: list[Prompt], team: Team = ALONE) -> torch.Tensor:
    """The mean output of every head at the last token, (L, H, D), over the prompts of all processes."""
    device = next(model.parameters()).device
    total = torch.zeros(*heads.shape, heads.head_dim, dtype=torch.float64)
    for prompt, counts in team.share(some):
        with captured(model, lambda z: z[0, -1].clone(), heads=heads) as last:
            model(input_ids=torch.from_numpy(prompt.ids)[None].to(device), use_cache=False)
        total += torch.stack(list(last)).cpu().double() * counts
    (total,) = team.summed([total])
    return total / len(some)


def _patched(model: Any, heads: Heads, prompt: Prompt, means: list[torch.Tensor]) -> np.ndarray:
    """The probability of the right answer with each head patched in turn by each of the means, (2, L, H)."""
    device = next(model.parameters()).device
    ids = torch.from_numpy(prompt.ids)[None].to(device)
    before = model(input_ids=ids[:, :-1], use_cache=True).past_key_values
    places = [(site.layer, n, head) for site in heads.sites for n, head in enumerate(site.kept)]
    chances = np.full((len(means), *heads.shape), np.nan)
    for start in range(0, len(places), TOGETHER):
        some = places[start : start + TOGETHER]
        cache = copy.deepcopy(before)
        cache.batch_repeat_interleave(len(some) * len(means))

        def touch(layer: int, z_BTHD: torch.Tensor, some: list = some) -> torch.Tensor:
            z_BTHD = z_BTHD.clone()
            for m, mean in enumerate(means):
                for row, (own, n, head) in enumerate(some):
                    if own == layer:
                        z_BTHD[m * len(some) + row, -1, n] = mean[layer, head, : z_BTHD.shape[-1]].to(z_BTHD)
            return z_BTHD

        with touched(model, touch, heads):
            last = ids[:, -1:].expand(len(some) * len(means), 1)
            logits = model(input_ids=last, past_key_values=cache, use_cache=True).logits[:, -1]
        chance = logits.float().softmax(-1)[:, prompt.answer].cpu().numpy().reshape(len(means), len(some))
        for row, (layer, _, head) in enumerate(some):
            chances[:, layer, head] = chance[:, row]
    return chances
