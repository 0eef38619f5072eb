"""The forward and backward pass of a batch; on CUDA each shape is recorded as a graph and then replayed.

A step of a small encoder mostly consists of launching about a thousand kernels from Python. A CUDA graph launches them
all at once. Shapes recur because lengths are padded to multiples of `GRAIN`.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from headwise.errors import HeadwiseWarning
from headwise.measuring.evaluate import to_device
from headwise.models.batching import GRAIN
from headwise.tasks.kinds.wordlevel import drop_words
from headwise.training.methods.method import Method

if TYPE_CHECKING:
    from headwise.training.loop import Run

BEFORE = 2  # ordinary passes of a shape before it is recorded
MOST = 256  # recordings: five word-level tasks have about a hundred shapes
WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "unique_consecutive", "_unique2", "unique_dim")


class Passes:
    """The passes of a run's batches."""

    def __init__(self, run: Run):
        self.run = run
        self.replays = run.device.type == "cuda" and run.accelerator.num_processes == 1 and _plain_loss(run.method)
        self.grain = GRAIN if self.replays else 1
        self._seen: Counter[Any] = Counter()
        self._kept: dict[Any, _Recording] = {}
        self._refused: set[str] = set()
        self._grads: dict[torch.nn.Parameter, torch.Tensor] = {}
        self._moved: dict[str, list[torch.nn.Parameter]] = {}
        self._constants = _Constants()
        self._fixed, self._alone, self._version = False, False, 0

    def begin(self, tasks: Sequence[str]) -> None:
        """Prepare a step: recordings write to gradients at fixed addresses, of the parameters that the tasks train.

        If a step has a single batch, its gradients are written directly instead of being added to zeros.
        """
        self._fixed, self._alone = self.replays and all(task in self._moved for task in tasks), False
        if self.run.method.version != self._version:
            self._version = self.run.method.version
            self._let_go()
        if self._fixed:
            moved = list(dict.fromkeys(p for task in tasks for p in self._moved[task]))
            left = any(p.grad is not None for p in moved)  # a method has set gradients for this step
            self._alone = len(tasks) == 1 and self.run.parts == 1 and not left
            if not self._alone:
                self._zero(moved)
            for parameter in moved:
                if parameter.grad is not None:
                    self._grads[parameter] += parameter.grad
                parameter.grad = self._grads[parameter]

    def _zero(self, moved: Sequence[torch.nn.Parameter]) -> None:
        torch._foreach_zero_([self._grads[p] for p in moved])

    def backward(self, task: str, items: np.ndarray, factor: float) -> torch.Tensor:
        """Add ``factor`` times the gradient of the batch's mean loss to the gradients; returns the loss.

        Each process takes a part of the items, scaled so that the mean over processes is exact.
        """
        rank, world = self.run.accelerator.process_index, self.run.accelerator.num_processes
        mine = items[rank::world]
        batch = self.run.data[task].batch(mine if len(mine) else items[:1], self.grain)
        batch = to_device(drop_words(batch, self.run.plan.word_dropout, self.run.model.tokenizer), self.run.device)
        scale = (world if len(mine) else 0) / len(items)
        if not self.replays:
            return self._pass(task, batch, scale, factor)
        return self._replayed(task, batch, scale, factor)

    def _pass(self, task: str, batch: dict[str, torch.Tensor], scale: float, factor: Any) -> torch.Tensor:
        with self.run.method.around(self.run):
            loss = self.run.method.loss(self.run, task, batch).sum() * scale
            (loss * factor).backward()
        return loss.detach()

    def _joined(self, task: str, batch: dict[str, torch.Tensor], scale: float, factor: Any) -> torch.Tensor:
        """Bit-identical to `_pass`, with one kernel to cast all weights and two to add all gradients.

        Autocast launches a kernel per weight and direction, and another to add each gradient: in a small encoder they
        are a third of all kernels.
        """
        moved = self._moved[task]
        cast_weights = _low_precision(self.run.model.encoder) if self.run.plan.precision == "bf16" else nullcontext({})
        with self.run.method.around(self.run), cast_weights as low:
            loss = self.run.method.loss(self.run, task, batch).sum() * scale
            grads = dict(zip(moved, torch.autograd.grad(loss * factor, [low.get(p, p) for p in moved])))
        cast, rest = [p for p in moved if p in low], [p for p in moved if p not in low]
        if self._alone:
            _copy([self._grads[p] for p in cast], [grads[p] for p in cast])
            _copy([self._grads[p] for p in rest], [grads[p] for p in rest])
            return loss.detach()
        whole = [torch.empty_like(p) for p in cast]
        _copy(whole, [grads[p] for p in cast])
        grads |= zip(cast, whole)
        torch._foreach_add_([self._grads[p] for p in moved], list(grads.values()))
        return loss.detach()

    def _replayed(self, task: str, batch: dict[str, torch.Tensor], scale: float, factor: float) -> torch.Tensor:
        key = (task, self.run.wrapped.training, self._alone, *((name, *value.shape) for name, value in batch.items()))
        self._seen[key] += 1
        # A method may replace the gradients of a batch; a recording would keep writing to the old ones.
        fixed = self._fixed and all(p.grad is self._grads[p] for p in self._moved[task])
        recording = self._kept.get(key) if fixed else None
        able = fixed and task not in self._refused and len(self._kept) < MOST
        if not recording and able and self._seen[key] > BEFORE:
            recording = self._recorded(task, batch, scale)
            if recording:
                self._kept[key] = recording
        if recording:
            return recording.replay(batch, factor)
        if task not in self._moved:
            return self._first(task, batch, scale, factor)
        if self._alone:  # an ordinary pass adds to the gradients
            self._zero(self._moved[task])
        with self._constants if able else nullcontext():
            return self._pass(task, batch, scale, factor)

    def _first(self, task: str, batch: dict[str, torch.Tensor], scale: float, factor: float) -> torch.Tensor:
        """A task's first pass: find the parameters that it trains, apart from those of other batches of the step."""
        trained = [p for group in self.run.optimizer.param_groups for p in group["params"]]  # the method's too
        before = {p: p.grad for p in trained if p.grad is not None}
        for parameter in before:
            parameter.grad = None
        with _watched(self.run.model.encoder) as watch:
            loss = self._pass(task, batch, scale, factor)
        if watch.seen:
            self._refuse(task, f"{watch.seen} synchronizes with the device")
        self._moved[task] = [p for p in trained if p.grad is not None]
        self._grads |= {p: torch.zeros_like(p) for p in self._moved[task] if p not in self._grads}
        for parameter, grad in before.items():
            parameter.grad = grad if parameter.grad is None else grad + parameter.grad
        return loss

    def _recorded(self, task: str, batch: dict[str, torch.Tensor], scale: float) -> _Recording | None:
        try:
            for _ in range(2):  # while recording, encoders do not check for padding and always mask
                recording = _Recording(self, task, batch, scale)
                if not self._constants.fetch():
                    return recording
                del recording  # before the next recording: each has its own memory
            self._refuse(task, "it copies different data to the device each time")
        except RuntimeError as error:
            self._refuse(task, str(error).splitlines()[0])
        return None

    def _refuse(self, task: str, why: str) -> None:
        self._refused.add(task)
        warnings.warn(f"{task} is trained without CUDA graphs: {why}", HeadwiseWarning, stacklevel=3)

    def forget(self) -> None:
        """Free recordings, gradients and their memory."""
        self._grads.clear()
        self._moved.clear()
        self._constants = _Constants()
        self._let_go()

    def _let_go(self) -> None:
        """Free the recordings; their memory cannot be used for anything else."""
        if self._kept:
            self._kept.clear()
            torch.cuda.empty_cache()  # no effect without an accelerator


class _Recording:
    """The recorded pass of one shape, with its input and output tensors."""

    def __init__(self, passes: Passes, task: str, batch: dict[str, torch.Tensor], scale: float):
        self.batch = {name: value.clone() for name, value in batch.items()}
        self.factor = torch.ones((), device=passes.run.device)
        self.graph = torch.cuda.CUDAGraph()
        grads = [p.grad for p in passes._moved[task] if p.grad is not None]
        before = [grad.clone() for grad in grads]  # recording computes nothing, but make sure
        recording = torch.cuda.graph(self.graph, pool=_pool(passes), capture_error_mode="thread_local")
        as_they_are = torch.jit.optimized_execution(False)  # scripted modules must not compile while recording
        with as_they_are, passes._constants.recorded(), recording:
            self.loss = passes._joined(task, self.batch, scale, self.factor)
        torch._foreach_copy_(grads, before)

    def replay(self, batch: dict[str, torch.Tensor], factor: float) -> torch.Tensor:
        torch._foreach_copy_(list(self.batch.values()), [batch[name] for name in self.batch])
        self.factor.fill_(factor)
        self.graph.replay()
        return self.loss.clone()


def _copy(places: list[torch.Tensor], values: list[torch.Tensor]) -> None:
    """Copy a list with one kernel; all of its tensors have the same precision."""
    if places:
        torch._foreach_copy_(places, values)


@contextmanager
def _low_precision(encoder: torch.nn.Module) -> Iterator[dict[torch.nn.Parameter, torch.Tensor]]:
    """Replace the weights of linear layers by bfloat16 copies, cast together; weights used elsewhere are unchanged."""
    layers = [layer for layer in encoder.modules() if type(layer) is torch.nn.Linear]
    elsewhere = {p for m in encoder.modules() if type(m) is not torch.nn.Linear for p in m.parameters(recurse=False)}
    weights = list(dict.fromkeys(p for layer in layers for p in layer.parameters(False) if p not in elsewhere))
    copies = [torch.empty_like(weight, dtype=torch.bfloat16) for weight in weights]
    torch._foreach_copy_(copies, [weight.detach() for weight in weights])
    low: dict[Any, Any] = {w: copy.requires_grad_(w.requires_grad) for w, copy in zip(weights, copies)}
    for weight, hook in ((w, hook) for w in weights for hook in (w._backward_hooks or {}).values()):
        low[weight].register_hook(hook)  # masks of frozen heads: gradients flow to the copies
    before = [dict(layer._parameters) for layer in layers]
    try:
        for layer, own in zip(layers, before):
            layer._parameters.update({name: low[p] for name, p in own.items() if p in low})
        yield low
    finally:
        for layer, own in zip(layers, before):
            layer._parameters.update(own)


def _pool(passes: Passes) -> Any:
    """The memory pool shared by recordings, which never run at the same time."""
    return next(iter(passes._kept.values())).graph.pool() if passes._kept else None


class _Constants(TorchDispatchMode):
    """Caches copies from host to device for recordings, which cannot copy.

    Some encoders compute position tables on the host, which depend on the shape only. A copy is identified by its
    content, so one that differs between passes is never found and the recording is refused. If a recording meets an
    unknown copy, it gets an empty tensor and is repeated after the copy was made.
    """

    def __init__(self) -> None:
        super().__init__()
        self._made = _MadeOnTheHost()
        self._recorded = False
        self._kept: dict[Any, torch.Tensor] = {}
        self._missed: dict[Any, Callable[[], torch.Tensor]] = {}

    def __enter__(self) -> _Constants:
        self._made.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._made.__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if not _moves(func, args, kwargs) or args[0].device.type != "cpu":
            return func(*args, **kwargs)
        inside = args[0].detach().reshape(-1).view(torch.uint8).numpy().tobytes()
        key = (inside, args[0].shape, args[0].dtype, *sorted((name, str(value)) for name, value in kwargs.items()))
        if key not in self._kept and self._recorded:
            self._missed[key] = partial(func, args[0].clone(), **kwargs)
            return torch.empty_like(args[0], device=kwargs["device"], dtype=kwargs.get("dtype"))
        if key not in self._kept:
            self._kept[key] = func(*args, **kwargs)
        return self._kept[key].clone()  # the caller may modify it

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Use cached copies while recording."""
        self._recorded = True
        try:
            with self:
                yield
        finally:
            self._recorded = False

    def fetch(self) -> bool:
        """Make the copies that a recording missed; whether there were any."""
        missed, self._missed = self._missed, {}
        self._kept |= {key: copy() for key, copy in missed.items()}
        return bool(missed)


class _MadeOnTheHost(TorchFunctionMode):
    """Creates tensors of numbers on the host first: dispatch modes cannot see copies made inside `torch.tensor`."""

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        of_numbers = func in (torch.tensor, torch.as_tensor) and args and not isinstance(args[0], torch.Tensor)
        if not of_numbers or kwargs.get("device") is None or kwargs.get("requires_grad"):
            return func(*args, **kwargs)
        return func(*args, **{**kwargs, "device": "cpu"}).to(kwargs["device"])


def _moves(func: Any, args: tuple, kwargs: Mapping[str, Any]) -> bool:
    """Whether an operation copies from the host to the device, or back."""
    device = kwargs.get("device")
    return func is torch.ops.aten._to_copy.default and device is not None and device.type != args[0].device.type


class _Watch(TorchDispatchMode):
    """Detects synchronization in output heads and losses, which cannot be recorded.

    A failed recording leaves torch's random generator in an invalid state, and the next dropout fails. Encoders also
    synchronize, to check for padding, but not while they are recorded.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen, self.resting = "", False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        name, kwargs = func.overloadpacket.__name__, kwargs or {}
        by_mask = name.startswith("index") and _boolean(args[1])
        if not self.resting and (name in WAITING or by_mask or _moves(func, args, kwargs)):
            self.seen = self.seen or name
        return func(*args, **kwargs)

    def rest(self, *_: Any) -> None:
        self.resting = True

    def go_on(self, *_: Any) -> None:
        self.resting = False


def _boolean(indices: Any) -> bool:
    return isinstance(indices, list | tuple) and any(getattr(i, "dtype", None) == torch.bool for i in indices)


@contextmanager
def _watched(encoder: torch.nn.Module) -> Iterator[_Watch]:
    watch = _Watch()
    before = encoder.register_forward_pre_hook(watch.rest)
    after = encoder.register_forward_hook(watch.go_on, always_call=True)
    try:
        with watch:
            yield watch
    finally:
        before.remove()
        after.remove()


def _plain_loss(method: Method) -> bool:
    """Whether a pass computes the model's own loss only; Python code of a method cannot be recorded."""
    own = type(method)
    return own.loss is Method.loss and (own.around is Method.around or own.recordable)
