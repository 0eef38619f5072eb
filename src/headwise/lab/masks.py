"""Masks to take away: as Python lines, as a file, and as a model that was cut and checked."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from headwise.errors import HeadwiseError, unknown
from headwise.lab.asks import Ask
from headwise.models.language import LanguageModel
from headwise.models.multitask import MultiTaskModel
from headwise.models.subject import Subject
from headwise.pruning.export import export

FORMS = ("masked", "compact", "sliced")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")


def mask_of(ask: Ask) -> torch.Tensor:
    """The closed heads as a bool mask (L, H); raises where gates are half open, which no cut model has."""
    gates = torch.tensor(ask.gates)
    if half := gates[(gates > 0) & (gates < 1)].numel():
        raise HeadwiseError(f"{half} heads that are half open", "heads that are open or closed")
    return gates == 0


def mask_json(ask: Ask) -> str:
    """The file that ``headwise export --mask`` and ``headwise prune --mask`` read."""
    rows = ",\n ".join(json.dumps(row) for row in mask_of(ask).tolist())
    return f"[{rows}]\n"


def python_lines(subject: Subject, source: str, ask: Ask) -> str:
    """Lines that do in Python what the page does: the same model, the same gates, the same text."""
    heads = [(i, j, g) for i, row in enumerate(ask.gates) for j, g in enumerate(row) if g < 1]
    places = ", ".join(f"({i}, {j}): {g:g}" for i, j, g in heads)
    first = next(iter(subject.tasks), None)
    lines = ["import torch", "import headwise", "", _opened(subject, source)]
    lines += ["gates = torch.ones(model.attention.shape)", f"for head, gate in {{{places}}}.items():"]
    lines += ["    gates[head] = gate"]
    reference = ""
    if ask.close == "mean" and first:
        lines += ["means = [headwise.measuring.references.mean(model, task, split='dev', examples=64)"]
        lines[-1] += " for task in model.tasks]"
        reference = ", torch.stack(means).mean(0).float()"
    if ask.close == "resample":
        lines += ["# resampled heads: headwise.evaluate(model, task, gates[None], close='resample') scores them"]
    lines += [f"with model.gated(gates{reference}):"]
    if isinstance(subject, LanguageModel) or first is None:
        lines += [f"    ids = model.tokenizer({ask.texts[0]!r}, return_tensors='pt')"]
        lines += ["    print(model.tokenizer.decode(model.model(**ids).logits[0, -1].argmax()))"]
        return "\n".join([*lines, ""])
    text = repr(ask.texts[0]) if not ask.texts[1] else repr(ask.texts)
    lines += ["    for task in model.tasks:", f"        print(task, model.predict(task, [{text}])[0])"]
    return "\n".join([*lines, ""])


def _opened(subject: Subject, source: str) -> str:
    names = list(subject.tasks)
    if isinstance(subject, MultiTaskModel):
        return f"model = headwise.MultiTaskModel.load({source!r})"
    if isinstance(subject, LanguageModel):
        return f"model = headwise.LanguageModel.from_pretrained({source!r}, {names!r})"
    return f"model = headwise.models.opening.open_subject({source!r}, [headwise.tasks.get(t) for t in {names!r}])"


def cut_model(subject: Any, ask: Ask, folder: Path | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Write the model without its closed heads below ``folder``; it is opened again and compared before it is named."""
    name, form = options.get("name"), options.get("form", "masked")
    if folder is None:
        raise HeadwiseError("no folder for exports", "one", "headwise lab ... --exports FOLDER")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise HeadwiseError(f"the name {str(name)[:60]!r}", "letters, digits, - and _, 40 at most")
    if form not in FORMS:
        raise unknown("form", form, FORMS)
    if ask.close != "zero":
        raise HeadwiseError(f"closed heads that return {ask.close}", "zero, as in a model that was cut")
    whole = isinstance(subject, MultiTaskModel)
    path = export(subject if whole else subject.backbone, mask_of(ask), folder / name, form, subject.tokenizer)
    return {"path": str(path), "form": form, "heads": ask.closed, "checked": "opened again, same outputs as gated"}
