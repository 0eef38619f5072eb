"""Verify that a pruned model equals the original with those heads closed, on the inputs that proved its heads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import nn

from headwise.errors import HeadwiseError, first_line
from headwise.heads.gates import Heads, NotReached, gated
from headwise.heads.modules import answers
from headwise.heads.proven import proven

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}  # of the largest output
HALF_TOLERANCE = 3e-2


@contextmanager
def comparing(model: nn.Module, heads: Heads, gone: torch.Tensor) -> Iterator[None]:
    """Compare outputs before and after the block; if they differ, restore the modules and raise.

    A model under construction, on the meta device, is not compared.
    """
    expected = _closed(model, heads, gone)
    before = _copied(heads)
    try:
        yield
        for tower, inputs, there in expected:
            _require_same(answers(model.get_submodule(tower), inputs), there)
    except Exception as error:
        _restore(before)
        raise HeadwiseError(
            f"heads cannot be cut out of {heads.family} models: {first_line(error)}",
            "modeling code that supports fewer heads",
            "use gates (headwise.gated) or the form masked, which work here",
        ) from error


def _closed(model: nn.Module, heads: Heads, gone: torch.Tensor) -> list[tuple[str, dict[str, Any], torch.Tensor]]:
    """The outputs of every tower that reaches all heads, with some of them closed."""
    facts = proven(model)
    if facts.why:
        return []
    found, gates = [], (~gone).float()
    for tower, inputs in facts.samples.items():
        runner = model.get_submodule(tower)
        inside = {id(module) for module in runner.modules()}
        if inputs and all(id(site.module) in inside for site in heads.sites if site.kept):
            with suppress(NotReached), gated(runner, gates, heads=heads):
                found.append((tower, inputs, answers(runner, inputs)))
    if not found:
        raise HeadwiseError("no sample reaches the heads, so the cut could not be verified", "inputs of this model")
    return found


def _require_same(found: torch.Tensor, expected: torch.Tensor) -> None:
    if found.shape != expected.shape:
        raise HeadwiseError(f"{len(found)} numbers in the answer", f"{len(expected)}")
    if not len(found):
        return
    largest = expected.abs().nan_to_num(0.0).max().clamp_min(1e-6)
    difference = ((found - expected).abs().nan_to_num(0.0).max() / largest).item()
    allowed = TOLERANCE.get(expected.dtype, HALF_TOLERANCE)
    if not difference <= allowed or bool((found.isnan() != expected.isnan()).any()):
        seen = f"its outputs differ by {difference:.1e} from those with these heads closed"
        raise HeadwiseError(seen, f"{allowed:.0e} at most")


Before = list[tuple[Any, type, dict[str, Any]]]


def _copied(heads: Heads) -> Before:
    """The class, attributes and tensors of all modules that a cut may change."""
    inside = {id(m): m for site in heads.sites if site.kept for m in (*site.attention.modules(), site.module)}
    own = ("_parameters", "_buffers", "_modules")
    return [(m, type(m), vars(m) | {name: dict(vars(m)[name]) for name in own}) for m in inside.values()]


def _restore(before: Before) -> None:
    for module, kind, values in before:
        module.__class__ = kind
        vars(module).clear()
        vars(module).update(values)
