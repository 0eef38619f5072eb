"""The report: one HTML file that contains its style, script and data; nothing is fetched."""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined, TemplateError
from markupsafe import Markup

from headwise.errors import HeadwiseError
from headwise.io.files import finite
from headwise.reporting import words
from headwise.reporting.figures import RAMP, TASKS, task_class, task_rules
from headwise.reporting.tables import FORMS, decimals, numeric, shown
from headwise.study.schema import checked
from headwise.study.verdict import kind_of

SCRIPTS = ("data.js", "core.js", "heads.js", "map.js", "card.js", "overlap.js", "lesions.js", "charts.js", "page.js")
# Nine digits distinguish any two float32 scores: the page must select the same heads as the library did.
SCORE_DIGITS, DIGITS = 9, 5
# Attention of example sentences is the one part that can outgrow the page; sentences beyond this are omitted.
EXAMPLE_BYTES = 800_000


def render(
    studies: Sequence[Mapping], lab: str = "", atlas: str = "", groups: Sequence[tuple[str, str, list[str]]] = ()
) -> str:
    """The page of one or several studies as text; the same studies give the same bytes.

    Args:
        studies: one or more, each as `headwise.study.schema` describes it.
        lab: where a running lab is, for a link to it; a page that lies in a file has none.
        atlas: where the page of all roles is, for a link to it.
        groups: of tasks, as (name, page, tasks), where the study is one of groups.
    """
    if not studies:
        raise HeadwiseError("no study", "one study or a list of them")
    try:
        return _rendered(_compared(_told_apart([prepared(study) for study in studies])), lab, atlas, groups)
    except (
        LookupError,
        TypeError,
        AttributeError,
        ArithmeticError,
        ValueError,
        TemplateError,
        RecursionError,
    ) as error:
        if isinstance(error, HeadwiseError):
            raise
        form = "a study as headwise.study.schema describes it"
        raise HeadwiseError(f"a study of another form ({type(error).__name__}: {error})", form) from error


def _rendered(clean: list[dict[str, Any]], lab: str, atlas: str, groups: Sequence[tuple[str, str, list[str]]]) -> str:
    style, script = asset("page.css") + task_rules(), "".join(asset(name) for name in SCRIPTS)
    more = f" and {len(clean) - 1} more" if len(clean) > 1 else ""
    return template().render(
        title=f"{clean[0]['title']}{more}",
        studies=clean,
        lab=lab,
        atlas=atlas,
        groups=groups,
        policy=policy(style, script),
        style=Markup(style),
        script=Markup(script),
        data=embedded({"ramp": RAMP, "colours": TASKS, "studies": clean}),
    )


def prepared(study: Mapping) -> dict[str, Any]:
    """The checked study with what only the page needs: a title, fewer digits, packed attention."""
    data = {part: finite(v, SCORE_DIGITS if part == "importance" else DIGITS) for part, v in checked(study).items()}
    data.setdefault("title", f"Where the tasks of {data['model']['name']} live")
    data["withheld"] = data.get("withheld") or {}
    names = [task["name"] for task in data["tasks"]]
    short, marks = words.short_names(names), words.letters(names)
    data["tasks"] = [{**task, "short": short[task["name"]], "letter": marks[task["name"]]} for task in data["tasks"]]
    _name_pairs(data.get("dissociation") or {}, data["withheld"])
    if data.get("examples"):
        data["examples"], data["examples_left_out"] = _fitting([packed(example) for example in data["examples"]])
    return data


def _name_pairs(part: Mapping[str, Any], withheld: Mapping[str, str]) -> None:
    """Add the verdict's name for every pair of tasks, at every fraction and on every score."""
    for entries in (part.get("D") or [], *(part.get("on") or {}).values()):
        for pair in (pair for entry in entries for pair in entry.get("pairs") or []):
            pair["kind"] = kind_of(pair, part.get("null"), withheld)


def _told_apart(studies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Number studies with equal titles."""
    many = Counter(study["title"] for study in studies)
    for number, study in enumerate(studies, 1):
        study["title"] += f" · {number}" if many[study["title"]] > 1 else ""
    return studies


def _compared(studies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add how many of a task's heads other trainings of the same study share."""
    for group in words.repeated(studies):
        for study in (study for study in studies if study["title"] in group["studies"] and study.get("trust")):
            study["trust"] = {**study["trust"], "seeds": group["seeds"]}
    return studies


def packed(example: dict[str, Any]) -> dict[str, Any]:
    """Attention weights as one byte each, in base64: a tenth of the numbers written out."""
    size = len(example["tokens"])
    packed = {}
    for head, rows in example["attention"].items():
        weights = [weight for row in rows for weight in row]
        if len(rows) != size or len(weights) != size * size:
            raise HeadwiseError(f"attention of head {head} with {len(rows)} rows", f"{size} x {size}, one per token")
        packed[head] = base64.b64encode(bytes(round(255 * min(1.0, max(0.0, w or 0.0))) for w in weights)).decode()
    return {"tokens": example["tokens"], "attention": packed}


def _fitting(examples: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    room, kept = EXAMPLE_BYTES, []
    for example in examples:
        room -= sum(map(len, example["attention"].values()))
        if room < 0:
            break
        kept.append(example)
    return kept, len(examples) - len(kept)


def embedded(value: Any) -> Markup:
    """JSON that cannot leave the script element it stands in."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def render_recipe(title: str, paper: str, sections: Sequence[Mapping], reproduce: str, command: str = "") -> str:
    """A recipe's page as text: words, tables beside the published ones, and pictures; no script.

    A section has a ``title``, ``paragraphs``, ``tables`` and ``figures``: names, captions and the bytes of svgs.
    """
    shown = []
    for section in sections:
        pictures = [(name, caption, _as_url(svg)) for name, caption, svg in section["figures"]]
        shown.append({**section, "tables": [finite(table) for table in section["tables"]], "figures": pictures})
    style = asset("page.css") + task_rules()
    words = {"title": title, "paper": paper, "sections": shown, "reproduce": reproduce, "command": command}
    return template("recipe.html.j2").render(style=Markup(style), policy=policy(style, ""), **words)


def _as_url(svg: bytes) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg).decode()


def policy(style: str, script: str) -> str:
    """Nothing may load, connect or run but the one style and, where there is one, the one script of this page."""
    allowed = f"'{_hash(script)}'" if script else "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@lru_cache
def asset(name: str) -> str:
    """The text of a file that ships with the page."""
    return files("headwise.reporting").joinpath("assets", name).read_text(encoding="utf-8")


@lru_cache
def template(name: str = "page.html.j2") -> Any:
    environment = Environment(
        loader=FunctionLoader(asset), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(words.FILTERS)
    environment.globals.update(task_class=task_class, forms=FORMS, decimals=decimals, numeric=numeric)
    environment.globals.update(as_shown=shown, json=_indented)
    environment.globals.update(repeated=words.repeated, average=words.average)
    environment.globals.update(sections=words.sections, trust_rows=words.trust_rows, summary=words.summary)
    return environment.get_template(name)


def _indented(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
