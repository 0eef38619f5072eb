"""Format numbers and findings for the report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from headwise.io.files import finite
from headwise.measuring.stats import adjust, over_trainings
from headwise.study.schema import nearest
from headwise.study.verdict import kind_of, top_mask, withheld

MISSING = "–"


def number(value: Any, digits: int = 3) -> str:
    """Format a number: three significant digits, thousands separators, a dash for None."""
    if value is None:
        return MISSING
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int) or (value == int(value) and abs(value) >= 1000):
        return f"{int(value):,}".replace(",", "\u2009")
    return f"{value:.{digits}g}" if abs(value) < 1000 else f"{value:.0f}"


def fixed(value: Any, digits: int = 3) -> str:
    """A score with a fixed number of decimals, so that columns line up."""
    return f"{value:.{digits}f}" if isinstance(value, float) else number(value)


def percent(value: float | None, digits: int = 0) -> str:
    return MISSING if value is None else f"{100 * value:.{digits}f}\u00a0%"


def points(value: float | None, digits: int = 1) -> str:
    """A difference of shares in percentage points, with its sign."""
    return MISSING if value is None else f"{100 * value:+.{digits}f}".replace("-", "−")


def chance(p: float | None) -> str:
    """A p-value; very small ones only as a bound."""
    if p is None:
        return MISSING
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}"


def average(values: list[float | None]) -> float | None:
    """The mean of numbers, or nothing where one is missing."""
    return None if not values or None in values else sum(values) / len(values)  # type: ignore[arg-type]


def big(value: float | None) -> str:
    """A count of parameters: 22.7 M."""
    if value is None:
        return MISSING
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return str(value)


FILTERS = {
    "number": number,
    "fixed": fixed,
    "percent": percent,
    "points": points,
    "chance": chance,
    "big": big,
}


def sections(study: dict[str, Any]) -> list[tuple[str, str]]:
    """The sections that this study can fill: anchor and name."""
    known = (
        ("map", "Head map", "model"),
        ("overlap", "Overlap", "importance"),
        ("lesions", "Lesions", "dissociation"),
        ("trust", "Trust", "trust"),
        ("training", "Training", "training"),
        ("iat", "IAT", "iat"),
        ("prune", "Pruning", "prune"),
        ("similarity", "Similarity", "similarity"),
        ("tables", "Tables", "tables"),
        ("reproduce", "Reproduce", "reproduce"),
    )
    return [(anchor, name) for anchor, name, part in known if study.get(part)]


def trust_rows(study: dict[str, Any]) -> list[dict[str, Any]]:
    """Evidence for and against the head set of each task."""
    trust = study["trust"]
    rows = []
    for name, entry in study["importance"].items():
        stable = trust.get("stability", {}).get(name) or {}
        rows.append(
            {
                "task": name,
                "split_half": stable.get("split_half"),
                "expected": stable.get("expected"),
                "seeds": trust.get("seeds", {}).get(name),
                "band": trust.get("random_band", {}).get(name),
                "always": always(entry.get("top_probability")),
                "used": entry.get("examples"),
                "needed": needed(stable),
                "enough": stable.get("enough"),
            }
        )
    return rows


def needed(stable: dict[str, Any]) -> str:
    """How many examples would be enough, or that this cannot be estimated."""
    if stable.get("enough") is None:
        return MISSING
    count = stable.get("needed")
    return f"about {number(count)}" if count else f"more than {number(20 * stable['used'])}"


def always(chances: list[list[float | None]] | None) -> int | None:
    """How many heads are among the top heads in 95 % of samples or more."""
    if chances is None:
        return None
    return sum(chance is not None and chance >= 0.95 for row in chances for chance in row)


def summary(study: dict[str, Any]) -> dict[str, Any]:
    """One line of a comparison of studies: D at the default fraction, and the pairs that dissociate by their test."""
    part = study.get("dissociation") or {}
    entries = part.get("D") or []
    if not entries:
        return {"fraction": None, "mean": {}, "significant": None, "pairs": None}
    entry = entries[nearest([entry["fraction"] for entry in entries], part["default"])]
    kinds = [pair["kind"] for pair in entry.get("pairs") or []]
    significant = sum(kind == "significant" for kind in kinds) if part.get("null") else None
    return {
        "fraction": entry["fraction"],
        "mean": entry.get("mean") or {},
        "significant": significant,
        "pairs": len(kinds),
    }


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Names of tasks without the part before a dot that all of them share.

    Example:
        >>> short_names(["corpus.topic", "corpus.pos"])
        {'corpus.topic': 'topic', 'corpus.pos': 'pos'}
    """
    names = list(names)
    parts = [name.split(".") for name in names]
    shared = 0
    while len(names) > 1 and all(
        len(part) > shared + 1 and part[: shared + 1] == parts[0][: shared + 1] for part in parts
    ):
        shared += 1
    return {name: ".".join(part[shared:]) for name, part in zip(names, parts)}


def letters(names: Iterable[str]) -> dict[str, str]:
    """A letter, or two, for each task: the second cue beside its colour.

    Example:
        >>> letters(["corpus.topic", "corpus.tree", "corpus.pos"])
        {'corpus.topic': 'T', 'corpus.tree': 'R', 'corpus.pos': 'P'}
    """
    by_name: dict[str, str] = {}
    for number, (name, short) in enumerate(short_names(names).items()):
        plain = [letter.upper() for letter in short if letter.isalnum()] or ["?"]
        pairs = [plain[0] + letter.lower() for letter in plain[1:]]
        free = (mark for mark in (*plain, *pairs) if mark not in by_name.values())
        by_name[name] = next(free, f"{number + 1}")
    return by_name


# -- several trainings


def repeated(studies: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What studies that differ in their seed alone say together, one entry for each such group of two or more.

    Of every pair of tasks: both D of each training, in how many the pair is significant, and the one-sided p-value over
    trainings (Student's t, the larger of both directions, Holm-adjusted). Of every task: the fraction of its own heads
    that two trainings have in common.
    """
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for study in studies:
        if study.get("dissociation") and study.get("importance"):
            groups.setdefault(_without_seed(study), []).append(study)
    return [_together(group) for group in groups.values() if len({_seed(study) for study in group}) == len(group) > 1]


def _seed(study: Mapping[str, Any]) -> Any:
    return ((study.get("reproduce") or {}).get("plan") or {}).get("seed")


def _without_seed(study: Mapping[str, Any]) -> str:
    again = study.get("reproduce") or {}
    plan = {name: value for name, value in (again.get("plan") or {}).items() if name != "seed"}
    tasks = [task["name"] for task in study["tasks"]]
    return repr(
        (study["model"]["name"], tasks, sorted(plan.items()), again.get("settings"), study["dissociation"]["default"])
    )


def _together(group: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    parts = [study["dissociation"] for study in group]
    entries = [next(row for row in part["D"] if row["fraction"] == part["default"])["pairs"] for part in parts]
    nulls, without = [part.get("null") for part in parts], [withheld(study) for study in group]
    pairs = []
    for each in zip(*entries):
        kinds = [kind_of(pair, null, less) for pair, null, less in zip(each, nulls, without)]
        d_a, d_b = ([pair[side] for pair in each] for side in ("d_a", "d_b"))
        pairs.append(
            {"a": each[0]["a"], "b": each[0]["b"], "d_a": d_a, "d_b": d_b, "significant": kinds.count("significant")}
        )
    p = adjust(np.array([np.maximum(_over(pair["d_a"]), _over(pair["d_b"])) for pair in pairs]))
    for pair, value in zip(pairs, p.tolist()):
        pair["p"] = finite(value)
    alpha = parts[0]["default"]
    masks = {task: [top_mask(s["importance"][task]["scores"], alpha) for s in group] for task in group[0]["importance"]}
    shared = {task: [(a & b).sum() / max(1, a.sum()) for a, b in combinations(sets, 2)] for task, sets in masks.items()}
    numbers = [study["title"] for study in group]
    return {
        "studies": numbers,
        "n": len(group),
        "pairs": pairs,
        "seeds": {t: float(np.mean(v)) for t, v in shared.items()},
    }


def _over(values: Sequence[float | None]) -> float:
    """One-sided p over trainings that D is above zero; NaN where a training has none."""
    return float("nan") if None in values else float(over_trainings(np.array(values, float)).p)  # type: ignore[arg-type]
