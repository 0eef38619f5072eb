"""Log-likelihoods of packed choices under a causal, masked or seq2seq model, with one row per example in every forward.

Gates and gradients per example therefore work unchanged. The prefix shared by choices is computed once: in a single
forward if choices have one token, otherwise with the model's cache. Without a cache it is computed for each choice.

Legend: B examples, T tokens, C choices, N positions that are read, V vocabulary size.
"""

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from headwise.errors import HeadwiseError
from headwise.heads.modules import evaluating
from headwise.tasks.kinds.choice import Likelihoods

Batch = dict[str, Tensor]
BRANCHING = frozenset(
    ("DynamicLayer", "DynamicSlidingWindowLayer")
)  # caches that grow without changing earlier entries


class Wanted(NamedTuple):
    """The log-probabilities to read from a forward: positions and tokens of one choice."""

    place: Tensor  # (B, T), bool
    ids: Tensor  # (B, T)
    choice: int  # 0: the shared prefix

    @property
    def shortened(self) -> Wanted:
        return Wanted(self.place[:, :-1], self.ids[:, :-1], self.choice)


class Piece(NamedTuple):
    """Parts of a packed batch as a rectangle."""

    ids: Tensor  # (B, T)
    mask: Tensor  # (B, T), bool
    target: Tensor  # (B, T), bool: scored tokens

    @property
    def last(self) -> Tensor:
        """The position of each row's last token, (B, T)."""
        return self.mask & (self.mask.cumsum(1) == self.mask.sum(1, keepdim=True))

    def grown(self, token_B: Tensor) -> Piece:
        """With one more token appended to every row."""
        place = self.mask.sum(1, keepdim=True) + self.mask.long().argmax(1, keepdim=True)  # after the last one
        ids, mask, target = (torch.cat([column, column[:, :1]], 1) for column in self)
        ids = ids.scatter(1, place, token_B[:, None])
        mask[:, -1] = False
        return Piece(ids, mask.scatter(1, place, True), target)

    def predicted(self, choice: int) -> Wanted:
        """Each scored token, read at the position before it."""
        place = torch.zeros_like(self.target)
        place[:, :-1] = self.target[:, 1:]
        return Wanted(place, self.ids.roll(-1, 1), choice)

    @property
    def shortened(self) -> Piece:
        """Without the last column, which predicts nothing."""
        return Piece(*(column[:, :-1] for column in self))


class Read(NamedTuple):
    choice: int
    total: Tensor  # (B,)
    missed: Tensor  # (B,): number of tokens that are not the most likely


class Reader:
    """Computes the likelihoods of packed batches under a language model.

    Args:
        model: a model with a language-model head.
        form: causal, masked or seq2seq.
        mask_token: replaces a token whose pseudo-likelihood is computed.
        cache: compute the shared prefix once, if the model's cache allows it.
    """

    def __init__(self, model: nn.Module, form: str, mask_token: int | None = None, cache: bool = True):
        self.model: Any = model
        self.form, self.mask_token = form, mask_token
        self.accepted = inspect.signature(model.forward).parameters
        find = getattr(model, "get_output_embeddings", None)
        if find is None or find() is None:
            seen = f"{type(model).__name__} has no language-model head"
            raise HeadwiseError(
                seen, "a model that predicts words: AutoModelForCausalLM, …ForMaskedLM or …ForSeq2SeqLM"
            )
        self.cache = cache and form == "causal" and self._branches()
        self._around: Callable[[int], AbstractContextManager[Any]] | None = None

    def likelihoods(self, batch: Batch) -> Likelihoods:
        """The log-likelihood of every choice of every row."""
        number = int(batch["part"].max())
        totals: list[Any] = [0.0] * (number + 1)
        missed: list[Any] = [0] * (number + 1)
        for read in getattr(self, f"_{self.form}")(batch, number):
            totals[read.choice] = totals[read.choice] + read.total
            missed[read.choice] = missed[read.choice] + read.missed
        total = torch.stack([totals[0] + each for each in totals[1:]], 1)
        return Likelihoods(total, torch.stack([missed[0] + each for each in missed[1:]], 1) == 0)

    @torch.no_grad()
    def generate(
        self, batch: Batch, longest: int, ended: Callable[[list[int]], bool], eos: int | None
    ) -> list[list[int]]:
        """Greedy decoding after the prompts, until every row has ended or reached the maximum length."""
        prompt = laid(batch, (batch["part"] >= 0) & (batch["target"] == 0), left=self.cache)
        step = self._spoken if self.form == "causal" else self._answered
        rows: list[list[int]] = [[] for _ in prompt.ids]
        done = [False] * len(rows)
        for token in itertools.islice(step(prompt), longest):
            for row, number in enumerate(token.tolist()):
                if not done[row] and number != eos:
                    rows[row].append(number)
                done[row] = done[row] or number == eos or ended(rows[row])
            if all(done):
                break
        return rows

    def _spoken(self, prompt: Piece) -> Iterator[Tensor]:
        """The most likely next tokens of a causal model, (B,), endlessly."""
        past: dict[str, Any] = {}
        while True:
            wanted = [Wanted(prompt.last, prompt.ids, 0)]
            ids, mask = prompt.ids, prompt.mask
            if past:
                ids, wanted = ids[:, -1:], [Wanted(prompt.last[:, -1:], ids[:, -1:], 0)]
            output = self._forward(self._inputs(ids, mask) | past, wanted, use_cache=self.cache)
            token = output.logits[0].argmax(-1)
            yield token
            prompt = prompt.grown(token)
            past = {"past_key_values": output.past_key_values} if self.cache else {}

    def _answered(self, prompt: Piece) -> Iterator[Tensor]:
        """The most likely next tokens of a decoder, which rereads its output at every step."""
        mask = prompt.mask.long()
        encoded = self.model.get_encoder()(input_ids=prompt.ids, attention_mask=mask)
        ids = torch.full_like(prompt.ids[:, :1], self.model.config.decoder_start_token_id)
        while True:
            last = torch.zeros_like(ids, dtype=torch.bool)
            last[:, -1] = True
            inputs = {"encoder_outputs": encoded, "attention_mask": mask, "decoder_input_ids": ids}
            token = self._forward(inputs, [Wanted(last, ids, 0)]).logits[0].argmax(-1)
            yield token
            ids = torch.cat([ids, token[:, None]], 1)

    def inputs(self, batch: Batch, choice: int | Tensor) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        """One forward over the prompts with one choice of each row: which tokens are real, and the arguments."""
        if self.form == "seq2seq":
            prompt, answer = piece(batch, 0), piece(batch, choice)
            inputs = {"input_ids": prompt.ids, "attention_mask": prompt.mask.long()}
            yield prompt.mask, {**inputs, "decoder_input_ids": self._shifted(answer.ids)}
            return
        whole = piece(batch, 0, choice)
        if self.form == "masked":
            yield whole.mask, {"input_ids": whole.ids, "attention_mask": whole.mask.long()}
        else:
            yield whole.mask, self._inputs(whole.ids, whole.mask)

    # -- forms

    def _causal(self, batch: Batch, number: int) -> Iterator[Read]:
        tails = [piece(batch, choice) for choice in range(1, number + 1)]
        longest = max(tail.ids.shape[1] for tail in tails)
        if longest > 1 and not self.cache:
            yield from self._uncached(batch, number)
            return
        prefix = piece(batch, 0, left=longest > 1)  # no padding between prefix and continuation
        wanted = [prefix.predicted(0)]
        for choice, tail in enumerate(tails, 1):
            place = prefix.last & tail.target[:, :1]
            wanted.append(Wanted(place, tail.ids[:, :1].expand_as(place), choice))
        output = self._forward(self._inputs(prefix.ids, prefix.mask), wanted, use_cache=longest > 1)
        yield from self._reads(output, wanted)
        for choice, tail in enumerate(tails, 1):
            if tail.ids.shape[1] > 1:
                yield from self._branch(prefix, tail, choice, output.past_key_values)

    def _branch(self, prefix: Piece, tail: Piece, choice: int, cache: Any) -> Iterator[Read]:
        """The rest of a choice, after the cached prefix."""
        wanted, tail = [tail.predicted(choice).shortened], tail.shortened
        inputs = self._inputs(tail.ids, torch.cat([prefix.mask, tail.mask], 1))
        output = self._forward(inputs | {"past_key_values": branch(cache)}, wanted, use_cache=True)
        yield from self._reads(output, wanted)

    def _uncached(self, batch: Batch, number: int) -> Iterator[Read]:
        for choice in range(1, number + 1):
            whole = piece(batch, 0, choice)
            wanted, short = [whole.predicted(choice).shortened], whole.shortened
            yield from self._reads(self._forward(self._inputs(short.ids, short.mask), wanted), wanted)

    def _masked(self, batch: Batch, number: int) -> Iterator[Read]:
        """Pseudo-likelihood: each scored token is masked in a separate forward (Salazar et al. 2020)."""
        for choice in range(1, number + 1):
            whole = piece(batch, choice)
            rank = whole.target.cumsum(1) * whole.target
            for turn in range(1, int(rank.max()) + 1):
                wanted = [Wanted(rank == turn, whole.ids, choice)]
                ids = whole.ids.masked_fill(rank == turn, self.mask_token or 0)
                inputs = {"input_ids": ids, "attention_mask": whole.mask.long()}
                yield from self._reads(self._forward(inputs, wanted), wanted)

    def _seq2seq(self, batch: Batch, number: int) -> Iterator[Read]:
        """The encoder reads the prompt once; the decoder reads each choice after its start token."""
        prompt = piece(batch, 0)
        mask = prompt.mask.long()
        encoded = self.model.get_encoder()(input_ids=prompt.ids, attention_mask=mask)
        for choice in range(1, number + 1):
            answer = piece(batch, choice)
            wanted = [Wanted(answer.target, answer.ids, choice)]
            inputs = {"encoder_outputs": encoded, "attention_mask": mask}
            inputs["decoder_input_ids"] = self._shifted(answer.ids)
            yield from self._reads(self._forward(inputs, wanted), wanted)

    def _shifted(self, ids: Tensor) -> Tensor:
        """What the decoder reads to predict these tokens."""
        start = torch.full_like(ids[:, :1], self.model.config.decoder_start_token_id)
        return torch.cat([start, ids[:, :-1]], 1)

    # -- forwards

    def _inputs(self, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """The tokens, and the mask and the places of all before them too."""
        inputs = {"input_ids": ids, "attention_mask": mask.long()}
        if "position_ids" in self.accepted:
            inputs["position_ids"] = (mask.long().cumsum(1) - 1).clamp_min(0)[:, -ids.shape[1] :]
        return inputs

    def _forward(self, inputs: dict[str, Any], wanted: list[Wanted], use_cache: bool = False) -> Any:
        if "use_cache" in self.accepted:
            inputs = inputs | {"use_cache": use_cache}
        width = next(inputs[name] for name in ("input_ids", "decoder_input_ids") if name in inputs).shape[1]
        with only(self.model, _places(wanted)), self._around(width) if self._around else nullcontext():
            return self.model(**inputs)

    @contextmanager
    def by_token(self, around: Callable[[int], AbstractContextManager[Any]] | None = None) -> Iterator[None]:
        """Inside, column i of every forward is token i: padding on the right and no cache; each is ``around`` one."""
        before = self.cache, self._around
        self.cache, self._around = False, around
        try:
            yield
        finally:
            self.cache, self._around = before

    def _reads(self, output: Any, wanted: list[Wanted]) -> Iterator[Read]:
        """Sums over places; the vocabulary is summed up once for each place, whatever number of choices read it."""
        logits_NV = output.logits[0]
        logits_NV = logits_NV if logits_NV.dtype in (torch.float32, torch.float64) else logits_NV.float()
        whole_N, best_N = logits_NV.logsumexp(-1), logits_NV.detach().argmax(-1)
        where = _places(wanted)
        number_BT = (where.flatten().cumsum(0) - 1).view_as(where)
        for place, ids, choice in wanted:
            n, token = number_BT[place], ids[place]
            values = torch.zeros_like(place, dtype=whole_N.dtype).masked_scatter(
                place, logits_NV[n, token] - whole_N[n]
            )
            missed = torch.zeros_like(place).masked_scatter(place, best_N[n] != token)
            yield Read(choice, values.sum(1), missed.sum(1))

    @torch.no_grad()
    def _branches(self) -> bool:
        """Whether the cache can be branched, also after padding, without changing results; tried on four tokens."""
        if not {"use_cache", "past_key_values"} <= set(self.accepted):
            return False
        ids = torch.arange(1, 5, device=next(self.model.parameters()).device).expand(2, 4)
        padded = torch.ones_like(ids)
        padded[1, 0] = 0
        with evaluating(self.model):
            rows = [self.model(**self._inputs(ids[:1, i:], padded[:1, i:])).logits[0, -2:] for i in (0, 1)]
            first = self.model(**self._inputs(ids[:, :2], padded[:, :2]), use_cache=True)
            if not branches(first.past_key_values):
                return False
            rest = self._inputs(ids[:, 2:], padded)
            ways = [self.model(**rest, past_key_values=branch(first.past_key_values)).logits for _ in range(2)]
        whole = torch.stack(rows)
        close = 1e-3 if whole.dtype in (torch.float32, torch.float64) else 0.1
        return all(bool(torch.allclose(whole, way, rtol=close, atol=close * float(whole.abs().max()))) for way in ways)


def piece(batch: Batch, *parts: int | Tensor, left: bool = False) -> Piece:
    """The tokens of these parts of every row, in their order, filled up on the right, or on the left.

    A part is a number, or one for each row, ``(B, 1)``.

    Example:
        >>> batch = {"input_ids": torch.tensor([[5, 6, 7]]), "part": torch.tensor([[0, 1, 2]])}
        >>> piece(batch | {"target": torch.tensor([[0, 1, 1]])}, 0, 2).ids.tolist()
        [[5, 7]]
    """
    return laid(batch, torch.stack([batch["part"] == part for part in parts]).any(0), left)


def laid(batch: Batch, keep: Tensor, left: bool = False) -> Piece:
    """The tokens to keep, in their order, filled up on one side."""
    width = max(1, int(keep.sum(1).max()))
    order = (keep if left else ~keep).to(torch.int8).argsort(dim=1, stable=True)
    order = order[:, -width:] if left else order[:, :width]
    mask = keep.gather(1, order)
    target = (batch["target"].gather(1, order) == 1) & mask
    return Piece(batch["input_ids"].gather(1, order), mask, target)


def _places(wanted: list[Wanted]) -> Tensor:
    return torch.stack([each.place for each in wanted]).any(0)


@contextmanager
def only(model: Any, where_BT: Tensor) -> Iterator[None]:
    """Compute logits only at some positions; they are ``(1, N, V)`` inside the block."""

    def pick(module: nn.Module, args: tuple) -> tuple:
        return (args[0][where_BT.to(args[0].device)][None], *args[1:])

    handle = model.get_output_embeddings().register_forward_pre_hook(pick)
    try:
        yield
    finally:
        handle.remove()


def branches(cache: Any) -> bool:
    """Whether a cache grows without changing earlier entries, so that `branch` keeps what it is now."""
    parts = _parts(cache) or [cache]
    return {type(layer).__name__ for part in parts for layer in getattr(part, "layers", [None])} <= BRANCHING


def branch(cache: Any) -> Any:
    """A copy of a cache that can grow independently."""
    twin = copy.copy(cache)
    if parts := _parts(cache):
        twin.self_attention_cache, twin.cross_attention_cache = map(branch, parts)
        twin.is_updated = dict(cache.is_updated)
    else:
        twin.layers = [copy.copy(layer) for layer in cache.layers]
    return twin


def _parts(cache: Any) -> list[Any]:
    """The caches of self and cross attention of an encoder-decoder model."""
    return [getattr(cache, f"{name}_attention_cache") for name in ("self", "cross") if hasattr(cache, "is_updated")]
