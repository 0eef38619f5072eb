"""The training loop: several tasks, one model, one task per batch; a resumed run is bit-identical."""

from __future__ import annotations

import atexit
import gc
import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs, ProjectConfiguration

from headwise.errors import HeadwiseError
from headwise.io.files import locked
from headwise.io.identity import settings
from headwise.io.progress import Progress, quiet
from headwise.io.system import noted, stop
from headwise.measuring.evaluate import evaluate
from headwise.models.batching import Encoded, Order, encode
from headwise.models.device import default_device
from headwise.models.multitask import MultiTaskModel
from headwise.training import checkpoint
from headwise.training.history import History, Journal, check_trackers
from headwise.training.methods.method import Method
from headwise.training.passes import Passes
from headwise.training.plan import Plan, schedule
from headwise.training.resume import Checkpoints, remember, starting_weights
from headwise.training.step import step as _step


class Run:
    """A training run in progress, as methods see it."""

    def __init__(
        self,
        model: MultiTaskModel,
        plan: Plan,
        method: Method,
        out: Path | None,
        device: str | None = None,
        track: Sequence[str] = (),
        marks: Sequence[float] = (),
        resume: bool | str | Path = True,
    ):
        if not isinstance(method, Method):
            raise HeadwiseError(f"method {method!r}", "a Method", "headwise.training.methods.methods[...]")
        self.plan, self.method, self.out = plan, method, out
        self.accelerator = _accelerator(plan, out, device, track)
        self.device = self.accelerator.device
        self.model = model.to(self.device)
        self.data = {name: _training_data(model, name, plan) for name in model.tasks}
        if plan.evaluate_every != 0:
            _ = [task.rows("dev") for task in model.tasks.values()]  # check rows before training
        self.streams = {
            name: method.stream(name, data, Order(data.lengths, plan.batch_size, plan.tokens), (plan.seed, 2, number))
            for number, (name, data) in enumerate(self.data.items())
        }
        self.names = list(self.streams)
        per_unit, per_step = (1, plan.accumulate) if plan.window == "mixed" else (plan.accumulate, 1)
        self.units = [math.ceil(len(stream) / per_unit) for stream in self.streams.values()]
        self.epoch_steps = math.ceil(sum(self.units) / per_step)
        self.total = plan.steps or max(1, round(plan.epochs * sum(self.units) / per_step))
        self.epochs = math.ceil(self.total * per_step / sum(self.units))
        self.marks = {branch_step(self.total, share) for share in marks}
        self.step = 0
        self.started, self.earlier = time.perf_counter(), 0.0  # seconds of earlier, interrupted sessions
        self.parts = 1  # per batch: more after an out-of-memory error
        self.history = History()
        self.best: dict[str, torch.Tensor] | None = None  # weights of the best evaluation if patience is set
        self.best_after = 0  # evaluations up to this step cannot be the best
        self.recent: dict[str, deque[float]] = {name: deque(maxlen=5) for name in self.names}
        self.behaviour = settings(model)  # as passed by the caller: frozen parameters stay frozen
        began = starting_weights(model, out, resume)
        self.own = method.parameters(self.model, plan)
        self._movable = {parameter: parameter.requires_grad for parameter in model.parameters()}
        self.optimizer = _optimizer(model, plan, self.own)
        trained = {parameter for group in self.optimizer.param_groups for parameter in group["params"]}
        self.clipped = [parameter for parameter in model.parameters() if parameter in trained]
        _unprepare(model)  # leftovers of a run that was never closed
        self.wrapped = self.accelerator.prepare(model)  # what methods call: gradients are averaged over processes
        self.passes, self.checkpoints = Passes(self), Checkpoints(self, began)
        self._schedule: tuple[int, np.ndarray] = (-1, np.empty(0))

    def close(self) -> None:
        """Restore the model's precision and frozen parameters, and free its gradients."""
        if self.out:
            remember(self.model, self.out, self.checkpoints.began)
        self.passes.forget()
        self.model.zero_grad(set_to_none=True)
        self.accelerator.unwrap_model(self.wrapped, keep_fp32_wrapper=False)
        _unprepare(self.model)
        for parameter, movable in self._movable.items():
            parameter.requires_grad_(movable)

    @property
    def seconds(self) -> float:
        """Training time, earlier sessions included."""
        return self.earlier + time.perf_counter() - self.started

    def tasks_of_step(self, step: int) -> list[str]:
        """The tasks of a step's batches, a function of seed and step only."""
        if self.plan.window == "mixed":
            first = step * self.plan.accumulate
            return [self._task(unit) for unit in range(first, first + self.plan.accumulate)]
        return [self._task(step)] * self.plan.accumulate

    def _task(self, unit: int) -> str:
        epoch, place = divmod(unit, sum(self.units))
        if self._schedule[0] != epoch:
            self._schedule = (epoch, schedule(self.names, self.units, epoch, self.epochs, self.plan))
        return self.names[self._schedule[1][place]]

    def factor(self, step: int) -> float:
        """The learning rate of a step, relative to its peak."""
        warm = self.plan.warmup * self.total
        if step < warm:
            return (step + 1) / (warm + 1)
        return 1.0 if self.plan.schedule == "constant" else max(0.0, (self.total - step) / max(1.0, self.total - warm))

    def weight(self, task: str) -> float:
        """A task's loss weight: the tasks' mean loss divided by its own, averaged over the last five batches, or 1.

        The stem-cell code uses the sum over tasks instead of the mean. They differ by a factor that is common to all
        tasks, which Adam ignores; with the mean, equal losses have weight 1 and clipping is not affected.
        """
        if self.plan.balance == "none" or not all(self.recent.values()):
            return 1.0
        means = {name: sum(values) / len(values) for name, values in self.recent.items()}
        return sum(means.values()) / max(means[task], 1e-8) / len(means)


def branch_step(total: int, delta: float) -> int:
    """The step after which the final fraction ``delta`` of training begins."""
    return total - round(delta * total)


def fit(
    model: MultiTaskModel,
    plan: Plan | None = None,
    method: Method | None = None,
    *,
    out: str | Path | None = None,
    resume: bool | str | Path = True,
    branch: str | Path | None = None,
    device: str | None = None,
    progress: Progress | None = None,
    track: Sequence[str] = (),
    marks: Sequence[float] = (),
) -> History:
    """Train all tasks of a model together.

    Args:
        model: trained in place.
        plan: training settings (default: `Plan()`, those of Li et al. 2023).
        method: a training method of `headwise.training.methods` (default: plain training).
        out: folder for checkpoints and metrics (default: nothing is written).
        resume: True resumes from the newest intact checkpoint in ``out``, if any; a path resumes from that checkpoint
            and removes later ones.
        branch: start from this checkpoint of another run of the same model and plan; methods can share a common part.
        device: "cpu" forces the CPU (default: the accelerator, if there is one).
        progress: where progress is shown.
        track: also log metrics to "tensorboard", "wandb", "trackio" or "mlflow".
        marks: fractions of training, counted from its end, at whose start a permanent checkpoint is written from which
            other methods can branch (`branch_step`).

    The newest two checkpoints and the one with the best mean development score are saved. Ctrl-C and SIGTERM finish the
    step, write a checkpoint and raise KeyboardInterrupt; a second one raises immediately. With ``plan.patience`` the
    model ends with the best weights, otherwise with the last.

    Example:
        >>> history = fit(model, Plan(epochs=1, lr=1e-4), out="runs/first")
    """
    plan, method, where = plan or Plan(), method or Method(), Path(out) if out else None
    check_trackers(track, where)
    run = Run(model, plan, method, where, device, track, marks, resume)
    with closing(run), _alone(run):
        return _train(run, resume, branch, progress)


def _train(run: Run, resume: bool | str | Path, branch: str | Path | None, progress: Progress | None) -> History:
    plan, method = run.plan, run.method
    run.model.zero_grad(set_to_none=True)  # gradients of the caller
    torch.manual_seed(plan.seed + 1_000_003 * run.accelerator.process_index)
    if not isinstance(resume, bool):
        run.checkpoints.restore(checkpoint.load(Path(resume)), whole=True)
    elif run.out and resume:
        run.checkpoints.restore(checkpoint.newest(run.out / "checkpoints"), whole=True)
    if branch and not run.step:
        run.checkpoints.restore(checkpoint.load(Path(branch)), whole=False)
    run.wrapped.train()
    method.start(run)
    run.history.stopped = _patience_over(run)
    run.started = time.perf_counter()
    with _finishing(run), Journal(run, progress or quiet()) as log, noted() as interrupted:
        while run.step < run.total and not run.history.stopped:
            log.add(*_step(run))
            run.step += 1
            _cadence(run, log, bool(interrupted()))
        log.flush()
        if run.best is not None and not interrupted():
            run.model.load_state_dict(run.best)
    run.history.steps, run.history.planned, run.history.seconds = run.step, run.total, run.seconds
    if number := interrupted():
        saved = f"checkpoint in {run.out}; run the same command to resume" if run.out else "nothing was saved: no out="
        raise stop(number, f"stopped at step {run.step} of {run.total}; {saved}")
    return run.history


@contextmanager
def _alone(run: Run) -> Iterator[None]:
    """Lock the run's folder: two runs in one folder would remove each other's checkpoints."""
    if run.out is None or not run.accelerator.is_main_process:
        yield
        return
    run.out.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(run.out, wait=False))
        except BlockingIOError:
            seen = f"another process is training in {run.out}"
            raise HeadwiseError(seen, "another folder", "wait for it, or --out OTHER") from None
        yield


@contextmanager
def _finishing(run: Run) -> Iterator[None]:
    try:
        yield
    finally:
        run.method.finish(run)


def _unprepare(model: MultiTaskModel) -> None:
    """Remove the attributes of accelerate, which skips models that it has prepared before."""
    for left in ("forward", "_original_forward", "_is_accelerate_prepared"):
        vars(model).pop(left, None)


def _cadence(run: Run, log: Journal, interrupted: bool) -> None:
    """Evaluate, write checkpoints and stop early between steps."""
    plan, done, better = run.plan, run.step == run.total, False
    every = run.epoch_steps if plan.evaluate_every is None else plan.evaluate_every
    if every and (run.step % every == 0 or done):
        better = _evaluate(run, log)
    every = run.epoch_steps if plan.checkpoint_every is None else plan.checkpoint_every
    due = (every and (run.step % every == 0 or better)) or run.step in run.marks
    if run.out and (interrupted or done or run.history.stopped or due):
        log.flush()
        run.checkpoints.save()
    if interrupted:
        run.history.stopped = "interrupted"


def _evaluate(run: Run, log: Journal) -> bool:
    """Evaluate; whether the mean development score is the best so far."""
    log.flush()
    with run.method.around(run):
        results = {name: evaluate(run.model, name, limit=run.plan.max_dev) for name in run.names}
    scores = {name: score.value for name, score in results.items()}
    entry = {"step": run.step, "scores": scores, "mean": float(np.mean(list(scores.values())))}
    alike = [name for name, score in results.items() if score.collapsed]
    log.scores({**entry, "examples": {name: score.examples for name, score in results.items()}, "one_class": alike})
    best = run.history.best(run.best_after)
    better = best is not None and best["step"] == run.step
    if better and run.plan.patience is not None:
        run.best = {name: value.detach().clone() for name, value in run.model.state_dict().items()}
    run.history.stopped = _patience_over(run)
    return better


def _patience_over(run: Run) -> str:
    """Why training stops early; empty if it continues."""
    best, patience = run.history.best(run.best_after), run.plan.patience
    if best is None:
        run.best = None  # earlier bests are no longer valid
    if best is None or patience is None:
        return ""
    since = sum(entry["step"] > best["step"] for entry in run.history.scores)
    return f"no better mean score in {patience} evaluations" if since >= patience else ""


def _accelerator(plan: Plan, out: Path | None, device: str | None, track: Sequence[str]) -> Accelerator:
    asked = default_device(device)  # accelerate would silently use another device
    if asked.index is not None:
        torch.accelerator.set_device_index(asked.index)  # accelerate uses the current device
    # otherwise accelerate keeps the precision and device of the last run in this process
    AcceleratorState._reset_state(reset_partial_state=not torch.distributed.is_initialized())
    unused = DistributedDataParallelKwargs(find_unused_parameters=True)  # the output heads of other tasks are not used
    accelerator = Accelerator(
        mixed_precision="bf16" if plan.precision == "bf16" else "no",
        kwargs_handlers=[unused],
        cpu=device == "cpu",
        log_with=list(track) or None,
        project_config=ProjectConfiguration(project_dir=str(out), logging_dir=str(out)) if track else None,
    )
    if accelerator.num_processes > 1:
        # Otherwise the interpreter may exit while the group's threads still run, and abort a finished job.
        atexit.unregister(_leave_group)
        atexit.register(_leave_group)
    return accelerator


def _leave_group() -> None:
    if torch.distributed.is_initialized():
        gc.collect()  # wrappers of finished runs keep the group alive in reference cycles
        torch.distributed.destroy_process_group()


def _training_data(model: MultiTaskModel, name: str, plan: Plan) -> Encoded:
    return encode(model.tasks[name], "train", model.tokenizer, model.max_length, plan.max_examples)


def _optimizer(model: MultiTaskModel, plan: Plan, own: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """AdamW or SGD, fused: seven times faster on a CPU, because moments are read and written once."""
    for parameter in model.encoder.parameters():
        parameter.requires_grad_(plan.train == "all" and parameter.requires_grad)  # what the caller froze stays frozen
    head_lr = plan.lr if plan.head_lr is None else plan.head_lr
    groups = [{"params": list(model.heads.parameters()), "lr": head_lr, "peak": head_lr}]
    if plan.train == "all":
        groups.insert(0, {"params": list(model.encoder.parameters()), "lr": plan.lr, "peak": plan.lr})
    groups += [{**group, "peak": group["lr"]} for group in own]
    if plan.optimizer == "sgd":
        sgd = torch.optim.SGD(groups, momentum=plan.beta1, weight_decay=plan.weight_decay, fused=True)
        for parameter in (p for group in groups for p in group["params"] if plan.beta1):
            # A fused step requires the momentum of all parameters of a group or of none; tasks join one by one.
            sgd.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        return sgd
    return torch.optim.AdamW(groups, betas=(plan.beta1, plan.beta2), weight_decay=plan.weight_decay, fused=True)
