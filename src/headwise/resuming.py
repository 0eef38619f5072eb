"""What a run keeps on its way: which run a checkpoint belongs to, and how it is gone on from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from headwise import checkpoint
from headwise.errors import HeadwiseError
from headwise.journal import History
from headwise.store import digest, plain
from headwise.tasks.columns import to_arrays

if TYPE_CHECKING:
    from headwise.train import Run


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, run: Run):
        self.run = run
        if run.out:
            _ = self.began  # before a checkpoint changes the weights

    @cached_property
    def identity(self) -> str:
        """What a checkpoint must agree with to be gone on from, or to be branched off."""
        run = self.run
        data = {name: _contents(to_arrays(data.columns)) for name, data in run.data.items()}
        shapes = {name: list(p.shape) for name, p in run.model.named_parameters()}
        form = {k: v for k, v in run.model.describe().items() if k != "tasks"}  # those say where files lie as well
        return digest(replace(run.plan, checkpoint_every=None), data, shapes, form)

    @cached_property
    def began(self) -> str:
        """A hash of some of the encoder's weights, as they were when this process first trained them to a folder."""
        kept = vars(self.run.model)
        if "_began" not in kept:
            some = [p.detach().flatten()[:32].float().cpu().numpy() for p in self.run.model.encoder.parameters()]
            kept["_began"] = digest(*some)
        return kept["_began"]

    def save(self) -> None:
        """Write one of where the run stands now."""
        run, random = self.run, self._gather_random()  # every process has dropout of its own
        if not run.accelerator.is_main_process:
            run.accelerator.wait_for_everyone()
            return
        assert run.out is not None
        tensors = {
            "model": dict(run.model.state_dict()),
            "optimizer": checkpoint.pack_optimizer(run.optimizer),
            "random": random,
            "method": run.method.state(),
            **({"best": run.best} if run.best else {}),
        }
        state = {
            "identity": self.identity,
            "began": self.began,
            "method": run.method.describe(),
            "streams": {name: stream.state() for name, stream in run.streams.items()},
            "recent": {name: list(values) for name, values in run.recent.items()},
            "history": run.history.to_record(),
        }
        best = run.history.best(run.best_after)
        checkpoint.save(run.out / "checkpoints", run.step, tensors, state, best["step"] if best else None, run.marks)
        run.accelerator.wait_for_everyone()

    def restore(self, found: tuple[dict, dict] | None, whole: bool) -> None:
        """Take one up: of this very run (``whole``), or of one that differs in its method alone."""
        if found is None:
            return
        run, (tensors, state) = self.run, found
        here = {"identity": self.identity}
        if whole:
            here |= {"began": self.began, "method": plain(run.method.describe())}
        if any(state.get(name) != value for name, value in here.items()):
            raise HeadwiseError(
                "the checkpoint found belongs to another run (model, tasks, plan or method differ)",
                "one of this run",
                f"remove {run.out / 'checkpoints'} or name another folder" if run.out else "",
            )
        run.model.load_state_dict(tensors["model"])
        own = {parameter for group in run.own for parameter in group["params"]}
        checkpoint.unpack_optimizer(run.optimizer, tensors["optimizer"], set() if whole else own)
        self._take_random(tensors["random"])
        if whole:
            run.method.load_state(tensors.get("method", {}))
        run.best = tensors.get("best")
        for name, stream in run.streams.items():
            stream.load_state(state["streams"][name])
            run.recent[name].extend(state["recent"][name])
        run.step = state["step"]
        told = state["history"]
        losses = {name: [tuple(point) for point in points] for name, points in told["losses"].items()}
        run.history = History(losses, told["scores"], told["steps"])

    def _take_random(self, streams: Mapping[str, torch.Tensor]) -> None:
        index, here, there = self.run.accelerator.process_index, self.run.accelerator.num_processes, len(streams["cpu"])
        if here > there:
            raise HeadwiseError(f"a checkpoint of {there} processes for {here}", f"at most {there}")
        checkpoint.unpack_random({k: v[index].clone() for k, v in streams.items()})  # torch crashes on a row of several

    def _gather_random(self) -> dict[str, torch.Tensor]:
        gather: Any = self.run.accelerator.gather
        return {name: gather(state[None].to(self.run.device)).cpu() for name, state in checkpoint.pack_random().items()}


def _contents(columns: Mapping[str, np.ndarray]) -> str:
    """What is in a task's columns, in whatever order a cache has them."""
    return digest(*(part for name in sorted(columns) for part in (name, columns[name])))
