"""The atlas page: maps of heads coloured by role, a card for each, filters, and models side by side; one HTML file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from headwise.atlas.cards import SINK
from headwise.errors import HeadwiseError
from headwise.reporting import page
from headwise.reporting.palette import RAMP, TASKS, task_rules


def render_atlas(record: Mapping[str, Any], title: str = "") -> str:
    """The page of an atlas, as `headwise.atlas.cards.atlas` gives it, as text; the same atlas gives the same bytes.

    Example:
        >>> Path("atlas.html").write_text(render_atlas(atlas({"bert": roles})), encoding="utf-8")
    """
    if not record.get("models"):
        raise HeadwiseError("an atlas without models", "what headwise.atlas.cards.atlas returns")
    style = page.asset("page.css") + page.asset("atlas.css") + task_rules()
    script = "".join(page.asset(name) for name in ("data.js", "core.js", "atlas.js"))
    models = [{**model, "examples": [page.packed(each) for each in model["examples"]]} for model in record["models"]]
    names = [model["name"] for model in models]
    return page.template("atlas.html.j2").render(
        title=title or f"What the heads of {' and '.join(names)} do",
        models=models,
        findings=[_finding(model) for model in models],
        policy=page.policy(style, script),
        style=Markup(style),
        script=Markup(script),
        data=page.embedded({"ramp": RAMP, "colours": TASKS, "atlas": {**record, "models": models}}),
    )


def _finding(model: Mapping[str, Any]) -> str:
    """The first screen's message: how many heads have a role, and which roles most have."""
    held = Counter(head["beside"] for head in model["heads"] if head["role"])
    sinks = sum(1 for head in model["heads"] if head["role"] == SINK != head["beside"])
    few = ", ".join(f"{count} {name}" for name, count in held.most_common(4))
    total = len(model["heads"])
    text = f"{sum(held.values())} of {total} heads of {model['name']} have a role" + (f": {few}." if few else ".")
    if sinks:
        text += f" {sinks} of them look most of all at the first token, and are counted by their next role."
    if not model["tasks"]:
        return text
    idle = sum(1 for head in model["heads"] if head["role"] and not head["needed"])
    return f"{text} {idle} of them are among no task's most important heads."
