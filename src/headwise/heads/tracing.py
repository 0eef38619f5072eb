"""Find heads by intervention: close some inside the attention call and observe which module's input changes.

The law of a site: closing one head zeroes one slice of its input and changes nothing else. One forward per bit of a
head's number proves it for all heads of all layers: in forward k the heads whose number has bit k are closed, and the
output of every affected projection is restored, so that later layers are unchanged.

Legend: H heads, D head size, W width of a projection's input, K forwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from headwise.heads.families import input_width
from headwise.heads.modules import evaluating

AXES = {4: (1, 2), 5: (1, 2), 3: (0,)}  # where heads may lie in an attention map, by its number of dimensions
Call = tuple[str, int]  # a module's name, and which of its calls


@dataclass(frozen=True)
class Proof:
    """A module whose input is the concatenated outputs of heads."""

    name: str
    call: int  # which call of the module, as layers may share it
    heads: int
    head_dim: int
    start: int  # where the first head's slice begins
    projection: bool  # else a norm, say, that stands between the heads and their projection
    inside: int = 0  # how many attention calls the module makes, if heads are reached there


@dataclass
class Trace:
    """The results of tracing a sample."""

    proofs: list[Proof] = field(default_factory=list)  # in the order of the forward
    refused: dict[str, str] = field(default_factory=dict)  # names of modules that read heads otherwise, and how
    calls: int = 0  # of attention
    left: set[int] = field(default_factory=set)  # numbers of the attention calls whose heads no site holds
    behind: dict[str, set[int]] = field(default_factory=dict)  # of refused modules: the attention calls before them
    reached: set[str] = field(default_factory=set)  # names of the modules that the forward called


def trace(model: nn.Module, inputs: dict[str, Any]) -> Trace:
    """Find the modules whose inputs contain a model's heads, proven on one sample; raises what the forward raises."""
    result, again = _tried(model, inputs, 0), None
    single = {(proof.name, proof.call) for proof in result.proofs if proof.heads == 1}
    if result.calls and (result.refused or not result.proofs or single):
        again = _tried(model, inputs, 1)  # heads may be on another axis
        if len(again.proofs) > len(result.proofs):
            result, again = again, result
        if several := single & {(proof.name, proof.call) for proof in again.proofs}:  # blocks were taken for heads
            result.proofs = [proof for proof in result.proofs if (proof.name, proof.call) not in several]
        known = {(proof.name, proof.call) for proof in result.proofs}
        result.proofs += [proof for proof in again.proofs if (proof.name, proof.call) not in known]
        result.left &= again.left
    proven = {proof.name for proof in result.proofs}
    result.refused = {name: why for name, why in result.refused.items() if name not in proven}
    return result


def _tried(model: nn.Module, inputs: dict[str, Any], option: int) -> Trace:
    """Trace with heads on the first or second possible axis."""
    recording = _Recording(model, option)
    with recording.on():
        recording.forward(inputs)
        for bit in range(max(recording.sizes, default=0).bit_length()):
            recording.start(bit)
            recording.forward(inputs)
        result = recording.judged()
        recording.confirm(result, inputs)
    result.left = set(range(result.calls)).difference(*(recording.between[p.name, p.call] for p in result.proofs))
    refused = [(name, call) for name, call in recording.codes if name in result.refused]
    result.behind = {name: set(recording.between[name, call]) for name, call in refused}
    return result


class _Recording:
    """An unchanged forward, and others with heads closed."""

    def __init__(self, model: nn.Module, option: int):
        self.model = model
        self.axes = _Axes(option)
        self.watched = dict(_watched(model))
        self.bit: int | None = None
        self.sizes: list[int] = []  # heads of every attention call
        self.before: dict[Call, int] = {}  # the attention calls made before a module's
        self.inputs: dict[Call, torch.Tensor] = {}
        self.outputs: dict[Call, Any] = {}
        self.codes: dict[Call, torch.Tensor] = {}  # (W,): the number of the head that closes a column
        self.mixed: dict[Call, torch.Tensor] = {}  # (W,): columns that changed and are not zero
        self.infinite: set[Call] = set()  # inputs with infinite numbers or NaN
        self.alone: range | None = None  # the attention calls that are closed; None: all of them
        self.sites: set[Call] = set()  # whose outputs are put back where only some calls are closed
        self.read: set[str] = set()  # of these the ones whose inputs changed
        self.noticed: list[str] = []  # projections beside them whose inputs changed
        self._restart()

    def start(self, bit: int) -> None:
        self.bit = bit
        self._restart()

    def _restart(self) -> None:
        self.attention = 0
        self.count = dict.fromkeys(self.watched, 0)

    def forward(self, inputs: dict[str, Any]) -> None:
        devices = {t.device for t in inputs.values() if isinstance(t, torch.Tensor) and t.device.type == "cuda"}
        with evaluating(self.model), torch.no_grad(), torch.random.fork_rng(devices=list(devices)):
            torch.manual_seed(0)
            with _Attention(self._attended):
                self.model(**inputs)

    @contextmanager
    def on(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(_plain(self.model))
            for name, module in self.watched.items():
                hook = self._hook(name, input_width(module) is not None)
                stack.callback(module.register_forward_hook(hook, with_kwargs=True).remove)
            yield

    def _attended(self, out: torch.Tensor) -> torch.Tensor:
        """Close some heads of an attention map, or of head outputs, in all forwards but the first."""
        axis, heads = self.axes.of(out)
        number, self.attention = self.attention, self.attention + 1
        if self.bit is None:
            self.sizes.append(heads)
            return out
        if number >= len(self.sizes) or heads != self.sizes[number]:
            return out
        if self.alone is not None and number not in self.alone:
            return out
        opened = 1 - ((torch.arange(1, heads + 1) >> self.bit) & 1)
        shape = [1] * out.ndim
        shape[axis] = heads
        return out * opened.view(shape).to(out)

    def _hook(self, name: str, projects: bool) -> Callable:
        def hook(_: nn.Module, args: tuple, kwargs: dict, output: Any) -> Any:
            call = name, self.count[name]
            self.count[name] += 1
            given = next((v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor)), None)
            if given is None or not given.is_floating_point() or not given.ndim:
                return None
            if self.bit is None:
                self.before[call] = self.attention
                self.inputs[call], self.outputs[call] = given.clone(), output if projects else None
                return None
            then = self.inputs.get(call)
            if then is None or then.shape != given.shape or torch.equal(then, given):
                return None
            if self.alone is not None:
                return self._put_back(call, then, given, projects)
            self._compared(call, then, given)
            return self.outputs[call] if projects else None

        return hook

    def _compared(self, call: Call, then: torch.Tensor, now: torch.Tensor) -> None:
        """Which columns of a changed input are closed, and which are neither closed nor unchanged."""
        then, now = then.flatten(0, -2), now.flatten(0, -2)
        if not then.isfinite().all():
            self.infinite.add(call)
        zero = (now == 0).all(0) & (then != 0).any(0)
        same = ((then - now).abs() <= _rounding(then) * then.abs().amax()).all(0)
        codes = self.codes.setdefault(call, torch.zeros(then.shape[-1], dtype=torch.long))
        mixed = self.mixed.setdefault(call, torch.zeros(then.shape[-1], dtype=torch.bool))
        codes += zero.long().cpu() << (self.bit or 0)
        mixed |= ~(zero | same).cpu()

    def _put_back(self, call: Call, then: torch.Tensor, now: torch.Tensor, projects: bool) -> Any:
        if call in self.sites:
            self.read.add(call[0])
            return self.outputs[call]
        if projects and not torch.allclose(then, now, rtol=1e-3, atol=_rounding(then) * float(then.abs().amax())):
            self.noticed.append(call[0])
        return None

    def confirm(self, result: Trace, inputs: dict[str, Any]) -> None:
        """Withdraw sites beside which heads pass: with a site's output put back, no other projection may notice."""
        for count in dict.fromkeys(self.before[proof.name, proof.call] for proof in result.proofs):
            own = [proof for proof in result.proofs if self.before[proof.name, proof.call] == count]
            if not all(proof.projection for proof in own) or (len(own) == 1 and not result.refused):
                continue  # nothing but the site noticed anything
            calls = self.between[own[0].name, own[0].call]
            for alone in [calls] if len(own) == 1 else [range(n, n + 1) for n in calls]:
                self.alone, self.sites = alone, {(proof.name, proof.call) for proof in own}
                self.noticed, self.read = [], set()
                self.start(0)
                self.forward(inputs)
                others = self.noticed or sorted(self.read)[1:]  # two sites may not share heads
                if others:
                    why = f"heads pass beside it: {others[0]} notices too when they are closed"
                    result.refused |= {proof.name: why for proof in own}
                    result.proofs = [proof for proof in result.proofs if proof not in own]
                    break

    @property
    def between(self) -> dict[Call, range]:
        """Of every module's call, the attention calls since any other module's."""
        counts = [0, *sorted(set(self.before.values()))]
        return {call: range(counts[max(counts.index(n) - 1, 0)], n) for call, n in self.before.items()}

    def judged(self) -> Trace:
        """The modules that obey the law, and those that do not."""
        result = Trace(calls=len(self.sizes), reached={name for name, _ in self.inputs})
        passed: dict[int, Proof] = {}
        for call in self.codes:  # in the order of the forward
            name = call[0]
            projects = input_width(self.watched[name]) is not None
            proof, why = self._proof(call)
            group = self.before[call]
            if proof is not None and not projects:
                passed.setdefault(group, proof)
            elif projects and group in passed and proof is None:
                result.proofs.append(passed.pop(group))
            elif projects and proof is not None:
                passed.pop(group, None)
                result.proofs.append(proof)
            elif projects:
                result.refused[name] = why
        return result

    def _proof(self, call: Call) -> tuple[Proof | None, str]:
        codes, mixed = self.codes[call], self.mixed[call]
        heads = self.sizes[self.before[call] - 1] if self.before[call] else 0
        silent = (self.inputs[call].flatten(0, -2) == 0).all(0).cpu()
        if self.axes.option and heads < 2:
            return None, "a single head on an unusual axis is no proof"
        if call in self.infinite:
            return None, "its input has infinite numbers or NaN on the sample"
        if mixed.any():
            return (
                None,
                "closing a head changes more than one slice of its input, or leaves something of the head in it",
            )
        own = codes.nonzero().flatten()
        if not len(own):
            return None, "no single head's output passes it"
        start, stop = int(own[0]), int(own[-1]) + 1
        size = (stop - start) // heads if heads and (stop - start) % heads == 0 else 0
        expected = torch.arange(1, heads + 1).repeat_interleave(size)
        if not size or not ((codes[start:stop] == expected) | silent[start:stop]).all():
            return None, f"its input does not divide into {heads} slices, one for each head"
        return Proof(*call, heads, size, start, input_width(self.watched[call[0]]) is not None), ""


def _rounding(values: torch.Tensor) -> float:
    """How far numbers may differ that are the same but for rounding, as a fraction of the largest."""
    return 1e-2 if values.dtype in (torch.float16, torch.bfloat16) else 1e-5


class _Axes:
    """The head axis of an attention map."""

    def __init__(self, option: int):
        self.option = option

    def of(self, out: torch.Tensor) -> tuple[int, int]:
        axes = AXES.get(out.ndim, (1,))
        axis = axes[min(self.option, len(axes) - 1)]
        return axis, out.shape[axis]


class _Attention(TorchDispatchMode):
    """Passes every attention map, or the output of every fused attention kernel, to a function that may change it."""

    def __init__(self, attended: Callable[[torch.Tensor], torch.Tensor]):
        super().__init__()
        self.attended = attended

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if "scaled_dot_product" in name and "backward" not in name:
            return (self.attended(out[0]), *out[1:]) if isinstance(out, tuple) else self.attended(out)
        if name in ("_softmax", "_safe_softmax") and _is_map(out, args[1]):
            return self.attended(out)
        return out


def _is_map(out: torch.Tensor, dim: int) -> bool:
    """Whether a softmax is over keys, for several heads, and not over experts, classes or a convolution kernel."""
    return dim % out.ndim == out.ndim - 1 and (out.ndim > 3 or (out.ndim == 3 and out.shape[0] > 1))


@contextmanager
def _plain(model: nn.Module) -> Iterator[None]:
    """Disable surrounding gates and compiled code, which ignores later hooks.

    States that modules keep between forwards, such as recurrent ones, are restored after the block.
    """
    before = [(module, dict(vars(module))) for module in model.modules()]
    lent = [(m, n, h) for m in model.modules() for n, h in m._forward_pre_hooks.items() if getattr(h, "lent", False)]
    compiled = any(hasattr(m, "_orig_mod") or getattr(m, "_compiled_call_impl", None) for m in model.modules())
    for module, number, _ in lent:
        del module._forward_pre_hooks[number]
    try:
        with torch.compiler.set_stance("force_eager") if compiled else nullcontext():
            yield
    finally:
        for module, values in before:
            for name in vars(module).keys() - values.keys():
                del vars(module)[name]
            vars(module).update(values)
        for module, number, hook in lent:
            module._forward_pre_hooks[number] = hook


def _watched(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Projections, and other modules without parts; of what stands inside a projection (an adapter's), nothing."""
    inside = ""
    for name, module in model.named_modules():
        if inside and name.startswith(inside):
            continue
        projects = input_width(module) is not None and not isinstance(module, nn.Embedding)
        if projects:
            inside = f"{name}."
        if projects or not any(module.children()):
            yield name, module
