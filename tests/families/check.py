"""Whether gates do what closing a head inside its attention call does, for every stack of a model."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from headwise.errors import HeadwiseError
from headwise.heads.cutting import fold, prune
from headwise.heads.gates import Heads, gated, stacks_of
from headwise.heads.samples import samples
from headwise.heads.tracing import _Attention
from headwise.pruning.export import export

FORMS = ("masked", "sliced")
OUTPUTS = ("last_hidden_state", "logits", "text_embeds", "image_embeds", "encoder_last_hidden_state", "pooler_output")


def verdict(model: nn.Module, thorough: bool = True) -> tuple[str, str]:
    """right, wrong, refused, unproven (names alone), or crash; and why.

    Thoroughly: with exports that are opened again, and gradients beside finite differences.
    """
    try:
        stacks = [Heads.of(model, stack=name) for name in stacks_of(model)]
    except HeadwiseError as error:
        return "refused", str(error)
    except Exception as error:
        return "crash", f"{type(error).__name__}: {error}"[:200]
    words = []
    for heads in stacks:
        if not heads.verified:
            return "unproven", f"{heads.stack}: {len(heads.sites)} layers"
        try:
            wrong = _wrong(model, heads)
        except HeadwiseError as error:
            return "crash", str(error)
        if wrong:
            return "wrong", f"{heads.stack}: {wrong}"
        present = [site for site in heads.sites if site.kept]
        cut, wrong = _cut(model, heads) if heads.exact else (False, "")
        if wrong:
            return "wrong", f"{heads.stack}: {wrong}"
        size = f"{len(present)}/{heads.num_layers} x {heads.num_heads} x {heads.head_dim}"
        words.append(
            ", ".join([f"{heads.stack} {size}", *["cut"] * cut, *(_more(model, heads, cut) if thorough else [])])
        )
    return "right", "; ".join(words)


def _gradient(model: nn.Module, stack: str) -> Iterator[str]:
    """Nothing where the gradient of a gate is that of finite differences; whether it is with nothing detached."""
    gradient = away = 0.0
    for step in (1e-4, 1e-6):  # the second where the first meets the kink of a ReLU
        twin = copy.deepcopy(model)
        try:
            gradient, away = slope(twin, Heads.of(twin, stack=stack), step)
        except Exception as error:  # an operation without a gradient, or without float64
            yield f"no gradient ({str(error).strip().splitlines()[0][:100]})"
            return
        if _close(gradient, away):
            return
    twin = copy.deepcopy(model)
    heads = Heads.of(twin, stack=stack)
    with attached():
        whole, _ = slope(twin, heads)
    yield f"gradient {gradient:.5g} against {away:.5g} ({'detached' if _close(whole, away) else 'not explained'})"


def _close(gradient: float, away: float) -> bool:
    return abs(gradient - away) <= 1e-4 * max(abs(gradient), abs(away)) + 1e-7


@contextmanager
def attached() -> Iterator[None]:
    """Inside the block nothing is cut off from autograd."""
    detach = torch.Tensor.detach
    torch.Tensor.detach = lambda tensor: tensor  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.Tensor.detach = detach  # type: ignore[method-assign]


def _wrong(model: nn.Module, heads: Heads) -> str:
    runner, inputs, groups = _run(model, heads)
    torch.manual_seed(0)
    base = _values(runner, inputs)
    present = [site for site in heads.sites if site.kept]
    with gated(model, torch.ones(heads.shape), heads=heads):
        if not torch.equal(_values(runner, inputs), base):
            return "gates of ones change the answer"
    for site in (present[0], present[-1]):
        for head in dict.fromkeys((0, len(site.kept) - 1)):
            gates = torch.ones(heads.shape)
            gates[site.layer, site.kept[head]] = 0
            with gated(model, gates, heads=heads):
                here = _values(runner, inputs)
            last = groups[site.layer][-1]
            alone = [[call] for call in range(last, max(last - 3, -1), -1)]  # a layer of LiLT has two maps
            near, seen = 1e-5 * float(base.abs().max()), []
            for calls in (groups[site.layer], *alone):
                there = _closed_inside(runner, inputs, calls, head, len(site.kept))
                if there is not None:
                    seen.append(float((here - there).abs().max()))
                    if torch.allclose(here, there, rtol=1e-3, atol=near):
                        break
            else:
                why = f"differs by {min(seen):.2g}" if seen else f"no attention call has {len(site.kept)} heads"
                return f"layer {site.layer}, head {head}: {why}"
    return ""


def _two(heads: Heads) -> torch.Tensor:
    """A mask of two heads, in the first and the last layer."""
    present = [site for site in heads.sites if site.kept]
    gone = torch.zeros(heads.shape, dtype=torch.bool)
    gone[present[0].layer, present[0].kept[-1]] = gone[present[-1].layer, present[-1].kept[0]] = True
    return gone


def _more(model: nn.Module, heads: Heads, cut: bool) -> Iterator[str]:
    inside = any(site.inside for site in heads.sites)
    yield from _saved(model, heads, FORMS if cut else () if inside or heads.shared else FORMS[:1])
    yield from _gradient(model, heads.stack)


def _saved(model: nn.Module, heads: Heads, forms: Iterable[str]) -> Iterator[str]:
    """The forms that were written, opened again and answer as the gated model; the reason where one was not."""
    for form in forms:
        why = _refused(model, _two(heads), form, heads.stack)
        if why and _refused(model, None, "masked", heads.stack):
            yield "transformers does not open it again as it was"
            return
        yield f"not {form} ({why})" if why else form


def _refused(model: nn.Module, mask: torch.Tensor | None, form: str, stack: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        try:
            export(model, mask, f"{folder}/small", form, stack=stack)
        except Exception as error:
            return str(getattr(error, "seen", f"{type(error).__name__}: {error}")).replace(folder, "")[:120]
    return ""


def _cut(model: nn.Module, heads: Heads) -> tuple[bool, str]:
    """Whether single heads can be cut; and what is wrong if a cut or a folded copy is not the gated model."""
    gone = _two(heads)
    runner, inputs, _ = _run(model, heads)
    name = next(name for name, module in model.named_modules() if module is runner)
    with gated(model, (~gone).float(), heads=heads):
        expected = _values(runner, inputs)
    for form in (fold, prune):
        try:
            mask = (~gone).float() if form is fold else gone
            found = _values(form(copy.deepcopy(model), mask, heads.stack).get_submodule(name), inputs)
        except HeadwiseError:  # its code does not run with fewer heads, or weights are not plain
            return False, ""
        if not torch.allclose(found, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max())):
            return False, f"{form.__name__} differs by {float((found - expected).abs().max()):.2g}"
    return True, ""


def _run(model: nn.Module, heads: Heads) -> tuple[nn.Module, dict[str, Any], dict[int, list[int]]]:
    """The model or a tower of it that reaches the sites, its inputs, and the attention calls before every site."""
    for runner in _runners(model, heads):
        try:
            tried = list(samples(runner))
        except Exception:
            continue
        for inputs in tried:
            try:
                groups = _groups(runner, inputs, heads) if len(_values(runner, inputs)) else {}
            except Exception:
                continue
            if all(site.layer in groups for site in heads.sites if site.kept):
                return runner, inputs, groups
    raise HeadwiseError("no sample reaches the sites")


def _runners(model: nn.Module, heads: Heads) -> Iterator[nn.Module]:
    yield model
    first = next(site.name for site in heads.sites if site.kept)
    for name, module in model.named_modules():
        if name and first.startswith(f"{name}.") and hasattr(module, "config") and hasattr(module, "main_input_name"):
            yield module


def _groups(runner: nn.Module, inputs: dict[str, Any], heads: Heads) -> dict[int, list[int]]:
    calls, groups, last = [0], {}, [0]
    by_module: dict[int, list[int]] = {}
    starts: dict[nn.Module, int] = {}
    inside = {site.module: site.layer for site in heads.sites if site.inside}
    for site in heads.sites:
        if site.kept and not site.inside:
            by_module.setdefault(id(site.module), []).append(site.layer)

    def attended(out: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        return out

    def hook(module: nn.Module, *_: Any) -> None:
        if layers := by_module.get(id(module)):
            layer = layers.pop(0) if len(layers) > 1 else layers[0]
            groups.setdefault(layer, []).extend(range(min(last[0], calls[0] - 1), calls[0]))
        last[0] = calls[0]

    def entered(module: nn.Module, *_: Any) -> None:
        starts[module] = calls[0]

    def left(module: nn.Module, *_: Any) -> None:
        groups.setdefault(inside[module], []).extend(range(starts[module], calls[0]))

    with ExitStack() as stack, torch.no_grad(), _Attention(attended):
        for module in inside:
            stack.callback(module.register_forward_pre_hook(entered).remove)
            stack.callback(module.register_forward_hook(left).remove)
        modules = [module for module in runner.modules() if isinstance(module, nn.Linear) or id(module) in by_module]
        for module in modules:
            stack.callback(module.register_forward_pre_hook(hook).remove)
        torch.manual_seed(0)
        runner(**inputs)
    return groups


def _closed_inside(
    runner: nn.Module, inputs: dict[str, Any], group: list[int], head: int, heads: int
) -> torch.Tensor | None:
    calls, hits = [0], [0]

    def attended(out: torch.Tensor) -> torch.Tensor:
        number, calls[0] = calls[0], calls[0] + 1
        if number not in group:
            return out
        order = (0, 1) if out.ndim == 3 else (1, 2, 0)
        axes = [axis for axis in order if axis < out.ndim - 1 and out.shape[axis] == heads]
        if not axes:
            return out
        hits[0] += 1
        mask = torch.ones(heads)
        mask[head] = 0
        return out * mask.view([-1 if i == axes[0] else 1 for i in range(out.ndim)]).to(out)

    torch.manual_seed(0)
    with _Attention(attended):
        values = _values(runner, inputs)
    return values if hits[0] else None


@torch.no_grad()
def _values(runner: nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
    torch.manual_seed(0)
    out = runner(**inputs)
    if isinstance(out, torch.Tensor):
        return out.flatten().double()
    found = [getattr(out, name, None) for name in OUTPUTS]
    found = [one for one in found if isinstance(one, torch.Tensor)] or list(_tensors(out))
    return torch.cat([one.flatten().double() for one in found]).nan_to_num()


def _tensors(out: Any) -> Iterator[torch.Tensor]:
    if isinstance(out, torch.Tensor):
        yield from [out] if out.is_floating_point() else []
    elif isinstance(out, dict | list | tuple):
        for part in out.values() if isinstance(out, dict) else out:
            yield from _tensors(part)


class _Double(TorchFunctionMode):
    """Computes in float64 what a model computes in float32 whatever its precision, as many norms do."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        func = torch.Tensor.double if func is torch.Tensor.float else func
        wide = [torch.float64 if each is torch.float32 else each for each in args]
        named = {name: torch.float64 if each is torch.float32 else each for name, each in (kwargs or {}).items()}
        return func(*wide, **named)


def slope(model: nn.Module, heads: Heads, step: float = 1e-4) -> tuple[float, float]:
    """The derivative of the sum of squared answers by the gate of a head in the last layer: autograd, differences.

    All in float64, experts one by one: their kernel knows no float64.
    """
    runner, inputs, _ = _run(model, heads)
    model.double()
    with suppress(AttributeError, ValueError):
        model.set_experts_implementation("eager")
    inputs = {k: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for k, v in inputs.items()}
    site = next(site for site in reversed(heads.sites) if site.kept)

    def answers(gate: torch.Tensor) -> list[torch.Tensor]:
        gates = torch.ones(heads.shape, dtype=torch.float64)
        gates = gates.index_put((torch.tensor(site.layer), torch.tensor(site.kept[0])), gate)
        torch.manual_seed(0)
        with _Double(), gated(model, gates, heads=heads):
            return [each.double() for each in _tensors(runner(**inputs)) if each.isfinite().all()]

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        gate = torch.ones((), dtype=torch.float64, requires_grad=True)
        (gradient,) = torch.autograd.grad(sum(each.square().sum() for each in answers(gate)), gate)
        with torch.no_grad():  # square by square, so that large constants, such as masked scores, cancel exactly
            pairs = zip(answers(gate + step), answers(gate - step), strict=True)
            away = sum(((up - down) * (up + down)).sum() for up, down in pairs) / (2 * step)
    finally:
        torch.set_default_dtype(before)
    return float(gradient), float(away)
