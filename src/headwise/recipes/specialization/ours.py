"""Tables of our own methods: against plain training and IAT, against each other, and over all models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from headwise.recipes.specialization.jobs import OWN
from headwise.recipes.specialization.records import SETTING, Records
from headwise.recipes.specialization.training import (
    FIRST,
    MEAN,
    Scores,
    Table,
    after_holm,
    against,
    by_method,
    columns_of,
    gaps,
    mean_scores,
)
from headwise.recipes.summary import mean_sd, over_seeds, sentence, table

NONE = "–"  # gradients are not clipped
BEST = "a factor per head and task, faster"
DIRECT = ("multi", "iat", "mt-dnn", *(name for name, settings in OWN.items() if "tied" in settings))


def own_tables(records: Records, model: str) -> list[Table]:
    """Methods of our own against plain training and IAT over all seeds, a table for every setting of the plan."""
    made = []
    for setting, _ in records.usual.get(model, Counter()).most_common():
        found = by_method(records, model, "annealed", setting)
        names = [name for name in OWN if name in found]
        if "multi" in found and names:
            told = "" if _clip(setting) == NONE else f", gradients clipped at {_clip(setting)}"
            made.append(table(f"Methods of our own{told}, {model}", *_own_rows(found, names)))
    return made


def _own_rows(found: Mapping[str, Scores], names: Sequence[str]) -> tuple[list[str], list[list[Any]], str]:
    tasks, bases = columns_of(found["multi"]), ("multi", "iat")
    means = {name: mean_scores(found[name], tasks) for name in (*bases, *names) if name in found}
    tests = [against(means[name], means.get(base, {})) for name in names for base in bases]
    level = after_holm(p for _, p in tests)
    rows = {name: [name, *mean_sd(list(one.values())), *[None] * 6, len(one)] for name, one in means.items()}
    if "iat" in rows:
        rows["iat"][3:5] = against(means["iat"], means["multi"])
    for number, name in enumerate(names):
        pair = zip(tests[2 * number : 2 * number + 2], level[2 * number : 2 * number + 2])
        rows[name][3:9] = [value for test, corrected in pair for value in (*test, corrected)]
    columns = ["method", "mean", "sd", "against plain", "p", "p (Holm)", "against IAT", "p", "p (Holm)", "seeds"]
    return columns, list(rows.values()), f"{MEAN}, annealed sampling; paired t tests over seeds, two-sided."


def direct_table(records: Records, model: str) -> Table | None:
    """The best of our own against what it is made of, against the others, and against clipping alone."""
    means: dict[tuple[str, str], dict[int, float]] = {}
    for setting in records.usual.get(model, {}):
        found = by_method(records, model, "annealed", setting)
        if BEST in found:
            tasks, told = columns_of(found[BEST]), _clip(setting)
            means |= {(name, told): mean_scores(found[name], tasks) for name in (BEST, *DIRECT) if name in found}
    pairs = [(a, b) for a in means for b in means if a[0] == BEST != b[0] and (a[1] == b[1] or b[0] == "multi")]
    tests = [(clip, b, means[name, clip], means[b]) for (name, clip), b in pairs]
    rows = [[clip, *b, *against(mine, other), len(gaps(mine, other))] for clip, b, mine, other in tests]
    columns = ["clipped at", "against", "clipped at", "difference", "p", "seeds"]
    note = f"{MEAN}, annealed sampling; paired t tests over seeds, two-sided, not corrected."
    return table(f"{sentence(BEST)}: direct comparisons, {model}", columns, rows, note) if rows else None


def pooled_table(records: Records) -> Table | None:
    """All methods over all models: every training is set against those of the same model and seed."""
    means, tests = _pooled(records), []
    for name, clip in sorted(means, key=lambda key: (key[1] != NONE, key[1], FIRST.index(key[0]))):
        for base in ("multi", "iat") if name in OWN else ("multi",):
            mine, other = means[name, clip], means.get((base, clip), {})
            models = {model for model, _ in mine.keys() & other.keys()}
            if name != base and len(models) > 1:
                tests.append((name, clip, base, over_seeds(mine, other), gaps(mine, other), len(models)))
    rows = []
    for (name, clip, base, test, each, models), p in zip(tests, after_holm(test.p for *_, test, _, _ in tests)):
        above = f"{sum(gap > 0 for gap in each)} of {len(each)}"
        rows.append([name, clip, base, test.value, test.low, test.high, test.p, p, above, models])
    columns = ["method", "clipped at", "against", "difference", "low", "high", "p", "p (Holm)", "better in", "models"]
    note = f"{MEAN}, annealed sampling, over all seeds of all models that have both; Student's paired t, two-sided. "
    note += "MT-DNN clips gradients at 1 in both."
    return table("Methods over all models", columns, rows, note) if rows else None


def _pooled(records: Records) -> dict[tuple[str, str], dict[Any, float]]:
    """Mean scores by method and clipping, of every model and seed; settings in which methods of our own were tried."""
    counted = sum(records.usual.values(), Counter())
    means: dict[tuple[str, str], dict[Any, float]] = {}
    for place, (setting, _) in enumerate(counted.most_common()):
        found = records.glue(setting if place else None)  # the usual one has also what has settings of its own
        kept = {(model, name): one for (model, sampling, name), one in found.items() if sampling == "annealed"}
        if any(name in OWN for _, name in kept):
            for (model, name), scores in kept.items():
                if name in FIRST:
                    each = mean_scores(scores, columns_of(kept.get((model, "multi"), scores)))
                    own = means.setdefault((name, _clip(setting)), {})
                    own |= {(model, seed): mean for seed, mean in each.items()}
    return means


def _clip(setting: tuple) -> str:
    clip = dict(zip(SETTING, setting))["clip"]
    return NONE if clip is None else f"{clip:g}"
