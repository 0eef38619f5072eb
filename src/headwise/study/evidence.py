"""The evidence of a study: its lesions, and what speaks for and against its findings.

For several tasks lesions make a matrix per way of closing heads, for a single task a curve. Findings are weighed by
stable head sets, random lesions, collapse, leakage and ties.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headwise.scoring.importance import Importance
from headwise.scoring.stability import Blocks, stability, top_probability
from headwise.study.verdict import tied
from headwise.tasks.leakage import leakage
from headwise.tasks.metrics import metrics
from headwise.tasks.task import Task

if TYPE_CHECKING:
    from headwise.measuring.evaluate import Score
    from headwise.study.study import Study

Data = dict[str, Any]


def lesioned(study: Study, data: Data, scores: Mapping[str, Any]) -> Data:
    """Ablate each task's heads and random ones in every way that the settings name; the first is the main one."""
    s = study.settings
    fractions = s.fractions if s.alpha in s.fractions else tuple(sorted((*s.fractions, s.alpha)))
    if len(study.tasks) == 1:
        return _curves(study, fractions, scores)
    by_close = {close: _matrix(study, close, fractions, scores) for close in s.close}
    shown = by_close[s.close[0]] | {"tasks": study.tasks, "default": s.alpha}
    tables = [*data.get("tables", []), compared(by_close, s.alpha)] if len(by_close) > 1 else data.get("tables")
    return {"dissociation": shown, **({"tables": tables} if tables else {})}


def _matrix(study: Study, close: str, fractions: tuple[float, ...], scores: Mapping[str, Any]) -> Data:
    from headwise.dissociation.lesions import dissociate

    s = study.settings
    config = {"by": s.by, "examples": s.examples, "fractions": fractions, "alpha": s.alpha, "dev": s.dev}
    config |= {"random": s.random, "matched": s.matched} | ({} if close == "zero" else {"close": close})

    def work() -> Data:
        options = {"random": s.random, "matched": s.matched, "alpha": s.alpha, "limit": s.dev, "undefined": "leave"}
        return dissociate(study.model, scores, fractions, close=close, log=study.log, **options).to_record()

    return study.recorded("dissociation", config, work)


def compared(by_close: Mapping[str, Data], alpha: float) -> Data:
    """A table of D for each way of closing heads, at the main fraction."""
    rows = []
    for close, record in by_close.items():
        at = int(np.argmin([abs(fraction - alpha) for fraction in record["fractions"]]))
        for on, entries in {"its metric": record["D"], **record["on"]}.items():
            mean = entries[at]["mean"]
            numbers = [None if mean[end] is None else 100 * mean[end] for end in ("value", "low", "high")]
            rows.append([close, on.replace("_", " "), *numbers, mean["p"], mean.get("p_layers")])
    note = (
        f"Mean over the tasks in percent, {100 * alpha:g} % of heads ablated. p: against random head sets; p layers: "
        "against sets with as many heads in every layer. Where zero drives tasks to chance, other ways may not."
    )
    columns = ["ablated heads return", "D on", "D", "low", "high", "p", "p layers"]
    return {"title": "D by what ablated heads return", "note": note, "columns": columns, "rows": rows}


# -- what heads do


def roles_of(study: Study, data: Data, scores: Mapping[str, Any]) -> Data:
    """Significant roles, measured on training texts of all tasks."""
    from headwise.atlas.cards import atlas
    from headwise.atlas.measure import roles
    from headwise.atlas.result import from_record
    from headwise.io.files import write_json
    from headwise.io.identity import data as data_hash

    count, tasks = study.settings.roles, study.model.tasks.values()
    texts = [text for task in tasks for row in task.rows(task.splits[0])[:count] if (text := _readable(row))]
    if not texts:
        study.log("skipped: no task has texts")
        return {}
    config = {"texts": count, "rows": {task.name: data_hash(task, task.splits[:1]) for task in tasks}}
    record = study.recorded("roles", config, lambda: roles(study.model, texts=texts).to_record())
    measured, encoded = from_record(record), {name: part["accuracy"] for name, part in data.get("probes", {}).items()}
    write_json(study.out / "roles.json", {study.name: record})
    write_json(
        study.out / "atlas.json", atlas({study.name: measured}, {study.name: dict(scores)}, {study.name: encoded})
    )
    study.log(f"{int(measured.holds().any(0).sum())} of {int(study.heads.alive.sum())} heads have a role")
    return {"roles": measured.held()}


def _readable(row: Mapping[str, Any]) -> Any:
    """The part of a row that roles are measured on: a text, words, or a question."""
    text = row.get("text") or row.get("prompt")
    return text if isinstance(text, str) else row if "words" in row or "context" in row else None


# -- one task


def _curves(study: Study, fractions: tuple[float, ...], scores: Mapping[str, Any]) -> Data:
    from headwise.dissociation.lesions import lesion_curve
    from headwise.dissociation.significance import FEWEST

    s, curves = study.settings, {}
    for close in s.close:
        config = {"by": s.by, "examples": s.examples, "fractions": fractions, "dev": s.dev}
        config |= {"random": s.random, "close": close}

        def work(close: str = close) -> Data:
            (task, values), random = next(iter(scores.items())), FEWEST if s.random is None else s.random
            how = {"close": close, "random": max(1, random), "limit": s.dev, "log": study.log}
            return lesion_curve(study.model, task, values, fractions, **how).to_record()

        curves[close] = study.recorded("curve", config, work)
    return {"curves": curves, "tables": [_curve_table(curves)]}


def _curve_table(curves: Mapping[str, Data]) -> Data:
    rows = []
    for close, curve in curves.items():
        rows.append([close, 0.0, 100 * curve["intact"], None, None, None, None])
        for fraction, own, random, p in zip(*(curve[name] for name in ("fractions", "own", "random", "p"))):
            drawn = [100 * value for value in random]
            rows.append([close, 100 * fraction, 100 * own, float(np.mean(drawn)), min(drawn), max(drawn), p])
    curve = next(iter(curves.values()))
    note = (
        f"{curve['metric']}, {curve['examples']} rows. Random: {len(curve['random'][0])} sets of as many heads. p: "
        "one-sided, that the task's own heads matter more than random ones, after Holm over the fractions."
    )
    columns = ["ablated heads return", "ablated %", "own heads", "random, mean", "lowest", "highest", "p"]
    return {"title": f"Lesion curve of {curve['task']}", "note": note, "columns": columns, "rows": rows}


def trust_of(study: Mapping[str, Any], tasks: Sequence[Task]) -> dict[str, Any]:
    """Checks on the findings: stability of head sets, leakage, ties."""
    trust, part = leakage(list(tasks)).to_trust(), study.get("dissociation")
    return trust | _lesions(part, [task.name for task in tasks]) if part else trust


def stability_of(result: Importance, alpha: float) -> dict[str, Any]:
    """The stability of a task's head set over examples, as stored in a study."""
    known = stability(result.blocks, alpha, result.examples)
    record = {"split_half": known.split_half, "expected": known.expected, "needed": known.needed}
    return record | {"enough": known.enough, "used": result.examples}


def chances_of(blocks: Blocks, alpha: float) -> list[list[float]] | None:
    """Each head's probability to be among the top heads, over samples of the examples."""
    chances = top_probability(blocks, alpha)
    return None if chances is None else chances.round(3).tolist()


def withheld_of(study: Mapping[str, Any], alpha: float) -> dict[str, str]:
    """Tasks without claims although they may be learned, with the reason."""
    reasons = dict((study.get("dissociation") or {}).get("withheld") or {})
    for task, entry in study.get("importance", {}).items():
        if tied(entry["scores"], alpha):
            reasons[task] = "importance scores tie at the cut, so its top heads are undefined"
    return reasons


def _lesions(part: Mapping[str, Any], tasks: Sequence[str]) -> dict[str, Any]:
    """Scores under random lesions, and tasks whose predictions collapse into one class."""
    at, first = part["fractions"].index(part["default"]), 1 + len(tasks)
    closed = ["as it is", *(f"when the heads of {task} are ablated" for task in tasks)]
    closed += ["when random heads are ablated"] * (len(part["lesions"]) - first)
    bands, fallen = {}, []
    for task, row, marks in zip(tasks, part["performance"][at], part["collapsed"][at]):
        if row[first:] and row[0] > 0:
            bands[task] = [min(row[first:]) / row[0], max(row[first:]) / row[0]]
        fallen += [f"{task} {how}" for how, mark in zip(closed, marks) if mark]
    trust = {"collapsed": list(dict.fromkeys(fallen))}  # several random lesions are one line
    return trust | ({"random_band": bands} if bands else {})


TAGS = ("tag_accuracy", "span_f1")
ARCS = ("las", "uas", "las_punct", "uas_punct")


def best_constant(metric: str, golds: Sequence[Any]) -> float:
    """The best score of a constant answer; 0 if none scores.

    Example:
        >>> best_constant("accuracy", [1, 1, 0])
        0.6666666666666666
    """
    return max((metrics[metric](answers, golds) for answers in _constants(metric, golds)), default=0.0)


def against_baseline(score: Score) -> dict[str, Any]:
    """A score with its interval and baseline; ``learned`` where the whole interval is above the baseline."""
    low, high = score.interval()
    baseline = best_constant(score.metric, score.golds)
    compared = {"metric": score.metric, "value": score.value, "low": low, "high": high, "n": score.examples}
    return compared | {"baseline": baseline, "learned": bool(low > baseline)}


def _constants(metric: str, golds: Sequence[Any]) -> Iterator[list[Any]]:
    """Constant answers: one class, grade or tag; trees in which every word depends on the one before."""
    if metric in TAGS and golds and all(isinstance(tag, str) for gold in golds for tag in gold):
        for tag, _ in Counter(tag for gold in golds for tag in gold).most_common(20):
            yield [[tag] * len(gold) for gold in golds]
    elif metric in ARCS:
        labels = Counter(label for gold in golds for _, label in gold)
        label = labels.most_common(1)[0][0] if labels else ""
        yield [[(place, label) for place in range(len(gold))] for gold in golds]
    elif all(isinstance(gold, int) for gold in golds):
        for answer in sorted(set(golds)):
            yield [answer] * len(golds)
