"""The output heads of transformers for a family, so that a trained task opens in plain transformers.

A task class of transformers, such as ``BertForSequenceClassification``, is a base model with an output head. Here the
base model is replaced by one that returns the states of the shared encoder, and the forward of the class computes the
rest. To export a task, the encoder replaces it again.
"""

from __future__ import annotations

import copy
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions

from headwise.errors import HeadwiseError, first_line, option, unknown
from headwise.heads.cutting import fold
from headwise.heads.gates import gated, unwrap
from headwise.heads.modules import evaluating
from headwise.models.adapters import merged
from headwise.tasks.kinds.answer import Answer, AnswerHead, Ends
from headwise.tasks.kinds.classify import Classify, Regress
from headwise.tasks.kinds.image import Picture
from headwise.tasks.kinds.tag import Spans, Tag, TagHead
from headwise.tasks.kinds.wordlevel import words
from headwise.tasks.task import Hidden, Kind

CLASSES = {  # most specific kind first
    Picture: "AutoModelForImageClassification",
    Classify: "AutoModelForSequenceClassification",
    Regress: "AutoModelForSequenceClassification",
    Tag: "AutoModelForTokenClassification",
    Answer: "AutoModelForQuestionAnswering",
}
OUTPUT_HEADS = ("linear", "native")
Batch = dict[str, torch.Tensor]


class StandIn(nn.Module):
    """Replaces a base model; returns given states."""

    def __init__(self, config: Any):
        super().__init__()
        self.config = config
        self.answer: Any = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.answer


class NativeHead(nn.Module):
    """The output head of a task class of transformers, applied to the states of the shared encoder."""

    def __init__(self, shell: nn.Module, base: str, kind: Kind, encoder: nn.Module | None, pooler: nn.Module | None):
        """``encoder`` has the pooler that the class reads; if it has none, ``pooler`` is a new one."""
        super().__init__()
        self.shell: Any = shell
        self.base, self.kind, self.pooler = base, kind, pooler
        self._encoder: list[Any] = (
            [encoder] if encoder is not None else []
        )  # in a list, because it is registered elsewhere

    def _pooled(self, hidden: Hidden) -> torch.Tensor:
        if self.pooler is not None:
            return self.pooler(hidden.states)
        if not self._encoder:
            return hidden.pooled
        encoder = self._encoder[0]
        if isinstance(encoder.pooler, nn.Linear):  # ALBERT
            return encoder.pooler_activation(encoder.pooler(hidden.states[:, 0]))
        return encoder.pooler(hidden.states)

    def forward(self, hidden: Hidden, batch: Batch) -> Any:
        pooled = self._pooled(hidden)
        stand_in = getattr(self.shell, self.base)
        stand_in.answer = BaseModelOutputWithPoolingAndCrossAttentions(hidden.states, pooled)
        names = ("input_ids", "attention_mask", "pixel_values")
        try:
            answer = self.shell(**{name: batch[name] for name in names if name in batch}, return_dict=True)
        finally:
            stand_in.answer = None  # otherwise the graph would stay alive
        return scores_of(answer, self.kind, batch)


def scores_of(answer: Any, kind: Kind, batch: Batch) -> Any:
    """The outputs of a task class as scores of the kind: words by their tokens, answer spans on real tokens."""
    if isinstance(kind, Answer):
        scores = torch.stack([answer["start_logits"], answer["end_logits"]], -1).float()
        return Ends(*scores.masked_fill(~batch["attention_mask"].bool()[..., None], -1e9).unbind(-1))
    logits = answer["logits"].float()
    return words(logits, batch, kind.pool) if isinstance(kind, Tag) else logits


def as_native(kind: Kind) -> Kind:
    """The kind as trained by transformers: words are labelled by their first token, entities by BIO labels."""
    if isinstance(kind, Spans):
        labels = [f"{mark}-{label}" for label in kind.labels for mark in "BI"]
        return Tag(("O", *labels), kind.dropout, "first", kind.learnt)
    return replace(kind, pool="first") if isinstance(kind, Tag) else kind


def native_head(encoder: Any, kind: Kind, tokenizer: Any) -> nn.Module:
    """The output head of transformers for a kind and family; the kind's own if there is no class."""
    if _auto(kind) is None:
        return kind.head(getattr(encoder.config, "text_config", encoder.config).hidden_size)
    encoder = unwrap(encoder)
    shell, base = _empty(encoder, kind, tokenizer)
    has, pooler = getattr(encoder, "pooler", None) is not None, getattr(getattr(shell, base), "pooler", None)
    setattr(shell, base, StandIn(shell.config))
    for name, child in shell.named_children():
        if name != base:
            _fresh(child, shell)
    if pooler is not None and not has:
        _fresh(pooler, shell)
    return NativeHead(shell, base, kind, encoder if pooler is not None and has else None, None if has else pooler)


def _fresh(part: nn.Module, shell: Any) -> None:
    """Initialize a part of a task class."""
    part.to_empty(device="cpu").to(torch.float32)
    for module in part.modules():
        if callable(reset := getattr(module, "reset_parameters", None)):
            reset()
        shell._init_weights(module)


def plain_model(model: Any, task: str) -> Any:
    """One task of a `MultiTaskModel` as a plain model of transformers with verified outputs.

    Example:
        >>> plain_model(model, "sst2").save_pretrained("sst2")  # AutoModelForSequenceClassification opens it
    """
    if task not in model.tasks:
        raise unknown("task of this model", task, model.tasks)
    if model.layer is not None or model.use_heads is not None:
        raise HeadwiseError("output heads with layer= or use_heads=", "output heads on the last layer")
    kind, scales = model.tasks[task].kind, model.scales_of(task)
    built = task_model(merged(model.encoder), kind, model.head(task), model.tokenizer)
    _check_same(model, task, built, scales)
    if scales is not None:
        fold(built, scales.detach())
    return built


def _check_same(model: Any, task: str, built: Any, scales: torch.Tensor | None) -> None:
    """Compare the plain model with the original output head on random tokens."""
    kind, size = model.tasks[task].kind, (2, min(6, model.max_length))
    if isinstance(kind, Picture):
        return  # without lengths or words, which the class could interpret differently
    vocabulary = getattr(built.config, "text_config", built.config).vocab_size
    ids = torch.randint(vocabulary, size, generator=torch.Generator().manual_seed(0)).to(model.device)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "word_mask": torch.ones_like(ids)}
    batch["word_of"] = torch.arange(size[1], device=ids.device).expand(size)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad(), evaluating(model), gated(built, scales) if scales is not None else nullcontext():
        with model.scaled(task):
            wanted = model.head(task)(model.hidden(batch), batch)
        scores = scores_of(built(**inputs, return_dict=True), kind, batch)
    both = zip(scores, wanted) if isinstance(wanted, tuple) else [(scores, wanted)]
    if not all(torch.allclose(a, b.to(a), atol=1e-4, rtol=1e-3) for a, b in both):
        seen = f"{type(built).__name__} does not reproduce the output head of {task!r}"
        raise HeadwiseError(seen, "the same scores", option("output_heads", "native"))


def task_model(encoder: Any, kind: Kind, head: nn.Module, tokenizer: Any) -> Any:
    """A task class of transformers with a copy of the encoder and the weights of ``head``."""
    built, base = _empty(encoder, kind, tokenizer)
    own = copy.deepcopy(encoder)
    if not _pools(built, base) and getattr(own, "pooler", None) is not None:
        own.pooler = None
    setattr(built, base, own)
    if isinstance(head, NativeHead):
        if head.pooler is not None:
            own.pooler = copy.deepcopy(head.pooler)
        tops = {name: copy.deepcopy(child) for name, child in head.shell.named_children() if name != base}
    else:
        tops = _linear(built, base, head)
    for name, child in tops.items():
        setattr(built, name, child)
    return built.eval()


def _linear(built: Any, base: str, head: nn.Module) -> dict[str, nn.Module]:
    """The weights of a linear output head, in a class whose head is a linear layer."""
    tops = {name: child for name, child in built.named_children() if name != base}
    linear = [name for name, child in tops.items() if not isinstance(child, nn.Dropout)]
    own = head.out if isinstance(head, TagHead | AnswerHead) else None
    fits = len(linear) == 1 and isinstance(tops[linear[0]], nn.Linear) and own is not None
    if own is None or not fits or tops[linear[0]].weight.shape != own.weight.shape or tops[linear[0]].bias is None:
        raise HeadwiseError(
            f"a linear output head, where a {type(built).__name__} has {', '.join(tops)}",
            "a model trained with the output heads of transformers",
            option("output_heads", "native"),
        )
    return {name: copy.deepcopy(own) if name == linear[0] else child for name, child in tops.items()}


def _empty(encoder: Any, kind: Kind, tokenizer: Any) -> tuple[Any, str]:
    """A task class without weights, and the attribute name of its base model."""
    kind_of, config = _task_class(encoder, kind), _task_config(encoder, kind, tokenizer)
    try:
        with torch.device("meta"):
            built = kind_of(config)
    except (TypeError, ValueError, AttributeError) as error:
        raise HeadwiseError(f"{kind_of.__name__} cannot be built ({first_line(error)})") from error
    bases = [name for name, child in built.named_children() if type(child) is type(encoder)]
    if len(bases) != 1:
        seen = f"a {kind_of.__name__}, whose base model is not a {type(encoder).__name__}"
        raise HeadwiseError(seen, "another class of encoder", option("output_heads", "linear"))
    return built, bases[0]


def _task_class(encoder: Any, kind: Kind) -> Any:
    import transformers

    name = _auto(kind)
    if name is None:
        own = sorted({each.__name__.lower() for each in CLASSES})
        seen = f"the kind {type(kind).__name__.lower()}, for which transformers has no class"
        raise HeadwiseError(seen, f"one of: {', '.join(own)}", "export the whole model, without task=")
    known = getattr(transformers, name)._model_mapping
    if type(encoder.config) not in known:
        seen = f"no {name} of the family {encoder.config.model_type} in transformers {transformers.__version__}"
        raise HeadwiseError(seen, "a family that has one", option("output_heads", "linear"))
    classes = known[type(encoder.config)]
    return classes[0] if isinstance(classes, tuple) else classes


def _task_config(encoder: Any, kind: Kind, tokenizer: Any) -> Any:
    """The encoder's configuration with the task's labels."""
    config = copy.deepcopy(encoder.config)
    if isinstance(kind, Answer):
        config.num_labels = 2
    else:
        config.id2label = dict(enumerate(kind.labels))
        config.label2id = {label: i for i, label in enumerate(kind.labels)}
    if isinstance(kind, Classify | Regress):
        config.problem_type = "regression" if isinstance(kind, Regress) else "single_label_classification"
    if (pad := getattr(tokenizer, "pad_token_id", None)) is not None:  # decoders use it to find the last token
        config.pad_token_id = pad
    return config


def _auto(kind: Kind) -> str | None:
    """The Auto class of transformers for a kind, or None."""
    return next((name for own, name in CLASSES.items() if isinstance(kind, own)), None)


def _pools(built: Any, base: str) -> bool:
    return getattr(getattr(built, base), "pooler", None) is not None
