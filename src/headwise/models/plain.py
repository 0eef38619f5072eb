"""Unmodified models: any module with a loss, and the task models of transformers.

The loss of a transformers model per example is verified against the model's own loss.

Legend: B examples, T tokens, C classes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headwise.errors import HeadwiseError, first_line
from headwise.heads.gates import Heads, unwrap
from headwise.heads.modules import evaluating, positions, remembered
from headwise.models.batching import NUMBERS
from headwise.models.language import every_stack
from headwise.models.subject import Batch, Output, Subject
from headwise.tasks.kinds.answer import Answer, Ends
from headwise.tasks.kinds.classify import Classify, Regress
from headwise.tasks.kinds.image import Picture
from headwise.tasks.kinds.sound import FEATURES, Sound, Transcript
from headwise.tasks.kinds.tag import Tag
from headwise.tasks.kinds.windows import stitched
from headwise.tasks.kinds.wordlevel import words
from headwise.tasks.labels import label_text, meaning
from headwise.tasks.task import Row, Source, Task

LABELS = ("labels", "label", "label_ids", "start_positions", "end_positions")
Way = Callable[[Any, Mapping[str, Tensor]], Tensor]  # from a model's output and batch to losses (B,)


def _classes(output: Any, batch: Mapping[str, Tensor]) -> Tensor:
    return F.cross_entropy(output.logits, _labels(batch).view(-1), reduction="none")


def _grades(output: Any, batch: Mapping[str, Tensor]) -> Tensor:
    logits = output.logits
    return (logits - _labels(batch).view_as(logits).to(logits)).square().flatten(1).mean(1)


def _several_labels(output: Any, batch: Mapping[str, Tensor]) -> Tensor:
    logits = output.logits
    return F.binary_cross_entropy_with_logits(logits, _labels(batch).to(logits), reduction="none").flatten(1).mean(1)


def _tokens(output: Any, batch: Mapping[str, Tensor]) -> Tensor:
    return token_losses(output.logits, _labels(batch))


def _next_tokens(output: Any, batch: Mapping[str, Tensor]) -> Tensor:
    return token_losses(output.logits[:, :-1], _labels(batch)[:, 1:])


def _spans(output: Any, batch: Mapping[str, Tensor]) -> Tensor:
    size = output.start_logits.shape[1]
    ends = zip((output.start_logits, output.end_logits), (batch["start_positions"], batch["end_positions"]))
    losses = [F.cross_entropy(x, y.clamp(0, size), reduction="none", ignore_index=size) for x, y in ends]
    return (losses[0] + losses[1]) / 2


WAYS: tuple[Way, ...] = (_classes, _grades, _several_labels, _tokens, _next_tokens, _spans)


def token_losses(logits_BTC: Tensor, labels_BT: Tensor) -> Tensor:
    """Mean cross-entropy over each example's labelled tokens (not -100), ``(B,)``; 0 if there are none."""
    losses = F.cross_entropy(logits_BTC.transpose(1, 2).float(), labels_BT, reduction="none", ignore_index=-100)
    return losses.sum(1) / (labels_BT != -100).sum(1).clamp_min(1)


def _labels(batch: Mapping[str, Tensor]) -> Tensor:
    return next(batch[name] for name in LABELS[:3] if name in batch)


@torch.no_grad()
def own_loss(model: Any, call: Callable[[Any], Any], batch: Any) -> Way:
    """The formula of a model's own loss, identified by comparison on single examples in evaluation mode."""
    name = type(model).__name__
    hint = "importance(model, batches, loss=lambda model, batch: ...) with one loss per example, (B,)"
    if not isinstance(batch, Mapping) or not any(label in batch for label in LABELS):
        seen = f"batches of {name} without labels" if isinstance(batch, Mapping) else f"a batch that is a {type(batch)}"
        raise HeadwiseError(seen, f"one of {', '.join(LABELS)} in each, or loss=", hint)
    size = max(len(value) for value in batch.values() if isinstance(value, Tensor) and value.ndim)
    ways: list[Way] = list(WAYS)
    compared = 0
    for number in range(min(size, 4)):
        single = {k: v[number : number + 1] if isinstance(v, Tensor) and v.ndim else v for k, v in batch.items()}
        output = call(single)
        own = getattr(output, "loss", None)
        if own is None:
            raise HeadwiseError(f"{name}, which computes no loss", "loss=", hint)
        if own.isfinite():  # no label at all gives NaN
            ways, compared = [way for way in ways if _agrees(way, output, single, own)], compared + 1
    if not ways or not compared:
        raise HeadwiseError(f"a loss of {name} that cannot be computed per example", "loss=", hint)
    return ways[0]


def _agrees(way: Way, output: Any, batch: Mapping[str, Tensor], own: Tensor) -> bool:
    try:
        losses = way(output, batch)
    except (RuntimeError, ValueError, IndexError, AttributeError, KeyError, StopIteration):
        return False
    return losses.shape == (1,) and torch.allclose(losses[0].float(), own.float(), rtol=1e-3, atol=1e-5)


Loss = Callable[[nn.Module, Any], torch.Tensor]  # from model and batch to one loss per example, (B,)


class Wrapped(Subject):
    """Any module with heads and a loss, for user batches."""

    def __init__(self, model: nn.Module, loss: Loss | None, batch: Any, stack: str | None = None):
        """Wrap a model; by default its own loss is computed per example.

        Args:
            model: a Hugging Face model, or any module whose heads a forward of ``batch`` reveals.
            loss: function from model and batch to losses ``(B,)``.
            batch: the first batch.
            stack: the attention stack, if the model has several.
        """
        super().__init__()
        self.model, self.stack, self.max_length, self.tasks = model, stack, positions_of(model), {}
        self.accepted = inspect.signature(unwrap(model).forward).parameters
        batch = moved(batch, self.device)
        with evaluating(model):
            self.heads = self._find(batch)
            self.loss = loss or self._own(batch)

    @property
    def backbone(self) -> nn.Module:
        return self.model

    @property
    def attention(self) -> Heads:
        return self.heads

    def forward(self, task: str, batch: Any) -> Output:
        losses = self.loss(self.model, batch)
        count = examples_of(batch)
        if not isinstance(losses, torch.Tensor) or losses.shape != (count,):
            seen = f"a loss of shape {tuple(losses.shape)}" if hasattr(losses, "shape") else f"a {type(losses)} as loss"
            raise HeadwiseError(seen, f"one loss for each of the {count} examples, ({count},)", 'reduction="none"')
        return Output(losses, None)

    def inputs(self, task: str, batch: Any) -> Iterator[tuple[torch.Tensor, dict[str, Any]]]:
        inputs = self._arguments(batch)
        decoding = self.heads.stack in ("decoder", "cross")
        mask = inputs.get("decoder_attention_mask" if decoding else "attention_mask")
        if mask is None and decoding and "labels" in inputs:
            mask = inputs["labels"] != -100
        if mask is None or mask.ndim != 2:
            rows = self.rows(batch)
            mask = torch.ones(examples_of(batch) if rows is None else len(rows), 1)
        yield mask.bool().to(self.device), inputs

    def rows(self, batch: Any) -> torch.Tensor | None:
        """Choices of one example, ``(B, choices, T)``, are rows of one forward."""
        ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
        if ids is None or ids.ndim != 3:
            return None
        return torch.arange(len(ids), device=ids.device).repeat_interleave(ids.shape[1])

    def _arguments(self, batch: Any) -> dict[str, Any]:
        """The arguments of the model in a batch; labels are kept if decoder inputs are derived from them."""
        if not isinstance(batch, Mapping):
            raise HeadwiseError(f"a batch that is a {type(batch).__name__}", "a dictionary of the model's arguments")
        if any(p.kind == p.VAR_KEYWORD for p in self.accepted.values()):
            return dict(batch)
        return {name: value for name, value in batch.items() if name in self.accepted}

    def _find(self, batch: Any) -> Heads:
        try:
            return Heads.of(self.model, stack=self.stack)
        except HeadwiseError:
            if not isinstance(batch, Mapping):
                raise
            return Heads.of(self.model, sample=self._arguments(batch), stack=self.stack)

    def _own(self, batch: Any) -> Loss:
        def call(single: Any) -> Any:
            named = {"labels" if name in LABELS[1:3] else name: value for name, value in single.items()}
            return self.model(**self._arguments(named))

        way = own_loss(unwrap(self.model), call, batch)
        return lambda model, batch: way(call(batch), batch)


def positions_of(model: nn.Module) -> int:
    """The maximum number of tokens of a model, by its configuration."""
    return positions(model) if hasattr(model, "config") else 512


def examples_of(batch: Any) -> int:
    """The number of examples of a batch: the first dimension of its first tensor."""
    values = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else [batch]
    sizes = [len(value) for value in values if isinstance(value, torch.Tensor) and value.ndim]
    if not sizes:
        raise HeadwiseError(f"a batch without tensors, a {type(batch).__name__}", "tensors with one row per example")
    return sizes[0]


def moved(batch: Any, device: torch.device) -> Any:
    """A batch on a device."""
    if isinstance(batch, Mapping):
        return {name: moved(value, device) for name, value in batch.items()}
    if isinstance(batch, list | tuple):
        return type(batch)(moved(value, device) for value in batch)
    return batch.to(device) if isinstance(batch, torch.Tensor) else batch


class TaskModel(Subject):
    """A task model of transformers with its own classifier and labels, and any number of tasks to measure.

    Example:
        >>> model = TaskModel.from_pretrained("my-finetuned", [own("reviews=reviews.csv:text,label")])
        >>> importance(model, "reviews").scores.shape
        torch.Size([12, 12])
    """

    def __init__(self, model: nn.Module, tokenizer: Any, tasks: Iterable[Task], max_length: int = 128):
        super().__init__()
        self.model, self.tokenizer, self.max_length = model, tokenizer, min(max_length, positions(model))
        accepted = inspect.signature(model.forward).parameters
        names = ("input_ids", "attention_mask", "token_type_ids", *NUMBERS)
        self.input_names = [name for name in names if name in accepted]
        self.tasks = {task.name: self._fitted(task) for task in tasks}

    @classmethod
    def from_pretrained(cls, name: str | Path, tasks: Iterable[Task], max_length: int = 128) -> TaskModel:
        """Open a checkpoint as the class that it was saved as."""
        model, tokenizer = load_task_model(name)
        return cls(model, tokenizer, tasks, max_length)

    @property
    def backbone(self) -> nn.Module:
        return self.model

    @property
    def attention(self) -> Heads:
        return remembered(self.model, "all", lambda: every_stack(self.model), lambda heads: heads.verified)

    @property
    def config(self) -> Any:
        return self.model.config

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The checkpoint's classes in the order of its outputs."""
        names = {int(number): label_text(name) for number, name in (self.config.id2label or {}).items()}
        return tuple(names[number] for number in sorted(names))

    def forward(self, task: str, batch: Batch) -> Output:
        kind = self.tasks[task].kind
        inputs = self._inputs(batch)
        if isinstance(kind, Transcript):
            scores: Any = kind.likelihoods(self.model(**inputs).logits, self._said(batch), batch)
            return Output(kind.loss(scores, batch), scores)
        if isinstance(kind, Tag):
            window = batch.get("window")
            encode = lambda part: self.model(**part).logits  # noqa: E731
            logits = encode(inputs) if window is None else stitched(encode, inputs, window)
            scores = words(logits, batch, "first")
            return Output(kind.loss(scores, batch), scores)
        output = self.model(**inputs)
        if isinstance(kind, Answer):
            padding = batch["attention_mask"] == 0
            scores = Ends(*(x.masked_fill(padding, -1e9) for x in (output.start_logits, output.end_logits)))
        else:
            scores = output.logits
        return Output(kind.loss(scores, batch), scores)

    def _inputs(self, batch: Batch) -> Batch:
        inputs = self._typed({name: batch[name] for name in self.input_names if name in batch})
        if "said" not in batch:
            return inputs
        said = self._said(batch).clamp_min(0)
        start = torch.full_like(said[:, :1], self.config.decoder_start_token_id)
        return {**inputs, "decoder_input_ids": torch.cat([start, said[:, :-1]], 1)}

    def _said(self, batch: Batch) -> Tensor:
        """A transcript's tokens after the one with which the decoder starts."""
        said = batch["said"]
        return said[:, 1:] if bool((said[:, 0] == self.config.decoder_start_token_id).all()) else said

    def inputs(self, task: str, batch: Batch) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        if "said" not in batch:
            yield from super().inputs(task, batch)
            return
        inputs = self._inputs(batch)
        yield torch.ones(len(batch["said"]), 1, dtype=torch.bool, device=batch["said"].device), inputs

    def _fitted(self, task: Task) -> Task:
        """The task with the checkpoint's labels."""
        kind, name = task.kind, type(self.model).__name__
        if isinstance(kind, Answer):
            return self._require(task, "QuestionAnswering")
        if isinstance(kind, Regress):
            if self.config.num_labels != 1:
                raise HeadwiseError(f"{name} with {self.config.num_labels} outputs for {task.name!r}", "one output")
            return self._require(task, "SequenceClassification")
        if isinstance(kind, Tag):
            fitted = replace(kind, labels=self.labels, learnt=False)
            return self._require(self._renamed(task, fitted, "labels"), "TokenClassification")
        if isinstance(kind, Transcript):
            return self._require(task, "ConditionalGeneration", "SpeechSeq2Seq")
        if isinstance(kind, Classify):
            sound = ("AudioClassification", "SequenceClassification") if isinstance(kind, Sound) else ()
            purposes = ("ImageClassification",) if isinstance(kind, Picture) else sound or ("SequenceClassification",)
            return self._require(self._renamed(task, replace(kind, labels=self.labels), "label"), *purposes)
        seen = f"{task.name!r} is a task of kind {type(kind).__name__}, and {name} a task model of transformers"
        hint = "MultiTaskModel.from_pretrained(name, tasks), which trains an output head for it"
        raise HeadwiseError(seen, "classify, regress, tag, answer, picture, sound or transcript", hint)

    def _require(self, task: Task, *purposes: str) -> Task:
        name, heard = type(self.model).__name__, self.model.main_input_name in FEATURES
        if not name.endswith(tuple(f"For{purpose}" for purpose in purposes)) or heard != hasattr(task.kind, "hears"):
            seen = f"{task.name!r} of kind {type(task.kind).__name__} for {name}"
            raise HeadwiseError(seen, f"a model for {purposes[0]}")
        return task

    def _renamed(self, task: Task, kind: Any, column: str) -> Task:
        return replace(task, kind=kind, source=_Renamed(task, self.labels, column), _read={})


@dataclass(frozen=True)
class _Renamed:
    """A task's rows with labels mapped to the checkpoint's: ignoring case, or by index."""

    task: Task
    labels: tuple[str, ...]
    column: str

    @property
    def origin(self) -> str:
        return self.task.source.origin

    def read(self, split: str) -> list[Row]:
        rows = self.task.rows(split)
        flat = self.column == "label"
        return [
            row | {self.column: self._one(row["label"]) if flat else [self._one(label) for label in row[self.column]]}
            for row in rows
        ]

    def _one(self, label: Any) -> str:
        names = self._names
        text = meaning(label_text(label))
        if text not in names:
            seen = f"label {label_text(label)!r} of {self.task.name!r}"
            hint = "use the labels of the checkpoint, or their indices"
            raise HeadwiseError(seen, f"the checkpoint's: {', '.join(self.labels)}", hint)
        return names[text]

    @cached_property
    def _names(self) -> dict[Any, str]:
        numbered = {meaning(str(number)): label for number, label in enumerate(self.labels)}
        ready: Source = self.task.source
        own = getattr(self.task.kind, "labels", ()) or getattr(ready, "labels", ())
        if own and len(own) == len(self.labels) and all(name.startswith("LABEL_") for name in self.labels):
            numbered |= {meaning(name): label for name, label in zip(own, self.labels)}  # the order of a catalog task
        return numbered | {meaning(label): label for label in self.labels}


def load_task_model(name: str | Path) -> tuple[Any, Any]:
    """A checkpoint of transformers as the class it was saved as, and its tokenizer, image or sound processor."""
    import transformers

    from headwise.models.loading import find_config

    config = find_config(name)
    saved = (getattr(config, "architectures", None) or [""])[0] if config is not None else ""
    kind = getattr(transformers, saved, None)
    if kind is None or not saved.partition("For")[2]:
        seen = f"{name} holds {saved or 'no model of transformers'}, which has no output head"
        raise HeadwiseError(seen, "a checkpoint of an AutoModelFor... class, or a model of headwise train")
    local = Path(name).exists()
    safe: dict[str, Any] = {"trust_remote_code": False, "local_files_only": local}
    writes = saved.endswith(("ForConditionalGeneration", "ForSpeechSeq2Seq"))
    heard = transformers.AutoProcessor if writes else transformers.AutoFeatureExtractor
    readers = {"pixel_values": transformers.AutoImageProcessor, **dict.fromkeys(FEATURES, heard)}
    reader: Any = readers.get(kind.main_input_name, transformers.AutoTokenizer)
    try:
        model = kind.from_pretrained(name, **safe, use_safetensors=True, dtype=torch.float32)
        tokenizer = reader.from_pretrained(name, **safe)
    except Exception as error:  # every library raises its own errors
        raise HeadwiseError(f"cannot load a model from {str(name)!r}: {first_line(error)}") from error
    if getattr(tokenizer, "pad_token_id", 0) is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model.eval(), tokenizer
