"""lm-evaluation-harness on a model with closed heads (extra ``lm-eval``): any of its benchmarks, under any lesion."""

from __future__ import annotations

from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any

import torch

from headwise.errors import HeadwiseError, missing_extra
from headwise.heads.gates import Heads, gated
from headwise.models.subject import Subject

try:
    HFLM: Any = import_module("lm_eval.models.huggingface").HFLM
except ImportError:
    raise missing_extra("lm-eval", "lm-eval", "an evaluation by lm-evaluation-harness") from None


class GatedLM(HFLM):
    """A model for ``lm_eval.simple_evaluate`` whose heads are under gates in every forward.

    Example:
        >>> lesion = (~top(importance(model, "blimp").scores, 0.1)).float()
        >>> lm_eval.simple_evaluate(GatedLM(model, lesion), tasks=["arc_easy", "hellaswag"])["results"]
    """

    def __init__(
        self,
        pretrained: Any,
        gates: torch.Tensor | None = None,
        reference: torch.Tensor | None = None,
        *,
        heads: Heads | None = None,
        **options: Any,
    ):
        """Wrap a model.

        Args:
            pretrained: a transformers model, a `LanguageModel`, or the name of a model.
            gates: ``(L, H)``; without them the model is as it is.
            reference: what closed heads return, ``(L, H, D)``, such as `headwise.references.mean`; zero by default.
            heads: which heads, of a model with several stacks.
            options: as ``HFLM`` takes them: tokenizer, batch_size, max_length, ...
        """
        for what, given, axes in (("gates", gates, 2), ("a reference", reference, 3)):
            if given is not None and given.ndim != axes:
                seen = f"{what} of shape {tuple(given.shape)}, for single examples"
                hint = "headwise.evaluate with a task lm-eval:NAME, which keeps examples apart"
                raise HeadwiseError(seen, "one for all: the harness sorts its requests by length", hint)
        if isinstance(pretrained, Subject):
            options = {"tokenizer": pretrained.tokenizer, **options}
            heads, pretrained = heads or pretrained.attention, pretrained.backbone
        if not isinstance(pretrained, str):  # the harness would move it to the accelerator
            options = {"device": str(next(pretrained.parameters()).device), **options}
        super().__init__(pretrained=pretrained, **options)
        self.gates, self.reference = gates, reference
        self.heads = heads or Heads.of(self.model)
        with self._lesion():  # shapes that do not fit are an error before any work
            self._model_call(torch.tensor([[self.prefix_token_id] * 2], device=self.device))

    def _lesion(self) -> AbstractContextManager[Heads]:
        gates = torch.ones(self.heads.shape) if self.gates is None else self.gates
        return gated(self.model, gates, self.reference, heads=self.heads)

    def _model_call(self, *args: Any, **options: Any) -> Any:
        with self._lesion():
            return super()._model_call(*args, **options)

    def _model_generate(self, *args: Any, **options: Any) -> Any:
        with self._lesion():
            return super()._model_generate(*args, **options)

    def set_cache_hook(self, cache_hook: Any) -> None:
        """Refuse the harness's cache of answers: it knows no gates, so a lesion would be given the intact answers."""
        raise HeadwiseError("use_cache= with a GatedLM", "no cache: its answers are given whatever heads are closed")
