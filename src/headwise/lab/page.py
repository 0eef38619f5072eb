"""The page: its parts as text, and the description of the model it starts from (no torch)."""

from __future__ import annotations

import json
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from headwise.io.files import finite
from headwise.reporting import page as report
from headwise.reporting.figures import RAMP, TASKS, task_rules
from headwise.reporting.words import letters, short_names

if TYPE_CHECKING:
    from headwise.lab.answers import Answers
    from headwise.lab.opening import Opened

SCRIPTS = ("state.js", "map.js", "answers.js", "words.js", "panels.js", "lab.js")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)


@lru_cache
def asset(name: str) -> str:
    """The text of a file that ships with the lab."""
    return files("headwise.lab").joinpath("assets", name).read_text(encoding="utf-8")


def html() -> str:
    return asset("lab.html")


def style() -> str:
    return asset("lab.css") + task_rules()


def script(backend: str = "server.js") -> str:
    """All scripts as one; the backend is a server or the browser itself."""
    colours = json.dumps({"ramp": RAMP, "colours": TASKS})
    return (
        f'"use strict";\nconst page = {colours};\n'
        + report.asset("core.js")
        + "".join(asset(name) for name in (backend, *SCRIPTS))
    )


def about(opened: Opened, answers: Answers) -> dict[str, Any]:
    """The description of the model that the page loads first."""
    heads, subject = answers.heads, opened.subject
    names = list(subject.tasks)
    short, marks = short_names(names), letters(names)
    form = getattr(getattr(subject, "reader", None), "form", "encoder")
    return finite(
        {
            "name": opened.name,
            "layers": heads.num_layers,
            "heads": heads.num_heads,
            "kv_heads": heads.num_kv_heads,
            "alive": heads.alive.tolist(),
            "form": form,
            "mask": getattr(subject.tokenizer, "mask_token", None) if form == "masked" else None,
            "tasks": [
                {"name": name, "short": short[name], "letter": marks[name], **_task(subject.tasks[name])}
                | {"rows": len(answers.rows(name)), "pair": any(map(_two, answers.rows(name)[:1]))}
                for name in names
            ],
            "scores": opened.scores,
            "roles": opened.roles,
            "alpha": opened.alpha,
            "exports": opened.folder is not None,
            "report": opened.study is not None,
            "atlas": opened.atlas is not None,
        }
    )


def _two(row: dict[str, Any]) -> bool:
    """Whether a row has two texts."""
    return bool(row.get("text_b") or row.get("context"))


def _task(task: Any) -> dict[str, Any]:
    kind = task.kind
    asks = list(getattr(kind, "asks", ()))
    choices = list(getattr(kind, "choices", ()))
    own = not asks and hasattr(kind, "reading") and not choices
    described = {"kind": type(kind).__name__.lower(), "metric": task.metric, "asks": asks, "choices": own}
    described |= {name: getattr(kind, name) for name in ("low", "high") if hasattr(kind, name)}
    return described | {"labels": list(kind.labels)}
