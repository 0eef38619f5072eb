"""One optimizer step: the gradient of its batches, in smaller parts where memory does not hold one, and the update."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import numpy as np
import torch

from headwise.models.batching import Stream
from headwise.models.device import make_room

if TYPE_CHECKING:
    from headwise.training.loop import Run


def step(run: Run) -> tuple[list[str], list[torch.Tensor], list[np.ndarray]]:
    """Move the parameters once; the tasks, losses and items of the step's batches.

    Without loss scaling, torch's own backward and step are all there is to do; accelerate's look for optional packages
    on the disk at every call, which costs about a millisecond.
    """
    plan, method = run.plan, run.method
    for group in run.optimizer.param_groups:
        group["lr"] = group["peak"] * run.factor(run.step)
    tasks = run.tasks_of_step(run.step)
    losses, drawn = _fitting_gradient(run, tasks)
    _share_gradients(run)
    method.before_update(run, tasks)
    if plan.clip is not None:
        torch.nn.utils.clip_grad_norm_(run.clipped, plan.clip)
    run.optimizer.step()
    method.after_update(run, tasks)
    run.optimizer.zero_grad(set_to_none=True)
    return tasks, losses, drawn


def _fitting_gradient(run: Run, tasks: list[str]) -> tuple[list[torch.Tensor], list[np.ndarray]]:
    """The step's gradient; where memory ends, the step begins again with batches in twice as many parts."""
    places = {name: stream.state() for name, stream in run.streams.items()}
    while True:
        try:
            run.method.before_step(run)
            return _gradient(run, tasks)
        except torch.OutOfMemoryError:
            if not _divisible(run, tasks):
                raise
        run.parts *= 2  # outside of the handler, which holds on to the tensors of the failed forward
        run.passes.forget()
        run.optimizer.zero_grad(set_to_none=True)
        for name, stream in run.streams.items():
            stream.load_state(places[name])
        make_room(f"every batch in {run.parts} parts, the mean gradient as before")


def _divisible(run: Run, tasks: list[str]) -> bool:
    """Whether smaller parts have the same mean: processes must stay in step, and an episode is one whole."""
    streams = [run.streams[task] for task in tasks]
    largest = max(len(batch) for stream in streams for batch in stream._batches) if _plain(streams) else 0
    return run.accelerator.num_processes == 1 and run.parts < largest


def _plain(streams: list[Stream]) -> bool:
    return all(type(stream) is Stream for stream in streams)


def _gradient(run: Run, tasks: list[str]) -> tuple[list[torch.Tensor], list[np.ndarray]]:
    losses, drawn = [], []
    run.passes.begin(tasks)
    for number, task in enumerate(tasks):
        items = run.streams[task].next()
        last = number == len(tasks) - 1
        run.method.before_batch(run, task)
        with nullcontext() if last else run.accelerator.no_sync(run.wrapped):
            losses.append(_backward(run, task, items, run.weight(task) / len(tasks)))
        drawn.append(items)
    return losses, drawn


def _backward(run: Run, task: str, items: np.ndarray, factor: float) -> torch.Tensor:
    """The batch's mean loss, after the backward pass of each of its parts."""
    if run.parts == 1:
        return run.passes.backward(task, items, factor)
    parts = [(part, len(part) / len(items)) for part in np.array_split(items, run.parts) if len(part)]
    return torch.stack([run.passes.backward(task, part, factor * share) * share for part, share in parts]).sum()


def _share_gradients(run: Run) -> None:
    """The method's own parameters stand outside the wrapped model: their gradients are averaged here."""
    if run.accelerator.num_processes > 1:
        for parameter in (p for group in run.own for p in group["params"] if p.grad is not None):
            parameter.grad = run.accelerator.reduce(parameter.grad, "mean")
