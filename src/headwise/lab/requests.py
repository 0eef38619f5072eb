"""The requests of a page and the work each starts on the worker."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from headwise.errors import HeadwiseError, unknown
from headwise.lab import page
from headwise.lab.answers import Answers, DevelopmentScores, texts_of
from headwise.lab.opening import Opened
from headwise.lab.questions import NEXT, Ask
from headwise.lab.reasons import Reasons
from headwise.lab.worker import Worker
from headwise.models.language import LanguageModel
from headwise.models.multitask import MultiTaskModel
from headwise.models.subject import Subject
from headwise.pruning.export import export

CLIENT = re.compile(r"[A-Za-z0-9_-]{1,40}")
EXAMPLES = 25  # development rows in one list


class Desk:
    """Pass a page's requests to the worker."""

    streams = ("flip", "scores")

    def __init__(self, opened: Opened):
        self.opened, self.worker = opened, Worker()
        self.answers = Answers(opened.subject)
        self.reasons, self.scores = Reasons(self.answers), DevelopmentScores(self.answers)
        self.about = page.about(opened, self.answers)
        self._calls: dict[str, Callable[[dict[str, Any]], Any]] = {
            "answers": lambda data: self.answers.both(self.read(data)),
            "why": lambda data: self.reasons.effects(self.read(data), self.task(data)),
            "attention": lambda data: self.reasons.attention(self.read(data), self.layer(data)),
            "examples": self.examples,
            "masks": self.masks,
        }
        self._streams: dict[str, Callable[[dict[str, Any]], Iterator[Any]]] = {
            "flip": lambda data: self.reasons.flipping(self.read(data), self.task(data)),
            "scores": lambda data: self.scores.under(self.read(data)),
        }
        self.names = (*self._calls, *self._streams)

    async def ask(self, name: str, data: dict[str, Any]) -> Any:
        """The result of one request."""
        return await self.worker.result(self.client(data), name, lambda: self._calls[name](data))

    def stream(self, name: str, data: dict[str, Any]) -> AsyncIterator[Any]:
        """Stream the results of one request."""
        return self.worker.stream(self.client(data), name, lambda: self._streams[name](data))

    def close(self) -> None:
        self.worker.close()

    # -- what requests name

    def read(self, data: dict[str, Any]) -> Ask:
        return Ask.read(data, self.answers.heads.shape)

    def client(self, data: dict[str, Any]) -> str:
        client = data.get("client")
        if not isinstance(client, str) or not CLIENT.fullmatch(client):
            raise HeadwiseError("no client", "a page of the lab")
        return client

    def task(self, data: dict[str, Any]) -> str:
        name, known = data.get("task"), list(self.opened.subject.tasks)
        known += [NEXT] if hasattr(self.opened.subject, "reader") else []
        if name not in known:
            raise unknown("task", str(name)[:80], known)
        return str(name)

    def layer(self, data: dict[str, Any]) -> int:
        layer = data.get("layer")
        if isinstance(layer, bool) or not isinstance(layer, int) or not 0 <= layer < self.answers.heads.num_layers:
            raise HeadwiseError(f"layer {str(layer)[:20]}", f"a number below {self.answers.heads.num_layers}")
        return layer

    # -- requests that need no forward

    def examples(self, data: dict[str, Any]) -> dict[str, Any]:
        """Development rows of a task from an index on."""
        rows, start = self.answers.rows(self.task(data)), data.get("start", 0)
        if isinstance(start, bool) or not isinstance(start, int) or start < 0:
            raise HeadwiseError(f"start {str(start)[:20]}", "0 or more")
        shown = [texts_of(row) for row in rows[start : start + EXAMPLES]]
        return {"rows": shown, "of": len(rows), "start": start}

    def masks(self, data: dict[str, Any]) -> dict[str, Any]:
        """Export the mask as Python code, as a file, or as a pruned model."""
        ask, what, subject = self.read(data), data.get("what"), self.opened.subject
        if what == "python":
            return {"text": python_lines(subject, self.opened.source, ask)}
        if what == "file":
            return {"text": mask_json(ask)}
        if what == "model":
            return cut_model(subject, ask, self.opened.folder, data)
        raise unknown("form to take a mask away in", str(what)[:40], ("python", "file", "model"))


FORMS = ("masked", "compact", "sliced")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")


def mask_of(ask: Ask) -> torch.Tensor:
    """The closed heads as a bool mask (L, H); raise if a gate is half open."""
    gates = torch.tensor(ask.gates)
    if half := gates[(gates > 0) & (gates < 1)].numel():
        raise HeadwiseError(f"{half} half-open heads", "heads that are open or closed")
    return gates == 0


def mask_json(ask: Ask) -> str:
    """The file that ``headwise export --mask`` and ``headwise prune --mask`` read."""
    rows = ",\n ".join(json.dumps(row) for row in mask_of(ask).tolist())
    return f"[{rows}]\n"


def python_lines(subject: Subject, source: str, ask: Ask) -> str:
    """Python code that reproduces the page: the same model, gates and text."""
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
    """Write the model without its closed heads below ``folder``; it is verified before it gets its name."""
    name, form = options.get("name"), options.get("form", "masked")
    if folder is None:
        raise HeadwiseError("no folder for exports", "one", "headwise lab ... --exports FOLDER")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise HeadwiseError(f"the name {str(name)[:60]!r}", "letters, digits, - and _, 40 at most")
    if form not in FORMS:
        raise unknown("form", form, FORMS)
    if ask.close != "zero":
        raise HeadwiseError(f"a mask with close={ask.close}", "close=zero, as in a pruned model")
    whole = isinstance(subject, MultiTaskModel)
    path = export(subject if whole else subject.backbone, mask_of(ask), folder / name, form, subject.tokenizer)
    return {"path": str(path), "form": form, "heads": ask.closed, "checked": "opened again, same outputs as gated"}
