"""Important-head training for an ordinary Hugging Face ``Trainer``."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from headwise.errors import HeadwiseError
from headwise.heads.gates import Heads, gated, unwrap
from headwise.heads.modules import evaluating
from headwise.heads.selection import top
from headwise.training.methods.iat import HeldHeads, check_masks, check_share

Batch = dict[str, Any]


class ImportantHeadCallback(TrainerCallback, ExportableState):
    """In the final fraction δ of training, a task's batches update only W_Q, W_K and W_V of its top α heads.

    Every batch contains one task, named under the key ``task`` (a text, a list repeating one text, or numbers). The
    Trainer's shuffling would mix tasks: order the rows in blocks of one batch and read them sequentially. The name is
    removed before the model's forward, unless that accepts it. Rows of other heads stay bit-identical, optimizer
    moments included, also with gradient accumulation (a row is trained if any batch of the step may train it). The
    training arguments require ``remove_unused_columns=False``; ``restore_callback_states_from_checkpoint=True``
    restores the masks when a run is resumed.

    Example:
        >>> arguments = TrainingArguments(
        ...     "runs/iat", remove_unused_columns=False, train_sampling_strategy="sequential"
        ... )
        >>> callback = ImportantHeadCallback(alpha=0.3, delta=0.1)
        >>> Trainer(model, arguments, train_dataset=rows, data_collator=collate, callbacks=[callback]).train()
    """

    def __init__(
        self,
        alpha: float = 0.3,
        delta: float = 0.1,
        masks: Mapping[str, Any] | None = None,
        batches: Mapping[str, Iterable[Batch]] | None = None,
        params: str = "qkv",
        examples: int = 1000,
        key: str = "task",
        stack: str | None = None,
    ):
        """Choose how many heads are trained, from when on, and how they are selected.

        Args:
            alpha: fraction of heads that a task may update.
            delta: final fraction of steps in which other heads are frozen.
            masks: the heads of each task, bool ``(L, H)`` (default: measured at 1−δ).
            batches: inputs with labels for each task, to measure importance on (Li et al. 2023, Eq. 4, where the
                model's loss is the mean over the batch's examples). Default: a sample of the training data, whose items
                must name their task. Checkpoints do not contain batches: a run that stops before 1−δ cannot be
                resumed with callback states.
            params: rows of q, k and v ("qkv"), or also the columns of the output projection ("qkvo").
            examples: number of examples per task.
            key: the key under which batches name their task.
            stack: the attention stack, if the model has several.
        """
        check_share("alpha", alpha)
        check_share("delta", delta)
        self.alpha, self.delta, self.params, self.examples, self.key, self.stack = (
            alpha,
            delta,
            params,
            examples,
            key,
            stack,
        )
        self.given = {str(task): torch.as_tensor(mask, dtype=torch.bool) for task, mask in (masks or {}).items()}
        self.batches, self.own_batches = batches, batches is not None
        self.masks = dict(self.given)
        self.held: HeldHeads | None = None
        self.seen: set[str | None] = set()  # tasks of the step's batches
        self.measuring = False
        self._hook: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, model: nn.Module, **_: Any) -> None:
        self._let_go()  # left over from a training that broke
        if state.global_step == 0:
            self.masks = dict(self.given)  # state of another training; a resumed one restores its own
        self.model = unwrap(model)
        for hook in list(self.model._forward_pre_hooks.values()):
            if isinstance(left := getattr(hook, "__self__", None), ImportantHeadCallback):
                left._let_go()
        self.heads = Heads.of(self.model, stack=self.stack)
        self.heads.require_exact("important-head training")
        check_masks(self.given, self.given, self.heads.shape)
        if self.own_batches and self.batches is None and not self.masks:
            raise HeadwiseError(
                "a resumed training that needs the batches passed to the callback, which checkpoints do not contain",
                "restore_callback_states_from_checkpoint=False, and the callback with its batches",
            )
        self.first = state.max_steps - round(self.delta * state.max_steps)
        self.takes_task = self.key in inspect.signature(self.model.forward).parameters
        self._hook = self.model.register_forward_pre_hook(self._before_forward, with_kwargs=True)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.seen = set()
        if state.global_step < self.first or self.alpha == 1 or self.held:
            return
        if not self.masks:
            batches = self.batches or self._sample(kwargs["train_dataloader"], args.per_device_train_batch_size)
            self.masks = {task: top(self._importance(part), self.alpha) for task, part in batches.items()}
        masks = {task: torch.as_tensor(mask, dtype=torch.bool) for task, mask in self.masks.items()}
        self.held = HeldHeads(self.heads, masks, self.params)
        self.held.attach()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, optimizer: Any, **_: Any) -> None:
        tasks = {task_of(task, self.key) for task in self.seen}  # a batch without a task raises before any update
        if self.held:
            self.held.save(optimizer, tasks)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.held:
            self.held.restore()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._let_go()

    def state(self) -> dict[str, Any]:
        """The state that the Trainer saves in checkpoints."""
        names = ("alpha", "delta", "params", "examples", "key", "stack")
        kept: dict[str, Any] = {
            name: {task: torch.as_tensor(mask).tolist() for task, mask in getattr(self, name).items()}
            for name in ("given", "masks")
        }
        kept["own_batches"] = self.own_batches
        return {"args": {name: getattr(self, name) for name in names}, "attributes": kept}

    def _let_go(self) -> None:
        if self._hook:
            self._hook.remove()
        if self.held:
            self.held.detach()
        self._hook, self.held = None, None

    def _before_forward(self, module: nn.Module, args: tuple, kwargs: Batch) -> tuple[tuple, Batch]:
        given = kwargs if self.takes_task else {name: value for name, value in kwargs.items() if name != self.key}
        if module.training and not self.measuring:
            # A call without a task may be an ordinary forward after a training that broke: no step follows.
            task = task_of(kwargs[self.key], self.key) if kwargs.get(self.key) is not None else None
            self.seen.add(task)
            if self.held:
                if task is not None and task not in self.masks:
                    raise HeadwiseError(f"a batch of {task!r}, which has no heads", f"one of: {', '.join(self.masks)}")
                self.held.select(task)
        return args, given

    def _sample(self, loader: Any, size: int) -> dict[str, list[Batch]]:
        """Batches of every task from the training data, without side effects on order or random streams."""
        data, chosen = loader.dataset, {}
        names = data[self.key] if hasattr(data, "column_names") else [row.get(self.key) for row in _items(data)]
        for i in np.random.default_rng(0).permutation(len(names)):
            chosen.setdefault(task_of(names[i], self.key), []).append(int(i))
        sample = {}
        for task, places in chosen.items():
            places = places[: self.examples]
            parts = [places[i : i + size] for i in range(0, len(places), size)]
            sample[task] = [loader.collate_fn([data[i] for i in part]) for part in parts]
        return sample

    def _importance(self, batches: Iterable[Batch]) -> torch.Tensor:
        """E |∂L/∂ξ| over examples, (L, H)."""
        total, count = torch.zeros(self.heads.shape, dtype=torch.float64), 0
        device = next(self.model.parameters()).device
        self.measuring = True
        try:
            with evaluating(self.model), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
                for batch in batches:
                    slopes = self._slopes(batch, device)
                    total += len(slopes) * slopes.abs().sum(0).double().cpu()
                    count += len(slopes)
        finally:
            self.measuring = False
        return (total / count).float()

    def _slopes(self, batch: Batch, device: torch.device) -> torch.Tensor:
        """∂L/∂ξ of a batch's mean loss, (B, L, H)."""
        inputs = {name: value.to(device) if hasattr(value, "to") else value for name, value in batch.items()}
        size = len(next(value for value in inputs.values() if isinstance(value, torch.Tensor) and value.ndim))
        gates = torch.ones(size, *self.heads.shape, device=device, requires_grad=True)
        with gated(self.model, gates, heads=self.heads):
            return torch.autograd.grad(self.model(**inputs).loss, gates)[0]


def task_of(value: Any, key: str = "task") -> str:
    """The one task a batch names."""
    if isinstance(value, torch.Tensor | np.ndarray):
        value = value.tolist()
    several = isinstance(value, Sequence) and not isinstance(value, str)
    names = set(value) if several else {value}
    if None in names or len(names) != 1:
        listed = ", ".join(sorted(map(str, names)))
        seen = f"a batch without {key!r}" if None in names else f"a batch of several tasks: {listed}"
        kept = "TrainingArguments(remove_unused_columns=False) and a collator that keeps the name"
        hint = (
            kept
            if None in names
            else 'rows in stretches of a batch, and train_sampling_strategy="sequential" (docs/coming-from.md)'
        )
        raise HeadwiseError(seen, f"one task for the whole batch under {key!r}", hint)
    return str(names.pop())


def _items(data: Any) -> Iterable[Mapping[str, Any]]:
    if not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
        raise HeadwiseError(
            f"importance on a {type(data).__name__}, which has no numbered items", "batches= for each task"
        )
    return (data[i] for i in range(len(data)))
