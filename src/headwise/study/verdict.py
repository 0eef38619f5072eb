"""The verdict of a study in plain words (no torch): unlearned tasks first, then only what a test supports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from headwise.measuring.stats import Overlap, adjust, overlap_test

MOSTLY = 0.9  # of the answers are one class
LEVEL = 0.05  # of a family of tests, after adjustment
NULLS = {"random heads": "random head sets of the same size"}  # by the name that a dissociation gives its null
PAIRS = {  # what a pair of tasks is called, in the order in which lists of pairs are given
    "significant": "Double dissociation",
    "not significant": "Double dissociation, not significant",
    "not tested": "Double dissociation, not tested against random head sets",
    "single": "One-sided (one task depends more on its own heads, the other does not; not tested)",
    "none": "No dissociation",
    "both negative": "No dissociation",
    "undefined": "Undefined (a task has no D)",
    "withheld": "Withheld",
}


def verdict(study: Mapping[str, Any], alpha: float) -> list[str]:
    """Answer in sentences: do tasks dissociate, which heads do they share, does IAT help, what can be pruned."""
    parts = [
        _not_learned(study),
        _one_sided(study),
        _apart(study),
        _alone(study, alpha),
        _sharing(study, alpha),
        _iat(study),
        _cut(study),
    ]
    return [sentence for part in [*parts, _stable(study), _warnings(study)] for sentence in part]


def withheld(study: Mapping[str, Any]) -> dict[str, str]:
    """The tasks without claims, with the reason."""
    unlearned = {task: f"not learned: {_against(score)}" for task, score in _unlearned(study).items()}
    return {**(study.get("withheld") or {}), **unlearned}


def kind_of(pair: Mapping[str, Any], null: str | None, without: Mapping[str, str]) -> str:
    """What a pair of tasks is called, a key of `PAIRS`: a double dissociation is significant only by its test."""
    if pair["a"] in without or pair["b"] in without:
        return "withheld"
    if pair.get("verdict") not in ("distinct", "double"):
        return pair.get("verdict") or "undefined"
    if null not in NULLS or pair.get("p") is None:
        return "not tested"
    return "significant" if pair["p"] < LEVEL else "not significant"


# -- what was learned


def _unlearned(study: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {task: score for task, score in (study.get("scores") or {}).items() if not score["learned"]}


def _not_learned(study: Mapping[str, Any]) -> list[str]:
    scores = _unlearned(study)
    if not scores:
        return []
    listed = "; ".join(f"{task} ({_against(score)})" for task, score in scores.items())
    rest = "No claim is made about any head." if len(scores) == len(study["scores"]) else "Their claims are withheld."
    return [f"Not learned: {listed}. {rest}"]


def _one_sided(study: Mapping[str, Any]) -> Iterator[str]:
    """Tasks that nearly always get the same answer, as prompts without examples often do."""
    for task, score in (study.get("scores") or {}).items():
        for label, (answered, right) in (score.get("answers") or {}).items():
            if answered >= MOSTLY * score["n"] and answered > 1.2 * right:
                seen = f"{task} is answered {label!r} on {answered} of {score['n']} rows; it is right on {right}"
                yield f"{seen}. Margins say more than accuracy there."


def _against(score: Mapping[str, Any]) -> str:
    interval = f"95 % CI {score['low']:.2f} to {score['high']:.2f}"
    constant = f"a constant answer scores {score['baseline']:.2f}"
    return f"{score['metric']} {score['value']:.2f}, {interval}, n = {score['n']}; {constant}"


# -- lesions


def _apart(study: Mapping[str, Any]) -> list[str]:
    d = study.get("dissociation")
    if not d or len(_unlearned(study)) == len(study.get("scores") or "-"):
        return []
    table = next(row for row in d["D"] if row["fraction"] == d["default"])
    without, null = withheld(study), d.get("null")
    lines = [] if without else _mean(table["mean"], d)
    lines += _pairs(table["pairs"], null, without, _rows(d))
    undefined = [task for task, cell in table.get("tasks", {}).items() if cell["value"] is None and task not in without]
    if undefined:
        lines.append(f"No D for {', '.join(undefined)}: the intact model scores 0 or less.")
    lines += [f"No claim about {task}: {why}." for task, why in without.items() if task not in _unlearned(study)]
    return lines


def _mean(mean: Mapping[str, Any], d: Mapping[str, Any]) -> list[str]:
    if mean["value"] is None:
        return []
    points = f"{100 * abs(mean['value']):.1f}"
    more = f"{points} percentage points of its intact score {'more than' if mean['value'] > 0 else 'less than'}"
    more = more if float(points) else "as much as"
    low, high, p = (mean.get(name) for name in ("low", "high", "p"))
    interval = (
        "" if low is None or high is None else f" (95 % CI {100 * low:+.1f} to {100 * high:+.1f} over {_rows(d)})"
    )
    cost = f"Ablating a task's own heads (α = {d['default']:g}) costs it {more} ablating another task's"
    null = NULLS.get(d.get("null") or "")
    if not null or p is None:
        return [f"{cost}{interval}; not tested against random head sets."]
    differs = "significantly more than" if p < LEVEL else "not significantly different from"
    return [f"{cost}{interval}, {differs} {null} (one-sided {_p(p)}).", *_layers(mean)]


def _layers(mean: Mapping[str, Any]) -> list[str]:
    """Whether the layers of the heads explain what their choice does."""
    p = mean.get("p_layers")
    if p is None or mean["p"] >= LEVEL:
        return []
    if p < LEVEL:
        return [f"The layers alone do not explain it: random sets with as many heads in every layer do less ({_p(p)})."]
    return [f"The layers may explain it: random sets with as many heads in every layer do about the same ({_p(p)})."]


def _pairs(
    pairs: Sequence[Mapping[str, Any]], null: str | None, without: Mapping[str, str], rows: str
) -> Iterator[str]:
    """Every pair is in one list: of one that is missing a reader would conclude the opposite."""
    lists: dict[str, list[str]] = {words: [] for words in PAIRS.values()}
    for pair in pairs:
        lists[PAIRS[kind_of(pair, null, without)]].append(_and((pair["a"], pair["b"])))
    over = f", Holm-corrected over {len(pairs)} pairs" if len(pairs) > 1 else ""
    against = f" (one-sided p < {LEVEL} against {NULLS.get(null or '')}{over}; {rows})"
    for words, named in lists.items():
        if named:
            yield f"{words}: {'; '.join(named)}{against if words == PAIRS['significant'] else ''}."


def _rows(d: Mapping[str, Any]) -> str:
    """How many rows, and that there was one training."""
    counts = sorted(set((d.get("n") or {}).values()))
    if not counts:
        return "the development rows of one training"
    return f"{counts[0] if len(counts) == 1 else f'{counts[0]} to {counts[-1]}'} rows of one training"


def _alone(study: Mapping[str, Any], alpha: float) -> Iterator[str]:
    """The loss of a single task without its own heads, compared with random ones."""
    if not study.get("curves") or _unlearned(study):
        return
    close, curve = next(iter(study["curves"].items()))
    at = min(range(len(curve["fractions"])), key=lambda i: abs(curve["fractions"][i] - alpha))
    own, random, p = curve["own"][at], float(np.mean(curve["random"][at])), curve["p"][at]
    returned = "" if close == "zero" else f", which return {'their mean' if close == 'mean' else close} instead,"
    differs = "significantly more than" if p < LEVEL else "not significantly different from"
    yield (
        f"Ablating the task's own heads{returned} (α = {curve['fractions'][at]:g}) takes {curve['task']} from "
        f"{100 * curve['intact']:.1f} to {100 * own:.1f}, {differs} random heads ({100 * random:.1f} on average; "
        f"{_p(p)})."
    )


# -- shared heads


def top_mask(scores: Sequence[Sequence[float | None]], alpha: float) -> np.ndarray:
    """The top fraction of heads, as `headwise.heads.selection.top` has it, for plain lists."""
    array = _array(scores)
    k = int(np.floor(alpha * array.size + 1e-6))
    order = np.argsort(-np.nan_to_num(array, nan=-np.inf).ravel(), kind="stable")[:k]
    mask = np.zeros(array.size, bool)
    mask[order] = True
    return mask.reshape(array.shape) & ~np.isnan(array)


def tied(scores: Sequence[Sequence[float | None]], alpha: float) -> bool:
    """Whether the score at which the top fraction ends is that of a head outside it too."""
    array = _array(scores)
    k, ranked = int(np.floor(alpha * array.size + 1e-6)), -np.sort(-array[~np.isnan(array)])
    return 0 < k < len(ranked) and bool(ranked[k - 1] == ranked[k])


def _array(scores: Sequence[Sequence[float | None]]) -> np.ndarray:
    return np.array([[np.nan if x is None else x for x in row] for row in scores], float)


def _sharing(study: Mapping[str, Any], alpha: float) -> list[str]:
    entries = {task: e for task, e in study.get("importance", {}).items() if task not in _unlearned(study)}
    untied = {task: entry for task, entry in entries.items() if not tied(entry["scores"], alpha)}
    if len(untied) < 2:
        return []
    masks = {task: top_mask(entry["scores"], alpha) for task, entry in untied.items()}
    alive = np.any([~np.isnan(_array(entry["scores"])) for entry in untied.values()], axis=0)
    tests = {pair: overlap_test(masks[pair[0]], masks[pair[1]], alive) for pair in combinations(masks, 2)}
    size, living = int(next(iter(masks.values())).sum()), int(alive.sum())
    pruned = f", {living} of which remain" if living < alive.size else ""
    return [
        f"A task's own heads are its top {_share(alpha)} ({size} of {alive.size}{pruned}); "
        f"two random sets would share {next(iter(tests.values())).expected:.2g}.",
        _extremes(tests, size),
    ]


def _extremes(tests: Mapping[tuple[str, str], Overlap], size: int) -> str:
    """The pairs that share most and least, where random sets would do neither.

    They are chosen from all pairs after looking, so their p-values are adjusted over all pairs, more and fewer.
    """
    p = adjust(np.array([[test.p_more, test.p_fewer] for test in tests.values()]))
    more, fewer = (dict(zip(tests, column)) for column in p.T)
    most, least = max(tests, key=lambda pair: tests[pair].shared), min(tests, key=lambda pair: tests[pair].shared)
    over = f", Holm-corrected over {len(tests)} pairs" if len(tests) > 1 else ""
    ways = ((most, "the most heads, more", more[most]), (least, "the fewest heads, fewer", fewer[least]))
    significant = [
        f"{_and(pair)} share {way if over else way.split(', ')[1]} than random sets: {tests[pair].shared} of {size} "
        f"({_p(chance)}{over})"
        for pair, way, chance in ways
        if chance < LEVEL
    ]
    if significant:
        return "; ".join(significant) + "."
    unlike = f"not significantly different from random sets ({_p(p.min())}{over})."
    if most == least:
        return f"{_and(most)} share {tests[most].shared} of them, {unlike}"
    return f"Pairs of tasks share {tests[least].shared} to {tests[most].shared} of them, {unlike}"


# -- training with important heads, and pruning


def _iat(study: Mapping[str, Any]) -> list[str]:
    rows = study.get("iat", {}).get("rows", [])
    if not rows:
        return []
    mean = 100 * float(np.mean([row["iat"] - row["plain"] for row in rows]))
    words = f"Important-head training changes the mean score by {mean:+.2f} points"
    p = adjust(np.array([row.get("p") for row in rows], float))  # older records have none
    if np.isnan(p).all():
        return [words + "; not tested."]
    beyond = [row for row, chance in zip(rows, p) if chance < LEVEL]
    over = "Holm-corrected, over the development rows of one training each"
    if not beyond:
        return [f"{words}; no task changes significantly ({over})."]
    better, worse = ([row for row in beyond if (row["iat"] > row["plain"]) == up] for up in (True, False))
    return [f"{words}; significantly better: {_gains(better)}; significantly worse: {_gains(worse)} ({over})."]


def _cut(study: Mapping[str, Any]) -> list[str]:
    part, without = study.get("prune", {}), withheld(study)
    rows = part.get("rows", [])
    tasks = [task for task in (rows[0]["task scores"] if rows else ()) if task not in without]
    cuts = [row for row in rows if 0 < row["kept"] < rows[0]["kept"]]  # some heads, not all that are left
    if not cuts or not tasks:
        return []
    whole = rows[0]["kept"]
    row = next((row for row in cuts if row["fraction"] == part.get("chosen")), None)
    if row is None:
        few = whole - cuts[0]["kept"]
        return [f"Even the smallest cut, the {few} of {whole} least important heads, costs a task more than one point."]
    how = "Pruning" if "speedup" in row else "Ablating"  # of some families heads can be gated only
    cut = f"{how} the {whole - row['kept']} of {whole} least important heads"
    changes = {task: change for task, change in part["held out"].items() if task in tasks}
    if not changes:
        return []
    worst = min(changes, key=lambda task: changes[task]["value"])
    return [f"{cut} costs {_most(worst, changes[worst], len(changes))}."]


def _most(task: str, change: Mapping[str, Any], tasks: int) -> str:
    """The largest loss of any task on rows that the cut was not chosen by."""
    interval = ""
    if change.get("low") is not None:
        interval = f"95 % CI {_negative(change['high'])} to {_negative(change['low'])}; "
    rows = f"{change['n']} held-out {'test rows' if change['split'] == 'test' else 'rows, 5 nested folds of dev'}"
    most = f", the largest loss of {tasks} tasks" if tasks > 1 else ""
    return f"{task} {_negative(change['value'])} points ({interval}{rows}){most}"


def _negative(change: float) -> str:
    return f"{0.0 - 100 * change:.1f}"


# -- how far the rest can be trusted


def _stable(study: Mapping[str, Any]) -> list[str]:
    stability = study.get("trust", {}).get("stability", {})
    known = {task: s for task, s in stability.items() if s["expected"] is not None and task not in _unlearned(study)}
    few = {task: s for task, s in known.items() if not s["enough"]}
    if not known:
        return []
    if not few:
        return ["Head sets are stable: as many other examples would give at least 90 % of the same heads."]
    worst = min(few, key=lambda task: few[task]["expected"])
    share, needed, used = (few[worst][name] for name in ("expected", "needed", "used"))
    count = f"about {needed:,} would give 90 %" if needed else "no number up to 20 times as many would give 90 %"
    others = f" Also too few: {', '.join(task for task in few if task != worst)}." if len(few) > 1 else ""
    return [
        f"Too few examples for stable head sets: {used:,} others would give {_share(share)} of the same heads "
        f"for {worst}; {count}.{others}"
    ]


def _warnings(study: Mapping[str, Any]) -> list[str]:
    trust, lines = study.get("trust", {}), []
    if study.get("model", {}).get("verified") is False:
        lines.append("Warning: heads were found by name, unverified: no forward showed that closing them works.")
    if trust.get("collapsed"):
        lines.append(f"Warning: all predictions fall into one class for {'; '.join(trust['collapsed'])}.")
    overlaps = {name: _overlap(worst) for name, worst in trust.get("worst_overlap", {}).items()}
    if "leakage" in overlaps:
        lines.append(f"Warning: training and evaluation share texts: {overlaps['leakage']}.")
    if "shared" in overlaps:
        lines.append(f"Evaluations share texts, which is not a leak: {overlaps['shared']}.")
    return lines


def _overlap(worst: Mapping[str, Any]) -> str:
    """How many rows of which split have their text in another split too, of the two splits that share most."""
    (held, split), (seen, other) = (worst[side].rsplit("/", 1) for side in ("held", "seen"))
    share = f"{worst['rows']} of {worst['of']} {split} rows of {held} ({_share(worst['rows'] / worst['of'])})"
    return f"{share} have their {worst['field']} in the {other} rows of {seen} too (the largest overlap)"


def _share(value: float) -> str:
    return f"{100 * value:.0f} %" if value >= 0.01 else "below 1 %"


def _p(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}"


def _and(pair: Sequence[str]) -> str:
    return " and ".join(pair)


def _gains(rows: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{row['task']} {100 * (row['iat'] - row['plain']):+.1f}" for row in rows) or "none"
