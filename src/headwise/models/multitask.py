"""One Hugging Face encoder, one small output head per task."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from headwise.errors import HeadwiseError, first_line, unknown
from headwise.heads.gates import Heads, captured, gated, unwrap
from headwise.heads.modules import positions
from headwise.io.files import folder, plain, read_json, write_json
from headwise.models.adapters import has_adapters, save_adapters
from headwise.models.causality import default_pooling
from headwise.models.loading import ABOUT, HEADS, SCALES, load_encoder, refuse_several, save_sliced, trained_folder
from headwise.models.native import OUTPUT_HEADS, as_native, native_head
from headwise.models.subject import Output, Subject
from headwise.tasks.kinds.windows import stitched
from headwise.tasks.lookup import described, restored
from headwise.tasks.own_files import own
from headwise.tasks.task import Hidden, Source, Task

POOLINGS = ("cls", "mean", "last")
INPUTS = ("input_ids", "attention_mask", "token_type_ids", "pixel_values")
FORMAT = 1
TAKEN = frozenset((*dir(nn.ModuleDict()), *dir(nn.ParameterDict())))  # "type", "train": no entry may have such a name


class MultiTaskModel(Subject):
    """A shared encoder with an output head for each task.

    Example:
        >>> model = MultiTaskModel.from_pretrained("bert-base-uncased", ["sst2", "qnli"])
        >>> model("sst2", batch).loss.shape
        torch.Size([32])
    """

    def __init__(
        self,
        encoder: nn.Module,
        tokenizer: Any,
        tasks: Iterable[Task],
        pooling: str | None = None,
        layer: int | None = None,
        use_heads: torch.Tensor | None = None,
        max_length: int = 128,
        share: Mapping[str, str] | None = None,
        output_heads: str = "linear",
    ):
        """Put output heads on an encoder.

        Args:
            encoder: a plain Hugging Face model; it stays one (``model.encoder.save_pretrained``).
            tokenizer: its tokenizer, or its image processor.
            tasks: the tasks, with unique names.
            pooling: the example's vector: first token (cls), mean of all tokens, or last token. Default: last for
                causal models, whose first token sees no other, and cls otherwise.
            layer: use this layer's output (0: embeddings) instead of the last.
            use_heads: bool ``(L, H)``: use the concatenated outputs of these heads instead of a layer's output.
            max_length: maximum number of tokens, at most the positions of the encoder; longer sentences of word-level
                tasks are read in windows.
            share: tasks that use another task's output head, such as one task in several languages.
            output_heads: linear; or native, which is what transformers puts on this family for the kind of task (BERT's
                pooler and classifier, for instance), so that `headwise.export` with a task writes a plain model of it.
        """
        super().__init__()
        refuse_several(encoder)
        if output_heads not in OUTPUT_HEADS:
            raise unknown("output heads", output_heads, OUTPUT_HEADS)
        if output_heads == "native" and (layer is not None or use_heads is not None):
            raise HeadwiseError("native output heads with layer= or use_heads=", "output heads on the last layer")
        self.output_heads = output_heads
        if pooling is None:
            pooling = default_pooling(encoder)
        if pooling not in POOLINGS:
            raise unknown("pooling", pooling, POOLINGS)
        if max_length < 1:
            raise HeadwiseError(f"max_length={max_length}", "1 or more tokens")
        self.encoder: Any = encoder
        self.tokenizer = tokenizer
        self.pooling, self.layer, self.max_length = pooling, layer, min(max_length, positions(encoder))
        self.use_heads = use_heads
        self._chosen = (
            [] if use_heads is None else use_heads.nonzero().tolist()
        )  # once: a mask synchronizes with the device
        self.tasks: dict[str, Task] = {}
        self.heads = nn.ModuleDict()
        self.shared: dict[str, str] = {}
        self.scales = nn.ParameterDict()
        accepted = inspect.signature(unwrap(encoder).forward).parameters  # wrappers may accept anything
        self.input_names = [name for name in INPUTS if name in accepted]
        for task in tasks:
            self.add(task, (share or {}).get(task.name))

    @classmethod
    def from_pretrained(
        cls, name: str | Path, tasks: Iterable[Task | str] | Task | str = (), *, seed: int = 0, **options: Any
    ) -> MultiTaskModel:
        """Load an encoder by Hub name or folder and add new output heads.

        Without tasks, load a model trained by headwise with its output heads.
        """
        if isinstance(tasks, tuple) and not tasks:
            return cls.load(name, **options)
        task_list = _found(tasks)
        encoder, tokenizer = load_encoder(name)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return cls(encoder, tokenizer, task_list, **options)

    @classmethod
    def continued(cls, path: str | Path, tasks: Iterable[Task | str] | Task | str, *, seed: int = 0) -> MultiTaskModel:
        """Load a trained model for further training; new tasks get new output heads."""
        task_list = _found(tasks)
        model = cls.load(path, task_list, only=[task.name for task in task_list])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for task in task_list:
                if task.name not in model.tasks:
                    model.add(task)
        return model

    def add(self, task: Task, share: str | None = None) -> None:
        """Add a task, with its own output head or that of the task ``share``."""
        task = self._with_kind(task.ready())
        if task.name in self.tasks or _key(task.name) in self.heads:
            raise HeadwiseError(f"two tasks are named {task.name!r}", "a unique name for each")
        if share is not None and share != task.name:
            if share not in self.tasks or plain(self.tasks[share].kind) != plain(task.kind):
                raise HeadwiseError(f"{task.name!r} cannot share the output head of {share!r}", "one of the same kind")
            self.shared[task.name] = self.shared.get(share, share)
        else:
            self.heads[_key(task.name)] = self._new_head(task)
        self.tasks[task.name] = task

    def _with_kind(self, task: Task) -> Task:
        """The task with the kind that matches this model's output heads."""
        return replace(task, kind=as_native(task.kind)) if self.output_heads == "native" else task

    def _new_head(self, task: Task) -> nn.Module:
        if self.output_heads == "native":
            return native_head(self.encoder, task.kind, self.tokenizer)
        return task.kind.head(self.width)

    def head(self, task: str) -> nn.Module:
        """A task's output head."""
        return self.heads[self.head_key(task)]

    def head_key(self, task: str) -> str:
        """Its name in ``heads``."""
        return _key(self.shared.get(task, task))

    @property
    def config(self) -> Any:
        return self.encoder.config

    @property
    def backbone(self) -> nn.Module:
        return self.encoder

    @property
    def width(self) -> int:
        """The width of the input of output heads."""
        if self.use_heads is not None:
            return int(self.use_heads.sum()) * Heads.of(self.encoder).head_dim
        config = getattr(self.config, "text_config", self.config)
        return config.hidden_size

    def forward(self, task: str, batch: dict[str, torch.Tensor]) -> Output:
        """The loss of each example and the scores of a task's output head."""
        if task not in self.tasks:
            raise unknown("task of this model", task, self.tasks)
        with self.scaled(task):
            scores = self.head(task)(self.hidden(batch), batch)
        return Output(self.tasks[task].kind.loss(scores, batch), scores)

    def give_scales(self, tasks: Iterable[str] | None = None) -> None:
        """Add factors of heads, initially 1, for these tasks (default: all without); forwards then use the task's."""
        shape = Heads.of(self.encoder).shape
        for task in self.tasks if tasks is None else tasks:
            if _key(task) not in self.scales:
                self.scales[_key(task)] = nn.Parameter(torch.ones(shape, device=self.device))

    def scales_of(self, task: str) -> torch.Tensor | None:
        """A task's factors, ``(L, H)``, or None."""
        return self.scales.get(_key(task))

    def scaled(self, task: str) -> AbstractContextManager[Any]:
        scales = self.scales_of(task)
        if scales is None:
            return nullcontext()
        self.require_one_pass("factors of heads")
        return gated(self.encoder, scales)

    def hidden(self, batch: Mapping[str, torch.Tensor]) -> Hidden:
        """Every token's state and one vector per example."""
        inputs = {name: batch[name] for name in self.input_names if name in batch}
        if "pixel_values" in inputs:  # images are stored in half precision
            inputs["pixel_values"] = inputs["pixel_values"].to(self.encoder.dtype)
        window = batch.get("window")
        states = self._states(inputs) if window is None else stitched(self._states, inputs, window)
        return Hidden(states, pool(states, batch.get("attention_mask"), self.pooling))

    def require_projected(self, purpose: str) -> None:
        """Raise if output heads read the outputs of heads directly: changing projections would have no effect."""
        if self.use_heads is not None:
            seen = f"{purpose} is not possible for a model with use_heads="
            raise HeadwiseError(seen, "a model that reads a layer's output")

    def require_one_pass(self, purpose: str) -> None:
        """Raise if a backward pass would run layers again, outside the context of their forward."""
        if self.training and any(getattr(module, "gradient_checkpointing", False) for module in self.encoder.modules()):
            name = "activation" if hasattr(self.encoder, "activation_checkpointing_disable") else "gradient"
            hint = f"model.encoder.{name}_checkpointing_disable()"  # renamed in transformers 5.23
            raise HeadwiseError(f"{purpose} with {name} checkpointing", "layers that are not run again", hint)

    def _states(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        if self.use_heads is not None:
            return self._head_states(inputs)
        if self.layer is not None:
            return self.encoder(**inputs, output_hidden_states=True).hidden_states[self.layer]
        return self.encoder(**inputs).last_hidden_state

    def _head_states(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        with captured(self.encoder, lambda out_BTHD: out_BTHD, heads=self._with_chosen()) as layers:
            self.encoder(**inputs)
        return torch.cat([layers[layer][:, :, head] for layer, head in self._chosen], -1)

    def _with_chosen(self) -> Heads:
        """The encoder's heads, including those that output heads read."""
        heads = Heads.of(self.encoder)
        if gone := [(layer, head) for layer, head in self._chosen if head not in heads.sites[layer].kept]:
            raise HeadwiseError(f"output heads read the heads {gone}, which were removed", "an encoder that has them")
        return heads

    def save_pretrained(self, path: str | Path) -> Path:
        """Write a folder: ``encoder/`` is a Hugging Face checkpoint, the rest is safetensors and JSON.

        A pruned encoder is opened by `headwise.load`. PEFT adapters are saved in ``adapter/``.
        """
        path, encoder = Path(path), self.encoder
        save = encoder.save_pretrained
        if any(hasattr(module, "headwise_kept") for module in self.encoder.modules()):
            self._with_chosen()
            save = partial(save_sliced, self.encoder)
        with folder(path, replace=True) as scratch:
            if has_adapters(encoder):
                save = save_adapters(encoder, scratch).save_pretrained
            save(scratch / "encoder")
            self.tokenizer.save_pretrained(scratch / "encoder")
            self.save_rest(scratch)
        return path

    def save_rest(self, path: Path) -> None:
        """Save output heads, factors and their description."""
        save_file({k: v.contiguous() for k, v in self.heads.state_dict().items()}, path / HEADS)
        if self.scales:
            save_file({k: v.detach().clone() for k, v in self.scales.items()}, path / SCALES)
        write_json(path / ABOUT, self.describe())

    @property
    def form(self) -> dict[str, Any]:
        """How output heads read the encoder, as plain values."""
        chosen = None if self.use_heads is None else self.use_heads.tolist()
        way = {"pooling": self.pooling, "layer": self.layer, "use_heads": chosen, "max_length": self.max_length}
        native = {} if self.output_heads == "linear" else {"output_heads": self.output_heads}
        return {**way, "share": self.shared, **native}

    def describe(self) -> dict[str, Any]:
        """A description of this model, as plain values."""
        return {"format": FORMAT, "tasks": {name: described(task) for name, task in self.tasks.items()}, **self.form}

    def add_data(self, name: str, data: Task | str | Source) -> None:
        """Set the rows of a loaded task: a task, a source, or ``FILE:columns``; labels stay as trained."""
        if name not in self.tasks:
            raise unknown("task of this model", name, self.tasks)
        if isinstance(data, str):
            data = own(f"{name}={data}", self.tasks[name].language)
        old = self.tasks[name]
        given = data if isinstance(data, Task) else replace(old, source=data)
        given = _as_trained(given, plain(old.kind), Path("the model"), self.output_heads)
        self.tasks[name] = replace(given, name=name)

    @classmethod
    def load(
        cls,
        path: str | Path,
        tasks: Iterable[Task] | None = None,
        only: Collection[str] = (),
        data: str | Path | None = None,
    ) -> MultiTaskModel:
        """Load a model saved by `save_pretrained` or `push_to_hub`, or ``only`` some tasks; it predicts without data.

        Rows are read on demand: from ``tasks``, the files of the training, the catalog (in the folder ``data``), or as
        set by `add_data`.

        Example:
            >>> MultiTaskModel.load("runs/train/model").predict("reviews", ["what a film"])[0].label
            'good'
        """
        path = trained_folder(path)
        about = read_json(path / ABOUT)
        if isinstance(about, dict) and "form" in about:
            seen = f"{path} is a {about['form']} encoder of headwise prune, without output heads"
            hint = "MultiTaskModel.from_pretrained(path, tasks), or headwise train --model"
            raise HeadwiseError(seen, "a model of headwise train or study", hint)
        form = about.get("format") if isinstance(about, dict) else None
        if form != FORMAT:
            raise HeadwiseError(f"{path} has format {form!r}", f"format {FORMAT}")
        try:
            return cls._opened(path, about, tasks, only, data)
        except (LookupError, TypeError, AttributeError, ValueError, RuntimeError, SafetensorError, OSError) as error:
            if isinstance(error, HeadwiseError):
                raise
            raise HeadwiseError(
                f"{path} was modified or is incomplete ({first_line(error)})", "a whole model"
            ) from error

    @classmethod
    def _opened(
        cls, path: Path, about: dict[str, Any], tasks: Iterable[Task] | None, only: Collection[str], data: Any
    ) -> MultiTaskModel:
        given = {task.name: task for task in tasks or ()}
        names = [name for name in about["tasks"] if not only or name in only]
        owner = {name: (about.get("share") or {}).get(name, name) for name in names}
        first = {owner[name]: name for name in reversed(names)}  # tasks that share an output head
        task_list, way = [], about.get("output_heads", "linear")
        for name, then in ((name, about["tasks"][name]) for name in names):
            known = name in given
            task_list.append(_as_trained(given[name], then["kind"], path, way) if known else restored(name, then, data))
        encoder, tokenizer = load_encoder(path)
        chosen = None if about["use_heads"] is None else torch.tensor(about["use_heads"])
        shape = (about["pooling"], about["layer"], chosen, about["max_length"])
        model = cls(encoder, tokenizer, task_list, *shape, {name: first[owner[name]] for name in names}, way)
        heads = load_file(path / HEADS)
        for name in names:
            own = _key(owner[name]) + "."
            model.head(name).load_state_dict({k.removeprefix(own): v for k, v in heads.items() if k.startswith(own)})
        if (path / SCALES).exists():
            left_out = {_key(name) for name in about["tasks"]} - {_key(name) for name in names}
            scales = {k: v for k, v in load_file(path / SCALES).items() if k not in left_out}
            model.give_scales(task for task in model.tasks if _key(task) in scales)
            model.scales.load_state_dict(scales)
        return model


def _as_trained(task: Task, then: dict[str, Any], path: Path, output_heads: str) -> Task:
    """The task with the labels and grades of its output head; another file may have fewer."""
    task = task.ready()
    task = replace(task, kind=as_native(task.kind)) if output_heads == "native" else task
    now = plain(task.kind)
    other = [name for name in {**then, **now} if then.get(name) != now.get(name)]
    if other and (set(other) - {"labels", "low", "high"} or not set(now["labels"]) <= set(then["labels"])):
        differences = "; ".join(f"{name} was {then.get(name)!r}, is {now.get(name)!r}" for name in other)
        raise HeadwiseError(
            f"task {task.name!r} has changed since {path} was written: {differences}", "the task as trained"
        )
    values = {name: tuple(then[name]) if isinstance(then[name], list) else then[name] for name in other}
    return replace(task, kind=replace(task.kind, **values)) if other else task  # type: ignore[type-var]


def pool(states_BTE: torch.Tensor, mask_BT: torch.Tensor | None, how: str) -> torch.Tensor:
    """One vector per example."""
    if mask_BT is None or how == "cls":
        return states_BTE[:, 0] if how == "cls" else states_BTE.mean(1) if how == "mean" else states_BTE[:, -1]
    if how == "last":
        place = mask_BT.shape[1] - 1 - mask_BT.flip(1).argmax(1)
        return states_BTE[torch.arange(len(place), device=place.device), place]
    weight = mask_BT.unsqueeze(-1).to(states_BTE.dtype)
    return (states_BTE * weight).sum(1) / weight.sum(1).clamp_min(1)


def _found(tasks: Iterable[Task | str] | Task | str) -> list[Task]:
    """One task or several, as objects or names in the catalog."""
    from headwise import tasks as catalog

    table = isinstance(tasks, Mapping) or hasattr(tasks, "columns") or hasattr(tasks, "column_names")
    several = [tasks] if table or isinstance(tasks, str | Task) else tasks
    return [task if isinstance(task, Task) else catalog.get(task) for task in several]


def _key(task: str) -> str:
    name = task.replace(".", "__")
    return f"{name}__" if name in TAKEN else name
