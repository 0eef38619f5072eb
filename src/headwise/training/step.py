"""One optimizer step: gradients, in smaller parts after an out-of-memory error, and the update."""

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
    """Update the parameters once; returns the tasks, losses and items of the step's batches.

    There is no loss scaling, so torch's own backward and step suffice; those of accelerate search for optional packages
    on disk at every call, which takes about a millisecond.
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
    """The step's gradient; after an out-of-memory error the step restarts with batches in twice as many parts."""
    places = {name: stream.state() for name, stream in run.streams.items()}
    while True:
        try:
            run.method.before_step(run)
            return _gradient(run, tasks)
        except torch.OutOfMemoryError:
            if not _divisible(run, tasks):
                raise
        run.parts *= 2  # outside the handler, which keeps the tensors of the failed forward alive
        run.passes.forget()
        run.optimizer.zero_grad(set_to_none=True)
        for name, stream in run.streams.items():
            stream.load_state(places[name])
        make_room(f"each batch in {run.parts} parts (same mean gradient)")


def _divisible(run: Run, tasks: list[str]) -> bool:
    """Whether batches can be split: not with several processes, which must stay in step, and not in episodes."""
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
    """Run the backward pass of each part of a batch; returns the mean loss."""
    if run.parts == 1:
        return run.passes.backward(task, items, factor)
    parts = [(part, len(part) / len(items)) for part in np.array_split(items, run.parts) if len(part)]
    return torch.stack([run.passes.backward(task, part, factor * share) * share for part, share in parts]).sum()


def _share_gradients(run: Run) -> None:
    """Average the gradients of the method's own parameters, which the wrapped model does not contain."""
    if run.accelerator.num_processes > 1:
        for parameter in (p for group in run.own for p in group["params"] if p.grad is not None):
            parameter.grad = run.accelerator.reduce(parameter.grad, "mean")
