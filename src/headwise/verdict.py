"""What a study says, in plain words (no torch)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from headwise.stats import Overlap, adjust, overlap_test

POINT = 0.01  # a loss up to this is called cheap
LEVEL = 0.05  # of a family of tests, after adjustment
PAIRS = {  # verdicts on pairs of tasks, and the words before the list of such pairs
    "double": f"They come apart (double dissociation, one-sided p < {LEVEL})",
    "not sure": f"Double dissociation, but not sure (p of {LEVEL} or more, or no test)",
    "single": "One-sided (one of the two needs its own heads more, the other does not)",
    "none": "No dissociation is seen between",
    "both negative": "No dissociation is seen between",
    "undefined": "Not known, as one of the two has no D",
}


def verdict(study: Mapping[str, Any], alpha: float) -> list[str]:
    """Sentences that answer: which tasks share heads, do they come apart, train together or apart, what may be cut."""
    parts = [_apart(study), _sharing(study, alpha), _iat(study), _cut(study), _sure(study)]
    return [sentence for part in parts for sentence in part]


def top_mask(scores: Sequence[Sequence[float | None]], alpha: float) -> np.ndarray:
    """The top share of heads, as `headwise.selection.top` has it, for plain lists."""
    array = _array(scores)
    k = int(np.floor(alpha * array.size + 1e-6))
    order = np.argsort(-np.nan_to_num(array, nan=-np.inf).ravel(), kind="stable")[:k]
    mask = np.zeros(array.size, bool)
    mask[order] = True
    return mask.reshape(array.shape) & ~np.isnan(array)


def _array(scores: Sequence[Sequence[float | None]]) -> np.ndarray:
    return np.array([[np.nan if x is None else x for x in row] for row in scores], float)


def _sharing(study: Mapping[str, Any], alpha: float) -> list[str]:
    found = study.get("importance")
    if not found or len(found) < 2:
        return []
    masks = {task: top_mask(f["scores"], alpha) for task, f in found.items()}
    alive = np.any([~np.isnan(_array(f["scores"])) for f in found.values()], axis=0)
    tests = {pair: overlap_test(masks[pair[0]], masks[pair[1]], alive) for pair in combinations(masks, 2)}
    size, living = int(next(iter(masks.values())).sum()), int(alive.sum())
    uncut = f", of which {living} are not cut" if living < alive.size else ""
    return [
        f"Each task's own heads are its top {alpha:.0%} ({size} of {alive.size}{uncut}); "
        f"by chance two tasks would share {next(iter(tests.values())).expected:.2g}.",
        _extremes(tests, size),
    ]


def _extremes(tests: Mapping[tuple[str, str], Overlap], size: int) -> str:
    """The pairs that share most and least, where chance would give neither.

    They are chosen from all pairs after looking, so their p-values are adjusted over all pairs, more and fewer.
    """
    p = adjust(np.array([[test.p_more, test.p_fewer] for test in tests.values()]))
    more, fewer = (dict(zip(tests, column)) for column in p.T)
    most, least = max(tests, key=lambda pair: tests[pair].shared), min(tests, key=lambda pair: tests[pair].shared)
    over = f", adjusted over {len(tests)} pairs" if len(tests) > 1 else ""
    ways = ((most, "most, more", more[most]), (least, "least, fewer", fewer[least]))
    told = [
        f"{_and(pair)} share {way if over else way.split()[-1]} than chance gives: {tests[pair].shared} of {size} "
        f"(p = {chance:.2g}{over})"
        for pair, way, chance in ways
        if chance < LEVEL
    ]
    if told:
        return "; ".join(told) + "."
    unsure = f"told apart from chance (p = {p.min():.2g}{over})."
    if most == least:
        return f"{_and(most)} share {tests[most].shared} of them, not {unsure}"
    return f"Pairs of tasks share {tests[least].shared} to {tests[most].shared} of them, none {unsure}"


def _apart(study: Mapping[str, Any]) -> list[str]:
    d = study.get("dissociation")
    if not d:
        return []
    table = next(row for row in d["D"] if row["fraction"] == d["default"])
    mean = table["mean"]
    without = [task for task, d in table.get("tasks", {}).items() if d["value"] is None]
    doubt = [f"Without D, as they score 0 or less with all their heads: {', '.join(without)}."] if without else []
    told = _pairs(table["pairs"]) + doubt
    if mean["value"] is None:
        return told
    own = f"Closing a task's own heads (α = {d['default']:g})"
    less = "less" if mean["value"] < 0 else "more"
    cost = f"{100 * abs(mean['value']):.1f} percentage points of its whole score {less}"
    return [f"{own} costs it {cost} than closing another task's ({_signed(mean)}).", *told]


def _pairs(pairs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Every pair is in one list: of one left out a reader would conclude the opposite."""
    lists: dict[str, list[str]] = {words: [] for words in PAIRS.values()}
    for p in pairs:
        kind = p["verdict"]
        if kind in ("distinct", "double"):
            kind = "double" if p["p"] is not None and p["p"] < LEVEL else "not sure"
        lists[PAIRS[kind]].append(_and((p["a"], p["b"])))
    return [f"{words}: {'; '.join(found)}." for words, found in lists.items() if found]


def _iat(study: Mapping[str, Any]) -> list[str]:
    rows = study.get("iat", {}).get("rows", [])
    if not rows:
        return []
    mean = 100 * float(np.mean([r["iat"] - r["plain"] for r in rows]))
    words = f"Important-head training changes the mean score by {mean:+.2f} points"
    p = adjust(np.array([r.get("p") for r in rows], float))  # records of before have none
    if np.isnan(p).all():
        return [words + "."]
    beyond = [r for r, chance in zip(rows, p) if chance < LEVEL]
    if not beyond:
        return [words + "; with one training of each, no single task's change is beyond chance on these examples."]
    better, worse = ([r for r in beyond if (r["iat"] > r["plain"]) == up] for up in (True, False))
    words += "; with one training of each, beyond chance on these examples"
    return [words + f", better: {_names(better)}, worse: {_names(worse)}."]


def cheapest(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The row of the largest cut that costs no task more than a point; None where even the smallest costs more."""
    cheap = [row for row in _cuts(rows) if _loss(rows, row) <= POINT]
    return max(cheap, key=lambda row: row["fraction"], default=None)


def _cuts(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those that cut some heads and leave some: a small share of few heads is none, a large one all."""
    return [row for row in rows if 0 < row["kept"] < rows[0]["kept"]]


def _loss(rows: Sequence[Mapping[str, Any]], row: Mapping[str, Any]) -> float:
    base = rows[0]["task scores"]
    return max(base[task] - row["task scores"][task] for task in base)


def _cut(study: Mapping[str, Any]) -> list[str]:
    rows = study.get("prune", {}).get("rows", [])
    cuts = _cuts(rows)
    if not cuts:
        return []
    whole, cheap = rows[0]["kept"], cheapest(rows)
    if cheap is None:
        few = whole - cuts[0]["kept"]
        return [f"Cutting even the {few} of {whole} heads that are needed least costs some task more than one point."]
    done = "cut" if "speedup" in cheap else "closed"  # of some families heads can be gated, not cut
    many, loss = whole - cheap["kept"], 100 * max(_loss(rows, cheap), 0)
    return [f"The {many} of {whole} heads that are needed least can be {done} for {loss:.1f} points at most."]


def _sure(study: Mapping[str, Any]) -> list[str]:
    trust = study.get("trust", {})
    halves = {task: share for task, share in trust.get("split_half", {}).items() if share is not None}
    lines = []
    if halves:
        lowest = min(halves, key=lambda task: halves[task])
        lines.append(
            "How sure: the two halves of the examples agree on every task's heads."
            if halves[lowest] == 1
            else f"How sure: the two halves of the examples agree on {halves[lowest]:.0%} or more of a task's heads "
            f"(least for {lowest})."
        )
    if trust.get("collapsed"):
        lines.append(f"Beware: all predictions fall into one class for {'; '.join(trust['collapsed'])}.")
    found = {name: _overlap(worst) for name, worst in trust.get("worst_overlap", {}).items()}
    if "leakage" in found:
        lines.append(f"Beware: texts are shared between training and evaluation: {found['leakage']}.")
    if "shared" in found:
        lines.append(f"Evaluations share texts, which is no leak: {found['shared']}.")
    return lines


def _overlap(worst: Mapping[str, Any]) -> str:
    """How many rows of which split have their text where else too, of the two splits that share most."""
    (held, split), (seen, other) = (worst[side].rsplit("/", 1) for side in ("held", "seen"))
    share = f"{worst['rows']} of {worst['of']} {split} rows of {held} ({_share(worst['rows'] / worst['of'])})"
    where = f"have their {worst['field']} in the {other} rows of {seen} too"
    return f"{share} {where} (the two splits that share most; the page lists all)"


def _share(value: float) -> str:
    return f"{value:.0%}" if value >= 0.01 else "below 1%"


def _signed(cell: Mapping[str, Any]) -> str:
    """Mean D in percent with its interval, both with the sign of D."""
    text = f"mean D {100 * cell['value']:+.1f} %"
    if cell.get("low") is not None:
        text += f", 95 % interval {100 * cell['low']:+.1f} to {100 * cell['high']:+.1f}"
    return text


def _and(pair: Sequence[str]) -> str:
    return " and ".join(pair)


def _names(rows: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{r['task']} {100 * (r['iat'] - r['plain']):+.1f}" for r in rows) or "none"
