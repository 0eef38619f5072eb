"""Language models without training: tasks are prompts with choices, continuations or answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from headwise.errors import HeadwiseError, unknown
from headwise.heads.gates import Heads, gated, stacks_of
from headwise.heads.modules import evaluating, positions, remembered
from headwise.heads.sites import Site
from headwise.models.batching import Encoded
from headwise.models.causality import is_causal
from headwise.models.likelihood import Reader
from headwise.models.loading import load_language_model
from headwise.models.subject import Batch, Output, Subject
from headwise.tasks.kinds.choice import Prompted
from headwise.tasks.kinds.generation import Generated, Generation
from headwise.tasks.lookup import get
from headwise.tasks.task import Task

LONGEST = 4096  # maximum tokens of a row by default: memory grows quadratically


class LanguageModel(Subject):
    """A causal, masked or seq2seq model with tasks answered by its likelihoods.

    Example:
        >>> lm = LanguageModel.from_pretrained("HuggingFaceTB/SmolLM2-135M", ["blimp.anaphor_agreement", "sst2@prompt"])
        >>> headwise.evaluate(lm, "sst2@prompt").answers
        {'negative': 31, 'positive': 841}
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any,
        tasks: Iterable[Task | str] | Task | str = (),
        max_length: int | None = None,
        reading: Mapping[str, Any] | None = None,
        cache: bool = True,
        stack: str | None = None,
    ):
        """Give a language model tasks.

        Args:
            model: a transformers model with a language-model head.
            tokenizer: its tokenizer.
            tasks: tasks or their names: ``blimp.anaphor_agreement``, ``sst2@prompt``.
            max_length: maximum number of tokens per row; longer rows raise (default: the model's context, up to 4096).
            reading: fields of `Reading` to set for all tasks, such as ``{"delimiter": ""}``.
            cache: compute the shared prefix of choices once, if the model's cache allows it.
            stack: measure only this attention (default: encoder, decoder and cross attention together).
        """
        super().__init__()
        self.model: Any = model
        self.tokenizer = tokenizer
        self.max_length = min(max_length or LONGEST, positions(model))
        self.reader = Reader(model, form_of(model), getattr(tokenizer, "mask_token_id", None), cache)
        self.reading = {**(reading or {}), "form": self.reader.form}
        self.stack = stack
        self.tasks: dict[str, Task] = {}
        for task in [tasks] if isinstance(tasks, str | Task) else tasks:
            self.add(task)

    @classmethod
    def from_pretrained(cls, name: str | Path, tasks: Iterable[Task | str] | Task | str = (), **options: Any):
        """Load a language model by Hub name or folder."""
        return cls(*load_language_model(name), tasks, **options)

    def add(self, task: Task | str) -> None:
        """Give the model one more task."""
        if isinstance(task, str):
            task = get(task)
        if task.name in self.tasks:
            raise HeadwiseError(f"two tasks are named {task.name!r}", "a unique name for each")
        kind: Any = task.kind
        if not isinstance(kind, Prompted):
            seen = f"task {task.name!r} is answered by a trained output head"
            raise HeadwiseError(seen, "tasks for a language model", f"{task.name}@prompt")
        if isinstance(kind, Generation) and self.reader.form == "masked":
            raise HeadwiseError(
                f"task {task.name!r} generates text, and {type(self.model).__name__} is a masked model",
                "a causal model",
            )
        read = replace(cast(Any, kind), reading=replace(kind.reading, **self.reading))
        self.tasks[task.name] = replace(task, kind=self._calibrated(read))

    def _calibrated(self, kind: Any) -> Any:
        """The kind with its bias measured, if it has content-free prompts."""
        if not getattr(kind, "neutral", ()) or kind.bias:
            return kind
        rows = [{"prompt": prompt, "label": 0} for prompt in kind.neutral]
        data = Encoded(kind.encode(rows, self.tokenizer, self.max_length), pad=0, rows=len(rows))
        batch = {name: column.to(self.device) for name, column in data.batch(range(len(rows))).items()}
        with evaluating(self), torch.no_grad():
            return kind.with_bias(kind.scores_of(self.reader.likelihoods(batch), batch))

    @property
    def config(self) -> Any:
        return self.model.config

    @property
    def backbone(self) -> nn.Module:
        return self.model

    @property
    def attention(self) -> Heads:
        return remembered(self.model, ("all", self.stack), self._heads, lambda heads: heads.verified)

    def _heads(self) -> Heads:
        return Heads.of(self.model, stack=self.stack) if self.stack else every_stack(self.model)

    def forward(self, task: str, batch: Batch) -> Output:
        """The loss of each row; the likelihoods of its choices, or the generated text."""
        kind, likelihoods = self._kind(task), self.reader.likelihoods(batch)
        generates = isinstance(kind, Generation)
        scores = Generated(likelihoods, self._texts(kind, batch)) if generates else likelihoods
        return Output(kind.loss(scores, batch), scores)

    def losses(self, task: str, batch: Batch) -> torch.Tensor:
        """The loss of each row, without generating."""
        kind, scores = self._kind(task), self.reader.likelihoods(batch)
        return kind.loss(Generated(scores, None) if isinstance(kind, Generation) else scores, batch)

    def _kind(self, task: str) -> Any:
        if task not in self.tasks:
            raise unknown("task of this model", task, self.tasks)
        return self.tasks[task].kind

    def _texts(self, kind: Generation, batch: Batch) -> list[str]:
        text_of = partial(self.tokenizer.decode, skip_special_tokens=True)
        eos = self.tokenizer.eos_token_id
        return [
            text_of(row) for row in self.reader.generate(batch, kind.longest, lambda r: kind.ended(text_of(r)), eos)
        ]

    def inputs(self, task: str, batch: Batch) -> Iterator[tuple[torch.Tensor, dict[str, torch.Tensor]]]:
        """The prompt with its correct choice, in one forward."""
        right = batch["label"][:, None] + 1 if "label" in batch else 1
        return self.reader.inputs(batch, right)

    def numbers(self, batch: Batch, real_BT: torch.Tensor) -> torch.Tensor:
        """Tokens of prompt and any choice, and of what is generated, by their columns (see `by_token`)."""
        size = batch["input_ids"].shape[1] + self.longest
        return torch.arange(size, device=real_BT.device).expand(len(real_BT), size)

    @property
    def longest(self) -> int:
        """Most tokens that any task generates."""
        return max((task.kind.longest for task in self.tasks.values() if isinstance(task.kind, Generation)), default=0)

    def by_token(self) -> AbstractContextManager[Any]:
        return self.reader.by_token()

    def fitted(self, reference: torch.Tensor | None, width: int) -> torch.Tensor | None:
        return reference if reference is None or reference.ndim < 5 else reference[:, :width]

    @contextmanager
    def gated(
        self,
        gates: torch.Tensor,
        reference: torch.Tensor | None = None,
        batch: Batch | None = None,
        heads: Heads | None = None,
    ) -> Iterator[Heads]:
        """As of any subject; references of tokens are laid on each forward, whatever choice it reads."""
        heads = heads or self.attention
        if reference is None or reference.ndim < 5:
            with gated(self.model, gates, reference, heads=heads):
                yield heads
            return
        if self.reader.form == "seq2seq":
            hint = "close='mean'"
            raise HeadwiseError("references of tokens for a model with an encoder and a decoder", "one stack", hint)
        with self.reader.by_token(lambda width: gated(self.model, gates, self.fitted(reference, width), heads=heads)):
            yield heads

    @property
    def form(self) -> dict[str, Any]:
        return {"max_length": self.max_length, "stack": self.stack, "reading": self.reading}


def form_of(model: Any) -> str:
    """Whether a model is causal, masked or seq2seq; measured, except for encoder-decoders."""
    if getattr(model.config, "is_encoder_decoder", False):
        return "seq2seq"
    return "causal" if is_causal(model) else "masked"


def every_stack(model: nn.Module) -> Heads:
    """The heads of a model; of one with several stacks, all of them side by side."""
    stacks = stacks_of(model)
    return Heads.of(model) if len(stacks) == 1 else side_by_side([Heads.of(model, stack=stack) for stack in stacks])


def layers_by_stack(model: nn.Module) -> dict[str, list[int]]:
    """The layers of each stack as `side_by_side` numbers them.

    Example:
        >>> layers_by_stack(t5)
        {'encoder': [0, 1], 'decoder': [2, 4, 6], 'cross': [3, 5, 7]}
    """
    stacks = stacks_of(model)
    order = [name for name, _ in _alternating([Heads.of(model, stack=stack) for stack in stacks])]
    return {stack: [layer for layer, name in enumerate(order) if name == stack] for stack in stacks}


def _alternating(stacks: Sequence[Heads]) -> list[tuple[str, Site]]:
    """The sites of an encoder, then those of all other stacks layer by layer, each with the name of its stack."""
    entries = [(heads.stack, place, site) for place, heads in enumerate(stacks) for site in heads.sites]
    entries.sort(key=lambda entry: (entry[0] != "encoder", entry[2].layer, entry[1]))
    return [(stack, site) for stack, _, site in entries]


def side_by_side(stacks: Sequence[Heads]) -> Heads:
    """Several stacks as one, in forward order: the encoder, then self and cross attention of each decoder layer."""
    sites = tuple(replace(site, layer=layer) for layer, (_, site) in enumerate(_alternating(stacks)))
    return replace(
        stacks[0],
        num_layers=len(sites),
        num_heads=max(heads.num_heads for heads in stacks),
        head_dim=max(heads.head_dim for heads in stacks),
        stack="+".join(heads.stack for heads in stacks),
        exact=all(heads.exact for heads in stacks),
        sites=sites,
        verified=all(heads.verified for heads in stacks),
    )
