"""The requests of a page, each with the work it starts on the one worker."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from headwise.errors import HeadwiseError, unknown
from headwise.lab import masks, page
from headwise.lab.answers import Answers
from headwise.lab.asks import Ask
from headwise.lab.opening import Opened
from headwise.lab.questions import NEXT
from headwise.lab.reasons import Reasons
from headwise.lab.scores import DevelopmentScores, texts_of
from headwise.lab.worker import Worker

CLIENT = re.compile(r"[A-Za-z0-9_-]{1,40}")
EXAMPLES = 25  # development rows in one list


class Desk:
    """Takes what a page asks to the worker."""

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
        """Results of one request as they come."""
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
        """Development rows of a task from a place on."""
        rows, start = self.answers.rows(self.task(data)), data.get("start", 0)
        if isinstance(start, bool) or not isinstance(start, int) or start < 0:
            raise HeadwiseError(f"start {str(start)[:20]}", "0 or more")
        shown = [texts_of(row) for row in rows[start : start + EXAMPLES]]
        return {"rows": shown, "of": len(rows), "start": start}

    def masks(self, data: dict[str, Any]) -> dict[str, Any]:
        """The mask as Python lines, as a file, or as a model that was cut."""
        ask, what, subject = self.read(data), data.get("what"), self.opened.subject
        if what == "python":
            return {"text": masks.python_lines(subject, self.opened.source, ask)}
        if what == "file":
            return {"text": masks.mask_json(ask)}
        if what == "model":
            return masks.cut_model(subject, ask, self.opened.folder, data)
        raise unknown("form to take a mask away in", str(what)[:40], ("python", "file", "model"))
