"""What heads write where they attend: their output for a single token, read by the unembedding.

A head that attends to one token writes that token's value, through its output projection, into the stream. A name
mover writes the token itself (Wang et al. 2023, arXiv 2211.00593, the copy score); a successor head writes the one that
follows in a sequence: Tuesday for Monday (Gould et al. 2024, arXiv 2312.09230). The value is taken in a forward of a
text, beside it, where every token sees itself alone.

Legend: N tokens, C candidates, L layers, H heads, D head size, E model width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from headwise.atlas.result import Moments, Roles, joined
from headwise.atlas.texts import SEQUENCES, ordinary_tokens
from headwise.errors import HeadwiseError
from headwise.heads.gates import Heads
from headwise.heads.masking import beside
from headwise.heads.modules import evaluating
from headwise.heads.sites import Site
from headwise.models.processes import Team

NAMES = 24  # tokens of a text among which each must be identified
MOVES = "the attended token itself (fraction of tokens whose unembedding it points to most, among those of the text)"
FOLLOWS = "the successor of the attended word (fraction of words, among the others of the sequence)"


@dataclass(frozen=True)
class Listing:
    """Tokens of a text with the candidate each head should write for them."""

    ids: np.ndarray  # (T,)
    places: np.ndarray  # (N,): of the tokens that are attended to
    candidates: np.ndarray  # (C,): token ids
    target: np.ndarray  # (N,): which candidate
    control: np.ndarray  # (N,): another candidate
    barred: np.ndarray  # (N,): a candidate that does not count; -1 for none


def name_listings(tokenizer: Any, count: int = 24, seed: int = 0) -> list[Listing]:
    """Random ordinary tokens; the control of each is another token of the same text."""
    rng, words, start = np.random.default_rng(seed), ordinary_tokens(tokenizer), _start(tokenizer)
    size = min(NAMES, len(words))
    listings = []
    for _ in range(count):
        drawn, number = rng.choice(words, size, replace=False), np.arange(size)
        ids, nothing = np.array([*start, *drawn]), np.full(size, -1)
        listings.append(Listing(ids, len(start) + number, drawn, number, np.roll(number, 1), nothing))
    return listings


def successor_listings(
    tokenizer: Any, sequences: Mapping[str, Sequence[str]] = SEQUENCES, count: int = 24, seed: int = 0
) -> list[Listing]:
    """Single-token words of a sequence in random order; the control of each is its predecessor."""
    rng, start, listings = np.random.default_rng(seed), _start(tokenizer), []
    known = []
    for words in sequences.values():
        ids = [tokenizer(f" {word}", add_special_tokens=False)["input_ids"] for word in words]
        runs = [[]]  # words that follow each other
        for each in ids:
            if len(each) == 1:
                runs[-1].append(each[0])
            else:
                runs.append([])
        longest = max(runs, key=len)
        if len(longest) >= 4 and len(set(longest)) == len(longest):
            known.append(np.array(longest))
    for number in range(count if known else 0):
        sequence = known[number % len(known)]
        asked = rng.permutation(np.arange(1, len(sequence) - 1))  # one before it, one after it
        ids = np.array([*start, *sequence[asked]])
        listings.append(Listing(ids, len(start) + np.arange(len(asked)), sequence, asked + 1, asked - 1, asked))
    return listings


def writing(
    model: nn.Module,
    tokenizer: Any,
    sequences: Mapping[str, Sequence[str]] = SEQUENCES,
    count: int = 24,
    seed: int = 0,
    heads: Heads | None = None,
) -> Roles:
    """Scores of name movers and successor heads against another candidate of the same text.

    Example:
        >>> writing(model, tokenizer).top("name mover", 1)
    """
    sets = {
        "name mover": (MOVES, name_listings(tokenizer, count, seed)),
        "successor": (FOLLOWS, successor_listings(tokenizer, sequences, count, seed)),
    }
    heads = heads or Heads.of(model)
    return joined([written(model, name, about, some, heads) for name, (about, some) in sets.items() if some])


@torch.no_grad()
def written(model: Any, name: str, about: str, listings: Sequence[Listing], heads: Heads) -> Roles:
    """How often each head writes the target, and how often the control; several processes share the listings."""
    unembed = getattr(model, "get_output_embeddings", lambda: None)()
    if unembed is None:
        raise HeadwiseError(f"{type(model).__name__}, which predicts no tokens", "a language model")
    sums = Moments(np.zeros(1, int), *(np.where(heads.alive.numpy(), 0.0, np.nan)[None] for _ in range(4)))
    device, team = next(model.parameters()).device, Team.of(model)
    for listing, counts in team.share(listings):
        ids = torch.from_numpy(listing.ids)[None].to(device)
        values: dict[int, torch.Tensor] = {}
        itself = lambda site, query, key: query == key  # noqa: E731
        with evaluating(model), beside(model, itself, values.__setitem__, heads), _Behind(model, unembed) as behind:
            model(input_ids=ids)
        rows = _gathered(unembed.weight)[torch.from_numpy(listing.candidates).to(device)].float()
        sums.texts[:] += counts
        for layer, z_BTHD in values.items():
            site = heads.sites[layer]
            out_NHE = _projected(site, z_BTHD[0, torch.from_numpy(listing.places).to(device)])
            for module in (*behind.layer(site), *behind.last):
                out_NHE = _applied(module, out_NHE)
            likely = (out_NHE.float() @ rows.T).cpu().numpy()  # (N, H, C)
            barred = np.flatnonzero(listing.barred >= 0)
            likely[barred, :, listing.barred[barred]] = -np.inf
            best = likely.argmax(-1)  # (N, H)
            score, control = ((best == each[:, None]).mean(0) for each in (listing.target, listing.control))
            kept = list(site.kept)
            for field, value in zip(
                ("score", "control", "score_squared", "lift_squared"),
                (score, control, score**2, (score - control) ** 2),
            ):
                getattr(sums, field)[0, layer, kept] += value * counts
    return Roles.of([name], [about], sums.joined(team))


def _projected(site: Site, z_NHD: torch.Tensor) -> torch.Tensor:
    """What each head alone adds to the residual stream, (N, H, E)."""
    count = z_NHD.shape[1]
    apart = torch.eye(count, device=z_NHD.device, dtype=z_NHD.dtype)[None, :, :, None] * z_NHD[:, None]  # (N, H, H, D)
    nothing = _applied(site.module, torch.zeros_like(apart[:1, :1]).flatten(2))
    return _applied(site.module, apart.flatten(2)) - nothing


def _applied(module: nn.Module, given: torch.Tensor) -> torch.Tensor:
    """What a module makes of a tensor outside its model's forward, when FSDP has its weights dealt out."""
    weights = {name: _gathered(p) for name, p in module.named_parameters() if hasattr(p, "full_tensor")}
    return torch.func.functional_call(module, weights, (given,))


def _gathered(weight: torch.Tensor) -> torch.Tensor:
    return weight.full_tensor() if hasattr(weight, "full_tensor") else weight


class _Behind:
    """The modules applied to attention's output before it joins the residual stream, and before the unembedding.

    Norms of single outputs (Gemma) and the last norm change what a direction means; they are known by their inputs and
    outputs, not by their names.
    """

    def __init__(self, model: nn.Module, unembed: nn.Module):
        self.model, self.unembed = model, unembed
        self.calls: list[tuple[nn.Module, int, int]] = []  # a module without parts, where its input and its output lie
        self.tensors: list[torch.Tensor] = []  # so that no location is used twice
        self.last: list[nn.Module] = []

    def __enter__(self) -> _Behind:
        def hook(module: nn.Module, args: tuple, output: Any) -> None:
            given = next((a for a in args if isinstance(a, torch.Tensor)), None)
            if given is not None and isinstance(output, torch.Tensor):
                self.tensors += [given, output]
                self.calls.append((module, given.data_ptr(), output.data_ptr()))

        leaves = [module for module in self.model.modules() if next(module.children(), None) is None]
        self.hooks = [module.register_forward_hook(hook) for module in leaves]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self.hooks:
            hook.remove()
        into = next((given for module, given, _ in reversed(self.calls) if module is self.unembed), None)
        self.last = [module for module, _, out in self.calls if out == into and module is not self.unembed][-1:]
        self.tensors.clear()

    def layer(self, site: Site) -> list[nn.Module]:
        """The module that alone reads the output of a site's projection."""
        out = next((out for module, _, out in reversed(self.calls) if module is site.module), None)
        after = [module for module, given, _ in self.calls if given == out and module is not site.module]
        return [module for module in after if not hasattr(module, "in_features") and not hasattr(module, "nf")][:1]


def _start(tokenizer: Any) -> list[int]:
    return [i for i in [getattr(tokenizer, "bos_token_id", None)] if i is not None]
