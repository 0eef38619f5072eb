"""How a prompt and its continuations become tokens: every convention a field of one small record.

The defaults are those of lm-evaluation-harness, and they move scores by several points: a continuation is a space and
the choice, white space at the end of a prompt moves to the continuation, both are encoded together and cut at the
prompt's length, and an empty prompt is BOS or else EOS.

A row is packed into one item: ``input_ids`` holds what all choices have in common, once, and then the rest of each
choice; ``part`` says which is which (0 the shared prefix, then 1, 2, ...) and ``target`` which tokens count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np

from headwise.errors import HeadwiseError, unknown
from headwise.tasks.columns import Columns, Ragged

FORMS = ("causal", "masked", "seq2seq")


class Pair(NamedTuple):
    """A prompt and one continuation as tokens; ``end`` follows both (special tokens of masked models)."""

    prompt: list[int]
    continuation: list[int]
    end: list[int]


@dataclass(frozen=True)
class Reading:
    """How prompts and continuations become tokens.

    Example:
        >>> Reading(delimiter="").describe()
        {'delimiter': ''}
    """

    form: str = "causal"
    """The model's form: causal, masked or seq2seq; `LanguageModel` fills it in."""
    delimiter: str = " "
    """What stands between a prompt and its continuation; also before the continuation of an empty prompt."""
    empty: str = "bos"
    """What an empty prompt is: "bos" (or else EOS), "eos", or a text such as a line break."""
    special: bool | None = None
    """Whether special tokens are added; by default as the tokenizer does."""
    joint: bool = True
    """Encode prompt and continuation together; otherwise each by itself."""
    chat: bool = False
    """Put prompts into the tokenizer's chat template, as a user's turn."""
    long: str = "refuse"
    """What to do with rows longer than the context: "refuse", or "left" cuts prompts from the left."""

    def __post_init__(self) -> None:
        for name, value, allowed in (("form", self.form, FORMS), ("long", self.long, ("refuse", "left"))):
            if value not in allowed:
                raise unknown(name, value, allowed)

    def describe(self) -> dict[str, Any]:
        """The fields that differ from the defaults."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}

    def encode(
        self, rows: Sequence[tuple[Sequence[str], Sequence[str]]], tokenizer: Any, max_length: int
    ) -> tuple[Columns, np.ndarray]:
        """Columns for rows of prompts and continuations, one prompt for each, and how many tokens were cut.

        ``tokens`` is the number of tokens that count, for each choice.
        """
        self._check(tokenizer)
        packed, cut = [], np.zeros(len(rows), np.int64)
        for number, (prompts, continuations) in enumerate(rows):
            pairs = [self.pair(*both, tokenizer) for both in zip(prompts, continuations, strict=True)]
            for choice, pair in enumerate(pairs):
                if not pair.continuation:
                    seen = f"the choice {continuations[choice]!r} after {prompts[choice][-40:]!r}, which has no tokens"
                    raise HeadwiseError(seen, "choices of one token or more")
                pairs[choice], lost = self._fitted(pair, max_length)
                cut[number] = max(cut[number], lost)
            packed.append(self._packed(pairs))
        columns: Columns = {
            "input_ids": Ragged.of(row[0] for row in packed),
            "part": Ragged.of((row[1] for row in packed), dtype=np.int16),
            "target": Ragged.of((row[2] for row in packed), dtype=np.int8),
            "tokens": Ragged.of(row[3] for row in packed),
        }
        return columns, cut

    def pair(self, prompt: str, continuation: str, tokenizer: Any) -> Pair:
        """The tokens of a prompt and of one continuation of it."""
        if self.chat:
            turn = [{"role": "user", "content": prompt}]
            prompt = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
        elif prompt or self.form != "masked":
            continuation = self.delimiter + continuation
        if self.form == "masked":
            return self._masked(prompt, continuation, tokenizer)
        if not prompt:
            return self._without_prompt(continuation, tokenizer)
        kept = prompt.rstrip()
        prompt, continuation = kept, prompt[len(kept) :] + continuation
        special = {} if self.special is None else {"add_special_tokens": self.special}
        if not special and prompt.startswith(_text_of(_first_token(tokenizer), tokenizer)):
            special = {"add_special_tokens": False}  # a chat template that begins with BOS
        before = tokenizer.encode(prompt, verbose=False, **special)
        if self.form == "seq2seq" or not self.joint:
            return Pair(before, tokenizer.encode(continuation, add_special_tokens=False, verbose=False), [])
        return Pair(before, tokenizer.encode(prompt + continuation, verbose=False, **special)[len(before) :], [])

    def _without_prompt(self, continuation: str, tokenizer: Any) -> Pair:
        tokens = tokenizer.encode(continuation, add_special_tokens=False, verbose=False)
        first = self._first(tokenizer)
        return Pair(tokens[:1], tokens[1:], []) if first == tokens[:1] else Pair(first, tokens, [])

    def _first(self, tokenizer: Any) -> list[int]:
        """The tokens that an empty prompt stands for."""
        if self.empty == "bos":
            token = _first_token(tokenizer)
        elif self.empty == "eos":
            token = tokenizer.eos_token_id
        else:
            return tokenizer.encode(self.empty, add_special_tokens=False)
        if token is None:
            seen = f"an empty prompt, and a tokenizer without {'BOS and EOS' if self.empty == 'bos' else 'EOS'}"
            raise HeadwiseError(seen, "a token to begin with", r'Reading(empty="\n")')
        return [token]

    def _masked(self, prompt: str, continuation: str, tokenizer: Any) -> Pair:
        """The whole text with its special tokens, cut around the continuation's tokens."""
        coded = tokenizer(prompt + continuation, return_offsets_mapping=True, verbose=False)
        ids = coded["input_ids"]
        theirs = [i for i, (start, end) in enumerate(coded["offset_mapping"]) if end > max(start, len(prompt))]
        if not theirs:
            return Pair(ids, [], [])
        first, last = theirs[0], theirs[-1] + 1
        return Pair(ids[:first], ids[first:last], ids[last:])

    def _check(self, tokenizer: Any) -> None:
        if self.chat and not getattr(tokenizer, "chat_template", None):
            raise HeadwiseError("a tokenizer without a chat template", "one that has it", "Reading(chat=False)")
        if self.form == "masked" and getattr(tokenizer, "mask_token_id", None) is None:
            raise HeadwiseError("a tokenizer without a mask token", "one that has it, for pseudo-likelihoods")
        if self.form == "masked" and not getattr(tokenizer, "is_fast", False):
            raise HeadwiseError(f"{type(tokenizer).__name__} does not say where sub-words stand", "a fast tokenizer")

    def _fitted(self, pair: Pair, max_length: int) -> tuple[Pair, int]:
        """The pair within the model's context, and how many tokens of the prompt were cut."""
        # The last token of a causal model is never an input; a seq2seq model reads the two sides apart.
        size = len(pair.prompt) + len(pair.continuation) + len(pair.end) - (self.form == "causal")
        size = max(len(pair.prompt), len(pair.continuation)) if self.form == "seq2seq" else size
        if size <= max_length:
            return pair, 0
        if self.long == "refuse" or size - max_length >= len(pair.prompt):
            seen = f"a prompt and choice of {size} tokens"
            hint = 'fewer shots, shorter texts, a larger max_length, or Reading(long="left") to cut prompts'
            raise HeadwiseError(seen, f"{max_length} at most, the context of the model", hint)
        lost = size - max_length
        return pair._replace(prompt=pair.prompt[lost:]), lost

    def _packed(self, pairs: list[Pair]) -> tuple[list[int], list[int], list[int], list[int]]:
        """Tokens, their parts, which of them count, and how many count for each choice."""
        choices = [
            [*((token, 0) for token in p.prompt), *((token, 1) for token in p.continuation), *((t, 0) for t in p.end)]
            for p in pairs
        ]
        shared = 0
        if self.form == "causal":  # every choice keeps its last token: nothing is predicted from no token
            alike = zip(*(choice[:-1] for choice in choices))
            shared = sum(1 for _ in takewhile(lambda tokens: len(set(tokens)) == 1, alike))
        elif self.form == "seq2seq":
            shared = len(pairs[0].prompt)
            if any(pair.prompt != pairs[0].prompt for pair in pairs):
                raise HeadwiseError("choices with prompts of their own", "one prompt, for a model with an encoder")
        pieces = [choices[0][:shared], *(choice[shared:] for choice in choices)]
        ids = [token for piece in pieces for token, _ in piece]
        targets = [target for piece in pieces for _, target in piece]
        parts = [number for number, piece in enumerate(pieces) for _ in piece]
        return ids, parts, targets, [len(pair.continuation) for pair in pairs]


def _first_token(tokenizer: Any) -> int | None:
    bos = getattr(tokenizer, "bos_token_id", None)
    return tokenizer.eos_token_id if bos is None else bos


def _text_of(token: int | None, tokenizer: Any) -> str:
    return "\0" if token is None else tokenizer.decode(token)
