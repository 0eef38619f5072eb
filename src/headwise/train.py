"""The one training loop: many tasks, one model, one task per batch; exact when stopped and resumed."""

from __future__ import annotations

import json
import math
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs

from headwise import checkpoint
from headwise.batching import Encoded, Order, Stream, encode
from headwise.errors import HeadwiseError
from headwise.evaluate import evaluate, to_device
from headwise.methods.method import Method
from headwise.model import MultiTaskModel, Output
from headwise.plan import Plan
from headwise.progress import Progress, quiet
from headwise.sampling import schedule
from headwise.store import digest, plain, write_json

FLUSH = 10  # steps between looks at the losses: on an accelerator each look waits for it


@dataclass
class History:
    """What happened: losses per task and step, scores per evaluation."""

    losses: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    scores: list[dict[str, Any]] = field(default_factory=list)
    steps: int = 0
    seconds: float = 0.0
    stopped: str = ""  # why training ended before its time, if it did

    def to_record(self) -> dict[str, Any]:
        return plain({"losses": self.losses, "scores": self.scores, "steps": self.steps, "stopped": self.stopped})

    def curves(self) -> dict[str, dict[str, list]]:
        """Per task: steps and losses, steps and scores."""
        out = {}
        for task, points in self.losses.items():
            rated = [(s["step"], s["scores"][task]) for s in self.scores if task in s["scores"]]
            out[task] = {"step": [p[0] for p in points], "loss": [p[1] for p in points]}
            out[task] |= {"metric_step": [p[0] for p in rated], "metric": [p[1] for p in rated]}
        return out


class Run:
    """One training in progress: what methods see."""

    def __init__(self, model: MultiTaskModel, plan: Plan, method: Method, out: Path | None, device: str | None = None):
        self.plan, self.method, self.out = plan, method, out
        mixed = "bf16" if plan.precision == "bf16" else "no"
        unused = DistributedDataParallelKwargs(find_unused_parameters=True)  # other tasks' heads rest
        AcceleratorState._reset_state()  # accelerate keeps the last run's precision for the whole process otherwise
        self.accelerator = Accelerator(mixed_precision=mixed, kwargs_handlers=[unused], cpu=device == "cpu")
        self.model = model
        self.data = {name: _training_data(model, name, plan) for name in model.tasks}
        self.streams = {
            name: Stream(data, Order(data.lengths, plan.batch_size, plan.tokens), (plan.seed, 2, number))
            for number, (name, data) in enumerate(self.data.items())
        }
        self.names = list(self.streams)
        units = [len(s) if plan.window == "mixed" else math.ceil(len(s) / plan.accumulate) for s in self.streams.values()]
        self.units = units
        per_step = plan.accumulate if plan.window == "mixed" else 1
        self.epoch_steps = math.ceil(sum(units) / per_step)
        self.total = plan.steps or max(1, round(plan.epochs * sum(units) / per_step))
        self.epochs = math.ceil(self.total / self.epoch_steps)
        self.step = 0
        self.history = History()
        self.recent: dict[str, deque[float]] = {name: deque(maxlen=5) for name in self.names}
        self.optimizer = _optimizer(model, plan, method)
        self.wrapped, self.optimizer = self.accelerator.prepare(model, self.optimizer)
        self._schedule: tuple[int, np.ndarray] = (-1, np.empty(0))

    @property
    def device(self) -> torch.device:
        return self.accelerator.device

    def forward(self, task: str, batch: dict[str, torch.Tensor]) -> Output:
        return self.wrapped(task, batch)

    def tasks_of_step(self, step: int) -> list[str]:
        """The tasks of a step's batches: a function of the seed and the step alone."""
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
        """Share of the peak learning rate at a step."""
        warm = self.plan.warmup * self.total
        if step < warm:
            return (step + 1) / (warm + 1)
        return 1.0 if self.plan.schedule == "constant" else max(0.0, (self.total - step) / max(1.0, self.total - warm))

    def weight(self, task: str) -> float:
        """A task's loss weight: the others' recent losses over its own (moving average of five), or 1."""
        if self.plan.balance == "none" or not all(self.recent.values()):
            return 1.0
        means = {name: sum(values) / len(values) for name, values in self.recent.items()}
        return sum(means.values()) / means[task] / len(means)

    def identity(self) -> str:
        """What a checkpoint must agree with to be gone on from."""
        sizes = {name: [len(data), int(data.lengths.sum())] for name, data in self.data.items()}
        shapes = {name: list(p.shape) for name, p in self.model.named_parameters()}
        return digest(self.plan, self.method.describe(), sizes, shapes)


def fit(
    model: MultiTaskModel,
    plan: Plan | None = None,
    method: Method | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = True,
    device: str | None = None,
    progress: Progress | None = None,
) -> History:
    """Train all tasks of a model together.

    Args:
        model: trained in place.
        plan: how; `Plan()` holds the paper's settings.
        method: plain training, or one of `headwise.methods`.
        out: folder for checkpoints and metrics; nothing is written without one.
        resume: go on from the newest whole checkpoint under ``out``, where there is one.
        device: "cpu" forces the CPU; the accelerator is used where there is one.
        progress: where to show it.

    Example:
        >>> history = fit(model, Plan(epochs=1, lr=1e-4), out="runs/first")
    """
    plan, method = plan or Plan(), method or Method()
    run = Run(model, plan, method, Path(out) if out else None, device)
    torch.manual_seed(plan.seed + 1_000_003 * run.accelerator.process_index)
    if run.out and resume:
        _restore(run)
    method.start(run)
    started = time.perf_counter()
    log = _Log(run, progress or quiet())
    with _interruptible() as interrupted, log, _finishing(run):
        while run.step < run.total and not run.history.stopped:
            log.add(*_step(run))
            run.step += 1
            _cadence(run, log, interrupted())
        log.flush()
    run.history.steps, run.history.seconds = run.step, time.perf_counter() - started
    if interrupted():
        where = f"checkpoint in {run.out}; the same command goes on from there" if run.out else "nothing was kept: no out="
        raise KeyboardInterrupt(f"stopped at step {run.step} of {run.total}; {where}")
    return run.history


@contextmanager
def _finishing(run: Run) -> Iterator[None]:
    try:
        yield
    finally:
        run.method.finish(run)


def _step(run: Run) -> tuple[list[str], list[torch.Tensor], list[np.ndarray]]:
    """One optimizer step: the losses of its batches."""
    plan, method, accelerator = run.plan, run.method, run.accelerator
    for group in run.optimizer.param_groups:
        group["lr"] = group["peak"] * run.factor(run.step)
    run.wrapped.train()
    method.before_step(run)
    tasks, losses, drawn = run.tasks_of_step(run.step), [], []
    for number, task in enumerate(tasks):
        items = run.streams[task].next()
        last = number == len(tasks) - 1
        method.before_batch(run, task)
        with nullcontext() if last else accelerator.no_sync(run.wrapped):
            loss = _batch_loss(run, task, items)
            accelerator.backward(loss * (run.weight(task) / len(tasks)))
        losses.append(loss.detach())
        drawn.append(items)
    method.before_update(run, tasks)
    if plan.clip is not None:
        accelerator.clip_grad_norm_(run.model.parameters(), plan.clip)
    run.optimizer.step()
    method.after_update(run, tasks)
    run.optimizer.zero_grad(set_to_none=True)
    return tasks, losses, drawn


def _batch_loss(run: Run, task: str, items: np.ndarray) -> torch.Tensor:
    """The batch's mean loss; each process takes its share, scaled so that the mean over processes is exact."""
    rank, world = run.accelerator.process_index, run.accelerator.num_processes
    mine = items[rank::world]
    share = mine if len(mine) else items[:1]
    batch = to_device(run.data[task].batch(share), run.device)
    losses = run.method.loss(run, task, batch)
    return losses.sum() * ((world if len(mine) else 0) / len(items))


def _cadence(run: Run, log: _Log, interrupted: bool) -> None:
    """What happens between steps: evaluations, checkpoints, early stopping."""
    plan, done = run.plan, run.step == run.total
    every = run.epoch_steps if plan.evaluate_every is None else plan.evaluate_every
    if every and (run.step % every == 0 or done):
        _evaluate(run, log)
    every = run.epoch_steps if plan.checkpoint_every is None else plan.checkpoint_every
    if run.out and (interrupted or done or (every and run.step % every == 0)):
        log.flush()
        _save(run)
    if interrupted:
        run.history.stopped = "interrupted"


def _evaluate(run: Run, log: _Log) -> None:
    log.flush()
    scores = {name: evaluate(run.model, name, limit=run.plan.max_dev).value for name in run.names}
    entry = {"step": run.step, "scores": scores, "mean": float(np.mean(list(scores.values())))}
    run.history.scores.append(entry)
    log.write(entry)
    log.progress.scores(run.step, scores)
    best = max(range(len(run.history.scores)), key=lambda i: run.history.scores[i]["mean"])
    if run.plan.patience is not None and len(run.history.scores) - 1 - best >= run.plan.patience:
        run.history.stopped = f"no better mean score in {run.plan.patience} evaluations"


def _save(run: Run) -> None:
    random = _gather_random(run)  # every process has dropout of its own
    if not run.accelerator.is_main_process:
        run.accelerator.wait_for_everyone()
        return
    assert run.out is not None
    tensors = {
        "model": dict(run.model.state_dict()),
        "optimizer": checkpoint.pack_optimizer(run.optimizer),
        "random": random,
        "method": run.method.state(),
    }
    state = {
        "identity": run.identity(),
        "streams": {name: stream.state() for name, stream in run.streams.items()},
        "recent": {name: list(values) for name, values in run.recent.items()},
        "history": run.history.to_record(),
    }
    checkpoint.save(run.out / "checkpoints", run.step, tensors, state)
    run.accelerator.wait_for_everyone()


def _restore(run: Run) -> None:
    assert run.out is not None
    found = checkpoint.newest(run.out / "checkpoints")
    if found is None:
        return
    tensors, state = found
    if state["identity"] != run.identity():
        raise HeadwiseError(
            f"the checkpoints in {run.out} belong to another run (model, tasks, plan or method differ)",
            "a folder of this run",
            f"remove {run.out / 'checkpoints'} or name another folder",
        )
    run.model.load_state_dict(tensors["model"])
    checkpoint.unpack_optimizer(run.optimizer, tensors["optimizer"])
    checkpoint.unpack_random({k: v[run.accelerator.process_index] for k, v in tensors["random"].items()})
    run.method.load_state(tensors.get("method", {}))
    for name, stream in run.streams.items():
        stream.load_state(state["streams"][name])
        run.recent[name].extend(state["recent"][name])
    run.step = state["step"]
    kept = state["history"]
    run.history = History({k: [tuple(p) for p in v] for k, v in kept["losses"].items()}, kept["scores"], kept["steps"])
    if run.step >= run.total:
        run.history.stopped = ""


def _gather_random(run: Run) -> dict[str, torch.Tensor]:
    own = checkpoint.pack_random()
    return {name: run.accelerator.gather(state[None].to(run.device)).cpu() for name, state in own.items()}


def _training_data(model: MultiTaskModel, name: str, plan: Plan) -> Encoded:
    return encode(model.tasks[name], "train", model.tokenizer, model.max_length, plan.max_examples)


def _optimizer(model: MultiTaskModel, plan: Plan, method: Method) -> torch.optim.Optimizer:
    for parameter in model.encoder.parameters():
        parameter.requires_grad_(plan.train == "all")
    head_lr = plan.lr if plan.head_lr is None else plan.head_lr
    groups = [{"params": list(model.heads.parameters()), "lr": head_lr, "peak": head_lr}]
    if plan.train == "all":
        groups.insert(0, {"params": list(model.encoder.parameters()), "lr": plan.lr, "peak": plan.lr})
    groups += [{**group, "peak": group["lr"]} for group in method.parameters()]
    return torch.optim.AdamW(groups, betas=(plan.beta1, plan.beta2), weight_decay=plan.weight_decay)


class _Log:
    """Losses to history, to a JSONL file and to the screen, looked at every few steps."""

    def __init__(self, run: Run, progress: Progress):
        self.run, self.progress = run, progress
        self.waiting: list[tuple[int, str, torch.Tensor, np.ndarray]] = []
        self.main = run.accelerator.is_main_process
        self.path = run.out / "metrics.jsonl" if run.out and self.main else None
        if self.path:
            self._start()

    def _start(self) -> None:
        """Forget lines past the checkpoint that is gone on from."""
        assert self.path is not None
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = self.path.read_text().splitlines() if self.path.exists() and self.run.step else []
        kept = [line for line in lines if _line_step(line) <= self.run.step]
        self.path.write_text("".join(line + "\n" for line in kept))
        write_json(self.path.parent / "plan.json", {"plan": self.run.plan, **self.run.method.describe()})

    def __enter__(self) -> _Log:
        self.progress.start(self.run.total, self.run.step, self.run.names)
        return self

    def __exit__(self, *exc: object) -> None:
        self.progress.stop()

    def add(self, tasks: Sequence[str], losses: Sequence[torch.Tensor], items: Sequence[np.ndarray]) -> None:
        for task, loss, batch in zip(tasks, losses, items):
            self.waiting.append((self.run.step + 1, task, loss, batch))
        balanced = self.run.plan.balance != "none"
        if balanced or len(self.waiting) >= FLUSH:
            self.flush()

    def flush(self) -> None:
        """Look at the losses; one that is no number stops the run before anything of it is kept."""
        if not self.waiting:
            return
        values = self.run.accelerator.reduce(torch.stack([loss for *_, loss, _ in self.waiting]), "mean").tolist()
        waiting, self.waiting = self.waiting, []
        for (step, task, _, items), value in zip(waiting, values):
            if not math.isfinite(value):
                raise _no_number(self.run, step, task, items, value)
            self.run.history.losses.setdefault(task, []).append((step, value))
            self.run.recent[task].append(value)
            self.write({"step": step, "task": task, "loss": value})
            tokens = int(self.run.data[task].lengths[items].sum())
            self.progress.advance(step, task, value, tokens)

    def write(self, entry: dict[str, Any]) -> None:
        if self.path:
            with self.path.open("a") as file:
                file.write(json.dumps(plain(entry)) + "\n")


def _no_number(run: Run, step: int, task: str, items: np.ndarray, value: float) -> HeadwiseError:
    kept = f"the last good checkpoint is in {run.out / 'checkpoints'}" if run.out else "no checkpoints were asked for"
    return HeadwiseError(
        f"the loss of {task!r} became {value} at step {step} (training items {items[:8].tolist()}…); {kept}",
        "a finite loss",
        f"a smaller learning rate than {run.plan.lr}, or clip=1.0",
    )


def _line_step(line: str) -> float:
    try:
        return json.loads(line)["step"]
    except (json.JSONDecodeError, KeyError, TypeError):
        return math.inf  # a half-written last line


@contextmanager
def _interruptible() -> Iterator[Any]:
    """Ctrl-C finishes the step, keeps a checkpoint and ends; a second one ends at once."""
    seen: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def note(number: int, frame: Any) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(seen)
    finally:
        signal.signal(signal.SIGINT, before)
