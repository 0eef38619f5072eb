"""Importance: how much a task depends on each head, by a registry of estimators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from headwise.errors import HeadwiseError
from headwise.heads.modules import evaluating
from headwise.measuring.evaluate import default_tokens
from headwise.measuring.references import CLOSE, mean_of, reference_for, twin
from headwise.models.batching import Encoded
from headwise.models.device import Budget
from headwise.models.plain import Loss, Wrapped
from headwise.models.processes import Team
from headwise.models.subject import Subject
from headwise.registry import Registry
from headwise.scoring import backward
from headwise.scoring.gradient import sized
from headwise.scoring.result import Importance
from headwise.scoring.sample import Loaded, Log, Meter, Sample, frozen, to_stderr

__all__ = ["Importance", "Sample", "estimators", "importance"]
Estimator = Callable[..., Importance]
estimators: Registry[Estimator] = Registry("importance")
for _module, _names in {
    "gradient": ("gradient", "token", "batch", "weight", "fisher", "taylor"),
    "ablation": ("ablation", "all_but_one", "mean_ablation", "random", "magnitude", "confidence"),
    "gating": ("l0", "causal_gating"),
    "captum": ("integrated_gradients", "attribution", "shapley"),
}.items():
    for _name in _names:
        estimators.add(_name, f"headwise.scoring.{_module}:{_name}")
NO_REFERENCE = ("mean_ablation", "random", "magnitude", "confidence", "l0", "causal_gating")


def importance(
    model: nn.Module,
    task: Any,
    by: str = "gradient",
    *,
    loss: Loss | None = None,
    reference: Any = "zero",
    examples: int = 10_000,
    split: str = "train",
    normalize: str = "none",
    seed: int = 0,
    data: Encoded | None = None,
    tokens: int | None = None,
    stack: str | None = None,
    log: Log = to_stderr,
    **options: Any,
) -> Importance:
    """Score every head for a task, or for any loss over your own batches.

    Args:
        model: a subject with this task, such as a `MultiTaskModel` or `LanguageModel`; with batches, any model that has
            heads.
        task: the name of a task of the model; or batches, such as a DataLoader: dictionaries of the model's arguments.
        by: the estimator. From one pass over activations and their gradients: gradient (Li et al. 2023, Eq. 4:
            E|∂L/∂g| per example), token (|·| per token, as Michel et al. and the released code), batch (|·| per batch),
            weight (|⟨W_O, ∂W_O⟩| per batch), fisher (squared), taylor (|mean|, signs cancel). From repeated forwards:
            ablation, mean_ablation, all_but_one. Learned: l0 (hard concrete gates on the frozen model; their
            probability of being open), causal_gating (heads that facilitate, interfere or are irrelevant). Through
            captum: integrated_gradients, attribution, shapley. Controls: random, magnitude, confidence.
            `headwise.pruning.iterative` scores again after every cut.
        loss: with batches: a function from model and batch to one loss per example, ``(B,)`` (default: the model's own
            loss per example, from labels in the batch).
        reference: the output that an open head is compared with: "zero"; its "mean" output, "resample", "optimal" (see
            `evaluate`) or "twin" (by gradient: attribution patching); a constant ``(L, H, D)``; or batches of twins.
        examples: number of examples, drawn at random; the first ones with batches.
        split: the split they come from.
        normalize: "l2" scales every layer's scores to length 1.
        seed: seed of the draw.
        data: encoded examples, if available.
        tokens: padded tokens per forward.
        stack: with batches: the attention stack, if the model has several.
        log: called with estimates of the remaining time of long runs.

    Example:
        >>> scores = importance(model, "sst2").scores
        >>> mask = top(scores, 0.3)
        >>> importance(AutoModelForCausalLM.from_pretrained("gpt2"), batches).signed
    """
    if normalize not in ("none", "l2"):
        raise HeadwiseError(f"normalize={normalize!r}", "none or l2")
    if examples < 1:
        raise HeadwiseError(f"examples={examples}", "1 or more")
    if by in NO_REFERENCE and not (isinstance(reference, str) and reference == "zero"):
        raise HeadwiseError(f"a reference for importance by {by}", "an estimator that closes heads, such as gradient")
    estimator = estimators[by]
    if isinstance(task, str):
        sample = _of_task(model, task, split, examples, seed, data, tokens)
        sample = replace(sample, reference=_reference(sample, reference, split))
    else:
        sample = _of_batches(model, task, loss, examples, seed, stack, reference)
    team = Team.of(sample.model).reading(sample.data.columns if sample.data else None)
    sample = replace(sample, meter=Meter(by, log if team.rank == 0 else _silent), team=team)
    quick = backward.fused(model) if sample.model.device.type in backward.DEVICES else nullcontext()
    with evaluating(model), frozen(model), quick:
        sample = sized(sample, by)
        result = Budget(sample.tokens, team).fit(lambda tokens: estimator(replace(sample, tokens=tokens), **options))
    return result.finished(sample.heads.alive, normalize)


def _of_task(
    model: nn.Module, task: str, split: str, examples: int, seed: int, data: Encoded | None, tokens: int | None
) -> Sample:
    if not isinstance(model, Subject):
        hint = "importance(model, batches), or a MultiTaskModel or LanguageModel with this task"
        raise HeadwiseError(f"task {task!r} of a {type(model).__name__}, which has no tasks", "batches", hint)
    if task not in model.tasks:
        raise HeadwiseError(f"the model has no task {task!r}", f"one of: {', '.join(model.tasks)}")
    given = data is not None
    data, items = (data, _draw(len(data), examples, seed)) if given else _drawn(model, task, split, examples, seed)
    return Sample(model, task, data, items, model.attention, tokens or default_tokens(model), seed)


def _of_batches(
    model: nn.Module, batches: Any, loss: Loss | None, examples: int, seed: int, stack: str | None, reference: Any
) -> Sample:
    if not isinstance(batches, Iterable) or isinstance(batches, dict):
        seen = f"a {type(batches).__name__} in place of a task"
        raise HeadwiseError(seen, "the name of a task, or a list of batches or a DataLoader")
    if isinstance(batches, Iterator):  # an iterator can be read only once
        batches = list(batches)
    first = next(iter(batches), None)
    if first is None:
        raise HeadwiseError("no batches", "one or more")
    subject = Wrapped(model, loss, first, stack)
    items = np.arange(examples)
    sample = Loaded(subject, "loss", None, items, subject.attention, 0, seed, loader=batches)  # type: ignore[arg-type]
    if isinstance(reference, torch.Tensor):
        return replace(sample, reference=reference_for(reference, subject, "loss", None))
    if reference == "mean":
        constant = mean_of((part.batch for part in sample.batches()), subject, "loss", subject.attention)
        return replace(sample, reference=lambda items, batch: constant)
    if isinstance(reference, str):
        if reference != "zero":
            raise HeadwiseError(f"reference={reference!r} with batches", "zero, mean, a constant, or batches of twins")
        return sample
    return replace(sample, twins=reference)


def _reference(sample: Sample, reference: Any, split: str) -> Any:
    if isinstance(reference, str) and reference == "twin":
        return twin(sample.model, sample.task, split, sample.data)
    if not isinstance(reference, str | torch.Tensor):
        raise HeadwiseError(
            f"a reference that is a {type(reference).__name__}", f"{', '.join(CLOSE)}, twin or a tensor"
        )
    how = {"tokens": sample.tokens, "seed": sample.seed}
    return reference_for(reference, sample.model, sample.task, sample.data, **how)


def _drawn(model: Subject, task: str, split: str, examples: int, seed: int) -> tuple[Encoded, np.ndarray]:
    """Examples and their order; in large tasks only these are tokenized, unless long rows become several examples."""
    rows = len(model.tasks[task].rows(split))
    if examples < rows:
        data = model.encode(task, split, chosen=_draw(rows, examples, seed))
        if len(data) == examples:
            return data, np.arange(examples)
    data = model.encode(task, split)
    return data, _draw(len(data), examples, seed)


def _draw(count: int, examples: int, seed: int) -> np.ndarray:
    return np.random.default_rng([seed, 3]).permutation(count)[:examples]


def _silent(line: str) -> None:
    """Another process says it."""
