"""Important-head training (IAT; Li et al. 2023, section 5): late in training, a task updates only its own heads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from headwise.errors import HeadwiseError
from headwise.heads.gates import Heads
from headwise.heads.selection import bottom, random_heads, top
from headwise.io.files import digest
from headwise.scoring.importance import importance
from headwise.training.methods.method import Method

if TYPE_CHECKING:
    from headwise.models.multitask import MultiTaskModel
    from headwise.training.loop import Run
    from headwise.training.plan import Plan

LOOKS, SETTLED = 20, 0.9  # selections in a whole training, and how far two must agree
SEEN, BEGAN = "seen.", "began at"
CHOICES = ("top", "random", "bottom")
MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer")


class HeldHeads:
    """Freezes, on a task's batches, the rows of all heads that the task did not select."""

    def __init__(self, heads: Heads, masks: Mapping[str, torch.Tensor], params: str = "qkv"):
        """``masks`` are bool (L, H) per task: the trainable heads; a key-value group is if one of its heads is."""
        if any(hasattr(module, "base_layer") for site in heads.sites for module in site.attention.modules()):
            seen = "important-head training with PEFT adapters, which change all heads together"
            raise HeadwiseError(seen, "an encoder whose own weights are trained", "--method plain")
        self.rows = [_Rows(parameter, axis) for parameter, axis in head_parameters(heads, params)]
        for task, mask in masks.items():
            for rows in self.rows:
                rows.free[task] = torch.ones(rows.parameter.shape[rows.axis], dtype=torch.bool)
            self._mark(heads, task, mask, params)
        for rows in self.rows:
            rows.free = {task: free.to(rows.parameter.device) for task, free in rows.free.items()}
        self._saved: list[tuple[torch.Tensor, int, torch.Tensor, torch.Tensor]] = []
        self._without = self.rows  # rows without optimizer moments so far
        self._unmade: list[tuple[_Rows, torch.Tensor, Any]] = []
        self._whole = _WholeTensors() if _together(self.rows) else None
        self._handles: list[Any] = []

    def _mark(self, heads: Heads, task: str, mask: torch.Tensor, params: str) -> None:
        by_parameter = {id(rows.parameter): rows for rows in self.rows}
        for site in heads.sites:
            for name in params if site.parts else "":
                part = site.parts[name]
                chosen = torch.stack([mask[site.layer, list(own)].any() for own in site.owners(part)])
                tensors = [part.module.weight] + ([part.module.bias] if part.biased and name != "o" else [])
                for tensor in tensors:
                    by_parameter[id(tensor)].free[task][part.rows[~chosen].flatten()] = False

    def attach(self) -> None:
        """Register hooks that mask the gradients of each micro-batch by its task's mask."""
        moving = [rows for rows in self.rows if rows.parameter.requires_grad]  # frozen parameters have no gradients
        self._handles = [rows.parameter.register_hook(rows.masked) for rows in moving]

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def select(self, task: str | None) -> None:
        """Set the task of the next gradients."""
        for rows in self.rows:
            rows.task = task

    def save(self, optimizer: Any, tasks: Iterable[str]) -> None:
        """Save the rows, and their moments, that no task of the step may change."""
        key = frozenset(tasks)
        self._without = [rows for rows in self._without if not optimizer.state.get(rows.parameter)]
        self._unmade = [(rows, rows.still(key), optimizer) for rows in self._without]
        if self._whole:
            self._whole.save(self.rows, optimizer, key)
            return
        self._saved = []
        for rows in self.rows:
            still = rows.still(key)
            for tensor in rows.tensors(optimizer):
                self._saved.append((tensor, rows.axis, still, tensor.index_select(rows.axis, still)))

    def restore(self) -> None:
        """Restore them after the optimizer's step, so that weight decay and momentum have no effect."""
        if self._whole:
            self._whole.restore()
        for tensor, axis, still, before in self._saved:
            tensor.index_copy_(axis, still, before)
        for rows, still, optimizer in self._unmade:  # the first step creates the moments
            for moment in rows.tensors(optimizer)[1:]:
                moment.index_fill_(rows.axis, still, 0.0)
        self._saved, self._unmade = [], []


class _WholeTensors:
    """The same with a few kernels on an accelerator, where whole tensors are cheaper than rows."""

    def __init__(self) -> None:
        self.before: list[torch.Tensor] = []
        self.lists: dict[frozenset[str], tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        self.now: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])

    def save(self, held: list[_Rows], optimizer: Any, tasks: frozenset[str]) -> None:
        known, first = self.lists.get(tasks), held[0].tensors(optimizer)
        # Moments exist from the second step on, and are new objects after a resume.
        if not known or [t.data_ptr() for t in known[0][: len(first)]] != [t.data_ptr() for t in first]:
            known = self.lists[tasks] = self._listed(held, optimizer, tasks)
        if len(self.before) != len(known[0]):
            self.before = [torch.empty_like(tensor) for tensor in known[0]]
        torch._foreach_copy_(self.before, known[0])
        self.now = known

    def _listed(self, held: list[_Rows], optimizer: Any, tasks: frozenset[str]) -> tuple[list, list]:
        """All tensors, each with a mask of the same shape that is 1 in frozen rows."""
        tensors: list[torch.Tensor] = []
        masks: list[torch.Tensor] = []
        for rows in held:
            own = rows.tensors(optimizer)
            tensors += own
            masks += [rows.still_mask(tasks)] * len(own)
        return tensors, masks

    def restore(self) -> None:
        tensors, masks = self.now
        if tensors:
            torch._foreach_lerp_(tensors, self.before, masks)  # bit-exact: weight 1 gives the old value, 0 the new
        self.now = ([], [])


def _together(held: list[_Rows]) -> bool:
    return bool(held) and held[0].parameter.is_cuda


class _Rows:
    """A parameter whose rows belong to heads."""

    def __init__(self, parameter: nn.Parameter, axis: int):
        self.parameter, self.axis = parameter, axis
        self.free: dict[str, torch.Tensor] = {}
        self.task: str | None = None
        self._still: dict[frozenset[str], torch.Tensor] = {}

    def masked(self, grad: torch.Tensor) -> torch.Tensor:
        if self.task is None:
            return grad
        shape = [1] * grad.ndim
        shape[self.axis] = -1
        return grad * self.free[self.task].view(shape)

    def tensors(self, optimizer: Any) -> list[torch.Tensor]:
        """The parameter and its moments."""
        state = optimizer.state.get(self.parameter, {})
        return [self.parameter.data, *(state[name] for name in MOMENTS if name in state)]

    def still_mask(self, tasks: frozenset[str]) -> torch.Tensor:
        mask = torch.zeros_like(self.parameter.data)
        return mask.index_fill_(self.axis, self.still(tasks), 1.0)

    def still(self, tasks: frozenset[str]) -> torch.Tensor:
        if tasks not in self._still:
            free = torch.stack([self.free[task] for task in tasks]).any(0)
            self._still[tasks] = (~free).nonzero().flatten()
        return self._still[tasks]


def head_parameters(heads: Heads, params: str) -> list[tuple[nn.Parameter, int]]:
    parameters: dict[int, tuple[nn.Parameter, int]] = {}
    for site in heads.sites:
        for name in params if site.parts else "":
            part = site.parts[name]
            parameters[id(part.module.weight)] = (part.module.weight, part.axis)
            if part.biased and name != "o":
                parameters[id(part.module.bias)] = (part.module.bias, 0)
    return list(parameters.values())


class IAT(Method):
    """In the final fraction δ of training, a task's batches update only W_Q, W_K and W_V of its top α heads.

    Example:
        >>> fit(model, Plan(epochs=3), IAT(alpha=0.3, delta=0.1))
    """

    name = "iat"

    def __init__(
        self,
        alpha: float | str = 0.3,
        delta: float | str = 0.1,
        choose: str | Mapping[str, torch.Tensor] = "top",
        freeze: str = "update",
        params: str = "qkv",
        by: str = "gradient",
        examples: int = 10_000,
        refresh: int | None = None,
        options: Mapping[str, Any] | None = None,
    ):
        """Choose how heads are selected and what is frozen.

        Args:
            alpha: fraction of heads that a task may update; "half": its fewest heads with half of its importance.
            delta: final fraction of steps in which the other heads are frozen; "settled": from when the selection, made
                every twentieth of training from half on, agrees with the one before by nine tenths.
            choose: "top", "random" or "bottom" heads, or masks ``{task: bool (L, H)}``.
            freeze: "update": other rows stay bit-identical, optimizer moments included; "grad": only their gradients
                are zeroed, as published, and momentum still moves them.
            params: rows of q, k and v ("qkv"), or also the columns of the output projection ("qkvo").
            by: importance estimator.
            examples: number of examples for the importance of each task.
            refresh: select heads again after this many steps.
            options: options of the estimator.
        """
        for name, value, word in (("alpha", alpha, "half"), ("delta", delta, "settled")):
            if value != word:
                check_share(name, value)  # type: ignore[arg-type]
        _check_choice("choose", choose if isinstance(choose, str) else "top", CHOICES)
        _check_choice("freeze", freeze, ("update", "grad"))
        _check_choice("params", params, ("qkv", "qkvo"))
        self.alpha, self.delta, self.choose, self.freeze, self.params = alpha, delta, choose, freeze, params
        self.by, self.examples, self.refresh, self.options = by, examples, refresh, dict(options or {})
        self.masks: dict[str, torch.Tensor] = {}
        self.seen: dict[str, torch.Tensor] = {}  # the last selection that had not settled
        self.held: HeldHeads | None = None
        self.first = 0  # step from which heads are held

    @classmethod
    def ticket_share(cls, **settings: Any) -> IAT:
        """δ = 1: heads are selected before the first step, with untrained output heads.

        This follows the reading of Liang et al. (2021) by Li et al. (2023); the original finds tickets by single-task
        training.
        """
        return cls(delta=1.0, **settings)

    def parameters(self, model: MultiTaskModel, plan: Plan) -> list[dict[str, Any]]:
        self.masks, self.seen, self.held = {}, {}, None  # state of another run of this method
        return []

    def start(self, run: Run) -> None:
        self.heads = Heads.of(run.model.encoder)
        self.heads.require_exact("important-head training")
        if not isinstance(self.choose, str):
            check_masks(self.choose, run.names, self.heads.shape)
        if not (isinstance(self.delta, str) and self.masks):  # a resumed run knows when heads settled
            self.first = run.total if isinstance(self.delta, str) else run.total - round(self.delta * run.total)
        self.total = run.total
        if self.masks:
            self._hold(run)

    def before_step(self, run: Run) -> None:
        if isinstance(self.delta, str) and not self.masks:
            self._settle(run)
        due = bool(self.refresh) and (run.step - self.first) % self.refresh == 0
        if run.step >= self.first and self.alpha != 1 and (not self.masks or due):
            self.masks = choose_heads(run, self._mask)
            self._hold(run)

    def before_batch(self, run: Run, task: str) -> None:
        if self.held:
            self.held.select(task)

    def before_update(self, run: Run, tasks: list[str]) -> None:
        if self.held and self.freeze == "update":
            self.held.save(run.optimizer, tasks)

    def after_update(self, run: Run, tasks: list[str]) -> None:
        if self.held:
            self.held.restore()

    def finish(self, run: Run) -> None:
        if self.held:
            self.held.detach()

    @property
    def chosen(self) -> dict[str, Any]:
        """Each task's α, and the δ, where the method chose them itself."""
        if not (isinstance(self.alpha, str) or isinstance(self.delta, str)):
            return {}
        alpha = {task: float(mask[self.heads.alive.cpu()].float().mean()) for task, mask in self.masks.items()}
        return {"alpha": alpha, "delta": 1 - self.first / self.total}

    def state(self) -> dict[str, torch.Tensor]:
        began = {BEGAN: torch.tensor(self.first)} if isinstance(self.delta, str) and self.masks else {}
        return {**self.masks, **began, **{f"{SEEN}{task}": mask for task, mask in self.seen.items()}}

    def load_state(self, tensors: dict[str, torch.Tensor]) -> None:
        self.seen = {name.removeprefix(SEEN): mask for name, mask in tensors.items() if name.startswith(SEEN)}
        self.masks = {name: mask for name, mask in tensors.items() if not name.startswith((SEEN, BEGAN))}
        self.first = int(tensors[BEGAN]) if BEGAN in tensors else self.first

    def describe(self) -> dict[str, Any]:
        chosen = self.choose if isinstance(self.choose, str) else f"given {_known(self.choose)}"
        settings = {"alpha": self.alpha, "delta": self.delta, "choose": chosen, "freeze": self.freeze}
        settings |= {"params": self.params, "by": self.by, "examples": self.examples, "refresh": self.refresh}
        return {"method": self.name, **settings, "options": self.options}

    def _settle(self, run: Run) -> None:
        """Hold heads once two selections in a row agree, and at the last look in any case."""
        every = max(1, round(run.total / LOOKS))
        if 2 * run.step < run.total or run.step % every:
            return
        masks, last = choose_heads(run, self._mask), run.step + every >= run.total
        if last or (self.seen and _agreement(masks, self.seen) >= SETTLED):
            self.masks, self.seen, self.first = masks, {}, run.step
            self._hold(run)
        else:
            self.seen = masks

    def _hold(self, run: Run) -> None:
        if self.held:
            self.held.detach()
        self.held = HeldHeads(self.heads, self.masks, self.params)
        mixed = run.plan.accumulate > 1 and run.plan.window == "mixed"
        if self.freeze == "grad" or run.plan.clip is not None or mixed:
            self.version += 1
            self.held.attach()  # otherwise frozen rows are restored, so their gradients have no effect

    def _mask(self, run: Run, task: str) -> torch.Tensor:
        if not isinstance(self.choose, str):
            return self.choose[task]
        if self.choose == "random" and not isinstance(self.alpha, str):
            seed = 10_000_019 + 1000 * run.plan.seed + run.names.index(task)  # not those of random lesions
            return random_heads(self.heads.shape, self.alpha, seed, alive=self.heads.alive)
        result = importance(run.model, task, self.by, examples=self.examples, data=run.data[task], **self.options)
        share = half_of(result.scores) if isinstance(self.alpha, str) else self.alpha
        return (top if self.choose == "top" else bottom)(result.scores, share)


def choose_heads(run: Run, mask: Callable[[Any, str], torch.Tensor]) -> dict[str, torch.Tensor]:
    """Select each task's heads without side effects on gradients, dropout, random streams or data order."""
    with torch.random.fork_rng(devices=[run.device] if run.device.type == "cuda" else []):
        return {task: mask(run, task) for task in run.names}


def _known(masks: Mapping[str, torch.Tensor]) -> str:
    return digest({task: torch.as_tensor(mask).bool().tolist() for task, mask in masks.items()})


def check_masks(masks: Mapping[str, torch.Tensor], tasks: Iterable[str], shape: tuple[int, int]) -> None:
    for task in tasks:
        if task not in masks:
            raise HeadwiseError(f"masks for {', '.join(masks)}", f"one for {task!r} as well")
        if tuple(masks[task].shape) != shape:
            raise HeadwiseError(f"a mask of shape {tuple(masks[task].shape)}", f"(layers, heads) = {shape}")


def half_of(scores: torch.Tensor) -> float:
    """The fraction of heads, the most important first, that hold half of the importance.

    Example:
        >>> half_of(torch.tensor([[6.0, 1.0], [2.0, 1.0]]))
        0.25
    """
    known = scores[~scores.isnan()].flatten().clamp_min(0).sort(descending=True).values
    count = int((known.cumsum(0) < known.sum() / 2).sum()) + 1
    return min(count, len(known)) / len(known)


def _agreement(a: Mapping[str, torch.Tensor], b: Mapping[str, torch.Tensor]) -> float:
    """The mean fraction of chosen heads that two selections share."""
    shared = [(a[task] & b[task]).sum() / (a[task] | b[task]).sum().clamp_min(1) for task in a]
    return float(torch.stack([each.float() for each in shared]).mean())


def check_share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise HeadwiseError(f"{name}={value}", "a number from 0 to 1")


def _check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise HeadwiseError(f"{name}={value!r}", " or ".join(allowed))
